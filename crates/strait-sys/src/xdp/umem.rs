//! The UMEM: page-aligned memory of equal chunks, registered with the kernel and split into shares.
//!
//! The capture engine makes one for a session; each receiver and transmitter owns a [`Share`], so no two rings ever
//! hold the same chunk. A share keeps a table of the chunks that the kernel holds: an address that comes back is
//! taken for a [`Chunk`] only if the table says that it was out. Chunks are never handed to two places, and bytes are
//! never reached without the chunk.

use std::marker::PhantomData;
use std::slice;
use std::sync::Arc;

use super::{PACKET_HEADROOM, SLOTS_MAX};
use crate::error::{Error, Kind, Result, check};
use crate::mmap::Mapping;

/// What a UMEM shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a chunk, 2048 or 4096. A frame of one descriptor must fit [`Geometry::frame_bytes`].
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
        let wrong = if !matches!(self.chunk_bytes, 2048 | 4096) {
            "a chunk has 2048 or 4096 bytes"
        } else if self.chunks == 0 || self.chunks > SLOTS_MAX {
            "a UMEM has 1 to 1048576 chunks"
        } else if self.headroom_bytes > self.chunk_bytes / 2 {
            "headroom takes at most half a chunk"
        } else {
            return Ok(());
        };
        Err(Error::said(Kind::Usage, "make a UMEM of", format!("{} chunks", self.chunks), wrong))
    }
}

/// Memory for frames, not yet shared out.
#[derive(Debug)]
pub struct Umem {
    memory: Arc<Memory>,
    shared_out: u32,
    fallbacks: Vec<Error>,
}

#[derive(Debug)]
pub(super) struct Memory {
    mapping: Mapping,
    geometry: Geometry,
    huge_pages: bool,
}

impl Umem {
    /// Anonymous memory: on huge pages if `huge_pages`, on NUMA node `node` if there is one to prefer. Where either
    /// is refused it takes plain pages where they are, and [`Umem::fallbacks`] says why.
    ///
    /// # Errors
    /// A usage error where the geometry is not one of the kernel's; ENOMEM.
    pub fn new(geometry: Geometry, huge_pages: bool, node: Option<u32>) -> Result<Self> {
        geometry.check()?;
        let mut fallbacks = Vec::new();
        let huge = if huge_pages { keep(map_huge(geometry.bytes()), &mut fallbacks) } else { None };
        let huge_pages = huge.is_some();
        let mapping = match huge {
            Some(mapping) => mapping,
            None => Mapping::anonymous(geometry.bytes(), false)?,
        };
        if let Some(node) = node {
            keep(prefer_node(&mapping, node), &mut fallbacks);
        }
        let memory = Arc::new(Memory { mapping, geometry, huge_pages });
        Ok(Self { memory, shared_out: 0, fallbacks })
    }

    /// Its sizes.
    pub fn geometry(&self) -> Geometry {
        self.memory.geometry
    }

    /// Whether it lies on huge pages.
    pub fn has_huge_pages(&self) -> bool {
        self.memory.huge_pages
    }

    /// What was asked for and not got, and why.
    pub fn fallbacks(&self) -> &[Error] {
        &self.fallbacks
    }

    /// Splits off `chunks` chunks for one ring pair.
    ///
    /// # Errors
    /// A usage error where fewer are left.
    pub fn share(&mut self, chunks: u32) -> Result<Share> {
        let left = self.memory.geometry.chunks - self.shared_out;
        if chunks == 0 || chunks > left {
            let cause = format!("the UMEM has {left} left");
            return Err(Error::said(Kind::Usage, "share", format!("{chunks} chunks"), cause));
        }
        let first = self.shared_out;
        self.shared_out += chunks;
        Ok(Share::new(Arc::clone(&self.memory), first, chunks))
    }

