//! Stored response: parsed head and times, and the place of its body.

#[cfg(test)]
pub(in crate::cache) mod tests;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use strait_http::cache_control::OfResponse;
use strait_http::coding::Coding;
use strait_http::fields::{Field, Fields};
use strait_http::forwarded::is_of_client;
use strait_http::freshness::Times;
use strait_http::head;
use strait_http::lifetimes::Lifetimes;
use strait_http::partial::may_combine;
use strait_http::storing::Policy;
use strait_http::vary::{
    Variant, has_keyed_of, has_keys, is_of_range, is_of_user, is_plain, matches_variant, overlap,
};
use strait_store::{Extent, Record, Stores};

use crate::cache::forms::{self, Forms};
use crate::cache::generation::Generation;
use crate::cache::meta::Meta;
use crate::config::file::CheckHits;
use crate::io::head::{push_date, push_field, push_status_line};
use crate::io::http2::translate::EncodedLines;

/// Maximum of records of a key, variants and parts together: a request checks each of them.
pub(crate) const RECORDS_MAX: usize = 64;
/// Maximum of those that are a lone part each, for requests with one text of Range.
pub(crate) const LONE_PARTS_MAX: usize = 8;

/// Variants of stored objects of the same key with a higher rank. These objects answer the requests
/// that match one of the variants.
pub(crate) type Rivals = SmallVec<[Arc<str>; 0]>;

/// Stored response, or one that is being stored.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    /// Cache key, a URI.
    pub(crate) key: Arc<str>,
    pub(crate) status: u16,
    /// Head as it is sent, without framing and Age, up to the empty line.
    head: Arc<[u8]>,
    /// Its lines for HTTP/2, once a response from memory has needed them.
    encoded: OnceLock<Option<Arc<EncodedLines>>>,
    /// Offset of the fields in the head.
    fields_at: usize,
    pub(crate) times: Times,
    pub(crate) directives: OfResponse,
    /// Lifetimes of the operator, which times and directives have.
    lifetimes: Lifetimes,
    /// True if it has a Set-Cookie.
    sets_cookie: bool,
    /// True if it varies with a field that has the client's address.
    varies_with_client: bool,
    /// Request's values of the fields with which it varies.
    variant: Arc<str>,
    /// True if it has a Vary.
    has_vary: bool,
    /// Length of the representation, if known.
    pub(crate) length: Option<u64>,
    pub(crate) body: Body,
    /// Offset of the representation in the body: 0, except for a coded form.
    first: u64,
    /// Coding of a coded form.
    pub(crate) coding: Option<Coding>,
    /// Lengths of its own coded forms.
    pub(crate) forms: Forms,
    /// Its coded forms, as responses.
    coded: SmallVec<[Arc<Object>; 0]>,
    /// True if it may get coded forms: a 200 without Content-Encoding and no-transform, and not of
    /// a single user (the BREACH attack).
    is_codable: bool,
    pub(crate) claim: Claim,
}

/// Claim on the coding of an object in memory: of many hits, one requests it. A copy is unclaimed.
#[derive(Debug, Default)]
pub(crate) struct Claim(AtomicBool);

impl Clone for Claim {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Claim {
    /// Returns true for the first claim, and for the first one after each release.
    pub(crate) fn take(&self) -> bool {
        !self.0.load(Ordering::Relaxed) && !self.0.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn release(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Place of a representation's bytes.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// Whole body in memory with its coded forms, and in the store if that had space.
    Memory(Arc<[u8]>, Home),
    /// Parts in the store.
    Stored(SmallVec<[Part; 1]>),
    /// In a fill under way.
    Filling,
}

/// Owner of a body that is in memory.
#[derive(Clone, Debug)]
pub(crate) enum Home {
    /// The store.
    Store(Arc<Record>),
    /// Memory alone, while the generation holds.
    Memory(Generation),
}

impl Body {
    /// Returns the place of a coded form of `length` bytes, which is in the same record.
    fn of_form(&self, length: u64) -> Self {
        match self {
            Self::Stored(parts) => {
                let part = |part: &Part| Part { range: 0..length, record: part.record.clone() };
                Self::Stored(parts.iter().take(1).map(part).collect())
            }
            Self::Memory(..) | Self::Filling => self.clone(),
        }
    }
}

impl Home {
    /// Returns the record in the store, if there is one.
    fn record(&self) -> Option<&Arc<Record>> {
        match self {
            Self::Store(record) => Some(record),
            Self::Memory(_) => None,
        }
    }
}

/// Bytes of a representation in the store.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) range: Range<u64>,
    pub(crate) record: Arc<Record>,
}

/// Stored bytes that stay readable while a response is sent. A pin holds whole files of the store:
/// take it when the response begins, and drop it with the response.
#[derive(Debug, Default)]
pub(crate) struct Pinned(SmallVec<[(Range<u64>, Extent); 1]>);

impl Pinned {
    /// Returns the place of the byte `at`, and the number of bytes that follow there.
    pub(crate) fn at(&self, at: u64) -> Option<(Extent, u64)> {
        let (range, extent) = self.0.iter().find(|(range, _)| range.contains(&at))?;
        Some((extent.after(at - range.start), range.end - at))
    }
}

impl Object {
    /// Makes an object from a record's metadata; `None` if that is damaged.
    pub(crate) fn new(key: &str, meta: &Meta<'_>, body: Body) -> Option<Self> {
        let (response, len) = head::response(meta.head).ok()??;
        let meta = Meta { head: meta.head.get(..len)?, ..*meta };
        let directives = OfResponse::of(&response.fields);
        Some(Self::of(&key.into(), &meta, response.status, &response.fields, directives, body))
    }

