//! Selection of a stored response's bytes for a request: all, parts, or none (304).

use std::ops::Range;

use smallvec::SmallVec;
use strait_http::conditional::{is_not_modified, range_counts};
use strait_http::fields::Fields;
use strait_http::range::{self, Wanted};

use crate::cache::object::Object;

/// Selected bytes and status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selected {
    /// 304.
    NotModified,
    /// All bytes, with the stored status.
    Whole,
    /// 206.
    Part(Range<u64>),
    /// 206 with several parts.
    Parts(SmallVec<[Range<u64>; 1]>),
    /// 416.
    Unsatisfiable,
}

/// Selects the bytes for a request from an object with a known length (RFC 9110, section 13.2.2).
pub(crate) fn select(object: &Object, length: u64, request: &Fields<'_>, is_head: bool) -> Selected {
    // A coded form has no Last-Modified: without a tag the condition is that of the original, which
    // was compared before.
    let is_conditional =
        request.has("if-none-match") || (request.has("if-modified-since") && object.coding.is_none());
    if object.status != 200 || !(is_conditional || request.has("range")) {
        return Selected::Whole;
    }
    let own = object.fields();
    if is_conditional && is_not_modified(request, &own) {
        return Selected::NotModified;
    }
    // RFC 9110 s14.2: Range applies to GET alone.
    let Some(wanted) = request.one("range").filter(|_| !is_head && range_counts(request, &own)) else {
        return Selected::Whole;
    };
    match range::wanted(wanted, length) {
        Wanted::Whole => Selected::Whole,
        Wanted::Unsatisfiable => Selected::Unsatisfiable,
        Wanted::Parts(mut parts) if parts.len() == 1 => Selected::Part(parts.remove(0)),
        Wanted::Parts(parts) => Selected::Parts(parts),
    }
}
