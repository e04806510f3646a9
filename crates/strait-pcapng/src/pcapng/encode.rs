//! Writes pcapng blocks: little-endian, nanosecond timestamps, whole blocks only.
//!
//! The capture engine's file sink calls it for every frame, so [`Encoder::packet`] only makes three
//! copies into a buffer that has room: the fixed fields, the packet, and the padding with options
//! and trailer.
//! It stores no bytes itself and never writes a part of a block.

use super::{BYTE_ORDER_MAGIC, FRAMING_BYTES, block, option, padding};
use crate::error::Error;
use crate::record::{Direction, Interface, NameRecord, Packet, Secrets, Section, Statistics};
use crate::{
    COMMENT_BYTES_MAX, INTERFACES_MAX, OPTION_BYTES_MAX, PACKET_OVERHEAD_MAX, SECRETS_BYTES_MAX, SNAPLEN_MAX,
};

/// Timestamps count units of 10^-9 s (`if_tsresol`, s4.2).
const NANOSECONDS: u8 = 9;

/// `if_filter` starts with a type byte: 0 is a libpcap filter string (s4.2).
const FILTER_TEXT: u8 = 0;

/// Fixed fields of an enhanced packet block before the packet's bytes (s4.3).
const PACKET_HEAD_BYTES: usize = 28;

/// Padding, two options of 8 bytes, the end of options and the trailing length.
const PACKET_TAIL_MAX: usize = 3 + 8 + 8 + 4 + 4;

const _: () = assert!(PACKET_HEAD_BYTES + PACKET_TAIL_MAX <= PACKET_OVERHEAD_MAX);

/// Appends the blocks of one section to the caller's buffer.
///
/// ```
/// use strait_pcapng::{Interface, Packet, Section, Statistics, pcapng::Encoder};
///
/// let mut file = Vec::new();
/// let mut encoder = Encoder::begin(&mut file, &Section::default());
/// let eth0 = Interface { name: Some("eth0"), ..Interface::default() };
/// let interface = encoder.interface(&mut file, &eth0)?;
/// let bytes = b"abc";
/// let packet = Packet { timestamp_ns: 1, bytes, wire_len: 3, interface, ..Packet::default() };
/// encoder.packet(&mut file, &packet)?;
/// let statistics = Statistics { interface, received: Some(1), ..Statistics::default() };
/// encoder.statistics(&mut file, &statistics)?;
/// # Ok::<(), strait_pcapng::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Encoder {
    interfaces: u32,
}

impl Encoder {
    /// Writes the section header block (s4.1). Interfaces are numbered from 0.
    pub fn begin(out: &mut Vec<u8>, section: &Section<'_>) -> Self {
        let start = open(out, block::SECTION);
        out.extend_from_slice(&BYTE_ORDER_MAGIC.to_le_bytes());
        out.extend_from_slice(&1u16.to_le_bytes());
        out.extend_from_slice(&0u16.to_le_bytes());
        // Section length: unknown while packets are added.
        out.extend_from_slice(&(-1i64).to_le_bytes());
        text(out, option::SHB_HARDWARE, section.hardware);
        text(out, option::SHB_OS, section.os);
        text(out, option::SHB_USERAPPL, section.application);
        for comment in section.comments {
            value(out, option::COMMENT, &[clip(comment, COMMENT_BYTES_MAX)]);
        }
        end_options(out, start + 24);
        close(out, start);
        Self { interfaces: 0 }
    }

    /// Writes an interface description block (s4.2) and returns its number, by which packets refer
    /// to it. Strings are cut to 65,535 bytes.
    pub fn interface(&mut self, out: &mut Vec<u8>, interface: &Interface<'_>) -> Result<u32, Error> {
        let number = self.interfaces;
        if number as usize >= INTERFACES_MAX {
            return Err(Error::NoSuchInterface { interface: number, known: number });
        }
        let start = open(out, block::INTERFACE);
        out.extend_from_slice(&interface.linktype.0.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&interface.snaplen.to_le_bytes());
        text(out, option::IF_NAME, interface.name);
        text(out, option::IF_DESCRIPTION, interface.description);
        if let Some(speed_bps) = interface.speed_bps {
            value(out, option::IF_SPEED, &[&speed_bps.to_le_bytes()]);
        }
        value(out, option::IF_TSRESOL, &[&[NANOSECONDS]]);
        if let Some(filter) = interface.filter {
            value(out, option::IF_FILTER, &[&[FILTER_TEXT], clip(filter, OPTION_BYTES_MAX - 1)]);
        }
        text(out, option::IF_OS, interface.os);
        end_options(out, start + 16);
        close(out, start);
        self.interfaces += 1;
        Ok(number)
    }

