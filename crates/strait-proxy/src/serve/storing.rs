//! Objects made from responses of origins, if these may be stored, and the requests that they
//! answer.

use std::ops::Range;
use std::sync::Arc;

use strait_http::cache_control::{OfRequest, OfResponse, Scope};
use strait_http::fields::Fields;
use strait_http::forward::forwarded_fields;
use strait_http::framing::BodyFraming;
use strait_http::freshness::age_of;
use strait_http::head::{FIELDS_MAX, HEAD_BYTES_MAX, Request, Response};
use strait_http::partial::{part_of, strong_validator};
use strait_http::poisoning::is_keyed;
use strait_http::range::{Wanted, wanted};
use strait_http::storing::{StorableRequest, is_useful, may_store, storable_fields};
use strait_http::update::updated;
use strait_http::vary::{self, Variant};

use crate::cache::forms::Forms;
use crate::cache::meta::Meta;
use crate::cache::object::{Body, Object, stored_fields, stored_head, write_stored_head};
use crate::cache::worker::Worker;
use crate::upstream::incoming::Incoming;

/// Makes the object of a response, with the range of its bytes; `None` if the response must not be
/// stored. `is_range`: the request to the origin had a Range.
pub(crate) fn object(
    worker: &Worker,
    is_range: bool,
    request: &Request<'_>,
    directives: &OfRequest,
    key: &Arc<str>,
    (incoming, response): (&Incoming, &Response<'_>),
) -> Option<(Object, Range<u64>)> {
    let (settings, fields) = (worker.settings(), &response.fields);
    let own = OfResponse::of(fields);
    let storable = StorableRequest {
        method: request.method,
        fields: &request.fields,
        directives: *directives,
        is_range,
        has_other_cookie: worker.has_other_cookie(&request.fields),
    };
    may_store(&settings.storing, &storable, response.status, fields, &own).ok()?;
    if varies_with_unsent(worker, request, fields) {
        return None;
    }
    // A part needs a strong validator to be combined with others.
    let is_lone = response.status == 206 && strong_validator(fields).is_none();
    let variant_of = if is_lone { Variant::of_part } else { Variant::of };
    let variant = variant_of(fields, &request.fields, worker.key_fields())?;
    let (status, range, length) = match (response.status, incoming.body) {
        (206, body) => {
            let (range, length) = part_of(fields, body)?;
            let length = length?;
            if is_lone && !(is_range && may_stand_alone(request, fields, &own, &range, length)) {
                return None;
            }
            (200, range, Some(length))
        }
        (status, BodyFraming::None) => (status, 0..0, Some(0)),
        (status, BodyFraming::Length(length)) => (status, 0..length, Some(length)),
        (status, BodyFraming::Chunked | BodyFraming::ToClose) => (status, 0..u64::MAX, None),
        (_, BodyFraming::Tunnel) => return None,
    };
    let (requested, received) = (incoming.requested, incoming.received);
    let stored = stored_fields(storable_fields(fields, &own));
    let mut head = worker.heads.take();
    write_stored_head(&mut head, status, &stored, received);
    // A head beyond the limits could not be read again.
    let lines = stored.iter().count() + usize::from(!stored.has("date"));
    let is_readable = lines <= FIELDS_MAX && head.len() <= HEAD_BYTES_MAX;
    let kept = stored_directives(fields, &own, &stored);
    let lifetimes = worker.lifetimes(&request.fields, status, (&stored, &kept), received);
    let meta = Meta {
        requested,
        received,
        age: age_of(fields),
        expired: None,
        forms: Forms::default(),
        lifetimes,
        first: range.start,
        length,
        variant: variant.text(),
        head: &head,
    };
    let object = Object::of(key, &meta, status, &stored, kept, Body::Filling);
    worker.heads.give_back(head);
    // A part without a strong validator cannot be validated.
    let can_answer = !is_lone || object.times.is_fresh(received);
    let is_useful = can_answer && is_useful(fields, &object.directives, &object.times);
    (is_readable && is_useful).then_some((object, range))
}

/// Returns true if a part without a strong validator may answer requests with the same Range (RFC
/// 9111, section 3.3): it has an explicit lifetime, and is exactly the one part that the request
/// selects. With If-Range, it may lack fields (RFC 9110, section 15.3.7); if Connection names
/// Range, the origin did not receive that.
fn may_stand_alone(
    request: &Request<'_>,
    fields: &Fields<'_>,
    own: &OfResponse,
    range: &Range<u64>,
    length: u64,
) -> bool {
    let is_explicit = own.max_age.is_some() || own.s_maxage.is_some() || fields.has("expires");
    let is_dropped = request.fields.elements("connection").any(|it| it.eq_ignore_ascii_case("range"));
    let wanted = request.fields.one("range").map(|text| wanted(text, length));
    let is_it = matches!(wanted, Some(Wanted::Parts(parts)) if *parts == [range.clone()]);
    // All of the bytes would be kept in memory, for any Range.
    let is_whole = *range == (0..length);
    is_explicit && !is_dropped && !request.fields.has("if-range") && is_it && !is_whole
}

/// Returns the directives of the stored fields. They are those of the response, unless one of their
/// fields is private, or Connection names CDN-Cache-Control; it cannot remove Cache-Control.
fn stored_directives(fields: &Fields<'_>, own: &OfResponse, stored: &Fields<'_>) -> OfResponse {
    let may_differ = matches!(own.private, Scope::Fields(_)) || fields.has("cdn-cache-control");
    if may_differ { OfResponse::of(stored) } else { own.clone() }
}

/// Returns a part from byte `first` on, with the fields of `base`, the response that it completes,
/// where it has none itself (RFC 9111, section 3.4): with If-Range, an origin may omit fields such
/// as Content-Type (RFC 9110, section 15.3.7).
pub(crate) fn with_fields_of(
    worker: &Worker,
    request: &Request<'_>,
    part: &Object,
    first: u64,
    base: &Object,
) -> Object {
    let (old, own) = (base.fields(), part.fields());
    let fields = updated(&old, &own);
    let variant = Variant::of(&fields, &request.fields, worker.key_fields());
    let head = stored_head(part.status, fields.iter(), part.times.received);
    let variant = variant.as_ref().map_or(&**part.variant(), Variant::text);
    let directives = OfResponse::of(&fields);
    let lifetimes =
        worker.lifetimes(&request.fields, part.status, (&fields, &directives), part.times.received);
    let meta = Meta { head: &head, variant, lifetimes, ..part.meta(first) };
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
    Object::new(&object.key, &meta, object.body.clone()).map_or_else(|| object.clone(), Arc::new)
}

/// Returns true if a response that is not stored makes its key hit-for-miss. It does not if fields
/// of the request or a failure of the origin are the reason.
pub(crate) fn is_for_one_alone(worker: &Worker, request: &Request<'_>, response: &Response<'_>) -> bool {
    !request.fields.has("authorization")
        // A field of this request may have caused the error; the next response may be stored.
        && !matches!(response.status, 206 | 400..)
        && !varies_with_dropped(worker.key_fields(), request, &response.fields)
}

/// Returns true if a response varies with a field that the origin did not receive from the client:
/// stored, the response would answer other requests wrongly.
pub(crate) fn varies_with_unsent(worker: &Worker, request: &Request<'_>, response: &Fields<'_>) -> bool {
    names_unsent(worker, response) || varies_with_dropped(worker.key_fields(), request, response)
}

/// Returns true if the Vary of a response names a field that the proxy writes itself.
pub(crate) fn names_unsent(worker: &Worker, response: &Fields<'_>) -> bool {
    let settings = worker.settings();
    let is_unsent = |name: &str| settings.tracing.governs(name) || settings.forwarded.names_client(name);
    response.elements("vary").any(is_unsent)
}

/// Returns true if a response varies with a field that Connection names. Fields in `keys` and
/// built-in key fields count as if Vary named them.
fn varies_with_dropped(keys: &[String], request: &Request<'_>, response: &Fields<'_>) -> bool {
    if !request.fields.has("connection") {
        return false;
    }
    let is_dropped =
        |name: &str| request.fields.elements("connection").any(|it| it.eq_ignore_ascii_case(name));
    let keyed = request.fields.iter().map(|field| field.name).filter(|name| is_keyed(name));
    response.elements("vary").any(is_dropped)
        || vary::implied(response).any(is_dropped)
        || keys.iter().map(String::as_str).chain(keyed).any(is_dropped)
}

#[cfg(test)]
mod tests {
    use strait_http::head;
    use strait_http::lifetimes::Lifetimes;

    use super::*;

    #[test]
    fn object_of_a_response_equals_the_one_that_is_read_from_its_record() {
        for lines in [
            "",
            "Cache-Control: public, max-age=60\r\nAge: 5\r\nVary: Accept\r\nContent-Range: bytes 0-1/2\r\n",
            "Date: Thu, 01 Jan 1970 00:00:03 GMT\r\nExpires: Thu, 01 Jan 1970 00:01:00 GMT\r\n",
            "Cache-Control: max-age=60, private=\"cache-control\"\r\n",
            "Cache-Control: max-age=60, private=\"Expires, Date, Set-Cookie\"\r\nSet-Cookie: a=b\r\nExpires: 0\r\n",
            "Cache-Control: no-store\r\nCDN-Cache-Control: max-age=60\r\n",
            "Cache-Control: max-age=60\r\nCDN-Cache-Control: max-age=5\r\nConnection: CDN-Cache-Control\r\n",
            "Cache-Control: max-age=60\r\nConnection: Cache-Control, Expires, Vary\r\nExpires: 0\r\nVary: a\r\n",
            "Last-Modified: Thu, 01 Jan 1970 00:00:01 GMT\r\nConnection: Last-Modified, keep-alive\r\nX: \u{e9}\r\n",
        ] {
            let response = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
            let fields = head::response(response.as_bytes()).unwrap().unwrap().0.fields;
            let own = OfResponse::of(&fields);
            let stored = stored_fields(storable_fields(&fields, &own));
            let mut head = Vec::new();
            write_stored_head(&mut head, 200, &stored, 7);
            let (length, variant) = (Some(0), "accept\n");
            let meta = Meta {
                requested: 6,
                received: 7,
                age: 5,
                expired: None,
                forms: Forms::default(),
                lifetimes: Lifetimes::default(),
                first: 0,
                length,
                variant,
                head: &head,
            };
            let directives = stored_directives(&fields, &own, &stored);
            let made = Object::of(&"http://a/".into(), &meta, 200, &stored, directives, Body::Filling);
            let read = Object::new("http://a/", &meta, Body::Filling).unwrap();
            assert_eq!(format!("{made:?}"), format!("{read:?}"), "{lines}");
        }
    }
}
