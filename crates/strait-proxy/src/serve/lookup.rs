//! GET and HEAD, by the cache: from the store, from a fill that is under way, or from the origin
//! into the store.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use strait_http::cache_status::{Answer, CacheStatus, Why};
use strait_http::fields::Fields;
use strait_http::head::Version;
use strait_http::reuse::{Reuse, reuse};
use strait_http::target::Uri;
use strait_http::vary::Variant;
use tokio::time::{Instant, timeout};

use crate::cache::disk::Found;
use crate::cache::fill::{Fill, Follower, Joined, Phase};
use crate::cache::fill_task::Leading;
use crate::cache::object::{Object, Pinned};
use crate::cache::select::{Selected, select};
use crate::serve::deliver;
use crate::serve::exchange::{Exchange, Stop};
use crate::serve::miss::{self, Led, Miss, Wanted};

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
pub(crate) async fn answer(exchange: &mut Exchange<'_, '_>, uri: &Uri<'_>) -> Result<bool, Stop> {
    let mut key = String::with_capacity(uri.path.len() + 64);
    uri.write_key(&mut key);
    let hash = strait_store::hash_of(key.as_bytes());
    let worker = exchange.worker;
    let directives = worker.directives(exchange.peer.ip(), &exchange.request.fields);
    let wanted = Wanted { uri, key, hash, directives };
    // A fill is requested without Expect: an expectation that the origin may refuse is for this
    // client's request alone.
    let mut is_alone =
        exchange.wish.is_head || wanted.directives.no_store || expects_more(&exchange.request.fields);
    // A response that is on its way was asked for before this request: one that wants a new response
    // does not wait for it.
    let wants_new = wanted.directives.no_cache || wanted.directives.max_age == Some(0);
    let mut variant = None;
    let mut patience = HEAD_WAIT.min(worker.settings().timeouts.origin);
    for attempt in 0..ATTEMPTS_MAX {
        is_alone |= attempt >= WAITS_MAX;
        let is_private = worker.private.has(hash, worker.now());
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
            return Err(Stop::Refuse(
                504,
                "nothing is stored that may answer, and only that was asked for".to_owned(),
            ));
        }
        if exchange.wish.is_head && head_of_fill(exchange, &wanted).await? {
            return Ok(true);
        }
        let turn = if is_alone {
            Turn::Ask(for_all_bytes(miss), None)
        } else if is_private {
            Turn::Ask(for_all_bytes(miss), leads_again(exchange, &wanted))
        } else if wants_new {
            Turn::Ask(miss, Some(Leading::new(worker, hash, worker.shared.fills.add(hash, &wanted.key))))
        } else {
            wait(exchange, &wanted, miss, (&mut variant, &mut patience)).await?
        };
        let led = match turn {
            Turn::Ask(miss, leading) => miss::lead(exchange, &wanted, miss, leading).await?,
            Turn::Over(led) => led,
        };
        match led {
            Led::Answered(stays) => return Ok(stays),
            Led::Again => {}
            Led::Alone => is_alone = true,
        }
    }
    Err(Stop::Refuse(503, "what is stored changes faster than it can be sent".to_owned()))
}

/// A miss that asks for the whole response: the answer to a request that is not shared must be what
/// its client has asked for.
fn for_all_bytes(miss: Miss) -> Miss {
    if miss.gap.is_some() { Miss { stored: None, gap: None, ..miss } } else { miss }
}

/// Lets a plain request store its response although the last one was for one client alone. That
/// one's Cookie may have caused this, so one client could otherwise keep a resource out of the
/// cache. Others do not wait: at most one such fill of a key is under way.
fn leads_again(exchange: &Exchange<'_, '_>, wanted: &Wanted<'_>) -> Option<Leading> {
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
        Joined::First(fill) => Some(Leading::new(worker, wanted.hash, fill)),
        Joined::Others(_) => None,
    }
}

