//! Coded forms in place of stored responses: the choice for a request, by its Accept-Encoding.

use std::sync::Arc;

use strait_http::coding::{Coding, preferred};
use strait_http::conditional::is_not_modified;
use strait_http::fields::Fields;

use crate::cache::object::Object;
use crate::cache::worker::Worker;
use crate::config::compress::Compression;
use crate::config::rules::ResponseRules;

/// Returns the coded form that answers a request in place of an object that the lookup has found.
/// If there is none yet, has it made, and returns `None`: the request does not wait for it.
pub(crate) fn form_or_request(
    worker: &Worker,
    hash: u64,
    object: &Arc<Object>,
    rules: Option<&ResponseRules>,
    request: &Fields<'_>,
) -> Option<Arc<Object>> {
    let (compression, coding) = wanted(object, rules, request)?;
    if object.forms.lack(coding) {
        worker.shared.compressor.request(hash, object, compression);
    }
    object.form(coding).cloned()
}

/// Returns the coded form that answers a request in place of a stored response. The response may
/// have fields for this client alone, so it is not compressed.
pub(crate) fn form(
    object: &Object,
    rules: Option<&ResponseRules>,
    request: &Fields<'_>,
) -> Option<Arc<Object>> {
    let (_, coding) = wanted(object, rules, request)?;
    object.form(coding).cloned()
}

/// Returns the coding that answers a request, if the response may have one.
///
/// A request with Range gets the response as received: ranges count the bytes of that. So does a
/// client that has that response: it gets 304, and the lookup has checked no bytes for it.
fn wanted<'r>(
    object: &Object,
    rules: Option<&'r ResponseRules>,
    request: &Fields<'_>,
) -> Option<(&'r Compression, Coding)> {
    let compression = rules?.compression.as_ref()?;
    if !object.is_codable() || !object.is_whole() || request.has("range") {
        return None;
    }
    let coding = preferred(request, &compression.codings)?;
    let fields = object.fields();
    let forbids = |it: &str| it.eq_ignore_ascii_case("no-transform");
    let may_be_coded = compression.covers(object.length, fields.one("content-type"))
        && !request.elements("cache-control").any(forbids)
        && !is_not_modified(request, &fields);
    may_be_coded.then_some((compression, coding))
}

/// Returns true if a response depends on Accept-Encoding by the rules of its route, and its own
/// Vary does not name that.
pub(super) fn adds_vary(object: &Object, rules: Option<&ResponseRules>) -> bool {
    let Some(compression) = rules.and_then(|rules| rules.compression.as_ref()) else { return false };
    if object.coding.is_none() && !object.is_codable() {
        return false;
    }
    let fields = object.fields();
    let is_covered = || compression.covers(object.length, fields.one("content-type"));
    (object.coding.is_some() || is_covered())
        && !fields.elements("vary").any(|name| name.eq_ignore_ascii_case("accept-encoding"))
}