    /// The memory itself, by which a socket knows its own.
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// What `setsockopt(XDP_UMEM_REG)` wants to know.
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

/// Bytes that tell metadata from none: a magic number and its like.
const MARK_BYTES: usize = 8;

/// A chunk that this process holds: whoever has the value may touch its bytes. There is one for each chunk that the
/// kernel does not have; it cannot be copied.
#[derive(Debug)]
pub(super) struct Chunk(u32);

/// Chunks of a UMEM that belong to one ring pair.
#[derive(Debug)]
pub struct Share {
    memory: Arc<Memory>,
    first: u32,
    /// log2 of a chunk's bytes.
    chunk_shift: u32,
    /// For each chunk of the share: whether the kernel holds it.
    with_kernel: Box<[bool]>,
    free: Vec<Chunk>,
}

impl Share {
    fn new(memory: Arc<Memory>, first: u32, chunks: u32) -> Self {
        let with_kernel = vec![false; chunks as usize].into_boxed_slice();
        // The lowest address is taken first.
        let free = (0..chunks).rev().map(Chunk).collect();
        let chunk_shift = memory.geometry.chunk_bytes.trailing_zeros();
        Self { memory, first, chunk_shift, with_kernel, free }
    }

    /// Number of chunks, wherever they are.
    pub fn chunks(&self) -> u32 {
        self.with_kernel.len() as u32
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> u32 {
        1 << self.chunk_shift
    }

    /// The memory that its chunks are of.
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// A chunk that is in no ring.
    pub(super) fn take_free(&mut self) -> Option<Chunk> {
        self.free.pop()
    }

    /// Number of chunks that are in no ring.
    pub(super) fn free_chunks(&self) -> usize {
        self.free.len()
    }

    /// Puts a chunk aside.
    pub(super) fn put_free(&mut self, chunk: Chunk) {
        self.free.push(chunk);
    }

    /// Notes that the kernel gets `chunk`, and returns its address in the UMEM.
    #[inline]
    #[allow(clippy::needless_pass_by_value, reason = "the kernel owns the chunk from here on")]
    pub(super) fn lend(&mut self, chunk: Chunk) -> u64 {
        debug_assert!(!self.with_kernel[chunk.0 as usize]);
        self.with_kernel[chunk.0 as usize] = true;
        self.address(&chunk, 0)
    }

    /// The address in the UMEM of the byte at `offset` in a chunk.
    #[inline]
    pub(super) fn address(&self, chunk: &Chunk, offset: u32) -> u64 {
        (u64::from(self.first + chunk.0) << self.chunk_shift) + u64::from(offset)
    }

    /// The chunk that `address` lies in, and the offset in it, if the kernel held it until now.
    #[inline]
    pub(super) fn reclaim(&mut self, address: u64) -> Option<(Chunk, u32)> {
        let index = (address >> self.chunk_shift).checked_sub(u64::from(self.first))?;
        let with_kernel = self.with_kernel.get_mut(usize::try_from(index).ok()?)?;
        if !std::mem::replace(with_kernel, false) {
            return None;
        }
        let offset = address as u32 & (self.chunk_bytes() - 1);
        Some((Chunk(index as u32), offset))
    }

    /// The bytes of a chunk, to be written.
    #[inline]
    pub(super) fn bytes_mut<'a>(&'a self, chunk: &'a mut Chunk) -> &'a mut [u8] {
        assert!(chunk.0 < self.chunks());
        // SAFETY: the share's chunks lie in the mapping. While this one is borrowed it is not lent to the kernel, and it
        // is the only one of its index. The memory came zeroed, so every byte has a value.
        unsafe {
            let start = self.memory.mapping.as_ptr().add(self.address(chunk, 0) as usize);
            slice::from_raw_parts_mut(start, self.chunk_bytes() as usize)
        }
    }

    /// Takes in frames, from the first on, up to one whose chunk the kernel did not hold or that does not lie in its chunk.
    /// Returns how many, and their options together. Each descriptor stands for its chunk from here on, as a [`Chunk`]
    /// does, until [`Share::relend`] or [`Share::put_aside`].
    ///
    /// It starts to fetch the frames, and with `metadata` what stands before them, into the cache: the kernel has just
    /// written them on another core, and by the time they are read others are under way too.
    #[inline]
    pub(super) fn accept(&mut self, frames: &[libc::xdp_desc], metadata: bool) -> (usize, u32) {
        let Self { memory, first, chunk_shift, with_kernel, .. } = self;
        let (first, chunk_shift, mapping) = (u64::from(*first), *chunk_shift, &memory.mapping);
        let chunk_bytes = 1_u64 << chunk_shift;
        let (mut accepted, mut all_options) = (0, 0);
        for &libc::xdp_desc { addr, len, options } in frames {
            let index = (addr >> chunk_shift).wrapping_sub(first) as usize;
            let Some(with_kernel) = with_kernel.get_mut(index) else { break };
            let fits = (addr & (chunk_bytes - 1)) + u64::from(len) <= chunk_bytes;
            if !(*with_kernel && fits) {
                break;
            }
            *with_kernel = false;
            if metadata {
                mapping.prefetch((addr as usize).saturating_sub(MARK_BYTES));
            }
            mapping.prefetch(addr as usize);
            all_options |= options;
            accepted += 1;
        }
        (accepted, all_options)
    }

    /// Puts the chunk of a frame, accepted or not, aside; nothing where the kernel did not hold it.
    #[cold]
    pub(super) fn put_aside(&mut self, frame: &libc::xdp_desc) {
        if let Some((chunk, _)) = self.reclaim(frame.addr) {
            self.put_free(chunk);
        }
    }

    /// Notes for each accepted frame it is given that the kernel gets its chunk back, and returns the chunk's address.
    #[inline]
    pub(super) fn relend(&mut self) -> impl FnMut(&libc::xdp_desc) -> u64 {
        let Self { first, chunk_shift, with_kernel, .. } = self;
        let (first, chunk_shift) = (u64::from(*first), *chunk_shift);
        move |frame| {
            let chunk = frame.addr >> chunk_shift;
            if let Some(with_kernel) = with_kernel.get_mut(chunk.wrapping_sub(first) as usize) {
                *with_kernel = true;
            }
            chunk << chunk_shift
        }
    }

    /// Zeroes the first [`MARK_BYTES`] of the `bytes` bytes before each frame, where its chunk has so many.
    ///
    /// # Safety
    /// `frames` were accepted and their chunks not returned since.
    #[inline]
    pub(super) unsafe fn clear_before(&mut self, frames: &[libc::xdp_desc], bytes: u32) {
        let (start, mask, bytes) = (self.memory.mapping.as_ptr(), self.chunk_bytes() - 1, bytes as usize);
        if bytes < MARK_BYTES {
            return;
        }
        for frame in frames {
            if (frame.addr as u32 & mask) as usize >= bytes {
                // SAFETY: an accepted frame lies in a chunk of ours that the kernel does not have, and the chunk has
                // `bytes` before it; `self` is borrowed mutably, so nobody reads them.
                unsafe {
                    start.add(frame.addr as usize - bytes).cast::<[u8; MARK_BYTES]>().write([0; MARK_BYTES]);
                }
            }
        }
    }

    /// Where accepted frames are read.
    #[inline]
    pub(super) fn view(&self) -> View<'_> {
        View { start: self.memory.mapping.as_ptr(), chunk_shift: self.chunk_shift, share: PhantomData }
    }

