//! Builds an index while the packets of a file pass.
//!
//! A part ends at the end of a packet, so that a reader can start at the next one. It takes no
//! allocation per packet: the identifiers of a part are collected, and sorted at its end.

use rapidhash::v3::rapidhash_v3;

use super::{
    COMMUNITY_ID, DESCRIBES, FOOTER_BYTES, HEADER_BYTES, INDEX_BYTES_MAX, Identity, MAGIC, PART_BYTES,
    PART_HEADER_BYTES, PART_PACKETS_MAX, VERSION, filter,
};

/// Packet of a capture file, as its index knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Offset of the packet's end in the file.
    pub end: u64,
    /// Nanoseconds since the epoch, as a reader of the file returns them.
    pub time_ns: u64,
    /// Identifier of the flow: the first eight bytes of the SHA-1 in the community ID,
    /// little-endian. None if it has no community ID.
    pub flow: Option<u64>,
    /// True if interfaces are described between the last packet and this one.
    pub describes: bool,
}

/// Index that is being built.
#[derive(Debug)]
pub struct Builder {
    encoded: Vec<u8>,
    parts: u64,
    /// Offset of the start of the open part.
    start: u64,
    /// Offset of the end of the last packet.
    end: u64,
    packets: u32,
    first_ns: u64,
    last_ns: u64,
    describes: bool,
    /// Flows of the open part, which are not sorted.
    flows: Vec<u64>,
    is_too_long: bool,
}

impl Builder {
    /// Starts the index of a file whose header ends at the offset `header`. It is a part of its
    /// own, which every reader needs.
    pub fn new(header: u64) -> Self {
        let mut encoded = Vec::with_capacity(HEADER_BYTES + PART_HEADER_BYTES);
        encoded.extend(MAGIC);
        encoded.extend(VERSION.to_le_bytes());
        encoded.extend(COMMUNITY_ID.to_le_bytes());
        encoded.extend([0; 4]);
        let mut builder = Self {
            encoded,
            parts: 0,
            start: 0,
            end: header,
            packets: 0,
            first_ns: 0,
            last_ns: 0,
            describes: true,
            flows: Vec::new(),
            is_too_long: false,
        };
        builder.end_part();
        builder
    }

    /// Adds the next packet of the file.
    #[inline]
    pub fn packet(&mut self, packet: &Place) {
        if self.packets == 0 {
            (self.first_ns, self.last_ns) = (packet.time_ns, packet.time_ns);
        }
        self.packets += 1;
        self.end = packet.end;
        self.first_ns = self.first_ns.min(packet.time_ns);
        self.last_ns = self.last_ns.max(packet.time_ns);
        self.describes |= packet.describes;
        if packet.flow.is_some() && self.flows.last() != packet.flow.as_ref() {
            self.flows.extend(packet.flow);
        }
        if self.end - self.start >= PART_BYTES || self.packets == PART_PACKETS_MAX {
            self.end_part();
        }
    }

    /// Returns the index of a complete file. None if the index is longer than [`INDEX_BYTES_MAX`].
    pub fn finish(mut self, identity: &Identity) -> Option<Vec<u8>> {
        // Blocks without a packet at the end of the file, such as those with counts.
        self.end = identity.bytes;
        self.end_part();
        if self.is_too_long {
            return None;
        }
        let mut encoded = self.encoded;
        encoded.extend(self.parts.to_le_bytes());
        encoded.extend(identity.bytes.to_le_bytes());
        encoded.extend(identity.modified_ns.to_le_bytes());
        encoded.extend(identity.digest.to_le_bytes());
        let checksum = rapidhash_v3(&encoded);
        encoded.extend(checksum.to_le_bytes());
        Some(encoded)
    }

    #[cold]
    fn end_part(&mut self) {
        let bytes = self.end.saturating_sub(self.start);
        if bytes == 0 {
            return;
        }
        self.flows.sort_unstable();
        self.flows.dedup();
        if !self.is_too_long {
            self.append_part(bytes);
        }
        if self.encoded.len() + FOOTER_BYTES > INDEX_BYTES_MAX {
            self.is_too_long = true;
            self.encoded = Vec::new();
        }
        self.flows.clear();
        (self.packets, self.first_ns, self.last_ns, self.describes) = (0, 0, 0, false);
        self.start = self.end;
    }

    fn append_part(&mut self, bytes: u64) {
        let at = self.encoded.len();
        self.encoded.extend([0; PART_HEADER_BYTES]);
        let words = filter::append(&self.flows, &mut self.encoded);
        let flags = if self.describes { DESCRIBES } else { 0 };
        let header = &mut self.encoded[at..at + PART_HEADER_BYTES];
        header[0..8].copy_from_slice(&bytes.to_le_bytes());
        header[8..16].copy_from_slice(&self.first_ns.to_le_bytes());
        header[16..24].copy_from_slice(&self.last_ns.to_le_bytes());
        header[24..28].copy_from_slice(&self.packets.to_le_bytes());
        header[28..30].copy_from_slice(&flags.to_le_bytes());
        header[30..32].copy_from_slice(&words.to_le_bytes());
        self.parts += 1;
    }
}
