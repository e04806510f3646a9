//! A response that is on its way from its origin into the store, and those who are sent what is
//! there of it.
//!
//! ```text
//! Ready ──▶ Waiting ──▶ Spliced ──▶ Done          the states of a fetch (D4)
//!   │          │           └──────▶ Broken        the origin failed, or it was given up: abandoned is not complete
//!   └──────────┴──────────────────▶ Private       the response is for one client alone
//! ```
//!
//! One worker's task moves the body; whoever asked for it, the first client too, is a follower with
//! a place and a speed of its own.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use smallvec::SmallVec;
use strait_store::Extent;
use strait_transfer::pipe::Pipe;
use tokio::sync::Notify;

use crate::cache::hash::IdentityHasher;
use crate::cache::object::Object;
use crate::upstream::incoming::Incoming;

/// How far a fetch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The request is on its way.
    Ready,
    /// The head is there, and nothing of the body has moved.
    Waiting,
    /// The body moves.
    Spliced,
    /// All of it is there.
    Done,
    /// It ended before it was whole.
    Broken,
    /// It is not to be shared.
    Private,
}

/// Where the bytes are that have come, and which byte of the representation they begin with.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// In memory: the body is small, or not known to be large.
    Memory(Arc<Mutex<Vec<u8>>>, u64),
    /// In the store.
    Stored(Extent, u64),
}

/// What a follower sees.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) phase: Phase,
    /// Which byte of the representation comes next.
    pub(crate) stored: u64,
    pub(crate) source: Option<Source>,
}

/// How far a fill has come.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Filled {
    uri: String,
    /// Which byte of the representation it began with, and which comes next.
    first: u64,
    stored: u64,
    /// Bytes of the representation, where they are known.
    length: Option<u64>,
    followers: usize,
}

/// A fill that is shared.
#[derive(Debug)]
pub(crate) struct Fill {
    key: Box<str>,
    /// What its request said of the fields that another response for the key varies with, if that
    /// is why there is this one.
    variant: Option<Box<str>>,
    state: Mutex<State>,
    changed: Notify,
    /// True if the key was invalidated since the fill began. Locked during
    /// [`publish`](Self::publish).
    is_outdated: Mutex<bool>,
}

#[derive(Debug)]
struct State {
    view: View,
    /// From Waiting on.
    object: Option<Arc<Object>>,
    range: Range<u64>,
    followers: usize,
    failure: Option<Refusal>,
    rest: Option<Box<Remainder>>,
}

/// A status and the reason for it.
pub(crate) type Refusal = (u16, String);

/// What comes behind the part that could be stored.
#[derive(Debug)]
pub(crate) struct Remainder {
    /// The byte of the representation that it begins with.
    pub(crate) first: u64,
    pub(crate) incoming: Box<Incoming>,
    /// What was on its way to the store.
    pub(crate) pipe: Option<Pipe>,
}

impl Fill {
    pub(crate) fn new(key: &str, variant: Option<&str>) -> Self {
        let view = View { phase: Phase::Ready, stored: 0, source: None };
        let state = State { view, object: None, range: 0..0, followers: 0, failure: None, rest: None };
        let variant = variant.map(Box::from);
        Self {
            key: key.into(),
            variant,
            state: Mutex::new(state),
            changed: Notify::new(),
            is_outdated: Mutex::default(),
        }
    }

    /// Whether it may be for a request that says so of what the response varies with; while nobody
    /// knows what that is, any may be.
    fn may_be_for(&self, key: &str, variant: Option<&str>) -> bool {
        *self.key == *key && (variant.is_none() || self.variant.as_deref() == variant)
    }

    /// What it is for.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// A panic elsewhere has left a state that is as good as before: each change is one assignment
    /// or is told last.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The head is there, of these bytes of a representation; the end is not known of all.
    pub(crate) fn begin(&self, object: Arc<Object>, range: Range<u64>) {
        let mut state = self.state();
        state.object = Some(object);
        state.range = range;
        state.view.phase = Phase::Waiting;
        drop(state);
        self.changed.notify_waiters();
    }