    /// Makes an object from the parsed head in `meta`. A part is stored with the head of the whole
    /// response.
    pub(crate) fn of(
        key: &Arc<str>,
        meta: &Meta<'_>,
        status: u16,
        fields: &Fields<'_>,
        mut directives: OfResponse,
        body: Body,
    ) -> Self {
        let mut times = Times::of(status, fields, &directives, meta.requested, meta.received);
        meta.lifetimes.apply(&mut times, &mut directives);
        let is_codable = status == 200
            && !is_of_range(meta.variant)
            && !is_of_user(meta.variant)
            && !fields.has("content-encoding")
            && !directives.no_transform
            && !fields.elements("cache-control").any(|it| it.eq_ignore_ascii_case("no-transform"));
        let object = Self {
            key: key.clone(),
            status,
            head: meta.head.into(),
            encoded: OnceLock::new(),
            fields_at: meta.head.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1),
            times: Times { age: meta.age, expired: meta.expired, ..times },
            directives,
            lifetimes: meta.lifetimes,
            sets_cookie: fields.has("set-cookie"),
            varies_with_client: fields.elements("vary").any(is_of_client),
            // The empty default takes no memory.
            variant: if meta.variant.is_empty() { Arc::default() } else { meta.variant.into() },
            has_vary: fields.elements("vary").next().is_some(),
            length: meta.length,
            body,
            first: 0,
            coding: None,
            forms: meta.forms,
            coded: SmallVec::new(),
            is_codable,
            claim: Claim::default(),
        };
        let coded = if is_codable { object.coded(fields) } else { SmallVec::new() };
        Self { coded, ..object }
    }

    /// Returns its coded forms as responses.
    fn coded(&self, fields: &Fields<'_>) -> SmallVec<[Arc<Self>; 0]> {
        let Some(length) = self.length else { return SmallVec::new() };
        let form = |(coding, range): (Coding, Range<u64>)| {
            let head = forms::head_of(self.status, fields, coding);
            // One line more can be too many.
            head::response(&head).ok()??;
            let form = Self {
                head: head.into(),
                encoded: OnceLock::new(),
                first: range.start,
                coding: Some(coding),
                forms: Forms::default(),
                is_codable: false,
                ..self.clone()
            };
            let length = range.end - range.start;
            Some(Arc::new(form.with_body(Some(length), self.body.of_form(length))))
        };
        self.forms.ranges(length).filter_map(form).collect()
    }

    /// Returns a coded form.
    pub(crate) fn form(&self, coding: Coding) -> Option<&Arc<Self>> {
        self.coded.iter().find(|form| form.coding == Some(coding))
    }

    /// Returns true if it may have coded forms.
    pub(crate) fn is_codable(&self) -> bool {
        self.is_codable
    }

    /// Returns the response with another place of its body.
    pub(crate) fn with_body(&self, length: Option<u64>, body: Body) -> Self {
        Self {
            key: self.key.clone(),
            head: self.head.clone(),
            encoded: self.encoded.clone(),
            variant: self.variant.clone(),
            directives: self.directives.clone(),
            length,
            coded: self.coded.iter().map(|form| Arc::new(form.in_body(&body))).collect(),
            claim: Claim::default(),
            body,
            ..*self
        }
    }

    /// Returns a coded form of a response with that body.
    fn in_body(&self, body: &Body) -> Self {
        let body = self.length.map_or(Body::Filling, |length| body.of_form(length));
        self.with_body(self.length, body)
    }

