//! `sendmmsg` on a packet socket: many frames per system call, each copied once by the kernel.
//!
//! The injector fills a [`Batch`] of preallocated buffers and sends it, in several calls if
//! necessary. Nothing is queued beyond the batch.

use super::Socket;
use crate::error::{Error, Result};

/// Alignment of frames: a cache line.
const FRAME_ALIGNMENT: usize = 64;

/// Preallocated frames for one `sendmmsg`, packed together: short ones share pages and stay in the
/// cache.
pub struct Batch {
    bytes: Vec<u8>,
    /// Bytes that frames occupy; the next frame starts here.
    used: usize,
    frame_bytes: usize,
    vectors: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
    filled: usize,
    /// Number of finished frames: the kernel took or refused them.
    done: usize,
}

// SAFETY: the raw pointers point into vectors of this value; their heap memory moves with it and is
// never resized.
unsafe impl Send for Batch {}

impl Batch {
    /// Makes room for `count` frames of up to `frame_bytes` each.
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
            done: 0,
        };
        for i in 0..count {
            batch.messages[i].msg_hdr.msg_iov = &raw mut batch.vectors[i];
            batch.messages[i].msg_hdr.msg_iovlen = 1;
        }
        batch
    }

    /// Returns the next free buffer, or `None` if the batch is full. The caller writes a frame into
    /// it and then calls [`Batch::push`].
    pub fn buffer(&mut self) -> Option<&mut [u8]> {
        if self.is_full() {
            return None;
        }
        self.bytes.get_mut(self.used..self.used + self.frame_bytes)
    }

    /// Adds the buffer to the batch, with `len` bytes of frame (cut at the buffer's size).
    pub fn push(&mut self, len: usize) {
        if let Some(vector) = self.vectors.get_mut(self.filled) {
            vector.iov_base = self.bytes[self.used..].as_mut_ptr().cast();
            vector.iov_len = len.min(self.frame_bytes);
            self.used += vector.iov_len.next_multiple_of(FRAME_ALIGNMENT);
            self.filled += 1;
        }
    }

    /// Returns true if no buffer is left until all frames are sent.
    pub fn is_full(&self) -> bool {
        self.filled == self.vectors.len()
    }

    /// Returns the number of unsent frames.
    pub fn len(&self) -> usize {
        self.filled - self.done
    }

    /// Returns true if there are no unsent frames.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends the unsent frames (`sendmmsg`) and returns the number that the kernel took. That may
    /// be fewer, even none, if the interface's queue is full (ENOBUFS, EAGAIN); the caller decides
    /// whether to wait or to drop.
    ///
    /// # Errors
    /// ENETDOWN, ENXIO, EMSGSIZE (a frame larger than the MTU), ... All concern the first unsent
    /// frame, which stays in the batch until it is [skipped](Batch::skip).
    pub fn send(&mut self, socket: &Socket) -> Result<usize> {
        let messages = &mut self.messages[self.done..self.filled];
        let count = messages.len() as libc::c_uint;
        // SAFETY: each message points at one live vector of an initialised frame.
        let sent =
            unsafe { libc::sendmmsg(socket.raw(), messages.as_mut_ptr(), count, libc::MSG_DONTWAIT as _) };
        if sent >= 0 {
            self.advance(sent as usize);
            return Ok(sent as usize);
        }
        let error = Error::last_os("send on", socket.interface());
        match error.errno() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Ok(0),
            _ => Err(error),
        }
    }

    /// Skips the first unsent frame and returns its length in bytes.
    pub fn skip(&mut self) -> usize {
        let len = self.vectors[self.done..self.filled].first().map_or(0, |vector| vector.iov_len);
        self.advance(1);
        len
    }

    /// Marks the first `frames` unsent frames as finished. Resets the batch after the last.
    fn advance(&mut self, frames: usize) {
        self.done = (self.done + frames).min(self.filled);
        if self.done == self.filled {
            (self.filled, self.done, self.used) = (0, 0, 0);
        }
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("filled", &self.filled).finish_non_exhaustive()
    }
}
