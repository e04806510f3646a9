//! Reads only the parts of a capture file that can have selected packets, by the file's index.
//!
//! An index is trusted for the parts that it lets the reader skip. Those that are read must be as
//! the index says: their blocks end where they should, with as many packets, at the same times.
//! Otherwise the caller reads the whole file.

use std::fs::File;
use std::path::Path;
use std::vec::IntoIter;

use strait_capture::file::{FileError, FileInterface, FileReader, PacketRef};
use strait_capture::index::{self, Index, Part, Unusable};

/// Reason for which a file is not read by its index.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotRead {
    #[error(transparent)]
    Unusable(#[from] Unusable),
    /// The system refused to read the file, or a part is damaged.
    #[error("it cannot be read by its index: {0}")]
    File(#[from] FileError),
    /// A part is not as the index says.
    #[error("its index does not describe it")]
    Lying,
    /// The result could differ from that of the whole file.
    #[error("its parts overlap in time, or have too many flows")]
    Unfit,
}

/// Packets of a capture file.
pub(super) trait Packets {
    /// Reason for which the next packet cannot be read.
    type Error: std::fmt::Display;

    /// Returns the next packet, or `None` at the end.
    fn next(&mut self) -> Result<Option<PacketRef<'_>>, Self::Error>;

    /// Returns the interfaces of the packets so far.
    fn interfaces(&self) -> &[FileInterface];

    /// Returns the latest time of the packets that are skipped before the next one, in nanoseconds
    /// since the epoch, if it has not been returned.
    fn skipped_ns(&mut self) -> Option<u64> {
        None
    }
}

impl Packets for FileReader {
    type Error = FileError;

    fn next(&mut self) -> Result<Option<PacketRef<'_>>, FileError> {
        self.next()
    }

    fn interfaces(&self) -> &[FileInterface] {
        self.interfaces()
    }
}

/// Number of parts of files, and of those that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) parts: u64,
    pub(crate) read: u64,
    /// Bytes of all parts.
    pub(crate) bytes: u64,
    pub(crate) read_bytes: u64,
}

impl Extent {
    /// Adds the parts of another file.
    pub(crate) fn add(&mut self, other: Self) {
        self.parts += other.parts;
        self.read += other.read;
        self.bytes += other.bytes;
        self.read_bytes += other.read_bytes;
    }
}

/// Parts of a capture file.
pub(super) struct IndexedFile {
    reader: FileReader,
    wanted: IntoIter<Bounds>,
    current: Option<Bounds>,
    /// Latest time of the skipped parts after the last wanted one.
    skipped_at_end: Option<u64>,
    extent: Extent,
}

/// Part, and the number of its packets that have not been read.
#[derive(Clone, Copy)]
struct Bounds {
    start: u64,
    end: u64,
    first_ns: u64,
    last_ns: u64,
    packets: u32,
    /// Latest time of the skipped parts before this one and after the last one with packets.
    skipped_ns: Option<u64>,
}

impl IndexedFile {
    /// Opens a file and its index, to read the parts that `is_wanted` selects, and those that
    /// describe interfaces.
    pub(super) fn open(file: &str, is_wanted: impl Fn(&Part<'_>) -> bool) -> Result<Self, NotRead> {
        Self::open_if(file, |_| true, is_wanted)
    }

    /// Like [`IndexedFile::open`], if the index is fit for the caller.
    pub(super) fn open_if(
        file: &str,
        is_fit: impl Fn(&Index) -> bool,
        is_wanted: impl Fn(&Part<'_>) -> bool,
    ) -> Result<Self, NotRead> {
        let capture = File::open(file).map_err(Unusable::from)?;
        let index = index::load(Path::new(file), &capture)?;
        if !is_fit(&index) {
            return Err(NotRead::Unfit);
        }
        let mut extent = Extent { parts: index.len(), bytes: index.identity().bytes, ..Extent::default() };
        let (mut wanted, mut skipped_ns) = (Vec::new(), None);
        for part in index.parts() {
            if !part.describes && !is_wanted(&part) {
                skipped_ns = skipped_ns.max(Some(part.last_ns).filter(|_| part.packets > 0));
                continue;
            }
            let Part { start, end, first_ns, last_ns, packets, .. } = part;
            extent.read += 1;
            extent.read_bytes += end - start;
            let skipped_ns = if packets > 0 { skipped_ns.take() } else { None };
            wanted.push(Bounds { start, end, first_ns, last_ns, packets, skipped_ns });
        }
        let reader = FileReader::new(capture, file.to_owned())?;
        let wanted = wanted.into_iter();
        Ok(Self { reader, wanted, current: None, skipped_at_end: skipped_ns, extent })
    }

    /// Returns the number of parts, and of those that are read.
    pub(super) fn extent(&self) -> Extent {
        self.extent
    }

    /// Moves to the next packet of a wanted part, and returns its part without it; none after the
    /// last one.
    fn advance(&mut self) -> Result<Option<Bounds>, NotRead> {
        loop {
            let Some(part) = &mut self.current else {
                let Some(part) = self.wanted.next() else { return Ok(None) };
                self.reader.skip_to(part.start)?;
                self.current = Some(part);
                continue;
            };
            if !self.reader.read_to(part.end)? {
                part.packets = part.packets.checked_sub(1).ok_or(NotRead::Lying)?;
                return Ok(Some(*part));
            }
            if (self.reader.offset(), part.packets) != (part.end, 0) {
                return Err(NotRead::Lying);
            }
            self.current = None;
        }
    }
}

impl Packets for IndexedFile {
    type Error = NotRead;

    fn next(&mut self) -> Result<Option<PacketRef<'_>>, NotRead> {
        let Some(part) = self.advance()? else { return Ok(None) };
        let packet = self.reader.next()?.ok_or(NotRead::Lying)?;
        let is_in_part = (part.first_ns..=part.last_ns).contains(&packet.timestamp_ns);
        if is_in_part { Ok(Some(packet)) } else { Err(NotRead::Lying) }
    }

    fn interfaces(&self) -> &[FileInterface] {
        self.reader.interfaces()
    }

    fn skipped_ns(&mut self) -> Option<u64> {
        if self.current.is_some_and(|part| part.packets > 0) {
            return None;
        }
        match self.wanted.as_mut_slice().iter_mut().find(|part| part.packets > 0) {
            Some(next) => next.skipped_ns.take(),
            None => self.skipped_at_end.take(),
        }
    }
}
