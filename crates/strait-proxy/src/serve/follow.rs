//! Responses from fills under way: waits for the head of a fill, and sends the body as it arrives.

use std::sync::Arc;
use std::time::Duration;

use strait_http::cache_status::{Answer, CacheStatus, Why};
use strait_http::head::Version;
use strait_http::partial::strong_validator;
use strait_http::reuse::{Reuse, reuse};
use strait_http::vary::Variant;

use crate::cache::fill::{Fill, Follower, Phase, REQUEST_BYTES, Refusal};
use crate::cache::object::Object;
use crate::cache::select::Selected;
use crate::io::socket::SocketError;
use crate::serve::deliver;
use crate::serve::exchange::{Exchange, ExchangeError};
use crate::serve::ranges::{Assembled, assemble, resume};
use crate::serve::respond::{is_its_range, selected, send, send_stored};
use crate::serve::wanted::{Lookup, Miss, Wanted};

/// Answers HEAD from a fill that has its head.
pub(crate) async fn head_of_fill(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
) -> Result<bool, ExchangeError> {
    let worker = exchange.worker;
    for fill in worker.shared.fills.of(wanted.hash, &wanted.key) {
        let Some(object) = fill.object_now() else { continue };
        if object.length.is_none() || object.is_lone_part() {
            continue;
        }
        let decision = reuse(worker.now(), &object.times, &object.directives, &wanted.directives);
        if decision == Reuse::Serve && matches(exchange, &object) {
            let selected = selected(exchange, &object);
            if send(exchange, &object, &selected, Answer::Hit).await? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Result of following a fill. `docs/internals/proxy.md` draws the transitions.
#[derive(Debug)]
pub(crate) enum FillStep {
    /// The response was sent. True if the connection can carry another request.
    Answered(bool),
    /// The fill has ended: its response may be in the store.
    Ended,
    /// The request can be answered only from the complete body.
    AtEnd,
    /// The request needs bytes that the fill does not have.
    Outside,
    /// The request has other values of the fields in Vary: its variant.
    Differs(Variant),
    /// The request must not wait for the fill: its response is for one client alone, too long to be
    /// stored, too old for this request, or late, its Vary gives no variant, or the fill failed and
    /// the request has Range. Leads to [`Lookup::Alone`].
    Alone,
}

/// Follows the first fill that answers the request. Fills with a head come first: if none of these
/// matches, the response varies, and the request does not wait for other heads.
pub(crate) async fn follow_one(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    miss: &Miss,
    fills: &[Arc<Fill>],
    wait: &mut Duration,
) -> Result<FillStep, ExchangeError> {
    let mut outcome = FillStep::Outside;
    let (with_head, without): (Vec<_>, Vec<_>) =
        fills.iter().rev().partition(|fill| fill.object_now().is_some());
    let heads: Vec<_> = with_head.iter().filter_map(|fill| fill.object_now()).collect();
    match heads.first() {
        Some(newest) if !heads.iter().any(|head| matches(exchange, head)) => {
            return Ok(differs(exchange, newest));
        }
        _ => {}
    }
    for fill in with_head.into_iter().chain(without) {
        let mut follower = fill.follow();
        let Some(head) = fill.object_within(wait).await else { return Ok(FillStep::Alone) };
        let Some(object) = head else {
            if let Some(failure) = fill.failure() {
                return replace_or_refuse(exchange, wanted, miss, failure).await;
            }
            outcome = match fill.view().phase {
                Phase::NotShared => FillStep::Alone,
                // The origin may refuse this request's Range as well: wait for no other fill.
                Phase::Broken if exchange.request.fields.has("range") => FillStep::Alone,
                _ => FillStep::Ended,
            };
            continue;
        };
        if !matches(exchange, &object) {
            outcome = differs(exchange, &object);
            continue;
        }
        if object.is_lone_part() && !is_its_range(exchange, &object) {
            outcome = FillStep::Outside;
            continue;
        }
        if fill.is_closed() {
            return Ok(FillStep::Alone);
        }
        let now = exchange.worker.now();
        if reuse(now, &object.times, &object.directives, &wanted.directives) != Reuse::Serve {
            return Ok(FillStep::Alone);
        }
        if let Some(stored) = assembled_from(exchange, miss, fill, &object) {
            match Box::pin(assemble(exchange, wanted, &stored, follower, wait)).await? {
                Assembled::Answered => return Ok(FillStep::Answered(true)),
                Assembled::Changed => return Ok(FillStep::Ended),
                Assembled::Wait(waiting) => follower = waiting,
            }
        }
        let why = Why::UriMiss;
        let answer = Answer::Forwarded { why, status: None, stored: true, collapsed: true };
        match follow(exchange, wanted, &follower, &object, answer).await? {
            FillStep::Outside => outcome = FillStep::Outside,
            FillStep::AtEnd => {
                follower.wait_stored().await;
                return Ok(if fill.is_closed() { FillStep::Alone } else { FillStep::Ended });
            }
            step => return Ok(step),
        }
    }
    Ok(outcome)
}

/// Sends the stored response in place of an error, as the request would get it without the fill.
async fn replace_or_refuse(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    miss: &Miss,
    (status, why): Refusal,
) -> Result<FillStep, ExchangeError> {
    let Some(stored) = miss.in_place_of_error(exchange, wanted) else {
        return Err(ExchangeError::Refuse(status, why));
    };
    Ok(match send_stored(exchange, &stored, (miss.why, None, false)).await? {
        Lookup::Answered(stays) => FillStep::Answered(stays),
        _ => FillStep::Ended,
    })
}

/// Returns the object from which range assembly answers a request, if that fill alone does not, or
/// receives the requested bytes late: the stored response with a part of the same representation,
/// or the response of the fill if the request begins in it. Short responses are requested again.
fn assembled_from(
    exchange: &Exchange<'_, '_>,
    miss: &Miss,
    fill: &Fill,
    object: &Arc<Object>,
) -> Option<Arc<Object>> {
    let length = object.length.filter(|length| *length > REQUEST_BYTES)?;
    strong_validator(&object.fields())?;
    let needed = match selected(exchange, object) {
        Selected::Whole => 0..length,
        Selected::Part(range) => range,
        Selected::Parts(_) | Selected::NotModified | Selected::Unsatisfiable => return None,
    };
    let available = fill.range();
    if needed.end <= available.end && fill.has_soon(needed.start) {
        return None;
    }
    let stored = miss
        .stored
        .as_ref()
        .filter(|stored| miss.gap.is_some() && stored.is_for_same(object) && stored.combines_with(object));
    stored.or_else(|| available.contains(&needed.start).then_some(object)).cloned()
}

/// Returns true if an object matches the request.
fn matches(exchange: &Exchange<'_, '_>, object: &Object) -> bool {
    object.matches(&exchange.request.fields, exchange.worker.key_fields())
}

fn differs(exchange: &Exchange<'_, '_>, object: &Object) -> FillStep {
    let keys = exchange.worker.key_fields();
    let own = object.variant_of(&exchange.request.fields, keys);
    own.map_or(FillStep::Alone, FillStep::Differs)
}

/// Sends the body of a fill as it arrives.
pub(crate) async fn follow(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    follower: &Follower,
    object: &Arc<Object>,
    answer: Answer,
) -> Result<FillStep, ExchangeError> {
    let worker = exchange.worker;
    let available = follower.fill().range();
    let range = match (object.length, exchange.request.fields.has("range")) {
        (None, true) => return Ok(FillStep::AtEnd),
        (None, false) => None,
        (Some(_), _) => match selected(exchange, object) {
            Selected::Whole => None,
            Selected::Part(range) => Some(range),
            Selected::Parts(_) => return Ok(FillStep::AtEnd),
            selected @ (Selected::NotModified | Selected::Unsatisfiable) => {
                let is_sent = send(exchange, object, &selected, answer).await?;
                return Ok(if is_sent { FillStep::Answered(true) } else { FillStep::AtEnd });
            }
        },
    };
    let needed = range.clone().unwrap_or(0..object.length.unwrap_or(u64::MAX));
    if needed.start < available.start || needed.end > available.end {
        return Ok(FillStep::Outside);
    }
    let status = CacheStatus {
        by: &worker.settings().name,
        answer,
        ttl: Some(object.times.ttl(worker.now())),
        detail: None,
    };
    let fill = follower.fill();
    let rest =
        deliver::follow(worker, exchange.client, follower, object, range, &status, exchange.options).await?;
    if !rest.is_empty() {
        // A whole response that the origin has interrupted ends here. A part of a long one is
        // continued: without the part, a fill of the whole might have answered the request.
        let is_part =
            object.length.is_some_and(|length| length > REQUEST_BYTES && fill.range() != (0..length));
        let base = fill.object_now().filter(|_| is_part).ok_or(SocketError::Closed)?;
        Box::pin(resume(exchange, wanted, &base, rest)).await?;
    }
    let stays_open = object.length.is_some() || exchange.options.version >= Version::Http11;
    Ok(FillStep::Answered(stays_open))
}
