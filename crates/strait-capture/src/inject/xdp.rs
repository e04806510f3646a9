//! AF_XDP TX: frames are written into the UMEM, and the NIC or the kernel sends them from there.
//!
//! A frame that fits a chunk is written into the chunk from which it is sent. If the MTU exceeds a
//! chunk, frames are written to a separate buffer and cut into fragments. The kernel copies each
//! frame once more if the driver has no zero-copy.
//!
//! With zero-copy the NIC's queue also receives into the UMEM, and the driver copies received
//! frames from it for the host. The UMEM has chunks for this purpose, which this module never
//! reads.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use strait_filter::xdp::pass_program;
use strait_os::interface::Interface;
use strait_os::wait;
use strait_sys::Kind;
use strait_sys::bpf::{AttachMode, Link, LoadOptions, XdpProgram};
use strait_sys::xdp::{self, Binding, Geometry, Mode, Receiver, Socket, Umem};

use super::limits::FRAME_BYTES_MAX;
use crate::error::Error;
use crate::paths::xdp::bind::{bind, is_unsupported};

/// Number of slots of the TX ring.
pub(super) const SLOTS: u32 = 2048;
/// Number of chunks: one for each slot, so that only a full ring limits the sender.
const CHUNKS: u32 = SLOTS;
/// Number of chunks into which the host receives with zero-copy: the longest receive queue of
/// common NICs.
const RX_CHUNKS: u32 = 4096;
/// Maximum time for a link to come up: autonegotiation on copper takes three seconds or more.
const LINK_UP_TIMEOUT: Duration = Duration::from_secs(15);
const LINK_PAUSE: Duration = Duration::from_millis(20);
/// Ethernet header and two VLAN tags beyond the MTU.
const LINK_OVERHEAD: u32 = 14 + 8;

/// Transmit ring of queue 0.
pub(super) struct Transmitter {
    // Fields drop in this order: the rings unmap before their socket closes.
    rings: xdp::Transmitter,
    /// Fill ring with the chunks into which the host receives with zero-copy.
    _receiver: Option<Receiver>,
    socket: Socket,
    /// XDP program, which igb requires to send from a UMEM.
    _program: Option<Link>,
    /// Buffer for frames that may take several chunks.
    jumbo: Option<Box<[u8]>>,
    /// Reason for copies by the kernel, if it copies each frame.
    copy_reason: Option<String>,
}

impl Transmitter {
    pub(super) fn open(interface: &Interface) -> Result<Self, Error> {
        match Self::bind(interface, Mode::ZeroCopy) {
            Err(Error::System(error)) if is_unsupported(&error) => {
                let reason = if error.is_one_of(&[Errno::OPNOTSUPP]) {
                    format!("no zero-copy: the driver of {} does not support it", interface.name)
                } else {
                    format!("no zero-copy: {error}")
                };
                Ok(Self { copy_reason: Some(reason), ..Self::bind(interface, Mode::Copy)? })
            }
            bound => bound,
        }
    }

    fn bind(interface: &Interface, mode: Mode) -> Result<Self, Error> {
        let zero_copy = mode == Mode::ZeroCopy;
        let longest = interface.mtu.saturating_add(LINK_OVERHEAD);
        // With chunks shorter than a page igb cuts the frames that the host receives.
        let chunk_bytes = if longest <= 2048 && !zero_copy { 2048 } else { 4096 };
        let multi_buffer = longest > chunk_bytes;
        let rx_chunks = if zero_copy { RX_CHUNKS } else { 0 };
        let geometry = Geometry { chunk_bytes, chunks: CHUNKS + rx_chunks, headroom_bytes: 0 };
        let mut umem = Umem::new(geometry, false, interface.numa_node())?;
        let mut socket = Socket::open(&interface.name)?;
        socket.register(&umem)?;
        let rings = socket.transmitter(SLOTS, umem.share(CHUNKS)?)?;
        let receiver = zero_copy.then(|| socket.receiver(rx_chunks, umem.share(rx_chunks)?)).transpose()?;
        bind(&mut socket, &Binding { ifindex: interface.index, queue: 0, mode, multi_buffer }, None)?;
        let program = if zero_copy { enable_sending(&socket, interface)? } else { None };
        let jumbo = multi_buffer.then(|| vec![0; FRAME_BYTES_MAX].into_boxed_slice());
        Ok(Self { rings, _receiver: receiver, socket, _program: program, jumbo, copy_reason: None })
    }

    /// Returns the reason for copies by the kernel, if it copies each frame.
    pub(super) fn copy_reason(&self) -> Option<&str> {
        self.copy_reason.as_deref()
    }

    /// Returns true if a buffer is free. It collects completions first.
    pub(super) fn has_room(&mut self) -> bool {
        let chunks = match &self.jumbo {
            None => 1,
            Some(buffer) => self.chunks(buffer.len()) as u32,
        };
        self.rings.room(chunks) >= chunks
    }

