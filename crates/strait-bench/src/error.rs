//! Errors of measurements.

use std::io;

use strait_sys::Kind;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Failed measurement, or a measurement with invalid figures.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// System call failed.
    #[error(transparent)]
    System(#[from] strait_sys::Error),
    /// Capture engine failed.
    #[error(transparent)]
    Capture(#[from] strait_capture::Error),
    /// Transfer engine failed.
    #[error(transparent)]
    Transfer(#[from] strait_transfer::Error),
    /// Reading or writing a file, a pipe or a program's output failed.
    #[error("{operation}: {source}")]
    File {
        /// Operation and file.
        operation: String,
        /// The cause.
        source: io::Error,
    },
    /// A measured program failed.
    #[error("{program}: {message}")]
    Program {
        /// Program name and arguments.
        program: String,
        /// Error message of the program, or a description of the failure.
        message: String,
    },
    /// The figures are invalid.
    #[error("{0}")]
    Invalid(String),
    /// The request cannot be measured.
    #[error("{0}")]
    Usage(String),
    /// The user interrupted the run.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// Creates [`Error::File`] for a failed `operation`.
    pub fn file(operation: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::File { operation: operation.into(), source: source.into() }
    }

    /// Returns the reason, without the name of the measured program.
    pub fn reason(&self) -> String {
        match self {
            Self::Program { message, .. } => {
                let message = message
                    .strip_prefix("strait-bench: ")
                    .or_else(|| message.strip_prefix("strait: "))
                    .unwrap_or(message);
                message.to_owned()
            }
            error => error.to_string(),
        }
    }

    /// Returns the error kind, which determines the exit code.
    pub fn kind(&self) -> Kind {
        match self {
            Self::System(error) => error.kind(),
            Self::Capture(error) => error.kind(),
            Self::Transfer(error) => error.kind(),
            Self::Usage(_) => Kind::Usage,
            Self::File { .. } | Self::Program { .. } | Self::Invalid(_) | Self::Interrupted => Kind::Failed,
        }
    }
}

impl From<Error> for strait_program::Error {
    fn from(error: Error) -> Self {
        Self::Library { kind: error.kind(), error: Box::new(error) }
    }
}
