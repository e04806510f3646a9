//! Range assembly: sends a partly stored response, and requests its gaps from the origin one by
//! one.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use strait_http::cache_status::{Answer, CacheStatus, Why};

use crate::cache::fill::Follower;
use crate::cache::fill_task::{FillGuard, FillTask};
use crate::cache::object::{Object, Pinned, RECORDS_MAX};
use crate::cache::select::Selected;
use crate::io::socket::SocketError;
use crate::serve::deliver;
use crate::serve::exchange::{Exchange, ExchangeError};
use crate::serve::respond::selected;
use crate::serve::storing::object;
use crate::serve::wanted::{Lookup, Miss, Wanted, origin_request};
use crate::upstream::fetch::fetch;
use crate::upstream::incoming::Incoming;

/// Maximum of pieces of one response: parts, gaps between them, and remainders of interrupted gaps.
const STEPS_MAX: usize = 4 * RECORDS_MAX;

/// Gap that is being filled.
struct GapFill {
    range: Range<u64>,
    follower: Follower,
}

/// Sends the selected bytes of `stored`; `incoming` has the first gap.
pub(crate) async fn complete(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    stored: &Arc<Object>,
    guard: FillGuard,
    incoming: Box<Incoming>,
    part: (Arc<Object>, Range<u64>),
) -> Result<Lookup, ExchangeError> {
    let Some(gap_fill) = fill(guard, incoming, part) else {
        // The store is full.
        exchange.worker.forget(wanted.hash, &wanted.key);
        return Ok(Lookup::Alone);
    };
    let length = stored.length.unwrap_or(0);
    let (selected, range) = match selected(exchange, stored) {
        selected @ Selected::Whole => (selected, 0..length),
        Selected::Part(range) => (Selected::Part(range.clone()), range),
        _ => {
            gap_fill.follower.fill().wait_beyond(u64::MAX).await;
            return Ok(Lookup::Again);
        }
    };
    let worker = exchange.worker;
    let answer = Answer::Forwarded { why: Why::Partial, status: Some(206), stored: true, collapsed: false };
    let ttl = Some(stored.times.ttl(worker.now()));
    let status = CacheStatus { by: &worker.settings().name, answer, ttl, detail: None };
    // Pinned before the head is sent: bytes that are evicted from here on are still sent.
    let Some(pinned) = stored.pin(&range) else {
        gap_fill.follower.fill().wait_beyond(u64::MAX).await;
        return Ok(Lookup::Again);
    };
    deliver::send_head(worker, exchange.client, stored, &selected, &status, exchange.options).await?;
    send(exchange, wanted, (stored, &pinned), range, gap_fill).await?;
    Ok(Lookup::Answered(true))
}

/// Sends bytes that are stored, that a fill receives, or that have to be requested first.
async fn send(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    (stored, pinned): (&Arc<Object>, &Pinned),
    range: Range<u64>,
    mut gap_fill: GapFill,
) -> Result<(), SocketError> {
    let worker = exchange.worker;
    let mut at = range.start;
    for _ in 0..STEPS_MAX {
        if at == range.end {
            return Ok(());
        }
        let upto = if gap_fill.range.contains(&at) {
            let upto = gap_fill.range.end.min(range.end);
            let reached =
                deliver::follow_range(worker, exchange.client, &gap_fill.follower, at..upto).await?;
            if reached < upto {
                if reached == at {
                    return Err(SocketError::Closed);
                }
                // The origin was interrupted: request the remainder.
                gap_fill.range = 0..0;
            }
            reached
        } else if let Some(len) = stored.stored_len(at) {
            let upto = range.end.min(at + len);
            deliver::send_range(worker, exchange.client, stored, pinned, at..upto).await?;
            upto
        } else {
            let gap = stored.first_gap(&(at..range.end)).ok_or(SocketError::Closed)?;
            gap_fill = request_gap(exchange, wanted, stored, gap).await.ok_or(SocketError::Closed)?;
            at
        };
        at = upto;
    }
    Err(SocketError::Closed)
}

/// Requests a gap; `None` if the origin does not have it any more.
async fn request_gap(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    stored: &Arc<Object>,
    gap: Range<u64>,
) -> Option<GapFill> {
    let worker: &Rc<_> = exchange.worker;
    let miss = Miss { why: Why::Partial, stored: Some(stored.clone()), gap: Some(gap) };
    let mut origin_request = origin_request(exchange, wanted, &miss, true);
    // Awaited before followers can wait for this client.
    exchange.await_client_permit(&origin_request).await.ok()?;
    origin_request.client_permit = exchange.client_permit.take();
    let guard = FillGuard::new(worker, wanted.hash, worker.shared.fills.add(wanted.hash, &wanted.key));
    let incoming = fetch(&worker.upstream(), &mut origin_request, None).await.ok()?;
    let (key, directives) = (&wanted.key, &wanted.directives);
    let (object, range) =
        object(worker, false, exchange.request, directives, key, (&incoming, &incoming.response()))?;
    let is_part = incoming.status == 206 && stored.combines_with(&object);
    if is_part { fill(guard, incoming, (Arc::new(object), range)) } else { None }
}

/// Starts the fill task of a part; `None` if the store is full.
fn fill(guard: FillGuard, incoming: Box<Incoming>, part: (Arc<Object>, Range<u64>)) -> Option<GapFill> {
    let (object, range) = part;
    let task = FillTask::new(guard, object, incoming, range.clone()).ok()?;
    let follower = task.guard.fill.follow();
    task.begin();
    tokio::task::spawn_local(task.run());
    Some(GapFill { range, follower })
}
