//! Room for a body that is yet to come: it is written by others, straight into the file, and becomes a record when it is whole.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::budget::Share;
use crate::error::{Error, Result};
use crate::file::{Extent, SegmentFile};
use crate::format::{
    FILE_HEADER_BYTES, FileKind, Layout, PAGE_BYTES, RECORD_HEADER_BYTES, RecordHeader, State, align_up,
    hash_of_pieces,
};
use crate::lane::Head;
use crate::record::{Place, Record};
use crate::shared::Shared;

/// An own file grows in steps from this, each twice the last, to that.
const STEP_BYTES_MIN: u64 = 1 << 20;
const STEP_BYTES_MAX: u64 = 64 << 20;

/// Bodies up to this size do not keep a file of their own.
const COPIED_BYTES_MAX: u64 = 256 << 10;

/// A reserved extent. Dropped without a commit, nothing of it remains but the room that it has in its segment.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    lane: usize,
    file: Arc<SegmentFile>,
    header: RecordHeader,
    layout: Layout,
    /// Bytes of the body that are accounted.
    room: u64,
    /// Bytes that the body will have, where that is known.
    known: Option<u64>,
    step: u64,
    is_committed: bool,
}

impl Writer {
    /// Room in the lane's segment, if it is known to be small enough, or in a file of its own.
    pub(crate) fn reserve(
        shared: &Arc<Shared>,
        lane: usize,
        head: Head<'_>,
        body_len: Option<u64>,
    ) -> Result<Self> {
        match body_len {
            Some(body_len) if shared.fits_segment(&head.header, body_len) => {
                Self::in_segment(shared, lane, head, body_len)
            }
            _ => Self::in_own_file(shared, lane, head, body_len),
        }
    }

    fn in_segment(shared: &Arc<Shared>, lane: usize, mut head: Head<'_>, body_len: u64) -> Result<Self> {
        let mut place = shared.lane(lane, "reserve")?;
        let (file, layout) = shared.slot(&mut place, head.header.head_len(), body_len)?;
        head.header.extent_len = layout.extent_len();
        head.header.body_offset = layout.body_offset;
        head.header.tag = file.header.tag;
        head.write(&file, &layout, &[]).inspect_err(|error| shared.spoilt(&mut place, error))?;
        place.tail = layout.end;
        file.writers.fetch_add(1, Ordering::AcqRel);
        drop(place);
        Ok(Self::new(shared, lane, file, head, layout, body_len, Some(body_len)))
    }

    fn in_own_file(
        shared: &Arc<Shared>,
        lane: usize,
        mut head: Head<'_>,
        body_len: Option<u64>,
    ) -> Result<Self> {
        drop(shared.lane(lane, "reserve")?);
        let layout = Layout::new(FILE_HEADER_BYTES, head.header.head_len(), body_len.unwrap_or(0), true);
        let file = own_file(shared, &layout, body_len)?;
        let room = file.share.bytes() - layout.body_offset;
        head.header.body_offset = layout.body_offset;
        head.header.tag = file.header.tag;
        head.write(&file, &layout, &[]).inspect_err(|error| {
            shared.note_shortage(error, layout.body_offset);
            shared.let_go(file.clone());
        })?;
        file.writers.fetch_add(1, Ordering::AcqRel);
        Ok(Self::new(shared, lane, file, head, layout, room, body_len))
    }

    fn new(
        shared: &Arc<Shared>,
        lane: usize,
        file: Arc<SegmentFile>,
        head: Head<'_>,
        layout: Layout,
        room: u64,
        known: Option<u64>,
    ) -> Self {
        let (shared, header) = (shared.clone(), head.header);
        Self { shared, lane, file, header, layout, room, known, step: STEP_BYTES_MIN, is_committed: false }
    }

    /// Where the body begins: bytes are written there, and read as soon as they are.
    pub fn extent(&self) -> Extent {
        Extent::new(&self.file, self.layout.body_offset)
    }

    /// Bytes of the body that may be written now.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Makes [`room`](Self::room) for `upto` bytes of the body, and for more if that can be had.
    ///
    /// # Errors
    /// [`Error::Full`] if the store has no room, and [`Error::TooLong`] past the length that was named when it was reserved.
    pub fn grow(&mut self, upto: u64) -> Result<()> {
        let grown = self.grow_to(upto);
        self.shared.counted(grown)
    }

    /// As [`grow`](Self::grow), and counted by the caller.
    pub(crate) fn grow_to(&mut self, upto: u64) -> Result<()> {
        if upto <= self.room {
            return Ok(());
        }
        if let Some(bytes_max) = self.known.filter(|known| upto > *known) {
            return Err(Error::TooLong { what: "a body", bytes: upto, bytes_max });
        }
        let has = self.file.share.bytes();
        let end = |body_len: u64| align_up(self.layout.body_offset + body_len, PAGE_BYTES);
        let least = end(upto);
        let ahead = (has + self.step).min(self.known.map_or(u64::MAX, end)).max(least);
        let bytes = [ahead, least].into_iter().find(|bytes| self.file.share.grow(bytes - has));
        let bytes = bytes.ok_or_else(|| self.shared.full("grow an object", least - has))?;
        let allocated = self.file.allocate(bytes).inspect_err(|_| self.file.share.shrink_to(has));
        self.shared.allocated(allocated, bytes - has)?;
        self.step = (2 * self.step).min(STEP_BYTES_MAX);
        self.room = bytes - self.layout.body_offset;
        Ok(())
    }

