//! Public interface of the store.

use std::future::poll_fn;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fd::OwnedFd;
use smallvec::SmallVec;

use crate::check::{Check, Verified};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::file::lock;
use crate::format::{Layout, hash_of_pieces};
use crate::index::Index;
use crate::lane::{Head, NewObject};
use crate::read::Loaded;
use crate::record::{Location, Record};
use crate::shared::Shared;
use crate::stats::Stats;
use crate::writer::Writer;
use crate::{append, background, load, open, read, sync};

/// Limit of bodies that are rewritten with a new meta; longer ones stay in place.
const REWRITE_BYTES_MAX: usize = 64 << 10;
/// Attempts of an update that is disturbed by eviction moving the record.
const UPDATE_TRIES: usize = 3;

/// Objects on disk, and the index in memory. Only one process can open a directory for writing.
#[derive(Debug)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    background: Mutex<Option<Background>>,
}

/// Background thread and lock, which end with the store.
#[derive(Debug)]
struct Background {
    thread: JoinHandle<()>,
    /// Lock on the directory.
    _lock: Option<OwnedFd>,
}

impl Store {
    /// Opens the store in a directory, and creates it if it is missing. The store serves at once; a
    /// background thread loads the records of earlier sessions. Waits some seconds for processes
    /// that read the directory.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process has it open, [`Error::CapacityTooSmall`] if the segments
    /// of the lanes do not fit.
    pub fn open(config: Config) -> Result<Arc<Self>> {
        Self::open_on(crate::disk::Disk::default(), config)
    }

    /// Opens the store in a directory read-only, and loads all of it. Nothing in the directory is
    /// created, changed or removed: damaged records are removed from the index alone, nothing can
    /// be stored, and removals are lost with the store. [`Stats::capacity_bytes`] is 0.
    ///
    /// Keys, metas and bodies never change and the opened files stay readable, so another process
    /// may open the directory as soon as this returns.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process has it open, [`Error::NoStore`] if there is no store in
    /// it.
    pub fn open_to_read(dir: &Path) -> Result<Arc<Self>> {
        let open::Opened { shared, earlier, lock } = open::open_to_read(dir)?;
        load::load(&shared, earlier);
        drop(lock);
        shared.lifecycle.close();
        Ok(Arc::new(Self { shared: Arc::new(shared), background: Mutex::new(None) }))
    }

    pub(crate) fn open_on(disk: crate::disk::Disk, config: Config) -> Result<Arc<Self>> {
        let (sync_every, scrub) = (config.sync_every, config.scrub);
        let open::Opened { shared, earlier, lock } = open::open(disk, config)?;
        let (shared, thread) = background::start(shared, earlier, sync_every, scrub)?;
        let background = Mutex::new(Some(Background { thread, _lock: lock }));
        Ok(Arc::new(Self { shared, background }))
    }

    /// Returns true if all records of earlier sessions are loaded.
    pub fn is_loaded(&self) -> bool {
        self.shared.loading.is_done()
    }

    /// Waits up to `timeout` for the records of earlier sessions. Returns true if they are loaded.
    pub fn wait_loaded(&self, timeout: Duration) -> bool {
        self.shared.loading.wait_for(timeout)
    }

    /// Waits until a lookup of `hash` finds the records that the journal of the index has, and
    /// requests that they are loaded next. Records that the journal does not know may be missing.
    pub async fn known(&self, hash: u64) {
        let shard = Index::shard_of(hash);
        poll_fn(|context| self.shared.loading.poll_known(shard, context)).await;
    }

    /// Number of the steps of loading so far: the journal, and each scanned file.
    pub fn loading_steps(&self) -> u64 {
        self.shared.loading.steps()
    }

    /// Like [`Self::loading_steps`], and wakes the task at the next step. `Ready` if the store is
    /// loaded.
    pub(crate) fn poll_loading_step(&self, context: &Context<'_>) -> (u64, Poll<()>) {
        self.shared.loading.poll_step(context)
    }

    /// Keeps the records of earlier sessions with this hash of their key out of the index if they
    /// are not loaded yet. The caller then removes those in the index.
    pub fn end_unloaded(&self, hash: u64) {
        self.shared.loading.end_key(hash);
    }

