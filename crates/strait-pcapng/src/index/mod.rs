//! Index of a capture file: the times and the flows of each of its parts, so that a reader of few
//! packets skips the others.
//!
//! The file sink builds one while it writes, `strait query --index` builds one of an existing file,
//! and `strait query` reads it. docs/internals/index.md draws the format. Nothing here reads
//! or writes files.

mod builder;
mod filter;
mod parse;
#[cfg(test)]
mod tests;

use rapidhash::v3::rapidhash_v3;

pub use builder::{Builder, Place};
pub use parse::{Index, IndexError, Part, Parts};

/// Suffix of an index, after the whole name of its capture file.
pub const SUFFIX: &str = ".sidx";

/// Bytes of a capture file after which a part ends, at the end of a packet.
pub const PART_BYTES: u64 = 1 << 20;

/// Maximum number of packets of a part. It limits the filter of its flows to 96 KiB.
pub const PART_PACKETS_MAX: u32 = 1 << 16;

/// Maximum length of an index, which writer and reader have in memory. It is enough for a capture
/// file of 160 GiB with 500 flows in each part.
pub const INDEX_BYTES_MAX: usize = 128 << 20;

/// Number of bytes at the start and at the end of a capture file that its identity covers.
pub const ENDS_BYTES: usize = 4096;

/// Beginning of every index. Its first byte is no text, and the line ends reveal a conversion.
const MAGIC: [u8; 8] = *b"\x93SIDX\r\n\x1a";
const VERSION: u16 = 1;
/// Identifiers of flows: the first eight bytes of the SHA-1 in the community ID, little-endian.
const COMMUNITY_ID: u16 = 1;

/// Magic number, version, kind of the identifiers, and four zero bytes.
const HEADER_BYTES: usize = 16;
/// Fields of a part before its filter.
const PART_HEADER_BYTES: usize = 32;
/// Number of parts, identity and checksum.
const FOOTER_BYTES: usize = 40;
/// Flag of a part that describes interfaces: every reader needs it.
const DESCRIBES: u16 = 1;

/// State of the capture file of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Length in bytes.
    pub bytes: u64,
    /// Time of the last change in nanoseconds since the epoch.
    pub modified_ns: i64,
    /// Hash of the first and the last bytes: see [`digest`].
    pub digest: u64,
}

/// Returns the hash of the first and the last [`ENDS_BYTES`] bytes of a capture file, or of all if
/// there are fewer.
pub fn digest(head: &[u8], tail: &[u8]) -> u64 {
    rapidhash_v3(head) ^ rapidhash_v3(tail).rotate_left(32)
}
