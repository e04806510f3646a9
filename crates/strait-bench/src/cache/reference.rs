//! Policies to compare with, on whole objects.

use std::collections::{BTreeSet, HashMap};

use super::ratios::Ratios;
use super::trace::{Request, Trace};

/// Cache that evicts the object with the lowest key. An object's key is replaced by each request.
#[derive(Default)]
struct Ordered {
    keys: HashMap<u64, u64>,
    queue: BTreeSet<(u64, u64, u64)>,
    used_bytes: u64,
}

impl Ordered {
    /// Removes an object. Returns true if it was there.
    fn remove(&mut self, Request { object, bytes }: Request) -> bool {
        let Some(key) = self.keys.remove(&object) else { return false };
        self.used_bytes -= bytes;
        self.queue.remove(&(key, object, bytes))
    }

    /// Adds an object, and evicts others until all fit.
    fn insert(&mut self, Request { object, bytes }: Request, key: u64, capacity_bytes: u64) {
        self.keys.insert(object, key);
        self.queue.insert((key, object, bytes));
        self.used_bytes += bytes;
        while self.used_bytes > capacity_bytes
            && let Some((_, object, bytes)) = self.queue.first().copied()
        {
            self.remove(Request { object, bytes });
        }
    }
}

/// Runs LRU.
pub(super) fn lru(trace: &Trace, capacity_bytes: u64) -> Ratios {
    let (mut cache, mut ratios) = (Ordered::default(), Ratios::default());
    for (time, &request) in (0..).zip(trace) {
        ratios.count(request.bytes, cache.remove(request));
        cache.insert(request, time, capacity_bytes);
    }
    ratios
}

/// Runs LFU with the exact count of each object since the begin, also of those that it has evicted.
/// For independent requests of one distribution, the counts are the maximum-likelihood estimate of
/// the frequencies.
pub(super) fn lfu(trace: &Trace, capacity_bytes: u64) -> Ratios {
    let mut counts = HashMap::new();
    let (mut cache, mut ratios) = (Ordered::default(), Ratios::default());
    for (time, &request) in (0..).zip(trace) {
        let count: &mut u64 = counts.entry(request.object).or_default();
        *count += 1;
        ratios.count(request.bytes, cache.remove(request));
        // Of objects with equal counts, those requested last are kept.
        cache.insert(request, (*count << 32) + time, capacity_bytes);
    }
    ratios
}

/// Runs Belady's algorithm: evicts the object with the latest next request. It is optimal for
/// objects of one size.
pub(super) fn belady(trace: &Trace, capacity_bytes: u64) -> Ratios {
    let next = next_requests(trace);
    let (mut cache, mut ratios) = (Ordered::default(), Ratios::default());
    for (&request, next) in trace.iter().zip(next) {
        ratios.count(request.bytes, cache.remove(request));
        if let Some(next) = next {
            cache.insert(request, u64::MAX - next, capacity_bytes);
        }
    }
    ratios
}

/// Returns the index of the next request for the same object, for each request.
pub(super) fn next_requests(trace: &Trace) -> Vec<Option<u64>> {
    let mut seen = HashMap::new();
    let times = (0..trace.len() as u64).rev().zip(trace.iter().rev());
    let mut next: Vec<_> = times.map(|(time, request)| seen.insert(request.object, time)).collect();
    next.reverse();
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(objects: &[u64]) -> Trace {
        objects.iter().map(|&object| Request { object, bytes: 1 }).collect()
    }

    #[test]
    fn belady_keeps_the_object_that_is_requested_next() {
        let trace = trace(&[1, 2, 3, 1, 2, 3, 1, 2]);
        assert_eq!((belady(&trace, 2).hits, lru(&trace, 2).hits), (4, 0));
    }

    #[test]
    fn lru_evicts_the_object_that_was_not_requested_for_longest() {
        assert_eq!(lru(&trace(&[1, 2, 1, 3, 1, 2]), 2).hits, 2);
    }

    #[test]
    fn lfu_keeps_the_object_that_was_requested_most() {
        // LRU evicts object 1 twice.
        let trace = trace(&[1, 1, 1, 2, 3, 1, 3, 2, 1]);
        assert_eq!((lfu(&trace, 2).hits, lru(&trace, 2).hits), (5, 3));
    }

    #[test]
    fn objects_larger_than_the_cache_are_no_hits() {
        let trace = vec![Request { object: 1, bytes: 5 }; 3];
        assert_eq!((belady(&trace, 2).hits, lru(&trace, 2).hits), (0, 0));
    }
}