/// What a request does whose response is not stored.
enum Turn {
    /// It asks the origin, for all who wait if it is to see to that.
    Ask(Miss, Option<Leading>),
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
) -> Result<Turn, Stop> {
    let (worker, hash, key) = (exchange.worker, wanted.hash, &wanted.key);
    let fills = match worker.shared.fills.join(hash, key, variant.as_ref().map(Variant::text)) {
        Joined::First(fill) => {
            let leading = Leading::new(worker, hash, fill);
            // Another worker may have come to the end of one since it was looked for.
            if worker.shared.counters.len() > 1 && has_changed(exchange, wanted, &miss) {
                leading.end(Phase::Done);
                return Ok(Turn::Over(Led::Again));
            }
            let why = if variant.is_some() { Why::VaryMiss } else { miss.why };
            return Ok(Turn::Ask(Miss { why, ..miss }, Some(leading)));
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
            Turn::Ask(miss, Some(Leading::new(worker, hash, fill)))
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
) -> Result<Looked, Stop> {
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
            if let Some(gap) = missing(&object, &selected, exchange.wish.is_head) {
                return Ok(Looked::Missed(Miss { why: Why::Partial, stored: Some(object), gap: Some(gap) }));
            }
            let Some(pinned) = deliver::pinned(&object, &selected, exchange.wish) else {
                return Ok(Looked::Evicted);
            };
            if decision == Reuse::ServeAndValidate {
                miss::validate_meanwhile(exchange, wanted, &object);
            }
            object.touch();
            exchange.part = None;
            send_pinned(exchange, (&object, &pinned), &selected, Answer::Hit).await?;
            Ok(Looked::Answered)
        }
        Reuse::Refuse => {
            Err(Stop::Refuse(504, "what is stored is stale, and only that was asked for".to_owned()))
        }
        Reuse::Validate => {
            let why = if object.times.is_fresh(now) { Why::Request } else { Why::Stale };
            Ok(Looked::Missed(Miss { why, stored: Some(object), gap: None }))
        }
    }
}

/// What of an object the request is answered with.
pub(crate) fn selected(exchange: &Exchange<'_, '_>, object: &Object) -> Selected {
    select(object, object.length.unwrap_or(0), &exchange.request.fields, exchange.wish.is_head)
}

/// The first bytes that are needed and not stored.
pub(crate) fn missing(object: &Object, selected: &Selected, is_head: bool) -> Option<Range<u64>> {
    let length = object.length.unwrap_or(0);
    let whole = 0..length;
    let needed = match selected {
        _ if is_head => return None,
        Selected::Whole => std::slice::from_ref(&whole),
        Selected::Part(range) => std::slice::from_ref(range),
        Selected::Parts(ranges) => &ranges[..],
        Selected::NotModified | Selected::Unsatisfiable => return None,
    };
    needed.iter().find_map(|range| object.first_gap(range))
}

/// Sends what is stored; returns false, with nothing sent, if it was evicted since it was found.
pub(crate) async fn send(
    exchange: &mut Exchange<'_, '_>,
    object: &Arc<Object>,
    selected: &Selected,
    answer: Answer,
) -> Result<bool, Stop> {
    let Some(pinned) = deliver::pinned(object, selected, exchange.wish) else { return Ok(false) };
    send_pinned(exchange, (object, &pinned), selected, answer).await?;
    Ok(true)
}

/// Sends what is pinned.
pub(crate) async fn send_pinned(
    exchange: &mut Exchange<'_, '_>,
    (object, pinned): (&Arc<Object>, &Pinned),
    selected: &Selected,
    answer: Answer,
) -> Result<(), Stop> {
    let worker = exchange.worker;
    let status = CacheStatus {
        by: &worker.settings().name,
        answer,
        ttl: Some(object.times.ttl(worker.now())),
        detail: None,
    };
    let found = (object, pinned);
    Ok(deliver::send_pinned(worker, exchange.client, found, selected, &status, exchange.wish).await?)
}

