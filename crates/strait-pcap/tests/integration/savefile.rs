//! Reader of classic pcap files, to compare captures without their times, and to watch the progress
//! of a capture.

use std::fs;
use std::path::Path;

const FILE_HEADER_BYTES: usize = 24;
const PACKET_HEADER_BYTES: usize = 16;
const TIME_BYTES: usize = 8;

/// A savefile, complete or still being written.
pub(crate) struct Savefile {
    /// Content of the file, with times set to 0.
    pub(crate) bytes: Vec<u8>,
    /// Number of complete packets in the file.
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

    /// Returns the content after the file header.
    pub(crate) fn body(&self) -> &[u8] {
        self.bytes.get(FILE_HEADER_BYTES..).unwrap_or_default()
    }
}
