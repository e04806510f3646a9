//! What is stored, for whoever runs the proxy: told, forgotten, checked. Objects are named by their
//! URIs, or by patterns in which `*` stands for anything.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use strait_http::target::Uri;
use strait_store::{Record, Stats, Store, Verified, hash_of};

use crate::cache::disk;
use crate::cache::meta::Meta;
use crate::cache::object::{Body, Object};
use crate::config::error::{Error, Result};

/// Bytes of a pattern at most.
pub(crate) const PATTERN_BYTES_MAX: usize = 8 << 10;

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

/// An object in the memory cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AtHand {
    /// The URI that it is kept for.
    pub uri: String,
    /// Bytes of its body.
    pub bytes: u64,
    /// How often it was asked for.
    pub hits: u64,
    /// Whether its body is in memory.
    pub in_memory: bool,
}

/// Which URIs are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
}

impl Pattern {
    /// Of a text in which `*` stands for anything.
    ///
    /// # Errors
    /// It is longer than any URI, or empty.
    pub fn new(text: &str) -> Result<Self> {
        match text.len() {
            0 => Err(Error::Config("the pattern is empty: * stands for anything".to_owned())),
            1..=PATTERN_BYTES_MAX => Ok(Self { text: text.to_owned() }),
            len => Err(Error::Config(format!("a pattern of {len} bytes; {PATTERN_BYTES_MAX} are the most"))),
        }
    }

    /// Of one URI, as it is kept.
    ///
    /// # Errors
    /// It is no URI of http or https.
    pub fn of_uri(text: &str) -> Result<String> {
        if !text.contains("://") {
            return Err(Error::Config(format!("{text}: give the whole URI, as in http://host/path")));
        }
        let uri = Uri::parse(text).map_err(|error| Error::Config(format!("{text}: {error}")))?;
        let mut key = String::new();
        uri.write_key(&mut key);
        Ok(key)
    }

    /// Whether a URI is meant.
    pub(crate) fn matches(&self, uri: &str) -> bool {
        let mut pieces = self.text.split('*');
        let first = pieces.next().unwrap_or_default();
        let Some(mut rest) = uri.strip_prefix(first) else { return false };
        let Some(last) = pieces.next_back() else { return rest.is_empty() };
        for piece in pieces {
            let Some(at) = rest.find(piece) else { return false };
            rest = &rest[at + piece.len()..];
        }
        rest.ends_with(last)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_says_which_uris_are_meant() {
        for (pattern, uri, expected) in [
            ("http://a/x", "http://a/x", true),
            ("http://a/x", "http://a/xy", false),
            ("http://a/*", "http://a/", true),
            ("*.png", "http://a/b.png", true),
            ("*.png", "http://a/b.png?c", false),
            ("http://*/img/*.png", "http://a/img/b/c.png", true),
            ("*aba", "http://ababa", true),
            ("ab*ba", "aba", false),
            ("*", "", true),
            ("**", "a", true),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().matches(uri), expected, "{pattern} {uri}");
        }
        assert!(Pattern::new("").unwrap_err().to_string().contains("empty"));
        for text in ["/path", "www.example/path", ""] {
            assert!(Pattern::of_uri(text).unwrap_err().to_string().contains("http://host/path"), "{text}");
        }
        assert!(Pattern::of_uri("ftp://a/b").is_err());
        assert_eq!(Pattern::of_uri("HTTP://A.example:80").unwrap(), "http://a.example/");
    }
}