/// Answers HEAD from a fill of which the head is there.
async fn head_of_fill(exchange: &mut Exchange<'_, '_>, wanted: &Wanted<'_>) -> Result<bool, Stop> {
    let worker = exchange.worker;
    for fill in worker.shared.fills.of(wanted.hash, &wanted.key) {
        let Some(object) = fill.object_now().filter(|object| object.length.is_some()) else { continue };
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

enum Followed {
    Answered(bool),
    /// It is over: the store may have it.
    Again,
    /// What is coming is for requests that have said something else of the fields that it varies
    /// with; this one has said that.
    Differs(Variant),
    /// What is coming are other bytes.
    Outside,
    /// It is for one client alone, or has not begun in time.
    Private,
}

/// Waits for what is coming, and follows it if it answers. What is told of first counts: nobody
/// waits for a head where another says that the response varies.
async fn follow_one(
    exchange: &mut Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    fills: &[Arc<Fill>],
    patience: &mut Duration,
) -> Result<Followed, Stop> {
    let mut outcome = Followed::Outside;
    let (told, untold): (Vec<_>, Vec<_>) = fills.iter().rev().partition(|fill| fill.object_now().is_some());
    let heads: Vec<_> = told.iter().filter_map(|fill| fill.object_now()).collect();
    match heads.first() {
        Some(newest) if !heads.iter().any(|head| matches(exchange, head)) => {
            return Ok(differs(exchange, newest));
        }
        _ => {}
    }
    for fill in told.into_iter().chain(untold) {
        let follower = fill.follow();
        let Some(head) = head_within(fill, patience).await else { return Ok(Followed::Private) };
        let Some(object) = head else {
            if let Some((status, why)) = fill.failure() {
                return Err(Stop::Refuse(status, why));
            }
            outcome = match fill.view().phase {
                Phase::Private => Followed::Private,
                // Its own Range may be refused, too: it does not wait again.
                Phase::Broken if exchange.request.fields.has("range") => Followed::Private,
                _ => Followed::Again,
            };
            continue;
        };
        if !matches(exchange, &object) {
            outcome = differs(exchange, &object);
            continue;
        }
        let now = exchange.worker.now();
        if reuse(now, &object.times, &object.directives, &wanted.directives) != Reuse::Serve {
            return Ok(Followed::Private);
        }
        let why = Why::UriMiss;
        let answer = Answer::Forwarded { why, status: None, stored: true, collapsed: true };
        match follow(exchange, &follower, &object, answer).await? {
            Follow::Answered(stays) => return Ok(Followed::Answered(stays)),
            Follow::Outside => outcome = Followed::Outside,
            Follow::AtItsEnd => {
                follower.fill().beyond(u64::MAX).await;
                return Ok(Followed::Again);
            }
        }
    }
    Ok(outcome)
}

/// Waits for the head of a fill while `patience` lasts, and takes the time from it; `None` if the
/// head has not come by then.
async fn head_within(fill: &Fill, patience: &mut Duration) -> Option<Option<Arc<Object>>> {
    let begun = Instant::now();
    let head = timeout(*patience, fill.object()).await;
    *patience = patience.saturating_sub(begun.elapsed());
    head.ok()
}

/// Returns true if an object may answer the request.
fn matches(exchange: &Exchange<'_, '_>, object: &Object) -> bool {
    object.matches(&exchange.request.fields, &exchange.worker.settings().key_fields)
}

fn differs(exchange: &Exchange<'_, '_>, object: &Object) -> Followed {
    let keys = &exchange.worker.settings().key_fields;
    let own = Variant::of(&object.fields(), &exchange.request.fields, keys);
    own.map_or(Followed::Private, Followed::Differs)
}

/// What following a fill came to.
pub(crate) enum Follow {
    /// An answer; another request may follow it, or not.
    Answered(bool),
    /// What is wanted is not what is coming.
    Outside,
    /// What is wanted can be told once all of it is there.
    AtItsEnd,
}

/// Sends what is coming while it comes.
pub(crate) async fn follow(
    exchange: &mut Exchange<'_, '_>,
    follower: &Follower,
    object: &Arc<Object>,
    answer: Answer,
) -> Result<Follow, Stop> {
    let worker = exchange.worker;
    let coming = follower.fill().range();
    let range = match (object.length, exchange.request.fields.has("range")) {
        (None, true) => return Ok(Follow::AtItsEnd),
        (None, false) => None,
        (Some(_), _) => match selected(exchange, object) {
            Selected::Whole => None,
            Selected::Part(range) => Some(range),
            Selected::Parts(_) => return Ok(Follow::AtItsEnd),
            selected @ (Selected::NotModified | Selected::Unsatisfiable) => {
                let is_sent = send(exchange, object, &selected, answer).await?;
                return Ok(if is_sent { Follow::Answered(true) } else { Follow::AtItsEnd });
            }
        },
    };
    let needed = range.clone().unwrap_or(0..object.length.unwrap_or(u64::MAX));
    if needed.start < coming.start || needed.end > coming.end {
        return Ok(Follow::Outside);
    }
    let status = CacheStatus {
        by: &worker.settings().name,
        answer,
        ttl: Some(object.times.ttl(worker.now())),
        detail: None,
    };
    deliver::follow(worker, exchange.client, follower, object, range, &status, exchange.wish).await?;
    let keeps = object.length.is_some() || exchange.wish.version == Version::Http11;
    Ok(Follow::Answered(keeps))
}
