//! Responses with stored objects: selects the requested bytes, and sends them.

use std::ops::Range;
use std::sync::Arc;

use strait_http::cache_status::{Answer, CacheStatus, Why};

use crate::cache::object::{Object, Pinned};
use crate::cache::select::{Selected, select};
use crate::serve::coded;
use crate::serve::deliver;
use crate::serve::exchange::{Exchange, ExchangeError};
use crate::serve::wanted::Lookup;

/// Selects the bytes of an object for the request.
pub(crate) fn selected(exchange: &Exchange<'_, '_>, object: &Object) -> Selected {
    select(object, object.length.unwrap_or(0), &exchange.request.fields, exchange.options.is_head)
}

/// Returns the coded form that answers the request in place of a stored object.
pub(crate) fn coded(exchange: &Exchange<'_, '_>, object: &Object) -> Option<Arc<Object>> {
    coded::form(object, exchange.options.rules, &exchange.request.fields)
}

/// Returns the first gap in the selected bytes.
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

/// Returns true if a request is for the bytes of a part without a strong validator. Any other
/// request, such as one with conditions, HEAD, or one for bytes within, is left to the origin.
pub(crate) fn is_its_range(exchange: &Exchange<'_, '_>, object: &Object) -> bool {
    matches!(selected(exchange, object), Selected::Part(_))
}

/// Sends a stored object. Returns false, with nothing sent, if it was evicted since it was found.
pub(crate) async fn send(
    exchange: &mut Exchange<'_, '_>,
    object: &Arc<Object>,
    selected: &Selected,
    answer: Answer,
) -> Result<bool, ExchangeError> {
    let Some(pinned) = deliver::pinned(object, selected, exchange.options) else { return Ok(false) };
    send_pinned(exchange, (object, &pinned), selected, answer).await?;
    Ok(true)
}

/// Sends a pinned object.
pub(crate) async fn send_pinned(
    exchange: &mut Exchange<'_, '_>,
    (object, pinned): (&Arc<Object>, &Pinned),
    selected: &Selected,
    answer: Answer,
) -> Result<(), ExchangeError> {
    let worker = exchange.worker;
    let status = CacheStatus {
        by: &worker.settings().name,
        answer,
        ttl: Some(object.times.ttl(worker.now())),
        detail: None,
    };
    let found = (object, pinned);
    Ok(deliver::send_pinned(worker, exchange.client, found, selected, &status, exchange.options).await?)
}

/// Sends a stored object as the response to a request that went to the origin.
pub(crate) async fn send_stored(
    exchange: &mut Exchange<'_, '_>,
    object: &Arc<Object>,
    (why, status, stored): (Why, Option<u16>, bool),
) -> Result<Lookup, ExchangeError> {
    let coded = coded(exchange, object);
    let object = coded.as_ref().unwrap_or(object);
    let selected = selected(exchange, object);
    let answer = Answer::Forwarded { why, status, stored, collapsed: false };
    let is_sent = send(exchange, object, &selected, answer).await?;
    Ok(if is_sent { Lookup::Answered(true) } else { Lookup::Again })
}
