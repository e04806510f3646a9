//! What can go wrong in a measurement. A failed point is recorded with its error and the run goes on.

use std::io;

/// A failed measurement, or a benchmark that cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The kernel refused.
    #[error(transparent)]
    System(#[from] strait_sys::Error),
    /// The rig could not be built, or a program in it did not do in time what was awaited.
    #[error(transparent)]
    Rig(#[from] lab::Error),
    /// The capture engine refused.
    #[error(transparent)]
    Capture(#[from] strait_capture::Error),
    /// A file could not be read or written.
    #[error("{what}: {source}")]
    File {
        /// What was done, and to which file.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A measured program failed.
    #[error("{program} failed ({code}): {said}")]
    Program {
        /// The program with its arguments.
        program: String,
        /// Its exit code or signal.
        code: String,
        /// What it wrote to standard error.
        said: String,
    },
    /// A measured program ended well and did not say what it counted.
    #[error("{program} did not report {wanted}; it said: {said}")]
    Account {
        /// The program with its arguments.
        program: String,
        /// The missing field.
        wanted: String,
        /// What it wrote.
        said: String,
    },
    /// The measurement makes no sense: nothing was sent, nothing came, or there is nothing to run.
    #[error("{0}")]
    Void(String),
}

impl Error {
    /// An error of the file system.
    pub(crate) fn file(what: impl Into<String>, source: io::Error) -> Self {
        Self::File { what: what.into(), source }
    }
}

/// A result of this program.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;
