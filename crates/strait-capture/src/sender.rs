//! Sender of single frames on the interface of a session.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::io::Errno;
use strait_os::interface::Interface;
use strait_os::wait;
use strait_sys::packet::Socket;
use strait_sys::pf_zerocopy;

use crate::error::Error;
use crate::inject::limits::{STALL_MAX, STALL_PAUSE, is_tagged, stalled};
use crate::inject::zerocopy::Transmitter;

/// Slots of the transmit ring of a capture. They are locked memory, 128 KiB.
const SINGLE_SLOTS: u32 = 64;

/// Sender of single frames, usable from any thread, see [`crate::Session::take_sender`].
#[derive(Debug)]
pub struct Sender(Route);

#[derive(Debug)]
enum Route {
    /// Through the queueing discipline, so that captures on this host see the frames.
    Stack(Socket),
    /// Through the socket of a `PF_ZEROCOPY` capture: its NIC sends no frames of the network stack.
    ZeroCopy(Single),
}

impl Sender {
    /// Opens `interface` for sending.
    ///
    /// # Errors
    /// An unknown interface, no privilege.
    pub(crate) fn open(interface: &str) -> Result<Self, Error> {
        let interface = Interface::find(interface)?;
        let socket = Socket::open(&interface.name)?;
        socket.bind_for_sending(interface.index)?;
        Ok(Self(Route::Stack(socket)))
    }

    /// Sends through `socket` of a capture on `interface`, which is not bound yet.
    ///
    /// # Errors
    /// ENOBUFS if the limit of locked memory is too small.
    pub(crate) fn of_capture(
        socket: &Arc<pf_zerocopy::Socket>,
        interface: &Interface,
    ) -> Result<Self, Error> {
        Ok(Self(Route::ZeroCopy(Single::new(socket, interface)?)))
    }

    /// Sends one frame, starting with its link header. After an error the frame is not queued.
    pub fn send(&self, frame: &[u8]) -> Result<(), Error> {
        match &self.0 {
            Route::Stack(socket) => Ok(socket.send(frame)?),
            Route::ZeroCopy(single) => single.send(frame),
        }
    }
}

/// Transmit ring on the socket of a capture.
#[derive(Debug)]
struct Single {
    transmitter: Mutex<Transmitter>,
    interface: Interface,
}

impl Single {
    /// Adds a transmit ring to `socket`, which is not bound yet.
    fn new(socket: &Arc<pf_zerocopy::Socket>, interface: &Interface) -> Result<Self, Error> {
        let transmitter = Transmitter::of_capture(socket, SINGLE_SLOTS)?;
        Ok(Self { transmitter: Mutex::new(transmitter), interface: interface.clone() })
    }

    /// Sends one frame. After an error the frame is not queued.
    fn send(&self, frame: &[u8]) -> Result<(), Error> {
        if frame.len() > self.interface.frame_bytes_max(is_tagged(frame)) {
            let errno = Errno::MSGSIZE.raw_os_error();
            return Err(strait_sys::Error::os("send on", &*self.interface.name, errno).into());
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
        transmitter.flush().inspect_err(|_| transmitter.take_back())
    }
}
