//! Misses: requests to the origin, and their responses, stored if allowed.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use strait_http::cache_status::{Answer, CacheStatus, Why};
use strait_http::partial::part_of;
use strait_http::range::Wanted::Parts;

use crate::cache::deferred::Deferred;
use crate::cache::fill::Phase;
use crate::cache::fill_guard::FillGuard;
use crate::cache::fill_task::{FillTask, whole_length};
use crate::cache::object::{Object, Pinned};
use crate::cache::select::Selected;
use crate::io::socket::after_others_have_read;
use crate::serve::exchange::{Exchange, ExchangeError};
use crate::serve::follow::{FillStep, follow};
use crate::serve::gaps::{GapRequest, PARTS_MAX, run};
use crate::serve::respond::{coded, missing, selected, send_pinned, send_stored};
use crate::serve::revalidate::{confirm, is_about_another, is_unusable, update_by_head};
use crate::serve::storing::{for_its_client, is_for_one_alone, object};
use crate::serve::wanted::{Lookup, Miss, Wanted, origin_request};
use crate::serve::{deliver, ranges};
use crate::upstream::error::{FetchError, OriginError};
use crate::upstream::fetch::fetch;
use crate::upstream::incoming::Incoming;
use crate::upstream::origin_request::OriginRequest;

/// Forwards a miss to the origin and answers the client; with a guard, followers get the response
/// as well.
pub(crate) async fn forward(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    mut miss: Miss,
    guard: Option<FillGuard>,
) -> Result<Lookup, ExchangeError> {
    let worker = exchange.worker;
    if lacks_bytes(exchange, &miss) || is_scattered(&miss) {
        miss = Miss { stored: None, gap: None, ..miss };
    }
    miss.stored = miss.stored.map(|stored| worker.with_new_generation(wanted.hash, stored));
    let mut origin_request = origin_request(exchange, wanted, &miss, guard.is_some());
    let guard = match guard {
        Some(guard) if exchange.waits_for_its_share(&origin_request) => {
            // Followers must not wait for this client's permit: another request may begin the fill.
            drop(guard);
            let waited = exchange.await_client_permit(&origin_request).await;
            let origin = &mut origin_request.origin;
            if waited.is_err() && !(origin.is_out() && origin.leave(worker.now())) {
                waited?;
            }
            return Ok(Lookup::Again);
        }
        guard => guard,
    };
    origin_request.client_permit = exchange.client_permit.take();
    if let Some(guard) = &guard {
        origin_request.announce(&guard.fill.sent);
    }
    let has_others = origin_request.origin.has_others();
    let (miss, fetched) = fetch_and_repeat(exchange, wanted, miss, origin_request, guard.is_some()).await;
    if let Some((substitute, status)) = substitute(exchange, wanted, &miss, &fetched) {
        // Followers do not wait until this client has the body: each can get the stored response.
        if let Some(guard) = guard {
            guard.end(Phase::NotShared);
        }
        return send_stored(exchange, &substitute, (miss.why, status, false)).await;
    }
    let incoming = match fetched {
        Ok(incoming) => incoming,
        Err(error) => return Err(refused(error, guard, has_others)),
    };
    if exchange.options.is_head {
        update_by_head(exchange, wanted, &miss, &incoming);
    }
    if miss.gap.is_some() && incoming.status == 416 {
        // The representation is shorter now than the stored parts.
        worker.forget(wanted.hash, &wanted.key);
        return Ok(Lookup::Alone);
    }
    match &miss.stored {
        Some(stored) if incoming.status == 304 => {
            // Pinned before the update, which may remove its record. It may have been evicted since
            // the request was forwarded.
            let pinned = stored.pin(&(0..stored.length.unwrap_or(0)));
            let request_and_directives = (exchange.request, &wanted.directives);
            let fresh = confirm(worker, wanted.hash, stored, request_and_directives, &incoming);
            incoming.finish(&worker.upstream());
            if let Some(guard) = guard {
                guard.end(Phase::Done);
            }
            send_confirmed(exchange, (fresh, pinned), miss.why).await
        }
        _ => store_or_pass(exchange, wanted, miss, guard, incoming).await,
    }
}