    /// So many bytes are there, in that place.
    pub(crate) fn progress(&self, stored: u64, source: Source) {
        let mut state = self.state();
        state.view = View { phase: Phase::Spliced, stored, source: Some(source) };
        drop(state);
        self.changed.notify_waiters();
    }

    /// It is over: whole, broken or private.
    pub(crate) fn end(&self, phase: Phase) {
        self.state().view.phase = phase;
        self.changed.notify_waiters();
    }

    /// It ended before there was a head: those who wait for one are told the same.
    pub(crate) fn fail(&self, failure: Refusal) {
        let mut state = self.state();
        state.failure = Some(failure);
        state.view.phase = Phase::Broken;
        drop(state);
        self.changed.notify_waiters();
    }

    /// What those who waited for a head that never came are told.
    pub(crate) fn failure(&self) -> Option<Refusal> {
        self.state().failure.clone()
    }

    /// The store takes no more of it: whoever has been sent all that is there may go on with the
    /// rest.
    pub(crate) fn hand_over(&self, rest: Remainder) {
        self.state().rest = Some(Box::new(rest));
    }

    /// Returns the rest of it to the first follower that has been sent all bytes before. One that
    /// waits for a later byte would send the bytes between to a client that has not asked for
    /// them.
    pub(crate) fn take_over(&self, at: u64) -> Option<Box<Remainder>> {
        self.state().rest.take_if(|rest| rest.first == at)
    }

    /// Marks the key as invalidated: nothing of this fill is published from now on. Waits for the
    /// end of a publication, so that an invalidation that removes objects afterwards removes the
    /// published one, too.
    fn outdate(&self) {
        *self.is_outdated.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Calls `publish`, which puts the object into the cache; returns `None` without a call if the
    /// key was invalidated since the fill began.
    pub(crate) fn publish<T>(&self, publish: impl FnOnce() -> Option<T>) -> Option<T> {
        let is_outdated = self.is_outdated.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_outdated { None } else { publish() }
    }

    /// The object, if its head is there.
    pub(crate) fn object_now(&self) -> Option<Arc<Object>> {
        self.state().object.clone()
    }

    /// The object once its head is there; `None` if there is nothing to share.
    pub(crate) async fn object(&self) -> Option<Arc<Object>> {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state();
                match state.view.phase {
                    Phase::Ready => {}
                    Phase::Private => return None,
                    _ => return state.object.clone(),
                }
            }
            changed.await;
        }
    }

    /// What is there, once that is more than `at` bytes or all there will be.
    pub(crate) async fn beyond(&self, at: u64) -> View {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state();
                let is_over = !matches!(state.view.phase, Phase::Ready | Phase::Waiting | Phase::Spliced);
                if is_over || state.view.stored > at {
                    return state.view.clone();
                }
            }
            changed.await;
        }
    }

    /// The bytes of the representation that are coming.
    pub(crate) fn range(&self) -> Range<u64> {
        self.state().range.clone()
    }

    /// What is there now.
    pub(crate) fn view(&self) -> View {
        self.state().view.clone()
    }

    /// Counts a follower until it is dropped.
    pub(crate) fn follow(self: &Arc<Self>) -> Follower {
        self.state().followers += 1;
        Follower(self.clone())
    }

    /// How far it has come, to be told.
    fn filled(&self) -> Filled {
        let state = self.state();
        Filled {
            uri: self.key.to_string(),
            first: state.range.start,
            stored: state.view.stored,
            length: state.object.as_ref().and_then(|object| object.length),
            followers: state.followers,
        }
    }

    pub(crate) fn followers(&self) -> usize {
        self.state().followers
    }

    /// Waits until nobody follows.
    pub(crate) async fn left(&self) {
        loop {
            let changed = self.changed.notified();
            if self.followers() == 0 {
                return;
            }
            changed.await;
        }
    }
}