    /// Returns the next free buffer.
    pub(super) fn buffer(&mut self) -> Option<&mut [u8]> {
        if !self.has_room() {
            return None;
        }
        match &mut self.jumbo {
            None => self.rings.buffer(),
            Some(buffer) => Some(buffer),
        }
    }

    /// Queues the frame in the last returned buffer.
    pub(super) fn push(&mut self, len: usize) {
        match &self.jumbo {
            None => self.rings.push(len),
            Some(buffer) => {
                let queued = self.rings.push_frame(&buffer[..len.min(buffer.len())]);
                debug_assert!(queued, "there was room when the buffer was lent");
            }
        }
    }

    /// Submits the queued frames, and wakes the kernel if necessary, until it takes no more frames.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        self.rings.submit();
        let mut queued = self.rings.queued();
        while queued > 0 && self.rings.needs_wakeup() && self.socket.wake_tx()? {
            let before = std::mem::replace(&mut queued, self.rings.queued());
            if queued == before {
                break;
            }
        }
        Ok(())
    }

    /// Returns the number of chunks of a frame of `len` bytes.
    pub(super) fn chunks(&self, len: usize) -> usize {
        len.div_ceil(self.rings.chunk_bytes() as usize).max(1)
    }

    /// Returns the number of chunks that were submitted and not completed.
    pub(super) fn pending(&mut self) -> usize {
        self.rings.collect();
        self.rings.pending() as usize
    }
}

/// Attaches an XDP program that passes all frames, for a driver that sends from a UMEM only while a
/// program is attached. The driver then resets its rings, and its link goes down and up.
fn enable_sending(socket: &Socket, interface: &Interface) -> Result<Option<Link>, Error> {
    match socket.wake_tx() {
        Err(error) if error.is_one_of(&[Errno::NXIO, Errno::INVAL]) => {}
        woken => return Ok(woken.map(|_| None)?),
    }
    let assembled = pass_program(None).map_err(|error| Error::Filter(error.to_string()))?;
    let options = LoadOptions { fragments: assembled.fragments, device: None };
    let program = XdpProgram::load("strait_pass", &assembled.words(), options)?;
    let link = Link::attach_xdp(&program, interface.index, AttachMode::Native)?;
    let deadline = Instant::now() + LINK_UP_TIMEOUT;
    while !Interface::find(&interface.name)?.is_running() {
        if Instant::now() > deadline {
            let cause = "its link did not come up again after an XDP program was attached: check the cable, and see ethtool";
            return Err(strait_sys::Error::new(Kind::Failed, "send on", &interface.name, cause).into());
        }
        wait::sleep(LINK_PAUSE);
    }
    Ok(Some(link))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use lab::Wire;

    use crate::{InjectPath, Injector, Path, Session};

    fn frame(number: usize, len: usize) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];
        frame.extend((14..len).map(|i| (i * 3 + number) as u8));
        frame
    }

    fn every_frame_arrives(mtu: u32) {
        let Some(wire) = Wire::builder().mtu(mtu).or_skip() else { return };
        let mut session =
            wire.right().run(|| Session::builder("right").path(Path::V3).ring(64 << 20).open()).unwrap();
        let mut lane = session.take_lanes().remove(0);
        let frames: Vec<_> = (0..5000).map(|i| frame(i, 60 + i * 31 % (mtu as usize - 45))).collect();
        let sent = wire.left().run(|| {
            let mut injector = Injector::open("left", InjectPath::Xdp).unwrap();
            for frame in &frames {
                injector.buffer().unwrap()[..frame.len()].copy_from_slice(frame);
                injector.push(frame.len());
            }
            injector.finish().unwrap()
        });
        assert_eq!((sent.frames, sent.unfinished), (5000, 0));
        assert_eq!(sent.bytes, frames.iter().map(|frame| frame.len() as u64).sum::<u64>());
        let mut seen = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        while seen.len() < frames.len() && Instant::now() < deadline {
            let mut batch = lane.next_batch(deadline).unwrap().unwrap();
            seen.extend(batch.frames().map(|frame| frame.bytes.to_vec()));
        }
        assert!(seen == frames, "{} of {} arrived", seen.len(), frames.len());
    }

    #[test]
    fn every_frame_arrives_from_one_chunk() {
        every_frame_arrives(1500);
    }

    #[test]
    fn every_jumbo_frame_arrives_from_several_chunks() {
        every_frame_arrives(9000);
    }

    #[test]
    fn link_that_is_down_is_an_error_without_a_stall() {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let mut injector = wire.left().run(|| Injector::open("left", InjectPath::Xdp)).unwrap();
        wire.left().set_up(false);
        injector.buffer().unwrap()[..60].copy_from_slice(&frame(0, 60));
        injector.push(60);
        let error = injector.flush().unwrap_err();
        assert!(error.to_string().contains("ip link set left up"), "{error}");
    }
}
