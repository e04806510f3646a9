//! Byte rings that an eBPF program fills and this process reads, and the doorbell by which the
//! program wakes it.
//!
//! The rings are in the values of a mapped array: one or several in each, with one producer, the
//! program on one CPU, and one consumer each, a [`RingReader`]. The program publishes a record by
//! adding its length to the producer's position after it wrote the record; the reader returns space
//! by storing the consumer's position. Positions only grow; their lower bits are the place in the
//! ring. Bytes behind the end of a ring let the last record end there, so no record wraps.
//!
//! The tap of the capture engine is the caller. It defines the records. Nothing here interprets or
//! waits.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::Map;
use crate::error::{Error, Kind, Result};
use crate::mmap::Mapping;

/// Offsets in bytes of the fields of a ring, from the start of its value. Each is a multiple of 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// Position after the last published record, 64 bits, written by the program.
    pub producer: usize,
    /// Position after the last returned record, 64 bits, written by the reader.
    pub consumer: usize,
    /// 32 bits: not 0 if the program shall ring the doorbell.
    pub wakeup: usize,
    /// The first byte of the ring.
    pub data: usize,
    /// Size of the ring, a power of two.
    pub ring_bytes: usize,
    /// Offset behind the ring and the bytes behind its end.
    pub end: usize,
}

impl RingLayout {
    /// Returns true if the fields lie before `fields_end`, and the ring and the bytes behind it
    /// after.
    fn fits(&self, fields_end: usize) -> bool {
        let Self { producer, consumer, wakeup, data, ring_bytes, end } = *self;
        let fit = [producer, consumer, wakeup].iter().all(|at| at.is_multiple_of(8) && at + 8 <= fields_end);
        let rings_end = data.checked_add(ring_bytes).is_some_and(|ring_end| ring_end <= end);
        fit && rings_end && data >= fields_end && ring_bytes.is_power_of_two()
    }
}

/// Returns an error unless the rings of a value are one behind the other and within its size.
fn check(layouts: &[RingLayout], value_bytes: usize) -> Result<()> {
    let fields_end = layouts.first().map_or(0, |layout| layout.data);
    let in_order = layouts.windows(2).all(|pair| pair[0].end <= pair[1].data);
    let within = layouts.last().is_some_and(|layout| layout.end <= value_bytes);
    if in_order
        && within
        && value_bytes.is_multiple_of(8)
        && layouts.iter().all(|layout| layout.fits(fields_end))
    {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "map", "rings", "their fields overlap or lie outside"))
}

/// Rings of all CPUs, mapped into this process.
#[derive(Debug)]
pub struct Rings {
    mapping: Mapping,
    /// Size of a value.
    value_bytes: usize,
    /// Offset behind the fields of a value.
    fields_end: usize,
    count: usize,
}

impl Rings {
    /// Maps the values of `map`, a [`Map::mappable_array`], as rings: in each value one ring for
    /// each of `layouts`, ordered by their offsets. Returns the readers of the first layout's
    /// rings, then those of the next one's.
    ///
    /// # Errors
    /// A layout that does not fit ([`Kind::Usage`]), or no memory.
    pub fn map(map: &Map, layouts: &[RingLayout]) -> Result<(Arc<Self>, Vec<RingReader>)> {
        let value_bytes = (map.value_bytes() as usize).next_multiple_of(size_of::<u64>());
        check(layouts, value_bytes)?;
        let count = map.entries() as usize;
        let len = (value_bytes * count).next_multiple_of(rustix::param::page_size());
        let mapping = Mapping::shared(map.as_fd(), len, 0)?;
        let fields_end = layouts.first().map_or(0, |layout| layout.data);
        let rings = Arc::new(Self { mapping, value_bytes, fields_end, count });
        let reader = |layout: RingLayout, value| {
            let rings = Arc::clone(&rings);
            RingReader { rings, layout, value, consumed: 0, produced: 0 }
        };
        let of_layout =
            |layout: &RingLayout| (0..count).map(|value| reader(*layout, value)).collect::<Vec<_>>();
        let readers = layouts.iter().flat_map(of_layout).collect();
        Ok((rings, readers))
    }

    /// Returns the number of values.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the 64-bit counter at the offset `at` of a value, before its rings; 0 if there is
    /// none.
    pub fn counter(&self, value: usize, at: usize) -> u64 {
        let fits = value < self.count && at.is_multiple_of(8) && at + 8 <= self.fields_end;
        if fits { self.word(value, at).load(Ordering::Relaxed) } else { 0 }
    }

