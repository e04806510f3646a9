//! Writers of bodies that arrive later. The caller writes the body directly into the file, and a
//! commit makes it a record.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::append;
use crate::budget::Share;
use crate::error::{Error, Result};
use crate::file::{Extent, SegmentFile};
use crate::format::{
    FILE_HEADER_BYTES, FileKind, Hasher, Layout, PAGE_BYTES, RECORD_HEADER_BYTES, RecordHeader, State,
    align_up, hash_of_pieces,
};
use crate::lane::Head;
use crate::policy::Area;
use crate::record::{Location, Record};
use crate::shared::Shared;

/// First and longest step by which a file of its own grows. Each step doubles.
const STEP_BYTES_MIN: u64 = 1 << 20;
const STEP_BYTES_MAX: u64 = 64 << 20;
/// Divisor of the capacity: a step is no longer than this part.
const STEP_DIVISOR: u64 = 32;

/// Limit of bodies that are copied from a file of their own to a segment.
const COPIED_BYTES_MAX: u64 = 256 << 10;

/// A reserved extent. If it is dropped without a commit, only its space in the segment stays used.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    lane: usize,
    file: Arc<SegmentFile>,
    header: RecordHeader,
    layout: Layout,
    /// Accounted bytes of the body.
    writable_bytes: u64,
    /// Length of the body in bytes, if it is known.
    known: Option<u64>,
    step: u64,
    /// Hash of the first bytes of the body, and their number; `None` once bytes were missing.
    hashed: Option<(Hasher, u64)>,
    is_committed: bool,
}

impl Writer {
    /// Reserves space in the lane's segment if the body is known to fit, and if few segments are
    /// being filled; else in a file of its own.
    pub(crate) fn reserve(
        shared: &Arc<Shared>,
        lane: usize,
        head: Head<'_>,
        body_len: Option<u64>,
    ) -> Result<Self> {
        let short = body_len.filter(|len| append::fits_segment(shared, &head.header, *len));
        let in_segment = short.map(|len| Self::in_segment(shared, lane, head, len)).transpose()?;
        match in_segment.flatten() {
            Some(writer) => Ok(writer),
            None => Self::in_own_file(shared, lane, head, body_len),
        }
    }

    /// Returns `None` if enough other segments are being filled: slow writers, each in a segment of
    /// its own, would keep eviction from all of them.
    fn in_segment(
        shared: &Arc<Shared>,
        lane: usize,
        mut head: Head<'_>,
        body_len: u64,
    ) -> Result<Option<Self>> {
        let mut guard = shared.lane(lane, "reserve")?;
        let (file, layout) = append::slot(shared, &mut guard, head.header.head_len(), body_len)?;
        if !shared.segments.may_fill(&file) {
            return Ok(None);
        }
        head.header.extent_len = layout.extent_len();
        head.header.body_offset = layout.body_offset;
        head.header.tag = file.header.tag;
        head.write(&file, &layout, &[])
            .inspect_err(|error| append::seal_failed(shared, &mut guard, error))?;
        guard.tail = layout.end;
        shared.segments.open_extent(&file, layout.offset);
        drop(guard);
        Ok(Some(Self::new(shared, lane, file, head, layout, body_len, Some(body_len))))
    }

    fn in_own_file(
        shared: &Arc<Shared>,
        lane: usize,
        mut head: Head<'_>,
        body_len: Option<u64>,
    ) -> Result<Self> {
        // Only checks that the store is open: the file does not belong to the lane.
        drop(shared.lane(lane, "reserve")?);
        let layout = Layout::new(FILE_HEADER_BYTES, head.header.head_len(), body_len.unwrap_or(0), true);
        let file = own_file(shared, &layout, body_len)?;
        let writable_bytes = (file.share.bytes() - layout.body_offset).min(body_len.unwrap_or(u64::MAX));
        head.header.body_offset = layout.body_offset;
        head.header.tag = file.header.tag;
        head.write(&file, &layout, &[]).inspect_err(|error| {
            shared.note_shortage(error, layout.body_offset);
            shared.release_file(file.clone());
        })?;
        shared.segments.open_extent(&file, layout.offset);
        Ok(Self::new(shared, lane, file, head, layout, writable_bytes, body_len))
    }

    fn new(
        shared: &Arc<Shared>,
        lane: usize,
        file: Arc<SegmentFile>,
        head: Head<'_>,
        layout: Layout,
        writable_bytes: u64,
        known: Option<u64>,
    ) -> Self {
        let (shared, header) = (shared.clone(), head.header);
        Self {
            shared,
            lane,
            file,
            header,
            layout,
            writable_bytes,
            known,
            step: STEP_BYTES_MIN,
            hashed: Some((Hasher::new(), 0)),
            is_committed: false,
        }
    }

