//! Memory for sends: written by one owner, then shared read-only until the last reader, the kernel
//! included, has finished.
//!
//! A [`BufMut`] is unique and writable. [`BufMut::freeze`] makes it a [`Frozen`], which can have
//! many views. [`Frozen::try_mut`] returns a `BufMut` only for the last view. A send keeps a view
//! until the kernel no longer reads the pages, so the view *is* the lock: safe code cannot write,
//! free or reuse them before.
//!
//! The memory comes from a [`Pool`] or from a mapping of its own, never from the heap: unmapped
//! pages stay reserved while the kernel reads them, but freed heap memory would be reused at once.
//! [`Frozen::of_file`] maps a file.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::AsFd;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::{Arc, Mutex, atomic::AtomicBool};

#[cfg(loom)]
use loom::sync::{Arc, Mutex, atomic::AtomicBool};

use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, fstat};

use crate::error::{Error, Kind, Result};
use crate::mmap::Mapping;

/// Unit of a chunk's size: a page, so that no two chunks share one. The kernel sends whole pages.
const PAGE_BYTES: usize = 4096;

/// Pool of chunks of one size in one mapping. Clones share the chunks.
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
    /// Maps `chunks` chunks of `chunk_bytes`, rounded up to whole pages. It uses small pages: the
    /// kernel charges a socket for the whole huge page that a buffer lies in.
    ///
    /// # Errors
    /// [`Kind::Usage`] if the size is 0 or exceeds the address space; ENOMEM.
    pub fn new(chunk_bytes: usize, chunks: u32) -> Result<Self> {
        let chunk_bytes = chunk_bytes.next_multiple_of(PAGE_BYTES);
        let len = chunk_bytes.checked_mul(chunks as usize).filter(|len| *len > 0);
        let len = len.ok_or_else(|| {
            Error::new(Kind::Usage, "make a pool of buffers", "", "the size is 0 or too large")
        })?;
        let mapping = Mapping::private(len)?;
        let free = Mutex::new((0..chunks).rev().collect());
        Ok(Self { shared: Arc::new(Shared { mapping, chunk_bytes, free }) })
    }

    /// Takes a free chunk, or returns `None` if all are in use.
    pub fn take(&self) -> Option<BufMut> {
        let index = self.shared.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        let chunk = Chunk { pool: self.shared.clone(), index, retired: AtomicBool::new(false) };
        Some(BufMut::whole(Arc::new(chunk)))
    }

    /// Returns the bytes of a chunk.
    pub fn chunk_bytes(&self) -> usize {
        self.shared.chunk_bytes
    }

    /// Returns the address and length of the whole mapping, to register with a ring.
    pub(crate) fn extent(&self) -> (*mut u8, usize) {
        (self.shared.mapping.as_ptr(), self.shared.mapping.len())
    }
}

/// Chunk in use; it returns to its pool when its last owner is dropped.
#[derive(Debug)]
struct Chunk {
    pool: Arc<Shared>,
    index: u32,
    /// True if the pages must never be written or reused: they belong to a file, or the kernel
    /// reads them and no notification reports the end.
    retired: AtomicBool,
}

impl Chunk {
    /// Returns the address of the byte at `offset`.
    fn at(&self, offset: usize) -> *mut u8 {
        self.pool.mapping.as_ptr().wrapping_add(self.index as usize * self.pool.chunk_bytes + offset)
    }

    /// Returns true if the pages must never be reused. Only the last owner may call it: another
    /// owner could still set the flag.
    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if !self.is_retired() {
            self.pool.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
        }
    }
}

/// Writable buffer with one owner: a chunk, or an exclusive part of one.
pub struct BufMut {
    chunk: Arc<Chunk>,
    start: usize,
    len: usize,
}

impl BufMut {
    /// Maps a zeroed buffer of at least `len` bytes.
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

    /// Splits off the first `len` bytes. Both parts are writable, and the chunk returns to its pool
    /// when both are dropped.
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

