//! UMEM: page-aligned memory of equal chunks, registered with the kernel and split into shares.
//!
//! The capture engine makes one for each session. Each receiver and transmitter owns a [`Share`],
//! so no two rings ever hold the same chunk. A share has a table of the chunks that the kernel
//! holds: an address returned by the kernel becomes a [`Chunk`] only if the table lists it. So no
//! chunk has two owners, even if the kernel returns an address twice, and bytes are accessed only
//! through their chunk.

use std::marker::PhantomData;
use std::slice;
use std::sync::Arc;

use super::{PACKET_HEADROOM, SLOTS_MAX};
use crate::cache;
use crate::error::{Error, Kind, Result, check};
use crate::mmap::Mapping;

/// Sizes of a UMEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a chunk, 2048 or 4096. A frame of one descriptor must fit
    /// [`Geometry::frame_bytes`].
    pub chunk_bytes: u32,
    /// Number of chunks, at most [`SLOTS_MAX`].
    pub chunks: u32,
    /// Bytes kept free before each received frame, besides [`PACKET_HEADROOM`].
    pub headroom_bytes: u32,
}

impl Geometry {
    /// Bytes of a received frame that fit one chunk.
    pub fn frame_bytes(&self) -> u32 {
        self.chunk_bytes.saturating_sub(self.headroom_bytes + PACKET_HEADROOM)
    }

    /// Bytes of the whole UMEM.
    pub fn bytes(&self) -> usize {
        self.chunks as usize * self.chunk_bytes as usize
    }

    fn check(&self) -> Result<()> {
        let cause = if !matches!(self.chunk_bytes, 2048 | 4096) {
            "the chunk size must be 2048 or 4096 bytes"
        } else if self.chunks == 0 || self.chunks > SLOTS_MAX {
            "the number of chunks must be 1 to 1048576"
        } else if self.headroom_bytes > self.chunk_bytes / 2 {
            "the headroom must be at most half a chunk"
        } else {
            return Ok(());
        };
        Err(Error::new(Kind::Usage, "make a UMEM of", format!("{} chunks", self.chunks), cause))
    }
}

/// Memory for frames. [`Umem::share`] assigns its chunks to ring pairs.
#[derive(Debug)]
pub struct Umem {
    memory: Arc<Memory>,
    assigned: u32,
    fallbacks: Vec<Error>,
}

#[derive(Debug)]
pub(super) struct Memory {
    mapping: Mapping,
    geometry: Geometry,
    huge_pages: bool,
}

impl Umem {
    /// Maps anonymous memory: on huge pages if `huge_pages`, preferably on NUMA node `node` if
    /// given. If either is refused it uses plain pages on any node, and [`Umem::fallbacks`] holds
    /// the reason.
    ///
    /// # Errors
    /// [`Kind::Usage`] if the kernel does not allow the geometry; ENOMEM.
    pub fn new(geometry: Geometry, huge_pages: bool, node: Option<u32>) -> Result<Self> {
        geometry.check()?;
        let mut fallbacks = Vec::new();
        let huge = if huge_pages { or_fallback(map_huge(geometry.bytes()), &mut fallbacks) } else { None };
        let huge_pages = huge.is_some();
        let mapping = match huge {
            Some(mapping) => mapping,
            None => Mapping::anonymous(geometry.bytes(), false)?,
        };
        if let Some(node) = node {
            or_fallback(prefer_node(&mapping, node), &mut fallbacks);
        }
        let memory = Arc::new(Memory { mapping, geometry, huge_pages });
        Ok(Self { memory, assigned: 0, fallbacks })
    }

    /// Returns the sizes.
    pub fn geometry(&self) -> Geometry {
        self.memory.geometry
    }

    /// Returns true if the memory is on huge pages.
    pub fn has_huge_pages(&self) -> bool {
        self.memory.huge_pages
    }

    /// Returns an error for each request of [`Umem::new`] that was refused.
    pub fn fallbacks(&self) -> &[Error] {
        &self.fallbacks
    }

    /// Splits off `chunks` chunks for one ring pair.
    ///
    /// # Errors
    /// [`Kind::Usage`] if fewer chunks are left.
    pub fn share(&mut self, chunks: u32) -> Result<Share> {
        let left = self.memory.geometry.chunks - self.assigned;
        if chunks == 0 || chunks > left {
            let cause = format!("the UMEM has {left} left");
            return Err(Error::new(Kind::Usage, "share", format!("{chunks} chunks"), cause));
        }
        let first = self.assigned;
        self.assigned += chunks;
        Ok(Share::new(Arc::clone(&self.memory), first, chunks))
    }