/// Somebody who is sent what comes.
#[derive(Debug)]
pub(crate) struct Follower(Arc<Fill>);

impl Follower {
    pub(crate) fn fill(&self) -> &Fill {
        &self.0
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.state().followers -= 1;
        self.0.changed.notify_waiters();
    }
}

/// Fills of a key that are under way.
pub(crate) type UnderWay = SmallVec<[Arc<Fill>; 1]>;

type ByHash = HashMap<u64, UnderWay, BuildHasherDefault<IdentityHasher>>;

/// The fills of all workers, by the hash of their key.
#[derive(Debug, Default)]
pub(crate) struct Fills(Mutex<ByHash>);

impl Fills {
    fn map(&self) -> MutexGuard<'_, ByHash> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a fill of a key, unless fills are under way that may answer: returns these as the
    /// error, the newest last. A caller that knows its variant is answered by fills of that
    /// variant alone.
    pub(crate) fn begin(&self, hash: u64, key: &str, variant: Option<&str>) -> Result<Arc<Fill>, UnderWay> {
        let mut map = self.map();
        let fills = map.entry(hash).or_default();
        let others: UnderWay = fills.iter().filter(|fill| fill.may_be_for(key, variant)).cloned().collect();
        if !others.is_empty() {
            return Err(others);
        }
        let fill = Arc::new(Fill::new(key, variant));
        fills.push(fill.clone());
        Ok(fill)
    }

    /// What they have come to, so many at most.
    pub(crate) fn list(&self, most: usize) -> Vec<Filled> {
        self.map().values().flatten().take(most).map(|fill| fill.filled()).collect()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.map().values().map(SmallVec::len).sum()
    }

    /// Adds a fill beside those there are: they answer other requests.
    pub(crate) fn add(&self, hash: u64, key: &str) -> Arc<Fill> {
        let fill = Arc::new(Fill::new(key, None));
        self.map().entry(hash).or_default().push(fill.clone());
        fill
    }

    /// The fills of a key that are under way.
    pub(crate) fn of(&self, hash: u64, key: &str) -> UnderWay {
        let map = self.map();
        map.get(&hash).into_iter().flatten().filter(|fill| &*fill.key == key).cloned().collect()
    }

    /// What a key is for has changed: what is on its way is not kept, and nobody else follows it.
    pub(crate) fn outdate(&self, hash: u64, key: &str) {
        for fill in self.of(hash, key) {
            fill.outdate();
            self.remove(hash, &fill);
        }
    }

    /// The same of all keys that are meant.
    pub(crate) fn outdate_all(&self, is_meant: impl Fn(&str) -> bool) {
        let mut removed = Vec::new();
        self.map().retain(|_, fills| {
            removed.extend(fills.iter().filter(|fill| is_meant(&fill.key)).cloned());
            fills.retain(|fill| !is_meant(&fill.key));
            !fills.is_empty()
        });
        // Not under the map's lock: `outdate` can wait for a publication.
        for fill in removed {
            fill.outdate();
        }
    }

    /// Nobody else is to find the fill.
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
                    let fill = fills.add(1, "key");
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
                fills.outdate(1, "key");
                *cache.lock().unwrap() = None;
                start.wait();
                stale += usize::from(cache.lock().unwrap().is_some());
            }
        });
        assert_eq!((stale, fills.count()), (0, 0));
    }

    #[test]
    fn a_ban_outdates_the_fills_of_matching_keys_alone() {
        let fills = Fills::default();
        let (banned, other) = (fills.add(1, "a"), fills.add(2, "b"));
        fills.outdate_all(|key| key == "a");
        assert_eq!(
            (banned.publish(|| Some(1)), other.publish(|| Some(1)), fills.count()),
            (None, Some(1), 1)
        );
    }
}