    /// Makes the bytes in `range` read-only, to be sent and read by any number of owners.
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
        // SAFETY: the part is mapped, initialised (zeroed by mmap) and owned by this value alone;
        // the kernel at most reads it.
        unsafe { std::slice::from_raw_parts(self.chunk.at(self.start), self.len) }
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this is the only reference to the part: a chunk begins as one
        // `BufMut`, which split_to divides and freeze consumes. It becomes one again only after all
        // other views are dropped.
        unsafe { std::slice::from_raw_parts_mut(self.chunk.at(self.start), self.len) }
    }
}

impl fmt::Debug for BufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufMut").field("len", &self.len).finish_non_exhaustive()
    }
}

/// Read-only view of a buffer. Clones are cheap and share the bytes.
#[derive(Clone)]
pub struct Frozen {
    chunk: Arc<Chunk>,
    start: usize,
    len: usize,
}

impl Frozen {
    /// Copies `bytes` into a new buffer.
    ///
    /// # Errors
    /// As for [`Pool::new`]; an empty buffer is an error.
    pub fn copied(bytes: &[u8]) -> Result<Self> {
        let mut buffer = BufMut::with_len(bytes.len())?;
        buffer[..bytes.len()].copy_from_slice(bytes);
        Ok(buffer.freeze(0..bytes.len()))
    }

    /// Maps a file in memory (memfd_create(2) with `MFD_ALLOW_SEALING`): the view is on the file's
    /// own pages. Seals the file against writing and shrinking, permanently and for every process
    /// that has it open, so that the bytes never change and never go away.
    ///
    /// [`Frozen::try_mut`] refuses the view. A ring sends it as unregistered memory: the kernel
    /// registers writable memory only.
    ///
    /// # Errors
    /// [`Kind::Usage`] if the file is empty, not open for writing or cannot be sealed; EBUSY if it
    /// is mapped for writing; ENOSPC or ENOMEM.
    pub fn of_file(file: impl AsFd) -> Result<Self> {
        let failed =
            |operation| move |errno: rustix::io::Errno| Error::os(operation, "a file", errno.raw_os_error());
        let file = file.as_fd();
        fcntl_add_seals(file, SealFlags::WRITE | SealFlags::SHRINK).map_err(unsealed)?;
        let bytes = fstat(file).map_err(failed("read the size of"))?.st_size as u64;
        let len = usize::try_from(bytes).ok().filter(|len| *len > 0);
        let len = len.ok_or_else(|| Error::new(Kind::Usage, "map", "a file", "it is empty or too large"))?;
        // A read of a hole raises SIGBUS if there is no memory to fill it. The seals prevent new
        // holes.
        fallocate(file, FallocateFlags::empty(), 0, bytes).map_err(failed("allocate memory for"))?;
        let mapping = Mapping::read_only(file, len)?;
        let shared = Shared { mapping, chunk_bytes: len, free: Mutex::new(Vec::new()) };
        let chunk = Chunk { pool: Arc::new(shared), index: 0, retired: AtomicBool::new(true) };
        Ok(Self { chunk: Arc::new(chunk), start: 0, len })
    }

    /// Returns a view of a part, which keeps the whole buffer alive.
    ///
    /// # Panics
    /// If the range goes beyond the view, as slicing does.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "a view lies within its buffer");
        Self { chunk: self.chunk.clone(), start: self.start + range.start, len: range.end - range.start }
    }

    /// Returns the whole chunk for writing, if this is its last view and the kernel does not read
    /// it.
    ///
    /// # Errors
    /// Returns the view if others exist; an unfinished send holds one.
    pub fn try_mut(mut self) -> std::result::Result<BufMut, Self> {
        // Check the owners first: another owner sets the flag before it drops its view, on any
        // thread.
        let is_free = Arc::get_mut(&mut self.chunk).is_some_and(|chunk| !chunk.is_retired());
        if is_free { Ok(BufMut::whole(self.chunk)) } else { Err(self) }
    }

    /// Marks the pages as read by the kernel for an unknown time: they are never written or reused,
    /// and their memory is freed with the pool.
    pub(crate) fn retire(&self) {
        // Relaxed: the flag is loaded by the last owner, and the reference count orders this store
        // before that load.
        self.chunk.retired.store(true, Ordering::Relaxed);
    }

    /// Returns true if the bytes are in `pool`.
    pub(crate) fn is_in(&self, pool: &Pool) -> bool {
        Arc::ptr_eq(&self.chunk.pool, &pool.shared)
    }
}