    /// Returns the memory. A socket compares its address to refuse shares of another UMEM.
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Returns the argument of `setsockopt(XDP_UMEM_REG)`.
    pub(super) fn registration(&self) -> libc::xdp_umem_reg {
        let Memory { mapping, geometry, .. } = &*self.memory;
        libc::xdp_umem_reg {
            addr: mapping.as_ptr() as u64,
            len: geometry.bytes() as u64,
            chunk_size: geometry.chunk_bytes,
            headroom: geometry.headroom_bytes,
            flags: 0,
            tx_metadata_len: 0,
        }
    }
}

/// Size of the start of an XDP program's metadata by which the reader recognises it: a magic number
/// and a version.
const MARK_BYTES: usize = 8;

/// Chunk that this process holds: the owner of the value may access the bytes. There is exactly one
/// value for each chunk that the kernel does not hold; it cannot be copied.
#[derive(Debug)]
pub(super) struct Chunk(u32);

/// Mark of a [`Chunk`] in [`Share::returned_in`].
const HELD: u64 = u64::MAX;

/// Chunks of a UMEM that belong to one ring pair.
#[derive(Debug)]
pub struct Share {
    memory: Arc<Memory>,
    first: u32,
    /// log2 of a chunk's bytes.
    chunk_shift: u32,
    /// For each chunk of the share: the last batch in which the kernel returned it, or [`HELD`].
    /// The kernel holds the chunks with a number below that of the current batch, so that the end
    /// of a batch passes all its chunks to the kernel.
    returned_in: Box<[u64]>,
    /// Number of the current batch, from 1.
    batch: u64,
    free: Vec<Chunk>,
}

impl Share {
    fn new(memory: Arc<Memory>, first: u32, chunks: u32) -> Self {
        let returned_in = vec![HELD; chunks as usize].into_boxed_slice();
        // Reversed, because chunks are taken from the end: the lowest address goes first.
        let free = (0..chunks).rev().map(Chunk).collect();
        let chunk_shift = memory.geometry.chunk_bytes.trailing_zeros();
        Self { memory, first, chunk_shift, returned_in, batch: 1, free }
    }

