//! pcapng: block and option codes for the encoder and the decoder.
//!
//! The codes are those of draft-ietf-opsawg-pcapng, in the sections given with each table.

mod clock;
pub(crate) mod decode;
mod encode;
mod extra;
mod options;

pub use encode::{Encoder, STATISTICS_BYTES_MAX};

/// Block types (s10.1).
pub(crate) mod block {
    pub(crate) const SECTION: u32 = 0x0a0d_0d0a;
    pub(crate) const INTERFACE: u32 = 1;
    pub(crate) const PACKET_OBSOLETE: u32 = 2;
    pub(crate) const SIMPLE_PACKET: u32 = 3;
    pub(crate) const NAMES: u32 = 4;
    pub(crate) const STATISTICS: u32 = 5;
    pub(crate) const ENHANCED_PACKET: u32 = 6;
    pub(crate) const SECRETS: u32 = 10;
}

/// Option codes (s3.5, s4.1, s4.2, s4.3, s4.6).
mod option {
    pub(super) const END: u16 = 0;
    pub(super) const COMMENT: u16 = 1;
    pub(super) const SHB_HARDWARE: u16 = 2;
    pub(super) const SHB_OS: u16 = 3;
    pub(super) const SHB_USERAPPL: u16 = 4;
    pub(super) const IF_NAME: u16 = 2;
    pub(super) const IF_DESCRIPTION: u16 = 3;
    pub(super) const IF_SPEED: u16 = 8;
    pub(super) const IF_TSRESOL: u16 = 9;
    pub(super) const IF_FILTER: u16 = 11;
    pub(super) const IF_OS: u16 = 12;
    pub(super) const IF_TSOFFSET: u16 = 14;
    pub(super) const EPB_FLAGS: u16 = 2;
    pub(super) const EPB_QUEUE: u16 = 6;
    pub(super) const ISB_STARTTIME: u16 = 2;
    pub(super) const ISB_ENDTIME: u16 = 3;
    pub(super) const ISB_IFRECV: u16 = 4;
    pub(super) const ISB_IFDROP: u16 = 5;
    pub(super) const ISB_FILTERACCEPT: u16 = 6;
    pub(super) const ISB_OSDROP: u16 = 7;
    pub(super) const ISB_USRDELIV: u16 = 8;
}

/// The byte-order magic of a section header (s4.1).
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

/// Bytes of a block with an empty body: type, total length and the total length again (s3.1).
pub(crate) const FRAMING_BYTES: usize = 12;

/// Returns the number of bytes that pad `len` to a multiple of 4 (s3.6.2).
const fn padding(len: usize) -> usize {
    len.wrapping_neg() & 3
}