    /// Takes note that a write of the caller's own into the [`extent`](Self::extent) failed: it is counted as the store's own are, and
    /// room is made if the file system had none, as it may be where the store cannot allocate it ahead.
    pub fn failed(&self, error: &io::Error) {
        self.shared.counters.failed.add(1);
        let error = Error::io("write", &self.file.path(), error);
        self.shared.note_shortage(&error, self.room.min(STEP_BYTES_MAX));
    }

    /// Makes a record of it, with the first `body_len` bytes that were written as its body. From then on it is found. A short body
    /// that has got a file of its own, for nobody knew its length, is copied to the lane's segment; who reads it from the
    /// [`extent`](Self::extent) goes on undisturbed.
    ///
    /// # Errors
    /// [`Error::Full`] if more was written than there was room for, [`Error::Gone`] if its file had to go meanwhile,
    /// [`Error::Closed`] if the store is closed. Then nothing of it remains, as if it was dropped.
    pub fn commit(mut self, body_len: u64) -> Result<Arc<Record>> {
        let committed = self.commit_to(body_len);
        self.shared.counted(committed)
    }

    /// As [`commit`](Self::commit), and counted by the caller.
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
            // To free blocks can take long: not under the lane's lock.
            let end = align_up(self.layout.body_offset + body_len, PAGE_BYTES);
            self.file.cut(end);
            self.header.extent_len = end - self.layout.offset;
        }
        let lane = shared.lane(self.lane, "commit")?;
        self.header.state = State::Committed;
        self.header.body_len = body_len;
        self.header.written = shared.next_number();
        self.header.sequence = self.header.written;
        if !self.file.admit(self.header.hash) {
            return Err(Error::Gone { operation: "commit" });
        }
        let written = self.file.write_bytes(&self.header.encode(), self.layout.offset);
        written.inspect_err(|error| shared.note_shortage(error, PAGE_BYTES))?;
        self.is_committed = true;
        shared.note_written(&self.file);
        let place = Place::whole(&self.file, &self.layout, &self.header);
        let record = Record::new(self.header.hash, self.header.sequence, body_len, place);
        shared.index.insert(record.clone());
        if self.file.is_own() {
            shared.enlist(self.file.clone());
        }
        drop(lane);
        shared.counters.stored.add(1);
        Ok(record)
    }
}

impl Writer {
    /// Puts the object into the lane's segment: files are few, and each costs more than a short copy.
    fn copy_to_segment(&self, body_len: u64) -> Result<Arc<Record>> {
        let body_at = (self.layout.body_offset - self.layout.offset) as usize;
        let bytes = self.file.read(body_at + body_len as usize, self.layout.offset)?;
        let (key_len, meta_len) = (self.header.key_len as usize, self.header.meta_len as usize);
        let parts = (bytes.get(RECORD_HEADER_BYTES..), bytes.get(body_at..));
        let (Some(head), Some(body)) = parts else { return Err(Error::Gone { operation: "commit" }) };
        let (key, meta) = head.split_at(key_len.min(head.len()));
        let mut head = Head::new(key, &meta[..meta_len.min(meta.len())], body_len)?;
        head.header.body_hash = Some(hash_of_pieces(&[body]));
        if !self.shared.fits_segment(&head.header, body_len) {
            return Err(Error::Gone { operation: "commit" });
        }
        self.shared.put(self.lane, head, &[body])
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.file.writers.fetch_sub(1, Ordering::AcqRel);
        if !self.is_committed && self.file.is_own() {
            self.shared.let_go(self.file.clone());
        }
    }
}

/// A file for one record, with room for all of it if the length is known and that can be had at once, else for a first step.
fn own_file(shared: &Shared, layout: &Layout, body_len: Option<u64>) -> Result<Arc<SegmentFile>> {
    let bytes = |body_len: u64| align_up(layout.body_offset + body_len, PAGE_BYTES);
    let wanted = bytes(body_len.unwrap_or(STEP_BYTES_MIN));
    let first = bytes(body_len.unwrap_or(STEP_BYTES_MIN).min(STEP_BYTES_MIN));
    let made = shared.make_file(FileKind::Own, own_share(shared, wanted, first, body_len.is_some())?);
    match made {
        Err(error) if first < wanted && shared.is_short_of(&error, wanted) => {
            let share = Share::take(&shared.budget, first).ok_or(error)?;
            shared.make_file(FileKind::Own, share)
        }
        made => made,
    }
}

/// The room for such a file within the limit.
fn own_share(shared: &Shared, wanted: u64, first: u64, is_known: bool) -> Result<Share> {
    if is_known && wanted > shared.budget.capacity_bytes {
        return Err(Error::Full { operation: "reserve", bytes: wanted });
    }
    if let Some(share) = Share::take(&shared.budget, wanted) {
        return Ok(share);
    }
    let refused = shared.full("reserve", wanted);
    Share::take(&shared.budget, first).ok_or(refused)
}
