//! Reader of capture files, pcap or pcapng, from a path or standard input.
//!
//! The `file` path of a session and `strait replay` use it. Packets are lent from the read buffer,
//! and must be dropped before it is filled again. The reader seeks only for
//! [`FileReader::skip_to`], so that pipes work. A compressed file is decompressed as it is read.

mod source;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::task::Poll;
use std::time::Duration;

use strait_pcapng::{Decoder, Format, LinkType, Peek, Record, Statistics, Step};
use strait_sys::cache;

use crate::compression::{Compression, Defect, SKIPPABLE_HEADER_BYTES};
use crate::extra::ExtraBlocks;
use crate::frame::Direction;
use source::{Filled, Pipe, Source, SourceError};

/// Bytes read at once. The buffer grows only for a longer block, to that block's length; the
/// decoder refuses blocks over [`strait_pcapng::BLOCK_BYTES_MAX`].
const READ_BYTES: usize = 256 << 10;
/// Maximum number of bytes kept of an interface's name.
const NAME_BYTES_MAX: usize = 255;

/// Error of reading a capture file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refused to open or read it.
    #[error("{operation} {file}: {source}")]
    Io {
        /// `open` or `read`.
        operation: &'static str,
        /// The path, or `standard input`.
        file: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The file ends within a block. All earlier packets were lent.
    #[error("{file} is cut at byte {end}: the {what} that starts at byte {offset} is incomplete")]
    Truncated {
        /// The path, or `standard input`.
        file: String,
        /// Incomplete block or header.
        what: &'static str,
        /// Offset of its start, which is the end of the last complete block.
        offset: u64,
        /// Size of the file.
        end: u64,
    },
    /// A compressed file ends within a frame. All packets before its end were lent.
    #[error("{file} is cut at byte {end}: its {compression} data is incomplete")]
    CutCompression {
        /// The path, or `standard input`.
        file: String,
        /// Name of the compression.
        compression: &'static str,
        /// Size of the compressed file.
        end: u64,
    },
    /// A compressed file is damaged, or needs what the reader does not have. All packets before
    /// this place were lent.
    #[error("{file}: {defect}{}", place_of(*defect, compression, *offset))]
    Compression {
        /// The path, or `standard input`.
        file: String,
        /// Name of the compression.
        compression: &'static str,
        /// Offset in the compressed file before which the defect is.
        offset: u64,
        /// The defect.
        defect: Defect,
    },
    /// The file is no capture file, or has an invalid block. All earlier packets were lent.
    #[error("{file}: {source}")]
    Format {
        /// The path, or `standard input`.
        file: String,
        /// Error with its offset.
        source: strait_pcapng::Error,
    },
    /// A packet's link type is not that of the file's first interface, for which the filter was
    /// compiled. All earlier packets were lent.
    #[error("{file}: it has packets of link types {first} and {link_type}: split it by link type first")]
    LinkTypes {
        /// The path, or `standard input`.
        file: String,
        /// Link type of the first interface (`LINKTYPE_*`).
        first: u32,
        /// Link type of the packet.
        link_type: u32,
    },
}

/// Packet, lent until the next call of [`FileReader::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRef<'a> {
    /// Captured bytes.
    pub bytes: &'a [u8],
    /// Length on the wire in bytes; never less than `bytes.len()`.
    pub wire_len: u32,
    /// Nanoseconds since the epoch; 0 if the file has no time.
    pub timestamp_ns: u64,
    /// Number of the interface in the file: an index into [`FileReader::interfaces`].
    pub interface: u32,
    /// Direction, if the file has one.
    pub direction: Direction,
    /// Receive queue, if the file has one.
    pub queue: Option<u32>,
    /// Link type (`LINKTYPE_*`). A pcapng file can mix link types.
    pub link_type: u32,
}

/// Packets that are complete in the read buffer of a [`FileReader`].
#[derive(Debug)]
pub struct Buffered<'a> {
    name: &'a str,
    decoder: &'a mut Decoder,
    buffer: &'a [u8],
    start: &'a mut usize,
    packet_offset: &'a mut u64,
}

impl<'a> Buffered<'a> {
    /// Returns the path, or `standard input`.
    pub(crate) fn name(&self) -> &str {
        self.name
    }