impl Deref for Frozen {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the view lies within its chunk, which is mapped as long as `chunk` lives; a
        // frozen chunk has no writer. A mapped file is sealed against writing and shrinking, and
        // has memory for each of its bytes.
        unsafe { std::slice::from_raw_parts(self.chunk.at(self.start), self.len) }
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frozen").field("len", &self.len).finish_non_exhaustive()
    }
}

fn unsealed(errno: rustix::io::Errno) -> Error {
    let error = Error::os("seal", "a file", errno.raw_os_error());
    match errno {
        rustix::io::Errno::PERM | rustix::io::Errno::INVAL => error
            .with_kind(Kind::Usage)
            .remedy("make it with memfd_create and MFD_ALLOW_SEALING, and open it for writing"),
        _ => error,
    }
}

#[cfg(all(test, loom))]
mod interleavings;

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Write as _};

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    fn memory_file(flags: MemfdFlags, bytes: &[u8]) -> File {
        let mut file = File::from(memfd_create("test", flags | MemfdFlags::CLOEXEC).unwrap());
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn a_mapped_file_neither_changes_nor_shrinks_nor_becomes_writable() {
        let mut file = memory_file(MemfdFlags::ALLOW_SEALING, b"strait");
        let view = Frozen::of_file(&file).unwrap();
        assert_eq!(&*view, b"strait");
        assert_eq!(file.write(b"x").unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(file.set_len(1).unwrap_err().kind(), ErrorKind::PermissionDenied);
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(fallocate(&file, hole, 0, 4096), Err(rustix::io::Errno::PERM));
        file.set_len(1 << 20).unwrap();
        drop(file);
        let view = view.try_mut().unwrap_err();
        assert_eq!(&*view.slice(1..3), b"tr");
    }

    #[test]
    fn mapping_allocates_the_holes_of_a_file() {
        let file = memory_file(MemfdFlags::ALLOW_SEALING, &[]);
        file.set_len(1 << 20).unwrap();
        let view = Frozen::of_file(&file).unwrap();
        assert!(fstat(&file).unwrap().st_blocks >= (1 << 20) / 512);
        assert!(view.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_file_that_may_change_is_not_mapped() {
        let unsealable = memory_file(MemfdFlags::empty(), b"strait");
        assert_eq!(Frozen::of_file(&unsealable).unwrap_err().kind(), Kind::Usage);
        assert_eq!(Frozen::of_file(tempfile::tempfile().unwrap()).unwrap_err().kind(), Kind::Usage);
        let empty = memory_file(MemfdFlags::ALLOW_SEALING, &[]);
        assert_eq!(Frozen::of_file(&empty).unwrap_err().kind(), Kind::Usage);
        let written = memory_file(MemfdFlags::ALLOW_SEALING, b"strait");
        let mapping = Mapping::shared(written.as_fd(), PAGE_BYTES, 0).unwrap();
        assert_eq!(Frozen::of_file(&written).unwrap_err().errno(), Some(libc::EBUSY));
        drop(mapping);
        assert_eq!(&*Frozen::of_file(&written).unwrap(), b"strait");
    }

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
    fn retired_pages_are_never_reused() {
        let pool = Pool::new(1, 1).unwrap();
        let view = pool.take().unwrap().freeze(0..1);
        view.retire();
        assert!(view.clone().try_mut().is_err());
        drop(view);
        assert!(pool.take().is_none());
    }

    #[test]
    fn chunk_returns_after_both_parts_are_dropped() {
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
    fn empty_pool_is_refused() {
        assert_eq!(Pool::new(0, 3).unwrap_err().kind(), Kind::Usage);
        assert_eq!(Pool::new(usize::MAX - PAGE_BYTES, 3).unwrap_err().kind(), Kind::Usage);
    }
}
