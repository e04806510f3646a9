//! AF_XDP TX: frames written into the UMEM and sent from there.

use strait_sys::interface::Interface;

use crate::error::Error;

/// A transmit ring of one queue.
pub(super) struct Transmitter {}

impl Transmitter {
    pub(super) fn open(interface: &Interface) -> Result<Self, Error> {
        Err(Error::Usage(format!("{}: AF_XDP TX is not built in yet", interface.name)))
    }

    /// Whether a buffer is free; collects completions first.
    pub(super) fn has_room(&mut self) -> bool {
        false
    }

    /// The next free buffer.
    pub(super) fn buffer(&mut self) -> Option<&mut [u8]> {
        None
    }

    /// Queues the frame in the buffer last returned.
    pub(super) fn push(&mut self, _len: usize) {}

    /// Submits what is queued and wakes the kernel where it asks for it.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Frames submitted and not completed.
    pub(super) fn pending(&mut self) -> usize {
        0
    }
}
