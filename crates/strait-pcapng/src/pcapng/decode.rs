//! Reads pcapng blocks: first the framing, then the content of each kind of block.
//!
//! [`Decoder`](crate::Decoder) calls it with the bytes from a block's start on. It skips unknown
//! blocks, and stores only the interfaces of the current section.

use super::clock::Clock;
use super::options::{Options, text};
use super::{BYTE_ORDER_MAGIC, FRAMING_BYTES, block, extra, option, padding};
use crate::bytes::{Order, array};
use crate::decoder::Peek;
use crate::error::Error;
use crate::record::{Direction, Interface, LinkType, Packet, Record, Section, Statistics};
use crate::{BLOCK_BYTES_MAX, INTERFACES_MAX, SNAPLEN_MAX};

/// Offset of the packet's bytes in an enhanced and in an obsolete packet block (s4.3, appendix A).
const PACKET_HEAD_BYTES: usize = 28;
/// Offset of the bytes in a simple packet block (s4.4).
const SIMPLE_HEAD_BYTES: usize = 12;

/// A file of sections.
#[derive(Debug)]
pub(crate) struct File {
    order: Order,
    /// Interfaces of the current section, by their number in it.
    interfaces: Vec<Source>,
    /// Number of interfaces in earlier sections.
    interfaces_before: u32,
    /// True if the section has an unknown version: skip to the next one (s3.4).
    skipping: bool,
}

/// Properties of an interface that its packets need.
#[derive(Clone, Copy, Debug)]
struct Source {
    linktype: LinkType,
    snaplen: u32,
    clock: Clock,
}

/// A complete block and its offset in the file.
#[derive(Clone, Copy)]
struct Block<'a> {
    bytes: &'a [u8],
    offset: u64,
}

impl File {
    pub(crate) fn new() -> Self {
        Self { order: Order::Little, interfaces: Vec::new(), interfaces_before: 0, skipping: false }
    }

    /// Checks the framing of the block at the start of `input` (s3.1).
    pub(crate) fn peek(&self, input: &[u8], offset: u64) -> Result<Peek, Error> {
        if input.len() < FRAMING_BYTES {
            return Ok(Peek::NeedMore(FRAMING_BYTES));
        }
        let order = self.order_of(input, offset)?;
        let (kind, len) = (order.u32(input, 0), order.u32(input, 4));
        self.check_length(kind, len, offset)?;
        let whole = len as usize;
        if input.len() < whole {
            return Ok(Peek::NeedMore(whole));
        }
        let trailer = order.u32(input, whole - 4);
        if trailer != len {
            return Err(Error::Trailer { offset, len, trailer });
        }
        let packet = matches!(kind, block::ENHANCED_PACKET | block::SIMPLE_PACKET | block::PACKET_OBSOLETE);
        Ok(if packet && !self.skipping { Peek::Packet(whole) } else { Peek::Other(whole) })
    }

