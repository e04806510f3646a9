//! Sending: chunks go out on the TX ring with frames in them and come back on the completion ring, empty.
//!
//! The injector writes into [`Transmitter::buffer`], calls [`Transmitter::push`], and after some frames
//! [`Transmitter::submit`] and, where [`Transmitter::needs_wakeup`] says so, `Socket::wake_tx`. A chunk that was
//! pushed is the kernel's until its completion; nothing here waits for one.

use super::memory::Mapped;
use super::ring::{Consumer, Producer};
use super::umem::{Chunk, Share};

/// The TX and completion rings of a socket, and the chunks that travel on them.
#[derive(Debug)]
pub struct Transmitter {
    tx: Producer<Mapped<libc::xdp_desc>>,
    completion: Consumer<Mapped<u64>>,
    share: Share,
    /// The chunk behind [`Transmitter::buffer`].
    open: Option<Chunk>,
    with_kernel: u32,
    invalid: u64,
}

impl Transmitter {
    /// Owns `share`, every chunk of it free.
    pub(super) fn new(
        tx: Producer<Mapped<libc::xdp_desc>>,
        completion: Consumer<Mapped<u64>>,
        share: Share,
    ) -> Self {
        Self { tx, completion, share, open: None, with_kernel: 0, invalid: 0 }
    }

    /// A free buffer, one chunk long, or nothing where the ring is full or every chunk is with the kernel. Write a
    /// frame from its start and call [`Transmitter::push`]; called again before that it is the same buffer.
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

    /// Queues the first `len` bytes of the buffer last returned by [`Transmitter::buffer`] as one frame.
    #[inline]
    pub fn push(&mut self, len: usize) {
        if let Some(chunk) = self.open.take() {
            self.queue(chunk, len, false);
        }
    }

    /// Copies `frame` into as many chunks as it takes and queues it; false, with nothing done, where there is no
    /// room. More than one chunk needs a socket bound with `multi_buffer`.
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

    /// How many chunks can be queued now; completions are collected where there seem to be fewer than `wanted`.
    pub fn room(&mut self, wanted: u32) -> u32 {
        self.has_chunks(wanted as usize);
        let free = self.share.free_chunks() as u32 + u32::from(self.open.is_some());
        self.tx.room(wanted).min(free)
    }

    /// Bytes of a chunk: the longest frame that needs no fragments.
    pub fn chunk_bytes(&self) -> u32 {
        self.share.chunk_bytes()
    }

    /// Shows the kernel what was queued.
    #[inline]
    pub fn submit(&mut self) {
        self.tx.submit();
    }

    /// Takes back the chunks of frames that are out; returns how many.
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

    /// Chunks that are queued or with the kernel: 0 when everything is out and [`Transmitter::collect`]ed.
    pub fn pending(&self) -> u32 {
        self.with_kernel
    }

    /// Chunks that are queued and that the kernel has not taken yet.
    pub fn queued(&self) -> u32 {
        self.tx.pending()
    }

    /// Completions of the kernel that made no sense.
    pub fn invalid_completions(&self) -> u64 {
        self.invalid
    }

    /// Whether the kernel waits to be told of new frames: call `Socket::wake_tx`.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.tx.needs_wakeup()
    }

    #[inline]
    fn queue(&mut self, chunk: Chunk, len: usize, continues: bool) {
        let len = len.min(self.share.chunk_bytes() as usize) as u32;
        let options = if continues { libc::XDP_PKT_CONTD } else { 0 };
        let addr = self.share.lend(chunk);
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
