//! The doorbell: a second packet socket on the same interface with the same filter, that wakes a V3 reader.
//!
//! TPACKET_V3 wakes its reader when a block is retired, up to its timer late (D2). The doorbell's queue holds a packet
//! or two: the first packet after [`Doorbell::arm`] makes it readable, and as long as nobody empties it the kernel
//! drops further packets for it at once. So it rings while the reader sleeps and costs next to nothing while the
//! reader is busy. Its packets are not captured packets; they are thrown away and in no ledger.

use strait_filter::cbpf::Program;
use strait_sys::interface::Interface;
use strait_sys::packet::{Socket, receive::Receiver};

use super::Shape;
use crate::error::Error;
use crate::filter;

/// Asked of the kernel, which grants its minimum (SOCK_MIN_RCVBUF): room for two or three small packets.
const QUEUE_BYTES: u32 = 1;
/// More than its queue can hold, so that one call empties it.
const EMPTIED_AT_ONCE: usize = 16;
/// A packet in the queue is cut to this.
const SNAPLEN: u32 = 1;

pub(super) struct Doorbell {
    socket: Socket,
    receiver: Receiver,
}

impl Doorbell {
    pub(super) fn open(interface: &Interface, program: &Program, shape: &Shape) -> Result<Self, Error> {
        let socket = Socket::open(&interface.name)?;
        let program = program.with_snaplen(SNAPLEN).map_err(|error| Error::Filter(error.to_string()))?;
        socket.attach_filter(&filter::instructions(&program))?;
        if shape.ignore_outgoing {
            socket.ignore_outgoing()?;
        }
        socket.set_receive_buffer(QUEUE_BYTES)?;
        socket.bind(interface.index)?;
        Ok(Self { socket, receiver: Receiver::new(EMPTIED_AT_ONCE, SNAPLEN as usize) })
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Empties the queue, so that the next packet rings.
    pub(super) fn arm(&mut self) -> Result<(), Error> {
        self.receiver.fill(&self.socket)?;
        self.receiver.discard();
        Ok(())
    }
}