    /// The chunk of an accepted frame, to be written, and where in it the frame begins.
    ///
    /// # Safety
    /// `frame` was accepted and its chunk not returned since.
    #[inline]
    pub(super) unsafe fn chunk_of(&mut self, frame: &libc::xdp_desc) -> (&mut [u8], usize) {
        let offset = frame.addr as usize & (self.chunk_bytes() as usize - 1);
        // SAFETY: an accepted frame's chunk is one of ours and the kernel does not have it; `self` is borrowed mutably, so
        // nobody reads it.
        let chunk = unsafe {
            let start = self.memory.mapping.as_ptr().add(frame.addr as usize - offset);
            slice::from_raw_parts_mut(start, self.chunk_bytes() as usize)
        };
        (chunk, offset)
    }
}

/// The bytes of accepted frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'share> {
    start: *const u8,
    chunk_shift: u32,
    share: PhantomData<&'share Share>,
}

impl<'share> View<'share> {
    /// A frame's bytes.
    ///
    /// # Safety
    /// [`Share::accept`] accepted it, and its chunk is not returned in `'share`.
    #[inline]
    pub(super) unsafe fn bytes(self, frame: &libc::xdp_desc) -> &'share [u8] {
        // SAFETY: an accepted frame lies in a chunk of ours, which nobody writes now. The memory came zeroed, so every
        // byte has a value.
        unsafe { slice::from_raw_parts(self.start.add(frame.addr as usize), frame.len as usize) }
    }

    /// What stands before a frame in its chunk.
    ///
    /// # Safety
    /// As for [`View::bytes`].
    #[inline]
    pub(super) unsafe fn in_front(self, frame: &libc::xdp_desc) -> &'share [u8] {
        let offset = frame.addr as usize & ((1 << self.chunk_shift) - 1);
        // SAFETY: as for `bytes`: the chunk begins `offset` bytes before the frame.
        unsafe { slice::from_raw_parts(self.start.add(frame.addr as usize - offset), offset) }
    }
}

