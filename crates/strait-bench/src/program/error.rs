//! Failures of the program `strait-bench`.

use strait_program::{Failure, SystemError};

/// Failure of a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The code that programs share failed.
    #[error(transparent)]
    Program(#[from] strait_program::Error),
    /// A system call failed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// A benchmark failed.
    #[error(transparent)]
    Bench(#[from] strait_bench::Error),
}

impl Error {
    /// Makes an error of a wrong command line.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        strait_program::Error::Usage(text.into()).into()
    }

    /// Makes another error.
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        strait_program::Error::Failed(text.into()).into()
    }
}

impl Failure for Error {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Program(error) => error.exit_code(),
            Self::System(error) => strait_program::exit_code(error.kind()),
            Self::Bench(error) => strait_program::exit_code(error.kind()),
        }
    }

    fn is_reader_gone(&self) -> bool {
        matches!(self, Self::Program(error) if error.is_reader_gone())
    }
}
