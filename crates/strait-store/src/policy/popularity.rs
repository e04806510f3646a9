//! Numbers of requests of a cache that several threads use, and the policy that they feed.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockWriteGuard};

use super::{Balance, Dropped, Policy, Sample, Tuner};

/// The tuner begins again once the number of objects has changed by this factor.
const OBJECTS_FACTOR: u64 = 4;
/// Divisor of the capacity for the bytes that show how many objects will fit.
const FIRST_DIVISOR: u64 = 8;

/// Popularity of the objects of a cache.
#[derive(Debug)]
pub struct Popularity {
    policy: Mutex<Policy>,
    dropped: RwLock<Dropped>,
    tuner: Mutex<Option<Tuner>>,
    /// Sample of the objects that the tuner simulates.
    sample: AtomicU32,
    /// Number of objects for which the tuner was made; 0 before that.
    tuned_objects: AtomicU64,
    /// False in the tuner's own simulations.
    is_tuned: bool,
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
            is_tuned: true,
            agings: AtomicU32::new(0),
        }
    }

    /// Popularity in a cache with a fixed balance.
    pub(super) fn with_balance(capacity_bytes: u64, balance: Balance) -> Self {
        let popularity = Self { is_tuned: false, ..Self::new(capacity_bytes) };
        popularity.policy().set_balance(balance);
        popularity
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
        let balance = match self.tuner.try_lock() {
            Ok(mut tuner) => tuner.as_mut().and_then(|tuner| tuner.request(hash, bytes)),
            Err(_) => None,
        };
        if let Some(balance) = balance {
            self.policy().set_balance(balance);
        }
    }

    /// Notes that the cache has that many objects, which use `bytes`. The tuner begins once they
    /// show how many will fit.
    pub fn note_objects(&self, objects: usize, bytes: u64) {
        if !self.is_tuned || self.tuned_objects.load(Ordering::Relaxed) > 0 {
            return;
        }
        let capacity_bytes = self.policy().capacity_bytes();
        if bytes >= capacity_bytes / FIRST_DIVISOR {
            let fitting = objects as f64 * capacity_bytes as f64 / bytes.max(1) as f64;
            self.tune_for(fitting as u64);
        }
    }

    /// Counts bytes that left the window of a full cache with that many objects. Halves the numbers
    /// of requests of dropped objects if that is due, and counts an aging.
    pub fn count_written(&self, bytes: u64, objects: usize) {
        if self.is_tuned {
            self.tune_for(objects as u64);
        }
        let is_due = self.policy().count_written(bytes);
        let mut dropped = self.dropped();
        dropped.grow(objects);
        if is_due {
            dropped.age();
            self.agings.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Returns the number of agings. For each of them, the owner of the objects halves their
    /// numbers of requests.
    pub fn agings(&self) -> u32 {
        self.agings.load(Ordering::Acquire)
    }

    /// Makes the tuner for a cache of that many objects, unless it has a fitting one.
    fn tune_for(&self, objects: u64) {
        let tuned = self.tuned_objects.load(Ordering::Relaxed);
        if (tuned / OBJECTS_FACTOR..tuned.saturating_mul(OBJECTS_FACTOR)).contains(&objects) {
            return;
        }
        self.tuned_objects.store(objects.max(1), Ordering::Relaxed);
        let mut policy = self.policy();
        let tuner = Tuner::new(policy.capacity_bytes(), objects);
        policy.set_balance(tuner.balance());
        drop(policy);
        self.sample.store(tuner.sample().code(), Ordering::Relaxed);
        *self.tuner.lock().unwrap_or_else(PoisonError::into_inner) = Some(tuner);
    }
}
