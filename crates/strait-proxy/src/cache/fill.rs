//! Fill: a response on its way from the origin into the store, and its followers.
//!
//! ```text
//! Ready ──▶ Waiting ──▶ Spliced ──▶ Done: the body is complete, or another fill receives the rest
//!
//! Ready ──▶ Done: no body to move: a 304, a body that was stored at once, or the cache has changed
//! Waiting ──▶ Done: an empty body
//! Ready ──▶ NotShared: each follower sends its own request
//! any ──▶ Broken: origin failed, fill abandoned, or store full (one follower continues)
//! ```
//!
//! One worker's task moves the body. Every client, also the first one, is a follower with its own
//! offset and speed.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde::Serialize;
use strait_store::Extent;
use tokio::sync::{Notify, SetOnce};
use tokio::time::{Instant, timeout};

use crate::cache::followers::Followers;
use crate::cache::object::Object;
use crate::cache::remainder::Remainder;

/// Bytes whose transfer costs about as much as a request of their own: its round trips, the slow
/// start of its connection, and the bytes in flight that are lost when a connection is closed
/// within a body (by default a receive buffer of up to 6 MiB). At 100 Mbit/s they take a third of a
/// second.
///
/// A request waits for a fill that has fewer bytes to receive before the requested ones, and a fill
/// reads shorter ranges although another fill receives them as well.
pub(crate) const REQUEST_BYTES: u64 = 4 << 20;
/// Maximum of ranges of other fills that a fill remembers until its task takes note of them.
const SKIPS_MAX: usize = 16;
/// Refusals of requests for parts of a representation after which its fill sends no more of them: a
/// failure may pass, but each seek would repeat the request.
const REFUSALS_MAX: u8 = 3;

/// State of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No response head yet.
    Ready,
    /// The head was received, and no byte of the body was moved.
    Waiting,
    /// The body is being moved.
    Spliced,
    /// The body is complete, it is received up to bytes that another fill receives, or there was
    /// none to move: a 304, or the cache has changed.
    Done,
    /// The fill ended early: the origin failed or refused the range, the store refused the body, or
    /// the fill was abandoned.
    Broken,
    /// The response is not shared with followers: each sends its own request.
    NotShared,
}

/// Location of the received bytes, and their offset in the representation.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// In memory: the body is small, or of unknown length.
    Memory(Arc<Mutex<Vec<u8>>>, u64),
    /// In the store.
    Stored(Extent, u64),
}

/// State of a fill for its followers.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) phase: Phase,
    /// Offset of the next byte in the representation.
    pub(crate) stored: u64,
    pub(crate) source: Option<Source>,
}

/// Progress of a fill, for the admin page.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FillProgress {
    uri: String,
    /// Offsets of the first and the next byte in the representation.
    first: u64,
    stored: u64,
    /// Length of the representation, if known.
    length: Option<u64>,
    followers: usize,
}

/// Fill, shared by its followers.
#[derive(Debug)]
pub(crate) struct Fill {
    key: Arc<str>,
    /// Variant of the requests that this fill answers; `None` if the fields in Vary are not known
    /// yet.
    variant: Option<Box<str>>,
    /// Response with the representation of which this fill requests a part.
    base: Option<Arc<Object>>,
    state: Mutex<State>,
    changed: Notify,
    /// Notified when a follower of a closed fill was sent bytes, or has left.
    sent_more: Notify,
    /// Set once its request was sent to the origin, or at the start if the origin has several
    /// servers.
    pub(crate) sent: Arc<SetOnce<()>>,
    /// True if the key was invalidated since the fill began. Locked during a
    /// [publication](Self::publication).
    is_invalidated: Mutex<bool>,
}

#[derive(Debug)]
struct State {
    view: View,
    /// From Waiting on.
    object: Option<Arc<Object>>,
    /// The requested range before the head of a part was received; otherwise that of the response.
    range: Range<u64>,
    skips: Vec<Skip>,
    /// Number of requests for parts that the origin has refused.
    refusals: u8,
    followers: Followers,
    failure: Option<Refusal>,
    remainder: Option<Box<Remainder>>,
}

impl State {
    fn is_over(&self) -> bool {
        !matches!(self.view.phase, Phase::Ready | Phase::Waiting | Phase::Spliced)
    }

    /// Returns the view of a follower with the next byte `at`: of a full section, or of the last
    /// one.
    fn view_at(&self, at: u64) -> View {
        if self.followers.is_lost(at) {
            return View { phase: Phase::Broken, stored: at, source: None };
        }
        let phase = self.view.phase;
        let full = self.followers.section(at);
        full.map_or_else(
            || self.view.clone(),
            |(end, source)| View { phase, stored: *end, source: Some(source.clone()) },
        )
    }
}

