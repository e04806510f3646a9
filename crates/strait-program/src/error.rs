//! Errors that every program has, and their exit codes.

use std::fmt::Display;
use std::io;

use strait_os::Kind;

/// Failure of a program, printed on one line.
pub trait Failure: Display {
    /// Returns the exit code.
    fn exit_code(&self) -> u8;

    /// Returns true if standard output is a pipe that its reader has closed: no failure to report.
    fn is_reader_gone(&self) -> bool;
}

/// Failure of the code that programs share.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] strait_os::Error),
    /// Standard output could not be written to.
    #[error("write to standard output: {0}")]
    Output(io::Error),
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// A privilege, a kernel feature, a library or a program is missing.
    #[error("{0}")]
    Refused(String),
    /// Another failure: operation, subject and cause.
    #[error("{0}")]
    Failed(String),
    /// The library of the program failed.
    #[error("{error}")]
    Library {
        /// Class of the error.
        kind: Kind,
        /// Error of the library.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Error {
    /// Creates an error of a wrong command line or configuration.
    pub fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// Creates an error of a missing privilege, kernel feature, library or program.
    pub fn refused(text: impl Into<String>) -> Self {
        Self::Refused(text.into())
    }

    /// Creates another error.
    pub fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }

    /// Returns the class of the error.
    pub fn kind(&self) -> Kind {
        match self {
            Self::System(error) => error.kind(),
            Self::Output(_) | Self::Failed(_) => Kind::Failed,
            Self::Usage(_) => Kind::Usage,
            Self::Refused(_) => Kind::Refused,
            Self::Library { kind, .. } => *kind,
        }
    }
}

impl Failure for Error {
    fn exit_code(&self) -> u8 {
        exit_code(self.kind())
    }

    fn is_reader_gone(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Returns the exit code of a class of errors: 1 failed, 2 usage, 3 refused.
pub fn exit_code(kind: Kind) -> u8 {
    match kind {
        Kind::Failed => 1,
        Kind::Usage => 2,
        Kind::Refused => 3,
    }
}
