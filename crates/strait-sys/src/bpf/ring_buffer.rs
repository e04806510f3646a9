//! Ring of records from programs on all CPUs (`BPF_MAP_TYPE_RINGBUF`).
//!
//! A program reserves a record, fills it and submits it; the kernel orders those of all CPUs. The
//! capture engine reads dropped packets from one. A reader that is behind makes reservations fail,
//! which the program counts.
//!
//! ```text
//!   page with the consumer's position | page with the producer's position | ring | ring again
//! ```
//!
//! The second mapping of the ring lets a record that wraps be one slice (kernel/bpf/ringbuf.c).

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::map::Map;
use crate::error::Result;
use crate::mmap::Mapping;

/// `BPF_RINGBUF_HDR_SZ`: length and flags, then a number for the kernel.
const HEADER_BYTES: usize = 8;
/// The program has reserved the record and not submitted it.
const BUSY: u32 = 1 << 31;
/// The program has discarded the record.
const DISCARDED: u32 = 1 << 30;

/// Ring with its only reader.
#[derive(Debug)]
pub struct RingBuffer {
    map: Map,
    consumer: Mapping,
    /// The producer's page, then the ring twice.
    producer: Mapping,
    ring_bytes: usize,
    page_bytes: usize,
    consumed: u64,
    /// Bytes from the lent record to the one after it.
    lent: u64,
}

impl RingBuffer {
    /// Makes a ring of `bytes`, a power of two and a multiple of the page size.
    ///
    /// # Errors
    /// EINVAL for another size; EPERM without the privilege to use BPF.
    pub fn new(name: &str, bytes: u32) -> Result<Self> {
        let map = Map::ring_buffer(name, bytes)?;
        let (page_bytes, ring_bytes) = (rustix::param::page_size(), bytes as usize);
        let consumer = Mapping::shared(map.as_fd(), page_bytes, 0)?;
        let producer =
            Mapping::shared_read_only(map.as_fd(), page_bytes + 2 * ring_bytes, page_bytes as i64)?;
        Ok(Self { map, consumer, producer, ring_bytes, page_bytes, consumed: 0, lent: 0 })
    }

    /// Returns the next record, and the previous one to the kernel. `None` if there is none, or if
    /// a program is still filling it.
    pub fn next_record(&mut self) -> Option<&[u8]> {
        loop {
            self.release();
            let produced = self.produced();
            if self.consumed >= produced {
                return None;
            }
            let at = self.page_bytes + (self.consumed as usize & (self.ring_bytes - 1));
            let header = self.header(at).load(Ordering::Acquire);
            if header & BUSY != 0 {
                return None;
            }
            let len = (header & !DISCARDED) as usize;
            let stride = (HEADER_BYTES + len).next_multiple_of(HEADER_BYTES);
            // The kernel never writes such a length. Lend nothing of it.
            if stride > self.ring_bytes || self.consumed + stride as u64 > produced {
                return None;
            }
            self.lent = stride as u64;
            if header & DISCARDED == 0 {
                let start = self.producer.as_ptr().wrapping_add(at + HEADER_BYTES);
                // SAFETY: `at` is inside the first ring and the record is not longer than a ring,
                // so it ends in the second one. It is submitted, and the kernel does not write
                // there until `release`, which needs `&mut self`.
                return Some(unsafe { std::slice::from_raw_parts(start, len) });
            }
        }
    }

    /// Returns the lent record to the kernel.
    fn release(&mut self) {
        self.consumed += std::mem::take(&mut self.lent);
        // SAFETY: the page starts with an aligned position of 64 bits, which the kernel accesses
        // atomically, and lives as long as `self`.
        let position = unsafe { &*self.consumer.as_ptr().cast::<AtomicU64>() };
        position.store(self.consumed, Ordering::Release);
    }

    fn produced(&self) -> u64 {
        // SAFETY: as in `release`; the page is read-only, and only loaded.
        unsafe { &*self.producer.as_ptr().cast::<AtomicU64>() }.load(Ordering::Acquire)
    }

    /// Returns the first word of the header at this offset of the mapping.
    fn header(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at.is_multiple_of(HEADER_BYTES) && at + HEADER_BYTES <= self.producer.len());
        // SAFETY: records are aligned to 8 bytes and `at` is inside the ring. It is only loaded.
        unsafe { &*self.producer.as_ptr().wrapping_add(at).cast::<AtomicU32>() }
    }
}

impl AsFd for RingBuffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}
