//! Stored objects for the operator: listing, purging and verifying. Objects are named by URIs or
//! patterns.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use strait_store::{Record, Stats, Store, Stores, Verified, hash_of};

use crate::cache::disk;
use crate::cache::invalidation::Keys;
use crate::cache::meta::Meta;
use crate::cache::object::{Body, Object};
use crate::cache::pattern::{Pattern, is_whole, shortened};
use crate::cache::tag::Tag;
use crate::config::error::{Error, Result};

/// Stored response, or part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Its URI.
    pub uri: String,
    /// Its status.
    pub status: u16,
    /// Number of stored bytes.
    pub bytes: u64,
    /// Offset of the first stored byte in the representation.
    pub first: u64,
    /// Length of the representation, if known.
    pub length: Option<u64>,
    /// Age in seconds.
    pub age: u64,
    /// Remaining freshness lifetime in seconds, negative once stale.
    pub ttl: i64,
    /// Content-Type.
    pub content_type: Option<String>,
    /// ETag.
    pub etag: Option<String>,
    /// Request's values of the fields with which it varies.
    pub variant: String,
}

/// Objects in the directory of a store.
#[derive(Clone, Debug)]
pub struct Contents(Arc<Stores>);

impl Contents {
    /// Opens a directory that no proxy uses, read-only. Purges affect only this value.
    ///
    /// # Errors
    /// The path is not a directory, or a proxy uses it.
    pub fn open_to_read(dir: &Path) -> Result<Self> {
        is_directory(dir)?;
        Ok(Self(Stores::of(Store::open_to_read(dir).map_err(unavailable)?)))
    }

    /// Opens a directory that no proxy uses, to purge objects. Nothing is evicted.
    ///
    /// # Errors
    /// The path is not a directory, or a proxy uses it.
    pub fn open(dir: &Path) -> Result<Self> {
        is_directory(dir)?;
        let config = strait_store::Config {
            // More than any disk has, so that nothing is evicted.
            capacity_bytes: 1 << 50,
            segment_bytes: Some(1 << 20),
            sync_every: None,
            ..strait_store::Config::new(dir)
        };
        let store = Store::open(config).map_err(unavailable)?;
        let store = Stores::of(store);
        disk::await_loaded(&store);
        Ok(Self(store))
    }

    pub(crate) fn of(store: Arc<Stores>) -> Self {
        Self(store)
    }

    /// Returns the numbers of the store.
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Returns the newest `most` objects that match, with ages at `now` in seconds since 1970.
    pub fn list(&self, pattern: &Pattern, most: usize, now: u64) -> Vec<Entry> {
        let records = self.0.records();
        let entries = records.iter().filter_map(|record| self.entry(record, now));
        entries.filter(|entry| pattern.matches(&entry.uri)).take(most).collect()
    }

    /// Returns all objects for one key of [`Pattern::of_uri`]; without a pool in it, those of the
    /// URI in all pools.
    pub fn get(&self, key: &str, now: u64) -> Vec<Entry> {
        if is_whole(key) {
            return self.of_key(key, now);
        }
        let records = self.0.records();
        let entries = records.iter().filter_map(|record| self.entry(record, now));
        entries.filter(|entry| shortened(&entry.uri, key) == key).collect()
    }

    /// Returns all objects for one key.
    pub(crate) fn of_key(&self, key: &str, now: u64) -> Vec<Entry> {
        let records = self.0.find(hash_of(key.as_bytes()));
        let entries = records.iter().filter_map(|record| self.entry(record, now));
        entries.filter(|entry| entry.uri == key).collect()
    }

    /// Removes all objects that [`Contents::get`] returns; returns their number.
    pub fn purge(&self, key: &str) -> usize {
        if is_whole(key) {
            return Keys::of_uri(key).remove_from(&self.0);
        }
        disk::remove_matching(&self.0, |stored| shortened(stored, key) == key)
    }

    /// Marks all objects that [`Contents::get`] returns as stale from `now` on, in seconds since
    /// 1970; returns the number of those that were not marked.
    pub fn expire(&self, key: &str, now: u64) -> usize {
        self.expire_all(self.get(key, now).into_iter().map(|entry| entry.uri), now)
    }

    /// Marks all objects of the keys of responses with a tag as stale, as [`Contents::expire`].
    pub fn expire_tag(&self, tag: &Tag, now: u64) -> usize {
        let keys = disk::keys(&self.0, |fields| tag.is_in(fields));
        self.expire_all(keys.iter().map(ToString::to_string), now)
    }

    fn expire_all(&self, keys: impl Iterator<Item = String>, now: u64) -> usize {
        let keys: BTreeSet<_> = keys.collect();
        keys.iter().map(|key| disk::expire(&self.0, hash_of(key.as_bytes()), key, now)).sum()
    }

    /// Removes all objects of the keys of responses with a tag; returns their number.
    pub fn purge_tag(&self, tag: &Tag) -> usize {
        let keys: BTreeSet<_> = disk::keys(&self.0, |fields| tag.is_in(fields)).into_iter().collect();
        keys.iter().map(|key| Keys::of_uri(key).remove_from(&self.0)).sum()
    }

    /// Removes all objects that match; returns their number.
    pub fn ban(&self, pattern: &Pattern) -> usize {
        Keys::Matching(pattern).remove_from(&self.0)
    }

    /// Reads all records and removes damaged ones.
    pub fn verify(&self) -> Verified {
        self.0.verify()
    }

    /// Closes the store.
    pub fn close(&self) {
        self.0.close();
    }

    fn entry(&self, record: &Arc<Record>, now: u64) -> Option<Entry> {
        let loaded = self.0.load(record, 0).ok()?;
        let key = std::str::from_utf8(loaded.key()).ok()?;
        let meta = Meta::decode(loaded.meta())?;
        let object = Object::new(key, &meta, Body::Filling)?;
        let fields = object.fields();
        let field = |name| fields.one(name).map(str::to_owned);
        Some(Entry {
            uri: key.to_owned(),
            status: object.status,
            bytes: record.body_len(),
            first: meta.first,
            length: meta.length,
            age: object.times.age_at(now),
            ttl: object.times.ttl(now),
            content_type: field("content-type"),
            etag: field("etag"),
            variant: meta.variant.to_owned(),
        })
    }
}

fn is_directory(dir: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Error::os("open the store", &dir.display(), error);
    match std::fs::metadata(dir) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(failed(std::io::ErrorKind::NotADirectory.into())),
        Err(error) => Err(failed(error)),
    }
}

/// Adds the remedy to the error for a store in use.
fn unavailable(error: strait_store::Error) -> Error {
    match error {
        strait_store::Error::InUse(dir) => Error::Refused(format!(
            "{}: a proxy uses it; ask that by its admin address (--admin)",
            dir.display()
        )),
        other => other.into(),
    }
}
