//! `recvmmsg` on a packet socket: the traditional path, with one copy from the kernel's queue into
//! preallocated buffers.
//!
//! Buffers, message headers and control buffers are allocated once. [`Receiver::fill`] receives the
//! waiting frames in one call, and [`Receiver::take`] borrows them. Each buffer leaves room before
//! the frame for a VLAN tag or a cooked header.

use super::cooked::HEADER_BYTES_MAX;
use super::{Cooked, Frame, Prefix, Socket, VlanTag, vlan_of};
use crate::error::{Error, Result};

/// Room for the two requested control messages, PACKET_AUXDATA and SCM_TIMESTAMPNS, with their
/// headers.
const CONTROL_BYTES: usize = 128;

unsafe extern "C-unwind" {
    /// The crate `libc` declares it with another ABI. It is a cancellation point: if
    /// pthread_cancel(3) cancels the thread in it, the stack unwinds through this call.
    fn recvmmsg(
        socket: libc::c_int,
        messages: *mut libc::mmsghdr,
        count: libc::c_uint,
        flags: libc::c_int,
        timeout: *mut libc::timespec,
    ) -> libc::c_int;
}

/// Room before a frame, for a VLAN tag or a cooked header.
const HEADROOM: usize = HEADER_BYTES_MAX.next_multiple_of(8);

/// Control buffer of one message, aligned as `cmsghdr` requires.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; CONTROL_BYTES]);

/// Buffers for a batch of frames.
pub struct Receiver {
    bytes: Vec<u8>,
    slot_bytes: usize,
    names: Vec<libc::sockaddr_ll>,
    controls: Vec<Control>,
    vectors: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    /// Number of received frames.
    filled: usize,
    /// Number of these that were borrowed.
    taken: usize,
    cooked: Option<Cooked>,
}

// SAFETY: the raw pointers in `vectors` and `messages` point into the other vectors of this value;
// their heap memory moves with it and is never resized.
unsafe impl Send for Receiver {}

impl Receiver {
    /// Makes buffers for `count` frames of up to `frame_bytes` each.
    pub fn new(count: usize, frame_bytes: usize) -> Self {
        let slot_bytes = (frame_bytes + HEADROOM).next_multiple_of(64);
        // SAFETY: these C structs are plain data, for which zeroes are valid.
        let (name, message) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let vector = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut receiver = Self {
            bytes: vec![0; count * slot_bytes],
            slot_bytes,
            names: vec![name; count],
            controls: vec![Control([0; CONTROL_BYTES]); count],
            vectors: vec![vector; count],
            messages: vec![message; count],
            filled: 0,
            taken: 0,
            cooked: None,
        };
        for i in 0..count {
            receiver.wire(i);
        }
        receiver
    }

    /// Connects message `i` to its buffers.
    fn wire(&mut self, i: usize) {
        let start = i * self.slot_bytes + HEADROOM;
        self.vectors[i] = libc::iovec {
            iov_base: self.bytes[start..].as_mut_ptr().cast(),
            iov_len: self.slot_bytes - HEADROOM,
        };
        let header = &mut self.messages[i].msg_hdr;
        header.msg_name = (&raw mut self.names[i]).cast();
        header.msg_iov = &raw mut self.vectors[i];
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut self.controls[i]).cast();
    }

    /// Selects the header written before packets of a `SOCK_DGRAM` socket; none by default.
    pub fn set_cooked(&mut self, cooked: Option<Cooked>) {
        self.cooked = cooked;
    }

    /// Receives the queued frames, at most as many as there are buffers, if all earlier frames have
    /// been borrowed. Returns the number of frames that [`Receiver::take`] can borrow; never waits.
    ///
    /// # Errors
    /// ENETDOWN once, if the interface went down or was removed.
    pub fn fill(&mut self, socket: &Socket) -> Result<usize> {
        if self.taken < self.filled {
            return Ok(self.filled - self.taken);
        }
        for message in &mut self.messages {
            message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            message.msg_hdr.msg_controllen = CONTROL_BYTES as _;
        }
        let (messages, count) = (self.messages.as_mut_ptr(), self.messages.len() as libc::c_uint);
        // SAFETY: every message points at live buffers of the stated lengths (see `wire`).
        let received =
            unsafe { recvmmsg(socket.raw(), messages, count, libc::MSG_DONTWAIT, std::ptr::null_mut()) };
        if received < 0 {
            let error = socket.explain(Error::last_os("capture on", socket.interface()));
            return if matches!(error.errno(), Some(libc::EAGAIN | libc::EINTR)) {
                Ok(0)
            } else {
                Err(error)
            };
        }
        (self.filled, self.taken) = (received as usize, 0);
        Ok(self.filled)
    }

    /// Borrows the next frames of the last [`Receiver::fill`], at most `limit`.
    pub fn take(&mut self, limit: usize) -> Batch<'_> {
        let start = self.taken;
        self.taken += limit.min(self.filled - start);
        Batch { at: start, end: self.taken, receiver: self }
    }

    /// Drops the frames of the last [`Receiver::fill`].
    pub fn discard(&mut self) {
        self.taken = self.filled;
    }

    /// Returns the frame of message `i`, with its tag restored.
    fn frame(&mut self, i: usize) -> Frame<'_> {
        let auxiliary = self.auxiliary(i);
        let received = self.messages[i].msg_len as usize;
        let mut start = i * self.slot_bytes + HEADROOM;
        let mut len = received.min(self.slot_bytes - HEADROOM);
        let prefix =
            Prefix { cooked: self.cooked, vlan: auxiliary.vlan, restored: false, address: &self.names[i] };
        // SAFETY: this value owns the slot, which has HEADROOM bytes before `start`, and len bytes
        // from there.
        let added = unsafe { prefix.insert(self.bytes.as_mut_ptr().add(start), HEADROOM, len) };
        let wire_len = auxiliary.wire_len.max(len as u32) + added.wire;
        start -= added.captured;
        len += added.captured;
        Frame {
            bytes: &self.bytes[start..start + len],
            wire_len,
            timestamp_ns: auxiliary.timestamp_ns,
            vlan: auxiliary.vlan,
            packet_type: self.names[i].sll_pkttype,
            ifindex: self.names[i].sll_ifindex as u32,
            rx_hash: 0,
        }
    }

    /// Reads the control messages of message `i`.
    fn auxiliary(&self, i: usize) -> Auxiliary {
        let mut found = Auxiliary::default();
        let header = &raw const self.messages[i].msg_hdr;
        // SAFETY: the kernel filled the control buffer of this header and its length; CMSG_* stay
        // within it.
        let mut message = unsafe { libc::CMSG_FIRSTHDR(header) };
        while !message.is_null() {
            // SAFETY: a non-null result points at a whole cmsghdr in the control buffer.
            unsafe {
                found.read(&*message, libc::CMSG_DATA(message));
                message = libc::CMSG_NXTHDR(header, message);
            }
        }
        found
    }
}

