//! The transmit ring: frames written where the NIC sends them from.

use std::sync::atomic::Ordering;

use super::SLOT_BYTES;
use super::ring::{READABLE, Ring, WRITABLE};
use super::socket::Socket;
use crate::error::Result;

/// A transmit ring.
#[derive(Debug)]
pub struct Transmitter {
    ring: Ring,
    next: u32,
    /// Slots pushed and not seen writable again.
    pending: u32,
}

impl Transmitter {
    pub(super) fn new(ring: Ring) -> Self {
        Self { ring, next: 0, pending: 0 }
    }

    /// Whether a slot is free. One always stays with the kernel.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        self.collect();
        self.pending + 1 < self.ring.slots()
    }

    /// The next free slot, [`SLOT_BYTES`] long; called again before [`Transmitter::push`] it is the same.
    #[inline]
    pub fn buffer(&mut self) -> Option<&mut [u8]> {
        if !self.has_room() {
            return None;
        }
        // SAFETY: the slot is writable and the NIC does not reach it before it is pushed; the borrow ends before that.
        Some(unsafe { std::slice::from_raw_parts_mut(self.ring.memory(self.next), SLOT_BYTES) })
    }

    /// Queues the first `len` bytes of the slot last returned by [`Transmitter::buffer`] as one frame.
    #[inline]
    pub fn push(&mut self, len: usize) {
        let descriptor = self.ring.descriptor(self.next);
        descriptor.length.store(len.min(SLOT_BYTES) as u32, Ordering::Relaxed);
        self.ring.set_state(self.next, READABLE);
        self.next = self.ring.after(self.next, 1);
        self.pending += 1;
    }

    /// `sendmsg(MSG_DONTWAIT)`: hands what was pushed to the NIC, as far as it has room.
    ///
    /// # Errors
    /// EINVAL for a frame shorter than its header or longer than the link takes; ENETDOWN.
    pub fn send(&mut self, socket: &Socket) -> Result<()> {
        socket.send()
    }

    /// Takes the frame that was pushed last back: one that [`Transmitter::send`] has failed to hand over would stand in the
    /// way of all others.
    pub fn take_back(&mut self) {
        assert!(self.pending > 0, "nothing was pushed");
        self.next = self.ring.after(self.next, 0_u32.wrapping_sub(1));
        self.ring.set_state(self.next, WRITABLE);
        self.pending -= 1;
    }

    /// Frames that are pushed and not out.
    pub fn pending(&mut self) -> usize {
        self.collect();
        self.pending as usize
    }

    /// Looks how far the NIC has come.
    #[inline]
    fn collect(&mut self) {
        while self.pending > 0 {
            let oldest = self.ring.after(self.next, 0_u32.wrapping_sub(self.pending));
            if !self.ring.has_state(oldest, WRITABLE) {
                break;
            }
            self.pending -= 1;
        }
    }
}
