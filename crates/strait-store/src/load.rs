//! Loading of the objects of earlier sessions, from the snapshot of the last one or by a scan.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::file::{SegmentFile, name_of};
use crate::format::{FILE_HEADER_BYTES, FileHeader};
use crate::open::Earlier;
use crate::policy::Area;
use crate::scan::scan;
use crate::shared::Shared;
use crate::snapshot::Snapshot;
use crate::unread::Found;

/// Loads the records of earlier sessions. The store neither evicts nor syncs before that is done.
pub(crate) fn load(shared: &Shared, earlier: Earlier) {
    let last_session = shared.durability.checkpoint().session - 1;
    let snapshot = Snapshot::take(&shared.segments.disk, &shared.segments.dir, last_session);
    let mut files = Vec::with_capacity(earlier.files.len());
    for found in earlier.files {
        files.extend(open(shared, found));
    }
    let left = match snapshot {
        Some(snapshot) => adopt(shared, &snapshot, files),
        None => Some(files),
    };
    drop(earlier.index);
    if let Some(files) = left {
        scan(shared, files);
    }
    shared.settle();
}

/// Opens a file. A file that cannot be opened is left for the next session. A file without a valid
/// header is removed.
pub(crate) fn open(shared: &Shared, found: Found) -> Option<Arc<SegmentFile>> {
    if shared.lifecycle.is_closed() {
        shared.unread.leave(found);
        return None;
    }
    let expected = FileHeader { kind: found.kind, number: found.number, tag: 0 };
    let path = shared.segments.dir.join(name_of(&expected));
    let mut bytes = Vec::new();
    let read = shared.segments.disk.open(&path).and_then(|file| {
        shared.segments.disk.read(&file, &mut bytes, FILE_HEADER_BYTES as usize, 0)?;
        Ok(file)
    });
    let read: Result<_> = read.map_err(|error| Error::io("open", &path, &error));
    let Ok(file) = shared.counted(read) else {
        shared.unread.leave(found);
        return None;
    };
    let header = FileHeader::decode(&bytes);
    let header = header.filter(|header| (header.kind, header.number) == (expected.kind, expected.number));
    let file = SegmentFile::of(
        &shared.segments.dir,
        &shared.segments.disk,
        header.unwrap_or(expected),
        found.share,
        file,
    );
    if header.is_none() {
        shared.release_file(file);
        return None;
    }
    Some(file)
}

/// Adopts the index of a snapshot. Returns the files if the snapshot turns out to be unreadable.
fn adopt(
    shared: &Shared,
    snapshot: &Snapshot,
    files: Vec<Arc<SegmentFile>>,
) -> Option<Vec<Arc<SegmentFile>>> {
    let mut by_number: HashMap<_, _> = files.iter().map(|file| (file.number(), file)).collect();
    let mut of_snapshot = Vec::with_capacity(snapshot.files.len());
    for header in &snapshot.files {
        let file = by_number.remove(&header.number);
        of_snapshot.push(file.filter(|file| file.header == *header).cloned());
    }
    if snapshot.load(shared, &of_snapshot).is_none() {
        return Some(files);
    }
    for file in of_snapshot.into_iter().flatten().filter(|file| shared.is_useful(file)) {
        shared.segments.enlist(Area::Main, file);
    }
    // Remove files that the snapshot does not name or has no records in.
    for file in files {
        if !shared.is_useful(&file) {
            shared.release_file(file);
        } else if file.position.load(Ordering::Acquire) == 0 {
            shared.segments.enlist_old(file);
        }
    }
    None
}