/// The value, or nothing and the error on the list.
fn keep<T>(result: Result<T>, fallbacks: &mut Vec<Error>) -> Option<T> {
    result.map_err(|error| fallbacks.push(error)).ok()
}

/// At least `bytes` bytes on huge pages; a mapping of them is as long as a whole number of pages.
fn map_huge(bytes: usize) -> Result<Mapping> {
    Mapping::anonymous(bytes.next_multiple_of(huge_page_bytes()), true)
        .map_err(|error| error.remedy("reserve huge pages: sysctl vm.nr_hugepages=N"))
}

/// The default size of a huge page (`Hugepagesize` in proc_meminfo(5)); 2 MiB where it is not said.
fn huge_page_bytes() -> usize {
    const USUAL: usize = 2 << 20;
    let said = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = said.lines().find_map(|line| line.strip_prefix("Hugepagesize:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")).and_then(|kib| kib.parse::<usize>().ok());
    kib.map_or(USUAL, |kib| kib * 1024)
}

/// `mbind(MPOL_PREFERRED, MPOL_MF_MOVE)`: moves the pages of `mapping` to NUMA node `node` (mbind(2)).
fn prefer_node(mapping: &Mapping, node: u32) -> Result<()> {
    const MPOL_PREFERRED: libc::c_ulong = 1;
    const MPOL_MF_MOVE: libc::c_ulong = 2;
    const NODES_MAX: u32 = 1024;
    if node >= NODES_MAX {
        return Err(Error::said(Kind::Usage, "mbind", format!("NUMA node {node}"), "no such node"));
    }
    let mut nodes = [0_u64; (NODES_MAX / 64) as usize];
    nodes[(node / 64) as usize] |= 1 << (node % 64);
    // The kernel reads one bit less than it is told.
    let bits = libc::c_ulong::from(NODES_MAX + 1);
    let (start, len) = (mapping.as_ptr(), mapping.len());
    // SAFETY: the range is one whole mapping of ours, whose contents stay; nodes outlives the call.
    let returned = unsafe {
        libc::syscall(libc::SYS_mbind, start, len, MPOL_PREFERRED, nodes.as_ptr(), bits, MPOL_MF_MOVE)
    };
    check(returned as libc::c_int, "mbind", format!("NUMA node {node}")).map(drop)
}
