//! `AF_XDP` sockets, their UMEM and their four rings: `include/uapi/linux/if_xdp.h`, `net/xdp/xsk.c`.
//!
//! - [`Umem`]: the memory that frames live in, cut into chunks; [`Share`] is the part of it that one ring pair owns.
//! - [`Socket`]: one receive queue of one interface; options, statistics, wake-ups.
//! - [`Receiver`]: the fill and RX rings; lends frames as [`RxBatch`].
//! - [`Transmitter`]: the TX and completion rings.
//!
//! A chunk is in this process or with the kernel, never both, and the types say which: a frame is lent out of a
//! batch, a batch borrows its receiver, and what the kernel hands over is checked against a table of the chunks that
//! it holds. `docs/internals/af-xdp.md` draws it. The capture engine calls this module; nothing here waits, sleeps,
//! or decides when to read.

mod memory;
mod ring;
mod rx;
mod socket;
mod tx;
mod umem;

pub use rx::{Receiver, RxBatch, RxFrame};
pub use socket::{Binding, Mode, Socket, Statistics};
pub use tx::Transmitter;
pub use umem::{Geometry, Share, Umem};

/// Bytes that the kernel keeps free before a received frame in its chunk, besides the UMEM's own headroom
/// (`XDP_PACKET_HEADROOM`, `include/uapi/linux/bpf.h`). An XDP program's metadata stands at their end.
pub const PACKET_HEADROOM: u32 = 256;

/// Most slots of a ring and most chunks of a UMEM.
pub const SLOTS_MAX: u32 = 1 << 20;

#[cfg(test)]
mod tests;
