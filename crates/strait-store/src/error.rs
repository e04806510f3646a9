//! Error type of this crate. Callers distinguish [`Error::Full`] and [`Error::Corrupt`] from the
//! rest: they handle both by continuing without the store.

use std::io;
use std::path::{Path, PathBuf};

use strait_os::Kind;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Failure to open the store, or to store, find or read an object.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] strait_os::Error),
    /// No space is left now: the evictable files are not evicted yet, or are still being read or
    /// written.
    #[error("{operation}: no space for {bytes} bytes; increase the capacity")]
    Full {
        /// Operation that failed.
        operation: &'static str,
        /// Requested bytes.
        bytes: u64,
    },
    /// The bytes on disk differ from the written ones. The record is removed from the index.
    #[error("read {} at {offset}: {what}; the record is dropped", file.display())]
    Corrupt {
        /// The segment file.
        file: PathBuf,
        /// Offset of the record in bytes.
        offset: u64,
        /// Description of the damage.
        what: &'static str,
    },
    /// The record has since been removed or evicted.
    #[error("{operation}: the record was removed or evicted")]
    Removed {
        /// Operation that failed.
        operation: &'static str,
    },
    /// A key, a meta or a body is longer than its limit.
    #[error("{what} of {bytes} bytes exceeds the limit of {bytes_max} bytes")]
    TooLong {
        /// Name of the part that is too long.
        what: &'static str,
        /// Its length in bytes.
        bytes: u64,
        /// Limit in bytes.
        bytes_max: u64,
    },
    /// Another process has locked the directory.
    #[error("open the store {}: another process uses it; stop that process, or use another directory", .0.display())]
    InUse(PathBuf),
    /// The directory to read is not a store.
    #[error("read the store {}: it has no valid file `marks`; check that the directory is a store", .0.display())]
    NoStore(PathBuf),
    /// The capacity is too small for the segments of the lanes.
    #[error(
        "open the store: a capacity of {capacity_bytes} bytes is too small for {lanes} lanes; configure at least {capacity_min_bytes} bytes"
    )]
    CapacityTooSmall {
        /// Configured capacity.
        capacity_bytes: u64,
        /// Configured number of lanes.
        lanes: usize,
        /// Minimum capacity.
        capacity_min_bytes: u64,
    },
    /// All directories of the store are lost.
    #[error("{operation}: no directory of the store can be used")]
    Lost {
        /// Operation that failed.
        operation: &'static str,
    },
    /// The store has been closed.
    #[error("{operation}: the store is closed")]
    Closed {
        /// Operation that failed.
        operation: &'static str,
    },
}

impl Error {
    pub(crate) fn io(operation: &'static str, path: &Path, error: &io::Error) -> Self {
        Self::System(strait_os::Error::from_io(operation, path.display().to_string(), error))
    }

    /// Kind of the error, by which callers choose a response.
    pub fn kind(&self) -> Kind {
        match self {
            Self::System(error) => error.kind(),
            Self::CapacityTooSmall { .. } | Self::TooLong { .. } => Kind::Usage,
            Self::InUse(_) => Kind::Refused,
            Self::NoStore(_)
            | Self::Full { .. }
            | Self::Corrupt { .. }
            | Self::Removed { .. }
            | Self::Lost { .. }
            | Self::Closed { .. } => Kind::Failed,
        }
    }
}
