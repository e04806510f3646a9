//! Disk store of a cache: records of key, meta and body in append-only segment files, with an index
//! in memory and a hard size limit. The crate does not depend on HTTP.
//!
//! Each lane, one for each writing thread, appends to a segment of its own. One call writes a small
//! record whole. For a large or incomplete object, an extent is reserved; writers fill it by
//! splice(2), followers read it by sendfile(2) while it grows, and a commit makes it a record. One
//! background thread loads the index and evicts ahead of need, another syncs, and a third one
//! checks the stored bytes. Callers do not wait for a sync, and records that a crash truncated are
//! never found. `docs/internals/store.md` has the format, and lists the system calls made in the
//! caller's thread.
//!
//! ```
//! use strait_store::{Config, Store, hash_of};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let store = Store::open(Config { capacity_bytes: 32 << 20, ..Config::new(dir.path()) })?;
//! store.put(0, b"http://a.example/", b"200 OK", &[b"hello ", b"world"])?;
//! let found = store.find(hash_of(b"http://a.example/"));
//! let loaded = store.load(&found[0], 1 << 20)?;
//! assert_eq!((loaded.key(), loaded.meta()), (&b"http://a.example/"[..], &b"200 OK"[..]));
//! assert_eq!(loaded.body(), Some(&b"hello world"[..]));
//! store.close();
//! # Ok(())
//! # }
//! ```

mod append;
mod background;
mod budget;
mod check;
mod config;
mod demand;
mod disk;
mod durability;
mod enospc;
mod error;
mod eviction;
mod file;
pub mod format;
mod identity;
mod index;
mod journal;
mod lane;
mod lifecycle;
mod load;
mod loading;
mod member;
mod new_bodies;
mod open;
mod pending;
pub mod policy;
mod read;
mod record;
mod recovery;
mod scan;
mod scrub;
mod segments;
mod shared;
mod spares;
mod stats;
mod store;
mod stores;
mod sync;
#[cfg(test)]
mod tests;
mod unread;
mod writer;

pub use check::{Check, Verified};
pub use config::{Config, Scrub};
pub use error::{Error, Result};
pub use file::{Extent, SegmentFile};
pub use format::hash_of;
pub use lane::NewObject;
pub use read::Loaded;
pub use record::{Checking, Record};
pub use stats::Stats;
pub use store::Store;
pub use stores::{Change, OnChange, Stores};
pub use strait_os::Kind as ErrorKind;
pub use writer::Writer;