/// Range in which a fill may end.
#[derive(Debug)]
struct Skip {
    range: Range<u64>,
    /// Fill that receives it; `None` if it is stored.
    receiver: Option<Weak<Fill>>,
}

impl Skip {
    /// Returns the end of a fill that has received the bytes before `reached`: the beginning of the
    /// range, or `reached` if the fill has passed that. `None` if the rest of the range is short,
    /// or if its receiver is far behind: then clients would wait, or request the bytes between.
    fn end(&self, reached: u64) -> Option<u64> {
        let end = self.range.start.max(reached);
        let is_long = self.range.end.saturating_sub(end) >= REQUEST_BYTES;
        // The bytes of a receiver that has gone are stored, or requested as a gap.
        let receiver = self.receiver.as_ref().and_then(Weak::upgrade);
        (is_long && receiver.is_none_or(|fill| fill.has_soon(end))).then_some(end)
    }
}

/// Status and reason of the proxy's own response.
pub(crate) type Refusal = (u16, String);

impl Fill {
    pub(crate) fn new(key: Arc<str>, variant: Option<&str>) -> Self {
        Self::with(key, variant, None, 0..0)
    }

    /// Fill of a part of a representation that is about to be requested.
    pub(super) fn of_part(base: &Arc<Object>, range: Range<u64>) -> Self {
        Self::with(base.key.clone(), Some(base.variant()), Some(base.clone()), range)
    }

    fn with(key: Arc<str>, variant: Option<&str>, base: Option<Arc<Object>>, range: Range<u64>) -> Self {
        let state = State {
            view: View { phase: Phase::Ready, stored: 0, source: None },
            object: None,
            range,
            skips: Vec::new(),
            refusals: 0,
            followers: Followers::default(),
            failure: None,
            remainder: None,
        };
        let variant = variant.map(Box::from);
        Self {
            key,
            variant,
            base,
            state: Mutex::new(state),
            changed: Notify::new(),
            sent_more: Notify::new(),
            sent: Arc::default(),
            is_invalidated: Mutex::default(),
        }
    }

    /// Returns true if it may answer a request with that variant. While the variant of a request is
    /// unknown, each fill of the key may.
    pub(super) fn may_answer(&self, key: &str, variant: Option<&str>) -> bool {
        *self.key == *key && (variant.is_none() || self.variant.as_deref() == variant)
    }

    /// Returns true if it has bytes of the same representation as `object`, for the same requests.
    pub(super) fn is_of(&self, object: &Object) -> bool {
        let own = self.object_now().or_else(|| self.base.clone());
        own.is_some_and(|own| own.is_for_same(object) && own.combines_with(object))
    }

    /// Returns true if it has the byte `at`, or so few bytes precede it that waiting costs less
    /// than a request.
    pub(crate) fn has_soon(&self, at: u64) -> bool {
        let state = self.state();
        let next = state.view.stored.max(state.range.start);
        state.range.contains(&at) && at.saturating_sub(next) < REQUEST_BYTES
    }

    /// Offers a range that `receiver` receives, or that is stored. The fill ends where it begins,
    /// unless it is short or the fill has passed it by then.
    pub(crate) fn offer_skip(&self, range: Range<u64>, receiver: Option<&Arc<Self>>) {
        let mut state = self.state();
        if state.range.contains(&range.start) && state.skips.len() < SKIPS_MAX {
            state.skips.push(Skip { range, receiver: receiver.map(Arc::downgrade) });
        }
    }

    /// Shortens the range to the bytes before the first one to skip; returns the new end, if there
    /// is one. The bytes before `reached` were received.
    pub(super) fn shorten(&self, reached: u64) -> Option<u64> {
        let skips = std::mem::take(&mut self.state().skips);
        // Without the lock: the state of the other fills is looked at.
        let end = skips.iter().filter_map(|skip| skip.end(reached)).min()?;
        let mut state = self.state();
        if end >= state.range.end {
            return None;
        }
        state.range.end = end;
        Some(end)
    }

    /// Changes the end of the range, of a part that is about to be requested, or of a fill that
    /// reads on.
    pub(crate) fn set_end(&self, end: u64) {
        self.state().range.end = end;
    }

    /// Notes that the origin has refused a request for a part. After a final refusal, an answer
    /// with the whole representation, no more are sent.
    pub(crate) fn note_refusal(&self, is_final: bool) {
        let mut state = self.state();
        state.refusals = if is_final { REFUSALS_MAX } else { state.refusals.saturating_add(1) };
    }

    /// Returns true if no more parts are to be requested.
    pub(crate) fn refuses_ranges(&self) -> bool {
        self.state().refusals >= REFUSALS_MAX
    }

    /// Returns its key.
    pub(crate) fn key(&self) -> &Arc<str> {
        &self.key
    }

