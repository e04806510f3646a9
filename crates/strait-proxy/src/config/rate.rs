//! Rate limit of a route: a token bucket for each client, which all workers share.
//!
//! A bucket is one number: the time at which it is full again (GCRA, the generic cell rate
//! algorithm of ATM). A bucket whose time has passed equals none, so places are reused without a
//! sweep. The table has a fixed size: each client has a place in one set, and if all places of the
//! set are in use, the bucket that is full the soonest is forgotten and counted. A flood of clients
//! so takes no place of those that are limited. The hash has a secret key: no client can choose its
//! set.

use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::config::edge::Rate;
use crate::config::route_name::RouteName;

/// Places of a set.
const WAYS: usize = 8;

/// Rate limit of a route.
#[derive(Debug)]
pub(crate) struct RateLimit {
    pub(crate) name: RouteName,
    config: Rate,
    /// State of its clients. A reload keeps it.
    state: Arc<State>,
}

/// State of the clients of a rate limit.
#[derive(Debug)]
pub(crate) struct State {
    /// Nanoseconds of one request.
    interval: u64,
    /// Nanoseconds that a bucket may be behind.
    tolerance: u64,
    sets: Box<[Mutex<[Place; WAYS]>]>,
    hasher: RandomState,
    started: Instant,
    /// Requests that were refused.
    refused: AtomicU64,
    /// Buckets that were forgotten before they were full.
    evicted: AtomicU64,
}

/// Bucket of a client; free from `full_at` on.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    client: u64,
    /// Nanoseconds since the start.
    full_at: u64,
}

impl RateLimit {
    /// Makes a limit from a checked configuration, with the state of the same route with the same
    /// configuration in `before`.
    pub(crate) fn new(name: &RouteName, config: &Rate, before: &[Arc<Self>]) -> Self {
        let same = before.iter().find(|limit| limit.name.is_of_same(name) && limit.config == *config);
        let state = same.map_or_else(|| Arc::new(State::new(config)), |same| same.state.clone());
        Self { name: name.clone(), config: config.clone(), state }
    }

    /// Returns the field whose value stands for the client, if there is one.
    pub(crate) fn field(&self) -> Option<&str> {
        self.config.field.as_deref()
    }

    /// Takes a token of a client's bucket at a time. Returns the time until there is one, if there
    /// is none.
    pub(crate) fn take(&self, client: impl Hash, now: Instant) -> Result<(), Duration> {
        self.state.take(client, now)
    }

    /// Returns the number of requests that were refused, which counts on.
    pub(crate) fn refused(&self) -> &AtomicU64 {
        &self.state.refused
    }

    /// Returns the number of buckets that were forgotten before they were full.
    pub(crate) fn evicted(&self) -> &AtomicU64 {
        &self.state.evicted
    }
}

impl State {
    fn new(config: &Rate) -> Self {
        let interval = config.per * 1_000_000_000 / config.requests.max(1);
        let sets = config.clients.div_ceil(WAYS as u64).max(1);
        Self {
            interval,
            tolerance: interval.saturating_mul(config.burst.unwrap_or(config.requests).max(1) - 1),
            sets: (0..sets).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            started: Instant::now(),
            refused: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    fn take(&self, client: impl Hash, now: Instant) -> Result<(), Duration> {
        let client = self.hasher.hash_one(client);
        let now = u64::try_from(now.saturating_duration_since(self.started).as_nanos()).unwrap_or(u64::MAX);
        let Some(set) = self.sets.get(client as usize % self.sets.len()) else { return Ok(()) };
        let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
        let is_own = |place: &&mut Place| place.client == client;
        let (full_at, place) = match set.iter_mut().find(is_own) {
            Some(own) => (own.full_at.max(now), Some(own)),
            None => (now, None),
        };
        let wait = (full_at - now).saturating_sub(self.tolerance);
        if wait > 0 {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Duration::from_nanos(wait));
        }
        let taken = Place { client, full_at: full_at.saturating_add(self.interval) };
        if let Some(own) = place {
            *own = taken;
        } else if let Some(soonest) = set.iter_mut().min_by_key(|place| place.full_at) {
            self.evicted.fetch_add(u64::from(soonest.full_at > now), Ordering::Relaxed);
            *soonest = taken;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limit(requests: u64, per: u64, burst: u64, clients: u64) -> State {
        State::new(&Rate { requests, per, burst: Some(burst), clients, field: None })
    }

    fn at(limit: &State, ms: u64) -> Instant {
        limit.started + Duration::from_millis(ms)
    }

    #[test]
    fn burst_comes_at_once_and_the_rest_at_the_rate() {
        let limit = limit(10, 1, 3, 100);
        let taken = |ms| limit.take(1, at(&limit, ms));
        assert_eq!([taken(0), taken(0), taken(0)], [Ok(()); 3]);
        assert_eq!(taken(0), Err(Duration::from_millis(100)));
        assert_eq!(taken(60), Err(Duration::from_millis(40)));
        assert_eq!((taken(100), taken(100)), (Ok(()), Err(Duration::from_millis(100))));
        assert_eq!(limit.take(2, at(&limit, 100)), Ok(()), "another client has its own");
        assert_eq!(limit.refused.load(Ordering::Relaxed), 3);
        // After a long time there is one burst, not more.
        assert_eq!([taken(900_000), taken(900_000), taken(900_000)], [Ok(()); 3]);
        assert!(taken(900_000).is_err());
    }

    #[test]
    fn flood_of_clients_is_bounded_and_frees_no_limited_client() {
        let limit = limit(1, 60, 20, 64);
        while limit.take(0_u64, at(&limit, 0)).is_ok() {}
        for client in 1..10_000_u64 {
            assert_eq!(limit.take(client, at(&limit, 1)), Ok(()));
        }
        assert!(limit.take(0_u64, at(&limit, 2)).is_err());
        assert_eq!(limit.sets.len(), 8);
        assert_eq!(limit.evicted.load(Ordering::Relaxed), 10_000 - 64);
        // Full buckets are replaced without a count.
        assert_eq!(limit.take(0_u64, at(&limit, 3_600_000)), Ok(()));
        assert_eq!(limit.take(20_000_u64, at(&limit, 3_600_000)), Ok(()));
        assert_eq!(limit.evicted.load(Ordering::Relaxed), 10_000 - 64);
    }

    #[test]
    fn largest_values_have_a_burst() {
        let limit = limit(1, 86_400, 1_000_000, 8);
        assert!((0..1000).all(|_| limit.take(1, at(&limit, 0)).is_ok()));
    }

    #[test]
    fn limit_holds_over_all_threads() {
        let limit = limit(1, 3600, 100, 8);
        let now = at(&limit, 0);
        let taken: usize = std::thread::scope(|scope| {
            let count = || (0..1000).filter(|_| limit.take(7, now).is_ok()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(taken, 100);
    }

    proptest! {
        /// Compares with a bucket that is refilled continuously, in units of a request's interval.
        #[test]
        fn bucket_equals_one_that_is_refilled(
            burst in 1_u64..6,
            steps in prop::collection::vec(0_u64..400, 1..60),
        ) {
            let limit = limit(10, 1, burst, 8);
            let (mut tokens, mut ms) = (burst * 100, 0);
            for step in steps {
                ms += step;
                tokens = (tokens + step).min(burst * 100);
                let expected = tokens >= 100;
                tokens -= if expected { 100 } else { 0 };
                prop_assert_eq!(limit.take(1, at(&limit, ms)).is_ok(), expected, "at {} ms", ms);
            }
        }
    }
}
