//! Transmit ring: frames written where the NIC sends them from.

use std::sync::atomic::Ordering;

use super::SLOT_BYTES;
use super::ring::{READABLE, Ring, Shared as _, WRITABLE};
use super::socket::Socket;
use crate::error::Result;

/// Transmit ring.
#[derive(Debug)]
pub struct Transmitter {
    ring: Ring,
    next: u32,
    /// Number of pushed slots that were not seen writable again.
    pending: u32,
}

impl Transmitter {
    pub(super) fn new(ring: Ring) -> Self {
        Self { ring, next: 0, pending: 0 }
    }

    /// Returns true if a slot is free. One slot always stays with the kernel.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        self.collect();
        self.pending + 1 < self.ring.slots()
    }

    /// Returns the next free slot, [`SLOT_BYTES`] long. Further calls before [`Transmitter::push`]
    /// return the same slot.
    #[inline]
    pub fn buffer(&mut self) -> Option<&mut [u8]> {
        if !self.has_room() {
            return None;
        }
        // SAFETY: the slot is writable and the NIC does not access it before it is pushed; the
        // borrow ends before that.
        Some(unsafe { std::slice::from_raw_parts_mut(self.ring.memory(self.next), SLOT_BYTES) })
    }

    /// Queues the first `len` bytes of the slot last returned by [`Transmitter::buffer`] as one
    /// frame.
    #[inline]
    pub fn push(&mut self, len: usize) {
        let descriptor = self.ring.descriptor(self.next);
        descriptor.length.store(len.min(SLOT_BYTES) as u32, Ordering::Relaxed);
        self.ring.set_state(self.next, READABLE);
        self.next = self.ring.after(self.next, 1);
        self.pending += 1;
    }

    /// `sendmsg(MSG_DONTWAIT)`: hands the pushed frames to the NIC, as far as it has room.
    ///
    /// # Errors
    /// EINVAL for a frame shorter than its header or longer than the link allows; ENETDOWN.
    pub fn send(&mut self, socket: &Socket) -> Result<()> {
        socket.send()
    }

    /// Takes back the last pushed frame: a frame that [`Transmitter::send`] cannot hand over would
    /// block all others.
    pub fn take_back(&mut self) {
        assert!(self.pending > 0, "nothing was pushed");
        self.next = self.ring.after(self.next, 0_u32.wrapping_sub(1));
        self.ring.set_state(self.next, WRITABLE);
        self.pending -= 1;
    }

    /// Returns the number of frames that are pushed but not sent.
    pub fn pending(&mut self) -> usize {
        self.collect();
        self.pending as usize
    }

    /// Updates `pending` from the states of the slots.
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
