//! One directory of several: its store, its watch, and its objects after the store was closed.
//!
//! A store that was closed can be opened again with its objects, until a removal is missed: then
//! they are discarded. A directory is the same while device and inode are the same.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

use rustix::io::Errno;

use crate::config::Config;
use crate::disk::Disk;
use crate::durability::CHECKPOINT;
use crate::enospc::is_no_space;
use crate::error::{Error, Result};
use crate::file::lock;
use crate::format::hash_of;
use crate::identity::{Identity, identity};
use crate::open::lock_dir;
use crate::stats::Stats;
use crate::store::Store;
use crate::stores::{Change, OnChange};

/// Interval between two checks of a directory.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// File that a check writes after a failed call.
const PROBE: &str = "probe";

/// One directory.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) config: Config,
    disk: Disk,
    /// Hash of the directory's path.
    hash: u64,
    /// `None` while the directory is lost.
    store: RwLock<Option<Arc<Store>>>,
    /// Counts of its earlier stores.
    ended: Mutex<Stats>,
    /// Directory of the last store. Never cleared: a lost directory must not be taken for another.
    opened: Mutex<Option<Identity>>,
    kept: Mutex<Kept>,
    is_closed: Mutex<bool>,
    closed: Condvar,
}

/// Objects of a closed store.
#[derive(Debug, Default)]
struct Kept {
    /// True if they can be used again: no removal was missed since.
    is_usable: bool,
    /// Failed calls of the store before it was closed.
    failed: u64,
    /// Number of the times that the store was taken away or opened again.
    changes: u64,
}

impl Member {
    pub(crate) fn new(disk: Disk, config: Config) -> Self {
        let hash = hash_of(config.dir.as_os_str().as_encoded_bytes());
        let (store, ended) = (RwLock::default(), Mutex::default());
        let (opened, kept, is_closed) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { config, disk, hash, store, ended, opened, kept, is_closed, closed: Condvar::new() }
    }

    pub(crate) fn store(&self) -> Option<Arc<Store>> {
        self.store.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, store: Option<Arc<Store>>) -> Option<Arc<Store>> {
        std::mem::replace(&mut self.store.write().unwrap_or_else(PoisonError::into_inner), store)
    }

