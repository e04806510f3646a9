//! Classic pcap files as bytes: to compare two captures apart from their times, and to see how far one is.

use std::fs;
use std::path::Path;

const FILE_HEADER_BYTES: usize = 24;
const PACKET_HEADER_BYTES: usize = 16;
const TIME_BYTES: usize = 8;

/// A file, maybe still being written.
pub(crate) struct Savefile {
    /// All that it holds, with times of 0.
    pub(crate) bytes: Vec<u8>,
    /// Packets that it holds whole.
    pub(crate) packets: usize,
}

impl Savefile {
    pub(crate) fn read(file: &Path) -> Self {
        let mut bytes = fs::read(file).unwrap_or_default();
        let (mut at, mut packets) = (FILE_HEADER_BYTES, 0);
        while let Some(header) = bytes.get_mut(at..at + PACKET_HEADER_BYTES) {
            header[..TIME_BYTES].fill(0);
            let captured = u32::from_le_bytes(header[8..12].try_into().unwrap());
            at += PACKET_HEADER_BYTES + captured as usize;
            packets += usize::from(at <= bytes.len());
        }
        Self { bytes, packets }
    }

    /// What follows the file header.
    pub(crate) fn body(&self) -> &[u8] {
        self.bytes.get(FILE_HEADER_BYTES..).unwrap_or_default()
    }
}
