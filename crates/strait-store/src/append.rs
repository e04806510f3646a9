//! Appends records to the segment of a lane, and begins and ends segments.

use std::sync::Arc;

use crate::budget::Share;
use crate::error::{Error, Result};
use crate::file::SegmentFile;
use crate::format::{FILE_HEADER_BYTES, FileKind, Layout, PAGE_BYTES, RecordHeader, State, align_up};
use crate::lane::{Head, Lane};
use crate::policy::Area;
use crate::record::{Location, Record};
use crate::shared::Shared;

/// Returns true if a record with a body of `body_len` goes into a segment.
pub(crate) fn fits_segment(shared: &Shared, header: &RecordHeader, body_len: u64) -> bool {
    let most = Layout::new(0, header.head_len(), body_len, true).extent_len();
    most <= shared.segments.extent_bytes_max()
}

/// Position of the lane's next record, in a new segment if the current one is full. The caller
/// advances the lane's tail after the write.
pub(crate) fn slot(
    shared: &Shared,
    lane: &mut Lane,
    head_len: u64,
    body_len: u64,
) -> Result<(Arc<SegmentFile>, Layout)> {
    loop {
        if let Some(file) = &lane.current {
            let layout = Layout::new(lane.tail, head_len, body_len, false);
            if layout.end <= shared.segments.segment_bytes {
                return Ok((file.clone(), layout));
            }
        }
        seal(shared, lane);
        lane.current = Some(next_segment(shared, lane)?);
        lane.tail = FILE_HEADER_BYTES;
    }
}

/// Writes a whole record to the lane's segment and adds it to the index.
pub(crate) fn put(shared: &Shared, lane: usize, mut head: Head<'_>, body: &[&[u8]]) -> Result<Arc<Record>> {
    let mut lane = shared.lane(lane, "put")?;
    let (file, layout) = append(shared, &mut lane, &mut head, body)?;
    let header = &head.header;
    let location = Location::whole(&file, &layout, header);
    let record = Record::new(header.hash, header.sequence, header.body_len, location);
    shared.add(&record);
    Ok(record)
}

/// Appends a committed record: `head`, and `body` unless the body is in another file. Does not
/// add it to the index.
pub(crate) fn append(
    shared: &Shared,
    lane: &mut Lane,
    head: &mut Head<'_>,
    body: &[&[u8]],
) -> Result<(Arc<SegmentFile>, Layout)> {
    let body_len = if head.header.body_file == 0 { head.header.body_len } else { 0 };
    let (file, layout) = slot(shared, lane, head.header.head_len(), body_len)?;
    let header = &mut head.header;
    header.state = State::Committed;
    header.tag = file.header.tag;
    header.extent_len = layout.extent_len();
    header.written = shared.durability.next_number();
    if header.sequence == 0 {
        header.sequence = header.written;
    }
    if header.body_file == 0 {
        header.body_offset = layout.body_offset;
    }
    // Half a record may be written now. No index entry points to it, but the segment takes no
    // more records.
    head.write(&file, &layout, body).inspect_err(|error| seal_failed(shared, lane, error))?;
    lane.tail = layout.end;
    shared.durability.note_written(&file);
    file.admit(head.header.hash);
    Ok((file, layout))
}

/// Ends the lane's segment: returns its unused bytes to the budget and queues it for eviction.
pub(crate) fn seal(shared: &Shared, lane: &mut Lane) {
    let Some(file) = lane.current.take() else { return };
    if lane.tail == FILE_HEADER_BYTES {
        return shared.release_file(file);
    }
    file.cut(align_up(lane.tail, PAGE_BYTES));
    shared.segments.enlist(lane.area, file);
}

/// Returns a reserve of the lane or a spare segment, or creates one. Waits for eviction while
/// there is no space, but not in the lane of eviction.
fn next_segment(shared: &Shared, lane: &mut Lane) -> Result<Arc<SegmentFile>> {
    if let Some(reserve) = lane.reserves.pop() {
        shared.segments.budget.reserve(shared.segments.segment_bytes);
        return Ok(reserve);
    }
    let ready = || shared.segments.take_spare().map(Ok).or_else(|| make_segment(shared));
    let segment_bytes = shared.segments.segment_bytes;
    let taken = match lane.area {
        Area::Window => shared.when_free("begin a segment", segment_bytes, ready),
        Area::Main => ready().ok_or_else(|| shared.full("begin a segment", segment_bytes)),
    };
    shared.lifecycle.wake();
    taken?
}

/// Creates a segment; `None` if the budget does not allow it.
pub(crate) fn make_segment(shared: &Shared) -> Option<Result<Arc<SegmentFile>>> {
    let share = Share::take(&shared.segments.budget, shared.segments.segment_bytes)?;
    Some(make_file(shared, FileKind::Segment, share))
}

/// Creates a segment for eviction, from the bytes that the budget has reserved for it.
pub(crate) fn make_reserve(shared: &Shared) -> Option<Result<Arc<SegmentFile>>> {
    let (budget, bytes) = (&shared.segments.budget, shared.segments.segment_bytes);
    let share = Share::take_reserved(budget, bytes)?;
    Some(make_file(shared, FileKind::Segment, share).inspect_err(|_| budget.reserve(bytes)))
}

/// Creates a file with a new number and tag.
pub(crate) fn make_file(shared: &Shared, kind: FileKind, share: Share) -> Result<Arc<SegmentFile>> {
    let bytes = share.bytes();
    shared.allocated(shared.segments.create(kind, share), bytes)
}

/// Seals a segment after a failed write.
pub(crate) fn seal_failed(shared: &Shared, lane: &mut Lane, error: &Error) {
    seal(shared, lane);
    shared.note_shortage(error, shared.segments.segment_bytes);
}
