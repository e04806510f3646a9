//! What of a stored response a request is answered with: all of it, parts, or that it has not
//! changed.

use std::ops::Range;

use smallvec::SmallVec;
use strait_http::conditional::{is_not_modified, range_counts};
use strait_http::fields::Fields;
use strait_http::range::{self, Wanted};

use crate::cache::object::Object;

/// What a request is answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selected {
    /// 304.
    NotModified,
    /// All, with the status it has.
    Whole,
    /// 206.
    Part(Range<u64>),
    /// 206, in several parts.
    Parts(SmallVec<[Range<u64>; 1]>),
    /// 416.
    Unsatisfiable,
}

/// What a request with such fields is answered with, of an object whose length is known (RFC 9110,
/// section 13.2.2).
pub(crate) fn select(object: &Object, length: u64, asked: &Fields<'_>, is_head: bool) -> Selected {
    let is_conditional = asked.has("if-none-match") || asked.has("if-modified-since");
    if object.status != 200 || !(is_conditional || asked.has("range")) {
        return Selected::Whole;
    }
    let own = object.fields();
    if is_conditional && is_not_modified(asked, &own) {
        return Selected::NotModified;
    }
    // RFC 9110 s14.2: Range is about GET alone.
    let Some(wanted) = asked.one("range").filter(|_| !is_head && range_counts(asked, &own)) else {
        return Selected::Whole;
    };
    match range::wanted(wanted, length) {
        Wanted::Whole => Selected::Whole,
        Wanted::Unsatisfiable => Selected::Unsatisfiable,
        Wanted::Parts(mut parts) if parts.len() == 1 => Selected::Part(parts.remove(0)),
        Wanted::Parts(parts) => Selected::Parts(parts),
    }
}
