//! `PF_ZEROCOPY` sockets: the NIC writes frames into memory of this process and sends from it (D1;
//! `kmod/pf_zerocopy/pf_zerocopy.h`, `docs/internals/pf-zerocopy.md`).
//!
//! Call [`Socket::open`], then [`Socket::receiver`] or [`Socket::transmitter`], then
//! [`Socket::bind`]. A ring has a descriptor for each slot of 2 KiB; its state names the owner of
//! the slot. Only the slots of a borrowed [`Batch`], and the slot of [`Transmitter::buffer`], are
//! accessed here. The capture engine uses this module.

mod ring;
mod rx;
mod socket;
mod tx;

pub use rx::{Batch, Frame, Receiver};
pub use socket::{Socket, Statistics};
pub use tx::Transmitter;

/// Bytes of a slot, and so of the longest frame (`ZEROCOPY_SLOT_BYTES`).
pub const SLOT_BYTES: usize = 2048;
/// Minimum number of slots of a ring (`ZEROCOPY_SLOTS_MIN`).
pub const SLOTS_MIN: u32 = 8;
/// Maximum number of slots of a ring (`ZEROCOPY_SLOTS_MAX`).
pub const SLOTS_MAX: u32 = 4096;

#[cfg(all(test, loom))]
mod interleavings;
#[cfg(test)]
mod tests;