    /// Returns a field. The caller has checked that it lies in the value.
    fn word(&self, value: usize, at: usize) -> &AtomicU64 {
        debug_assert!(value < self.count && at + 8 <= self.fields_end);
        let start = self.mapping.as_ptr().wrapping_add(value * self.value_bytes + at);
        // SAFETY: `value` is one of the mapped values and `check` ensures that `at` is aligned and
        // inside; the mapping lives as long as `self`. The kernel writes there too, so all accesses
        // are atomic.
        unsafe { &*start.cast::<AtomicU64>() }
    }
}

/// Consumer of one ring. There is one for each ring, so no other reader returns the space of bytes
/// that it lends.
#[derive(Debug)]
pub struct RingReader {
    rings: Arc<Rings>,
    layout: RingLayout,
    value: usize,
    consumed: u64,
    produced: u64,
}

impl RingReader {
    /// Returns the number of the value that has the ring.
    pub fn value(&self) -> usize {
        self.value
    }

    /// Returns the position after the last returned record.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Loads the producer's position and returns it. Bytes before it can be read.
    #[inline]
    pub fn poll(&mut self) -> u64 {
        let layout = &self.layout;
        // Pairs with the program's atomic addition: the record's bytes were written before it.
        let produced = self.rings.word(self.value, layout.producer).load(Ordering::Acquire);
        // A program that overran the ring would be broken; lend nothing of it.
        if produced.wrapping_sub(self.consumed) <= layout.ring_bytes as u64 {
            self.produced = produced;
        }
        self.produced
    }

    /// Returns `len` published bytes from `position` on; `None` if they are not all published, or
    /// were returned.
    #[inline]
    pub fn bytes(&self, position: u64, len: usize) -> Option<&[u8]> {
        let layout = &self.layout;
        let end = position.checked_add(len as u64)?;
        if position < self.consumed || end > self.produced {
            return None;
        }
        let at = layout.data + (position as usize & (layout.ring_bytes - 1));
        if len > layout.end - at {
            return None;
        }
        let start = self.rings.mapping.as_ptr().wrapping_add(self.value * self.rings.value_bytes + at);
        // SAFETY: the bytes lie in this ring. They are between the consumer's and the
        // producer's position, where the program does not write, and only `advance`, which needs
        // `&mut self`, moves the consumer's position.
        Some(unsafe { std::slice::from_raw_parts(start, len) })
    }

    /// Returns the space before `position` to the program.
    #[inline]
    pub fn advance(&mut self, position: u64) {
        self.consumed = position.clamp(self.consumed, self.produced);
        // The program must not overwrite bytes before they were read.
        self.rings.word(self.value, self.layout.consumer).store(self.consumed, Ordering::Release);
    }

    /// Selects whether the next record rings the doorbell. Poll the ring again after requesting it:
    /// a record that was published earlier does not ring.
    pub fn request_wakeup(&self, requested: bool) {
        self.wakeup().store(requested.into(), Ordering::Relaxed);
        if requested {
            // Pairs with the program's atomic addition, a full barrier between the publication and
            // the load of this word: either the program sees the request, or a later `poll` sees
            // the record.
            fence(Ordering::SeqCst);
        }
    }

    fn wakeup(&self) -> &AtomicU32 {
        let word = std::ptr::from_ref(self.rings.word(self.value, self.layout.wakeup)).cast::<AtomicU32>();
        // SAFETY: the first half of an aligned field of eight bytes.
        unsafe { &*word }
    }
}

/// Doorbell of a program: a `BPF_MAP_TYPE_RINGBUF` with a descriptor that is readable while it has
/// unread entries.
#[derive(Debug)]
pub struct Doorbell {
    map: Map,
    consumer: Mapping,
    producer: Mapping,
}

impl Doorbell {
    /// Makes a doorbell of one page.
    pub fn new(name: &str) -> Result<Self> {
        Self::of(Map::ring_buffer(name, rustix::param::page_size() as u32)?)
    }

    /// Maps a doorbell that another process made.
    pub fn of(map: Map) -> Result<Self> {
        let page = rustix::param::page_size();
        // kernel/bpf/ringbuf.c: a page with the consumer's position, then one with the producer's.
        let consumer = Mapping::shared(map.as_fd(), page, 0)?;
        let producer = Mapping::shared_read_only(map.as_fd(), page, page as i64)?;
        Ok(Self { map, consumer, producer })
    }

    /// Discards the entries, so that the descriptor is not readable until the next one.
    pub fn silence(&self) {
        let produced = Self::position(&self.producer).load(Ordering::Acquire);
        Self::position(&self.consumer).store(produced, Ordering::Release);
    }

    fn position(page: &Mapping) -> &AtomicU64 {
        // SAFETY: the page lives as long as the borrow and starts with an aligned position of 64
        // bits, which the kernel accesses atomically. The producer's page is read-only, and only
        // loaded.
        unsafe { &*page.as_ptr().cast::<AtomicU64>() }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}
