//! Appends records to the segment of a lane, and begins and ends segments.

use std::io::IoSlice;
use std::sync::Arc;

use crate::budget::Share;
use crate::error::{Error, Result};
use crate::file::SegmentFile;
use crate::format::{FILE_HEADER_BYTES, FileKind, Layout, PAGE_BYTES, RecordHeader, align_up};
use crate::lane::{Head, Lane, NewObject, zeros};
use crate::policy::Area;
use crate::record::{Location, Record};
use crate::shared::Shared;

/// Number of pieces of a record in a write of several.
const RUN_PIECES: usize = 6;

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

/// Writes the first objects of `all` that fit into the lane's current segment with one call, and
/// adds their records to the index. `None` if fewer than two fit, or if the write fails: none of
/// them is stored then, because it is unknown which are whole.
pub(crate) fn put_run(shared: &Shared, lane: usize, all: &[NewObject<'_>]) -> Option<Vec<Arc<Record>>> {
    let mut lane = shared.lane(lane, "put").ok()?;
    let file = lane.current.clone()?;
    let (mut run, mut tail) = (Vec::with_capacity(all.len()), lane.tail);
    for new in all {
        let Ok(head) = Head::of_object(new) else { break };
        let (head_len, body_len) = (head.header.head_len(), head.header.body_len);
        let layout = Layout::new(tail, head_len, body_len, false);
        if !fits_segment(shared, &head.header, body_len) || layout.end > shared.segments.segment_bytes {
            break;
        }
        tail = layout.end;
        run.push((head, layout, new.body));
    }
    if run.len() < 2 {
        return None;
    }
    let headers: Vec<_> = run
        .iter_mut()
        .map(|(head, layout, _)| {
            head.commit(shared.durability.next_number(), &file, layout);
            head.header.encode()
        })
        .collect();
    let mut pieces = Vec::with_capacity(RUN_PIECES * run.len());
    for ((head, layout, body), header) in run.iter().zip(&headers) {
        let before = zeros(layout.body_offset - layout.head_end);
        let behind = zeros(layout.end - layout.body_offset - body.len() as u64);
        pieces.extend([&header[..], head.key, head.meta, before, body, behind].map(IoSlice::new));
    }
    if let Err(error) = file.write(&mut pieces, lane.tail) {
        // The caller stores them one by one, and returns the errors of that.
        seal_failed(shared, &mut lane, &error);
        return None;
    }
    lane.tail = tail;
    shared.durability.note_written(&file);
    let add = |(head, layout, _): &(Head<'_>, Layout, &[u8])| {
        file.admit(head.header.hash);
        let location = Location::whole(&file, layout, &head.header);
        let record = Record::new(head.header.hash, head.header.sequence, head.header.body_len, location);
        shared.add(&record);
        record
    };
    Some(run.iter().map(add).collect())
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
    // After the wait for a slot, in which a removal can have been confirmed.
    head.check_wanted()?;
    head.commit(shared.durability.next_number(), &file, &layout);
    // Half a record may be written now. No index entry points to it, but the segment takes no
    // more records.
    head.write(&file, &layout, body).inspect_err(|error| seal_failed(shared, lane, error))?;
    lane.tail = layout.end;
    shared.durability.note_written(&file);
    file.admit(head.header.hash);
    Ok((file, layout))
}

/// Ends the lane's segment and queues it for eviction. The eviction thread frees the unused bytes.
pub(crate) fn seal(shared: &Shared, lane: &mut Lane) {
    let Some(file) = lane.current.take() else { return };
    if lane.tail == FILE_HEADER_BYTES {
        return shared.release_file(file);
    }
    shared.segments.cut_later(&file, align_up(lane.tail, PAGE_BYTES));
    shared.segments.enlist(lane.area, file);
    shared.lifecycle.wake();
}

/// Returns a reserve of the lane or a spare segment, or creates one. Waits for eviction while
/// there is no space, but not in the lane of eviction.
fn next_segment(shared: &Shared, lane: &mut Lane) -> Result<Arc<SegmentFile>> {
    if let Some(reserve) = lane.reserves.pop() {
        shared.segments.budget.reserve(shared.segments.segment_bytes);
        return Ok(reserve);
    }
    if let Some(spare) = shared.segments.spares.take() {
        shared.lifecycle.wake();
        return Ok(spare);
    }
    shared.segments.spares.note_missed();
    let ready = || shared.segments.spares.take_late().map(Ok).or_else(|| make_segment(shared));
    let segment_bytes = shared.segments.segment_bytes;
    let taken = match lane.area {
        Area::Window => shared.when_free("begin a segment", segment_bytes, ready),
        Area::Main => ready().ok_or_else(|| shared.full("begin a segment", segment_bytes)),
    };
    shared.lifecycle.wake();
    let taken = taken??;
    if lane.area == Area::Window {
        shared.counters.without_spare.add(1);
    }
    Ok(taken)
}

/// Creates a segment; `None` if the budget does not allow it.
pub(crate) fn make_segment(shared: &Shared) -> Option<Result<Arc<SegmentFile>>> {
    let share = Share::take(&shared.segments.budget, shared.segments.segment_bytes)?;
    let made = make_file(shared, FileKind::Segment, share);
    Some(made.inspect_err(|_| shared.segments.spares.note_failed()))
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

/// Seals a segment after a failed write, without the records that the write has completed.
pub(crate) fn seal_failed(shared: &Shared, lane: &mut Lane, error: &Error) {
    if let Some(file) = &lane.current {
        file.clear_from(lane.tail);
    }
    seal(shared, lane);
    shared.note_shortage(error, shared.segments.segment_bytes);
}
