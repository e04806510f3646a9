//! Transmission: the TX ring passes chunks with frames to the kernel, and the completion ring
//! returns the chunks.
//!
//! The injector writes into [`Transmitter::buffer`] and calls [`Transmitter::push`]. After some
//! frames it calls [`Transmitter::submit`] and, if [`Transmitter::needs_wakeup`],
//! `Socket::wake_tx`. The kernel owns a pushed chunk until its completion; nothing here waits for
//! one.

use super::memory::Mapped;
use super::ring::{Consumer, Producer};
use super::umem::{Chunk, Share};

/// TX and completion rings of a socket, and the chunks that circulate on them.
#[derive(Debug)]
pub struct Transmitter {
    tx: Producer<Mapped<libc::xdp_desc>>,
    completion: Consumer<Mapped<u64>>,
    share: Share,
    /// Chunk of [`Transmitter::buffer`].
    open: Option<Chunk>,
    with_kernel: u32,
    invalid: u64,
}

impl Transmitter {
    /// Takes ownership of `share`, with every chunk free.
    pub(super) fn new(
        tx: Producer<Mapped<libc::xdp_desc>>,
        completion: Consumer<Mapped<u64>>,
        share: Share,
    ) -> Self {
        Self { tx, completion, share, open: None, with_kernel: 0, invalid: 0 }
    }

    /// Returns a free buffer, one chunk long, or `None` if the ring is full or the kernel holds
    /// every chunk. Write a frame from its start and call [`Transmitter::push`]; further calls
    /// before that return the same buffer.
    #[inline]
    pub fn buffer(&mut self) -> Option<&mut [u8]> {
        if self.tx.room(1) == 0 {
            return None;
        }
        if self.open.is_none() {
            self.open = self.take_chunk();
        }
        let chunk = self.open.as_mut()?;
        Some(self.share.bytes_mut(chunk))
    }

    /// Queues the first `len` bytes of the buffer last returned by [`Transmitter::buffer`] as one
    /// frame.
    #[inline]
    pub fn push(&mut self, len: usize) {
        if let Some(chunk) = self.open.take() {
            self.queue(chunk, len, false);
        }
    }

    /// Copies `frame` into as many chunks as necessary and queues it. Returns false, and queues
    /// nothing, if there is no room. Several chunks need a socket bound with `multi_buffer`.
    pub fn push_frame(&mut self, frame: &[u8]) -> bool {
        let fragments = frame.len().div_ceil(self.share.chunk_bytes() as usize).max(1);
        if !self.has_chunks(fragments) || self.tx.room(fragments as u32) < fragments as u32 {
            return false;
        }
        let mut rest = frame;
        for left in (0..fragments).rev() {
            let Some(mut chunk) = self.take_chunk() else { return false };
            let buffer = self.share.bytes_mut(&mut chunk);
            let (part, after) = rest.split_at(rest.len().min(buffer.len()));
            buffer[..part.len()].copy_from_slice(part);
            self.queue(chunk, part.len(), left > 0);
            rest = after;
        }
        true
    }

    /// Returns the number of chunks that can be queued now. Collects completions if fewer than
    /// `wanted` are known to be free.
    pub fn room(&mut self, wanted: u32) -> u32 {
        self.has_chunks(wanted as usize);
        let free = self.share.free_chunks() as u32 + u32::from(self.open.is_some());
        self.tx.room(wanted).min(free)
    }

    /// Returns the bytes of a chunk: the longest frame without fragments.
    pub fn chunk_bytes(&self) -> u32 {
        self.share.chunk_bytes()
    }

    /// Publishes the queued frames to the kernel.
    #[inline]
    pub fn submit(&mut self) {
        self.tx.submit();
    }

    /// Takes back the chunks of sent frames; returns their number.
    pub fn collect(&mut self) -> u32 {
        let before = self.with_kernel;
        let ready = self.completion.ready(self.share.chunks());
        for _ in 0..ready {
            let Some(address) = self.completion.pop() else { break };
            match self.share.reclaim(address) {
                Some((chunk, _)) => {
                    self.share.put_free(chunk);
                    self.with_kernel -= 1;
                }
                None => self.invalid += 1,
            }
        }
        if ready > 0 {
            self.completion.release();
        }
        before - self.with_kernel
    }

    /// Returns the number of chunks that are queued or with the kernel: 0 when all are sent and
    /// [`Transmitter::collect`]ed.
    pub fn pending(&self) -> u32 {
        self.with_kernel
    }

    /// Returns the number of queued chunks that the kernel has not taken yet.
    pub fn queued(&self) -> u32 {
        self.tx.pending()
    }

    /// Returns the number of invalid completions.
    pub fn invalid_completions(&self) -> u64 {
        self.invalid
    }

    /// Returns true if the kernel must be notified of new frames: call `Socket::wake_tx`.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.tx.needs_wakeup()
    }

    #[inline]
    fn queue(&mut self, chunk: Chunk, len: usize, continues: bool) {
        let len = len.min(self.share.chunk_bytes() as usize) as u32;
        let options = if continues { libc::XDP_PKT_CONTD } else { 0 };
        let addr = self.share.hand_over(chunk);
        let pushed = self.tx.push(libc::xdp_desc { addr, len, options });
        debug_assert!(pushed, "room was seen before the chunk was taken");
        self.with_kernel += 1;
    }

    #[inline]
    fn take_chunk(&mut self) -> Option<Chunk> {
        self.share.take_free().or_else(|| {
            self.collect();
            self.share.take_free()
        })
    }

    fn has_chunks(&mut self, wanted: usize) -> bool {
        if self.share.free_chunks() < wanted {
            self.collect();
        }
        self.share.free_chunks() >= wanted
    }
}
