//! `AF_XDP` sockets, their UMEM and their four rings (`include/uapi/linux/if_xdp.h`,
//! `net/xdp/xsk.c`).
//!
//! - [`Umem`]: memory of the frames, cut into chunks; a [`Share`] is the part of one ring pair.
//! - [`Socket`]: one receive queue of one interface; options, statistics, wake-ups.
//! - [`Receiver`]: the fill and RX rings; frames are borrowed as an [`RxBatch`].
//! - [`Transmitter`]: the TX and completion rings.
//!
//! Either this process or the kernel holds a chunk, never both, and the types show which: a frame
//! borrows from a batch, a batch borrows its receiver, and descriptors from the kernel are checked
//! against a table of the chunks that it holds. `docs/internals/af-xdp.md` draws it. The capture
//! engine uses this module; nothing here waits, sleeps or decides when to read.

mod memory;
mod ring;
mod rx;
mod socket;
mod tx;
mod umem;

use rustix::io::Errno;

pub use rx::{Receiver, RxBatch, RxCount, RxFrame};
pub use socket::{Binding, Mode, Socket, Statistics};
pub use tx::Transmitter;
pub use umem::{Geometry, Share, Umem};

/// Bytes that the kernel keeps free before a received frame in its chunk, in addition to the UMEM's
/// own headroom (`XDP_PACKET_HEADROOM`, `include/uapi/linux/bpf.h`). An XDP program's metadata
/// occupies their end.
pub const PACKET_HEADROOM: u32 = 256;

/// `ENOTSUPP` (include/linux/errno.h). It is kernel-internal, but some drivers return it in place
/// of EOPNOTSUPP.
pub const ENOTSUPP: Errno = Errno::from_raw_os_error(524);

/// Maximum number of slots of a ring and of chunks of a UMEM.
pub const SLOTS_MAX: u32 = 1 << 20;

#[cfg(test)]
mod tests;
