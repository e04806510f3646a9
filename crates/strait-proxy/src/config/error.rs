//! Why the proxy does not start.

use std::io;

use strait_store::ErrorKind;

/// A failure: what was to be done, on what, why, and where there is one the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration contradicts itself or is not understood.
    #[error("{0}")]
    Config(String),
    /// It would be refused by design.
    #[error("{0}")]
    Refused(String),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] strait_store::Error),
    /// The system refuses.
    #[error("{operation} {subject}: {error}")]
    Os {
        /// What was to be done.
        operation: &'static str,
        /// On what.
        subject: String,
        /// Why not.
        error: io::Error,
    },
}

/// What may fail so.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn os(operation: &'static str, subject: &impl ToString, error: impl Into<io::Error>) -> Self {
        Self::Os { operation, subject: subject.to_string(), error: error.into() }
    }

    /// What it means for an exit code.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Config(_) => ErrorKind::Usage,
            Self::Refused(_) => ErrorKind::Refused,
            Self::Store(error) => error.kind(),
            Self::Os { .. } => ErrorKind::Failed,
        }
    }
}
