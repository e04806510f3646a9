//! Responses in the store: found by key, combined from parts, replaced and removed.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use strait_http::fields::Fields;
use strait_http::head;
use strait_http::storing::Policy;
use strait_http::vary::Variant;
use strait_store::{Loaded, Record, Stores};

use crate::cache::forms::Forms;
use crate::cache::meta::Meta;
use crate::cache::object::{Body, Home, LONE_PARTS_MAX, Object, Part, RECORDS_MAX, Rivals};

/// Maximum of lookups for one request; each follows one during which a record was removed.
const FINDS_MAX: usize = 4;

/// Maximum of listings for the removal of a key. Each follows one during which a record was
/// removed or replaced, and a replacement needs a validation that ends within the read of a record.
const LISTINGS_MAX: usize = 16;

/// No stored response answers the request. If the key has responses of other variants, holds the
/// request's variant by the Vary of the newest one.
#[derive(Debug)]
pub(crate) struct NotFound(pub(crate) Option<Variant>);

/// Key and request of a lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query<'a, 'b> {
    pub(crate) hash: u64,
    pub(crate) key: &'a str,
    pub(crate) request: &'a Fields<'b>,
    /// Request fields that are part of every key.
    pub(crate) keys: &'a [String],
    /// Operator's rules for stored responses.
    pub(crate) policy: &'a Policy,
}

/// Response that answers a request.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) object: Object,
    pub(crate) seen: Seen,
}

/// Records that a response was compared with.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Variants of responses with a higher rank, which answer some of the requests that the
    /// response matches.
    pub(crate) rivals: Rivals,
    records: SmallVec<[Arc<Record>; 2]>,
}

impl Seen {
    /// Returns true if the store still has no other records for the key, and so no other rivals.
    pub(crate) fn is_all(&self, store: &Stores, hash: u64) -> bool {
        let is_known = |record: &Arc<Record>| self.records.iter().any(|seen| Arc::ptr_eq(seen, record));
        store.find(hash).iter().all(is_known)
    }
}

/// Returns the response of the highest rank that answers a request, with its body if that has at
/// most `body_max` bytes.
pub(crate) fn find(store: &Stores, query: &Query<'_, '_>, body_max: usize) -> Result<Found, NotFound> {
    for _ in 1..FINDS_MAX {
        let records = store.find(query.hash);
        if records.is_empty() {
            return Err(NotFound(None));
        }
        let are_alive = |records: &[Arc<Record>]| records.iter().all(|record| record.is_alive());
        let found = find_in(store, &records, query, body_max);
        // A record that was replaced during the lookup has a successor: look it up.
        if are_alive(&records) {
            return found;
        }
    }
    find_in(store, &store.find(query.hash), query, body_max)
}

fn find_in(
    store: &Stores,
    records: &[Arc<Record>],
    query: &Query<'_, '_>,
    body_max: usize,
) -> Result<Found, NotFound> {
    let mut all = responses(store, records, query.key, body_max);
    all.retain(|object| object.is_allowed(query.policy));
    let Some(index) = all.iter().position(|object| object.matches(query.request, query.keys)) else {
        let variant = |object: &Object| object.variant_of(query.request, query.keys);
        return Err(NotFound(all.iter().find_map(variant)));
    };
    let object = all.remove(index);
    let rivals = rivals(&object, all[..index].iter(), query.keys);
    let seen = Seen { rivals, records: records.iter().cloned().collect() };
    with_body(store, object, body_max).map(|object| Found { object, seen }).ok_or(NotFound(None))
}

/// Returns the variants of the objects that `object` yields to.
fn rivals<'o>(object: &Object, others: impl Iterator<Item = &'o Object>, keys: &[String]) -> Rivals {
    let is_rival = |other: &&Object| other.has_keys(keys) && object.yields_to(other);
    others.filter(is_rival).map(|other| other.variant().clone()).collect()
}

/// Returns the responses that answer a request and can be validated, by rank, without bodies.
pub(crate) fn candidates(store: &Stores, query: &Query<'_, '_>) -> Vec<Object> {
    let all = responses(store, &store.find(query.hash), query.key, 0);
    all.into_iter()
        .filter(|object| object.is_allowed(query.policy) && object.matches(query.request, query.keys))
        .filter(|object| !object.is_lone_part())
        .collect()
}

/// Returns the responses for a key, one for each variant, by rank, with all parts of their
/// representations.
fn responses(store: &Stores, records: &[Arc<Record>], key: &str, body_max: usize) -> SmallVec<[Object; 1]> {
    // With several records, the body is read after one of them is selected.
    let at_once_max = if records.len() > 1 { 0 } else { body_max };
    let loaded = records.iter().filter_map(|record| load(store, record, key, at_once_max));
    let mut loaded: SmallVec<[(Object, Part); 1]> = loaded.collect();
    loaded.sort_by_key(|(object, _)| Reverse(object.rank()));
    let mut all: SmallVec<[Object; 1]> = SmallVec::new();
    for (object, part) in loaded {
        match all.iter_mut().find(|first| first.is_for_same(&object)) {
            Some(first) if !first.is_whole() && first.combines_with(&object) => first.add(part),
            Some(_) => {}
            None => all.push(object),
        }
    }
    all
}

