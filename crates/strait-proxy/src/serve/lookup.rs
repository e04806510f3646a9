//! GET and HEAD, by the cache: from the store, from a fill that is under way, or from the origin
//! into the store.

use std::sync::Arc;
use std::time::Duration;

use strait_http::cache_status::{Answer, Why};
use strait_http::fields::Fields;
use strait_http::reuse::{Reuse, reuse};
use strait_http::target::Uri;
use strait_http::vary::Variant;

use crate::cache::disk::Found;
use crate::cache::fill::{Joined, Phase};
use crate::cache::fill_task::FillGuard;
use crate::serve::deliver;
use crate::serve::exchange::{Exchange, ExchangeError};
use crate::serve::follow::{Followed, follow_one, head_of_fill};
use crate::serve::miss;
use crate::serve::respond::{missing, selected, send_pinned};
use crate::serve::revalidate;
use crate::serve::wanted::{Led, Miss, Wanted};

/// How often a request looks for what is stored or coming, which may change each time; and how
/// often before it asks on its own.
const ATTEMPTS_MAX: usize = 8;
const WAITS_MAX: usize = 5;
/// Longest that a request waits for the head of a response that another one has asked for. An
/// origin may be slow for that one alone.
const HEAD_WAIT: Duration = Duration::from_secs(5);
/// How long a request for what is not found waits for the index that is still being loaded, and how
/// often it looks.
const LOADING: Duration = Duration::from_secs(1);
const LOADING_LOOKS: u32 = 100;

/// Answers; whether another request may follow.
pub(crate) async fn answer(exchange: &mut Exchange<'_, '_>, uri: &Uri<'_>) -> Result<bool, ExchangeError> {
    let mut key = String::with_capacity(uri.path.len() + 64);
    uri.write_key(&mut key);
    let hash = strait_store::hash_of(key.as_bytes());
    let worker = exchange.worker;
    let directives = worker.directives(exchange.peer.ip(), &exchange.request.fields);
    let wanted = Wanted { uri, key, hash, directives };
    // A fill is requested without Expect: an expectation that the origin may refuse is for this
    // client's request alone.
    let mut is_alone =
        exchange.options.is_head || wanted.directives.no_store || expects_more(&exchange.request.fields);
    // A response that is on its way was asked for before this request: one that wants a new response
    // does not wait for it.
    let wants_new = wanted.directives.no_cache || wanted.directives.max_age == Some(0);
    let mut variant = None;
    let mut patience = HEAD_WAIT.min(worker.settings().timeouts.origin);
    for attempt in 0..ATTEMPTS_MAX {
        is_alone |= attempt >= WAITS_MAX;
        let is_private = worker.hit_for_miss.has(hash, worker.now());
        let miss = match look(exchange, &wanted, &mut variant).await? {
            Looked::Answered => return Ok(true),
            Looked::Missed(Miss { why: Why::UriMiss, stored, gap }) if is_private => {
                Miss { why: Why::Private, stored, gap }
            }
            Looked::Missed(miss) => miss,
            Looked::Evicted if attempt < WAITS_MAX => continue,
            Looked::Evicted => Miss { why: Why::UriMiss, stored: None, gap: None },
        };
        if wanted.directives.only_if_cached {
            return Err(ExchangeError::Refuse(
                504,
                "nothing is stored that may answer, and only that was asked for".to_owned(),
            ));
        }
        if exchange.options.is_head && head_of_fill(exchange, &wanted).await? {
            return Ok(true);
        }
        let turn = if is_alone {
            Turn::Ask(for_all_bytes(miss), None)
        } else if is_private {
            Turn::Ask(for_all_bytes(miss), leads_again(exchange, &wanted))
        } else if wants_new {
            Turn::Ask(miss, Some(FillGuard::new(worker, hash, worker.shared.fills.add(hash, &wanted.key))))
        } else {
            wait(exchange, &wanted, miss, (&mut variant, &mut patience)).await?
        };
        let led = match turn {
            Turn::Ask(miss, guard) => miss::lead(exchange, &wanted, miss, guard).await?,
            Turn::Over(led) => led,
        };
        match led {
            Led::Answered(stays) => return Ok(stays),
            Led::Again => {}
            Led::Alone => is_alone = true,
        }
    }
    Err(ExchangeError::Refuse(503, "what is stored changes faster than it can be sent".to_owned()))
}

/// A miss that asks for the whole response: the answer to a request that is not shared must be what
/// its client has asked for.
fn for_all_bytes(miss: Miss) -> Miss {
    if miss.gap.is_some() { Miss { stored: None, gap: None, ..miss } } else { miss }
}

/// Lets a plain request store its response although the last one was for one client alone. That
/// one's Cookie may have caused this, so one client could otherwise keep a resource out of the
/// cache. Others do not wait: at most one such fill of a key is under way.
fn leads_again(exchange: &Exchange<'_, '_>, wanted: &Wanted<'_>) -> Option<FillGuard> {
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
    match worker.shared.fills.join(wanted.hash, &wanted.key, None) {
        Joined::First(fill) => Some(FillGuard::new(worker, wanted.hash, fill)),
        Joined::Others(_) => None,
    }
}

