//! Durable writes: the numbers of writes, the files with unsynced bytes, and the checkpoint. The
//! sync itself is in `sync.rs`.

use std::fs;
use std::io::IoSlice;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::file::{NEW, SegmentFile, lock};
use crate::format::checkpoint::Checkpoint;

pub(crate) const CHECKPOINT: &str = "marks";

/// State of the writes of a session.
#[derive(Debug)]
pub(crate) struct Durability {
    /// Checkpoint as on disk. A sync holds this lock from its begin to its end.
    checkpoint: Mutex<Checkpoint>,
    /// Number of the next write.
    numbers: AtomicU64,
    /// Files written to since their last sync.
    dirty: Mutex<Vec<Weak<SegmentFile>>>,
}

impl Durability {
    /// Makes the state of the session of `checkpoint`, which is on disk.
    pub(crate) fn new(checkpoint: Checkpoint) -> Self {
        let numbers = AtomicU64::new(checkpoint.first_number());
        Self { checkpoint: Mutex::new(checkpoint), numbers, dirty: Mutex::default() }
    }

    /// Locks the checkpoint.
    pub(crate) fn checkpoint(&self) -> MutexGuard<'_, Checkpoint> {
        lock(&self.checkpoint)
    }

    /// Takes the next write number.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::AcqRel)
    }

    /// Number of the last write that has begun.
    pub(crate) fn last_number(&self) -> u64 {
        self.numbers.load(Ordering::Acquire) - 1
    }

    /// Notes that a file was written to.
    pub(crate) fn note_written(&self, file: &Arc<SegmentFile>) {
        if file.dirty() {
            lock(&self.dirty).push(Arc::downgrade(file));
        }
    }

    /// Takes the files that were written to since their last sync. Upgrade them one at a time: an
    /// evicted file is closed only without other references.
    pub(crate) fn take_dirty(&self) -> Vec<Weak<SegmentFile>> {
        std::mem::take(&mut *lock(&self.dirty))
    }
}

/// Replaces the checkpoint file by `checkpoint`.
pub(crate) fn write_checkpoint(disk: &Disk, dir: &Path, checkpoint: &Checkpoint) -> Result<()> {
    let path = dir.join(CHECKPOINT);
    let temporary = path.with_extension(NEW);
    let _ = fs::remove_file(&temporary);
    let written = disk.create(&temporary).and_then(|file| {
        disk.write(&file, &mut [IoSlice::new(&checkpoint.encode())], 0)?;
        disk.sync(&file)?;
        disk.rename(&temporary, &path)?;
        disk.sync_dir(dir)
    });
    written.map_err(|error| Error::io("write", &path, &error))
}