    /// Rank of the directory for a key.
    pub(crate) fn rank(&self, hash: u64) -> u64 {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&hash.to_le_bytes());
        bytes[8..].copy_from_slice(&self.hash.to_le_bytes());
        hash_of(&bytes)
    }

    pub(crate) fn open(&self, is_emptied: bool) -> Result<()> {
        let (store, found) = self.new_store(is_emptied)?;
        *lock(&self.opened) = Some(found);
        self.set(Some(store));
        Ok(())
    }

    /// Opens a store, which is not used yet.
    fn new_store(&self, is_emptied: bool) -> Result<(Arc<Store>, Identity)> {
        let config = Config { is_emptied, ..self.config.clone() };
        let store = Store::open_on(self.disk.clone(), config)?;
        let found =
            identity(&self.config.dir).map_err(|error| Error::io("find", &self.config.dir, &error))?;
        Ok((store, found))
    }

    /// Ends the watch, before the store is closed.
    pub(crate) fn begin_close(&self) {
        *lock(&self.is_closed) = true;
        self.closed.notify_all();
        let store = self.store();
        let mut kept = lock(&self.kept);
        // Objects of a lost directory stay usable until a removal is missed.
        kept.is_usable |= store.is_some();
        kept.failed = store.map_or(0, |store| store.stats().failed);
    }

    /// Removes the mark of the end of the watch.
    pub(crate) fn end_close(&self) {
        *lock(&self.is_closed) = false;
    }

    /// Takes the closed store away. Its objects are not used again if a removal may be missing on
    /// disk: a call has failed, or another process has lost the directory.
    pub(crate) fn take_away(&self, all: &[Arc<Self>]) -> Option<Arc<Store>> {
        let is_noted = self.is_noted_in(all);
        let mut kept = lock(&self.kept);
        kept.changes += 1;
        let store = self.set(None);
        kept.is_usable &= !is_noted && store.as_ref().is_some_and(|it| it.stats().failed == kept.failed);
        store
    }

    /// Notes a removal. Returns the number of the changes before it.
    pub(crate) fn note_removal(&self) -> u64 {
        // Under the lock, so that no store is taken away or opened meanwhile.
        let mut kept = lock(&self.kept);
        if kept.is_usable && self.store().is_none() {
            kept.is_usable = false;
            // The objects are discarded at once: a restart must not find them.
            self.closed.notify_all();
        }
        kept.changes
    }

    /// As [`Stores::changes`](crate::Stores::changes), of this directory.
    pub(crate) fn changes(&self) -> u64 {
        lock(&self.kept).changes
    }

    /// Opens a store again in the directory of a closed one. Returns false if the objects are
    /// discarded, because a removal was missed.
    pub(crate) fn take_back(&self) -> Result<bool> {
        if lock(&self.kept).is_usable && self.take_back_objects()? {
            return Ok(true);
        }
        self.come_back()?;
        Ok(false)
    }

    /// Opens the store of a closed one with its objects. Returns false if a removal was missed.
    fn take_back_objects(&self) -> Result<bool> {
        let before = *lock(&self.opened);
        self.check(before, false)?;
        let (store, found) = self.new_store(false)?;
        let is_same = before.is_some_and(|before| before.is_same(&found));
        // Under the lock, so that a removal is either missed or finds the store.
        let mut kept = lock(&self.kept);
        if kept.is_usable && is_same {
            kept.is_usable = false;
            kept.changes += 1;
            self.set(Some(store));
            return Ok(true);
        }
        drop(kept);
        store.abandon();
        if is_same { Ok(false) } else { Err(self.replaced()) }
    }

    pub(crate) fn stats(&self) -> Stats {
        let ended = *lock(&self.ended);
        match self.store() {
            Some(store) => ended.and(store.stats()),
            None => Stats { lost: ended.lost + 1, ..ended },
        }
    }

    /// Waits until the next check; returns false if there is none.
    fn wait(&self) -> bool {
        let guard = lock(&self.is_closed);
        if *guard {
            return false;
        }
        // A removal that is missed wakes it as well.
        let waited = self.closed.wait_timeout(guard, CHECK_EVERY);
        waited.is_ok_and(|(is_closed, _)| !*is_closed)
    }

    /// Path of the note in the directory of `other` that this one was lost.
    fn note_in(&self, other: &Self) -> PathBuf {
        other.config.dir.join(format!("lost-{:016x}", self.hash))
    }

    /// The others of `all` that are not lost.
    fn others<'a>(&'a self, all: &'a [Arc<Self>]) -> impl Iterator<Item = &'a Arc<Self>> {
        all.iter().filter(|other| other.hash != self.hash && other.store().is_some())
    }

    /// Returns true if another directory has a note that this one was lost.
    pub(crate) fn is_noted_in(&self, all: &[Arc<Self>]) -> bool {
        all.iter().any(|other| other.hash != self.hash && self.note_in(other).exists())
    }

    /// Notes in the other directories that this one was lost, so that it is emptied also after a
    /// restart: otherwise objects that were removed meanwhile would be found again.
    pub(crate) fn note_lost(&self, all: &[Arc<Self>]) {
        for other in self.others(all) {
            // One that cannot be written to is lost as well, by its own check.
            let _ = other.disk.create(&self.note_in(other));
            let _ = other.disk.sync_dir(&other.config.dir);
        }
    }

    /// Removes these notes.
    pub(crate) fn forget_lost(&self, all: &[Arc<Self>]) {
        for other in self.others(all) {
            // A note that stays empties the directory once more.
            let _ = other.disk.unlink(&self.note_in(other));
        }
    }

    /// Checks the directory regularly until the stores are closed.
    pub(crate) fn watch(&self, all: &[Arc<Self>], on_change: &OnChange) {
        let dir = &*self.config.dir;
        let mut failed = 0;
        while self.wait() {
            let Some(store) = self.store() else {
                match self.take_back() {
                    Ok(has_objects) => {
                        self.forget_lost(all);
                        on_change(&if has_objects { Change::Reopened(dir) } else { Change::Back(dir) });
                    }
                    Err(_) => self.discard(),
                }
                continue;
            };
            let counted = store.stats().failed;
            let has_failed = counted > std::mem::replace(&mut failed, counted);
            let opened = *lock(&self.opened);
            if let Err(error) = self.check(opened, has_failed) {
                failed = 0;
                self.note_lost(all);
                self.give_up(&store);
                on_change(&Change::Lost(dir, &error));
            }
        }
    }

    /// Checks that the directory is the same, and after a failed call that a file can be written
    /// and read.
    fn check(&self, expected: Option<Identity>, has_failed: bool) -> Result<()> {
        let dir = &*self.config.dir;
        let found = identity(dir).map_err(|error| Error::io("find", dir, &error))?;
        if !expected.is_none_or(|expected| expected.is_same(&found)) {
            return Err(self.replaced());
        }
        if has_failed { self.probe() } else { Ok(()) }
    }

    fn replaced(&self) -> Error {
        Error::io("find", &self.config.dir, &io::Error::other("the directory was replaced"))
    }

    /// Writes, syncs and reads a file.
    fn probe(&self) -> Result<()> {
        let path = self.config.dir.join(PROBE);
        let probed = self.disk.unlink(&path).and_then(|()| {
            let file = self.disk.create(&path)?;
            let tried = self.disk.write_bytes(&file, PROBE.as_bytes(), 0).and_then(|()| {
                self.disk.sync(&file)?;
                let mut read = Vec::new();
                self.disk.read(&file, &mut read, PROBE.len(), 0)?;
                if read == PROBE.as_bytes() { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
            });
            self.disk.unlink(&path).and(tried)
        });
        match probed.map_err(|error| Error::io("write", &path, &error)) {
            Err(error) if is_no_space(&error) || lacks_resources(&error) => Ok(()),
            probed => probed,
        }
    }

    /// Ends the store of a lost directory.
    fn give_up(&self, store: &Arc<Store>) {
        self.set(None);
        store.abandon();
        self.discard();
        self.add_ended(store);
    }

    /// Removes the checkpoint of a lost directory, so that a restart finds none of its objects.
    /// Does nothing while they can be used again, in another directory, or while another process
    /// uses this one. The disk may refuse it: the watch tries again.
    pub(crate) fn discard(&self) {
        let dir = &*self.config.dir;
        let is_same = |opened: Identity| identity(dir).is_ok_and(|found| opened == found);
        if self.store().is_some() || lock(&self.kept).is_usable || !lock(&self.opened).is_some_and(is_same) {
            return;
        }
        if let Ok(_lock) = lock_dir(dir) {
            let path = dir.join(CHECKPOINT);
            let _ = self.disk.unlink(&path).and_then(|()| self.disk.sync_dir(dir));
        }
    }

    /// Keeps the counts of a store that is not used any more.
    pub(crate) fn add_ended(&self, store: &Store) {
        let stats = store.stats();
        let mut ended = lock(&self.ended);
        *ended = ended.and(Stats {
            records: 0,
            used_bytes: 0,
            pinned_bytes: 0,
            capacity_bytes: 0,
            files: 0,
            ..stats
        });
    }

    /// Opens a new store in a lost directory, if that is on the same file system as before: the
    /// place where a missing disk is mounted is on another one. A directory of another user, or a
    /// link in place of the directory, is not used.
    fn come_back(&self) -> Result<()> {
        let (dir, before) = (&*self.config.dir, *lock(&self.opened));
        let lost = || Error::Lost { operation: "open the store" };
        let existing = dir.ancestors().find_map(|path| identity(path).ok());
        if before.is_some_and(|before| existing.is_none_or(|now| now.device != before.device)) {
            return Err(lost());
        }
        if let Ok(now) = identity(dir) {
            if before.is_some_and(|before| (now.owner, now.is_link) != (before.owner, before.is_link)) {
                return Err(lost());
            }
            self.probe()?;
        }
        self.open(true)
    }
}

/// Returns true if a call failed for lack of descriptors or memory, not because of the disk.
fn lacks_resources(error: &Error) -> bool {
    let Error::System(error) = error else { return false };
    let lacking = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(Errno::raw_os_error);
    error.errno().is_some_and(|errno| lacking.contains(&errno))
}
