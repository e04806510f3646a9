//! Metadata that the capture program writes before a frame for user space.
//!
//! ```text
//!   UMEM chunk  | headroom ............ | Metadata, 32 bytes | frame ...
//!                                        ^ frame - 32          ^ descriptor's address
//! ```
//!
//! Fields are in host order, because writer and reader are on one machine. All kernel versions
//! allow 32 bytes of metadata, in multiples of four. The capture engine reads it once for each
//! frame.

/// Metadata of a frame from the capture program. This layout is an ABI between the program and its
/// reader: another layout needs another [`Metadata::MAGIC`].
///
/// After reading, a reader must set the magic (the first four bytes) to zero before it returns the
/// chunk. Otherwise a later frame without metadata in this chunk would appear to have some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Bytes 4 to 7: the filter's result, the maximum number of captured bytes. As on a packet
    /// socket, it does not count the VLAN tag.
    pub snaplen: u32,
    /// Bytes 8 to 15: `CLOCK_MONOTONIC` in nanoseconds, if [`Metadata::TIME`].
    pub timestamp_ns: u64,
    /// Bytes 16 to 23: the device's clock in nanoseconds, if [`Metadata::HARDWARE_TIME`].
    pub hardware_ns: u64,
    /// Bytes 24 to 27: the device's flow hash, if [`Metadata::RX_HASH`].
    pub rx_hash: u32,
    /// Lower half of the word in bytes 28 to 31: control information of the tag that the device
    /// removed, if `vlan_tpid` is not 0.
    pub vlan_tci: u16,
    /// Upper half of that word: ethertype of that tag; 0 if the device removed none.
    pub vlan_tpid: u16,
    /// Lowest eight bits of the word in bytes 0 to 3: the fields that are present.
    pub flags: u32,
}

impl Metadata {
    /// Size of the metadata.
    pub const BYTES: usize = 32;
    /// The word in bytes 0 to 3 without its flags: "STM".
    pub const MAGIC: u32 = 0x5354_4d00;

    /// Flag: `timestamp_ns` is present.
    pub const TIME: u32 = 1 << 0;
    /// Flag: `hardware_ns` is present.
    pub const HARDWARE_TIME: u32 = 1 << 1;
    /// Flag: `rx_hash` is present.
    pub const RX_HASH: u32 = 1 << 2;

    /// Returns the metadata before a frame, or `None` if its magic is missing.
    #[inline]
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let head = u32_at(bytes, HEAD);
        if head & !FLAGS_MASK != Self::MAGIC {
            return None;
        }
        Some(Self {
            snaplen: u32_at(bytes, SNAPLEN),
            timestamp_ns: u64_at(bytes, TIMESTAMP),
            hardware_ns: u64_at(bytes, HARDWARE),
            rx_hash: u32_at(bytes, HASH),
            vlan_tci: u32_at(bytes, VLAN) as u16,
            vlan_tpid: (u32_at(bytes, VLAN) >> 16) as u16,
            flags: head & FLAGS_MASK,
        })
    }

    /// Returns true if all of `flags` are set.
    #[inline]
    pub fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }
}

pub(super) const HEAD: i16 = 0;
pub(super) const SNAPLEN: i16 = 4;
pub(super) const TIMESTAMP: i16 = 8;
pub(super) const HARDWARE: i16 = 16;
pub(super) const HASH: i16 = 24;
pub(super) const VLAN: i16 = 28;
const FLAGS_MASK: u32 = 0xff;

#[inline]
fn bytes_at<const N: usize>(bytes: &[u8; Metadata::BYTES], at: i16) -> [u8; N] {
    let mut word = [0; N];
    word.copy_from_slice(&bytes[at as usize..at as usize + N]);
    word
}

#[inline]
fn u32_at(bytes: &[u8; Metadata::BYTES], at: i16) -> u32 {
    u32::from_ne_bytes(bytes_at(bytes, at))
}

#[inline]
fn u64_at(bytes: &[u8; Metadata::BYTES], at: i16) -> u64 {
    u64::from_ne_bytes(bytes_at(bytes, at))
}
