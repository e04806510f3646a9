//! `PF_ZEROCOPY`: frames written where the NIC sends them from. The interface has no other sender.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use strait_sys::interface::Interface;
use strait_sys::pf_zerocopy::{self, Socket};
use strait_sys::wait;

use super::{EMSGSIZE, STALL_MAX, STALL_PAUSE, is_tagged, stalled};
use crate::error::Error;

/// Slots of the ring.
const SLOTS: u32 = 1024;
/// Slots of a capture's ring, which single frames leave by: they are locked memory, 128 KiB.
const SINGLE_SLOTS: u32 = 64;

/// A transmit ring.
#[derive(Debug)]
pub(super) struct Transmitter {
    // Fields drop in this order: the ring unmaps before its socket closes.
    ring: pf_zerocopy::Transmitter,
    socket: Arc<Socket>,
}

impl Transmitter {
    pub(super) fn open(interface: &Interface) -> Result<Self, Error> {
        let socket = Arc::new(Socket::open(&interface.name)?);
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

    /// Frames that were handed over when the interface went.
    pub(super) fn dropped(&self) -> u64 {
        // A socket of the family always has its counters.
        self.socket.statistics().map_or(0, |statistics| statistics.tx_dropped)
    }

    /// Tells an error of the socket, once.
    pub(super) fn check(&self) -> Result<(), Error> {
        Ok(self.socket.take_error()?)
    }
}

/// The other way through the socket of a capture.
#[derive(Debug)]
pub(super) struct Single {
    transmitter: Mutex<Transmitter>,
    interface: Interface,
}

impl Single {
    /// Gives `socket` a transmit ring; before it is bound, as the kernel takes none later.
    pub(super) fn new(socket: &Arc<Socket>, interface: &Interface) -> Result<Self, Error> {
        let transmitter = Transmitter { ring: socket.transmitter(SINGLE_SLOTS)?, socket: Arc::clone(socket) };
        Ok(Self { transmitter: Mutex::new(transmitter), interface: interface.clone() })
    }

    /// Sends one frame, or says why the NIC did not take it. Nothing is kept.
    pub(super) fn send(&self, frame: &[u8]) -> Result<(), Error> {
        if frame.len() > self.interface.frame_bytes_max(is_tagged(frame)) {
            return Err(strait_sys::Error::os("send on", &*self.interface.name, EMSGSIZE).into());
        }
        let mut transmitter = self.transmitter.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Instant::now() + STALL_MAX;
        while !transmitter.has_room() {
            if Instant::now() > deadline {
                return Err(stalled());
            }
            transmitter.flush()?;
            wait::sleep(STALL_PAUSE);
        }
        let buffer = transmitter.buffer().ok_or_else(stalled)?;
        buffer[..frame.len()].copy_from_slice(frame);
        transmitter.push(frame.len());
        transmitter.flush().inspect_err(|_| transmitter.ring.take_back())
    }
}
