//! The capture file formats pcap and pcapng as pure transformations between bytes and records.
//!
//! Encoders ([`pcapng::Encoder`], [`pcap::Encoder`]) append whole blocks to the caller's buffer,
//! without an allocation a packet. The [`Decoder`] takes bytes as they come and lends one
//! [`Record`] at a time; it reads both formats in both byte orders and names the byte offset of
//! whatever is wrong. The capture engine's file sink and file reader call them. Nothing here reads,
//! writes, waits or looks at a clock.
//!
//! Sources: draft-ietf-opsawg-pcapng ("pcapng s4.3" in comments) and draft-ietf-opsawg-pcap ("pcap
//! s5").

mod bytes;
mod decoder;
mod error;
pub mod pcap;
pub mod pcapng;
mod record;

pub use decoder::{Decoder, Format, Peek, Step};
pub use error::Error;
pub use record::{Direction, Interface, LinkType, Packet, Record, Section, Statistics};

/// The longest pcapng block that is read, in bytes: 16 MiB.
pub const BLOCK_BYTES_MAX: usize = 16 << 20;

/// The most captured bytes of one packet, read or written: libpcap's own limit.
pub const SNAPLEN_MAX: u32 = 262_144;

/// Limit of interfaces in a file, over all its sections: it bounds the memory of a reader.
pub const INTERFACES_MAX: usize = 65_536;

/// The longest option value: its length field has 16 bits (pcapng s3.5).
pub const OPTION_BYTES_MAX: usize = 65_535;

/// Room that one packet takes at most beside its bytes: the fixed fields, padding and options of a
/// block.
pub const PACKET_OVERHEAD_MAX: usize = 64;
