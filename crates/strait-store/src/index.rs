//! Index from a key's hash to its records. A lookup holds a shared lock of one of 1,024 shards for
//! a few nanoseconds. Only an insertion or a removal in that shard blocks it.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::record::Record;

/// Enough shards that two threads seldom use one, and that growing a table is short.
const SHARDS: usize = 1024;

type Table = HashTable<Arc<Record>>;

#[derive(Debug)]
pub(crate) struct Index {
    shards: Box<[RwLock<Table>]>,
    records: AtomicUsize,
    /// Agings that the records have had.
    agings: AtomicU32,
}

impl Index {
    pub(crate) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::new(Table::new())).collect();
        Self { shards, records: AtomicUsize::new(0), agings: AtomicU32::new(0) }
    }

    /// Number of records.
    pub(crate) fn len(&self) -> usize {
        self.records.load(Ordering::Relaxed)
    }

    /// Alive records of `hash`, newest first.
    pub(crate) fn find(&self, hash: u64) -> SmallVec<[Arc<Record>; 2]> {
        let table = self.read(hash);
        let of_hash = table.iter_hash(hash).filter(|record| record.hash == hash && record.is_alive());
        let mut found: SmallVec<[Arc<Record>; 2]> = of_hash.cloned().collect();
        drop(table);
        if found.len() > 1 {
            found.sort_unstable_by_key(|record| std::cmp::Reverse(record.sequence()));
        }
        found
    }

    pub(crate) fn insert(&self, record: Arc<Record>) {
        self.write(record.hash).insert_unique(record.hash, record, |record| record.hash);
        self.records.fetch_add(1, Ordering::Relaxed);
    }

    /// Prepares for that many records in all, so that the tables do not grow one by one: each
    /// growth reads all records of a shard.
    pub(crate) fn reserve(&self, records: usize) {
        // Some shards have more than others.
        let of_shard = (records + records / 8) / SHARDS;
        for shard in &self.shards {
            let mut table = shard.write().unwrap_or_else(PoisonError::into_inner);
            table.reserve(of_shard, |record| record.hash);
        }
    }

    /// Removes a record. Returns false if it was not in the index.
    pub(crate) fn remove(&self, record: &Arc<Record>) -> bool {
        let mut table = self.write(record.hash);
        let Ok(entry) = table.find_entry(record.hash, |other| Arc::ptr_eq(other, record)) else {
            return false;
        };
        entry.remove();
        self.records.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Halves the numbers of requests of all records once for each aging since the last call.
    pub(crate) fn age_to(&self, agings: u32) {
        let due = agings.wrapping_sub(self.agings.swap(agings, Ordering::AcqRel));
        if due == 0 {
            return;
        }
        for shard in &self.shards {
            let table = shard.read().unwrap_or_else(PoisonError::into_inner);
            table.iter().for_each(|record| record.age(due));
        }
    }

    /// All records, newest first.
    pub(crate) fn all(&self) -> Vec<Arc<Record>> {
        let mut all = self.all_unordered();
        all.sort_unstable_by_key(|record| std::cmp::Reverse(record.sequence()));
        all
    }

    /// All records, by shard.
    pub(crate) fn all_unordered(&self) -> Vec<Arc<Record>> {
        let mut all = Vec::with_capacity(self.len());
        for shard in &self.shards {
            all.extend(shard.read().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        }
        all
    }

    fn read(&self, hash: u64) -> RwLockReadGuard<'_, Table> {
        self.shard(hash).read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, hash: u64) -> RwLockWriteGuard<'_, Table> {
        self.shard(hash).write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of the shard with the records of `hash`.
    pub(crate) fn shard_of(hash: u64) -> usize {
        // The hash table uses the lowest and the highest bits; the shard uses others.
        (hash >> 32) as usize % SHARDS
    }

    fn shard(&self, hash: u64) -> &RwLock<Table> {
        &self.shards[Self::shard_of(hash)]
    }
}
