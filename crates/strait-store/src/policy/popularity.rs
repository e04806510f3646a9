//! Numbers of requests of a cache that several threads use, and the policy that they feed.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use super::{Dropped, Policy, Sample, WindowTuner};

/// The tuner begins again once the number of objects has changed by this factor.
const OBJECTS_FACTOR: u64 = 4;

/// Popularity of the objects of a cache.
#[derive(Debug)]
pub struct Popularity {
    policy: Mutex<Policy>,
    dropped: RwLock<Dropped>,
    tuner: Mutex<Option<WindowTuner>>,
    /// Sample of the objects that the tuner simulates.
    sample: AtomicU32,
    /// Number of objects for which the tuner was made.
    tuned_objects: AtomicU64,
    agings: AtomicU32,
}

impl Popularity {
    /// Popularity in a cache of `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            policy: Mutex::new(Policy::new(capacity_bytes)),
            dropped: RwLock::default(),
            tuner: Mutex::default(),
            sample: AtomicU32::new(Sample::NOTHING.code()),
            tuned_objects: AtomicU64::new(0),
            agings: AtomicU32::new(0),
        }
    }

    /// Sets the capacity of the cache.
    pub fn set_capacity(&self, capacity_bytes: u64) {
        self.policy().set_capacity(capacity_bytes);
        self.tuned_objects.store(0, Ordering::Relaxed);
    }

    /// Locks the policy.
    pub fn policy(&self) -> MutexGuard<'_, Policy> {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of requests of an object that was dropped, or 0.
    pub fn requests_of_dropped(&self, hash: u64) -> u8 {
        self.dropped.read().unwrap_or_else(PoisonError::into_inner).requests(hash)
    }

    /// Remembers the hashes and the numbers of requests of dropped objects.
    pub fn remember(&self, objects: impl IntoIterator<Item = (u64, u8)>) {
        let mut dropped = self.dropped();
        for (hash, requests) in objects {
            dropped.remember(hash, requests);
        }
    }

    fn dropped(&self) -> RwLockWriteGuard<'_, Dropped> {
        self.dropped.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request for an object of `bytes`, found or stored. Does not wait: if another thread
    /// is in the tuner, it misses this request.
    pub fn note_request(&self, hash: u64, bytes: u64) {
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

    /// Counts bytes that left the window of a full cache with that many objects. Halves the numbers
    /// of requests of dropped objects if that is due; returns true if the caller must halve those
    /// of all others.
    pub fn count_written(&self, bytes: u64, objects: usize) -> bool {
        self.tune_for(objects as u64);
        let is_due = self.policy().count_written(bytes);
        let mut dropped = self.dropped();
        dropped.grow(objects);
        if is_due {
            dropped.age();
            self.agings.fetch_add(1, Ordering::AcqRel);
        }
        is_due
    }

    /// Returns how often the numbers of requests were halved.
    pub fn agings(&self) -> u32 {
        self.agings.load(Ordering::Acquire)
    }

    /// Makes the tuner for a full cache of that many objects, unless it has a fitting one.
    fn tune_for(&self, objects: u64) {
        let tuned = self.tuned_objects.load(Ordering::Relaxed);
        if (tuned / OBJECTS_FACTOR..tuned.saturating_mul(OBJECTS_FACTOR)).contains(&objects) {
            return;
        }
        self.tuned_objects.store(objects, Ordering::Relaxed);
        let mut policy = self.policy();
        let tuner = WindowTuner::new(policy.capacity_bytes(), objects);
        policy.set_window_share(tuner.share());
        drop(policy);
        self.sample.store(tuner.sample().code(), Ordering::Relaxed);
        *self.tuner.lock().unwrap_or_else(PoisonError::into_inner) = Some(tuner);
    }
}