/// Sends a stored response that a 304 has confirmed. `pinned` has all its bytes, if they are still
/// stored.
async fn send_confirmed(
    exchange: &mut Exchange<'_, '_>,
    (fresh, pinned): (Arc<Object>, Option<Pinned>),
    why: Why,
) -> Result<Lookup, ExchangeError> {
    let coded = coded(exchange, &fresh);
    let coded = coded.and_then(|form| Some((form.pin(&(0..form.length.unwrap_or(0)))?, form)));
    let (pinned, shown) = coded.map_or((pinned, fresh), |(pinned, form)| (Some(pinned), form));
    let selected = selected(exchange, &shown);
    let is_complete = missing(&shown, &selected, exchange.options.is_head).is_none();
    let Some(pinned) = pinned.filter(|_| is_complete) else { return Ok(Lookup::Again) };
    let answer = Answer::Forwarded { why, status: Some(304), stored: true, collapsed: false };
    send_pinned(exchange, (&shown, &pinned), &selected, answer).await?;
    Ok(Lookup::Answered(true))
}

/// Sends `origin_request`. After a 304 that confirms another response, sends the request without
/// conditions; a 304 to that request is an error of the origin. Returns the miss of the last
/// request.
async fn fetch_and_repeat(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    mut miss: Miss,
    mut origin_request: OriginRequest,
    is_shared: bool,
) -> (Miss, Result<Box<Incoming>, FetchError>) {
    let worker = exchange.worker;
    let mut fetched = fetch(&worker.upstream(), &mut origin_request, Some(exchange.sender())).await;
    if is_about_another(exchange, wanted, &miss, &fetched) {
        // Finished before another connection is awaited: it may be the only one.
        if let Ok(incoming) = fetched {
            incoming.finish(&worker.upstream());
        }
        // RFC 9111 s4.3.4: it confirms no stored response.
        miss = Miss { stored: None, gap: None, ..miss };
        origin_request = self::origin_request(exchange, wanted, &miss, is_shared);
        fetched = fetch(&worker.upstream(), &mut origin_request, Some(exchange.sender())).await;
    }
    if miss.stored.is_none() && fetched.as_ref().is_ok_and(|it| is_unusable(exchange, &origin_request, it)) {
        fetched = Err(OriginError::NotModified.into());
    }
    worker.heads.give_back(origin_request.head);
    (miss, fetched)
}

/// Returns true if the stored response must be validated and lacks bytes that the request needs. A
/// 304 would contain none of them, and the response might have to be validated again before the gap
/// is requested.
fn lacks_bytes(exchange: &Exchange<'_, '_>, miss: &Miss) -> bool {
    let Some(stored) = miss.stored.as_ref().filter(|_| miss.gap.is_none()) else { return false };
    missing(stored, &selected(exchange, stored), exchange.options.is_head).is_some()
}

/// Returns true if a gap is missing in a response of so many parts that the whole is requested
/// instead, which replaces them. Otherwise a client could store so many short parts that the gaps
/// between them exceed the records of a key, and no request would complete the response.
fn is_scattered(miss: &Miss) -> bool {
    let stored = miss.stored.as_ref().filter(|_| miss.gap.is_some());
    stored.is_some_and(|stored| stored.parts().count() >= PARTS_MAX)
}

/// Returns the client's error. Followers get the same if their own requests would fail as well.
/// That is unknown for the limit of a server if the pool has others.
fn refused(error: FetchError, guard: Option<FillGuard>, has_others: bool) -> ExchangeError {
    let is_for_all = matches!(
        &error,
        FetchError::Origin(failure) if failure.is_for_all() && !(has_others && failure.is_of_limit())
    );
    let error = error.into();
    if let (ExchangeError::Refuse(status, why), Some(guard)) = (&error, guard.filter(|_| is_for_all)) {
        guard.fail(*status, why);
    }
    error
}

/// Returns the stored response that replaces the error of an origin, and the origin's status.
fn substitute(
    exchange: &Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    miss: &Miss,
    fetched: &Result<Box<Incoming>, FetchError>,
) -> Option<(Arc<Object>, Option<u16>)> {
    let status = match fetched {
        Ok(incoming) => Some(incoming.status).filter(|status| matches!(status, 500 | 502..=504)),
        Err(FetchError::Origin(_)) => None,
        Err(_) => return None,
    };
    if fetched.is_ok() && status.is_none() {
        return None;
    }
    Some((miss.in_place_of_error(exchange, wanted)?, status))
}

