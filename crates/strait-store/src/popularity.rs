//! Numbers of requests, and the eviction policy that they feed.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use crate::file::lock;
use crate::format::RECORD_ALIGN;
use crate::policy::{Dropped, Policy, Sample, WindowTuner};
use crate::record::Record;

/// The tuner begins again once the number of records has changed by this factor.
const RECORDS_FACTOR: u64 = 4;

/// Popularity of the objects of a store.
#[derive(Debug)]
pub(crate) struct Popularity {
    policy: Mutex<Policy>,
    dropped: RwLock<Dropped>,
    tuner: Mutex<Option<WindowTuner>>,
    /// Sample of the objects that the tuner simulates.
    sample: AtomicU32,
    /// Number of records for which the tuner was made.
    tuned_records: AtomicU64,
    capacity_bytes: u64,
}

impl Popularity {
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        Self {
            policy: Mutex::new(Policy::new(capacity_bytes)),
            dropped: RwLock::default(),
            tuner: Mutex::default(),
            sample: AtomicU32::new(Sample::NOTHING.code()),
            tuned_records: AtomicU64::new(0),
            capacity_bytes,
        }
    }

    /// Locks the policy.
    pub(crate) fn policy(&self) -> MutexGuard<'_, Policy> {
        lock(&self.policy)
    }

    /// Returns the number of requests of an object that was dropped, or 0.
    pub(crate) fn requests_of_dropped(&self, hash: u64) -> u8 {
        self.dropped.read().unwrap_or_else(PoisonError::into_inner).requests(hash)
    }

    /// Remembers the numbers of requests of dropped records.
    pub(crate) fn remember(&self, records: &[Arc<Record>]) {
        let mut dropped = self.dropped();
        for record in records {
            dropped.remember(record.hash, record.hits().saturating_add(1));
        }
    }

    /// Locks the numbers of requests of dropped objects for changes.
    pub(crate) fn dropped(&self) -> RwLockWriteGuard<'_, Dropped> {
        self.dropped.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request for an object, found or stored. Does not wait: if another thread is in the
    /// tuner, it misses this request.
    pub(crate) fn note_request(&self, record: &Record) {
        let hash = record.hash;
        // With a header: objects without a body use memory in the simulation, too.
        let bytes = RECORD_ALIGN + record.body_len();
        if !Sample::from_code(self.sample.load(Ordering::Relaxed)).has(hash) {
            return;
        }
        let share = match self.tuner.try_lock() {
            Ok(mut tuner) => tuner.as_mut().and_then(|tuner| tuner.request(hash, bytes)),
            Err(_) => None,
        };
        if let Some(share) = share {
            self.policy().set_window_share(share);
        }
    }

    /// Makes the tuner for a full store of that many records, unless it has a fitting one.
    pub(crate) fn tune_for(&self, records: u64) {
        let tuned = self.tuned_records.load(Ordering::Relaxed);
        if (tuned / RECORDS_FACTOR..tuned.saturating_mul(RECORDS_FACTOR)).contains(&records) {
            return;
        }
        self.tuned_records.store(records, Ordering::Relaxed);
        let tuner = WindowTuner::new(self.capacity_bytes, records);
        self.sample.store(tuner.sample().code(), Ordering::Relaxed);
        self.policy().set_window_share(tuner.share());
        *lock(&self.tuner) = Some(tuner);
    }
}