    /// Returns the response in memory alone, stale from `now` on; `None` if the store has it.
    pub(crate) fn expired(&self, now: u64, generation: Generation) -> Option<Self> {
        let Body::Memory(bytes, Home::Memory(_)) = &self.body else { return None };
        let times = Times { expired: self.times.expired.max(Some(now)), ..self.times };
        let body = Body::Memory(bytes.clone(), Home::Memory(generation));
        let mut expired = Self { times, ..self.with_body(self.length, body) };
        expired.coded.iter_mut().for_each(|form| Arc::make_mut(form).times = times);
        Some(expired)
    }

    /// Drops a body of more than `most` bytes from memory if the store has it.
    pub(crate) fn in_memory_up_to(self, most: usize) -> Self {
        match (&self.body, self.length) {
            (Body::Memory(bytes, Home::Store(record)), Some(length)) if bytes.len() > most => {
                let part = Part { range: 0..length, record: record.clone() };
                self.with_body(self.length, Body::Stored(SmallVec::from_iter([part])))
            }
            _ => self,
        }
    }

    /// Returns true if the store has it.
    pub(crate) fn is_stored(&self) -> bool {
        matches!(self.body, Body::Memory(_, Home::Store(_)) | Body::Stored(_))
    }

    /// Returns the metadata for a record that begins with byte `first`.
    pub(crate) fn meta(&self, first: u64) -> Meta<'_> {
        Meta {
            requested: self.times.requested,
            received: self.times.received,
            age: self.times.age,
            expired: self.times.expired,
            forms: self.forms,
            lifetimes: self.lifetimes,
            first,
            length: self.length,
            variant: &self.variant,
            head: &self.head,
        }
    }

    /// Returns true if it matches a request (RFC 9111, section 4.1); the fields in `keys` are part
    /// of every key.
    pub(crate) fn matches(&self, request: &Fields<'_>, keys: &[String]) -> bool {
        self.has_keys(keys) && matches_variant(request, &self.variant)
    }

    /// Returns true if its key has all fields in `keys`. Otherwise it answers no request any more.
    pub(crate) fn has_keys(&self, keys: &[String]) -> bool {
        has_keys(&self.variant, keys)
    }

    /// Returns true if its key has all built-in key fields of the request.
    pub(crate) fn has_keyed_of(&self, request: &Fields<'_>) -> bool {
        has_keyed_of(&self.variant, request)
    }

    /// Returns true if it is a part that answers requests with its own Range alone, because it has
    /// no strong validator. It is neither combined nor validated.
    pub(crate) fn is_lone_part(&self) -> bool {
        is_of_range(&self.variant)
    }

    /// Returns the variant of a request by its Vary.
    pub(crate) fn variant_of(&self, request: &Fields<'_>, keys: &[String]) -> Option<Variant> {
        let of = if self.is_lone_part() && request.has("range") { Variant::of_part } else { Variant::of };
        of(&self.fields(), request, keys)
    }

    /// Returns true if it answers requests without built-in key fields.
    pub(crate) fn is_plain(&self, keys: &[String]) -> bool {
        is_plain(&self.variant, keys)
    }

    /// Returns its rank among objects that match a request: first those with a Vary, as many
    /// origins omit it if a request has no preference (RFC 9111, section 4.1), then by Date
    /// (section 4).
    pub(crate) fn rank(&self) -> (bool, (u64, u64)) {
        (self.has_vary, self.times.recency())
    }

    /// Returns true if the other object answers the requests that both match.
    pub(crate) fn yields_to(&self, other: &Self) -> bool {
        other.rank() > self.rank() && self.key == other.key && overlap(&self.variant, &other.variant)
    }

    /// Returns true if `other` must not replace it: both answer the same requests, both were under
    /// way at the same time, and `other` is older.
    pub(crate) fn outranks(&self, other: &Self) -> bool {
        let completes = !self.is_whole() && self.combines_with(other);
        self.is_for_same(other) && !completes && !other.times.supersedes(&self.times)
    }

    /// Request's values of the fields with which it varies.
    pub(crate) fn variant(&self) -> &Arc<str> {
        &self.variant
    }

    /// Returns true if the operator's rules, which may have changed since it was stored, allow it.
    pub(crate) fn is_allowed(&self, policy: &Policy) -> bool {
        policy.allows(self.status, self.sets_cookie, self.varies_with_client)
    }

    /// Returns true if that is its key.
    pub(crate) fn is_for(&self, key: &str) -> bool {
        *self.key == *key
    }

