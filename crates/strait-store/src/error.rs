//! The one error of this crate. Callers tell [`Error::Full`] and [`Error::Corrupt`] apart from the rest: both are answered by
//! going on without the store.

use std::io;
use std::path::{Path, PathBuf};

use strait_sys::Kind;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an object could not be stored, found or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused.
    #[error(transparent)]
    System(#[from] strait_sys::Error),
    /// There is no room now: what could be evicted has not been yet, or is still being read or written.
    #[error("{operation}: no room for {bytes} bytes; a larger capacity would help")]
    Full {
        /// What was tried.
        operation: &'static str,
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// What stands on disk is not what was written. The record is gone from the index.
    #[error("read {} at {offset}: {what}; the record is dropped", file.display())]
    Corrupt {
        /// The segment file.
        file: PathBuf,
        /// Where its record begins, in bytes.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The record has been removed or evicted meanwhile.
    #[error("{operation}: the record is gone")]
    Gone {
        /// What was tried.
        operation: &'static str,
    },
    /// A key, a head or a body is longer than a record may have.
    #[error("{what} of {bytes} bytes: {bytes_max} are the most")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Bytes it has.
        bytes: u64,
        /// Bytes it may have.
        bytes_max: u64,
    },
    /// Another process has the directory.
    #[error("open the store {}: another process uses it; stop that, or name another directory", .0.display())]
    InUse(PathBuf),
    /// What is to be read is none.
    #[error("read the store {}: it has no file `marks` that tells what is in it; is it one?", .0.display())]
    NoStore(PathBuf),
    /// The capacity does not hold the segments that the lanes write to.
    #[error(
        "open the store: {capacity_bytes} bytes are too few for {lanes} lanes; {capacity_min_bytes} are the least"
    )]
    CapacityTooSmall {
        /// As configured.
        capacity_bytes: u64,
        /// As configured.
        lanes: usize,
        /// What would do.
        capacity_min_bytes: u64,
    },
    /// The store has been closed.
    #[error("{operation}: the store is closed")]
    Closed {
        /// What was tried.
        operation: &'static str,
    },
}

impl Error {
    pub(crate) fn io(operation: &'static str, path: &Path, error: &io::Error) -> Self {
        Self::System(strait_sys::Error::from_io(operation, path.display().to_string(), error))
    }

    /// What a caller can do about it.
    pub fn kind(&self) -> Kind {
        match self {
            Self::System(error) => error.kind(),
            Self::CapacityTooSmall { .. } | Self::TooLong { .. } => Kind::Usage,
            Self::InUse(_) => Kind::Refused,
            Self::NoStore(_)
            | Self::Full { .. }
            | Self::Corrupt { .. }
            | Self::Gone { .. }
            | Self::Closed { .. } => Kind::Failed,
        }
    }
}
