//! Lookup: answers GET and HEAD from memory or the store, from a fill under way, or from the
//! origin.

use std::sync::Arc;
use std::time::Duration;

use strait_http::cache_status::{Answer, Why};
use strait_http::fields::Fields;
use strait_http::reuse::{Reuse, reuse};
use strait_http::vary::Variant;

use crate::cache::disk::NotFound;
use crate::cache::fill::Phase;
use crate::cache::fill_guard::FillGuard;
use crate::cache::object::Object;
use crate::cache::select::Selected;
use crate::config::sites::Resource;
use crate::serve::check;
use crate::serve::coded;
use crate::serve::deliver;
use crate::serve::exchange::{Exchange, ExchangeError};
use crate::serve::follow::{FillStep, follow_one, head_of_fill};
use crate::serve::miss;
use crate::serve::respond::{is_its_range, missing, selected, send_pinned};
use crate::serve::revalidate;
use crate::serve::wanted::{Lookup, Miss, Wanted};

/// Maximum of lookups for one request. The cache or the fills have changed before each further one.
const LOOKUPS_MAX: usize = 8;
/// Lookups after which the request is forwarded to the origin without a fill.
const SHARED_LOOKUPS_MAX: usize = 5;
/// Maximum wait for the head of a response to another request, from the time when that was sent. An
/// origin may be slow for that request alone.
const HEAD_WAIT: Duration = Duration::from_secs(5);

/// Request in the course of its lookup.
struct Attempt {
    /// Number of lookups so far.
    lookups: usize,
    /// True if the origin's response is for this client alone.
    is_alone: bool,
    /// True if the last response for the key was for one client alone.
    is_hit_for_miss: bool,
    /// Variant of the request by the Vary of responses for the key, if known.
    variant: Option<Variant>,
    /// Time left to wait for the heads of responses to other requests.
    head_wait: Duration,
}

/// Answers a request; returns true if the connection can carry another.
pub(crate) async fn answer(
    exchange: &mut Exchange<'_, '_>,
    resource: &Resource<'_>,
) -> Result<bool, ExchangeError> {
    let worker = exchange.worker;
    let (hash, key) = worker.with_key(resource, |hash, key| (hash, Arc::from(key)));
    let directives = worker.directives(exchange.peer.ip(), &exchange.request.fields);
    let generation = worker.shared.generations.take(hash);
    let wanted = Wanted { resource, key, hash, directives, generation };
    // A fill is requested without Expect: an expectation that the origin may refuse is for this
    // client's request alone.
    let is_alone = exchange.options.is_head
        || wanted.directives.no_store
        || has_other_expectation(&exchange.request.fields);
    let head_wait = HEAD_WAIT.min(exchange.limits.origin.unwrap_or(worker.settings().timeouts.origin));
    let mut attempt = Attempt { lookups: 0, is_alone, is_hit_for_miss: false, variant: None, head_wait };
    let mut state = Lookup::Again;
    loop {
        state = match state {
            Lookup::Again => look_up(exchange, &wanted, &mut attempt).await?,
            Lookup::Alone => {
                attempt.is_alone = true;
                look_up(exchange, &wanted, &mut attempt).await?
            }
            Lookup::Missed(miss) => answer_miss(exchange, &wanted, miss, &mut attempt).await?,
            Lookup::Ask(miss, guard) => miss::forward(exchange, &wanted, miss, guard).await?,
            Lookup::Answered(stays) => return Ok(stays),
        };
    }
}

/// Decides how a miss is answered: from a fill, or from the origin, for all clients or for this one
/// alone.
async fn answer_miss(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    miss: Miss,
    attempt: &mut Attempt,
) -> Result<Lookup, ExchangeError> {
    if wanted.directives.only_if_cached {
        return Err(ExchangeError::Refuse(
            504,
            "no stored response can answer, and the request has only-if-cached".to_owned(),
        ));
    }
    if exchange.options.is_head && head_of_fill(exchange, wanted).await? {
        return Ok(Lookup::Answered(true));
    }
    // A fill under way was requested earlier: it does not satisfy a request for a new response.
    let wants_new = wanted.directives.no_cache || wanted.directives.max_age == Some(0);
    Ok(if attempt.is_alone {
        Lookup::Ask(for_all_bytes(miss), None)
    } else if attempt.is_hit_for_miss {
        Lookup::Ask(for_all_bytes(miss), fill_of_plain_request(exchange, wanted))
    } else if wants_new {
        Lookup::Ask(miss, Some(begin_another(exchange, wanted)))
    } else {
        follow_or_fill(exchange, wanted, miss, attempt).await?
    })
}

