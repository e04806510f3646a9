//! Files of earlier sessions that could not be opened, or not be read completely. They stay on disk
//! and keep their space.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::budget::Share;
use crate::file::lock;
use crate::format::FileKind;

/// An existing file.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) kind: FileKind,
    pub(crate) number: u64,
    pub(crate) share: Share,
}

/// Unread files of a store.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    /// Files that could not be opened, oldest first.
    found: Mutex<VecDeque<Found>>,
    /// Evicted ones with a failed unlink.
    failed: Mutex<Vec<Found>>,
    /// Numbers of files that could not be opened, or not be read completely.
    held: Mutex<Vec<u64>>,
    /// True if there are such files: their records are unknown.
    any: AtomicBool,
}

impl Unread {
    /// Returns true if there are unread files.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Leaves a file on disk as it is until its position in the eviction queue is reached.
    pub(crate) fn leave(&self, found: Found) {
        self.hold(found.number);
        lock(&self.found).push_back(found);
    }

    /// Notes that the records of a file are not all known.
    pub(crate) fn hold(&self, file: u64) {
        self.any.store(true, Ordering::Release);
        lock(&self.held).push(file);
    }

    /// Takes the numbers of all held files, in order.
    pub(crate) fn take_held(&self) -> Vec<u64> {
        let mut files = std::mem::take(&mut *lock(&self.held));
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Takes the oldest unopened file if it is older than `position`.
    pub(crate) fn take_before(&self, position: u64) -> Option<Found> {
        lock(&self.found).pop_front_if(|found| found.number < position)
    }

    /// Keeps a file that could not be unlinked.
    pub(crate) fn add_failed(&self, found: Found) {
        lock(&self.failed).push(found);
    }

    /// Takes the files that could not be unlinked.
    pub(crate) fn take_failed(&self) -> Vec<Found> {
        std::mem::take(&mut *lock(&self.failed))
    }
}
