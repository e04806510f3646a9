//! Validation: finds the stored responses that a 304 or a response to HEAD confirms, and updates
//! them (RFC 9111, sections 4.3.4 and 4.3.5). [`crate::serve::miss`] sends the requests that a
//! client waits for; this module sends those in the background. It sends no response to a client.

use std::rc::Rc;
use std::sync::Arc;

use strait_http::cache_control::{OfRequest, OfResponse};
use strait_http::cache_status::Why;
use strait_http::conditional::is_not_modified;
use strait_http::fields::{Field, Fields};
use strait_http::freshness::Times;
use strait_http::head::Request;
use strait_http::lifetimes::Lifetimes;
use strait_http::storing::{NotStored, Policy, StorableRequest, may_store, storable_fields};
use strait_http::update::{confirms, has_no_validator, has_strong_tag, head_confirms, updated};
use strait_http::vary::Variant;

use crate::cache::fill::Phase;
use crate::cache::fill_guard::FillGuard;
use crate::cache::fill_task::FillTask;
use crate::cache::meta::Meta;
use crate::cache::object::{Object, stored_head};
use crate::cache::worker::Worker;
use crate::io::gate::Key;
use crate::serve::exchange::Exchange;
use crate::serve::gaps::{GapRequest, run};
use crate::serve::storing::{names_unsent, object, varies_with_unsent};
use crate::serve::wanted::{Miss, Wanted, origin_request};
use crate::upstream::background::Fetch;
use crate::upstream::error::FetchError;
use crate::upstream::fetch::fetch;
use crate::upstream::incoming::Incoming;
use crate::upstream::origin_request::OriginRequest;

/// Returns true for a 304 that does not confirm the stored response.
pub(crate) fn is_about_another(
    exchange: &Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    miss: &Miss,
    fetched: &Result<Box<Incoming>, FetchError>,
) -> bool {
    let (Some(stored), Ok(incoming)) = (&miss.stored, fetched) else { return false };
    confirms_another(exchange.worker, wanted.hash, stored, &exchange.request.fields, incoming)
}

/// Returns true for a 304 that confirms no stored response and does not satisfy the client's own
/// condition.
pub(crate) fn is_unusable(
    exchange: &Exchange<'_, '_>,
    origin_request: &OriginRequest,
    incoming: &Incoming,
) -> bool {
    origin_request.is_unrequested_304(incoming)
        && !is_not_modified(&exchange.request.fields, &incoming.response().fields)
}

/// Returns true for a 304 that confirms another response than the stored one (RFC 9111, section
/// 4.3.4). A 304 without a validator confirms none if several stored responses match.
pub(crate) fn confirms_another(
    worker: &Worker,
    hash: u64,
    stored: &Object,
    request_fields: &Fields<'_>,
    incoming: &Incoming,
) -> bool {
    if incoming.status != 304 {
        return false;
    }
    let fresh = &incoming.response().fields;
    let is_one_of_several =
        || has_no_validator(fresh) && worker.candidates(hash, &stored.key, request_fields).len() > 1;
    !confirms(&stored.fields(), fresh) || is_one_of_several()
}

/// Updates or removes the stored response by a response to HEAD (RFC 9111, section 4.3.5).
pub(crate) fn update_by_head(
    exchange: &Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    miss: &Miss,
    incoming: &Incoming,
) {
    let worker = exchange.worker;
    let Some(stored) = &miss.stored else { return };
    let response = incoming.response();
    if response.status != 200 || stored.status != 200 || !stored.has_keyed_of(&exchange.request.fields) {
        return;
    }
    match head_confirms(&stored.fields(), stored.length.unwrap_or(0), &response.fields) {
        Some(true) => {
            freshen(worker, wanted.hash, stored, (exchange.request, &wanted.directives), incoming);
        }
        Some(false) => {
            worker.forget(wanted.hash, &wanted.key);
        }
        None => {}
    }
}

