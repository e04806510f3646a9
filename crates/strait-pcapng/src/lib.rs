//! The capture file formats pcap and pcapng: conversion between bytes and records.
//!
//! Encoders ([`pcapng::Encoder`], [`pcap::Encoder`]) append whole blocks to the caller's buffer,
//! without an allocation per packet. The [`Decoder`] takes bytes in pieces of any size and lends
//! one [`Record`] at a time; it reads both formats in both byte orders, and its errors have the
//! byte offset of the defect. An [`index`] has the times and the flows of the parts of a file. The
//! capture engine's file sink and file reader use them. Nothing here reads, writes, waits or reads
//! a clock.
//!
//! Sources: draft-ietf-opsawg-pcapng ("pcapng s4.3" in comments) and draft-ietf-opsawg-pcap ("pcap
//! s5").

mod bytes;
mod decoder;
mod error;
pub mod index;
pub mod pcap;
pub mod pcapng;
mod record;

pub use decoder::{Decoder, Format, Peek, Step};
pub use error::Error;
pub use record::{
    Direction, Interface, LinkType, NameRecord, Names, Packet, Record, Secrets, Section, Statistics,
};

/// Maximum length of a pcapng block that is read, in bytes: 16 MiB.
pub const BLOCK_BYTES_MAX: usize = 16 << 20;

/// Maximum number of bytes of secrets in one block, which a reader of [`BLOCK_BYTES_MAX`] accepts.
pub const SECRETS_BYTES_MAX: usize = BLOCK_BYTES_MAX - 64;

/// Maximum number of captured bytes of a packet, read or written: libpcap's own limit.
pub const SNAPLEN_MAX: u32 = 262_144;

/// Maximum number of interfaces in all sections of a file. It bounds the memory of a reader.
pub const INTERFACES_MAX: usize = 65_536;

/// Maximum length of an option value: its length field has 16 bits (pcapng s3.5).
pub const OPTION_BYTES_MAX: usize = 65_535;

/// Maximum number of bytes that a packet takes in addition to its own: the fixed fields, padding
/// and options of a block.
pub const PACKET_OVERHEAD_MAX: usize = 64;

/// Maximum number of bytes of a comment that an encoder writes. Readers accept longer ones.
pub const COMMENT_BYTES_MAX: usize = 2048;

/// Returns the maximum number of bytes that an encoder adds to the bytes of `packet`.
#[inline]
pub fn packet_overhead(packet: &Packet<'_>) -> usize {
    /// Code, length and padding.
    const OPTION_OVERHEAD_MAX: usize = 4 + 3;
    match packet.comment {
        None => PACKET_OVERHEAD_MAX,
        Some(comment) => PACKET_OVERHEAD_MAX + OPTION_OVERHEAD_MAX + comment.len().min(COMMENT_BYTES_MAX),
    }
}
