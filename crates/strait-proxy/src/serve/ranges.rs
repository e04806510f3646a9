//! Range assembly: sends a response from stored parts and from fills under way, and requests its
//! gaps from the origin one by one.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use strait_http::cache_status::{Answer, CacheStatus, Why};

use crate::cache::fill::Follower;
use crate::cache::fill_guard::FillGuard;
use crate::cache::fill_task::FillTask;
use crate::cache::fills::PartStep;
use crate::cache::object::{Object, Pinned, RECORDS_MAX};
use crate::cache::select::Selected;
use crate::io::socket::SocketError;
use crate::serve::deliver;
use crate::serve::exchange::{Exchange, ExchangeError};
use crate::serve::gaps::{GapError, GapRequest};
use crate::serve::respond::selected;
use crate::serve::storing::with_fields_of;
use crate::serve::wanted::{Lookup, Wanted};
use crate::upstream::incoming::Incoming;

/// Maximum of pieces of one response: parts, gaps between them, and remainders of interrupted gaps.
const STEPS_MAX: usize = 4 * RECORDS_MAX;
/// Maximum of attempts to find or request one piece, during which the fills have changed.
const ATTEMPTS_MAX: usize = 8;

/// Result of [`assemble`].
#[derive(Debug)]
pub(crate) enum Assembled {
    /// The response was sent.
    Answered,
    /// The store or the fill has the bytes now, or the fill has ended: look up again.
    Changed,
    /// The gap cannot be requested now: wait for the fill.
    Wait(Follower),
}

/// Bytes of a response that its stored object does not have.
enum Piece {
    /// Bytes of a fill under way; true if the fill has begun for this response.
    Filling(Follower, bool),
    /// Bytes that were stored since the lookup.
    Stored(Arc<Object>, Pinned),
}

/// Response that is sent piece by piece.
struct Assembly<'a> {
    /// Its object as it was found, pinned.
    stored: &'a Arc<Object>,
    pinned: Pinned,
    request: Rc<GapRequest>,
    /// True once the head is sent: then the response has no other source.
    is_begun: bool,
}

/// Sends the selected bytes of `stored`; `incoming` has the first gap.
pub(crate) async fn complete(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    stored: &Arc<Object>,
    guard: FillGuard,
    incoming: Box<Incoming>,
    part: (Object, Range<u64>),
) -> Result<Lookup, ExchangeError> {
    let (part, range) = part;
    let part = with_fields_of(exchange.worker, exchange.request, &part, range.start, stored);
    let Ok(task) = FillTask::new(guard, Arc::new(part), incoming, range) else {
        // The store is full.
        exchange.worker.forget(wanted.hash, &wanted.key);
        return Ok(Lookup::Alone);
    };
    let request = Rc::new(GapRequest::new(exchange, wanted));
    let follower = request.begin(task);
    let selected = selected(exchange, stored);
    let Some(range) = range_of(stored, &selected) else {
        follower.fill().wait_beyond(u64::MAX).await;
        return Ok(Lookup::Again);
    };
    // Pinned before the head is sent: bytes that are evicted from here on are still sent.
    let Some(pinned) = stored.pin(&range) else {
        follower.fill().wait_beyond(u64::MAX).await;
        return Ok(Lookup::Again);
    };
    let assembly = Assembly { stored, pinned, request, is_begun: true };
    send_head(exchange, stored, &selected, false).await?;
    assembly.send(exchange, range, Some(Piece::Filling(follower, true))).await?;
    Ok(Lookup::Answered(true))
}

/// Answers a request for bytes that `follower`'s fill does not have, or receives late: sends those
/// that `stored` has or that other fills receive, and requests the gaps. The head is sent once the
/// first gap is known to be filled. Until then the request can still wait for the fill, so it waits
/// for no permit, and no longer than until the fill arrives.
pub(crate) async fn assemble(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    stored: &Arc<Object>,
    follower: Follower,
    wait: &mut Duration,
) -> Result<Assembled, ExchangeError> {
    let selected = selected(exchange, stored);
    let request = Rc::new(GapRequest::new(exchange, wanted));
    let may_request = !follower.fill().refuses_ranges() && request.may_request(stored);
    let Some(range) = range_of(stored, &selected).filter(|_| may_request) else {
        return Ok(Assembled::Wait(follower));
    };
    let (Some(gap), Some(pinned)) = (stored.first_gap(&range), stored.pin(&range)) else {
        return Ok(Assembled::Changed);
    };
    let mut assembly = Assembly { stored, pinned, request, is_begun: false };
    let fill = follower.fill();
    let found = tokio::select! {
        biased;
        found = assembly.find_or_request(exchange, gap.start..range.end, wait) => found,
        _ = fill.wait_beyond(gap.start), if fill.range().contains(&gap.start) => return Ok(Assembled::Changed),
    };
    let first = match found {
        Ok(Piece::Stored(found, _)) if found.first_gap(&range).is_none() => return Ok(Assembled::Changed),
        Ok(first) => first,
        Err(error) => {
            error.note_at(fill);
            return Ok(Assembled::Wait(follower));
        }
    };
    // Without other followers, the fill is abandoned from here on.
    drop(follower);
    let is_collapsed = !matches!(first, Piece::Filling(_, true));
    assembly.is_begun = true;
    send_head(exchange, stored, &selected, is_collapsed).await?;
    assembly.send(exchange, range, Some(first)).await?;
    Ok(Assembled::Answered)
}

/// Sends the rest of a response after its fill has ended before bytes that another fill receives.
pub(crate) async fn resume(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    object: &Arc<Object>,
    rest: Range<u64>,
) -> Result<(), SocketError> {
    let request = Rc::new(GapRequest::new(exchange, wanted));
    let assembly = Assembly { stored: object, pinned: Pinned::default(), request, is_begun: true };
    assembly.send(exchange, rest, None).await
}

