//! pcap: the classic file format, its encoder and the magic numbers that the decoder knows.
//!
//! It has one header, one link type, and no fields for interface names, directions or drop counts;
//! prefer pcapng.

pub(crate) mod decode;
mod encode;

pub use encode::Encoder;

/// Microseconds in the fraction (s4).
pub(crate) const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
/// Nanoseconds in the fraction (s4).
pub(crate) const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
/// Kuznetzov's libpcap: 24-byte record headers.
pub(crate) const MAGIC_KUZNETZOV: u32 = 0xa1b2_cd34;

/// Bytes of the file header (s4).
pub(crate) const HEADER_BYTES: usize = 24;
/// Bytes of a packet record's header (s5).
pub(crate) const RECORD_BYTES: usize = 16;

/// The unit of a timestamp's fraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// 10^-6 s, which every reader supports.
    Microseconds,
    /// 10^-9 s.
    #[default]
    Nanoseconds,
}
