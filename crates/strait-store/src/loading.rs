//! Progress of loading the records of earlier sessions, and the lookups that wait for it.
//!
//! ```text
//!  Opening ──▶ Journal ──▶ Scan ──▶ Done
//!     └────── no journal ───▲
//! ```
//!
//! The journal of the index is read in units. A lookup that misses requests those that can have its
//! record, and they are read next: so the first hit does not wait for the whole journal.

use std::collections::{HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::file::lock;

/// Limit of the keys that are removed during loading. Beyond it no further record of an earlier
/// session is added.
const ENDED_MAX: usize = 1 << 20;

/// Loading of a store.
#[derive(Debug, Default)]
pub(crate) struct Loading {
    state: Mutex<State>,
    done: Condvar,
    ended: Mutex<Ended>,
}

#[derive(Debug, Default)]
struct State {
    phase: Phase,
    /// Phases that were entered, and files that were scanned.
    steps: u64,
    /// Tasks that wait for the journal's records in a shard of the index, or for a step.
    waiting: Vec<(Waker, Option<usize>)>,
}

#[derive(Debug, Default)]
enum Phase {
    /// The journal is opened and checked.
    #[default]
    Opening,
    /// Its units are added to the index.
    Journal(Units),
    /// Records that the journal does not know are searched for in the files.
    Scan,
    Done,
}

/// Units of the journal.
#[derive(Debug)]
struct Units {
    /// Shards of the index that can have records of each unit.
    shards: Vec<RangeInclusive<usize>>,
    is_added: Vec<bool>,
    /// Units that lookups have requested, each at most once.
    requested: VecDeque<usize>,
    is_requested: Vec<bool>,
    /// First unit that was not taken in order.
    next: usize,
}

/// Hashes of the keys that were removed during loading. A record of an earlier session that is
/// loaded after the removal must not come back.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    hashes: HashSet<u64>,
    is_done: bool,
}

impl Ended {
    /// Returns true if a record of an earlier session was removed before it was loaded.
    pub(crate) fn has(&self, hash: u64) -> bool {
        self.hashes.len() >= ENDED_MAX || self.hashes.contains(&hash)
    }
}

impl Units {
    fn new(shards: Vec<RangeInclusive<usize>>) -> Self {
        let (is_added, is_requested) = (vec![false; shards.len()], vec![false; shards.len()]);
        Self { shards, is_added, requested: VecDeque::new(), is_requested, next: 0 }
    }

    /// Requests the units with records of a shard. Returns true if all of them were added.
    fn request(&mut self, shard: usize) -> bool {
        let mut are_added = true;
        for (unit, shards) in self.shards.iter().enumerate() {
            if self.is_added[unit] || !shards.contains(&shard) {
                continue;
            }
            are_added = false;
            if !std::mem::replace(&mut self.is_requested[unit], true) {
                self.requested.push_back(unit);
            }
        }
        are_added
    }

    /// Takes the next unit: a requested one, else the next in order.
    fn take(&mut self) -> Option<usize> {
        while let Some(unit) = self.requested.pop_front() {
            if !self.is_added[unit] {
                return Some(unit);
            }
        }
        while self.next < self.is_added.len() {
            self.next += 1;
            if !self.is_added[self.next - 1] {
                return Some(self.next - 1);
            }
        }
        None
    }
}

impl Loading {
    /// Returns true if the records of earlier sessions are loaded.
    pub(crate) fn is_done(&self) -> bool {
        matches!(lock(&self.state).phase, Phase::Done)
    }

    /// Begins to add the journal in units, whose records are in these shards of the index.
    pub(crate) fn begin_journal(&self, shards: Vec<RangeInclusive<usize>>) {
        self.enter(Phase::Journal(Units::new(shards)));
    }

    /// Takes the next unit to add; `None` at the end of the journal.
    pub(crate) fn next_unit(&self) -> Option<usize> {
        match &mut lock(&self.state).phase {
            Phase::Journal(units) => units.take(),
            _ => None,
        }
    }

    /// Notes that a unit was added.
    pub(crate) fn end_unit(&self, unit: usize) {
        let mut state = lock(&self.state);
        let Phase::Journal(units) = &mut state.phase else { return };
        units.is_added[unit] = true;
        let shards = units.shards[unit].clone();
        state.wake(|shard| shard.is_some_and(|shard| shards.contains(&shard)));
    }

    /// Begins the scan: the records of the journal are in the index.
    pub(crate) fn begin_scan(&self) {
        self.enter(Phase::Scan);
    }

    /// Notes that a file was scanned.
    pub(crate) fn end_file(&self) {
        lock(&self.state).step();
    }

    /// Ends loading.
    pub(crate) fn end(&self) {
        let mut ended = lock(&self.ended);
        *ended = Ended { hashes: HashSet::new(), is_done: true };
        drop(ended);
        self.enter(Phase::Done);
        self.done.notify_all();
    }

    fn enter(&self, phase: Phase) {
        let mut state = lock(&self.state);
        state.phase = phase;
        state.step();
    }

