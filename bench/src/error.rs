//! Errors of measurements. A failed point is recorded with its error and the run continues.

use std::io;

/// Failed measurement, or a benchmark that cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// System call failed.
    #[error(transparent)]
    System(#[from] strait_sys::Error),
    /// The rig could not be created, or a program in it was late.
    #[error(transparent)]
    Rig(#[from] lab::Error),
    /// Capture engine failed.
    #[error(transparent)]
    Capture(#[from] strait_capture::Error),
    /// A file could not be read or written.
    #[error("{what}: {source}")]
    File {
        /// Operation and file.
        what: String,
        /// Cause.
        source: io::Error,
    },
    /// A measured program failed.
    #[error("{program} failed ({code}): {said}")]
    Program {
        /// Program with its arguments.
        program: String,
        /// Exit code or signal.
        code: String,
        /// Its standard error.
        said: String,
    },
    /// A measured program succeeded without reporting its counts.
    #[error("{program} did not report {wanted}; output: {said}")]
    Account {
        /// Program with its arguments.
        program: String,
        /// The missing field.
        wanted: String,
        /// Its output.
        said: String,
    },
    /// The measurement is meaningless: nothing was sent or received, or nothing can be run.
    #[error("{0}")]
    Void(String),
}

impl Error {
    /// Creates an error of the file system.
    pub(crate) fn file(what: impl Into<String>, source: io::Error) -> Self {
        Self::File { what: what.into(), source }
    }
}

/// Result of this program.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;
