//! Memory for sends: written by one owner, then shared and read-only for as long as anybody reads it, the kernel too.
//!
//! A [`BufMut`] is unique and can be written. [`BufMut::freeze`] makes it a [`Frozen`], of which there may be many views;
//! [`Frozen::try_mut`] gives the `BufMut` back to the last of them alone. A send keeps a view until the kernel has said
//! that it no longer reads the pages, so the view *is* the lock: safe code cannot write, free or reuse them before.
//!
//! The memory comes from a [`Pool`] or from a mapping of its own, never from the heap: what was unmapped while the kernel
//! still read it keeps its pages until then, where a heap would hand them out again.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::{Arc, Mutex, atomic::AtomicBool};

#[cfg(loom)]
use loom::sync::{Arc, Mutex, atomic::AtomicBool};

use crate::error::{Error, Kind, Result};
use crate::mmap::Mapping;

/// The unit of a chunk's size: a page, so that no two chunks share one.
const PAGE_BYTES: usize = 4096;

/// Chunks of one size in one mapping, handed out and taken back. A handle: clones share the chunks.
#[derive(Clone, Debug)]
pub struct Pool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    mapping: Mapping,
    chunk_bytes: usize,
    free: Mutex<Vec<u32>>,
}

impl Pool {
    /// Maps `chunks` chunks of `chunk_bytes`, rounded up to whole pages. The pages are small ones: of a huge page the
    /// socket that a buffer is sent on is charged the whole.
    ///
    /// # Errors
    /// Usage where the size is 0 or beyond what addresses can say; ENOMEM.
    pub fn new(chunk_bytes: usize, chunks: u32) -> Result<Self> {
        let chunk_bytes = chunk_bytes.next_multiple_of(PAGE_BYTES);
        let len = chunk_bytes.checked_mul(chunks as usize).filter(|len| *len > 0);
        let len = len.ok_or_else(|| {
            Error::said(Kind::Usage, "make a pool of buffers", "", "its size is 0 or too large")
        })?;
        let mapping = Mapping::private(len)?;
        let free = Mutex::new((0..chunks).rev().collect());
        Ok(Self { shared: Arc::new(Shared { mapping, chunk_bytes, free }) })
    }

    /// A free chunk, or `None` while all are out.
    pub fn take(&self) -> Option<BufMut> {
        let index = self.shared.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        let chunk = Chunk { pool: self.shared.clone(), index, read_on: AtomicBool::new(false) };
        Some(BufMut::whole(Arc::new(chunk)))
    }

    /// Bytes in a chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.shared.chunk_bytes
    }

    /// The whole mapping: address and length, to register with a ring.
    pub(crate) fn extent(&self) -> (*mut u8, usize) {
        (self.shared.mapping.as_ptr(), self.shared.mapping.len())
    }
}

/// One chunk on its way; it goes back to its pool when the last of its owners is gone.
#[derive(Debug)]
struct Chunk {
    pool: Arc<Shared>,
    index: u32,
    /// The kernel may read the pages for longer than anybody here can tell: they are not to be used again.
    read_on: AtomicBool,
}

impl Chunk {
    /// The address of its byte at `offset`.
    fn at(&self, offset: usize) -> *mut u8 {
        self.pool.mapping.as_ptr().wrapping_add(self.index as usize * self.pool.chunk_bytes + offset)
    }

    /// To be asked by the last owner, when no other can say so any more.
    fn is_read_on(&self) -> bool {
        self.read_on.load(Ordering::Relaxed)
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if !self.is_read_on() {
            self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
        }
    }
}

/// A buffer with one owner, to be written: a chunk, or the part of one that nobody else has.
pub struct BufMut {
    chunk: Arc<Chunk>,
    start: usize,
    len: usize,
}

impl BufMut {
    /// A buffer of `len` bytes at least, in a mapping of its own: zeroed.
    ///
    /// # Errors
    /// As for [`Pool::new`].
    pub fn with_len(len: usize) -> Result<Self> {
        let buffer = Pool::new(len, 1)?.take();
        Ok(buffer.expect("a new pool of one chunk has it free"))
    }

    fn whole(chunk: Arc<Chunk>) -> Self {
        let len = chunk.pool.chunk_bytes;
        Self { chunk, start: 0, len }
    }

    /// Takes the first `len` bytes off: both parts can be written, and the chunk goes back when both are gone.
    ///
    /// # Panics
    /// If the buffer is shorter.
    #[must_use]
    pub fn split_to(&mut self, len: usize) -> Self {
        assert!(len <= self.len, "a part lies within its buffer");
        let part = Self { chunk: self.chunk.clone(), start: self.start, len };
        (self.start, self.len) = (self.start + len, self.len - len);
        part
    }

    /// Ends the writing: the bytes in `range` may be sent and read from now on, by any number of owners.
    ///
    /// # Panics
    /// If the range goes beyond the buffer, as slicing does.
    pub fn freeze(self, range: Range<usize>) -> Frozen {
        assert!(range.start <= range.end && range.end <= self.len(), "a view lies within its buffer");
        Frozen { chunk: self.chunk, start: self.start + range.start, len: range.end - range.start }
    }
}