    /// Returns the number of chunks, held by the kernel or not.
    pub fn chunks(&self) -> u32 {
        self.returned_in.len() as u32
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> u32 {
        1 << self.chunk_shift
    }

    /// Returns the memory of the chunks.
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Takes a chunk that is in no ring.
    pub(super) fn take_free(&mut self) -> Option<Chunk> {
        self.free.pop()
    }

    /// Returns the number of chunks that are in no ring.
    pub(super) fn free_chunks(&self) -> usize {
        self.free.len()
    }

    /// Puts a chunk on the free list.
    pub(super) fn put_free(&mut self, chunk: Chunk) {
        self.free.push(chunk);
    }

    /// Marks `chunk` as held by the kernel, and returns its address in the UMEM.
    #[inline]
    #[allow(clippy::needless_pass_by_value, reason = "the kernel owns the chunk from here on")]
    pub(super) fn hand_over(&mut self, chunk: Chunk) -> u64 {
        debug_assert_eq!(self.returned_in[chunk.0 as usize], HELD);
        self.returned_in[chunk.0 as usize] = 0;
        self.address(&chunk, 0)
    }

    /// Returns the address in the UMEM of the byte at `offset` in a chunk.
    #[inline]
    pub(super) fn address(&self, chunk: &Chunk, offset: u32) -> u64 {
        (u64::from(self.first + chunk.0) << self.chunk_shift) + u64::from(offset)
    }

    /// Takes back the chunk that contains `address`, with the offset in it, if the kernel held the
    /// chunk.
    #[inline]
    pub(super) fn reclaim(&mut self, address: u64) -> Option<(Chunk, u32)> {
        let index = (address >> self.chunk_shift).checked_sub(u64::from(self.first))?;
        let returned_in = self.returned_in.get_mut(usize::try_from(index).ok()?)?;
        if *returned_in >= self.batch {
            return None;
        }
        *returned_in = HELD;
        let offset = address as u32 & (self.chunk_bytes() - 1);
        Some((Chunk(index as u32), offset))
    }

    /// Returns the bytes of a chunk for writing.
    #[inline]
    pub(super) fn bytes_mut<'a>(&'a self, chunk: &'a mut Chunk) -> &'a mut [u8] {
        assert!(chunk.0 < self.chunks());
        // SAFETY: the share's chunks lie in the mapping. A borrowed chunk is not with the kernel,
        // and it is the only value of its index. The mapping was zeroed, so every byte is
        // initialised.
        unsafe {
            let start = self.memory.mapping.as_ptr().add(self.address(chunk, 0) as usize);
            slice::from_raw_parts_mut(start, self.chunk_bytes() as usize)
        }
    }

    /// Accepts frames in order, up to the first with a chunk that the kernel did not hold or with
    /// bytes outside its chunk, and at most as many as there are `slots`. Writes the addresses of
    /// their chunks to `slots`. Returns the number of accepted frames and the union of their
    /// options. Each accepted descriptor represents its chunk, as a [`Chunk`] does, until
    /// [`Share::end_batch`].
    ///
    /// Prefetches the frames, and with `metadata` the bytes before them, into the cache: the kernel
    /// has just written them on another core, and prefetching overlaps these misses.
    #[inline]
    pub(super) fn accept(
        &mut self,
        frames: &[libc::xdp_desc],
        slots: &mut [u64],
        metadata: bool,
    ) -> (usize, u32) {
        let Self { memory, first, chunk_shift, returned_in, batch, .. } = self;
        let (first, chunk_shift, batch) = (u64::from(*first), *chunk_shift, *batch);
        let (memory, chunk_bytes) = (memory.mapping.as_ptr(), 1_u64 << chunk_shift);
        let (mut accepted, mut all_options) = (0, 0);
        for (&libc::xdp_desc { addr, len, options }, slot) in frames.iter().zip(slots) {
            let chunk = addr & !(chunk_bytes - 1);
            let index = (addr >> chunk_shift).wrapping_sub(first) as usize;
            let Some(returned_in) = returned_in.get_mut(index) else { break };
            let fits = addr - chunk + u64::from(len) <= chunk_bytes;
            if !(*returned_in < batch && fits) {
                break;
            }
            all_options |= options;
            *returned_in = batch;
            *slot = chunk;
            let frame = memory.wrapping_add(addr as usize);
            if metadata {
                cache::prefetch(frame.wrapping_sub(MARK_BYTES));
            }
            cache::prefetch(frame);
            accepted += 1;
        }
        (accepted, all_options)
    }

    /// Passes the chunks of all accepted frames to the kernel.
    #[inline]
    pub(super) fn end_batch(&mut self) {
        self.batch += 1;
    }

    /// Puts the chunk of a frame that was not accepted on the free list. Does nothing if the kernel
    /// did not hold it.
    #[cold]
    pub(super) fn free_chunk_of(&mut self, frame: &libc::xdp_desc) {
        if let Some((chunk, _)) = self.reclaim(frame.addr) {
            self.put_free(chunk);
        }
    }

    /// Zeroes the first [`MARK_BYTES`] of the `bytes` bytes of metadata before each frame, if the
    /// chunk has that many before it. Without this, a later frame in the chunk would appear to have
    /// this frame's metadata, if the program writes none for it.
    ///
    /// # Safety
    /// `frames` were accepted and their chunks have not been returned since.
    #[inline]
    pub(super) unsafe fn clear_metadata(&mut self, frames: &[libc::xdp_desc], bytes: u32) {
        let (start, mask, bytes) = (self.memory.mapping.as_ptr(), self.chunk_bytes() - 1, bytes as usize);
        if bytes < MARK_BYTES {
            return;
        }
        for frame in frames {
            if (frame.addr as u32 & mask) as usize >= bytes {
                // SAFETY: an accepted frame lies in a chunk of this share that the kernel does not
                // hold, and the chunk has `bytes` before the frame. `self` is borrowed mutably, so
                // there is no other reference.
                unsafe {
                    start.add(frame.addr as usize - bytes).cast::<[u8; MARK_BYTES]>().write([0; MARK_BYTES]);
                }
            }
        }
    }

    /// Returns a view for reading accepted frames.
    #[inline]
    pub(super) fn view(&self) -> View<'_> {
        View { start: self.memory.mapping.as_ptr(), chunk_shift: self.chunk_shift, share: PhantomData }
    }

