//! The `recv` path: frames copied out of a packet socket's queue by `recvmmsg`.
//!
//! It needs no ring, so it works on every kernel. Each frame is copied once more than with a ring:
//! into a socket buffer, and from there to this process.

use strait_sys::packet::{Cooked, Socket, receive};

use crate::error::Error;
use crate::paths::packet::ring::{RawBatch, Ring};
use crate::paths::packet::shape::{DEFAULT_FRAMES, RING_BYTES, Shape, size};
use crate::paths::packet::{self, engine};
use crate::paths::spec::Spec;

/// Maximum bytes that the kernel charges to a socket for a queued frame of up to 1,514 bytes
/// (`skb->truesize`), for drivers that receive into whole pages, with a margin.
pub(crate) const QUEUED_FRAME_BYTES_MAX: usize = 8 << 10;
/// Approximate bytes that the kernel charges to a socket for a small queued frame.
const QUEUED_FRAME_BYTES: usize = 1024;
/// Maximum bytes that the kernel charges to a socket for a frame that receive offload has joined.
const QUEUED_JOINED_BYTES_MAX: usize = 1 << 18;
/// Frames per `recvmmsg`.
const RECEIVE_BATCH: usize = 64;

/// The path in the table.
pub(crate) const SPEC: Spec<Engine> = packet::spec();

/// Packet socket without a ring.
pub(crate) type Engine = engine::Engine<Queue>;

/// Queue of a socket, and buffers for the frames read from it.
pub(crate) struct Queue {
    receiver: receive::Receiver,
    queue_bytes: usize,
}

impl Ring for Queue {
    const PATH: &'static str = "recv";
    const CUTS_AT_SNAPLEN: bool = true;

    type Batch<'a> = receive::Batch<'a>;

    fn default_bytes(_shape: &Shape) -> usize {
        RING_BYTES.max(DEFAULT_FRAMES * QUEUED_FRAME_BYTES_MAX)
    }

    fn sized(socket: &Socket, shape: &Shape, ring_bytes: usize) -> Result<Self, Error> {
        socket.enable_control_messages()?;
        // The kernel doubles the requested size.
        let queue_bytes = socket.set_receive_buffer((ring_bytes / 2) as u32)? as usize;
        Ok(Self { receiver: receive::Receiver::new(RECEIVE_BATCH, shape.frame_bytes), queue_bytes })
    }

    fn set_cooked(&mut self, cooked: Option<Cooked>) {
        self.receiver.set_cooked(cooked);
    }

    fn ready(&mut self, socket: &Socket) -> Result<bool, Error> {
        Ok(self.receiver.fill(socket)? > 0)
    }

    fn take(&mut self, limit: usize) -> receive::Batch<'_> {
        self.receiver.take(limit)
    }

    fn bytes(&self) -> usize {
        self.queue_bytes
    }

    fn describe(&self) -> String {
        format!("a queue of {}", size(self.queue_bytes))
    }

    fn capacity(&self) -> usize {
        self.queue_bytes / QUEUED_FRAME_BYTES
    }

    fn capacity_min(&self) -> usize {
        self.queue_bytes / QUEUED_JOINED_BYTES_MAX
    }
}

impl RawBatch for receive::Batch<'_> {
    type Frames<'b>
        = receive::Frames<'b>
    where
        Self: 'b;

    #[inline]
    fn len(&self) -> usize {
        self.len()
    }

    #[inline]
    fn frames(&mut self) -> receive::Frames<'_> {
        self.frames()
    }
}
