//! Error of this crate. Programs print it unchanged and derive the exit code from [`Error::kind`].

use std::io;
use std::time::Duration;

use strait_sys::Kind;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a transfer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused an operation, or lacks a feature.
    #[error(transparent)]
    System(#[from] strait_sys::Error),
    /// The peer has closed or reset the connection.
    #[error("{operation} {peer}: the peer has closed the connection")]
    Closed {
        /// Operation that failed.
        operation: &'static str,
        /// Address of the peer.
        peer: String,
    },
    /// A file or a socket ended before all planned bytes.
    #[error("{what} ended {missing} bytes early")]
    Truncated {
        /// Source of the bytes.
        what: &'static str,
        /// Planned bytes that are missing.
        missing: u64,
    },
    /// The peer accepted no bytes for too long.
    #[error("{operation}: no progress for {} s", limit.as_secs_f64())]
    Timeout {
        /// Operation that failed.
        operation: &'static str,
        /// Time limit.
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

    /// Makes an error of an operation on something other than a connection. EPIPE is then not the
    /// end of a connection.
    pub(crate) fn output(
        operation: &'static str,
        subject: impl Into<String>,
        error: impl Into<io::Error>,
    ) -> Self {
        Self::System(strait_sys::Error::from_io(operation, subject, &error.into()))
    }

    /// Returns the kind, from which a program derives its exit code.
    pub fn kind(&self) -> Kind {
        match self {
            Self::System(error) => error.kind(),
            Self::Closed { .. } | Self::Truncated { .. } | Self::Timeout { .. } => Kind::Failed,
        }
    }
}