impl Deref for BufMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the part is mapped, initialised (zeroed by mmap) and this value's alone; the kernel reads it at most.
        unsafe { std::slice::from_raw_parts(self.chunk.at(self.start), self.len) }
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has the part: a chunk begins with one `BufMut`, which split_to divides and freeze
        // consumes, and becomes one again only when nobody has any of it.
        unsafe { std::slice::from_raw_parts_mut(self.chunk.at(self.start), self.len) }
    }
}

impl fmt::Debug for BufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufMut").field("len", &self.len).finish_non_exhaustive()
    }
}

/// A view of a buffer that nobody writes any more. Clones are cheap and share the bytes.
#[derive(Clone)]
pub struct Frozen {
    chunk: Arc<Chunk>,
    start: usize,
    len: usize,
}

impl Frozen {
    /// Copies `bytes` into a buffer of its own.
    ///
    /// # Errors
    /// As for [`Pool::new`]; there is no buffer of no bytes.
    pub fn copied(bytes: &[u8]) -> Result<Self> {
        let mut buffer = BufMut::with_len(bytes.len())?;
        buffer[..bytes.len()].copy_from_slice(bytes);
        Ok(buffer.freeze(0..bytes.len()))
    }

    /// A view of a part, which keeps the whole buffer alive.
    ///
    /// # Panics
    /// If the range goes beyond the view, as slicing does.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "a view lies within its buffer");
        Self { chunk: self.chunk.clone(), start: self.start + range.start, len: range.end - range.start }
    }

    /// The whole chunk, to be written anew, if this is the last that is left of it and the kernel reads it no more.
    ///
    /// # Errors
    /// Gives the view back where others have one too: an unfinished send is one of them.
    pub fn try_mut(mut self) -> std::result::Result<BufMut, Self> {
        // In this order: another owner says that the kernel reads on before it lets its view go, on whatever thread.
        let is_free = Arc::get_mut(&mut self.chunk).is_some_and(|chunk| !chunk.is_read_on());
        if is_free { Ok(BufMut::whole(self.chunk)) } else { Err(self) }
    }

    /// Says that the kernel may read these pages for longer than anybody can tell: they are never written again, and
    /// their memory is freed with the pool's.
    pub(crate) fn read_on(&self) {
        // Relaxed: who looks is alone, and the count of owners has put this before it.
        self.chunk.read_on.store(true, Ordering::Relaxed);
    }

    /// Whether the bytes are in `pool`.
    pub(crate) fn is_of(&self, pool: &Pool) -> bool {
        Arc::ptr_eq(&self.chunk.pool, &pool.shared)
    }
}

impl Deref for Frozen {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the view lies within its chunk, which is mapped as long as `chunk` lives; nobody writes it meanwhile.
        unsafe { std::slice::from_raw_parts(self.chunk.at(self.start), self.len) }
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod interleavings;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_view_becomes_writable() {
        let view = Frozen::copied(b"strait").unwrap();
        let other = view.slice(1..3);
        assert_eq!(&*other, b"tr");
        let view = view.try_mut().unwrap_err();
        drop(other);
        let mut buffer = view.try_mut().unwrap();
        buffer[0] = b'S';
        assert_eq!(&*buffer.freeze(0..6), b"Strait");
    }

    #[test]
    fn a_pool_takes_its_chunks_back_from_any_thread() {
        let pool = Pool::new(100, 2).unwrap();
        assert_eq!(pool.chunk_bytes(), PAGE_BYTES);
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none());
        let view = first.freeze(0..1);
        std::thread::spawn(move || drop(view)).join().unwrap();
        assert!(pool.take().is_some());
        drop(second);
    }

    #[test]
    fn pages_that_the_kernel_may_read_on_are_never_given_out_again() {
        let pool = Pool::new(1, 1).unwrap();
        let view = pool.take().unwrap().freeze(0..1);
        view.read_on();
        assert!(view.clone().try_mut().is_err());
        drop(view);
        assert!(pool.take().is_none());
    }

    #[test]
    fn parts_of_a_chunk_are_written_apart_and_come_back_together() {
        let pool = Pool::new(1, 1).unwrap();
        let mut rest = pool.take().unwrap();
        let mut part = rest.split_to(3);
        part.copy_from_slice(b"one");
        rest[..3].copy_from_slice(b"two");
        let (one, two) = (part.freeze(0..3), rest.freeze(0..3));
        assert_eq!((&*one, &*two), (&b"one"[..], &b"two"[..]));
        let one = one.try_mut().unwrap_err();
        drop(two);
        assert_eq!(one.try_mut().unwrap().len(), PAGE_BYTES);
    }

    #[test]
    fn a_pool_of_nothing_is_refused() {
        assert_eq!(Pool::new(0, 3).unwrap_err().kind(), Kind::Usage);
        assert_eq!(Pool::new(usize::MAX - PAGE_BYTES, 3).unwrap_err().kind(), Kind::Usage);
    }
}