/// Updates the stored response by a 304. A strong tag also confirms other stored responses with
/// that tag that match the request (RFC 9111, section 4.3.4).
pub(crate) fn confirm(
    worker: &Worker,
    hash: u64,
    stored: &Arc<Object>,
    request_and_directives: (&Request<'_>, &OfRequest),
    incoming: &Incoming,
) -> Arc<Object> {
    let fresh = &incoming.response().fields;
    if has_strong_tag(fresh) {
        let mut others = worker.candidates(hash, &stored.key, &request_and_directives.0.fields);
        // The compressor may have replaced the stored response.
        let is_other = |other: &Object| !other.is_for_same(stored) || !stored.is_alive();
        others.retain(|other| is_other(other) && confirms(&other.fields(), fresh));
        for other in others {
            freshen(worker, hash, &other, request_and_directives, incoming);
        }
    }
    freshen(worker, hash, stored, request_and_directives, incoming)
}

/// Fields of a 304 that do not depend on the client that caused it.
const FRESHNESS_FIELDS: [&str; 8] =
    ["age", "cache-control", "cdn-cache-control", "connection", "date", "etag", "expires", "last-modified"];

/// Updates a stored response that a 304 has confirmed, if a response with the new fields may be
/// stored.
fn freshen(
    worker: &Worker,
    hash: u64,
    stored: &Arc<Object>,
    (request, wanted): (&Request<'_>, &OfRequest),
    incoming: &Incoming,
) -> Arc<Object> {
    let response = incoming.response();
    let policy = &worker.settings().storing;
    let own = stored.fields();
    let all = updated(&own, &response.fields);
    let fields = updated(&own, &for_all_clients(policy, &response.fields));
    let directives = OfResponse::of(&fields);
    let (requested, received) = (incoming.requested, incoming.received);
    let age = Times::of(stored.status, &response.fields, &directives, requested, received).age;
    // The Date is that of the 304, or its time of receipt.
    let has_date = response.fields.has("date");
    let is_own = |field: &&Field<'_>| has_date || !field.name.eq_ignore_ascii_case("date");
    let head_of =
        |fields| stored_head(stored.status, storable_fields(fields, &directives).filter(is_own), received);
    let head = head_of(&fields);
    let variant = new_variant(worker, request, &fields, &response.fields);
    let variant_text = variant.as_ref().map_or("", Variant::text);
    // A purge after the request has marked a response that the 304 may not confirm any more.
    let expired = stored.times.expired_for(requested);
    let lifetimes = lifetimes(worker, request, stored, (&fields, &directives), received);
    let meta = Meta {
        requested,
        received,
        age,
        expired,
        lifetimes,
        variant: variant_text,
        head: &head,
        ..stored.meta(0)
    };
    let shown = |fresh: Arc<Object>| {
        let head = if all.has("set-cookie") { head_of(&all) } else { return fresh };
        let shown = Object::new(&stored.key, &Meta { head: &head, ..meta }, fresh.body.clone());
        shown.map_or(fresh, Arc::new)
    };
    let fresh = Object::new(&stored.key, &meta, stored.body.clone());
    // Does not fail, because the fields of both heads were parsed before.
    let Some(mut fresh) = fresh else { return stored.clone() };
    if !stored.has_keyed_of(&request.fields) {
        // The stored response answers other requests than this one, which has another key field.
        return shown(Arc::new(fresh));
    }
    match may_stay(worker, (request, wanted), stored.status, &fields, &directives) {
        Ok(()) if variant.is_some() => {}
        // The 304 was for this client alone; the stored response stays.
        Err(NotStored::RequestNoStore | NotStored::Authorization | NotStored::Cookie) => {
            return shown(Arc::new(fresh));
        }
        _ => {
            worker.forget(hash, &stored.key);
            return shown(Arc::new(fresh));
        }
    }
    if let Some(store) = &worker.shared.store {
        fresh.write_again(store, worker.lane);
    }
    let fresh = Arc::new(fresh);
    // An object that was stored or removed meanwhile is newer.
    if fresh.is_alive() && fresh.is_current() {
        worker.replace(hash, &fresh);
    }
    shown(fresh)
}

/// Returns the lifetimes of a stored response with the fields that a 304 to this request has
/// updated. A client with a cookie of its own confirms it, and does not end its lifetimes.
fn lifetimes(
    worker: &Worker,
    request: &Request<'_>,
    stored: &Object,
    updated: (&Fields<'_>, &OfResponse),
    received: u64,
) -> Lifetimes {
    let of_request = &request.fields;
    if worker.is_for_one(of_request) {
        return stored.meta(0).lifetimes;
    }
    worker.lifetimes(of_request, stored.status, updated, received)
}

/// Checks that a response may be stored with the fields that a 304 to this request has updated.
fn may_stay(
    worker: &Worker,
    (request, wanted): (&Request<'_>, &OfRequest),
    status: u16,
    fields: &Fields<'_>,
    directives: &OfResponse,
) -> Result<(), NotStored> {
    let request = StorableRequest {
        method: "GET",
        fields: &request.fields,
        directives: *wanted,
        is_range: false,
        has_other_cookie: worker.has_other_cookie(&request.fields),
    };
    may_store(&worker.settings().storing, &request, status, fields, directives)
}

/// Returns the fields of a 304 that are for all clients. A cookie is for one client alone, and so
/// may be every other field beside it, such as a CSRF token, but for lifetime and validators.
fn for_all_clients<'b>(policy: &Policy, fields: &Fields<'b>) -> Fields<'b> {
    let is_neutral = |name: &str| FRESHNESS_FIELDS.into_iter().any(|own| name.eq_ignore_ascii_case(own));
    let are_all = policy.set_cookie || !fields.has("set-cookie");
    fields.iter().filter(|field| are_all || is_neutral(field.name)).copied().collect()
}

/// Returns the variant of a response that a 304 with the fields `of_304` has updated to `fields`;
/// `None` if it may not be stored.
fn new_variant(
    worker: &Worker,
    request: &Request<'_>,
    fields: &Fields<'_>,
    of_304: &Fields<'_>,
) -> Option<Variant> {
    let variant = Variant::of(fields, &request.fields, worker.key_fields());
    // The stored response may be from before a change of the settings.
    let is_unsent = names_unsent(worker, fields) || varies_with_unsent(worker, request, of_304);
    variant.filter(|_| !is_unsent)
}

/// Begins a validation in the background (stale-while-revalidate, RFC 5861, section 3), unless a
/// fill is under way.
pub(crate) fn validate_in_background(exchange: &Exchange<'_, '_>, wanted: &Wanted<'_>, stored: &Arc<Object>) {
    let worker = exchange.worker.clone();
    let Ok(shared) = worker.shared.fills.begin(wanted.hash, &wanted.key, None) else { return };
    let guard = FillGuard::new(&worker, wanted.hash, shared);
    let stored = worker.with_new_generation(wanted.hash, stored.clone());
    let miss = Miss { why: Why::Stale, stored: Some(stored.clone()), gap: None };
    let mut origin_request = origin_request(exchange, wanted, &miss, true);
    origin_request.announce(&guard.fill.sent);
    let mut background =
        Fetch::new(&worker.shared.background, &origin_request.origin.server, origin_request.client);
    // Beyond the limit, the next request begins the validation.
    if !background.begin(worker.settings().background) {
        return;
    }
    let gate = Key::OriginOf(origin_request.origin.server.clone(), origin_request.client);
    origin_request.client_permit = worker.shared.gates.try_enter(gate);
    if origin_request.client_permit.is_none() {
        return;
    }
    let unconditional = Rc::new(GapRequest::new(exchange, wanted));
    tokio::task::spawn_local(async move {
        validate(guard, origin_request, unconditional, stored).await;
        drop(background);
    });
}

/// Validates a stored response, or stores the one that replaces it. The unconditional request is
/// sent if the first one gets a 304 that confirms no stored response.
async fn validate(
    guard: FillGuard,
    mut origin_request: OriginRequest,
    unconditional: Rc<GapRequest>,
    stored: Arc<Object>,
) {
    let worker: Rc<Worker> = guard.worker.clone();
    // Without a response, the stored response stays.
    let Ok(mut incoming) = fetch(&worker.upstream(), &mut origin_request, None).await else { return };
    let Some(request) = unconditional.request() else { return };
    let directives = unconditional.directives;
    if confirms_another(&worker, guard.hash, &stored, &request.fields, &incoming) {
        // RFC 9111 s4.3.4: the 304 confirms no stored response. Finish it before another connection
        // is awaited: it may hold the only one.
        incoming.finish(&worker.upstream());
        let mut repeated = unconditional.whole().again();
        let Ok(other) = fetch(&worker.upstream(), &mut repeated, None).await else { return };
        incoming = other;
        if incoming.status == 304 {
            worker.forget(guard.hash, &stored.key);
            return;
        }
    }
    if incoming.status == 304 {
        confirm(&worker, guard.hash, &stored, (&request, &directives), &incoming);
        incoming.finish(&worker.upstream());
        guard.end(Phase::Done);
        return;
    }
    let made = object(&worker, false, &request, &directives, &stored.key, (&incoming, &incoming.response()));
    let Some((object, range)) = made else {
        // RFC 9111 s4.3.3: the stored response is outdated, except after an error other than 404
        // and 410, which a field of this client's request may have caused.
        // A response for one client replaces none for all.
        let is_for_all = !worker.is_for_one(&request.fields) && !directives.no_store;
        if is_for_all && (incoming.status < 400 || matches!(incoming.status, 404 | 410)) {
            worker.forget(guard.hash, &stored.key);
        }
        return;
    };
    if let Ok(task) = FillTask::new(guard, Arc::new(object), incoming, range) {
        // Without a follower, a fill that never had a client would count as abandoned.
        let follower = task.guard.fill.follow();
        follower.needs_no_bytes();
        task.begin();
        run(task, Some(unconditional.clone())).await;
    }
}
