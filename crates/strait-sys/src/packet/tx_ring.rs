//! `PACKET_TX_RING` (TPACKET_V2): frames written into memory that the kernel sends from.
//!
//! A slot is free (`TP_STATUS_AVAILABLE`), requested (`SEND_REQUEST`) or with the driver
//! (`SENDING`). The injector writes free slots and calls [`TxRing::send`]; the kernel frees a slot
//! when the driver has finished with it.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Socket;
use crate::error::{Error, Result};
use crate::mmap::Mapping;

/// Offset of the frame in a slot without `PACKET_TX_HAS_OFF`: after the header, at the place of a
/// received frame's address (`TPACKET2_HDRLEN - sizeof(struct sockaddr_ll)`, af_packet.c
/// `tpacket_parse_header`).
const FRAME_OFFSET: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(16);
const BLOCK_BYTES: usize = 1 << 16;

/// Mapped transmit ring.
#[derive(Debug)]
pub struct TxRing {
    memory: Mapping,
    slot_bytes: usize,
    slots: usize,
    next: usize,
}

impl TxRing {
    /// Makes a ring of at least `slots` slots for frames of up to `frame_bytes`. Bind the socket
    /// afterwards.
    pub fn new(socket: &Socket, slots: usize, frame_bytes: usize) -> Result<Self> {
        let slot_bytes = (FRAME_OFFSET + frame_bytes).next_power_of_two();
        let block_bytes = slot_bytes.max(BLOCK_BYTES);
        let blocks = (slots * slot_bytes).div_ceil(block_bytes).max(1);
        let slots = blocks * (block_bytes / slot_bytes);
        let request = libc::tpacket_req {
            tp_block_size: block_bytes as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: slot_bytes as u32,
            tp_frame_nr: slots as u32,
        };
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        socket.set_packet(libc::PACKET_VERSION, &version, "choose TPACKET_V2 on")?;
        // With PACKET_LOSS the kernel skips a frame that it cannot send; otherwise that frame would
        // block the ring. It does not report the loss: the slot just becomes free (af_packet.c
        // `tpacket_snd`). A caller that must detect it checks frames before it pushes them.
        socket.set_packet(libc::PACKET_LOSS, &1_i32, "skip malformed frames on")?;
        socket.set_packet(libc::PACKET_TX_RING, &request, "make a transmit ring on")?;
        let memory = Mapping::shared(socket.as_fd(), slots * slot_bytes, 0)?;
        Ok(Self { memory, slot_bytes, slots, next: 0 })
    }

    /// Returns the next slot's buffer if it is free; write a frame and call [`TxRing::push`].
    pub fn buffer(&mut self) -> Option<&mut [u8]> {
        if self.status(self.next).load(Ordering::Acquire) != libc::TP_STATUS_AVAILABLE {
            return None;
        }
        let len = self.slot_bytes - FRAME_OFFSET;
        // SAFETY: this side owns a free slot until its status changes, and the range lies in it.
        Some(unsafe { std::slice::from_raw_parts_mut(self.slot(self.next).add(FRAME_OFFSET), len) })
    }

    /// Requests the transmission of the slot last returned by [`TxRing::buffer`], with `len` bytes
    /// of frame.
    pub fn push(&mut self, len: usize) {
        let header = self.slot(self.next).cast::<libc::tpacket2_hdr>();
        // SAFETY: this side owns the slot, which begins with the header.
        unsafe { (*header).tp_len = len.min(self.slot_bytes - FRAME_OFFSET) as u32 };
        // Release: the frame is written before the kernel may read it.
        self.status(self.next).store(libc::TP_STATUS_SEND_REQUEST, Ordering::Release);
        self.next = (self.next + 1) % self.slots;
    }

    /// Makes the kernel send the requested slots (`send(fd, NULL, 0, MSG_DONTWAIT)`). A full device
    /// queue is not an error: the slots stay requested.
    pub fn send(&self, socket: &Socket) -> Result<()> {
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the transmit ring takes a null buffer of length 0.
        let sent = unsafe { libc::send(socket.raw(), std::ptr::null(), 0, flags) };
        if sent >= 0 {
            return Ok(());
        }
        let error = Error::last_os("send on", socket.interface());
        match error.errno() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Ok(()),
            _ => Err(error),
        }
    }

    /// Returns the number of slots that are not free: requested or with the driver.
    pub fn pending(&self) -> usize {
        let busy = |&i: &usize| self.status(i).load(Ordering::Acquire) != libc::TP_STATUS_AVAILABLE;
        (0..self.slots).filter(busy).count()
    }

    fn slot(&self, index: usize) -> *mut u8 {
        debug_assert!(index < self.slots);
        // SAFETY: index is below the number of slots, so the offset lies in the mapping.
        unsafe { self.memory.as_ptr().add(index * self.slot_bytes) }
    }

    fn status(&self, index: usize) -> &AtomicU32 {
        // SAFETY: tp_status is the first field of the slot, aligned; both sides access it
        // atomically.
        unsafe { AtomicU32::from_ptr(self.slot(index).cast()) }
    }
}
