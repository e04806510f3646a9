//! The one error of this crate. Doors print it as it is and take the exit code from
//! [`Error::kind`].

use std::io;
use std::time::Duration;

use strait_sys::Kind;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why bytes could not be moved.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused, or something is missing.
    #[error(transparent)]
    System(#[from] strait_sys::Error),
    /// The peer has closed or reset the connection.
    #[error("{operation} {peer}: it has closed the connection")]
    Closed {
        /// What was tried.
        operation: &'static str,
        /// Who.
        peer: String,
    },
    /// A file or a socket ended before the bytes that were planned.
    #[error("{what} ended {missing} bytes early")]
    Truncated {
        /// What was read.
        what: &'static str,
        /// Bytes that were planned and are not there.
        missing: u64,
    },
    /// The peer took nothing for too long.
    #[error("{operation}: no progress for {} s", limit.as_secs_f64())]
    Timeout {
        /// What was tried.
        operation: &'static str,
        /// For how long.
        limit: Duration,
    },
}

impl Error {
    pub(crate) fn os(
        operation: &'static str,
        subject: impl Into<String>,
        error: impl Into<io::Error>,
    ) -> Self {
        let (error, subject) = (error.into(), subject.into());
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                Self::Closed { operation, peer: subject }
            }
            _ => Self::output(operation, subject, error),
        }
    }

    /// The same of what is no connection.
    pub(crate) fn output(
        operation: &'static str,
        subject: impl Into<String>,
        error: impl Into<io::Error>,
    ) -> Self {
        Self::System(strait_sys::Error::from_io(operation, subject, &error.into()))
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> Kind {
        match self {
            Self::System(error) => error.kind(),
            Self::Closed { .. } | Self::Truncated { .. } | Self::Timeout { .. } => Kind::Failed,
        }
    }
}