/// Reads the body into memory if it is stored in one piece of at most `body_max` bytes; `None` if
/// it is damaged.
fn with_body(store: &Stores, object: Object, body_max: usize) -> Option<Object> {
    let is_short = object.length.is_some_and(|length| length <= body_max as u64);
    match &object.body {
        Body::Stored(parts) if parts.len() == 1 && is_short && object.is_whole() => {
            load(store, &parts[0].record, &object.key, body_max).map(|(read, _)| read)
        }
        _ => Some(object),
    }
}

/// Reads a record, if it is for that key; returns its object and its part of the representation.
fn load(store: &Stores, record: &Arc<Record>, key: &str, body_max: usize) -> Option<(Object, Part)> {
    // The store counts records that cannot be read.
    let loaded = store.load(record, body_max).ok()?;
    if loaded.key() != key.as_bytes() {
        return None;
    }
    let meta = Meta::decode(loaded.meta())?;
    let own_len = record.body_len().checked_sub(meta.forms.total())?;
    let range = meta.first..meta.first + own_len;
    let part = Part { range: range.clone(), record: record.clone() };
    let is_whole = range.start == 0 && meta.length.is_none_or(|length| length == range.end);
    let body = match loaded.body() {
        Some(bytes) if is_whole => Body::Memory(bytes.into(), Home::Store(record.clone())),
        _ => Body::Stored(SmallVec::from_iter([part.clone()])),
    };
    let length = if is_whole { Some(range.end) } else { meta.length };
    // A part has none.
    let forms = if is_whole { meta.forms } else { Forms::default() };
    let object = Object::new(key, &Meta { forms, length, ..meta }, body)?;
    Some((object, part))
}

/// Removes the records that `object` replaces: those that answer the same requests and are not
/// parts of the same representation, those without a field of `keys`, which answer no request, and
/// the least used records beyond the maximum of a key. Returns the records that it was compared
/// with. If a more recent response is stored already, removes `object` instead and returns `None`.
pub(crate) fn replace(store: &Stores, hash: u64, object: &Object, keys: &[String]) -> Option<Seen> {
    let is_own = |record: &Arc<Record>| object.records().any(|own| Arc::ptr_eq(own, record));
    let records = store.find(hash);
    let loaded = |record: &Arc<Record>| {
        let (other, _) = load(store, record, &object.key, 0)?;
        Some((record.clone(), other))
    };
    let others: Vec<_> = records.iter().filter(|record| !is_own(record)).filter_map(loaded).collect();
    if others.iter().any(|(_, other)| other.outranks(object)) {
        object.records().for_each(|record| store.remove(record));
        return None;
    }
    let is_replaced =
        |other: &Object| other.is_for_same(object) && (object.is_whole() || !other.combines_with(object));
    let (replaced, mut others): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|(_, other)| is_replaced(other) || !other.has_keys(keys));
    for (record, _) in &replaced {
        store.remove(record);
    }
    // Clients choose the values of keyed fields, and ranges; many values must not remove the record
    // that plain requests share, and many ranges no whole one.
    others.sort_by_key(|(record, other)| {
        let is_shared = (!other.is_lone_part(), other.is_plain(keys));
        Reverse((is_shared, record.requests(), record.sequence()))
    });
    let lone = others.iter().position(|(_, other)| other.is_lone_part()).unwrap_or(others.len());
    let lone_room = LONE_PARTS_MAX - usize::from(object.is_lone_part());
    let room = RECORDS_MAX.saturating_sub(object.records().count()).min(lone + lone_room);
    others.iter().skip(room).for_each(|(record, _)| store.remove(record));
    let rivals = rivals(object, others.iter().map(|(_, other)| other), keys);
    Some(Seen { rivals, records })
}

/// Blocks until all records of earlier sessions are in the index.
pub(crate) fn await_loaded(store: &Stores) {
    while !store.wait_loaded(Duration::from_hours(1)) {}
}

