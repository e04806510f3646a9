//! Registry of the fills of all workers, by the key of their responses. [`crate::cache::fill`]
//! describes one fill.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use strait_store::hash_of;

use crate::cache::fill::{Fill, FillProgress};
use crate::cache::hash::IdentityHasher;
use crate::cache::object::Object;

/// Maximum of fills of a key while parts are requested ahead of other fills.
const FILLS_MAX: usize = 16;

/// Fills of a key that are under way.
pub(crate) type UnderWay = SmallVec<[Arc<Fill>; 1]>;

type ByHash = HashMap<u64, UnderWay, BuildHasherDefault<IdentityHasher>>;

/// Result of [`Fills::begin_part`].
#[derive(Debug)]
pub(crate) enum PartStep {
    /// The fill has begun: request its range.
    Begun(Arc<Fill>),
    /// This fill has the first byte, or receives it soon.
    UnderWay(Arc<Fill>),
    /// Too many fills of the key are under way.
    Full,
}

/// The fills of all workers, by the hash of their key.
#[derive(Debug, Default)]
pub(crate) struct Fills {
    by_hash: Mutex<ByHash>,
    /// True once each request gets a fill of its own.
    is_unshared: AtomicBool,
}

impl Fills {
    fn map(&self) -> MutexGuard<'_, ByHash> {
        self.by_hash.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a fill of a key. If fills that may answer are under way, returns these as the error,
    /// the newest last. With a variant, only fills of that variant may answer.
    pub(crate) fn begin(
        &self,
        hash: u64,
        key: &Arc<str>,
        variant: Option<&str>,
    ) -> Result<Arc<Fill>, UnderWay> {
        let mut map = self.map();
        let fills = map.entry(hash).or_default();
        let others: UnderWay = fills.iter().filter(|fill| fill.may_answer(key, variant)).cloned().collect();
        if !others.is_empty() && !self.is_unshared.load(Ordering::Relaxed) {
            return Err(others);
        }
        let fill = Arc::new(Fill::new(key.clone(), variant));
        fills.push(fill.clone());
        Ok(fill)
    }

    /// Returns the progress of at most `most` fills.
    pub(crate) fn list(&self, most: usize) -> Vec<FillProgress> {
        self.map().values().flatten().take(most).map(|fill| fill.summary()).collect()
    }

    /// Returns the number of fills.
    pub(crate) fn count(&self) -> usize {
        self.map().values().map(SmallVec::len).sum()
    }

    /// Adds a fill to others of the key, which answer other requests.
    pub(crate) fn add(&self, hash: u64, key: &Arc<str>) -> Arc<Fill> {
        let fill = Arc::new(Fill::new(key.clone(), None));
        self.map().entry(hash).or_default().push(fill.clone());
        fill
    }

    /// Begins a fill of a gap in the representation of `base`, up to the first byte of another
    /// fill.
    pub(crate) fn begin_part(&self, hash: u64, base: &Arc<Object>, gap: Range<u64>) -> PartStep {
        // Parses the heads of the fills before it locks the map. Only fills that have begun in
        // between are compared under the lock.
        let (same, others): (UnderWay, UnderWay) =
            self.of(hash, &base.key).into_iter().partition(|fill| fill.is_of(base));
        let mut map = self.map();
        let fills = map.entry(hash).or_default();
        let is_in = |list: &UnderWay, fill: &Arc<Fill>| list.iter().any(|other| Arc::ptr_eq(other, fill));
        let is_own = |fill: &&Arc<Fill>| is_in(&same, fill) || (!is_in(&others, fill) && fill.is_of(base));
        let own: UnderWay = fills.iter().filter(is_own).cloned().collect();
        if let Some(fill) = own.iter().rev().find(|fill| fill.has_soon(gap.start)) {
            return PartStep::UnderWay(fill.clone());
        }
        if fills.len() >= FILLS_MAX {
            return PartStep::Full;
        }
        let starts = own.iter().map(|fill| fill.range().start).filter(|start| *start > gap.start);
        let fill = Arc::new(Fill::of_part(base, gap.start..starts.fold(gap.end, u64::min)));
        fills.push(fill.clone());
        PartStep::Begun(fill)
    }

    /// Lets fills of one representation skip each other's bytes, after `fill` has received its
    /// head: the one that began at an earlier byte ends where the other one began.
    pub(crate) fn skip(&self, hash: u64, fill: &Arc<Fill>) {
        let Some(object) = fill.object_now() else { return };
        for other in self.of(hash, fill.key()) {
            if Arc::ptr_eq(&other, fill) || !other.is_of(&object) {
                continue;
            }
            let (own, others) = (fill.range(), other.range());
            if others.start < own.start {
                other.offer_skip(own, Some(fill));
            } else if own.start < others.start && other.object_now().is_some() {
                fill.offer_skip(others, Some(&other));
            }
        }
    }