    /// Returns the next packet, or `None` before an incomplete block and one without a packet.
    #[allow(clippy::should_implement_trait, reason = "like that of FileReader, it returns a result first")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<PacketRef<'a>>, FileError> {
        let offset = self.decoder.offset();
        let decoded = self.decoder.packet(&self.buffer[*self.start..]);
        let Some((consumed, packet, linktype)) = decoded.map_err(|error| describe(self.name, error))? else {
            return Ok(None);
        };
        *self.start += consumed;
        *self.packet_offset = offset;
        // The kernel has copied the bytes, which are in no near cache. Headers are in two lines.
        if let Some(next) = self.buffer.get(*self.start..) {
            cache::prefetch(next.as_ptr());
            cache::prefetch(next.as_ptr().wrapping_add(cache::LINE_BYTES));
        }
        Ok(Some(lend(packet, linktype)))
    }
}

/// Interface that the file describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInterface {
    /// Link type of its packets (`LINKTYPE_*`).
    pub link_type: u32,
    /// Maximum number of bytes captured of a packet; 0 means no limit.
    pub snaplen: u32,
    /// Name, if the file has one.
    pub name: Option<String>,
    /// Counts of the interface, once they have been read, if the file has any.
    pub statistics: Option<Statistics>,
}

/// Open capture file.
#[derive(Debug)]
pub struct FileReader {
    name: String,
    source: Source,
    decoder: Decoder,
    buffer: Vec<u8>,
    /// Start and end in `buffer` of the bytes that are read and not decoded.
    start: usize,
    end: usize,
    interfaces: Vec<FileInterface>,
    skipped_sections: u64,
    /// Offset of the last packet.
    packet_offset: u64,
    /// Collects the blocks that a copy of the file has, too.
    extras: Option<ExtraBlocks>,
}

impl FileReader {
    /// Opens `path`, or standard input for `-`, and reads up to the first interface or packet.
    pub fn open(path: &str) -> Result<Self, FileError> {
        Self::open_collecting(path, None)
    }

    /// Like [`FileReader::open`], and adds the secrets and names of a pcapng file to `extras`, each
    /// before the next packet is lent.
    pub fn open_collecting(path: &str, extras: Option<ExtraBlocks>) -> Result<Self, FileError> {
        let name = if path == "-" { "standard input" } else { path }.to_owned();
        let opened = match path {
            "-" => io::stdin().as_fd().try_clone_to_owned().map(File::from),
            _ => File::open(path),
        };
        match opened {
            Ok(source) => Self::start(source, name, extras),
            Err(source) => Err(FileError::Io { operation: "open", file: name, source }),
        }
    }

    /// Returns a reader of an open file. `name` appears in messages.
    pub fn new(source: File, name: String) -> Result<Self, FileError> {
        Self::start(source, name, None)
    }

    fn start(source: File, name: String, extras: Option<ExtraBlocks>) -> Result<Self, FileError> {
        let mut reader = Self {
            name,
            source: Source::new(source),
            decoder: Decoder::new(),
            buffer: vec![0; READ_BYTES],
            start: 0,
            end: 0,
            interfaces: Vec::new(),
            skipped_sections: 0,
            packet_offset: 0,
            extras,
        };
        reader.find_compression()?;
        while reader.interfaces.is_empty() && reader.peek(Pipe::Block)? == Front::Other {
            reader.store_block()?;
        }
        Ok(reader)
    }