    /// Returns the chunk of an accepted frame for writing, and the offset of the frame in it.
    ///
    /// # Safety
    /// `frame` was accepted and its chunk has not been returned since.
    #[inline]
    pub(super) unsafe fn chunk_of(&mut self, frame: &libc::xdp_desc) -> (&mut [u8], usize) {
        let offset = frame.addr as usize & (self.chunk_bytes() as usize - 1);
        // SAFETY: an accepted frame's chunk belongs to this share and the kernel does not hold it.
        // `self` is borrowed mutably, so there is no other reference.
        let chunk = unsafe {
            let start = self.memory.mapping.as_ptr().add(frame.addr as usize - offset);
            slice::from_raw_parts_mut(start, self.chunk_bytes() as usize)
        };
        (chunk, offset)
    }
}

/// Read access to the bytes of accepted frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'share> {
    start: *const u8,
    chunk_shift: u32,
    share: PhantomData<&'share Share>,
}

impl<'share> View<'share> {
    /// Returns a frame's bytes.
    ///
    /// # Safety
    /// [`Share::accept`] accepted `frame`, and its chunk is not returned during `'share`.
    #[inline]
    pub(super) unsafe fn bytes(self, frame: &libc::xdp_desc) -> &'share [u8] {
        // SAFETY: an accepted frame lies in a chunk of the share that the kernel does not hold, so
        // there is no writer. The mapping was zeroed, so every byte is initialised.
        unsafe { slice::from_raw_parts(self.start.add(frame.addr as usize), frame.len as usize) }
    }

    /// Returns the bytes before a frame in its chunk.
    ///
    /// # Safety
    /// As for [`View::bytes`].
    #[inline]
    pub(super) unsafe fn bytes_before(self, frame: &libc::xdp_desc) -> &'share [u8] {
        let offset = frame.addr as usize & ((1 << self.chunk_shift) - 1);
        // SAFETY: as for `bytes`: the chunk begins `offset` bytes before the frame.
        unsafe { slice::from_raw_parts(self.start.add(frame.addr as usize - offset), offset) }
    }
}

/// Returns the value, or adds the error to `fallbacks`.
fn or_fallback<T>(result: Result<T>, fallbacks: &mut Vec<Error>) -> Option<T> {
    result.map_err(|error| fallbacks.push(error)).ok()
}

/// Maps at least `bytes` bytes on huge pages, rounded up to whole pages.
fn map_huge(bytes: usize) -> Result<Mapping> {
    Mapping::anonymous(bytes.next_multiple_of(huge_page_bytes()), true)
        .map_err(|error| error.remedy("reserve huge pages: sysctl vm.nr_hugepages=N"))
}

/// Returns the default size of a huge page (`Hugepagesize` in proc_meminfo(5)), or 2 MiB if the
/// kernel does not report it.
fn huge_page_bytes() -> usize {
    const DEFAULT_BYTES: usize = 2 << 20;
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = meminfo.lines().find_map(|line| line.strip_prefix("Hugepagesize:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")).and_then(|kib| kib.parse::<usize>().ok());
    kib.map_or(DEFAULT_BYTES, |kib| kib * 1024)
}

/// `mbind(MPOL_PREFERRED, MPOL_MF_MOVE)`: moves the pages of `mapping` to NUMA node `node`
/// (mbind(2)).
fn prefer_node(mapping: &Mapping, node: u32) -> Result<()> {
    const MPOL_PREFERRED: libc::c_ulong = 1;
    const MPOL_MF_MOVE: libc::c_ulong = 2;
    const NODES_MAX: u32 = 1024;
    if node >= NODES_MAX {
        return Err(Error::new(Kind::Usage, "mbind", format!("NUMA node {node}"), "no such node"));
    }
    let mut nodes = [0_u64; (NODES_MAX / 64) as usize];
    nodes[(node / 64) as usize] |= 1 << (node % 64);
    // The kernel reads one bit less than `maxnode`.
    let bits = libc::c_ulong::from(NODES_MAX + 1);
    let (start, len) = (mapping.as_ptr(), mapping.len());
    // SAFETY: the range is one whole mapping owned by this process, and its contents stay; nodes
    // outlives the call.
    let returned = unsafe {
        libc::syscall(libc::SYS_mbind, start, len, MPOL_PREFERRED, nodes.as_ptr(), bits, MPOL_MF_MOVE)
    };
    check(returned as libc::c_int, "mbind", format!("NUMA node {node}")).map(drop)
}
