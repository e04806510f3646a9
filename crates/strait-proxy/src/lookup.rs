//! Stored responses in the store: found by their key, put together from their parts, replaced and removed.

use std::sync::Arc;

use smallvec::SmallVec;
use strait_http::fields::Fields;
use strait_http::vary::Variant;
use strait_store::{Record, Store};

use crate::meta::Meta;
use crate::object::{Body, Home, Object, Part};

/// Records of a key at most, variants and parts together: a request looks at each of them. The newest stay.
pub(crate) const RECORDS_MAX: usize = 64;

/// Lookups of one request at most, each because a record ended during the last.
const FINDS_MAX: usize = 4;

/// What is stored for a key.
#[derive(Debug)]
pub(crate) enum Found<T> {
    /// A response that answers the request.
    Answer(T),
    /// Responses to other requests; this one has said that of the fields with which the newest of them varies.
    Others(Variant),
    Nothing,
}

/// The newest response in the store that answers requests for `key` with such fields. Bodies of up to `body_max` bytes come with it.
pub(crate) fn find(
    store: &Store,
    hash: u64,
    key: &str,
    asked: &Fields<'_>,
    body_max: usize,
) -> Found<Object> {
    for _ in 1..FINDS_MAX {
        let records = store.find(hash);
        let found = find_in(store, &records, key, asked, body_max);
        // One that was replaced meanwhile has a successor.
        if records.iter().all(|record| record.is_alive()) {
            return found;
        }
    }
    find_in(store, &store.find(hash), key, asked, body_max)
}

fn find_in(
    store: &Store,
    records: &[Arc<Record>],
    key: &str,
    asked: &Fields<'_>,
    body_max: usize,
) -> Found<Object> {
    let mut found: Option<Object> = None;
    let mut variant = None;
    // Of several one is asked for.
    let at_once_max = if records.len() > 1 { 0 } else { body_max };
    for record in records {
        let Some((object, part)) = load(store, record, key, at_once_max) else { continue };
        match &mut found {
            None if object.matches(asked) => found = Some(object),
            None => variant = variant.or_else(|| Variant::of(&object.fields(), asked)),
            Some(first) if first.is_for_same(&object) && first.combines_with(&object) => {
                first.add(part);
            }
            _ => {}
        }
        if found.as_ref().is_some_and(Object::is_whole) {
            break;
        }
    }
    let found = found.and_then(|object| with_body(store, object, body_max));
    found.map_or_else(|| variant.map_or(Found::Nothing, Found::Others), Found::Answer)
}

/// The same with its body in memory, if it is stored in one piece of at most so many bytes; `None` if that is damaged.
fn with_body(store: &Store, object: Object, body_max: usize) -> Option<Object> {
    let is_short = object.length.is_some_and(|length| length <= body_max as u64);
    match &object.body {
        Body::Stored(parts) if parts.len() == 1 && is_short && object.is_whole() => {
            load(store, &parts[0].record, &object.key, body_max).map(|(read, _)| read)
        }
        _ => Some(object),
    }
}

/// What a record holds, if it is for that key; and the part of the representation that it is.
fn load(store: &Store, record: &Arc<Record>, key: &str, body_max: usize) -> Option<(Object, Part)> {
    // A record that cannot be read is counted by the store, and is as none.
    let loaded = store.load(record, body_max).ok()?;
    if loaded.key() != key.as_bytes() {
        return None;
    }
    let meta = Meta::decode(loaded.meta())?;
    let range = meta.first..meta.first + record.body_len();
    let part = Part { range: range.clone(), record: record.clone() };
    let is_whole = range.start == 0 && meta.length.is_none_or(|length| length == range.end);
    let body = match loaded.body() {
        Some(bytes) if is_whole => Body::Memory(bytes.into(), Home::Store(record.clone())),
        _ => Body::Stored(SmallVec::from_iter([part.clone()])),
    };
    let length = if is_whole { Some(range.end) } else { meta.length };
    let object = Object::new(key, &Meta { length, ..meta }, body)?;
    Some((object, part))
}

/// Removes what `object` stands in place of: what answered the same requests, and is neither one of its parts nor another part of the
/// same representation; and the oldest records of its key where there are too many.
pub(crate) fn replace(store: &Store, hash: u64, object: &Object) {
    let stands_for =
        |other: &Object| other.is_for_same(object) && (object.is_whole() || !other.combines_with(object));
    let mut kept = object.records().count();
    for record in store.find(hash) {
        if object.records().any(|own| Arc::ptr_eq(own, &record)) {
            continue;
        }
        let Some((other, _)) = load(store, &record, &object.key, 0) else { continue };
        if stands_for(&other) || kept >= RECORDS_MAX {
            store.remove(&record);
        } else {
            kept += 1;
        }
    }
}

/// Removes all that is stored for a key; how much that was.
pub(crate) fn remove(store: &Store, hash: u64, key: &str) -> usize {
    let records = store.find(hash);
    let meant = records.iter().filter(|record| load(store, record, key, 0).is_some());
    meant.map(|record| store.remove(record)).count()
}