    /// Returns the fills of a key that are under way.
    pub(crate) fn of(&self, hash: u64, key: &str) -> UnderWay {
        let map = self.map();
        map.get(&hash).into_iter().flatten().filter(|fill| **fill.key() == *key).cloned().collect()
    }

    /// Invalidates the fills of a key: their objects are not stored, and no other request follows
    /// them.
    pub(crate) fn invalidate(&self, hash: u64, key: &str) {
        for fill in self.of(hash, key) {
            self.keep_out(hash, &fill);
        }
    }

    /// Invalidates one fill: its object is not stored, and no other request follows it.
    pub(crate) fn keep_out(&self, hash: u64, fill: &Arc<Fill>) {
        fill.invalidate();
        self.remove(hash, fill);
    }

    /// Invalidates the fills of all keys that match.
    pub(crate) fn invalidate_matching(&self, is_match: impl Fn(&str) -> bool) {
        let mut removed = Vec::new();
        self.map().retain(|_, fills| {
            removed.extend(fills.iter().filter(|fill| is_match(fill.key())).cloned());
            fills.retain(|fill| !is_match(fill.key()));
            !fills.is_empty()
        });
        // Not under the map's lock: `invalidate` can wait for a publication.
        for fill in removed {
            fill.invalidate();
        }
    }

    /// Invalidates the fills that match, which are compared without a lock.
    pub(crate) fn invalidate_some(&self, is_match: impl Fn(&Fill) -> bool) {
        let all: Vec<_> = self.map().values().flatten().cloned().collect();
        for fill in all.iter().filter(|fill| is_match(fill)) {
            self.keep_out(hash_of(fill.key().as_bytes()), fill);
        }
    }

    /// Invalidates all fills, and lets no request follow a fill of another from now on.
    pub(crate) fn stop_sharing(&self) {
        self.is_unshared.store(true, Ordering::Relaxed);
        self.invalidate_some(|_| true);
    }

