//! The one error of this crate. Doors print it as it is and take the exit code from
//! [`Error::kind`].

use strait_sys::Kind;

/// What can go wrong in a capture or an injection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused, or an interface, a library or a privilege is missing.
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
    /// The errno, where the kernel gave one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::System(error) => error.errno(),
            Self::Filter(_) | Self::Usage(_) | Self::File(_) => None,
        }
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> Kind {
        match self {
            Self::System(error) => error.kind(),
            Self::Filter(_) | Self::Usage(_) => Kind::Usage,
            Self::File(_) => Kind::Failed,
        }
    }
}