    /// Alive records with this hash of their key, newest first. The caller loads them and compares
    /// keys.
    pub fn find(&self, hash: u64) -> SmallVec<[Arc<Record>; 2]> {
        self.shared.index.find(hash)
    }

    /// Counts a hit. Eviction keeps the records with the most requests.
    pub fn touch(&self, record: &Record) {
        self.shared.touch(record);
    }

    /// Reads key and meta with one pread(2), and the body too if it follows them and has at most
    /// `body_max` bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the record is damaged; it is then removed from the index.
    pub fn load(&self, record: &Arc<Record>, body_max: usize) -> Result<Loaded> {
        read::load(&self.shared, record, body_max)
    }

    /// Stores a whole object, with one pwritev(2) unless it is too long for a segment.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no space now.
    pub fn put(&self, lane: usize, key: &[u8], meta: &[u8], body: &[&[u8]]) -> Result<Arc<Record>> {
        self.put_in_place_of(None, lane, (key, meta), body)
    }

    /// Like [`Self::put`]. Writes nothing if the record that the new one is to replace has ended.
    fn put_in_place_of(
        &self,
        replaced: Option<&Record>,
        lane: usize,
        (key, meta): (&[u8], &[u8]),
        body: &[&[u8]],
    ) -> Result<Arc<Record>> {
        let body_len = body.iter().map(|piece| piece.len() as u64).sum();
        let mut head = self.shared.counted(Head::new(key, meta, body_len))?;
        head.header.body_hash = Some(hash_of_pieces(body));
        head.replaces = replaced;
        let stored = if append::fits_segment(&self.shared, &head.header, body_len) {
            append::put(&self.shared, lane, head, body)
        } else {
            self.put_in_own_file(lane, head, body)
        };
        self.shared.counted(stored)
    }

