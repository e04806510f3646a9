//! Stores in several directories, usually on several disks, used as one.
//!
//! An object is placed by rendezvous hashing of its key and the directories. A lookup asks all
//! stores: it does not depend on the placement, so no object is missed, and none is forgotten by a
//! removal, when the set of directories changes.
//!
//! A directory is *lost* if it was deleted or replaced, or if its disk fails: its objects become
//! misses, and others are placed elsewhere. It is tried again regularly. Once it can be used it is
//! emptied, because its objects have missed the removals meanwhile.

use std::future::poll_fn;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use smallvec::SmallVec;

use crate::check::{Check, Verified};
use crate::config::Config;
use crate::disk::Disk;
use crate::durability::CHECKPOINT;
use crate::enospc::is_no_space;
use crate::error::{Error, Result};
use crate::file::lock;
use crate::format::hash_of;
use crate::identity::{Identity, identity};
use crate::lane::NewObject;
use crate::open::files_allowed;
use crate::read::Loaded;
use crate::record::Record;
use crate::stats::Stats;
use crate::store::Store;
use crate::writer::Writer;

/// Interval between two checks of a directory.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// File that a check writes after a failed call.
const PROBE: &str = "probe";

/// Change of a directory's state.
#[derive(Debug)]
pub enum Change<'a> {
    /// It can no longer be used.
    Lost(&'a Path, &'a Error),
    /// It is used again, empty.
    Back(&'a Path),
    /// It is used again, with its objects.
    Reopened(&'a Path),
}

/// Callback for a change.
pub type OnChange = Arc<dyn Fn(&Change<'_>) + Send + Sync>;

/// Stores in several directories.
#[derive(Debug)]
pub struct Stores {
    members: Box<[Arc<Member>]>,
    watches: Mutex<Vec<JoinHandle<()>>>,
}

/// One directory.
#[derive(Debug)]
struct Member {
    config: Config,
    disk: Disk,
    /// Hash of the directory's path.
    hash: u64,
    /// `None` while the directory is lost.
    store: RwLock<Option<Arc<Store>>>,
    /// Counts of its earlier stores.
    ended: Mutex<Stats>,
    /// Directory of a closed store whose objects can be used again: no removal was missed since.
    kept: Mutex<Option<Identity>>,
    is_closed: Mutex<bool>,
    closed: Condvar,
}

impl Stores {
    /// Opens the stores of several directories, and watches these. `on_change` gets each change of
    /// their states.
    ///
    /// # Errors
    /// As of [`Store::open`]. If there are several directories, those that fail with
    /// [`Error::System`] count as lost, unless all do.
    pub fn open(mut configs: Vec<Config>, on_change: &OnChange) -> Result<Arc<Self>> {
        let files_max = files_allowed() / configs.len().max(1);
        for config in &mut configs {
            config.files_max.get_or_insert(files_max);
        }
        Self::open_on(configs.into_iter().map(|config| (Disk::default(), config)).collect(), on_change)
    }

    pub(crate) fn open_on(members: Vec<(Disk, Config)>, on_change: &OnChange) -> Result<Arc<Self>> {
        let members: Box<[_]> =
            members.into_iter().map(|(disk, config)| Arc::new(Member::new(disk, config))).collect();
        let mut failed = None;
        for member in &members {
            match member.open(member.is_noted_in(&members)) {
                Ok(()) => {}
                Err(error @ Error::System(_)) => {
                    on_change(&Change::Lost(&member.config.dir, &error));
                    failed = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        for member in &members {
            let is_lost = member.store().is_none();
            if is_lost { member.note_lost(&members) } else { member.forget_lost(&members) }
        }
        if let Some(error) = failed.filter(|_| members.iter().all(|member| member.store().is_none())) {
            return Err(error);
        }
        let stores = Self { members, watches: Mutex::default() };
        stores.watch(on_change)?;
        Ok(Arc::new(stores))
    }

    /// Starts the watch of each directory.
    fn watch(&self, on_change: &OnChange) -> Result<()> {
        for member in &self.members {
            let (own, all, on_change) = (member.clone(), self.members.clone(), on_change.clone());
            // Before the thread runs, which may be late.
            let opened = member.store().and_then(|_| identity(&member.config.dir).ok());
            let opened = opened.or(*lock(&member.kept));
            let watch = thread::Builder::new().name("strait-disk".into());
            let watch = watch.spawn(move || own.watch(&all, opened, &on_change));
            let watch = watch.map_err(|error| Error::io("start a thread for", &member.config.dir, &error))?;
            lock(&self.watches).push(watch);
        }
        Ok(())
    }

    /// Opens the directories again after [`Self::close`], with their objects. Records from before
    /// are dead afterwards. Directories that cannot be opened count as lost, and are tried again;
    /// their objects are kept until a removal is missed.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn reopen(&self, on_change: &OnChange) -> Result<()> {
        self.forget();
        for member in &self.members {
            if let Some(ended) = member.set(None) {
                member.add_ended(&ended);
            }
            let dir = &*member.config.dir;
            if let Err(error) = member.take_back(&self.members) {
                on_change(&Change::Lost(dir, &error));
            }
            *lock(&member.is_closed) = false;
        }
        self.watch(on_change)
    }

    /// Notes a removal by anything but a key. To be called before it.
    pub fn note_removal(&self) {
        for member in self.members.iter().filter(|member| member.store().is_none()) {
            *lock(&member.kept) = None;
        }
    }

    /// Removes all records from the index, and leaves them on disk for the next session or for
    /// another process. For closed stores, which another process may have opened.
    pub fn forget(&self) {
        self.all().for_each(|store| store.forget_all());
    }

    /// Uses one store, without a watch.
    pub fn of(store: Arc<Store>) -> Arc<Self> {
        let member = Member::new(Disk::default(), Config::new(""));
        member.set(Some(store));
        Arc::new(Self { members: Box::new([Arc::new(member)]), watches: Mutex::default() })
    }

    /// The stores of the directories that are not lost.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<Store>> {
        self.members.iter().filter_map(|member| member.store())
    }

    /// Store for a new object: the one with the highest hash of directory and key.
    fn place(&self, hash: u64, operation: &'static str) -> Result<Arc<Store>> {
        let all = self.members.iter().filter_map(|member| Some((member.rank(hash), member.store()?)));
        let highest = all.max_by_key(|(rank, _)| *rank);
        highest.map(|(_, store)| store).ok_or(Error::Lost { operation })
    }

    /// Store of a record; `None` if the record is dead.
    fn of_record(&self, record: &Arc<Record>) -> Option<Arc<Store>> {
        let mut all = self.all();
        if self.members.len() == 1 { all.next() } else { all.find(|store| store.holds(record)) }
    }

    /// As [`Store::is_loaded`], of all stores.
    pub fn is_loaded(&self) -> bool {
        self.all().all(|store| store.is_loaded())
    }

    /// As [`Store::wait_loaded`], of all stores.
    pub fn wait_loaded(&self, timeout: Duration) -> bool {
        let begin = Instant::now();
        self.all().all(|store| store.wait_loaded(timeout.saturating_sub(begin.elapsed())))
    }

    /// As [`Store::known`], of all stores.
    pub async fn known(&self, hash: u64) {
        for store in self.all() {
            store.known(hash).await;
        }
    }

    /// As [`Store::loading_steps`], of all stores.
    pub fn loading_steps(&self) -> u64 {
        self.all().map(|store| store.loading_steps()).sum()
    }

    /// Waits until there are more steps than `steps`, or all is loaded.
    pub async fn loaded_after(&self, steps: u64) {
        poll_fn(|context| {
            let polled = self.all().map(|store| store.poll_loading_step(context));
            let (now, is_done) = polled
                .fold((0, true), |(now, is_done), (of_it, poll)| (now + of_it, is_done && poll.is_ready()));
            if now != steps || is_done { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// As [`Store::end_unloaded`], of all stores.
    pub fn end_unloaded(&self, hash: u64) {
        self.note_removal();
        self.all().for_each(|store| store.end_unloaded(hash));
    }

    /// Alive records with this hash of their key; those of one store newest first.
    pub fn find(&self, hash: u64) -> SmallVec<[Arc<Record>; 2]> {
        let mut all = self.all().map(|store| store.find(hash));
        let mut found = all.next().unwrap_or_default();
        all.for_each(|others| found.extend(others));
        found
    }

    /// As [`Store::touch`].
    pub fn touch(&self, record: &Arc<Record>) {
        if let Some(store) = self.of_record(record) {
            store.touch(record);
        }
    }

    /// As [`Store::load`].
    ///
    /// # Errors
    /// As of that, and [`Error::Removed`] if the record is dead.
    pub fn load(&self, record: &Arc<Record>, body_max: usize) -> Result<Loaded> {
        self.of_record(record).ok_or(Error::Removed { operation: "load" })?.load(record, body_max)
    }

    /// As [`Store::put`].
    ///
    /// # Errors
    /// As of that, and [`Error::Lost`] if all directories are lost.
    pub fn put(&self, lane: usize, key: &[u8], meta: &[u8], body: &[&[u8]]) -> Result<Arc<Record>> {
        self.place(hash_of(key), "put")?.put(lane, key, meta, body)
    }

    /// As [`Store::put_all`].
    ///
    /// # Errors
    /// As of [`Self::put`], for each object.
    pub fn put_all(&self, lane: usize, all: &[NewObject<'_>]) -> Vec<Result<Arc<Record>>> {
        let places: Vec<_> = all.iter().map(|new| self.place(hash_of(new.key), "put").ok()).collect();
        let mut results: Vec<_> = all.iter().map(|_| Err(Error::Lost { operation: "put" })).collect();
        for member in self.all() {
            let is_here =
                |place: &Option<Arc<Store>>| place.as_ref().is_some_and(|it| Arc::ptr_eq(it, &member));
            let own: Vec<_> = (0..all.len()).filter(|index| is_here(&places[*index])).collect();
            let news: Vec<_> = own.iter().map(|index| all[*index]).collect();
            for (index, stored) in own.into_iter().zip(member.put_all(lane, &news)) {
                results[index] = stored;
            }
        }
        results
    }

    /// As [`Store::reserve`].
    ///
    /// # Errors
    /// As of that, and [`Error::Lost`] if all directories are lost.
    pub fn reserve(&self, lane: usize, key: &[u8], meta: &[u8], body_len: Option<u64>) -> Result<Writer> {
        self.place(hash_of(key), "reserve")?.reserve(lane, key, meta, body_len)
    }

    /// As [`Store::update`].
    ///
    /// # Errors
    /// As of that.
    pub fn update(&self, lane: usize, record: &Arc<Record>, meta: &[u8]) -> Result<Arc<Record>> {
        self.of_record(record).ok_or(Error::Removed { operation: "update" })?.update(lane, record, meta)
    }

    /// As [`Store::rewrite`].
    ///
    /// # Errors
    /// As of that.
    pub fn rewrite(
        &self,
        lane: usize,
        record: &Arc<Record>,
        head: (&[u8], &[u8]),
        body: &[&[u8]],
    ) -> Result<Arc<Record>> {
        self.of_record(record)
            .ok_or(Error::Removed { operation: "rewrite" })?
            .rewrite(lane, record, head, body)
    }

    /// As [`Store::remove`].
    pub fn remove(&self, record: &Arc<Record>) {
        if let Some(store) = self.of_record(record) {
            store.remove(record);
        }
    }

    /// All records; those of one store newest first.
    pub fn records(&self) -> Vec<Arc<Record>> {
        self.all().flat_map(|store| store.records()).collect()
    }

    /// As [`Store::check`].
    pub fn check(&self, record: &Arc<Record>) -> Check {
        Check::new(record)
    }

    /// As [`Store::check_next`].
    ///
    /// # Errors
    /// As of that, and [`Error::Removed`] if the record is dead.
    pub fn check_next(&self, check: &mut Check) -> Result<bool> {
        self.of_record(check.record()).ok_or(Error::Removed { operation: "check" })?.check_next(check)
    }

    /// As [`Store::take_damage`], of the first store with damage.
    pub fn take_damage(&self) -> Option<String> {
        self.all().find_map(|store| store.take_damage())
    }

    /// As [`Store::verify`], of all stores.
    pub fn verify(&self) -> Verified {
        self.all().map(|store| store.verify()).fold(Verified::default(), Verified::and)
    }

    /// Sum over all directories, with the number of lost ones.
    pub fn stats(&self) -> Stats {
        let all = self.members.iter().map(|member| member.stats());
        let mut sum = all.reduce(Stats::and).unwrap_or_default();
        sum.is_loaded = self.is_loaded();
        sum
    }

    /// Closes all stores.
    pub fn close(&self) {
        for member in &self.members {
            member.end_watch();
            let is_open = member.store().is_some();
            *lock(&member.kept) = is_open.then(|| identity(&member.config.dir).ok()).flatten();
        }
        for watch in lock(&self.watches).drain(..) {
            // The thread does not panic; if it did, it has ended as well.
            let _ = watch.join();
        }
        // Each waits for its disk, so all at once.
        thread::scope(|scope| {
            for store in self.all() {
                scope.spawn(move || store.close());
            }
        });
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        self.close();
    }
}

impl Member {
    fn new(disk: Disk, config: Config) -> Self {
        let hash = hash_of(config.dir.as_os_str().as_encoded_bytes());
        let (store, ended) = (RwLock::default(), Mutex::default());
        let (kept, is_closed) = (Mutex::default(), Mutex::default());
        Self { config, disk, hash, store, ended, kept, is_closed, closed: Condvar::new() }
    }

    fn store(&self) -> Option<Arc<Store>> {
        self.store.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, store: Option<Arc<Store>>) -> Option<Arc<Store>> {
        std::mem::replace(&mut self.store.write().unwrap_or_else(PoisonError::into_inner), store)
    }

    /// Rank of the directory for a key.
    fn rank(&self, hash: u64) -> u64 {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&hash.to_le_bytes());
        bytes[8..].copy_from_slice(&self.hash.to_le_bytes());
        hash_of(&bytes)
    }

    fn open(&self, is_emptied: bool) -> Result<()> {
        let config = Config { is_emptied, ..self.config.clone() };
        let store = Store::open_on(self.disk.clone(), config)?;
        self.set(Some(store));
        Ok(())
    }

    /// Opens the store of a directory that was closed, with its objects, if it is still the same.
    fn take_back(&self, all: &[Arc<Self>]) -> Result<()> {
        let kept = *lock(&self.kept);
        self.check(kept, false)?;
        self.open(kept.is_none() || self.is_noted_in(all))
    }

    fn stats(&self) -> Stats {
        let ended = *lock(&self.ended);
        match self.store() {
            Some(store) => ended.and(store.stats()),
            None => Stats { lost: ended.lost + 1, ..ended },
        }
    }

    fn end_watch(&self) {
        *lock(&self.is_closed) = true;
        self.closed.notify_all();
    }

    /// Waits until the next check; returns false if there is none.
    fn wait(&self) -> bool {
        let guard = lock(&self.is_closed);
        let waited = self.closed.wait_timeout_while(guard, CHECK_EVERY, |is_closed| !*is_closed);
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
    fn is_noted_in(&self, all: &[Arc<Self>]) -> bool {
        all.iter().any(|other| other.hash != self.hash && self.note_in(other).exists())
    }

    /// Notes in the other directories that this one was lost, so that it is emptied also after a
    /// restart: otherwise objects that were removed meanwhile would be found again.
    fn note_lost(&self, all: &[Arc<Self>]) {
        for other in self.others(all) {
            // One that cannot be written to is lost as well, by its own check.
            let _ = other.disk.create(&self.note_in(other));
            let _ = other.disk.sync_dir(&other.config.dir);
        }
    }

    /// Removes these notes.
    fn forget_lost(&self, all: &[Arc<Self>]) {
        for other in self.others(all) {
            // A note that stays empties the directory once more.
            let _ = other.disk.unlink(&self.note_in(other));
        }
    }

    /// Checks the directory, which was `identity` when it was opened, regularly until the stores
    /// are closed.
    fn watch(&self, all: &[Arc<Self>], mut identity: Option<Identity>, on_change: &OnChange) {
        let dir = &*self.config.dir;
        let mut failed = 0;
        while self.wait() {
            let Some(store) = self.store() else {
                let is_kept = lock(&self.kept).is_some();
                if is_kept && self.take_back(all).is_ok() {
                    on_change(&Change::Reopened(dir));
                } else if !is_kept && self.come_back(identity).is_ok() {
                    self.forget_lost(all);
                    identity = self::identity(dir).ok();
                    on_change(&Change::Back(dir));
                }
                continue;
            };
            let counted = store.stats().failed;
            let has_failed = counted > std::mem::replace(&mut failed, counted);
            if let Err(error) = self.check(identity, has_failed) {
                failed = 0;
                self.note_lost(all);
                self.give_up(&store, identity);
                on_change(&Change::Lost(dir, &error));
            }
        }
    }

    /// Checks that the directory is the same, and after a failed call that a file can be written
    /// and read.
    fn check(&self, expected: Option<Identity>, has_failed: bool) -> Result<()> {
        let dir = &*self.config.dir;
        let found = identity(dir).map_err(|error| Error::io("find", dir, &error))?;
        let is_same = |expected: Identity| (expected.device, expected.inode) == (found.device, found.inode);
        if !expected.is_none_or(is_same) {
            let replaced = io::Error::other("the directory was replaced");
            return Err(Error::io("find", dir, &replaced));
        }
        if has_failed { self.probe() } else { Ok(()) }
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
    fn give_up(&self, store: &Arc<Store>, expected: Option<Identity>) {
        self.set(None);
        store.abandon();
        if identity(&self.config.dir).ok().is_some_and(|found| expected == Some(found)) {
            // A restart must not find the objects either. The disk may refuse it.
            let _ = self.disk.unlink(&self.config.dir.join(CHECKPOINT));
        }
        self.add_ended(store);
    }

    /// Keeps the counts of a store that is not used any more.
    fn add_ended(&self, store: &Store) {
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
    fn come_back(&self, before: Option<Identity>) -> Result<()> {
        let dir = &*self.config.dir;
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