    /// Returns the next packet, or `None` at the end of the file. An error is returned again by the
    /// next call.
    #[allow(clippy::should_implement_trait, reason = "an iterator cannot lend from itself")]
    pub fn next(&mut self) -> Result<Option<PacketRef<'_>>, FileError> {
        self.advance(Pipe::Block)?;
        self.buffered().next()
    }

    /// Reads until a packet is complete in the buffer, without waiting: `Pending` if a pipe has no
    /// packet yet, or after some megabytes of a compressed file without content. Returns false at
    /// the end of the file.
    pub fn try_fill(&mut self) -> Result<Poll<bool>, FileError> {
        Ok(match self.advance(Pipe::NonBlocking)? {
            Front::Pending => Poll::Pending,
            front => Poll::Ready(front == Front::Packet),
        })
    }

    /// Lends the packets that are complete in the buffer.
    pub fn buffered(&mut self) -> Buffered<'_> {
        let Self { name, decoder, buffer, start, end, packet_offset, .. } = self;
        Buffered { name, decoder, buffer: &buffer[..*end], start, packet_offset }
    }

    /// Returns the number of bytes that are read and not decoded.
    pub(crate) fn buffered_bytes(&self) -> usize {
        self.end - self.start
    }

    /// Waits until a pipe has more bytes or has ended, a signal arrives, or `timeout` has passed.
    /// For a file it returns at once.
    pub fn wait(&self, timeout: Duration) -> Result<(), FileError> {
        self.source.is_readable(timeout).map(drop).map_err(|error| self.failed(error))
    }

    /// Decodes blocks up to the next packet.
    fn advance(&mut self, pipe: Pipe) -> Result<Front, FileError> {
        loop {
            match self.peek(pipe)? {
                Front::Other => self.store_block()?,
                front => return Ok(front),
            }
        }
    }

    /// Returns the link type of the first interface (`LINKTYPE_*`); Ethernet if there is none.
    pub fn link_type(&self) -> u32 {
        self.interfaces.first().map_or(u32::from(LinkType::ETHERNET.0), |interface| interface.link_type)
    }

    /// Returns the path, or `standard input`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the interfaces read so far.
    pub fn interfaces(&self) -> &[FileInterface] {
        &self.interfaces
    }

    /// Returns the format, pcap or pcapng.
    pub fn format(&self) -> Option<Format> {
        self.decoder.format()
    }

    /// Returns the number of sections skipped so far because of an unknown pcapng version.
    pub fn skipped_sections(&self) -> u64 {
        self.skipped_sections
    }

    /// Returns the compression of the file, if it is compressed.
    pub fn compression(&self) -> Option<Compression> {
        self.source.compression()
    }

    /// Returns the number of bytes decoded so far; of the content of a compressed file.
    pub fn offset(&self) -> u64 {
        self.decoder.offset()
    }

    /// Returns the number of bytes of the file that were decoded or decompressed so far.
    pub fn file_offset(&self) -> u64 {
        self.source.packed_offset().unwrap_or_else(|| self.offset())
    }

    /// Returns the offset of the last packet's block in the file, or in its content.
    pub fn packet_offset(&self) -> u64 {
        self.packet_offset
    }

    /// Decodes the blocks without a packet up to `offset`. Returns true at `offset`, beyond it, and
    /// at the end of the file; false if a packet comes before.
    pub fn read_to(&mut self, offset: u64) -> Result<bool, FileError> {
        while self.decoder.offset() < offset {
            match self.peek(Pipe::Block)? {
                Front::Other => self.store_block()?,
                Front::Packet => return Ok(false),
                Front::Pending | Front::End => return Ok(true),
            }
        }
        Ok(true)
    }

    /// Continues at `offset`, the start of a block that is not before [`FileReader::offset`]. The
    /// skipped blocks must describe no interface and start no section.
    ///
    /// # Errors
    /// The file cannot seek, as a pipe or a compressed file.
    pub fn skip_to(&mut self, offset: u64) -> Result<(), FileError> {
        let skipped = offset.saturating_sub(self.decoder.offset());
        self.decoder.skip(skipped);
        if skipped <= self.buffered_bytes() as u64 {
            self.start += skipped as usize;
            return Ok(());
        }
        (self.start, self.end) = (0, 0);
        let position = self.source.seek(self.decoder.offset());
        position.map_err(|error| self.failed(error))
    }

    /// Reads the first bytes, and decompresses the file if they are those of a compressed one. zstd
    /// and LZ4 have the same skippable frames: the first frame after them shows the compression. It
    /// is zstd if they are longer than the buffer.
    fn find_compression(&mut self) -> Result<(), FileError> {
        let mut frame = 0;
        loop {
            let wanted = frame + SKIPPABLE_HEADER_BYTES;
            while self.end < wanted && self.fill(wanted, Pipe::Block)? == Filled::More {}
            let rest = self.buffer[..self.end].get(frame..).unwrap_or_default();
            match Compression::skippable_bytes(rest) {
                Some(bytes) if bytes <= self.buffer.len() - wanted => frame += bytes,
                _ => break,
            }
        }
        let start = &self.buffer[..self.end];
        let found = Compression::of_magic(start.get(frame..).unwrap_or_default());
        let is_skippable = Compression::skippable_bytes(start).is_some();
        if let Some(compression) = found.or(is_skippable.then_some(Compression::Zstd)) {
            self.source.decompress(compression, start).map_err(|error| self.failed(error))?;
            self.end = 0;
        }
        Ok(())
    }

    /// Reads until there is a complete block at the start of the buffer, and returns its kind.
    fn peek(&mut self, pipe: Pipe) -> Result<Front, FileError> {
        loop {
            let input = &self.buffer[self.start..self.end];
            let wanted = match self.decoder.peek(input).map_err(|error| describe(&self.name, error))? {
                Peek::Packet(_) => return Ok(Front::Packet),
                Peek::Other(_) => return Ok(Front::Other),
                Peek::NeedMore(bytes) => bytes,
            };
            match self.fill(wanted, pipe)? {
                Filled::More => continue,
                Filled::Pending => return Ok(Front::Pending),
                Filled::End => {}
            }
            let rest = &self.buffer[self.start..self.end];
            return match self.decoder.finish(rest) {
                Ok(()) => Ok(Front::End),
                Err(error) => Err(describe(&self.name, error)),
            };
        }
    }

    /// Reads once, with room for `wanted` bytes from `start` on.
    fn fill(&mut self, wanted: usize, pipe: Pipe) -> Result<Filled, FileError> {
        if self.start + wanted > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if wanted > self.buffer.len() {
                self.buffer.resize(wanted, 0);
            }
        }
        let filled = self.source.fill(&mut self.buffer[self.end..], pipe);
        let (filled, bytes) = filled.map_err(|error| self.failed(error))?;
        self.end += bytes;
        Ok(filled)
    }

    fn failed(&self, error: SourceError) -> FileError {
        let file = self.name.clone();
        match error {
            SourceError::Io(source) => FileError::Io { operation: "read", file, source },
            SourceError::Cut { compression, end } => {
                FileError::CutCompression { file, compression: compression.name(), end }
            }
            SourceError::Defect { compression, offset, defect } => {
                FileError::Compression { file, compression: compression.name(), offset, defect }
            }
        }
    }

    /// Decodes the block at the start of the buffer, which has no packet, and stores its
    /// information.
    fn store_block(&mut self) -> Result<(), FileError> {
        let step = self.decoder.step(&self.buffer[self.start..self.end]);
        match step.map_err(|error| describe(&self.name, error))? {
            Step::NeedMore(_) => {}
            Step::Skipped { consumed } => self.start += consumed,
            Step::Record { consumed, record } => {
                if let Some(extras) = &self.extras {
                    extras.add(&record);
                }
                store(record, &mut self.interfaces, &mut self.skipped_sections);
                self.start += consumed;
            }
        }
        Ok(())
    }
}