async fn store_or_pass(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    miss: Miss,
    guard: Option<FillGuard>,
    incoming: Box<Incoming>,
) -> Result<Lookup, ExchangeError> {
    let worker = exchange.worker;
    let Some(guard) = guard else { return pass(exchange, incoming, miss.why).await };
    // The Range is the proxy's own for a gap, or the client's.
    let is_range = miss.gap.is_some() || (miss.stored.is_none() && exchange.request.fields.has("range"));
    let Some((object, range)) = storable(exchange, wanted, (is_range, miss.gap.is_some()), &incoming) else {
        // A refused Range does not concern the whole response: one of the followers requests it.
        let is_of_range = is_range && incoming.status != 200;
        guard.end(if is_of_range { Phase::Broken } else { Phase::NotShared });
        return pass_part(exchange, wanted, &miss, incoming).await;
    };
    worker.hit_for_miss.forget(wanted.hash);
    if let Some(stored) = miss.stored.as_ref().filter(|_| incoming.status != 206) {
        // RFC 9111 s4.3.3: it is not suitable. By its Date it would still rank before the new
        // response.
        if stored.has_keyed_of(&exchange.request.fields) && object.yields_to(stored) {
            worker.discard(wanted.hash, stored);
        }
    }
    if incoming.status == 206 {
        match &miss.stored {
            Some(stored) if stored.combines_with(&object) => {
                if ends_early(&miss, &range) {
                    // An origin that limits the length of parts (RFC 9110, section 15.3.7) would
                    // need too many requests to complete the response.
                    guard.end(Phase::NotShared);
                    worker.forget(wanted.hash, &wanted.key);
                    return Ok(Lookup::Alone);
                }
                let part = (object, range);
                return Box::pin(ranges::complete(exchange, wanted, stored, guard, incoming, part)).await;
            }
            // This part begins a new object.
            Some(_) => {}
            None if has_selected(exchange, &object, &range) => {}
            // The origin has sent another part than the requested one.
            None => {
                guard.end(Phase::NotShared);
                return pass(exchange, incoming, miss.why).await;
            }
        }
    }
    let object = Arc::new(object);
    if let Some(len) = whole_length(worker, &object, &incoming, &range) {
        let selected = selected(exchange, &object);
        // Several parts are sent from the stored body.
        if !matches!(selected, Selected::Parts(_)) {
            return send_and_store(exchange, (guard, object), (incoming, len), &selected, miss.why).await;
        }
    }
    match FillTask::new(guard, object, incoming, range) {
        Ok(task) => Box::pin(fill(exchange, wanted, task, miss.why)).await,
        Err((guard, incoming)) => {
            guard.end(Phase::NotShared);
            pass(exchange, incoming, miss.why).await
        }
    }
}

/// Makes the object of a response. A response that must not be stored may make its key
/// hit-for-miss.
fn storable(
    exchange: &Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    (is_range, is_of_gap): (bool, bool),
    incoming: &Incoming,
) -> Option<(Object, Range<u64>)> {
    let (worker, request, response) = (exchange.worker, exchange.request, incoming.response());
    let storable = object(worker, is_range, request, &wanted.directives, &wanted.key, (incoming, &response));
    // A gap is requested with the validator of the stored parts, and its response may lack fields.
    let storable = storable.filter(|(object, _)| !(object.is_lone_part() && is_of_gap));
    let is_of_range = is_range && incoming.status != 200;
    if storable.is_none() && !is_of_range && is_for_one_alone(worker, request, &response) {
        worker.hit_for_miss.note(wanted.hash, worker.now());
    }
    storable
}

