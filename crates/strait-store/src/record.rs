//! Index entry of a record: its location and its number of requests. Key and meta stay on disk.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use crate::file::{Extent, SegmentFile, lock};
use crate::format::{Layout, RecordHeader};
use crate::policy::REQUEST;

/// Location of a record on disk. Eviction changes it.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    /// File with header, key and meta.
    pub(crate) head: Arc<SegmentFile>,
    /// Offset of the header.
    pub(crate) offset: u64,
    /// Bytes of header, key and meta.
    pub(crate) head_len: u32,
    /// File with the body. It differs from `head` only if the meta is newer than the body.
    pub(crate) body: Arc<SegmentFile>,
    /// Offset of the body.
    pub(crate) body_offset: u64,
}

impl Location {
    /// Location of a record with its body after its head.
    pub(crate) fn whole(file: &Arc<SegmentFile>, layout: &Layout, header: &RecordHeader) -> Self {
        let (head, body) = (file.clone(), file.clone());
        let head_len = header.head_len() as u32;
        Self { head, offset: layout.offset, head_len, body, body_offset: layout.body_offset }
    }

    /// Returns true if the head is at `offset` of `file`.
    pub(crate) fn has_head(&self, file: &Arc<SegmentFile>, offset: u64) -> bool {
        Arc::ptr_eq(&self.head, file) && self.offset == offset
    }

    /// Returns true if the body follows the head.
    pub(crate) fn is_whole(&self) -> bool {
        // A body is always older than a head that refers to it, so in one file it is before that
        // head.
        Arc::ptr_eq(&self.head, &self.body) && self.offset < self.body_offset
    }
}

/// A stored object. It keeps its identity when eviction moves it. A dead record has no location, so
/// it holds no file, however long it is referenced; an [`Extent`] does.
#[derive(Debug)]
pub struct Record {
    /// Hash of the key.
    pub hash: u64,
    sequence: u64,
    body_len: u64,
    /// `None` once the record is dead.
    pub(crate) location: Mutex<Option<Location>>,
    /// False once the record is evicted, removed, replaced or found damaged.
    is_alive: AtomicBool,
    /// True if its bytes were written, or compared with their hashes, in this session.
    is_checked: AtomicBool,
    /// True while a [`Checking`] exists.
    is_being_checked: AtomicBool,
    requests: AtomicU8,
}

impl Record {
    pub(crate) fn new(hash: u64, sequence: u64, body_len: u64, location: Location) -> Arc<Self> {
        Arc::new(Self {
            hash,
            sequence,
            body_len,
            location: Mutex::new(Some(location)),
            is_alive: AtomicBool::new(true),
            is_checked: AtomicBool::new(false),
            is_being_checked: AtomicBool::new(false),
            requests: AtomicU8::new(REQUEST),
        })
    }

    /// Returns true if the record has not been removed or evicted.
    pub fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Acquire)
    }

    /// Returns true if its bytes were written, or compared with their hashes, since the store was
    /// opened.
    pub fn is_checked(&self) -> bool {
        self.is_checked.load(Ordering::Acquire)
    }

    pub(crate) fn set_checked(&self) {
        self.is_checked.store(true, Ordering::Release);
    }

    /// Claims the check of a record that is requested by many clients at a time; `None` while
    /// another claim exists.
    pub fn begin_check(self: &Arc<Self>) -> Option<Checking> {
        let is_first = !self.is_being_checked.swap(true, Ordering::AcqRel);
        is_first.then(|| Checking(self.clone()))
    }

    /// Counts a hit.
    pub(crate) fn touch(&self) {
        // Losing a hit in a race is harmless. The check keeps hits on a popular record from writing
        // to its cache line.
        let requests = self.requests();
        if requests < u8::MAX {
            self.set_requests(requests.saturating_add(REQUEST));
        }
    }

    /// Halves the number of requests that many times.
    pub(crate) fn age(&self, times: u32) {
        self.set_requests(self.requests().checked_shr(times).unwrap_or(0));
    }

    /// Current location of the body; `None` if the record is dead. The extent holds the file: keep
    /// it only while the body is read.
    pub fn body(&self) -> Option<Extent> {
        let location = lock(&self.location);
        location.as_ref().map(|location| Extent::new(&location.body, location.body_offset))
    }

    /// Bytes of the body.
    pub fn body_len(&self) -> u64 {
        self.body_len
    }

    /// Order of the records of one key: the newest has the highest number.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Current location; `None` if the record is dead.
    pub(crate) fn location(&self) -> Option<Location> {
        lock(&self.location).clone()
    }

    /// Returns true if the head of the record is at `location`.
    pub(crate) fn is_at(&self, location: &Location) -> bool {
        lock(&self.location).as_ref().is_some_and(|now| now.has_head(&location.head, location.offset))
    }

    /// Marks the record as dead. Returns its location to the one caller that ended it.
    pub(crate) fn kill(&self) -> Option<Location> {
        let mut location = lock(&self.location);
        // Changes both under the lock, so that eviction sees both or neither when it moves the
        // record.
        self.is_alive.swap(false, Ordering::AcqRel).then(|| location.take())?
    }

    /// Number of requests for the object, with the one that stored it, in units of [`REQUEST`]. It
    /// is halved now and then, and has a maximum.
    pub fn requests(&self) -> u8 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(crate) fn set_requests(&self, requests: u8) {
        self.requests.store(requests, Ordering::Relaxed);
    }
}

/// Claim on the check of a record. It ends when dropped, whether or not the check has ended.
#[derive(Debug)]
pub struct Checking(Arc<Record>);

impl Drop for Checking {
    fn drop(&mut self) {
        self.0.is_being_checked.store(false, Ordering::Release);
    }
}
