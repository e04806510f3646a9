//! AF_XDP TX: frames written into the UMEM and sent from there.
//!
//! A frame that fits a chunk is written where it is sent from. On an interface whose MTU exceeds a chunk, frames go
//! through a buffer of their own and are cut into fragments. The kernel copies them once more where the driver has no
//! zero-copy.

use strait_sys::interface::Interface;
use strait_sys::xdp::{self, Binding, Geometry, Mode, Socket, Umem};

use super::FRAME_BYTES_MAX;
use crate::error::Error;

/// Slots of the TX ring.
pub(super) const SLOTS: u32 = 2048;
/// Chunks: as many as slots, so that a full ring is the only limit.
const CHUNKS: u32 = SLOTS;
/// Ethernet header and two VLAN tags beyond the MTU.
const LINK_OVERHEAD: u32 = 14 + 8;

/// A transmit ring of queue 0.
pub(super) struct Transmitter {
    // Fields drop in this order: the rings unmap before their socket closes.
    rings: xdp::Transmitter,
    socket: Socket,
    /// Where a frame is written that may take several chunks.
    jumbo: Option<Box<[u8]>>,
}

impl Transmitter {
    pub(super) fn open(interface: &Interface) -> Result<Self, Error> {
        let longest = interface.mtu.saturating_add(LINK_OVERHEAD);
        let chunk_bytes = if longest <= 2048 { 2048 } else { 4096 };
        let multi_buffer = longest > chunk_bytes;
        let geometry = Geometry { chunk_bytes, chunks: CHUNKS, headroom_bytes: 0 };
        let mut umem = Umem::new(geometry, false, interface.numa_node())?;
        let mut socket = Socket::open(&interface.name)?;
        socket.register(&umem)?;
        let rings = socket.transmitter(SLOTS, umem.share(CHUNKS)?)?;
        socket.bind(&Binding { ifindex: interface.index, queue: 0, mode: Mode::Either, multi_buffer })?;
        let jumbo = multi_buffer.then(|| vec![0; FRAME_BYTES_MAX].into_boxed_slice());
        Ok(Self { rings, socket, jumbo })
    }

    /// Whether a buffer is free; collects completions first.
    pub(super) fn has_room(&mut self) -> bool {
        let chunks = match &self.jumbo {
            None => 1,
            Some(buffer) => self.chunks(buffer.len()) as u32,
        };
        self.rings.room(chunks) >= chunks
    }

    /// The next free buffer.
    pub(super) fn buffer(&mut self) -> Option<&mut [u8]> {
        if !self.has_room() {
            return None;
        }
        match &mut self.jumbo {
            None => self.rings.buffer(),
            Some(buffer) => Some(buffer),
        }
    }

    /// Queues the frame in the buffer last returned.
    pub(super) fn push(&mut self, len: usize) {
        match &self.jumbo {
            None => self.rings.push(len),
            Some(buffer) => {
                let queued = self.rings.push_frame(&buffer[..len.min(buffer.len())]);
                debug_assert!(queued, "there was room when the buffer was lent");
            }
        }
    }

    /// Submits what is queued and wakes the kernel where it asks for it, as often as it takes frames.
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

    /// Chunks that a frame of `len` bytes takes.
    pub(super) fn chunks(&self, len: usize) -> usize {
        len.div_ceil(self.rings.chunk_bytes() as usize).max(1)
    }

    /// Chunks submitted and not completed.
    pub(super) fn pending(&mut self) -> usize {
        self.rings.collect();
        self.rings.pending() as usize
    }
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
    fn a_link_that_is_down_is_an_error_and_no_stall() {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let mut injector = wire.left().run(|| Injector::open("left", InjectPath::Xdp)).unwrap();
        wire.left().set_up(false);
        injector.buffer().unwrap()[..60].copy_from_slice(&frame(0, 60));
        injector.push(60);
        let error = injector.flush().unwrap_err();
        assert!(error.to_string().contains("ip link set left up"), "{error}");
    }
}
