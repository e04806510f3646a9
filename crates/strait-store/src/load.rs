//! Loading of the objects of earlier sessions: from the journal of the index, and by a scan of the
//! parts of the files that the journal does not know. Without a journal these are all files.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::file::{SegmentFile, name_of};
use crate::format::journal::COMPLETE;
use crate::format::{FILE_HEADER_BYTES, FileHeader};
use crate::open::Earlier;
use crate::recovery::Recovery;
use crate::scan::{Unscanned, scan};
use crate::shared::Shared;
use crate::unread::Found;

/// Loads the records of earlier sessions. The store neither evicts nor syncs before that is done.
pub(crate) fn load(shared: &Shared, earlier: Earlier) {
    let checkpoint = shared.durability.checkpoint().clone();
    let recovery = Recovery::open(&shared.segments.disk, &shared.segments.dir, &checkpoint);
    shared.journal.keep(earlier.index);
    let mut files = Vec::with_capacity(earlier.files.len());
    for found in earlier.files {
        files.extend(open(shared, found));
    }
    let is_held = |number| checkpoint.held.iter().any(|held| held.file == number);
    let unscanned = recovery.and_then(|recovery| recover(shared, &recovery, &files, is_held));
    let in_order = unscanned.is_some();
    shared.loading.begin_scan();
    let all = || files.iter().map(|file| Unscanned::all_of(file.clone())).collect();
    scan(shared, &unscanned.unwrap_or_else(all), in_order);
    shared.settle();
}

/// Adds the records of the journal to the index. Returns the files in the order of eviction, with
/// the part of each to scan; `None` if the journal turns out to be unreadable.
fn recover(
    shared: &Shared,
    recovery: &Recovery,
    files: &[Arc<SegmentFile>],
    is_held: impl Fn(u64) -> bool,
) -> Option<Vec<Unscanned>> {
    let mut by_number: HashMap<_, _> = files.iter().map(|file| (file.number(), file)).collect();
    let mut unscanned = Vec::with_capacity(files.len());
    let mut of_journal = Vec::with_capacity(recovery.files.len());
    for entry in &recovery.files {
        let number = entry.header.number;
        // The journal may lack records of a file that could not be read.
        let file = by_number.remove(&number).filter(|file| file.header == entry.header && !is_held(number));
        // An object's own file costs one read. Its header shows whether the object was removed and
        // only its unlink is missing, so the space is freed at once.
        let scan_from =
            if file.is_some_and(|file| file.is_own()) { FILE_HEADER_BYTES } else { entry.scan_from };
        let is_clean = recovery.is_closed && entry.scan_from == COMPLETE;
        unscanned.extend(file.map(|file| Unscanned { file: file.clone(), scan_from, is_clean }));
        of_journal.push(file.cloned());
    }
    shared.index.reserve(recovery.records);
    shared.loading.begin_journal(recovery.units.iter().map(|unit| unit.shards.clone()).collect());
    while let Some(unit) = shared.loading.next_unit() {
        recovery.load(shared, unit, &of_journal)?;
        shared.loading.end_unit(unit);
    }
    // Files that the journal does not name are newer, except those held back.
    let known: HashSet<_> = unscanned.iter().map(|known| known.file.number()).collect();
    let others = files.iter().filter(|file| !known.contains(&file.number()));
    unscanned.extend(others.map(|file| Unscanned::all_of(file.clone())));
    Some(unscanned)
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
