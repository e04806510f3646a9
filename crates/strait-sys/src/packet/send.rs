//! `sendmmsg` on a packet socket: many frames a system call, each copied once by the kernel.
//!
//! The injector fills a [`Batch`] of preallocated buffers and sends it. Nothing is queued beyond the batch.

use super::Socket;
use crate::error::{Error, Result};

/// Frames start on cache lines.
const FRAME_ALIGNMENT: usize = 64;

/// Preallocated frames for one `sendmmsg`, side by side: short ones share pages and stay in the cache.
pub struct Batch {
    bytes: Vec<u8>,
    /// Bytes that frames occupy; the next one starts here.
    used: usize,
    frame_bytes: usize,
    vectors: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    filled: usize,
}

// SAFETY: the raw pointers lead into vectors of this value, whose heap memory moves with it and is never resized.
unsafe impl Send for Batch {}

impl Batch {
    /// Room for `count` frames of up to `frame_bytes` each.
    pub fn new(count: usize, frame_bytes: usize) -> Self {
        // SAFETY: mmsghdr is plain data, for which zeroes are valid.
        let message = unsafe { std::mem::zeroed() };
        let vector = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut batch = Self {
            bytes: vec![0; count * frame_bytes.next_multiple_of(FRAME_ALIGNMENT)],
            used: 0,
            frame_bytes,
            vectors: vec![vector; count],
            messages: vec![message; count],
            filled: 0,
        };
        for i in 0..count {
            batch.messages[i].msg_hdr.msg_iov = &raw mut batch.vectors[i];
            batch.messages[i].msg_hdr.msg_iovlen = 1;
        }
        batch
    }

    /// The next free buffer; the caller writes a frame into it and then calls [`Batch::push`]. None when full.
    pub fn buffer(&mut self) -> Option<&mut [u8]> {
        if self.filled == self.vectors.len() {
            return None;
        }
        self.bytes.get_mut(self.used..self.used + self.frame_bytes)
    }

    /// Counts the buffer in, with `len` bytes of frame (cut at the buffer's size).
    pub fn push(&mut self, len: usize) {
        if let Some(vector) = self.vectors.get_mut(self.filled) {
            vector.iov_base = self.bytes[self.used..].as_mut_ptr().cast();
            vector.iov_len = len.min(self.frame_bytes);
            self.used += vector.iov_len.next_multiple_of(FRAME_ALIGNMENT);
            self.filled += 1;
        }
    }

    /// Frames in the batch.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Forgets the frames.
    pub fn clear(&mut self) {
        self.filled = 0;
        self.used = 0;
    }

    /// `sendmmsg` of the frames from `first` on. Returns how many the kernel took: fewer than there are, even none,
    /// when the interface's queue is full (ENOBUFS, EAGAIN); the caller decides whether to wait or to drop.
    ///
    /// # Errors
    /// ENETDOWN, ENXIO, EMSGSIZE (a frame larger than the MTU), ...
    pub fn send(&mut self, socket: &Socket, first: usize) -> Result<usize> {
        let messages = &mut self.messages[first.min(self.filled)..self.filled];
        let count = messages.len() as libc::c_uint;
        // SAFETY: each message points at one live vector of an initialised frame.
        let sent = unsafe { libc::sendmmsg(socket.raw(), messages.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
        if sent >= 0 {
            return Ok(sent as usize);
        }
        let error = Error::last_os("send on", socket.interface());
        match error.errno() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Ok(0),
            _ => Err(error),
        }
    }

    /// Bytes of frame `i`.
    pub fn frame_len(&self, i: usize) -> usize {
        self.vectors[i].iov_len
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("filled", &self.filled).finish_non_exhaustive()
    }
}
