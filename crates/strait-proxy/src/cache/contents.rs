//! What is stored, for whoever runs the proxy: told, forgotten, checked. Objects are named by their
//! URIs, or by patterns in which `*` stands for anything.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use strait_store::{Record, Stats, Store, Verified, hash_of};

use crate::cache::disk;
use crate::cache::meta::Meta;
use crate::cache::object::{Body, Object};
use crate::cache::pattern::Pattern;
use crate::config::error::{Error, Result};

/// A stored response, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The URI that it is kept for.
    pub uri: String,
    /// Its status.
    pub status: u16,
    /// Bytes that are stored.
    pub bytes: u64,
    /// Which byte of the whole they begin with.
    pub first: u64,
    /// Bytes of the whole, where they are known.
    pub length: Option<u64>,
    /// Seconds since it was made.
    pub age: u64,
    /// Seconds for which it is still fresh, negative once it is stale.
    pub ttl: i64,
    /// Its media type, as it came.
    pub content_type: Option<String>,
    /// Its validator, as it came.
    pub etag: Option<String>,
    /// What the request said of the fields that it varies with.
    pub variant: String,
}

/// What is stored in a directory.
#[derive(Clone, Debug)]
pub struct Contents(Arc<Store>);

impl Contents {
    /// Opens a directory that no proxy uses, to look at it: nothing in it is changed, and what is
    /// forgotten is so for this one alone.
    ///
    /// # Errors
    /// It is none, or it is in use.
    pub fn open_to_read(dir: &Path) -> Result<Self> {
        is_directory(dir)?;
        Store::open_to_read(dir).map(Self).map_err(unavailable)
    }

    /// Opens a directory that no proxy uses, to forget something of it. Nothing is evicted from it.
    ///
    /// # Errors
    /// It is none, or it is in use.
    pub fn open(dir: &Path) -> Result<Self> {
        is_directory(dir)?;
        let config = strait_store::Config {
            // More than any disk has.
            capacity_bytes: 1 << 50,
            segment_bytes: Some(1 << 20),
            sync_every: None,
            ..strait_store::Config::new(dir)
        };
        let store = Store::open(config).map_err(unavailable)?;
        while !store.wait_loaded(std::time::Duration::from_hours(1)) {}
        Ok(Self(store))
    }

    pub(crate) fn of(store: Arc<Store>) -> Self {
        Self(store)
    }

    /// What it holds and did.
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// The newest that match, so many at most; at `now` in seconds since 1970.
    pub fn list(&self, pattern: &Pattern, most: usize, now: u64) -> Vec<Entry> {
        let records = self.0.records();
        let entries = records.iter().filter_map(|record| self.entry(record, now));
        entries.filter(|entry| pattern.matches(&entry.uri)).take(most).collect()
    }

    /// All that is stored for one URI, as [`Pattern::of_uri`] writes it.
    pub fn get(&self, uri: &str, now: u64) -> Vec<Entry> {
        let records = self.0.find(hash_of(uri.as_bytes()));
        let entries = records.iter().filter_map(|record| self.entry(record, now));
        entries.filter(|entry| entry.uri == uri).collect()
    }

    /// Forgets all that is stored for one URI; how much that was.
    pub fn purge(&self, uri: &str) -> usize {
        disk::remove(&self.0, hash_of(uri.as_bytes()), uri)
    }

    /// Forgets all that match; how much that was.
    pub fn ban(&self, pattern: &Pattern) -> usize {
        let is_meant = |record: &&Arc<Record>| {
            let loaded = self.0.load(record, 0);
            loaded.is_ok_and(|it| std::str::from_utf8(it.key()).is_ok_and(|key| pattern.matches(key)))
        };
        self.0.records().iter().filter(is_meant).map(|record| self.0.remove(record)).count()
    }

    /// Reads all of it, and drops what is not as it was written.
    pub fn verify(&self) -> Verified {
        self.0.verify()
    }

    /// Ends the store in order.
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

/// Who is to be asked instead.
fn unavailable(error: strait_store::Error) -> Error {
    match error {
        strait_store::Error::InUse(dir) => Error::Refused(format!(
            "{}: a proxy uses it; ask that by its admin address (--admin)",
            dir.display()
        )),
        other => other.into(),
    }
}
