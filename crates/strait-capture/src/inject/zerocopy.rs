//! `PF_ZEROCOPY`: frames are written into memory from which the NIC sends. The interface has no
//! other sender.

use std::sync::Arc;

use strait_os::interface::Interface;
use strait_sys::pf_zerocopy::{self, Socket};

use crate::error::Error;
use crate::zerocopy;

/// Number of slots of the ring.
const SLOTS: u32 = 1024;

/// Transmit ring.
#[derive(Debug)]
pub(crate) struct Transmitter {
    // Fields drop in this order: the ring unmaps before its socket closes.
    ring: pf_zerocopy::Transmitter,
    socket: Arc<Socket>,
}

impl Transmitter {
    pub(crate) fn open(interface: &Interface) -> Result<Self, Error> {
        let socket = Arc::new(Socket::open(&interface.name)?);
        let ring = socket.transmitter(SLOTS)?;
        zerocopy::bind_any(&socket, interface)?;
        Ok(Self { ring, socket })
    }

    /// Adds a ring of `slots` to the socket of a capture, which must not be bound yet: the module
    /// accepts no ring later.
    pub(crate) fn of_capture(socket: &Arc<Socket>, slots: u32) -> Result<Self, Error> {
        Ok(Self { ring: socket.transmitter(slots)?, socket: Arc::clone(socket) })
    }

    /// Takes back the frame that was queued last and not sent.
    pub(crate) fn take_back(&mut self) {
        self.ring.take_back();
    }

    /// Returns true if a slot is free.
    pub(crate) fn has_room(&mut self) -> bool {
        self.ring.has_room()
    }

    /// Returns the next free slot.
    pub(crate) fn buffer(&mut self) -> Option<&mut [u8]> {
        self.ring.buffer()
    }

    /// Queues the frame in the last returned slot.
    pub(crate) fn push(&mut self, len: usize) {
        self.ring.push(len);
    }

    /// Passes queued frames to the NIC as far as it has room, and reads which frames it has sent.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        Ok(self.ring.send(&self.socket)?)
    }

    /// Returns the number of frames that are not sent.
    pub(crate) fn pending(&mut self) -> usize {
        self.ring.pending()
    }

    /// Returns the number of frames that were in progress when the interface was removed.
    pub(crate) fn dropped(&self) -> u64 {
        // A socket of the family always has its counters.
        self.socket.statistics().map_or(0, |statistics| statistics.tx_dropped)
    }

    /// Returns an error of the socket, once.
    pub(crate) fn check(&self) -> Result<(), Error> {
        Ok(self.socket.take_error()?)
    }
}