/// Returns the keys of all responses with matching fields, which are to be removed. Blocks until
/// the store is loaded, and reads the heads of all records. Removes the records that cannot be
/// read, as [`remove`] does.
pub(crate) fn keys(store: &Stores, is_match: impl Fn(&Fields<'_>) -> bool) -> Vec<Arc<str>> {
    let mut keys = Vec::new();
    until_unchanged(store, || {
        await_loaded(store);
        keys.extend(keys_with(store, |record| store.load(record, 0), &is_match));
    });
    keys
}

/// Carries out a removal, and again if directories were opened again meanwhile, as an upgrade that
/// fails does: it may have looked at the records from before.
fn until_unchanged(store: &Stores, mut remove: impl FnMut()) {
    loop {
        let before = store.note_removal();
        remove();
        if store.changes() == before {
            return;
        }
    }
}

fn keys_with(
    store: &Stores,
    load: impl Fn(&Arc<Record>) -> strait_store::Result<Loaded>,
    is_match: impl Fn(&Fields<'_>) -> bool,
) -> Vec<Arc<str>> {
    let key = |record: &Arc<Record>| {
        let Ok(loaded) = load(record) else {
            store.remove(record);
            return None;
        };
        let (response, _) = head::response(Meta::decode(loaded.meta())?.head).ok()??;
        let key = std::str::from_utf8(loaded.key()).ok()?;
        is_match(&response.fields).then(|| key.into())
    };
    store.records().iter().filter_map(key).collect()
}

/// Removes all records for a key, also those that are not loaded yet; returns the number of the
/// loaded ones.
pub(crate) fn remove(store: &Stores, hash: u64, key: &str) -> usize {
    let is_match = |stored: &[u8]| stored == key.as_bytes();
    let mut removal = Removal::new(store, |record| store.load(record, 0), is_match);
    until_unchanged(store, || {
        store.end_unloaded(hash);
        removal.remove_of_hash(hash);
    });
    removal.removed
}

/// Marks all records for a key as stale from `now` on; returns the number of those without such a
/// mark. One with an earlier mark gets the new one, because a validation under way would remove the
/// other. A record that cannot be marked is removed, so that it never counts as fresh; so is one
/// that is not loaded yet.
pub(crate) fn expire(store: &Stores, hash: u64, key: &str, now: u64) -> usize {
    let mut marked = 0;
    until_unchanged(store, || marked += expire_once(store, hash, key, now));
    marked
}

fn expire_once(store: &Stores, hash: u64, key: &str, now: u64) -> usize {
    store.end_unloaded(hash);
    let mut marked = 0;
    for _ in 0..LISTINGS_MAX {
        // A validation can replace a listed record meanwhile: list them again after each change.
        let changed = store.find(hash).iter().filter(|record| expire_record(store, record, key, now)).count();
        if changed == 0 {
            return marked;
        }
        marked += changed;
    }
    marked + remove(store, hash, key)
}

/// Marks a record as stale. Returns false if it is marked already, or has another key.
fn expire_record(store: &Stores, record: &Arc<Record>, key: &str, now: u64) -> bool {
    let Ok(loaded) = store.load(record, 0) else {
        // It may be for the key, and a later read may succeed.
        store.remove(record);
        return true;
    };
    if loaded.key() != key.as_bytes() {
        return false;
    }
    match Meta::decode(loaded.meta()) {
        Some(Meta { expired: Some(at), .. }) if at >= now => return false,
        Some(meta) => {
            let meta = Meta { expired: Some(now), ..meta }.encode();
            // The lane matters only for the place of the record.
            if store.update(0, record, &meta).is_err() {
                store.remove(record);
            }
        }
        None => store.remove(record),
    }
    true
}

/// Removes all records of the keys that match; returns their number. Blocks until the store is
/// loaded.
pub(crate) fn remove_matching(store: &Stores, is_match: impl Fn(&str) -> bool) -> usize {
    let is_match = |key: &[u8]| std::str::from_utf8(key).is_ok_and(&is_match);
    let mut removal = Removal::new(store, |record| store.load(record, 0), is_match);
    until_unchanged(store, || {
        await_loaded(store);
        for record in store.records() {
            if removal.remove(&record) {
                removal.remove_of_hash(record.hash);
            }
        }
    });
    removal.removed
}

/// Removal of all records with a matching key, including those that a concurrent validation writes
/// in place of a listed record. Such a successor has the same key, so a record with another key
/// needs no second look.
struct Removal<'a, L, M> {
    store: &'a Stores,
    /// Reads the head of a record.
    load: L,
    /// Returns true for the keys to remove.
    is_match: M,
    /// Number of removed records.
    removed: usize,
}

impl<'a, L, M> Removal<'a, L, M>
where
    L: Fn(&Arc<Record>) -> strait_store::Result<Loaded>,
    M: Fn(&[u8]) -> bool,
{
    fn new(store: &'a Stores, load: L, is_match: M) -> Self {
        Self { store, load, is_match, removed: 0 }
    }

    /// Removes the matching records of a hash. Lists them again while a listed one was removed or
    /// had ended: its successor was in the store before it ended, so the next list has it.
    fn remove_of_hash(&mut self, hash: u64) {
        for _ in 0..LISTINGS_MAX {
            let records = self.store.find(hash);
            // All of them, so no short circuit.
            if records.iter().filter(|record| self.remove(record)).count() == 0 {
                return;
            }
        }
        // Remove the rest without a read, which leaves no time for a replacement. A record of
        // another key with the same hash is lost, which costs a request to the origin.
        self.store.find(hash).iter().for_each(|record| self.end(record));
    }

    /// Removes a record if it matches, or if its key cannot be read: it may match, and a later read
    /// may succeed and serve it. Returns false if the record has another key.
    fn remove(&mut self, record: &Arc<Record>) -> bool {
        if (self.load)(record).is_ok_and(|loaded| !(self.is_match)(loaded.key())) {
            return false;
        }
        self.end(record);
        true
    }

    /// Removes a record, and counts it unless it has ended.
    fn end(&mut self, record: &Arc<Record>) {
        self.removed += usize::from(record.is_alive());
        self.store.remove(record);
    }
}

#[cfg(test)]
mod tests;
