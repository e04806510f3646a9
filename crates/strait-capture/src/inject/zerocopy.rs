//! `PF_ZEROCOPY`: frames written where the NIC sends them from. The interface has no other sender.

use strait_sys::interface::Interface;
use strait_sys::pf_zerocopy::{self, Socket};

use crate::error::Error;

/// Slots of the ring.
const SLOTS: u32 = 1024;

/// A transmit ring.
pub(super) struct Transmitter {
    // Fields drop in this order: the ring unmaps before its socket closes.
    ring: pf_zerocopy::Transmitter,
    socket: Socket,
}

impl Transmitter {
    pub(super) fn open(interface: &Interface) -> Result<Self, Error> {
        let socket = Socket::open(&interface.name)?;
        let ring = socket.transmitter(SLOTS)?;
        socket.bind(interface.index)?;
        Ok(Self { ring, socket })
    }

    /// Whether a slot is free.
    pub(super) fn has_room(&mut self) -> bool {
        self.ring.has_room()
    }

    /// The next free slot.
    pub(super) fn buffer(&mut self) -> Option<&mut [u8]> {
        self.ring.buffer()
    }

    /// Queues the frame in the slot last returned.
    pub(super) fn push(&mut self, len: usize) {
        self.ring.push(len);
    }

    /// Hands what is queued to the NIC, as far as it has room, and has it report what is out.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        Ok(self.ring.send(&self.socket)?)
    }

    /// Frames that are not out.
    pub(super) fn pending(&mut self) -> usize {
        self.ring.pending()
    }
}