/// Returns the range of a selection; `None` if it is not one range.
fn range_of(stored: &Object, selected: &Selected) -> Option<Range<u64>> {
    match selected {
        Selected::Whole => Some(0..stored.length.unwrap_or(0)),
        Selected::Part(range) => Some(range.clone()),
        Selected::Parts(_) | Selected::NotModified | Selected::Unsatisfiable => None,
    }
}

/// Sends the head. `is_collapsed`: the first gap is filled for another request.
async fn send_head(
    exchange: &mut Exchange<'_, '_>,
    stored: &Object,
    selected: &Selected,
    is_collapsed: bool,
) -> Result<(), SocketError> {
    let worker = exchange.worker;
    let (why, status) = (Why::Partial, Some(206).filter(|_| !is_collapsed));
    let answer = Answer::Forwarded { why, status, stored: true, collapsed: is_collapsed };
    let ttl = Some(stored.times.ttl(worker.now()));
    let status = CacheStatus { by: &worker.settings().name, answer, ttl, detail: None };
    deliver::send_head(worker, exchange.client, stored, selected, &status, exchange.options).await
}

impl Assembly<'_> {
    /// Sends bytes that are stored, that a fill receives, or that have to be requested first.
    /// `piece` has the first gap.
    async fn send(
        &self,
        exchange: &mut Exchange<'_, '_>,
        range: Range<u64>,
        mut piece: Option<Piece>,
    ) -> Result<(), SocketError> {
        let worker = exchange.worker;
        let mut at = range.start;
        for _ in 0..STEPS_MAX {
            if at == range.end {
                return Ok(());
            }
            if let Some(len) = self.stored.stored_len(at) {
                let upto = range.end.min(at + len);
                deliver::send_range(worker, exchange.client, self.stored, &self.pinned, at..upto).await?;
                at = upto;
                continue;
            }
            let next = if let Some(piece) = piece.take().filter(|piece| piece.has(at)) {
                piece
            } else {
                let mut wait = exchange.limits.origin.unwrap_or(worker.settings().timeouts.origin);
                let next = self.find_or_request(exchange, at..range.end, &mut wait).await;
                next.map_err(|_| SocketError::Closed)?
            };
            let reached = next.send(exchange, at..range.end).await?;
            // A fill of another request may have ended; the remainder of an interrupted one is
            // requested.
            if reached == at && matches!(next, Piece::Filling(_, true)) {
                return Err(SocketError::Closed);
            }
            at = reached;
        }
        Err(SocketError::Closed)
    }

    /// Returns the piece with the first byte of `range`, which `stored` does not have: from a fill
    /// under way, from the store if it was stored meanwhile, or from the origin.
    async fn find_or_request(
        &self,
        exchange: &mut Exchange<'_, '_>,
        range: Range<u64>,
        wait: &mut Duration,
    ) -> Result<Piece, GapError> {
        let GapRequest { worker, hash, .. } = &*self.request;
        for _ in 0..ATTEMPTS_MAX {
            let begun = match worker.shared.fills.begin_part(*hash, self.stored, range.clone()) {
                PartStep::Begun(begun) => begun,
                PartStep::UnderWay(fill) => {
                    // Followers use no connection to the origin.
                    exchange.client_permit = None;
                    let follower = fill.follow();
                    let head = fill.object_within(wait).await.ok_or(GapError::Limited)?;
                    if head.is_some_and(|head| head.combines_with(self.stored)) {
                        return Ok(Piece::Filling(follower, false));
                    }
                    continue;
                }
                PartStep::Full => return Err(GapError::Limited),
            };
            let guard = self.request.guard(begun);
            if let Some(stored) = self.request.stored(self.stored) {
                let gap = stored.first_gap(&guard.fill.range());
                let Some(gap) = gap.filter(|gap| gap.start == range.start) else {
                    let Some(pinned) = stored.pin(&range) else { continue };
                    return Ok(Piece::Stored(stored, pinned));
                };
                guard.fill.set_end(gap.end);
            }
            if exchange.has_client_permit(self.request.whole()) {
                let permit = exchange.client_permit.take();
                let follower = self.request.fill(guard, self.stored, permit).await?;
                return Ok(Piece::Filling(follower, true));
            }
            // Awaited before followers can wait for this client.
            drop(guard);
            if !self.is_begun {
                return Err(GapError::Limited);
            }
            exchange.await_client_permit(self.request.whole()).await.map_err(|_| GapError::Limited)?;
        }
        Err(GapError::Limited)
    }
}

impl Piece {
    /// Returns true if it has the byte `at`.
    fn has(&self, at: u64) -> bool {
        match self {
            Self::Filling(follower, _) => follower.fill().range().contains(&at),
            Self::Stored(object, _) => object.stored_len(at).is_some(),
        }
    }

    /// Sends its first bytes of `range`; returns the reached offset.
    async fn send(&self, exchange: &mut Exchange<'_, '_>, range: Range<u64>) -> Result<u64, SocketError> {
        let worker = exchange.worker;
        match self {
            Self::Filling(follower, _) => {
                let upto = follower.fill().range().end.min(range.end);
                deliver::follow_range(worker, exchange.client, follower, range.start..upto).await
            }
            Self::Stored(object, pinned) => {
                let len = object.stored_len(range.start).ok_or(SocketError::Closed)?;
                let upto = range.end.min(range.start + len);
                deliver::send_range(worker, exchange.client, object, pinned, range.start..upto).await?;
                Ok(upto)
            }
        }
    }
}
