//! Loading what earlier sessions stored: from the snapshot that the last one left when it was closed, or by a scan.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::file::{SegmentFile, lock, name_of};
use crate::format::{FILE_HEADER_BYTES, FileHeader};
use crate::open::{Earlier, Found};
use crate::scan::scan;
use crate::shared::Shared;
use crate::snapshot::Snapshot;

/// Loads what is there of earlier sessions. Until it is done nothing is evicted or synced.
pub(crate) fn load(shared: &Shared, earlier: Earlier) {
    let last_session = lock(&shared.marks).session - 1;
    let snapshot = Snapshot::take(&shared.disk, &shared.dir, last_session);
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

/// Opens a file. What cannot be opened is left as it is, for the next session; what is no file of ours goes.
pub(crate) fn open(shared: &Shared, found: Found) -> Option<Arc<SegmentFile>> {
    if shared.is_closed.load(Ordering::Acquire) {
        shared.leave(found);
        return None;
    }
    let made = FileHeader { kind: found.kind, number: found.number, tag: 0 };
    let path = shared.dir.join(name_of(&made));
    let mut bytes = Vec::new();
    let read = shared.disk.open(&path).and_then(|file| {
        shared.disk.read(&file, &mut bytes, FILE_HEADER_BYTES as usize, 0)?;
        Ok(file)
    });
    let read: Result<_> = read.map_err(|error| Error::io("open", &path, &error));
    let Ok(file) = shared.counted(read) else {
        shared.leave(found);
        return None;
    };
    let header = FileHeader::decode(&bytes);
    let header = header.filter(|header| (header.kind, header.number) == (made.kind, made.number));
    let file = SegmentFile::of(&shared.dir, &shared.disk, header.unwrap_or(made), found.share, file);
    if header.is_none() {
        shared.let_go(file);
        return None;
    }
    Some(file)
}

/// Takes over the index that a snapshot has; the files, if it cannot be read after all.
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
    for file in of_snapshot.into_iter().flatten().filter(|file| shared.is_of_use(file)) {
        shared.enlist(file);
    }
    // What the snapshot does not name, or has nothing in, is of no use.
    for file in files {
        if !shared.is_of_use(&file) {
            shared.let_go(file);
        } else if file.turn.load(Ordering::Acquire) == 0 {
            shared.enlist_old(file);
        }
    }
    None
}
