//! Decodes the bytes of a capture file in pieces of any size, and lends one record at a time.
//!
//! The offline reader and the fuzz targets use it: they own the buffer, pass its content to
//! [`Decoder::step`], drop the consumed bytes, and read more if the decoder needs more. It copies
//! no packet and reads nothing itself.

use crate::bytes::array;
use crate::error::Error;
use crate::record::{LinkType, Packet, Record};
use crate::{pcap, pcapng};

/// Result of one call of [`Decoder::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// The decoder needs an input of at least this many bytes.
    NeedMore(usize),
    /// A record in the first `consumed` bytes of the input.
    Record {
        /// Bytes to drop from the start of the input.
        consumed: usize,
        /// The record.
        record: Record<'a>,
    },
    /// The first `consumed` bytes contain no record: custom and unknown blocks, and defective ones
    /// of secrets and names.
    Skipped {
        /// Bytes to drop from the start of the input.
        consumed: usize,
    },
}

/// Kind of the item at the start of the input, which is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peek {
    /// The decoder needs an input of at least this many bytes.
    NeedMore(usize),
    /// A complete block or record with a packet, of this many bytes.
    Packet(usize),
    /// A complete block or header without a packet, of this many bytes.
    Other(usize),
}

/// The two formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// pcap 2.4, micro- or nanoseconds.
    Pcap,
    /// pcapng 1.0.
    Pcapng,
}

/// A decoder for one file of either format.
#[derive(Debug, Default)]
pub struct Decoder {
    offset: u64,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Start,
    Pcap(pcap::decode::File),
    Pcapng(pcapng::decode::File),
}

impl Decoder {
    /// Returns a decoder at byte 0 of a file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of bytes consumed so far, which is the offset of the next block.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Skips `bytes` bytes of whole blocks from [`Decoder::offset`] on. They must describe no
    /// interface and start no section.
    pub fn skip(&mut self, bytes: u64) {
        self.offset += bytes;
    }

    /// Returns the file's format; `None` until its first bytes were consumed.
    pub fn format(&self) -> Option<Format> {
        match self.state {
            State::Start => None,
            State::Pcap(_) => Some(Format::Pcap),
            State::Pcapng(_) => Some(Format::Pcapng),
        }
    }

    /// Returns the kind of the item at the start of `input`, the bytes from [`Decoder::offset`] on.
    pub fn peek(&self, input: &[u8]) -> Result<Peek, Error> {
        match &self.state {
            State::Start => peek_start(input),
            State::Pcap(file) => file.peek(input, self.offset),
            State::Pcapng(file) => file.peek(input, self.offset),
        }
    }

    /// Decodes the item at the start of `input`, the bytes from [`Decoder::offset`] on.
    ///
    /// An error consumes nothing: the next call returns it again. All records before it were
    /// delivered.
    pub fn step<'a>(&mut self, input: &'a [u8]) -> Result<Step<'a>, Error> {
        let consumed = match self.peek(input)? {
            Peek::NeedMore(bytes) => return Ok(Step::NeedMore(bytes)),
            Peek::Packet(bytes) | Peek::Other(bytes) => bytes,
        };
        let block = &input[..consumed];
        let record = match &mut self.state {
            State::Start => self.start(block)?,
            State::Pcap(file) => Some(file.decode(block)),
            State::Pcapng(file) => file.decode(block, self.offset)?,
        };
        self.offset += consumed as u64;
        Ok(match record {
            Some(record) => Step::Record { consumed, record },
            None => Step::Skipped { consumed },
        })
    }

    /// Decodes the packet at the start of `input`, the bytes from [`Decoder::offset`] on. Returns
    /// it with the number of bytes to drop, or `None` for a block that is incomplete or has no
    /// packet, which [`Decoder::step`] takes.
    ///
    /// An error consumes nothing: the next call returns it again.
    pub fn packet<'a>(&mut self, input: &'a [u8]) -> Result<Option<(usize, Packet<'a>, LinkType)>, Error> {
        let Peek::Packet(consumed) = self.peek(input)? else { return Ok(None) };
        let block = &input[..consumed];
        let record = match &mut self.state {
            State::Start => None,
            State::Pcap(file) => Some(file.decode(block)),
            State::Pcapng(file) => file.decode(block, self.offset)?,
        };
        let Some(Record::Packet { packet, linktype }) = record else { return Ok(None) };
        self.offset += consumed as u64;
        Ok(Some((consumed, packet, linktype)))
    }

    /// Checks that the file may end here, with the unconsumed bytes `rest`. Otherwise returns
    /// [`Error::Truncated`].
    pub fn finish(&self, rest: &[u8]) -> Result<(), Error> {
        let what = match self.state {
            State::Start if rest.is_empty() => return Err(Error::Empty),
            _ if rest.is_empty() => return Ok(()),
            State::Start => "file header",
            State::Pcap(_) => "packet record",
            State::Pcapng(_) => "block",
        };
        Err(Error::Truncated { what, start: self.offset, end: self.offset + rest.len() as u64 })
    }

    /// Decodes the first header of the file, which determines the format.
    fn start<'a>(&mut self, block: &'a [u8]) -> Result<Option<Record<'a>>, Error> {
        if is_pcapng(block) {
            let mut file = pcapng::decode::File::new();
            let record = file.decode(block, 0)?;
            self.state = State::Pcapng(file);
            return Ok(record);
        }
        let (file, record) = pcap::decode::File::begin(block)?;
        self.state = State::Pcap(file);
        Ok(Some(record))
    }
}

fn is_pcapng(input: &[u8]) -> bool {
    array(input, 0) == pcapng::block::SECTION.to_le_bytes()
}

fn peek_start(input: &[u8]) -> Result<Peek, Error> {
    if input.len() < 4 {
        return Ok(Peek::NeedMore(4));
    }
    if is_pcapng(input) {
        return pcapng::decode::File::new().peek(input, 0);
    }
    refuse(array(input, 0))?;
    Ok(if input.len() < pcap::HEADER_BYTES {
        Peek::NeedMore(pcap::HEADER_BYTES)
    } else {
        Peek::Other(pcap::HEADER_BYTES)
    })
}

/// Refuses bytes that do not start a pcap file. The error names known other formats.
fn refuse(magic: [u8; 4]) -> Result<(), Error> {
    let (little, big) = (u32::from_le_bytes(magic), u32::from_be_bytes(magic));
    match (little, big) {
        (pcap::MAGIC_MICROSECONDS | pcap::MAGIC_NANOSECONDS, _)
        | (_, pcap::MAGIC_MICROSECONDS | pcap::MAGIC_NANOSECONDS) => Ok(()),
        (pcap::MAGIC_KUZNETZOV, _) | (_, pcap::MAGIC_KUZNETZOV) => {
            Err(Error::Variant { variant: "modified pcap (Kuznetzov's, magic 0xa1b2cd34)" })
        }
        _ => {
            Err(unpacker(magic).map_or(Error::NotACapture { magic }, |program| Error::Compressed { program }))
        }
    }
}

/// Returns the program that unpacks a file with this magic number.
fn unpacker(magic: [u8; 4]) -> Option<&'static str> {
    match magic {
        [0x1f, 0x8b, ..] => Some("gzip"),
        [0x28, 0xb5, 0x2f, 0xfd] => Some("zstd"),
        [0x04, 0x22, 0x4d, 0x18] => Some("lz4"),
        [0xfd, b'7', b'z', b'X'] => Some("xz"),
        [b'B', b'Z', b'h', _] => Some("bzip2"),
        _ => None,
    }
}