    /// Writes an enhanced packet block (s4.3). Flags are written only if the direction is known,
    /// the queue only if the packet has one.
    #[inline]
    pub fn packet(&self, out: &mut Vec<u8>, packet: &Packet<'_>) -> Result<(), Error> {
        self.known(packet.interface)?;
        if packet.bytes.len() > SNAPLEN_MAX as usize {
            return Err(Error::PacketTooLong { bytes: packet.bytes.len(), max: SNAPLEN_MAX });
        }
        if let Some(comment) = packet.comment {
            commented(out, packet, comment);
            return Ok(());
        }
        let (tail, tail_bytes) = packet_tail(packet);
        out.reserve(packet.bytes.len() + PACKET_OVERHEAD_MAX);
        out.extend_from_slice(&packet_head(packet, tail_bytes));
        out.extend_from_slice(packet.bytes);
        out.extend_from_slice(&tail[..tail_bytes]);
        Ok(())
    }

    /// Writes an interface statistics block (s4.6) with the known counts.
    pub fn statistics(&self, out: &mut Vec<u8>, statistics: &Statistics) -> Result<(), Error> {
        self.known(statistics.interface)?;
        let start = open(out, block::STATISTICS);
        out.extend_from_slice(&statistics.interface.to_le_bytes());
        out.extend_from_slice(&high_low(statistics.timestamp_ns));
        for (code, time) in
            [(option::ISB_STARTTIME, statistics.start_ns), (option::ISB_ENDTIME, statistics.end_ns)]
        {
            if let Some(time) = time {
                value(out, code, &[&high_low(time)]);
            }
        }
        for (code, count) in counters(statistics) {
            if let Some(count) = count {
                value(out, code, &[&count.to_le_bytes()]);
            }
        }
        end_options(out, start + 20);
        close(out, start);
        Ok(())
    }

    /// Writes a decryption secrets block (s4.8). It needs no interface, and may precede all of
    /// them.
    pub fn secrets(out: &mut Vec<u8>, secrets: &Secrets<'_>) -> Result<(), Error> {
        if secrets.data.len() > SECRETS_BYTES_MAX {
            return Err(Error::SecretsTooLong { bytes: secrets.data.len(), max: SECRETS_BYTES_MAX });
        }
        let start = open(out, block::SECRETS);
        out.extend_from_slice(&secrets.kind.to_le_bytes());
        out.extend_from_slice(&(secrets.data.len() as u32).to_le_bytes());
        out.extend_from_slice(secrets.data);
        out.extend_from_slice(&[0; 3][..padding(secrets.data.len())]);
        close(out, start);
        Ok(())
    }

    /// Writes a name resolution block (s4.5). It needs no interface. The values have at most 65,535
    /// bytes, and together less than [`BLOCK_BYTES_MAX`](crate::BLOCK_BYTES_MAX).
    pub fn names<'r>(out: &mut Vec<u8>, records: impl IntoIterator<Item = NameRecord<'r>>) {
        let start = open(out, block::NAMES);
        for record in records {
            let length = record.value.len().min(OPTION_BYTES_MAX);
            // A record has the form of an option.
            value(out, record.kind, &[&record.value[..length]]);
        }
        value(out, option::END, &[]);
        close(out, start);
    }

    #[inline]
    fn known(&self, interface: u32) -> Result<(), Error> {
        if interface < self.interfaces {
            Ok(())
        } else {
            Err(Error::NoSuchInterface { interface, known: self.interfaces })
        }
    }
}

/// Maximum number of bytes that [`Encoder::statistics`] writes for an interface.
pub const STATISTICS_BYTES_MAX: usize = FRAMING_BYTES + 12 + 7 * 12 + 4;

/// Writes a packet with a comment, which few packets have.
#[cold]
fn commented(out: &mut Vec<u8>, packet: &Packet<'_>, comment: &str) {
    let start = out.len();
    // The lengths are filled in at the end.
    out.extend_from_slice(&packet_head(packet, 0));
    out.extend_from_slice(packet.bytes);
    let (tail, tail_bytes) = packet_tail(packet);
    // Padding and options, without the end of options and the trailing length.
    let options_end = if packet.direction.is_some() || packet.queue.is_some() { 4 + 4 } else { 4 };
    out.extend_from_slice(&tail[..tail_bytes - options_end]);
    value(out, option::COMMENT, &[clip(comment, COMMENT_BYTES_MAX)]);
    value(out, option::END, &[]);
    close(out, start);
}