    /// Returns `Ready` if the records of the journal in a shard are in the index, else requests
    /// them and wakes the task when some were added.
    pub(crate) fn poll_known(&self, shard: usize, context: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        let is_known = match &mut state.phase {
            Phase::Opening => false,
            Phase::Journal(units) => units.request(shard),
            Phase::Scan | Phase::Done => true,
        };
        if is_known {
            return Poll::Ready(());
        }
        state.wait(context.waker(), Some(shard));
        Poll::Pending
    }

    /// Returns the number of steps so far. `Pending` if there is another one, which wakes the task.
    pub(crate) fn poll_step(&self, context: &Context<'_>) -> (u64, Poll<()>) {
        let mut state = lock(&self.state);
        if matches!(state.phase, Phase::Done) {
            return (state.steps, Poll::Ready(()));
        }
        state.wait(context.waker(), None);
        (state.steps, Poll::Pending)
    }

    /// Number of steps so far.
    pub(crate) fn steps(&self) -> u64 {
        lock(&self.state).steps
    }

    /// Waits for the end of loading.
    pub(crate) fn wait(&self) {
        let guard = lock(&self.state);
        drop(self.done.wait_while(guard, |state| !matches!(state.phase, Phase::Done)));
    }

    /// Waits up to `timeout` for the end of loading. Returns true if the store is loaded.
    pub(crate) fn wait_for(&self, timeout: Duration) -> bool {
        let is_loading = |state: &mut State| !matches!(state.phase, Phase::Done);
        let waited = self.done.wait_timeout_while(lock(&self.state), timeout, is_loading);
        waited.is_ok_and(|(state, _)| matches!(state.phase, Phase::Done))
    }

    /// Keeps records of earlier sessions with this hash of their key from being added from now on.
    pub(crate) fn end_key(&self, hash: u64) {
        let mut ended = lock(&self.ended);
        if !ended.is_done && ended.hashes.len() < ENDED_MAX {
            ended.hashes.insert(hash);
        }
    }

    /// Locks the removed keys. A record of an earlier session is added with this lock, so that a
    /// removal either is seen here or finds the record in the index.
    pub(crate) fn ended(&self) -> MutexGuard<'_, Ended> {
        lock(&self.ended)
    }
}

impl State {
    fn wait(&mut self, waker: &Waker, shard: Option<usize>) {
        if !self.waiting.iter().any(|(own, of)| *of == shard && own.will_wake(waker)) {
            self.waiting.push((waker.clone(), shard));
        }
    }

    /// Counts a step, and wakes all tasks.
    fn step(&mut self) {
        self.steps += 1;
        self.wake(|_| true);
    }

    fn wake(&mut self, concerns: impl Fn(Option<usize>) -> bool) {
        self.waiting.extract_if(.., |(_, shard)| concerns(*shard)).for_each(|(waker, _)| waker.wake());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn requested_units_are_next_and_wake_their_lookups_alone() {
        let loading = Loading::default();
        let counts = [Arc::<Count>::default(), Arc::<Count>::default()];
        let wakers = counts.clone().map(Waker::from);
        let poll = |task: usize, shard| loading.poll_known(shard, &Context::from_waker(&wakers[task]));
        let woken = || counts.each_ref().map(|count| count.0.load(Ordering::Relaxed));
        assert_eq!([poll(0, 7), poll(0, 7), poll(1, 0)], [Poll::Pending; 3]);
        loading.begin_journal(vec![0..=2, 3..=5, 5..=9, 0..=9]);
        assert_eq!(woken(), [1, 1]);
        assert_eq!([poll(0, 7), poll(0, 7)], [Poll::Pending; 2]);
        assert_eq!(loading.next_unit(), Some(2));
        assert_eq!(poll(1, 0), Poll::Pending);
        loading.end_unit(2);
        assert_eq!((woken(), poll(0, 7)), ([2, 1], Poll::Pending));
        assert_eq!(loading.next_unit(), Some(3));
        loading.end_unit(3);
        assert_eq!((woken(), poll(0, 7), poll(1, 0)), ([3, 2], Poll::Ready(()), Poll::Pending));
        assert_eq!(loading.next_unit(), Some(0));
        loading.end_unit(0);
        assert_eq!(poll(1, 0), Poll::Ready(()));
        assert_eq!((loading.next_unit(), loading.next_unit()), (Some(1), None));
    }

    #[test]
    fn each_step_wakes_a_waiting_task_once() {
        let loading = Loading::default();
        let count = Arc::<Count>::default();
        let waker = Waker::from(count.clone());
        let poll = || loading.poll_step(&Context::from_waker(&waker));
        loading.begin_journal(vec![0..=9]);
        loading.begin_scan();
        assert_eq!((poll(), poll()), ((2, Poll::Pending), (2, Poll::Pending)));
        loading.end_file();
        loading.end_file();
        assert_eq!((count.0.load(Ordering::Relaxed), poll()), (1, (4, Poll::Pending)));
        loading.end();
        assert_eq!((count.0.load(Ordering::Relaxed), poll()), (2, (5, Poll::Ready(()))));
        assert!(loading.is_done() && loading.wait_for(Duration::ZERO));
    }
}