    /// Returns true if both answer the same requests.
    pub(crate) fn is_for_same(&self, other: &Self) -> bool {
        self.key == other.key && self.variant == other.variant
    }

    /// Returns true if both have bytes of one representation (RFC 9111, section 3.4).
    pub(crate) fn combines_with(&self, other: &Self) -> bool {
        let is_long = self.length.is_some() && self.length == other.length;
        is_long && may_combine(&self.fields(), &other.fields())
    }

    /// Adds a part in the store.
    pub(crate) fn add(&mut self, part: Part) {
        if let Body::Stored(parts) = &mut self.body {
            parts.push(part);
        }
    }

    /// Returns its fields.
    pub(crate) fn fields(&self) -> Fields<'_> {
        // The head was parsed when the object was made.
        head::response(&self.head).ok().flatten().map(|(response, _)| response.fields).unwrap_or_default()
    }

    /// Returns true if it is small enough for memory, and is not there.
    pub(crate) fn is_worth_memory(&self, most: usize) -> bool {
        matches!(self.body, Body::Stored(_))
            && self.is_whole()
            && self.length.is_some_and(|length| length.saturating_add(self.forms.total()) <= most as u64)
    }

    /// Returns its status line and fields as they are sent.
    pub(crate) fn head_lines(&self) -> &[u8] {
        &self.head[..self.head.len() - 2]
    }

    /// Returns the lines of [`Self::head_lines`] for HTTP/2; `None` if they are not kept: its body
    /// is not in memory, or the lines are needed as text.
    pub(crate) fn encoded_lines(&self) -> Option<&EncodedLines> {
        let Body::Memory(..) = self.body else { return None };
        self.encoded.get_or_init(|| EncodedLines::of(self.head_lines()).map(Arc::new)).as_deref()
    }

    /// Returns its field lines as they are sent.
    pub(crate) fn field_lines(&self) -> &[u8] {
        &self.head[self.fields_at..self.head.len() - 2]
    }

    /// Returns the first gap in a range.
    pub(crate) fn first_gap(&self, range: &Range<u64>) -> Option<Range<u64>> {
        if matches!(self.body, Body::Memory(..)) {
            return None;
        }
        let mut at = range.start;
        while at < range.end {
            let Some(len) = self.stored_len(at) else {
                return Some(at..self.next_part(at).min(range.end));
            };
            at += len;
        }
        None
    }

    /// Returns the start of the next part after `at`.
    fn next_part(&self, at: u64) -> u64 {
        self.parts().map(|part| part.start).filter(|start| *start > at).min().unwrap_or(u64::MAX)
    }

    /// Returns the ranges of its parts in the store.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Range<u64>> {
        let parts: &[Part] = if let Body::Stored(parts) = &self.body { parts } else { &[] };
        parts.iter().map(|part| part.range.clone())
    }

    /// Returns true if all its bytes are stored.
    pub(crate) fn is_whole(&self) -> bool {
        self.length.is_some_and(|length| self.first_gap(&(0..length)).is_none())
    }

    /// Returns true if the store still has its records.
    pub(crate) fn is_alive(&self) -> bool {
        match &self.body {
            Body::Memory(_, Home::Store(record)) => record.is_alive(),
            Body::Stored(parts) => parts.iter().all(|part| part.record.is_alive()),
            // An object in memory alone is removed from the memory cache when it is invalidated.
            Body::Memory(_, Home::Memory(_)) | Body::Filling => true,
        }
    }

    /// Returns true if it was not invalidated since it was fetched. Objects in the store are
    /// checked by their records.
    pub(crate) fn is_current(&self) -> bool {
        match &self.body {
            Body::Memory(_, Home::Memory(generation)) => generation.holds(&self.key),
            _ => true,
        }
    }

    /// Returns its records.
    pub(crate) fn records(&self) -> impl Iterator<Item = &Arc<Record>> {
        let (memory, parts): (_, &[Part]) = match &self.body {
            Body::Memory(_, home) => (home.record(), &[]),
            Body::Stored(parts) => (None, parts),
            Body::Filling => (None, &[]),
        };
        memory.into_iter().chain(parts.iter().map(|part| &part.record))
    }

    /// Returns the records of stored bodies that a hit has to check.
    pub(crate) fn due_for_check(&self, mode: CheckHits) -> impl Iterator<Item = &Arc<Record>> {
        // The bytes of a body in memory were compared with their hash when they were read.
        let parts: &[Part] = if let Body::Stored(parts) = &self.body { parts } else { &[] };
        let is_due = move |record: &&Arc<Record>| match mode {
            CheckHits::Off => false,
            CheckHits::First => !record.is_checked(),
            CheckHits::Always => true,
        };
        parts.iter().map(|part| &part.record).filter(is_due)
    }

    /// Stores its current head with the bodies of its records.
    pub(crate) fn write_again(&mut self, store: &Stores, lane: usize) {
        let meta = |first| self.meta(first).encode();
        // If the store cannot, the old head stays.
        let updated = |record: &Arc<Record>, first| store.update(lane, record, &meta(first)).ok();
        let body = match &self.body {
            Body::Memory(bytes, Home::Store(record)) => {
                let record = updated(record, 0).unwrap_or_else(|| record.clone());
                Body::Memory(bytes.clone(), Home::Store(record))
            }
            Body::Stored(parts) => Body::Stored(
                parts
                    .iter()
                    .map(|part| Part {
                        record: updated(&part.record, part.range.start)
                            .unwrap_or_else(|| part.record.clone()),
                        ..part.clone()
                    })
                    .collect(),
            ),
            body @ (Body::Memory(_, Home::Memory(_)) | Body::Filling) => body.clone(),
        };
        *self = self.with_body(self.length, body);
    }

    /// Returns the bytes of memory that it takes. The head of a body in memory counts twice: its
    /// lines for HTTP/2, which a later response may need, are shorter.
    pub(crate) fn memory_bytes(&self) -> usize {
        let (body, heads) = if let Body::Memory(bytes, _) = &self.body { (bytes.len(), 2) } else { (0, 1) };
        let coded: usize = self.coded.iter().map(|form| size_of::<Self>() + heads * form.head.len()).sum();
        size_of::<Self>() + self.key.len() + heads * self.head.len() + self.variant.len() + body + coded
    }

    /// Returns bytes of the representation that are in memory.
    pub(crate) fn bytes(&self, range: &Range<u64>) -> Option<&[u8]> {
        let Body::Memory(bytes, _) = &self.body else { return None };
        let at = |offset: u64| usize::try_from(self.first.checked_add(offset)?).ok();
        bytes.get(at(range.start)?..at(range.end)?)
    }

    /// Number of bytes from `at` on in memory or in one part; `None` if no part has them.
    pub(crate) fn stored_len(&self, at: u64) -> Option<u64> {
        match &self.body {
            Body::Memory(..) => self.length?.checked_sub(at).filter(|len| *len > 0),
            Body::Stored(parts) => {
                parts.iter().find(|part| part.range.contains(&at)).map(|part| part.range.end - at)
            }
            Body::Filling => None,
        }
    }

    /// Pins the stored bytes of a range, so that they can be read to the end of a response though
    /// their records are evicted meanwhile; `None` if some have gone from the store. Bytes in
    /// memory need no pin.
    pub(crate) fn pin(&self, range: &Range<u64>) -> Option<Pinned> {
        let Body::Stored(parts) = &self.body else { return Some(Pinned::default()) };
        #[cfg(test)]
        if tests::goes_now(&self.key) {
            return None;
        }
        let is_in = |part: &&Part| part.range.start < range.end && range.start < part.range.end;
        let pin = |part: &Part| Some((part.range.clone(), part.record.body()?.after(self.first)));
        parts.iter().filter(is_in).map(pin).collect::<Option<_>>().map(Pinned)
    }
}

/// Returns the head of a response with these fields as it is stored.
pub(crate) fn stored_head<'f, 'b: 'f>(
    status: u16,
    fields: impl Iterator<Item = &'f Field<'b>>,
    received: u64,
) -> Vec<u8> {
    let mut head = Vec::new();
    write_stored_head(&mut head, status, &stored_fields(fields), received);
    head
}

/// Returns the fields of a stored head: without those that are written anew for each client.
pub(crate) fn stored_fields<'f, 'b: 'f>(fields: impl Iterator<Item = &'f Field<'b>>) -> Fields<'b> {
    let is_written_anew =
        |name: &str| ["age", "content-range"].iter().any(|own| own.eq_ignore_ascii_case(name));
    fields.filter(|field| !is_written_anew(field.name)).copied().collect()
}

/// Writes the head of a response as it is stored: with a Date, that of receipt if it has none (RFC
/// 9110, section 6.6.1).
pub(crate) fn write_stored_head(head: &mut Vec<u8>, status: u16, fields: &Fields<'_>, received: u64) {
    push_status_line(head, status);
    for field in fields.iter() {
        push_field(head, field.name, field.value);
    }
    if !fields.has("date") {
        push_date(head, received);
    }
    head.extend_from_slice(b"\r\n");
}