    /// Decodes one complete block that [`File::peek`] measured. Returns `None` for a block without
    /// a record.
    pub(crate) fn decode<'a>(&mut self, bytes: &'a [u8], offset: u64) -> Result<Option<Record<'a>>, Error> {
        let whole = Block { bytes, offset };
        let kind = self.order.u32(bytes, 0);
        if kind == block::SECTION {
            return self.section(whole).map(Some);
        }
        if self.skipping {
            return Ok(None);
        }
        match kind {
            block::INTERFACE => self.interface(whole).map(Some),
            block::ENHANCED_PACKET | block::PACKET_OBSOLETE => self.packet(whole, kind).map(Some),
            block::SIMPLE_PACKET => self.simple_packet(whole).map(Some),
            block::STATISTICS => self.statistics(whole).map(Some),
            block::NAMES => Ok(extra::names(self.order, bytes).map(Record::Names)),
            block::SECRETS => Ok(extra::secrets(self.order, bytes).map(Record::Secrets)),
            _ => Ok(None),
        }
    }

    /// Returns the section's byte order, or for a section header the order of its magic (s4.1).
    fn order_of(&self, input: &[u8], offset: u64) -> Result<Order, Error> {
        if self.order.u32(input, 0) != block::SECTION {
            return Ok(self.order);
        }
        let magic = array(input, 8);
        Order::of(BYTE_ORDER_MAGIC, magic).ok_or(Error::ByteOrder { offset, magic })
    }

    fn check_length(&self, kind: u32, len: u32, offset: u64) -> Result<(), Error> {
        let min = self.least_length(kind);
        if !len.is_multiple_of(4) {
            Err(Error::Unaligned { offset, len })
        } else if len < min {
            Err(Error::TooShort { offset, len, min, kind })
        } else if len as usize > BLOCK_BYTES_MAX {
            Err(Error::TooLong { offset, len, max: BLOCK_BYTES_MAX as u32 })
        } else {
            Ok(())
        }
    }

    /// Returns the length of the framing and fixed fields of a block.
    fn least_length(&self, kind: u32) -> u32 {
        let body = match kind {
            block::SECTION => 16,
            _ if self.skipping => 0,
            block::INTERFACE => 8,
            block::SIMPLE_PACKET => 4,
            block::STATISTICS => 12,
            block::ENHANCED_PACKET | block::PACKET_OBSOLETE => 20,
            _ => 0,
        };
        FRAMING_BYTES as u32 + body
    }

    fn section<'a>(&mut self, whole: Block<'a>) -> Result<Record<'a>, Error> {
        self.order = self.order_of(whole.bytes, whole.offset)?;
        self.interfaces_before += self.interfaces.len() as u32;
        self.interfaces.clear();
        let (major, minor) = (self.order.u16(whole.bytes, 12), self.order.u16(whole.bytes, 14));
        // Some writers use version 1.2 for the format of 1.0.
        self.skipping = major != 1 || !matches!(minor, 0 | 2);
        if self.skipping {
            return Ok(Record::UnknownSection { major, minor });
        }
        let mut section = Section::default();
        let mut options = whole.options(self.order, 24);
        while let Some(value) = options.next()? {
            match value.code {
                option::SHB_HARDWARE => section.hardware = Some(value.text()),
                option::SHB_OS => section.os = Some(value.text()),
                option::SHB_USERAPPL => section.application = Some(value.text()),
                _ => {}
            }
        }
        Ok(Record::Section(section))
    }

    fn interface<'a>(&mut self, whole: Block<'a>) -> Result<Record<'a>, Error> {
        let index = self.next_index(whole.offset)?;
        let linktype = LinkType(self.order.u16(whole.bytes, 8));
        let snaplen = self.order.u32(whole.bytes, 12);
        let mut interface = Interface { linktype, snaplen, ..Interface::default() };
        let mut clock = Clock::default();
        let mut options = whole.options(self.order, 16);
        while let Some(value) = options.next()? {
            match value.code {
                option::IF_NAME => interface.name = Some(value.text()),
                option::IF_DESCRIPTION => interface.description = Some(value.text()),
                // A value of another length is ignored.
                option::IF_SPEED => {
                    interface.speed_bps = value.fixed::<8>().ok().map(|bytes| self.order.u64(&bytes, 0));
                }
                option::IF_OS => interface.os = Some(value.text()),
                option::IF_FILTER => interface.filter = value.bytes.strip_prefix(&[0]).map(text),
                option::IF_TSOFFSET => clock = clock.offset(self.order.u64(&value.fixed::<8>()?, 0) as i64),
                option::IF_TSRESOL => {
                    let [value] = value.fixed()?;
                    clock =
                        clock.resolution(value).ok_or(Error::Resolution { offset: whole.offset, value })?;
                }
                _ => {}
            }
        }
        self.interfaces.push(Source { linktype, snaplen, clock });
        Ok(Record::Interface { index, interface })
    }

    /// Returns the number of the next described interface, counted through the file.
    fn next_index(&self, offset: u64) -> Result<u32, Error> {
        let max = INTERFACES_MAX as u32;
        let index = self.interfaces_before + self.interfaces.len() as u32;
        if index < max { Ok(index) } else { Err(Error::TooManyInterfaces { offset, max }) }
    }

    fn packet<'a>(&self, whole: Block<'a>, kind: u32) -> Result<Record<'a>, Error> {
        let interface = match kind {
            block::PACKET_OBSOLETE => u32::from(self.order.u16(whole.bytes, 8)),
            _ => self.order.u32(whole.bytes, 8),
        };
        let source = self.source(interface, whole.offset)?;
        let bytes = whole.captured(PACKET_HEAD_BYTES, self.order.u32(whole.bytes, 20))?;
        let mut packet = Packet {
            timestamp_ns: source.clock.ns(self.order.high_low(whole.bytes, 12)),
            bytes,
            wire_len: self.order.u32(whole.bytes, 24).max(bytes.len() as u32),
            interface: self.interfaces_before + interface,
            ..Packet::default()
        };
        let options_start = PACKET_HEAD_BYTES + bytes.len() + padding(bytes.len());
        let mut options = whole.options(self.order, options_start);
        while let Some(value) = options.next()? {
            match value.code {
                option::EPB_FLAGS => packet.direction = direction(self.order.u32(&value.fixed::<4>()?, 0)),
                option::COMMENT if packet.comment.is_none() => packet.comment = Some(value.text()),
                option::EPB_QUEUE if kind == block::ENHANCED_PACKET => {
                    packet.queue = Some(self.order.u32(&value.fixed::<4>()?, 0));
                }
                _ => {}
            }
        }
        Ok(Record::Packet { packet, linktype: source.linktype })
    }

    /// Decodes a simple packet block: interface 0, no timestamp, at most the bytes that the snaplen
    /// allows (s4.4).
    fn simple_packet<'a>(&self, whole: Block<'a>) -> Result<Record<'a>, Error> {
        let source = self.source(0, whole.offset)?;
        let wire_len = self.order.u32(whole.bytes, 8);
        let captured = if source.snaplen == 0 { wire_len } else { wire_len.min(source.snaplen) };
        let packet = Packet {
            bytes: whole.captured(SIMPLE_HEAD_BYTES, captured)?,
            wire_len,
            interface: self.interfaces_before,
            ..Packet::default()
        };
        Ok(Record::Packet { packet, linktype: source.linktype })
    }

    fn statistics<'a>(&self, whole: Block<'_>) -> Result<Record<'a>, Error> {
        let interface = self.order.u32(whole.bytes, 8);
        let clock = self.source(interface, whole.offset)?.clock;
        let mut statistics = Statistics {
            interface: self.interfaces_before + interface,
            timestamp_ns: clock.ns(self.order.high_low(whole.bytes, 12)),
            ..Statistics::default()
        };
        let mut options = whole.options(self.order, 20);
        while let Some(value) = options.next()? {
            let count = match value.code {
                option::ISB_STARTTIME | option::ISB_ENDTIME => {
                    clock.ns(self.order.high_low(&value.fixed::<8>()?, 0))
                }
                option::ISB_IFRECV..=option::ISB_USRDELIV => self.order.u64(&value.fixed::<8>()?, 0),
                _ => continue,
            };
            *field(&mut statistics, value.code) = Some(count);
        }
        Ok(Record::Statistics(statistics))
    }

    fn source(&self, interface: u32, offset: u64) -> Result<Source, Error> {
        let known = self.interfaces.len() as u32;
        self.interfaces.get(interface as usize).copied().ok_or(Error::UnknownInterface {
            offset,
            interface,
            known,
        })
    }
}

