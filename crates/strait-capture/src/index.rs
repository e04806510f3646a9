//! Index of a capture file in a file beside it, `NAME.sidx`: read, checked against the capture
//! file, and built of an existing one.
//!
//! `strait query` uses it. An index is a help, never a condition: a missing, older, damaged or
//! planted one is not used, and [`Unusable`] has the reason. The content is trusted once its
//! checksum and its capture file match: who can write it can also write the capture file.
//! docs/internals/index.md draws the format.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use strait_pcapng::index::{ENDS_BYTES, INDEX_BYTES_MAX, digest};

pub use strait_pcapng::index::{Builder, Identity, Index, IndexError, Part, Place, SUFFIX};

use crate::file::{FileError, FileReader, PacketRef};

/// Reason for reading the whole capture file.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// There is no index.
    #[error("it has no index")]
    Missing,
    /// The capture file has another length, time of change, or content than when it was indexed.
    #[error("it has changed since it was indexed")]
    Stale,
    /// Another user owns the index.
    #[error("its index belongs to another user, or others can write to it")]
    Planted,
    /// The index is damaged, or has another version.
    #[error("its index is not valid: {0}")]
    Invalid(#[from] IndexError),
    /// The system refused to read it.
    #[error("its index cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// Failure to index a capture file.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The file cannot be read to its end. A damaged file has no index.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is no regular file, is being written, or needs too long an index.
    #[error("{file}: {reason}")]
    Refused {
        /// The file.
        file: String,
        /// The reason.
        reason: &'static str,
    },
}

/// Returns the path of the index of a capture file. It is beside the file, and not beside a link to
/// it.
pub fn path_of(capture: &Path) -> PathBuf {
    let capture = capture.canonicalize().unwrap_or_else(|_| capture.to_owned());
    let mut path = capture.into_os_string();
    path.push(SUFFIX);
    path.into()
}

/// Reads the index of the capture file `path`, which is open as `capture`.
///
/// # Errors
/// There is none that can be used: read the whole file.
pub fn load(path: &Path, capture: &File) -> Result<Index, Unusable> {
    // A link or a FIFO could be another user's.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let opened = File::options().read(true).custom_flags(flags).open(path_of(path));
    let mut file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Unusable::Missing),
        Err(error) => return Err(error.into()),
    };
    let (found, captured) = (file.metadata()?, capture.metadata()?);
    let trusted = [captured.uid(), rustix::process::geteuid().as_raw(), 0];
    if !found.is_file() || !trusted.contains(&found.uid()) || is_writable_by_more(&found, &captured) {
        return Err(Unusable::Planted);
    }
    if found.len() > INDEX_BYTES_MAX as u64 {
        return Err(IndexError::TooLong.into());
    }
    let mut bytes = Vec::with_capacity(found.len() as usize);
    // One byte more than permitted, so that a growing file is refused.
    file.by_ref().take(INDEX_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    let index = Index::parse(bytes)?;
    if identity(capture)? == *index.identity() { Ok(index) } else { Err(Unusable::Stale) }
}

/// Returns true if an index can be written to by users who cannot write to the capture file.
fn is_writable_by_more(index: &Metadata, capture: &Metadata) -> bool {
    let by_group = index.mode() & 0o020 != 0;
    let by_captures_group = capture.mode() & 0o020 != 0 && capture.gid() == index.gid();
    by_group && !by_captures_group || index.mode() & !capture.mode() & 0o002 != 0
}

/// Returns the identity of a capture file.
///
/// # Errors
/// It cannot be read.
pub fn identity(capture: &File) -> io::Result<Identity> {
    let found = capture.metadata()?;
    let bytes = found.len();
    let length = bytes.min(ENDS_BYTES as u64) as usize;
    let (mut head, mut tail) = (vec![0; length], vec![0; length]);
    capture.read_exact_at(&mut head, 0)?;
    capture.read_exact_at(&mut tail, bytes - length as u64)?;
    Ok(Identity { bytes, modified_ns: modified_ns(&found), digest: digest(&head, &tail) })
}

/// Returns the time of the last change in nanoseconds since the epoch.
pub(crate) fn modified_ns(found: &Metadata) -> i64 {
    found.mtime().wrapping_mul(1_000_000_000).wrapping_add(found.mtime_nsec())
}

/// Reads a capture file, and returns its index. `flow_of` returns the identifier of a packet's
/// flow: the first eight bytes of the SHA-1 in the community ID, little-endian.
///
/// # Errors
/// The file cannot be read to its end, or must not be indexed.
pub fn build(
    path: &str,
    mut flow_of: impl FnMut(&PacketRef<'_>) -> Option<u64>,
) -> Result<Vec<u8>, BuildError> {
    let refused = |reason| BuildError::Refused { file: path.to_owned(), reason };
    let failed = |operation| move |source| FileError::Io { operation, file: path.to_owned(), source };
    let capture = File::open(path).map_err(failed("open"))?;
    if !capture.metadata().map_err(failed("read"))?.is_file() {
        return Err(refused("only a regular file can have an index"));
    }
    let before = identity(&capture).map_err(failed("read"))?;
    let copy = capture.try_clone().map_err(failed("read"))?;
    let reader = FileReader::new(copy, path.to_owned())?;
    if reader.compression().is_some() {
        return Err(refused(
            "a compressed file has no index, as it is read from its start: decompress it first",
        ));
    }
    let builder = index_packets(reader, &mut flow_of)?;
    if identity(&capture).map_err(failed("read"))? != before {
        return Err(refused("it is being written: index it when it is complete"));
    }
    builder
        .unwrap_or_else(|| Builder::new(before.bytes))
        .finish(&before)
        .ok_or_else(|| refused("its index would be too long: split the file (editcap -c)"))
}

/// Indexes every packet; none if there is no packet.
fn index_packets(
    mut reader: FileReader,
    flow_of: &mut impl FnMut(&PacketRef<'_>) -> Option<u64>,
) -> Result<Option<Builder>, FileError> {
    let mut builder: Option<Builder> = None;
    // Interfaces and unknown sections before the last packet.
    let mut described = (0, 0);
    loop {
        let Some(packet) = reader.next()? else { return Ok(builder) };
        let (time_ns, flow) = (packet.timestamp_ns, flow_of(&packet));
        let before =
            std::mem::replace(&mut described, (reader.interfaces().len(), reader.skipped_sections()));
        let describes = builder.is_some() && before != described;
        let builder = builder.get_or_insert_with(|| Builder::new(reader.packet_offset()));
        builder.packet(&Place { end: reader.offset(), time_ns, flow, describes });
    }
}