    /// Position of the body. Written bytes can be read from it at once.
    pub fn extent(&self) -> Extent {
        Extent::new(&self.file, self.layout.body_offset)
    }

    /// Number of body bytes that may be written now.
    pub fn writable_bytes(&self) -> u64 {
        self.writable_bytes
    }

    /// Limit in bytes of the store that it belongs to.
    pub fn capacity_bytes(&self) -> u64 {
        self.shared.segments.budget.capacity_bytes
    }

    /// Grows [`writable_bytes`](Self::writable_bytes) to at least `upto` bytes, and further ahead
    /// if space allows.
    ///
    /// # Errors
    /// [`Error::Full`] if the store has no space, [`Error::TooLong`] beyond the length given to the
    /// reservation.
    pub fn grow(&mut self, upto: u64) -> Result<()> {
        let grown = self.grow_to(upto);
        self.shared.counted(grown)
    }

    /// Like [`grow`](Self::grow), but the caller counts the error.
    pub(crate) fn grow_to(&mut self, upto: u64) -> Result<()> {
        if let Some(bytes_max) = self.known.filter(|known| upto > *known) {
            return Err(Error::TooLong { what: "a body", bytes: upto, bytes_max });
        }
        if upto <= self.writable_bytes {
            return Ok(());
        }
        let has = self.file.share.bytes();
        let end = |body_len: u64| align_up(self.layout.body_offset + body_len, PAGE_BYTES);
        let least = end(upto);
        let ahead = (has + self.step).min(self.known.map_or(u64::MAX, end)).max(least);
        let grown = || [ahead, least].into_iter().find(|bytes| self.file.share.grow(bytes - has));
        let bytes = self.shared.when_free("grow an object", least - has, grown)?;
        // A failed allocation can keep some of the blocks.
        let allocated = self.file.allocate(bytes).inspect_err(|_| self.file.cut(has));
        self.shared.allocated(allocated, bytes - has)?;
        let step_max = (self.capacity_bytes() / STEP_DIVISOR).clamp(STEP_BYTES_MIN, STEP_BYTES_MAX);
        self.step = (2 * self.step).min(step_max);
        self.writable_bytes = (bytes - self.layout.body_offset).min(self.known.unwrap_or(u64::MAX));
        Ok(())
    }

    /// Adds the bytes that the caller has written at `at` to the hash of the body. If all bytes of
    /// the body are added in order, the scrub need not read them.
    pub fn hash(&mut self, at: u64, bytes: &[u8]) {
        self.hashed = self.hashed.take().filter(|(_, end)| *end == at).map(|(mut hasher, end)| {
            hasher.write(bytes);
            (hasher, end + bytes.len() as u64)
        });
    }

    /// Hash of the body, if all its bytes were added.
    fn body_hash(&self, body_len: u64) -> Option<u64> {
        self.hashed.as_ref().filter(|(_, end)| *end == body_len).map(|(hasher, _)| hasher.finish())
    }

    /// Reports a failed write of the caller to the [`extent`](Self::extent). Counts it like the
    /// store's own failures, and requests eviction if the file system was full, which can happen if
    /// it cannot allocate blocks ahead.
    pub fn failed(&self, error: &io::Error) {
        self.shared.counters.failed.add(1);
        let error = Error::io("write", &self.file.path(), error);
        self.shared.note_shortage(&error, self.writable_bytes.min(STEP_BYTES_MAX));
    }

    /// Commits a record with the first `body_len` written bytes as its body. It can be found from
    /// then on. A short body in a file of its own is copied to the lane's segment; readers of the
    /// [`extent`](Self::extent) are not disturbed.
    ///
    /// # Errors
    /// [`Error::TooLong`] beyond the length given to the reservation, [`Error::Full`] if the store
    /// has no space for a body of unknown length, [`Error::Removed`] if the file was evicted
    /// meanwhile, [`Error::Closed`] if the store is closed. After an error nothing remains, as
    /// after a drop.
    pub fn commit(mut self, body_len: u64) -> Result<Arc<Record>> {
        let committed = self.commit_to(body_len);
        self.shared.counted(committed)
    }

