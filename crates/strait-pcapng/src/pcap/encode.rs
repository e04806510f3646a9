//! Writes pcap: little-endian, one header, then records.
//!
//! The file sink uses it for `--format pcap`. The format has no fields for direction, queue and
//! interface, which are left out.

use super::{HEADER_BYTES, MAGIC_MICROSECONDS, MAGIC_NANOSECONDS, Precision, RECORD_BYTES};
use crate::error::Error;
use crate::record::{LinkType, Packet};
use crate::{PACKET_OVERHEAD_MAX, SNAPLEN_MAX};

const _: () = assert!(RECORD_BYTES <= PACKET_OVERHEAD_MAX);

/// Appends a file header and packet records to the caller's buffer.
#[derive(Debug)]
pub struct Encoder {
    precision: Precision,
}

impl Encoder {
    /// Writes the file header (s4). A `snaplen` of 0 becomes [`SNAPLEN_MAX`], because the format
    /// has no value for "no limit".
    pub fn begin(out: &mut Vec<u8>, linktype: LinkType, snaplen: u32, precision: Precision) -> Self {
        let magic = match precision {
            Precision::Microseconds => MAGIC_MICROSECONDS,
            Precision::Nanoseconds => MAGIC_NANOSECONDS,
        };
        let snaplen = if snaplen == 0 { SNAPLEN_MAX } else { snaplen };
        let mut header = [0; HEADER_BYTES];
        header[0..4].copy_from_slice(&magic.to_le_bytes());
        header[4..6].copy_from_slice(&2u16.to_le_bytes());
        header[6..8].copy_from_slice(&4u16.to_le_bytes());
        header[16..20].copy_from_slice(&snaplen.to_le_bytes());
        header[20..24].copy_from_slice(&u32::from(linktype.0).to_le_bytes());
        out.extend_from_slice(&header);
        Self { precision }
    }

    /// Writes a packet record (s5). Seconds after 2106 wrap around: the field has 32 bits.
    #[inline]
    pub fn packet(&self, out: &mut Vec<u8>, packet: &Packet<'_>) -> Result<(), Error> {
        if packet.bytes.len() > SNAPLEN_MAX as usize {
            return Err(Error::PacketTooLong { bytes: packet.bytes.len(), max: SNAPLEN_MAX });
        }
        let fraction_ns = packet.timestamp_ns % 1_000_000_000;
        let fraction = match self.precision {
            Precision::Microseconds => fraction_ns / 1000,
            Precision::Nanoseconds => fraction_ns,
        };
        let mut header = [0; RECORD_BYTES];
        header[0..4].copy_from_slice(&((packet.timestamp_ns / 1_000_000_000) as u32).to_le_bytes());
        header[4..8].copy_from_slice(&(fraction as u32).to_le_bytes());
        header[8..12].copy_from_slice(&(packet.bytes.len() as u32).to_le_bytes());
        header[12..16].copy_from_slice(&packet.wire_len.to_le_bytes());
        out.reserve(packet.bytes.len() + PACKET_OVERHEAD_MAX);
        out.extend_from_slice(&header);
        out.extend_from_slice(packet.bytes);
        Ok(())
    }
}