    /// Ignores poisoning: a panic leaves a valid state, as each change is one assignment or is
    /// published last.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the head, and the range of the representation in the response; `u64::MAX` is an
    /// unknown end.
    pub(crate) fn begin(&self, object: Arc<Object>, range: Range<u64>) {
        let mut state = self.state();
        state.object = Some(object);
        state.range = range;
        state.view.phase = Phase::Waiting;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Publishes the offset of the next byte, and the location of the bytes before it.
    pub(crate) fn progress(&self, stored: u64, source: Source) {
        let mut state = self.state();
        state.view = View { phase: Phase::Spliced, stored, source: Some(source) };
        drop(state);
        self.changed.notify_waiters();
    }

    /// Ends the fill in a final phase.
    pub(crate) fn end(&self, phase: Phase) {
        self.state().view.phase = phase;
        self.changed.notify_waiters();
    }

    /// Ends the fill before its head; followers get the same failure.
    pub(crate) fn fail(&self, failure: Refusal) {
        let mut state = self.state();
        state.failure = Some(failure);
        state.view.phase = Phase::Broken;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Returns the failure for followers, if the fill ended before its head.
    pub(crate) fn failure(&self) -> Option<Refusal> {
        self.state().failure.clone()
    }

    /// Closes the fill: its body is too long to be stored. No other request follows it from now on.
    pub(super) fn close(&self) {
        let was_closed = std::mem::replace(&mut self.state().followers.is_closed, true);
        if !was_closed {
            self.changed.notify_waiters();
        }
    }

    /// Returns true if no other request may follow it: bytes that all followers were sent may be
    /// gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().followers.is_closed
    }

    /// Ends a section of a closed fill, of which all bytes are published.
    pub(super) fn end_section(&self) {
        let mut state = self.state();
        let end = state.view.stored;
        if let Some(source) = state.view.source.take() {
            state.followers.add_section(end, source);
        }
    }

    /// Waits until all followers were sent the bytes before `at`, at most for `patience`. After
    /// that the slow ones are lost. Returns the rest of the time; `None` if there was nothing to
    /// wait for.
    pub(super) async fn wait_sent(&self, at: u64, patience: Duration) -> Option<Duration> {
        let mut left = None;
        let begun = Instant::now();
        loop {
            let sent_more = self.sent_more.notified();
            if self.state().followers.slowest() >= at {
                return left;
            }
            if timeout(left.unwrap_or(patience), sent_more).await.is_err() {
                self.state().followers.lose_before(at);
                return Some(Duration::ZERO);
            }
            left = Some(patience.saturating_sub(begun.elapsed()));
        }
    }

    /// Returns true if at most one follower is sent bytes, and has fewer than [`REQUEST_BYTES`]
    /// before `at` to be sent.
    pub(super) fn has_one_near(&self, at: u64) -> bool {
        let state = self.state();
        state.followers.has_one_at_most() && at.saturating_sub(state.followers.slowest()) < REQUEST_BYTES
    }

    /// Hands the remainder, which the store refuses, over to a follower that was sent all stored
    /// bytes.
    pub(crate) fn hand_over(&self, remainder: Remainder) {
        self.state().remainder = Some(Box::new(remainder));
    }

    /// Returns the remainder to the first follower that waits at its first byte, `at`. A follower
    /// that waits for a later byte would send its client bytes before the requested ones. Frees the
    /// stored bytes if no other follower needs them.
    pub(crate) fn take_over(&self, at: u64) -> Option<Box<Remainder>> {
        let mut state = self.state();
        let remainder = state.remainder.take_if(|remainder| remainder.first == at)?;
        if state.followers.has_one_at_most() {
            state.view.source = None;
            state.followers.clear_sections();
        }
        Some(remainder)
    }

    /// Marks the key as invalidated: nothing of this fill is published from now on. Waits for the
    /// end of a publication, so that the invalidation, which removes objects afterwards, removes
    /// the published one, too.
    pub(super) fn invalidate(&self) {
        *self.is_invalidated.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Begins a publication, which puts the object into the cache and ends when the result is
    /// dropped; `None` if the key was invalidated since the fill began.
    pub(super) fn publication(&self) -> Option<MutexGuard<'_, bool>> {
        let is_invalidated = self.is_invalidated.lock().unwrap_or_else(PoisonError::into_inner);
        (!*is_invalidated).then_some(is_invalidated)
    }

    /// Calls `publish` in a publication; returns `None` without a call if there can be none.
    pub(crate) fn publish<T>(&self, publish: impl FnOnce() -> Option<T>) -> Option<T> {
        let _publication = self.publication()?;
        publish()
    }

    /// Returns the object if the head was received.
    pub(crate) fn object_now(&self) -> Option<Arc<Object>> {
        self.state().object.clone()
    }

    /// Waits for the head; `None` if the fill ends without one, or the response is not shared.
    pub(crate) async fn object(&self) -> Option<Arc<Object>> {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state();
                match state.view.phase {
                    Phase::Ready => {}
                    Phase::NotShared => return None,
                    _ => return state.object.clone(),
                }
            }
            changed.await;
        }
    }

    /// Waits for the head at most for `wait` after its request was sent, and subtracts the waiting
    /// time from it; `None` if the head is later.
    ///
    /// Before that, the request waits for a connection to the only server, in its queue. This wait
    /// has limits of its own, and a follower that sent its own request would wait behind it.
    pub(crate) async fn object_within(&self, wait: &mut Duration) -> Option<Option<Arc<Object>>> {
        let mut object = Box::pin(self.object());
        tokio::select! {
            biased;
            // The fill can end before its request is sent.
            head = &mut object => return Some(head),
            () = self.sent.wait() => {}
        }
        let begun = Instant::now();
        let head = Box::pin(timeout(*wait, object)).await;
        *wait = wait.saturating_sub(begun.elapsed());
        head.ok()
    }

    /// Waits until bytes after `at` are stored, or the fill has ended.
    pub(crate) async fn wait_beyond(&self, at: u64) -> View {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state();
                if state.is_over() || state.view.stored > at {
                    return state.view_at(at);
                }
            }
            changed.await;
        }
    }

    /// Waits until the fill has ended, or is closed.
    async fn wait_end(&self) -> Phase {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state();
                if state.is_over() || state.followers.is_closed {
                    return state.view.phase;
                }
            }
            changed.await;
        }
    }

    /// Returns the range of the representation that it has at its end.
    pub(crate) fn range(&self) -> Range<u64> {
        self.state().range.clone()
    }

    /// Returns the current state.
    pub(crate) fn view(&self) -> View {
        self.state().view.clone()
    }

    /// Counts a follower until it is dropped.
    pub(crate) fn follow(self: &Arc<Self>) -> Follower {
        let place = self.state().followers.add();
        Follower { fill: self.clone(), place }
    }

    /// Returns the progress for the admin page.
    pub(super) fn summary(&self) -> FillProgress {
        let state = self.state();
        FillProgress {
            uri: self.key.to_string(),
            first: state.range.start,
            stored: state.view.stored,
            length: state.object.as_ref().and_then(|object| object.length),
            followers: state.followers.count(),
        }
    }

    pub(crate) fn followers(&self) -> usize {
        self.state().followers.count()
    }

    /// Waits until there is no follower.
    pub(crate) async fn abandoned(&self) {
        loop {
            let changed = self.changed.notified();
            if self.followers() == 0 {
                return;
            }
            changed.await;
        }
    }
}