    /// Removes a fill, so that no other request follows it.
    pub(crate) fn remove(&self, hash: u64, fill: &Arc<Fill>) {
        let mut map = self.map();
        let Some(fills) = map.get_mut(&hash) else { return };
        fills.retain(|other| !Arc::ptr_eq(other, fill));
        if fills.is_empty() {
            map.remove(&hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::fill::{REQUEST_BYTES, Source};
    use crate::cache::forms::Forms;
    use crate::cache::meta::Meta;
    use crate::cache::object::Body;
    use strait_http::lifetimes::Lifetimes;

    const LENGTH: u64 = 100 * REQUEST_BYTES;

    /// Response with that entity tag, whose body is in a fill.
    fn filling(tag: &str) -> Arc<Object> {
        let head = format!("HTTP/1.1 200 OK\r\nETag: {tag}\r\n\r\n");
        let length = Some(LENGTH);
        let meta = Meta {
            requested: 1,
            received: 1,
            age: 0,
            expired: None,
            forms: Forms::default(),
            lifetimes: Lifetimes::default(),
            first: 0,
            length,
            variant: "",
            head: head.as_bytes(),
        };
        Arc::new(Object::new("key", &meta, Body::Filling).unwrap())
    }

    /// Begins a fill of `range`, and receives its head.
    fn begun(fills: &Fills, object: &Arc<Object>, range: Range<u64>) -> Arc<Fill> {
        let fill = fills.add(1, &"key".into());
        fill.begin(object.clone(), range);
        fills.skip(1, &fill);
        fill
    }

    fn receive(fill: &Fill, upto: u64) {
        fill.progress(upto, Source::Memory(Arc::default(), 0));
    }

    /// Returns the range of the part that begins with a gap, or that of the fill under way.
    fn part(fills: &Fills, object: &Arc<Object>, gap: Range<u64>) -> Result<Range<u64>, Range<u64>> {
        match fills.begin_part(1, object, gap) {
            PartStep::Begun(fill) => Ok(fill.range()),
            PartStep::UnderWay(fill) => Err(fill.range()),
            PartStep::Full => panic!("too many fills"),
        }
    }

    #[test]
    fn part_begins_where_no_fill_arrives_soon_and_ends_before_the_next_fill() {
        let (fills, object) = (Fills::default(), filling("\"a\""));
        let whole = begun(&fills, &object, 0..LENGTH);
        receive(&whole, REQUEST_BYTES);
        let ahead = 2 * REQUEST_BYTES;
        assert_eq!(part(&fills, &object, ahead - 1..LENGTH), Err(0..LENGTH), "the whole arrives soon");
        assert_eq!(part(&fills, &object, 50 * REQUEST_BYTES..LENGTH), Ok(50 * REQUEST_BYTES..LENGTH));
        assert_eq!(part(&fills, &object, ahead..LENGTH), Ok(ahead..50 * REQUEST_BYTES));
        // The parts have no head yet, and are shared.
        assert_eq!(part(&fills, &object, ahead + 1..ahead + 2), Err(ahead..50 * REQUEST_BYTES));
        assert_eq!(
            part(&fills, &filling("\"b\""), ahead..LENGTH),
            Ok(ahead..LENGTH),
            "another representation"
        );
        assert_eq!(
            part(&fills, &filling("W/\"a\""), ahead..LENGTH),
            Ok(ahead..LENGTH),
            "no strong validator"
        );
    }

    #[test]
    fn fills_of_a_key_are_bounded() {
        let (fills, object) = (Fills::default(), filling("\"a\""));
        for number in 0..FILLS_MAX as u64 {
            let at = 2 * number * REQUEST_BYTES;
            assert_eq!(part(&fills, &object, at..at + 1), Ok(at..at + 1));
        }
        assert!(matches!(fills.begin_part(1, &object, LENGTH - 1..LENGTH), PartStep::Full));
        assert!(matches!(fills.begin_part(1, &object, 0..1), PartStep::UnderWay(_)));
    }

    #[test]
    fn fill_ends_before_the_first_long_range_that_it_has_not_passed() {
        let (fills, object) = (Fills::default(), filling("\"a\""));
        let range = |first: u64, len: u64| first * REQUEST_BYTES..first * REQUEST_BYTES + len;
        let short = begun(&fills, &object, range(10, REQUEST_BYTES - 1));
        let passed = begun(&fills, &object, range(12, REQUEST_BYTES));
        let far = begun(&fills, &object, range(60, 10 * REQUEST_BYTES));
        let near = begun(&fills, &object, range(50, REQUEST_BYTES));
        // Those that began before the whole are skipped as well as those that begin later.
        let whole = begun(&fills, &object, 0..LENGTH);
        let other = begun(&fills, &filling("\"b\""), range(20, 10 * REQUEST_BYTES));
        assert_eq!(whole.shorten(13 * REQUEST_BYTES), Some(50 * REQUEST_BYTES));
        assert_eq!((whole.range(), whole.shorten(13 * REQUEST_BYTES)), (0..50 * REQUEST_BYTES, None));
        let late = begun(&fills, &object, range(20, 5 * REQUEST_BYTES));
        // The fill has passed its beginning meanwhile, and receives what the part has not.
        assert_eq!((whole.shorten(21 * REQUEST_BYTES), whole.range().end), (None, 50 * REQUEST_BYTES));
        fills.skip(1, &late);
        receive(&late, 20 * REQUEST_BYTES + 1);
        assert_eq!(whole.shorten(21 * REQUEST_BYTES), Some(21 * REQUEST_BYTES), "the part is near");
        for fill in [short, passed, far, near, other, late] {
            assert_eq!(fill.shorten(0), None);
        }
    }

    #[test]
    fn nothing_is_published_after_an_invalidation_has_returned() {
        const ROUNDS: usize = 5_000;
        let fills = Fills::default();
        let cache = Mutex::new(None);
        let start = std::sync::Barrier::new(2);
        let mut stale = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let fill = fills.add(1, &"key".into());
                    start.wait();
                    fill.publish(|| {
                        std::thread::yield_now();
                        *cache.lock().unwrap() = Some(round);
                        Some(())
                    });
                    start.wait();
                }
            });
            for _ in 0..ROUNDS {
                start.wait();
                fills.invalidate(1, "key");
                *cache.lock().unwrap() = None;
                start.wait();
                stale += usize::from(cache.lock().unwrap().is_some());
            }
        });
        assert_eq!((stale, fills.count()), (0, 0));
    }

    #[test]
    fn a_ban_invalidates_the_fills_of_matching_keys_alone() {
        let fills = Fills::default();
        let (banned, other) = (fills.add(1, &"a".into()), fills.add(2, &"b".into()));
        fills.invalidate_matching(|key| key == "a");
        assert_eq!(
            (banned.publish(|| Some(1)), other.publish(|| Some(1)), fills.count()),
            (None, Some(1), 1)
        );
    }
}