/// Returns the number of bytes that [`Encoder::packet`] writes for this packet.
#[inline]
fn packet_bytes(packet: &Packet<'_>, tail_bytes: usize) -> usize {
    PACKET_HEAD_BYTES + packet.bytes.len() + tail_bytes
}

#[inline]
fn packet_head(packet: &Packet<'_>, tail_bytes: usize) -> [u8; PACKET_HEAD_BYTES] {
    let total = packet_bytes(packet, tail_bytes) as u32;
    let mut head = [0; PACKET_HEAD_BYTES];
    head[0..4].copy_from_slice(&block::ENHANCED_PACKET.to_le_bytes());
    head[4..8].copy_from_slice(&total.to_le_bytes());
    head[8..12].copy_from_slice(&packet.interface.to_le_bytes());
    head[12..20].copy_from_slice(&high_low(packet.timestamp_ns));
    head[20..24].copy_from_slice(&(packet.bytes.len() as u32).to_le_bytes());
    head[24..28].copy_from_slice(&packet.wire_len.to_le_bytes());
    head
}

/// Returns padding, options and trailing length, and their number of bytes.
#[inline]
fn packet_tail(packet: &Packet<'_>) -> ([u8; PACKET_TAIL_MAX], usize) {
    let mut tail = [0; PACKET_TAIL_MAX];
    let mut at = padding(packet.bytes.len());
    if let Some(direction) = packet.direction {
        let flags = match direction {
            Direction::In => 1u32,
            Direction::Out => 2,
        };
        at = word_option(&mut tail, at, option::EPB_FLAGS, flags);
    }
    if let Some(queue) = packet.queue {
        at = word_option(&mut tail, at, option::EPB_QUEUE, queue);
    }
    if at > padding(packet.bytes.len()) {
        at += 4;
    }
    let total = packet_bytes(packet, at + 4) as u32;
    tail[at..at + 4].copy_from_slice(&total.to_le_bytes());
    (tail, at + 4)
}

/// Writes an option of 4 bytes at `at`; returns the offset of the next option.
#[inline]
fn word_option(tail: &mut [u8; PACKET_TAIL_MAX], at: usize, code: u16, word: u32) -> usize {
    tail[at..at + 2].copy_from_slice(&code.to_le_bytes());
    tail[at + 2..at + 4].copy_from_slice(&4u16.to_le_bytes());
    tail[at + 4..at + 8].copy_from_slice(&word.to_le_bytes());
    at + 8
}

/// Returns a timestamp as two words; the upper one is first in either byte order (s4.3).
#[inline]
fn high_low(timestamp_ns: u64) -> [u8; 8] {
    timestamp_ns.rotate_left(32).to_le_bytes()
}

fn counters(statistics: &Statistics) -> [(u16, Option<u64>); 5] {
    [
        (option::ISB_IFRECV, statistics.received),
        (option::ISB_IFDROP, statistics.dropped),
        (option::ISB_FILTERACCEPT, statistics.filter_accepted),
        (option::ISB_OSDROP, statistics.os_dropped),
        (option::ISB_USRDELIV, statistics.delivered),
    ]
}

/// Writes the type, and a length to be filled in; returns the start of the block.
fn open(out: &mut Vec<u8>, kind: u32) -> usize {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    start
}

/// Fills in both lengths of the block that starts at `start`.
fn close(out: &mut Vec<u8>, start: usize) {
    let total = ((out.len() - start + 4) as u32).to_le_bytes();
    out[start + 4..start + 8].copy_from_slice(&total);
    out.extend_from_slice(&total);
}

/// Ends an option list that is not empty with `opt_endofopt` (s3.5).
fn end_options(out: &mut Vec<u8>, options_start: usize) {
    if out.len() > options_start {
        value(out, option::END, &[]);
    }
}

fn text(out: &mut Vec<u8>, code: u16, text: Option<&str>) {
    if let Some(text) = text {
        value(out, code, &[clip(text, OPTION_BYTES_MAX)]);
    }
}

/// Writes one option: its parts joined, padded to 32 bits. The parts have at most
/// `OPTION_BYTES_MAX` bytes together.
fn value(out: &mut Vec<u8>, code: u16, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    debug_assert!(len <= OPTION_BYTES_MAX, "callers clip strings; the rest is a few bytes");
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(len as u16).to_le_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
    out.extend_from_slice(&[0; 3][..padding(len)]);
}

/// Returns at most `max` bytes of `text`, cut between characters.
fn clip(text: &str, max: usize) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(max)]
}
