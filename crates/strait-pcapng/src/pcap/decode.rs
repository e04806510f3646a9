//! Reads pcap: the header that fixes order, precision and link type, then records.
//!
//! [`Decoder`](crate::Decoder) calls it with whole headers and records. It reads either byte order.

use super::{HEADER_BYTES, MAGIC_MICROSECONDS, MAGIC_NANOSECONDS, RECORD_BYTES};
use crate::SNAPLEN_MAX;
use crate::bytes::{Order, array};
use crate::decoder::Peek;
use crate::error::Error;
use crate::record::{Interface, LinkType, Packet, Record};

/// Fields of the file header.
#[derive(Debug)]
pub(crate) struct File {
    order: Order,
    /// Nanoseconds in a unit of the timestamps' fraction: 1 or 1000.
    fraction_ns: u64,
    linktype: LinkType,
}

impl File {
    /// Reads the 24 bytes of the file header (s4). Its interface has number 0.
    pub(crate) fn begin<'a>(header: &[u8]) -> Result<(Self, Record<'a>), Error> {
        let magic = array(header, 0);
        let nanoseconds = Order::of(MAGIC_NANOSECONDS, magic);
        let Some(order) = nanoseconds.or_else(|| Order::of(MAGIC_MICROSECONDS, magic)) else {
            return Err(Error::NotACapture { magic });
        };
        let (major, minor) = (order.u16(header, 4), order.u16(header, 6));
        if (major, minor) != (2, 4) {
            return Err(Error::PcapVersion { major, minor });
        }
        // The upper half of the last field holds the length of the frame check sequence.
        let linktype = LinkType(order.u32(header, HEADER_BYTES - 4) as u16);
        let interface = Interface { linktype, snaplen: order.u32(header, 16), ..Interface::default() };
        let fraction_ns = if nanoseconds.is_some() { 1 } else { 1000 };
        Ok((Self { order, fraction_ns, linktype }, Record::Interface { index: 0, interface }))
    }

    /// Returns the length of the packet record at the start of `input` (s5).
    pub(crate) fn peek(&self, input: &[u8], offset: u64) -> Result<Peek, Error> {
        if input.len() < RECORD_BYTES {
            return Ok(Peek::NeedMore(RECORD_BYTES));
        }
        let captured = self.order.u32(input, 8);
        if captured > SNAPLEN_MAX {
            return Err(Error::CapturedTooLong { offset, captured, max: SNAPLEN_MAX });
        }
        let whole = RECORD_BYTES + captured as usize;
        Ok(if input.len() < whole { Peek::NeedMore(whole) } else { Peek::Packet(whole) })
    }

    /// Reads one complete packet record.
    pub(crate) fn decode<'a>(&self, record: &'a [u8]) -> Record<'a> {
        let seconds = u64::from(self.order.u32(record, 0));
        let fraction = u64::from(self.order.u32(record, 4));
        let bytes = &record[RECORD_BYTES..];
        let packet = Packet {
            timestamp_ns: seconds * 1_000_000_000 + fraction * self.fraction_ns,
            bytes,
            wire_len: self.order.u32(record, 12).max(bytes.len() as u32),
            ..Packet::default()
        };
        Record::Packet { packet, linktype: self.linktype }
    }
}