/// What a request does whose response is not stored.
enum Turn {
    /// It asks the origin, for all who wait if it is to see to that.
    Ask(Miss, Option<FillGuard>),
    /// It has followed somebody who did.
    Over(Led),
}

/// Returns true if a request expects something other than 100-continue (RFC 9110, section 10.1.1).
fn expects_more(fields: &Fields<'_>) -> bool {
    fields.all("expect").any(|field| !field.value.eq_ignore_ascii_case(b"100-continue"))
}

/// Follows whoever asks the origin for the same already, or is the first.
async fn wait(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    miss: Miss,
    (variant, patience): (&mut Option<Variant>, &mut Duration),
) -> Result<Turn, ExchangeError> {
    let (worker, hash, key) = (exchange.worker, wanted.hash, &wanted.key);
    let fills = match worker.shared.fills.join(hash, key, variant.as_ref().map(Variant::text)) {
        Joined::First(fill) => {
            let guard = FillGuard::new(worker, hash, fill);
            // Another worker may have come to the end of one since it was looked for.
            if worker.shared.counters.len() > 1 && has_changed(exchange, wanted, &miss) {
                guard.end(Phase::Done);
                return Ok(Turn::Over(Led::Again));
            }
            let why = if variant.is_some() { Why::VaryMiss } else { miss.why };
            return Ok(Turn::Ask(Miss { why, ..miss }, Some(guard)));
        }
        Joined::Others(fills) => fills,
    };
    // Followers use no connection to the origin.
    exchange.part = None;
    Ok(match follow_one(exchange, wanted, &fills, patience).await? {
        Followed::Answered(stays) => Turn::Over(Led::Answered(stays)),
        Followed::Again => Turn::Over(Led::Again),
        Followed::Private => Turn::Over(Led::Alone),
        // Others who have said the same wait for the same fill.
        Followed::Differs(own) => {
            *variant = Some(own);
            Turn::Over(Led::Again)
        }
        Followed::Outside => {
            let fill = worker.shared.fills.add(hash, key);
            Turn::Ask(miss, Some(FillGuard::new(worker, hash, fill)))
        }
    })
}

/// Whether there is something else in the store than there was.
fn has_changed(exchange: &Exchange<'_, '_>, wanted: &Wanted<'_>, miss: &Miss) -> bool {
    let found = exchange.worker.find(wanted.hash, &wanted.key, &exchange.request.fields);
    match (found, &miss.stored) {
        (Found::Answer(found), Some(stored)) => {
            // What is in memory alone has no records.
            let has_records = found.records().next().is_some();
            let is_same =
                has_records && found.records().map(Arc::as_ptr).eq(stored.records().map(Arc::as_ptr));
            !is_same && !Arc::ptr_eq(&found, stored)
        }
        (Found::Answer(_), None) => true,
        (Found::Others(_) | Found::Nothing, _) => false,
    }
}

enum Looked {
    Answered,
    Missed(Miss),
    /// It was found, and gone before it was pinned. Nothing is sent; the next look finds a
    /// successor or nothing.
    Evicted,
}

/// Answers from the store, if it may. Where that has answers to other requests alone, `variant` is
/// what this one is asked by.
async fn look(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    variant: &mut Option<Variant>,
) -> Result<Looked, ExchangeError> {
    let worker = exchange.worker;
    let asked = &exchange.request.fields;
    let missed = |why| Ok(Looked::Missed(Miss { why, stored: None, gap: None }));
    let mut found = worker.find(wanted.hash, &wanted.key, asked);
    for _ in 0..LOADING_LOOKS {
        if matches!(found, Found::Answer(_)) || worker.is_loaded() {
            break;
        }
        tokio::time::sleep(LOADING / LOADING_LOOKS).await;
        found = worker.find(wanted.hash, &wanted.key, asked);
    }
    let object = match found {
        Found::Answer(object) => object,
        Found::Others(own) => {
            variant.get_or_insert(own);
            return missed(Why::VaryMiss);
        }
        Found::Nothing => return missed(Why::UriMiss),
    };
    let now = worker.now();
    let decision = reuse(now, &object.times, &object.directives, &wanted.directives);
    match decision {
        Reuse::Serve | Reuse::ServeAndValidate => {
            let selected = selected(exchange, &object);
            if let Some(gap) = missing(&object, &selected, exchange.options.is_head) {
                return Ok(Looked::Missed(Miss { why: Why::Partial, stored: Some(object), gap: Some(gap) }));
            }
            let Some(pinned) = deliver::pinned(&object, &selected, exchange.options) else {
                return Ok(Looked::Evicted);
            };
            if decision == Reuse::ServeAndValidate {
                revalidate::validate_meanwhile(exchange, wanted, &object);
            }
            object.touch();
            exchange.part = None;
            send_pinned(exchange, (&object, &pinned), &selected, Answer::Hit).await?;
            Ok(Looked::Answered)
        }
        Reuse::Refuse => {
            Err(ExchangeError::Refuse(504, "what is stored is stale, and only that was asked for".to_owned()))
        }
        Reuse::Validate => {
            let why = if object.times.is_fresh(now) { Why::Request } else { Why::Stale };
            Ok(Looked::Missed(Miss { why, stored: Some(object), gap: None }))
        }
    }
}