    /// Like [`commit`](Self::commit), but the caller counts the error.
    pub(crate) fn commit_to(&mut self, body_len: u64) -> Result<Arc<Record>> {
        self.grow_to(body_len)?;
        let shared = self.shared.clone();
        if self.file.is_own()
            && body_len <= COPIED_BYTES_MAX
            && let Ok(record) = self.copy_to_segment(body_len)
        {
            return Ok(record);
        }
        if self.file.is_own() {
            let end = align_up(self.layout.body_offset + body_len, PAGE_BYTES);
            self.header.extent_len = end - self.layout.offset;
        }
        let lane = shared.lane(self.lane, "commit")?;
        self.header.state = State::Committed;
        self.header.body_len = body_len;
        self.header.body_hash = self.header.body_hash.or(self.body_hash(body_len));
        self.header.written = shared.durability.next_number();
        self.header.sequence = self.header.written;
        if !self.file.admit(self.header.hash) {
            return Err(Error::Removed { operation: "commit" });
        }
        let written = self.file.write_bytes(&self.header.encode(), self.layout.offset);
        written.inspect_err(|error| shared.note_shortage(error, PAGE_BYTES))?;
        self.is_committed = true;
        shared.durability.note_written(&self.file);
        let location = Location::whole(&self.file, &self.layout, &self.header);
        let record = Record::new(self.header.hash, self.header.sequence, body_len, location);
        shared.add(&record);
        if self.file.is_dismissed() {
            // Eviction may have listed the file's records before.
            shared.end(&record);
            return Err(Error::Removed { operation: "commit" });
        }
        if self.file.is_own() {
            shared.segments.enlist(Area::Window, self.file.clone());
        }
        drop(lane);
        if self.header.body_hash.is_none() {
            shared.new_bodies.push(&record);
        }
        Ok(record)
    }
}

impl Writer {
    /// Copies the object to the lane's segment: the number of files is limited, and a file costs
    /// more than a short copy. After an error the object keeps its file.
    fn copy_to_segment(&self, body_len: u64) -> Result<Arc<Record>> {
        if !append::fits_segment(&self.shared, &self.header, body_len) {
            return Err(Error::Removed { operation: "commit" });
        }
        let body_at = (self.layout.body_offset - self.layout.offset) as usize;
        let bytes = self.file.read(body_at + body_len as usize, self.layout.offset)?;
        let (key_len, meta_len) = (self.header.key_len as usize, self.header.meta_len as usize);
        let parts = (bytes.get(RECORD_HEADER_BYTES..), bytes.get(body_at..));
        let (Some(head), Some(body)) = parts else { return Err(Error::Removed { operation: "commit" }) };
        let (key, meta) = head.split_at(key_len.min(head.len()));
        let mut head = Head::new(key, &meta[..meta_len.min(meta.len())], body_len)?;
        head.header.body_hash = Some(hash_of_pieces(&[body]));
        append::put(&self.shared, self.lane, head, &[body])
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let was_last = self.shared.segments.close_extent(&self.file, self.layout.offset);
        if !self.file.is_own() {
            if was_last && self.file.position.load(Ordering::Acquire) != 0 {
                // It is full: it can be truncated and evicted now.
                self.shared.lifecycle.wake();
            }
            return;
        }
        if self.is_committed {
            self.shared.cut_later(&self.file, self.layout.offset + self.header.extent_len);
        } else {
            self.shared.release_file(self.file.clone());
        }
    }
}

/// Creates a file for one record. Allocates all of a known length if that is possible at once, else
/// a first step.
fn own_file(shared: &Shared, layout: &Layout, body_len: Option<u64>) -> Result<Arc<SegmentFile>> {
    let bytes = |body_len: u64| align_up(layout.body_offset + body_len, PAGE_BYTES);
    let wanted = bytes(body_len.unwrap_or(STEP_BYTES_MIN));
    let first = bytes(body_len.unwrap_or(STEP_BYTES_MIN).min(STEP_BYTES_MIN));
    let created =
        append::make_file(shared, FileKind::Own, own_share(shared, wanted, first, body_len.is_some())?);
    match created {
        Err(error) if first < wanted && shared.is_short_of(&error, wanted) => {
            let share = Share::take(&shared.segments.budget, first).ok_or(error)?;
            append::make_file(shared, FileKind::Own, share)
        }
        created => created,
    }
}

/// Share of such a file in the budget.
fn own_share(shared: &Shared, wanted: u64, first: u64, is_known: bool) -> Result<Share> {
    if is_known && wanted > shared.segments.budget.capacity_bytes {
        return Err(Error::Full { operation: "reserve", bytes: wanted });
    }
    let budget = &shared.segments.budget;
    shared.when_free("reserve", wanted, || Share::take(budget, wanted).or_else(|| Share::take(budget, first)))
}
