//! A record as the index has it: where it stands, and whether it was hit. Key and meta stay on disk.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use crate::file::{Extent, SegmentFile, lock};
use crate::format::{Layout, RecordHeader};

/// Hits are counted up to this.
const HITS_MAX: u8 = 3;

/// Where a record stands. Eviction moves it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The file with header, key and meta.
    pub(crate) head: Arc<SegmentFile>,
    /// Where they begin.
    pub(crate) offset: u64,
    /// Bytes of header, key and meta.
    pub(crate) head_len: u32,
    /// The file with the body: the same, but for a record whose meta is newer than its body.
    pub(crate) body: Arc<SegmentFile>,
    /// Where it begins.
    pub(crate) body_offset: u64,
}

impl Place {
    /// Of a record with its body behind its head.
    pub(crate) fn whole(file: &Arc<SegmentFile>, layout: &Layout, header: &RecordHeader) -> Self {
        let (head, body) = (file.clone(), file.clone());
        let head_len = header.head_len() as u32;
        Self { head, offset: layout.offset, head_len, body, body_offset: layout.body_offset }
    }

    /// Whether the body stands behind the head.
    pub(crate) fn is_whole(&self) -> bool {
        // What is referred to is always older than who refers to it: in one file it stands before it.
        Arc::ptr_eq(&self.head, &self.body) && self.offset < self.body_offset
    }
}

/// A stored object. It keeps its identity when it is moved. A dead record has no place, so that it holds no file, however long it
/// is kept; an [`Extent`] does.
#[derive(Debug)]
pub struct Record {
    /// Of its key.
    pub hash: u64,
    sequence: u64,
    body_len: u64,
    /// `None` once the record is dead.
    pub(crate) place: Mutex<Option<Place>>,
    /// Until it is evicted, removed, replaced or found to be damaged.
    is_alive: AtomicBool,
    hits: AtomicU8,
}

impl Record {
    pub(crate) fn new(hash: u64, sequence: u64, body_len: u64, place: Place) -> Arc<Self> {
        let (is_alive, hits) = (AtomicBool::new(true), AtomicU8::new(0));
        Arc::new(Self { hash, sequence, body_len, place: Mutex::new(Some(place)), is_alive, hits })
    }

    /// Whether it has neither been removed nor evicted.
    pub fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Acquire)
    }

    /// Notes a hit, which eviction honours.
    pub fn touch(&self) {
        // A hit that is lost between two threads does not matter; a cache line that is not written to does.
        let hits = self.hits.load(Ordering::Relaxed);
        if hits < HITS_MAX {
            self.hits.store(hits + 1, Ordering::Relaxed);
        }
    }

    /// The place of its body now; `None` if the record is dead. The extent holds the file: keep it only while the body is read.
    pub fn body(&self) -> Option<Extent> {
        let place = lock(&self.place);
        place.as_ref().map(|place| Extent::new(&place.body, place.body_offset))
    }

    /// Bytes of its body.
    pub fn body_len(&self) -> u64 {
        self.body_len
    }

    /// Of two records of one key the newer has the higher.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Its place; `None` if the record is dead.
    pub(crate) fn place(&self) -> Option<Place> {
        lock(&self.place).clone()
    }

    /// Ends it and releases its place, which is returned to the one caller that ended it.
    pub(crate) fn kill(&self) -> Option<Place> {
        let mut place = lock(&self.place);
        // Under the lock: eviction that moves the record sees both or neither.
        self.is_alive.swap(false, Ordering::AcqRel).then(|| place.take())?
    }

    /// Hits since it was written or considered for eviction; few are counted.
    pub fn hits(&self) -> u8 {
        self.hits.load(Ordering::Relaxed)
    }

    pub(crate) fn set_hits(&self, hits: u8) {
        self.hits.store(hits.min(HITS_MAX), Ordering::Relaxed);
    }
}
