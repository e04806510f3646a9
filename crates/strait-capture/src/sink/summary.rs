//! Totals of a sink, and the names of its files that are not as expected.
//!
//! Programs print them at the end of a capture.

use std::path::PathBuf;

/// Totals of all files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Packets in the files, including files that the ring deleted.
    pub packets: u64,
    /// Packets passed to [`super::FileSink::write`] that are in no file.
    pub lost: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Bytes before compression; `bytes` if the files are not compressed.
    pub content_bytes: u64,
    /// Files completed.
    pub files: u64,
    /// Files deleted by the ring.
    pub deleted: u64,
    /// Files that got another name, because their own was already in use.
    pub renamed: u64,
    /// Oldest completed file that was not deleted; empty if there is none.
    pub first_file: String,
    /// Last completed file; empty if there is none.
    pub last_file: String,
    /// Files that should have an index and have none.
    pub unindexed: u64,
    /// The last of these files with the reason; empty if there is none.
    pub last_unindexed: String,
    /// Blocks passed to [`super::FileSink::add_block`] that are in no file.
    pub lost_blocks: u64,
    /// Blocks that are not at the start of every later file of a rotation.
    pub unrepeated_blocks: u64,
}

/// File of a rotation that got another name, because a directory or another user's file has its
/// own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// Name that was already in use.
    pub taken: PathBuf,
    /// Name of the file.
    pub name: PathBuf,
}