impl<'a> Block<'a> {
    /// Returns the options from `start` to the trailing length. `start` lies in the block, see
    /// [`Block::captured`].
    fn options(self, order: Order, start: usize) -> Options<'a> {
        Options::new(order, &self.bytes[start..self.bytes.len() - 4], self.offset)
    }

    /// Returns `captured` bytes from `start`, which with their padding end before the trailing
    /// length.
    fn captured(self, start: usize, captured: u32) -> Result<&'a [u8], Error> {
        let offset = self.offset;
        let room = self.bytes.len() - start - 4;
        if captured as usize > room {
            return Err(Error::CapturedOverrun { offset, captured, room: room as u32 });
        }
        if captured > SNAPLEN_MAX {
            return Err(Error::CapturedTooLong { offset, captured, max: SNAPLEN_MAX });
        }
        Ok(&self.bytes[start..start + captured as usize])
    }
}

/// Reads bits 0 and 1 of the flags word (s4.3.1).
fn direction(flags: u32) -> Option<Direction> {
    match flags & 3 {
        1 => Some(Direction::In),
        2 => Some(Direction::Out),
        _ => None,
    }
}

/// Returns the field for an option of a statistics block, with one of the codes of s4.6.
fn field(statistics: &mut Statistics, code: u16) -> &mut Option<u64> {
    match code {
        option::ISB_STARTTIME => &mut statistics.start_ns,
        option::ISB_ENDTIME => &mut statistics.end_ns,
        option::ISB_IFRECV => &mut statistics.received,
        option::ISB_IFDROP => &mut statistics.dropped,
        option::ISB_FILTERACCEPT => &mut statistics.filter_accepted,
        option::ISB_OSDROP => &mut statistics.os_dropped,
        _ => &mut statistics.delivered,
    }
}