/// Begins a fill in addition to those under way.
fn begin_another(exchange: &Exchange<'_, '_>, wanted: &Wanted<'_>) -> FillGuard {
    let fill = exchange.worker.shared.fills.add(wanted.hash, &wanted.key);
    FillGuard::new(exchange.worker, wanted.hash, fill)
}

/// Makes a miss request the whole response: the response to a request that is not shared must have
/// the bytes that its client has requested.
fn for_all_bytes(miss: Miss) -> Miss {
    if miss.gap.is_some() { Miss { stored: None, gap: None, ..miss } } else { miss }
}

/// Begins a fill for a plain request although the last response was for one client alone: a Cookie
/// of that client may be the reason, and one client must not keep a resource out of the cache.
/// Other requests do not wait, and at most one such fill of a key is under way.
fn fill_of_plain_request(exchange: &Exchange<'_, '_>, wanted: &Wanted<'_>) -> Option<FillGuard> {
    const OF_ONE_CLIENT: [&str; 7] = [
        "authorization",
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-range",
        "if-unmodified-since",
        "range",
    ];
    let (worker, fields) = (exchange.worker, &exchange.request.fields);
    if OF_ONE_CLIENT.into_iter().any(|name| fields.has(name)) {
        return None;
    }
    let fill = worker.shared.fills.begin(wanted.hash, &wanted.key, None).ok()?;
    Some(FillGuard::new(worker, wanted.hash, fill))
}

/// Returns true if a request expects something other than 100-continue (RFC 9110, section 10.1.1).
fn has_other_expectation(fields: &Fields<'_>) -> bool {
    fields.all("expect").any(|field| !field.value.eq_ignore_ascii_case(b"100-continue"))
}

/// Follows a fill that may answer, or begins one if there is none.
async fn follow_or_fill(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    miss: Miss,
    attempt: &mut Attempt,
) -> Result<Lookup, ExchangeError> {
    let (worker, hash, key) = (exchange.worker, wanted.hash, &wanted.key);
    let variant = attempt.variant.as_ref().map(Variant::text);
    let fills = match worker.shared.fills.begin(hash, key, variant) {
        Ok(fill) => {
            let guard = FillGuard::new(worker, hash, fill);
            // A fill of another worker may have ended since the lookup.
            if worker.shared.counters.len() > 1 && has_changed(exchange, wanted, &miss) {
                guard.end(Phase::Done);
                return Ok(Lookup::Again);
            }
            let why = if variant.is_some() { Why::VaryMiss } else { miss.why };
            return Ok(Lookup::Ask(Miss { why, ..miss }, Some(guard)));
        }
        Err(fills) => fills,
    };
    // Followers use no connection to the origin.
    exchange.client_permit = None;
    Ok(match Box::pin(follow_one(exchange, wanted, &miss, &fills, &mut attempt.head_wait)).await? {
        FillStep::Answered(stays) => Lookup::Answered(stays),
        FillStep::Ended | FillStep::AtEnd => Lookup::Again,
        FillStep::Alone => Lookup::Alone,
        // Requests with the same values share one fill.
        FillStep::Differs(own) => {
            attempt.variant = Some(own);
            Lookup::Again
        }
        FillStep::Outside => Lookup::Ask(miss, Some(begin_another(exchange, wanted))),
    })
}

/// Returns true if the cache has another response than at the last lookup.
fn has_changed(exchange: &Exchange<'_, '_>, wanted: &Wanted<'_>, miss: &Miss) -> bool {
    let found = exchange.worker.find(wanted.hash, &wanted.key, &exchange.request.fields);
    match (found, &miss.stored) {
        (Ok(found), Some(stored)) => {
            // An object that memory alone holds has no records.
            let has_records = found.records().next().is_some();
            let is_same =
                has_records && found.records().map(Arc::as_ptr).eq(stored.records().map(Arc::as_ptr));
            !is_same && !Arc::ptr_eq(&found, stored)
        }
        (Ok(found), None) => !found.is_lone_part(),
        (Err(_), _) => false,
    }
}

