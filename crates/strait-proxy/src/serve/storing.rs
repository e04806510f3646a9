//! Objects made from responses of origins, if these may be stored, and the requests that they
//! answer.

use std::ops::Range;
use std::sync::Arc;

use strait_http::cache_control::{OfRequest, OfResponse, Scope};
use strait_http::forward::forwarded_fields;
use strait_http::framing::BodyFraming;
use strait_http::freshness::Times;
use strait_http::head::Request;
use strait_http::partial::{part_of, strong_validator};
use strait_http::poisoning::is_keyed;
use strait_http::storing::{StorableRequest, is_useful, may_store, storable_fields};
use strait_http::update::updated;
use strait_http::vary::{self, Variant};

use crate::cache::meta::Meta;
use crate::cache::object::{Body, Object, stored_head};
use crate::config::settings::Settings;
use crate::upstream::incoming::Incoming;

/// Makes the object of a response, with the range of its bytes; `None` if the response must not be
/// stored. `is_range`: the request to the origin had a Range.
pub(crate) fn object(
    settings: &Settings,
    is_range: bool,
    request: &Request<'_>,
    directives: &OfRequest,
    key: &str,
    incoming: &Incoming,
) -> Option<(Object, Range<u64>)> {
    let response = incoming.response();
    let own = OfResponse::of(&response.fields);
    let storable = StorableRequest {
        method: request.method,
        fields: &request.fields,
        directives: *directives,
        is_range,
    };
    may_store(&settings.storing, &storable, response.status, &response.fields, &own).ok()?;
    if varies_with_dropped(&settings.key_fields, request, incoming) {
        return None;
    }
    let variant = Variant::of(&response.fields, &request.fields, &settings.key_fields)?;
    let (status, range, length) = match (response.status, incoming.body) {
        // A part needs a strong validator to be combined with others.
        (206, body) => {
            strong_validator(&response.fields)?;
            let (range, length) = part_of(&response.fields, body)?;
            (200, range, Some(length?))
        }
        (status, BodyFraming::None) => (status, 0..0, Some(0)),
        (status, BodyFraming::Length(length)) => (status, 0..length, Some(length)),
        (status, BodyFraming::Chunked | BodyFraming::ToClose) => (status, 0..u64::MAX, None),
        (_, BodyFraming::Tunnel) => return None,
    };
    let (requested, received) = (incoming.requested, incoming.received);
    let head = stored_head(status, storable_fields(&response.fields, &own), received);
    let times = Times::of(status, &response.fields, &own, requested, received);
    let meta = Meta {
        requested,
        received,
        age: times.age,
        first: range.start,
        length,
        variant: variant.text(),
        head: &head,
    };
    let object = Object::new(key, &meta, Body::Filling)?.with_negative(settings.negative);
    is_useful(&response.fields, &own, &object.times).then_some((object, range))
}

/// Returns a part from byte `first` on, with the fields of `base`, the response that it completes,
/// where it has none itself (RFC 9111, section 3.4): with If-Range, an origin may omit fields such
/// as Content-Type (RFC 9110, section 15.3.7).
pub(crate) fn with_fields_of(
    settings: &Settings,
    request: &Request<'_>,
    part: &Object,
    first: u64,
    base: &Object,
) -> Object {
    let (old, own) = (base.fields(), part.fields());
    let fields = updated(&old, &own);
    let variant = Variant::of(&fields, &request.fields, &settings.key_fields);
    let head = stored_head(part.status, fields.iter(), part.times.received);
    let variant = variant.as_ref().map_or(&**part.variant(), Variant::text);
    let meta = Meta { head: &head, variant, ..part.meta(first) };
    let combined = Object::new(&part.key, &meta, Body::Filling);
    // Does not fail, because the fields of both heads were parsed before.
    combined.unwrap_or_else(|| part.with_body(part.length, Body::Filling))
}

/// Returns the object for its first client, with the fields that are for that client alone (RFC
/// 9111, section 5.2.2.7).
pub(crate) fn for_its_client(object: &Arc<Object>, incoming: &Incoming) -> Arc<Object> {
    if !matches!(object.directives.private, Scope::Fields(_)) {
        return object.clone();
    }
    let response = incoming.response();
    let head = stored_head(object.status, forwarded_fields(&response.fields), incoming.received);
    let meta = Meta { head: &head, ..object.meta(0) };
    Object::new(&object.key, &meta, Body::Filling).map_or_else(|| object.clone(), Arc::new)
}

/// Returns true if a response that is not stored makes its key hit-for-miss. It does not if fields
/// of the request or a failure of the origin are the reason.
pub(crate) fn is_for_one_alone(keys: &[String], request: &Request<'_>, incoming: &Incoming) -> bool {
    !request.fields.has("authorization")
        // A field of this request may have caused the error; the next response may be stored.
        && !matches!(incoming.status, 206 | 400..)
        && !varies_with_dropped(keys, request, incoming)
}

/// Returns true if a response varies with a field that the origin did not receive, because
/// Connection names it: stored, the response would answer other requests wrongly. Fields in `keys`
/// and built-in key fields count as if Vary named them.
pub(crate) fn varies_with_dropped(keys: &[String], request: &Request<'_>, incoming: &Incoming) -> bool {
    let is_dropped =
        |name: &str| request.fields.elements("connection").any(|it| it.eq_ignore_ascii_case(name));
    let response = incoming.response();
    let is_varied =
        response.fields.elements("vary").any(is_dropped) || vary::implied(&response.fields).any(is_dropped);
    let is_key = || {
        let keyed = request.fields.iter().map(|field| field.name).filter(|name| is_keyed(name));
        keys.iter().map(String::as_str).chain(keyed).any(is_dropped)
    };
    request.fields.has("connection") && (is_varied || is_key())
}