    /// Stores several whole objects as [`Self::put`] does, adjacent ones with one pwritev(2).
    /// Returns the result of each.
    pub fn put_all(&self, lane: usize, all: &[NewObject<'_>]) -> Vec<Result<Arc<Record>>> {
        let mut stored = Vec::with_capacity(all.len());
        while let Some(next) = all.get(stored.len()) {
            match append::put_run(&self.shared, lane, &all[stored.len()..]) {
                Some(records) => stored.extend(records.into_iter().map(Ok)),
                None => stored.push(self.put(lane, next.key, next.meta, &[next.body])),
            }
        }
        stored
    }

    fn put_in_own_file(&self, lane: usize, head: Head<'_>, body: &[&[u8]]) -> Result<Arc<Record>> {
        let body_len = head.header.body_len;
        let mut writer = Writer::reserve(&self.shared, lane, head, Some(body_len))?;
        writer.grow_to(body_len)?;
        let extent = writer.extent();
        let mut pieces: Vec<_> = body.iter().map(|piece| std::io::IoSlice::new(piece)).collect();
        let written = extent.file.write(&mut pieces, extent.offset);
        written.inspect_err(|error| self.shared.note_shortage(error, body_len))?;
        head.check_wanted()?;
        writer.commit_to(body_len)
    }

    /// Reserves space for an object. Its body follows, with a known or unknown length.
    /// [`Writer::writable_bytes`] is the number of body bytes that may be written before
    /// [`Writer::grow`]. It can be less than a known length if the object is too long for a segment
    /// and for the free space.
    ///
    /// # Errors
    /// [`Error::Full`] if there is no space now.
    pub fn reserve(&self, lane: usize, key: &[u8], meta: &[u8], body_len: Option<u64>) -> Result<Writer> {
        let head = self.shared.counted(Head::new(key, meta, body_len.unwrap_or(0)))?;
        self.shared.counted(Writer::reserve(&self.shared, lane, head, body_len))
    }

    /// Replaces the meta of a record. Returns the new record; `record` is dead afterwards. A long
    /// body stays in place.
    ///
    /// # Errors
    /// [`Error::Removed`] if the record is dead already. After any error except [`Error::Corrupt`]
    /// the record is unchanged.
    pub fn update(&self, lane: usize, record: &Arc<Record>, meta: &[u8]) -> Result<Arc<Record>> {
        const OPERATION: &str = "update";
        let loaded = read::load(&self.shared, record, REWRITE_BYTES_MAX)?;
        if let Some(body) = loaded.body() {
            let updated = self.put_in_place_of(Some(record), lane, (loaded.key(), meta), &[body])?;
            return self.succeed(record, updated, self.shared.end(record), OPERATION);
        }
        let mut tries = (0..UPDATE_TRIES).map(|_| self.refer(lane, record, &loaded, meta).transpose());
        let removed = || Err(Error::Removed { operation: OPERATION });
        let updated = self.shared.counted(tries.find_map(|tried| tried).unwrap_or_else(removed))?;
        self.succeed(record, updated, self.shared.end_head(record), OPERATION)
    }

    /// Replaces a record, whose key is `key`, by one with other meta and another body. Returns the
    /// new record; `record` is dead afterwards.
    ///
    /// # Errors
    /// [`Error::Removed`] if the record is dead already, [`Error::Full`] if there is no space now.
    /// After any error the record is unchanged.
    pub fn rewrite(
        &self,
        lane: usize,
        record: &Arc<Record>,
        (key, meta): (&[u8], &[u8]),
        body: &[&[u8]],
    ) -> Result<Arc<Record>> {
        const OPERATION: &str = "rewrite";
        if !record.is_alive() {
            return Err(Error::Removed { operation: OPERATION });
        }
        let written = self.put_in_place_of(Some(record), lane, (key, meta), body)?;
        self.succeed(record, written, self.shared.end(record), OPERATION)
    }

    /// Completes the replacement of a record. `has_ended`: the replacement has ended it.
    pub(crate) fn succeed(
        &self,
        record: &Record,
        successor: Arc<Record>,
        has_ended: bool,
        operation: &'static str,
    ) -> Result<Arc<Record>> {
        successor.set_requests(record.requests());
        if has_ended {
            self.shared.counters.removed.add(1);
            return Ok(successor);
        }
        // A concurrent removal ended it, and must also end its successor. A body that the successor
        // shares is released by that removal.
        let is_own = successor.location().is_some_and(|location| location.is_whole());
        if is_own {
            self.shared.end(&successor)
        } else {
            self.shared.end_head(&successor)
        };
        Err(Error::Removed { operation })
    }

    /// Writes a record that refers to the body of another; `None` if eviction is moving that body.
    fn refer(
        &self,
        lane: usize,
        record: &Arc<Record>,
        loaded: &Loaded,
        meta: &[u8],
    ) -> Result<Option<Arc<Record>>> {
        let Some(body) = record.body() else { return Ok(None) };
        let mut head = Head::new(loaded.key(), meta, record.body_len())?;
        head.replaces = Some(record);
        head.header.body_file = body.file.number();
        head.header.body_offset = body.offset;
        head.header.body_hash = loaded.header.body_hash;
        let bytes_max = self.shared.segments.extent_bytes_max();
        let bytes = Layout::new(0, head.header.head_len(), 0, false).extent_len();
        if bytes > bytes_max {
            return Err(Error::TooLong { what: "a head", bytes, bytes_max });
        }
        let mut lane = self.shared.lane(lane, "update")?;
        let (file, layout) = append::append(&self.shared, &mut lane, &mut head, &[])?;
        let header = &head.header;
        let location =
            Location { body: body.file, body_offset: body.offset, ..Location::whole(&file, &layout, header) };
        let updated = Record::new(header.hash, header.sequence, header.body_len, location);
        if record.is_checked() {
            updated.set_checked();
        }
        self.shared.insert(&updated);
        // After the insertion into the index, so that a concurrent eviction of the file finds the
        // record. The file has its hash from the record before.
        if updated.body().is_some_and(|body| !body.file.is_dismissed()) {
            self.shared.counters.stored.add(1);
            if header.body_hash.is_none() {
                self.shared.new_bodies.push(&updated);
            }
            return Ok(Some(updated));
        }
        self.shared.end_head(&updated);
        Ok(None)
    }

    /// Removes a record permanently.
    pub fn remove(&self, record: &Arc<Record>) {
        if self.shared.end(record) {
            self.shared.counters.removed.add(1);
        }
    }

    /// All records, newest first.
    pub fn records(&self) -> Vec<Arc<Record>> {
        self.shared.index.all()
    }

    /// Begins a check of a record against its hashes.
    pub fn check(&self, record: &Arc<Record>) -> Check {
        Check::new(record)
    }

    /// Takes the next step of a check: reads at most 256 KiB of the body. Returns true at the end:
    /// the record is intact, or its body has no hash yet.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the record is damaged; it is then removed.
    pub fn check_next(&self, check: &mut Check) -> Result<bool> {
        let step = check.step(&self.shared)?;
        if check.has_hash() == Some(false) {
            check.leave_to_scrub(&self.shared);
            return Ok(true);
        }
        Ok(step.outcome.is_some())
    }

    /// Text about the last damage that was found, once.
    pub fn take_damage(&self) -> Option<String> {
        lock(&self.shared.damage).take()
    }

    /// Reads and checks every record. Damaged ones are removed, and bodies without a hash get one.
    pub fn verify(&self) -> Verified {
        let mut verified = Verified::default();
        for record in self.records() {
            verified.add(&self.shared, &record);
        }
        verified
    }

    /// Syncs all stored records to disk, as the background thread does regularly. Blocks until the
    /// disk is done, and first until the store is loaded.
    pub fn sync(&self) -> Result<()> {
        // Before loading is done, the durable records of earlier sessions are not known.
        self.shared.loading.wait();
        if self.shared.segments.disk.is_read_only() {
            return Ok(());
        }
        self.shared.counted(sync::sync(&self.shared))
    }

    /// State of the store, and its counters.
    pub fn stats(&self) -> Stats {
        let (budget, counters) = (&self.shared.segments.budget, &self.shared.counters);
        Stats {
            records: self.shared.index.len() as u64,
            used_bytes: budget.used_bytes(),
            pinned_bytes: self.shared.segments.unlinks.pinned_bytes(),
            capacity_bytes: budget.capacity_bytes,
            files: budget.files() as u64,
            stored: counters.stored.get(),
            removed: counters.removed.get(),
            evicted: counters.evicted.get(),
            reinserted: counters.reinserted.get(),
            reinserted_bytes: counters.reinserted_bytes.get(),
            corrupt: counters.corrupt.get(),
            scrubbed: counters.scrubbed.get(),
            scrubbed_bytes: counters.scrubbed_bytes.get(),
            scrub_cpu_ns: counters.scrub_cpu_ns.get(),
            unsynced: counters.unsynced.get(),
            refused: counters.refused.get(),
            without_spare: counters.without_spare.get(),
            failed: counters.failed.get(),
            lost: 0,
            is_loaded: self.is_loaded(),
        }
    }

    /// Returns true if the record is alive in this store.
    pub(crate) fn holds(&self, record: &Arc<Record>) -> bool {
        self.find(record.hash).iter().any(|other| Arc::ptr_eq(other, record))
    }

    /// Closes the store without a further write, because its disk has failed. All records end, and
    /// stay on disk. Blocks until the calls under way have returned.
    pub(crate) fn abandon(&self) {
        self.shared.lifecycle.abandon();
        // First those that the failed disk would be read for; at last those of the calls that had a
        // lane then.
        self.forget_all();
        self.close();
        self.shared.lanes.iter().for_each(|lane| drop(lock(lane)));
        self.forget_all();
    }

    /// Removes all records from the index, and leaves them on disk.
    pub(crate) fn forget_all(&self) {
        self.records().iter().for_each(|record| self.shared.forget(record));
    }

    /// Closes the store in order: refuses writes from now on, syncs, and writes the whole
    /// index for the next session. Reading continues to work. Blocks until the disk is done.
    pub fn close(&self) {
        self.shared.lifecycle.close();
        if let Some(background) = lock(&self.background).take() {
            self.shared.lifecycle.wake();
            // The thread does not panic; if it did, the next session scans.
            let _ = background.thread.join();
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}