/// Content of the start of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Front {
    /// Complete block with a packet.
    Packet,
    /// Complete block without a packet.
    Other,
    /// Incomplete block of a pipe without more bytes, or of a compressed file without content.
    Pending,
    /// End of the file.
    End,
}

/// Returns the place of damage, in parentheses.
fn place_of(defect: Defect, compression: &str, offset: u64) -> String {
    match defect {
        Defect::Damaged(_) => format!(" ({compression} data before byte {offset})"),
        _ => String::new(),
    }
}

/// Returns the start of a name. A file can have 65,536 interfaces with names of 64 KiB.
fn cut_name(name: &str) -> String {
    let end = name.floor_char_boundary(NAME_BYTES_MAX);
    name[..end].to_owned()
}

fn store(record: Record<'_>, interfaces: &mut Vec<FileInterface>, skipped_sections: &mut u64) {
    match record {
        Record::Interface { interface, .. } => interfaces.push(FileInterface {
            link_type: u32::from(interface.linktype.0),
            snaplen: interface.snaplen,
            name: interface.name.map(cut_name),
            statistics: None,
        }),
        Record::Statistics(statistics) => {
            if let Some(interface) = interfaces.get_mut(statistics.interface as usize) {
                interface.statistics = Some(statistics);
            }
        }
        Record::UnknownSection { .. } => *skipped_sections += 1,
        Record::Section(_) | Record::Names(_) | Record::Secrets(_) | Record::Packet { .. } => {}
    }
}

fn lend(packet: strait_pcapng::Packet<'_>, linktype: LinkType) -> PacketRef<'_> {
    PacketRef {
        bytes: packet.bytes,
        wire_len: packet.wire_len,
        timestamp_ns: packet.timestamp_ns,
        interface: packet.interface,
        direction: packet.direction.into(),
        queue: packet.queue,
        link_type: u32::from(linktype.0),
    }
}

fn describe(name: &str, error: strait_pcapng::Error) -> FileError {
    let file = name.to_owned();
    match error {
        strait_pcapng::Error::Truncated { what, start, end } => {
            FileError::Truncated { file, what, offset: start, end }
        }
        source => FileError::Format { file, source },
    }
}

#[cfg(test)]
mod tests;
