//! Contract of a packet socket's ring. If the kernel lacks memory, a smaller ring is opened.

use std::time::Duration;

use rustix::io::Errno;
use strait_sys::packet::{Cooked, Frame as RawFrame, Socket};

use super::shape::Shape;
use crate::error::Error;

/// Minimum size of a ring when memory is short.
const RING_BYTES_MIN: usize = 1 << 18;

/// Ring of a packet socket, or the buffers for its queue.
pub(crate) trait Ring: Sized + Send + 'static {
    /// Name of the path.
    const PATH: &'static str;
    /// True if the kernel gathers frames in blocks and wakes the reader when a block is retired.
    const HAS_BLOCKS: bool = false;
    /// True if each frame has a slot of a fixed size, to which it is cut.
    const HAS_SLOTS: bool = false;
    /// True if slots hold only the snaplen: a filter in this process sees no byte beyond it.
    const CUTS_AT_SNAPLEN: bool = false;

    /// Frames lent by [`Ring::take`].
    type Batch<'a>: RawBatch;

    /// Returns the default size in bytes.
    fn default_bytes(shape: &Shape) -> usize;

    /// Makes a ring of about `ring_bytes` on an unbound socket.
    fn sized(socket: &Socket, shape: &Shape, ring_bytes: usize) -> Result<Self, Error>;

    /// Sets the header that precedes packets.
    fn set_cooked(&mut self, cooked: Option<Cooked>);

    /// Returns true if frames can be taken.
    fn ready(&mut self, socket: &Socket) -> Result<bool, Error>;

    /// Lends frames that are ready, at most `limit`.
    fn take(&mut self, limit: usize) -> Self::Batch<'_>;

    /// Returns the size in bytes of the ring, or of the socket's queue.
    fn bytes(&self) -> usize;

    /// Returns a description of the geometry, for the user.
    fn describe(&self) -> String;

    /// Returns the approximate number of frames of minimum size that it holds.
    fn capacity(&self) -> usize;

    /// Returns the number of frames that it holds if all of them have the maximum size.
    fn capacity_min(&self) -> usize;

    /// Returns the size of the longest frame that a slot holds; `None` without slots.
    fn frame_bytes_max(&self) -> Option<usize> {
        None
    }

    /// Returns true if the reader sees the frames of a block before the block is retired.
    fn reads_early(&self) -> bool {
        false
    }

    /// Returns the time in which the kernel fills the ring at the measured rate.
    fn fill_time(&self) -> Duration {
        Duration::MAX
    }
}

/// Frames of a [`Ring`], as `strait-sys` lends them.
pub(crate) trait RawBatch {
    /// Iterator over the frames.
    type Frames<'b>: Iterator<Item = RawFrame<'b>>
    where
        Self: 'b;

    /// Returns the number of frames left.
    fn len(&self) -> usize;

    /// Iterates over the frames, oldest first.
    fn frames(&mut self) -> Self::Frames<'_>;
}

/// Makes a ring on an unbound socket; halves it until the kernel has the memory.
pub(super) fn open<R: Ring>(socket: &Socket, shape: &Shape) -> Result<R, Error> {
    let mut ring_bytes = shape.ring_bytes::<R>();
    loop {
        match R::sized(socket, shape, ring_bytes) {
            Err(Error::System(error)) if is_out_of_memory(&error) && ring_bytes / 2 >= RING_BYTES_MIN => {
                ring_bytes /= 2;
            }
            Ok(mut ring) => {
                ring.set_cooked(shape.cooked);
                return Ok(ring);
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_out_of_memory(error: &strait_sys::Error) -> bool {
    error.is_one_of(&[Errno::NOMEM])
}