/// Forwards a response that is not stored, unless it is a part that the client has not requested.
async fn pass_part(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    miss: &Miss,
    incoming: Box<Incoming>,
) -> Result<Lookup, ExchangeError> {
    if incoming.status != 206 || miss.gap.is_none() {
        return pass(exchange, incoming, miss.why).await;
    }
    exchange.worker.forget(wanted.hash, &wanted.key);
    let length = miss.stored.as_ref().and_then(|stored| stored.length);
    let range = exchange.request.fields.one("range").zip(length);
    let requested = range.map(|(range, length)| strait_http::range::wanted(range, length));
    let received = part_of(&incoming.response().fields, incoming.body).map(|(part, _)| part);
    match (requested, received) {
        (Some(Parts(parts)), Some(part)) if *parts == [part.clone()] => {
            pass(exchange, incoming, miss.why).await
        }
        _ => Ok(Lookup::Alone),
    }
}

/// Returns true if a part ends before the gap for which it was requested.
fn ends_early(miss: &Miss, range: &Range<u64>) -> bool {
    miss.gap.as_ref().is_some_and(|gap| range.end < gap.end)
}

/// Returns true if the range has the bytes that the request selects.
fn has_selected(exchange: &Exchange<'_, '_>, object: &Object, range: &Range<u64>) -> bool {
    match selected(exchange, object) {
        Selected::Whole => *range == (0..object.length.unwrap_or(u64::MAX)),
        Selected::Part(part) => range.start <= part.start && part.end <= range.end,
        _ => true,
    }
}

async fn pass(
    exchange: &mut Exchange<'_, '_>,
    incoming: Box<Incoming>,
    why: Why,
) -> Result<Lookup, ExchangeError> {
    exchange.pass_response(incoming, why).await.map(Lookup::Answered)
}

/// Starts the fill task and follows it like other clients. A body that is in the buffer already
/// becomes the object's at once.
async fn fill(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    mut task: FillTask,
    why: Why,
) -> Result<Lookup, ExchangeError> {
    let object = task.object.clone();
    let shown = for_its_client(&object, &task.incoming);
    let is_whole = task.range == (0..object.length.unwrap_or(u64::MAX));
    if is_whole && task.is_in_memory() && task.take_buffered().await.unwrap_or(false) {
        // An object that the store refuses stays in memory.
        let Some(stored) = task.finish() else { return Ok(Lookup::Again) };
        let shown = with_stored_body(&shown, &object, stored);
        return send_stored(exchange, &shown, (why, None, true)).await;
    }
    if task.may_outgrow_memory() {
        task.stop_sharing();
    }
    let follower = task.guard.fill.follow();
    let gaps = GapRequest::for_long(exchange, wanted, &task);
    task.begin();
    tokio::task::spawn_local(run(task, gaps));
    let answer = Answer::Forwarded { why, status: None, stored: true, collapsed: false };
    match follow(exchange, wanted, &follower, &shown, answer).await? {
        FillStep::Answered(stays) => Ok(Lookup::Answered(stays)),
        // Unless the fill did not store the whole body.
        _ => Ok(if follower.wait_stored().await { Lookup::Again } else { Lookup::Alone }),
    }
}

/// Returns the first client's object with the stored body.
fn with_stored_body(shown: &Arc<Object>, object: &Arc<Object>, stored: Arc<Object>) -> Arc<Object> {
    if Arc::ptr_eq(shown, object) {
        stored
    } else {
        Arc::new(shown.with_body(stored.length, stored.body.clone()))
    }
}

/// Sends a body of `len` bytes from the buffer into which it was read, and has it stored
/// afterwards.
async fn send_and_store(
    exchange: &mut Exchange<'_, '_>,
    (guard, object): (FillGuard, Arc<Object>),
    (incoming, len): (Box<Incoming>, usize),
    selected: &Selected,
    why: Why,
) -> Result<Lookup, ExchangeError> {
    let worker = exchange.worker;
    let shown = for_its_client(&object, &incoming);
    let body = Rc::new(incoming.finish_with_body(len, &worker.upstream()));
    let answer = Answer::Forwarded { why, status: None, stored: true, collapsed: false };
    let ttl = Some(object.times.ttl(worker.now()));
    let status = CacheStatus { by: &worker.settings().name, answer, ttl, detail: None };
    let deferral = Deferred::of_thread().add(guard, object, body.clone());
    after_others_have_read().await;
    drop(deferral);
    let found = (&shown, body.filled());
    deliver::send_from(worker, exchange.client, found, selected, &status, exchange.options).await?;
    Ok(Lookup::Answered(true))
}