#[derive(Default)]
struct Auxiliary {
    wire_len: u32,
    timestamp_ns: u64,
    vlan: Option<VlanTag>,
}

impl Auxiliary {
    /// # Safety
    /// `data` points at the payload of `message`, as the kernel wrote it.
    unsafe fn read(&mut self, message: &libc::cmsghdr, data: *const u8) {
        let len: usize = message.cmsg_len as _;
        let payload = len.saturating_sub(size_of::<libc::cmsghdr>());
        match (message.cmsg_level, message.cmsg_type) {
            (libc::SOL_PACKET, libc::PACKET_AUXDATA) if payload >= size_of::<libc::tpacket_auxdata>() => {
                // SAFETY: the payload holds the struct; it may be unaligned.
                let aux = unsafe { data.cast::<libc::tpacket_auxdata>().read_unaligned() };
                self.wire_len = aux.tp_len;
                self.vlan = vlan_of(aux.tp_status, aux.tp_vlan_tci, aux.tp_vlan_tpid);
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) if payload >= size_of::<libc::timespec>() => {
                // SAFETY: the payload holds the struct; it may be unaligned.
                let time = unsafe { data.cast::<libc::timespec>().read_unaligned() };
                self.timestamp_ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
            }
            _ => {}
        }
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("buffers", &self.messages.len()).finish_non_exhaustive()
    }
}

/// Borrowed frames; dropping the batch frees the buffers for the next call.
#[derive(Debug)]
pub struct Batch<'receiver> {
    receiver: &'receiver mut Receiver,
    at: usize,
    end: usize,
}

impl Batch<'_> {
    /// Returns the number of frames.
    pub fn len(&self) -> usize {
        self.end - self.at
    }

    /// Returns true if no frame was waiting.
    pub fn is_empty(&self) -> bool {
        self.at == self.end
    }

    /// Iterates over the frames, oldest first. Each frame is borrowed once: later calls do not
    /// repeat it.
    pub fn frames(&mut self) -> Frames<'_> {
        let at = std::mem::replace(&mut self.at, self.end);
        Frames { receiver: self.receiver, at, end: self.end }
    }
}

/// Iterator over the frames of a [`Batch`].
#[derive(Debug)]
pub struct Frames<'batch> {
    receiver: &'batch mut Receiver,
    at: usize,
    end: usize,
}

impl<'batch> Iterator for Frames<'batch> {
    type Item = Frame<'batch>;

    fn next(&mut self) -> Option<Frame<'batch>> {
        if self.at == self.end {
            return None;
        }
        self.at += 1;
        let frame = self.receiver.frame(self.at - 1);
        // SAFETY: each buffer is visited once, and the batch that owns them is borrowed for 'batch.
        Some(unsafe { std::mem::transmute::<Frame<'_>, Frame<'batch>>(frame) })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.at, Some(self.end - self.at))
    }
}
