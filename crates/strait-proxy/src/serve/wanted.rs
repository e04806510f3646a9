//! A request's place in the cache, and the request to the origin when the cache cannot answer.

use std::ops::Range;
use std::sync::Arc;

use strait_http::cache_control::OfRequest;
use strait_http::cache_status::Why;
use strait_http::conditional::validators;
use strait_http::framing::BodyFraming;
use strait_http::partial::strong_validator;
use strait_http::reuse::may_replace_error;

use crate::cache::fill_guard::FillGuard;
use crate::cache::generation::Generation;
use crate::cache::object::Object;
use crate::config::sites::Resource;
use crate::serve::exchange::Exchange;
use crate::upstream::origin_request::{OriginRequest, Purpose};

/// Resource, cache key and directives of a request.
#[derive(Debug)]
pub(crate) struct Wanted<'u> {
    pub(crate) resource: &'u Resource<'u>,
    pub(crate) key: Arc<str>,
    pub(crate) hash: u64,
    pub(crate) directives: OfRequest,
    /// Generation of the key at the time of the request.
    pub(crate) generation: Generation,
}

/// Miss, from which the request to the origin is made.
#[derive(Debug)]
pub(crate) struct Miss {
    pub(crate) why: Why,
    /// Stored response to validate or to complete.
    pub(crate) stored: Option<Arc<Object>>,
    /// Missing bytes of the stored response.
    pub(crate) gap: Option<Range<u64>>,
}

impl Miss {
    /// Miss without a stored response.
    pub(crate) fn new(why: Why) -> Self {
        Self { why, stored: None, gap: None }
    }

    /// Returns the stored response that may replace an error of the origin (stale-if-error, RFC
    /// 5861, section 4), or its successor if it was replaced meanwhile.
    pub(crate) fn in_place_of_error(
        &self,
        exchange: &Exchange<'_, '_>,
        wanted: &Wanted<'_>,
    ) -> Option<Arc<Object>> {
        let (worker, stored) = (exchange.worker, self.stored.as_ref()?);
        let object = if stored.is_alive() {
            stored.clone()
        } else {
            worker.find(wanted.hash, &wanted.key, &exchange.request.fields).ok()?
        };
        let may = object.is_whole()
            && may_replace_error(worker.now(), &object.times, &object.directives, &wanted.directives);
        may.then_some(object)
    }
}

/// State of a lookup. `docs/internals/proxy.md` draws the transitions.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// Repeat the lookup: the cache or the fills have changed.
    Again,
    /// Repeat the lookup without fills: a miss is forwarded for this client alone.
    Alone,
    /// No stored response answers: follow a fill, or begin one.
    Missed(Miss),
    /// Forward the request to the origin; with a guard, followers get the response as well.
    Ask(Miss, Option<FillGuard>),
    /// The response was sent. True if the connection can carry another request.
    Answered(bool),
}

/// Makes the request to the origin.
pub(crate) fn origin_request(
    exchange: &Exchange<'_, '_>,
    wanted: &Wanted<'_>,
    miss: &Miss,
    is_shared: bool,
) -> OriginRequest {
    let request = exchange.request;
    let is_range = request.fields.has("range") && request.method == "GET";
    let purpose = match (&miss.stored, is_shared) {
        (None, false) => Purpose::MissAlone,
        // RFC 9111 s4.3.5: the response shows whether the stored one is current.
        (Some(_), false) if request.method == "HEAD" => {
            return exchange.origin_request(wanted.resource, BodyFraming::None, Purpose::Store);
        }
        (None, true) if is_range => Purpose::StorePart,
        _ => Purpose::Store,
    };
    let mut origin_request = exchange.origin_request(wanted.resource, BodyFraming::None, purpose);
    origin_request.is_shared = is_shared;
    let Some(stored) = &miss.stored else { return origin_request };
    let own = stored.fields();
    match &miss.gap {
        Some(gap) => origin_request.add_range(gap, strong_validator(&own)),
        None => validators(&own).for_each(|(name, value)| origin_request.add(name, value.as_bytes())),
    }
    origin_request
}
