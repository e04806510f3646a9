//! Errors of the start and of a reload.

use std::io;

use strait_store::ErrorKind;

/// Error with the operation, its subject, the cause and, if there is one, the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration has unknown, wrong or contradictory values.
    #[error("{0}")]
    Config(String),
    /// The operation is not allowed.
    #[error("{0}")]
    Refused(String),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] strait_store::Error),
    /// A system call failed.
    #[error("{operation} {subject}: {error}")]
    Os {
        /// Operation, as in "listen on".
        operation: &'static str,
        /// Its subject, such as an address or a path.
        subject: String,
        /// Cause.
        error: io::Error,
    },
}

/// Result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn os(operation: &'static str, subject: &impl ToString, error: impl Into<io::Error>) -> Self {
        Self::Os { operation, subject: subject.to_string(), error: error.into() }
    }

    /// Adds the problems of another error, if both are about the configuration.
    pub(crate) fn and(self, other: impl FnOnce() -> Option<Self>) -> Self {
        match self {
            Self::Config(own) => match other() {
                Some(Self::Config(other)) => Self::Config(format!("{own}\n{other}")),
                _ => Self::Config(own),
            },
            error => error,
        }
    }

    /// Returns the kind of the error, from which programs derive their exit code.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Config(_) => ErrorKind::Usage,
            Self::Refused(_) => ErrorKind::Refused,
            Self::Store(error) => error.kind(),
            Self::Os { .. } => ErrorKind::Failed,
        }
    }
}

impl From<Error> for strait_program::Error {
    fn from(error: Error) -> Self {
        Self::Library { kind: error.kind(), error: Box::new(error) }
    }
}
