//! Memory that a tap's program shares with its reader: rings and records.
//!
//! Each CPU has two rings of its own. They are one value of an array map (`BPF_F_MMAPABLE`), so
//! that the program finds it without a hash and the reader maps all of them at once.
//!
//! ```text
//!   0 positions, frames | 128 returned | 256 drops | 384 wakeup | 512 ring, spare | spill, spare |
//!                                                                     ^ position mod its size
//! ```
//!
//! The first ring is small and stays in the CPU's cache while the reader keeps up. A frame that
//! does not fit goes to the spill ring, and so do all later frames until the reader has returned
//! all of it. So every frame in the first ring is older than every frame in the spill ring.
//!
//! Fields that different CPUs write have cache lines of their own, and are two lines apart because
//! processors prefetch lines in pairs. The spare bytes let the last record of a ring end behind it,
//! so no record wraps.

/// Offset of the position after the last published record of the first ring, 64 bits. Positions
/// only grow.
pub const PRODUCER: usize = 0;
/// Offset of the number of published records of both rings, 64 bits.
pub const FRAMES: usize = 8;
/// Offset of the position after the last published record of the spill ring.
pub const SPILL_PRODUCER: usize = 16;
/// Offset of the position after the last record of the first ring that the reader returned, 64
/// bits.
pub const CONSUMER: usize = 128;
/// Offset of that position of the spill ring.
pub const SPILL_CONSUMER: usize = 136;
/// Offset of the number of matched frames without a record because the rings were full, 64 bits.
pub const DROPS: usize = 256;
/// Offset of the reader's request to be woken by the next record, 32 bits. The program clears it.
pub const WAKEUP: usize = 384;
/// Offset of the first ring.
pub const DATA: usize = 512;

/// Alignment of records.
pub const RECORD_ALIGN: usize = 8;
/// Bytes of a VLAN tag.
const TAG_BYTES: usize = 4;

/// Header of a record, followed by the captured bytes. Fields are in host order, because writer and
/// reader are on one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Bytes 0 to 3: number of captured bytes, with the VLAN tag in its place.
    pub captured: u32,
    /// Lower 31 bits of bytes 4 to 7: bytes of the frame, with its VLAN tag.
    pub wire_len: u32,
    /// Highest bit of bytes 4 to 7: this host sent the frame.
    pub is_sent: bool,
    /// Bytes 8 to 15: `CLOCK_MONOTONIC` in nanoseconds.
    pub timestamp_ns: u64,
    /// Bytes 16 to 19: type (upper half) and control information of the tag that was in the
    /// frame's metadata; 0 if there was none.
    pub tag: u32,
    /// Bytes 20 to 23: flow hash or process identifier of the owner, if one was requested.
    pub mark: u32,
}

impl Record {
    /// Size of the header.
    pub const BYTES: usize = 24;
    /// Bit of bytes 4 to 7 of a sent frame.
    pub(super) const SENT: u32 = 1 << 31;

    /// Returns the header in `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: i16| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at as usize..at as usize + 4]);
            u32::from_ne_bytes(word)
        };
        let mut time = [0; 8];
        time.copy_from_slice(&bytes[TIME as usize..TIME as usize + 8]);
        let wire = word(WIRE);
        Self {
            captured: word(CAPTURED),
            wire_len: wire & !Self::SENT,
            is_sent: wire & Self::SENT != 0,
            timestamp_ns: u64::from_ne_bytes(time),
            tag: word(TAG),
            mark: word(MARK),
        }
    }

    /// Returns the bytes from this record to the next one.
    #[inline]
    pub fn stride(&self) -> usize {
        stride(self.captured as usize)
    }
}

pub(super) const CAPTURED: i16 = 0;
pub(super) const WIRE: i16 = 4;
pub(super) const TIME: i16 = 8;
pub(super) const TAG: i16 = 16;
pub(super) const MARK: i16 = 20;

/// Returns the size of a record of `captured` bytes.
#[inline]
fn stride(captured: usize) -> usize {
    (Record::BYTES + captured).next_multiple_of(RECORD_ALIGN)
}

/// Sizes of a CPU's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Size of the first ring, a power of two from 4 KiB to 256 MiB.
    pub ring_bytes: u32,
    /// Size of the spill ring, a power of two from 4 KiB to 256 MiB.
    pub spill_bytes: u32,
    /// Maximum number of captured bytes of a frame, without its VLAN tag.
    pub frame_bytes_max: u32,
}

impl Sizes {
    /// Returns the offset behind the first ring and the longest record at its end, which is that of
    /// the spill ring.
    pub const fn spill(&self) -> usize {
        self.end_of(DATA, self.ring_bytes)
    }

    /// Returns the size of the value.
    pub const fn value_bytes(&self) -> usize {
        self.end_of(self.spill(), self.spill_bytes)
    }

    const fn end_of(&self, data: usize, ring_bytes: u32) -> usize {
        let record = Record::BYTES + self.frame_bytes_max as usize + TAG_BYTES;
        (data + ring_bytes as usize + record).next_multiple_of(64)
    }
}