/// Answers from memory or the store. Returns `Again` if the object was evicted before its pin:
/// nothing was sent, and the next lookup finds a successor or nothing.
async fn look_up(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    attempt: &mut Attempt,
) -> Result<Lookup, ExchangeError> {
    if attempt.lookups == LOOKUPS_MAX {
        let why = "the stored response was replaced too often during the request".to_owned();
        return Err(ExchangeError::Refuse(503, why));
    }
    let is_late = attempt.lookups >= SHARED_LOOKUPS_MAX;
    attempt.lookups += 1;
    attempt.is_alone |= is_late;
    let worker = exchange.worker;
    attempt.is_hit_for_miss = worker.hit_for_miss.has(wanted.hash, worker.now());
    let object = match find(exchange, wanted).await {
        Ok(object) => object,
        Err(NotFound(Some(own))) => {
            attempt.variant.get_or_insert(own);
            return Ok(Lookup::Missed(Miss::new(Why::VaryMiss)));
        }
        Err(NotFound(None)) => {
            let why = if attempt.is_hit_for_miss { Why::Private } else { Why::UriMiss };
            return Ok(Lookup::Missed(Miss::new(why)));
        }
    };
    let now = worker.now();
    let decision = reuse(now, &object.times, &object.directives, &wanted.directives);
    if object.is_lone_part() && !(decision == Reuse::Serve && is_its_range(exchange, &object)) {
        return Ok(Lookup::Missed(Miss::new(Why::UriMiss)));
    }
    if may_send_body(exchange, &object, decision) && !check::is_sound(worker, &object).await {
        return Ok(if is_late { Lookup::Missed(Miss::new(Why::UriMiss)) } else { Lookup::Again });
    }
    match decision {
        Reuse::Serve | Reuse::ServeAndValidate => {
            let shown = shown(exchange, wanted, &object);
            let selected = selected(exchange, &shown);
            if let Some(gap) = missing(&shown, &selected, exchange.options.is_head) {
                return Ok(Lookup::Missed(Miss { why: Why::Partial, stored: Some(object), gap: Some(gap) }));
            }
            let Some(pinned) = deliver::pinned(&shown, &selected, exchange.options) else {
                return Ok(if is_late { Lookup::Missed(Miss::new(Why::UriMiss)) } else { Lookup::Again });
            };
            if decision == Reuse::ServeAndValidate {
                revalidate::validate_in_background(exchange, wanted, &object);
            }
            exchange.worker.touch(&object);
            exchange.client_permit = None;
            send_pinned(exchange, (&shown, &pinned), &selected, Answer::Hit).await?;
            Ok(Lookup::Answered(true))
        }
        Reuse::Refuse => Err(ExchangeError::Refuse(
            504,
            "the stored response is stale, and the request has only-if-cached".to_owned(),
        )),
        Reuse::Validate => {
            let why = if object.times.is_fresh(now) { Why::Request } else { Why::Stale };
            Ok(Lookup::Missed(Miss { why, stored: Some(object), gap: None }))
        }
    }
}

/// Returns the coded form of a stored object that answers the request, or the object.
fn shown(exchange: &Exchange<'_, '_>, wanted: &Wanted<'_>, object: &Arc<Object>) -> Arc<Object> {
    let (worker, rules, fields) = (exchange.worker, exchange.options.rules, &exchange.request.fields);
    let form = coded::form_or_request(worker, wanted.hash, object, rules, fields);
    form.unwrap_or_else(|| object.clone())
}

/// Returns true if the response may have bytes of the stored body.
fn may_send_body(exchange: &Exchange<'_, '_>, object: &Object, decision: Reuse) -> bool {
    match decision {
        _ if exchange.options.is_head => false,
        Reuse::Refuse => false,
        // A validation may change the fields that decide on a 304.
        Reuse::Validate => true,
        Reuse::Serve | Reuse::ServeAndValidate => {
            !matches!(selected(exchange, object), Selected::NotModified | Selected::Unsatisfiable)
        }
    }
}

/// Finds the stored response. While the store's index is being loaded, a miss is looked up again
/// when more of it is loaded.
async fn find(exchange: &Exchange<'_, '_>, wanted: &Wanted<'_>) -> Result<Arc<Object>, NotFound> {
    let (worker, request_fields) = (exchange.worker, &exchange.request.fields);
    let mut seen = None;
    loop {
        let found = worker.find(wanted.hash, &wanted.key, request_fields);
        if found.is_ok() || !worker.wait_loading(wanted.hash, &mut seen).await {
            return found;
        }
    }
}