/// Follower of a fill, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Follower {
    fill: Arc<Fill>,
    place: usize,
}

impl Follower {
    pub(crate) fn fill(&self) -> &Fill {
        &self.fill
    }

    /// Waits like [`Fill::wait_beyond`], after all bytes of the body before `at` were sent. A body
    /// that is too long to be stored is kept only from the next byte of its slowest follower on.
    pub(crate) async fn wait_beyond(&self, at: u64) -> View {
        self.note(|followers| followers.note_sent(self.place, at));
        self.fill.wait_beyond(at).await
    }

    /// Makes it a follower that is sent no bytes.
    pub(crate) fn needs_no_bytes(&self) {
        self.note(|followers| followers.note_unsent(self.place));
    }

    /// Waits for the end of the fill, without being sent bytes. Returns true if the fill has ended
    /// in [`Phase::Done`] and its body may be stored.
    pub(crate) async fn wait_stored(&self) -> bool {
        self.needs_no_bytes();
        self.fill.wait_end().await == Phase::Done && !self.fill.is_closed()
    }

    fn note(&self, change: impl FnOnce(&mut Followers)) {
        let mut state = self.fill.state();
        change(&mut state.followers);
        if state.followers.is_closed {
            drop(state);
            self.fill.sent_more.notify_waiters();
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.note(|followers| followers.remove(self.place));
        self.fill.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wait_for_a_head_begins_when_the_request_was_sent() {
        let fill = Fill::new("key".into(), None);
        let limit = Duration::from_secs(5);
        let (mut wait, queue) = (limit, 100 * limit);
        assert!(timeout(queue, fill.object_within(&mut wait)).await.is_err() && wait == limit);
        fill.sent.set(()).unwrap();
        assert!(fill.object_within(&mut wait).await.is_none() && wait.is_zero());
        // A request that is never sent.
        let fill = Fill::new("key".into(), None);
        fill.fail((503, String::new()));
        assert!(matches!(fill.object_within(&mut wait).await, Some(None)));
    }
}
