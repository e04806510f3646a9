//! Program that counts the packets that the kernel drops, by reason and place, and copies them.
//!
//! ```text
//!   kfree_skb(packet, location, reason) ─▶ consumed, or of another namespace? ── yes ─▶ end
//!                                              │ no
//!                                              ▼
//!              hash: Place ─▶ number of packets;   full: uncounted += 1
//!                                              │ packets are requested
//!                                              ▼
//!              ring: header and first bytes;       full: lost += 1
//! ```
//!
//! The capture engine loads it for the tracepoint `skb:kfree_skb`, which has a reason since
//! Linux 5.17. It reads kernel structures at offsets that the caller finds in the kernel's BTF, and
//! changes nothing.
//!
//! A packet in the queue of a UDP socket has no device: the kernel keeps other values in its place.
//! So its namespace is that of the receiving socket (`rx_sk`, Linux 6.11), then of the device, then
//! of the owning socket. Without any of them it is 0.

mod copy;
mod layout;
mod program;
#[cfg(test)]
mod tests;

pub use self::layout::{ETHER_TYPES, IP_PROTOCOLS, LOST, Offsets, Place, Record, STATE_BYTES, UNCOUNTED};
pub use self::program::{Copies, Options, program};
