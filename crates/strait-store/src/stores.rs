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
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use crate::check::{Check, Verified};
use crate::config::Config;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::file::lock;
use crate::format::hash_of;
use crate::lane::NewObject;
use crate::member::Member;
use crate::open::files_allowed;
use crate::read::Loaded;
use crate::record::Record;
use crate::stats::Stats;
use crate::store::Store;
use crate::writer::Writer;

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
            let watch = thread::Builder::new().name("strait-disk".into());
            let watch = watch.spawn(move || own.watch(&all, &on_change));
            let watch = watch.map_err(|error| Error::io("start a thread for", &member.config.dir, &error))?;
            lock(&self.watches).push(watch);
        }
        Ok(())
    }

    /// Opens the directories again after [`Self::close`], with their objects. Records from before
    /// are dead afterwards. Directories that cannot be opened count as lost, and are tried again;
    /// their objects are kept until a removal is missed. Directories that were lost before are
    /// tried by the watch.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn reopen(&self, on_change: &OnChange) -> Result<()> {
        // All of them first: a removal must not find the records of a store that is opened again.
        let taken: Vec<_> = self.members.iter().map(|member| member.take_away(&self.members)).collect();
        for (member, store) in self.members.iter().zip(&taken) {
            if let Some(store) = store {
                store.forget_all();
                member.add_ended(store);
            }
        }
        let mut lost = Vec::new();
        for (member, _) in self.members.iter().zip(&taken).filter(|(_, store)| store.is_some()) {
            match member.take_back() {
                Ok(true) => {}
                Ok(false) => on_change(&Change::Back(&member.config.dir)),
                Err(error) => {
                    on_change(&Change::Lost(&member.config.dir, &error));
                    lost.push(member);
                }
            }
        }
        for member in &self.members {
            // A restart would not know of the removals that the objects miss.
            let is_lost = lost.iter().any(|other| Arc::ptr_eq(other, member));
            if is_lost {
                member.note_lost(&self.members);
            } else if member.store().is_some() {
                member.forget_lost(&self.members);
            }
            member.end_close();
        }
        self.watch(on_change)
    }

    /// Notes a removal. To be called before it. If [`Self::changes`] returns another number after
    /// the removal than this call did, the removal may have missed records: it is to be repeated,
    /// with this call.
    pub fn note_removal(&self) -> u64 {
        self.members.iter().map(|member| member.note_removal()).sum()
    }

    /// Number of the times that a store was taken away by [`Self::reopen`], or opened with its
    /// objects after that.
    pub fn changes(&self) -> u64 {
        self.members.iter().map(|member| member.changes()).sum()
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
            member.begin_close();
        }
        let watches = std::mem::take(&mut *lock(&self.watches));
        let is_first = !watches.is_empty();
        for watch in watches {
            // The thread does not panic; if it did, it has ended as well.
            let _ = watch.join();
        }
        // Each waits for its disk, so all at once.
        thread::scope(|scope| {
            for store in self.all() {
                scope.spawn(move || store.close());
            }
        });
        // Later another process may use the directories.
        for member in self.members.iter().filter(|_| is_first) {
            member.discard();
        }
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        self.close();
    }
}
