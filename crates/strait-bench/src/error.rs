//! Why a measurement could not be made.

use std::io;

use strait_sys::Kind;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A measurement that was not made, or whose figures mean nothing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel says why.
    #[error(transparent)]
    System(#[from] strait_sys::Error),
    /// The capture engine says why.
    #[error(transparent)]
    Capture(#[from] strait_capture::Error),
    /// The transfer engine says why.
    #[error(transparent)]
    Transfer(#[from] strait_transfer::Error),
    /// Reading or writing a file, a pipe or a program's output failed.
    #[error("{operation}: {source}")]
    File {
        /// What was done with which file.
        operation: String,
        /// The cause.
        source: io::Error,
    },
    /// A program that was to be measured did not do its part.
    #[error("{program}: {said}")]
    Program {
        /// Its name and arguments.
        program: String,
        /// What went wrong, in its own words where it had some.
        said: String,
    },
    /// The figures would mean nothing.
    #[error("{0}")]
    Void(String),
    /// What was asked for cannot be measured.
    #[error("{0}")]
    Usage(String),
    /// The user ended it.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// `operation` on a file failed.
    pub fn file(operation: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::File { operation: operation.into(), source: source.into() }
    }

    /// Why, without the name of the program that was started for it.
    pub fn reason(&self) -> String {
        match self {
            Self::Program { said, .. } => said.strip_prefix("strait: ").unwrap_or(said).to_owned(),
            error => error.to_string(),
        }
    }

    /// The exit code follows from it.
    pub fn kind(&self) -> Kind {
        match self {
            Self::System(error) => error.kind(),
            Self::Capture(error) => error.kind(),
            Self::Transfer(error) => error.kind(),
            Self::Usage(_) => Kind::Usage,
            Self::File { .. } | Self::Program { .. } | Self::Void(_) | Self::Interrupted => Kind::Failed,
        }
    }
}
