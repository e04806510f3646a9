//! Error of this crate. Programs print it as it is and take the exit code from [`Error::kind`].

use rustix::io::Errno;
use strait_sys::Kind;

/// Error of a capture or an injection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused a call, or an interface, a library or a privilege is missing.
    #[error(transparent)]
    System(#[from] strait_sys::Error),
    /// The filter cannot be attached as it is.
    #[error("filter: {0}")]
    Filter(String),
    /// The options contradict each other or the interface.
    #[error("{0}")]
    Usage(String),
    /// A capture file cannot be read.
    #[error(transparent)]
    File(#[from] crate::file::FileError),
}

impl Error {
    /// Returns the errno if the kernel gave one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::System(error) => error.errno(),
            Self::Filter(_) | Self::Usage(_) | Self::File(_) => None,
        }
    }

    /// Returns true if the kernel gave one of `errnos`.
    pub fn is_one_of(&self, errnos: &[Errno]) -> bool {
        matches!(self, Self::System(error) if error.is_one_of(errnos))
    }

    /// Returns the kind, which decides how a caller can react.
    pub fn kind(&self) -> Kind {
        match self {
            Self::System(error) => error.kind(),
            Self::Filter(_) | Self::Usage(_) => Kind::Usage,
            Self::File(_) => Kind::Failed,
        }
    }
}
