//! The objects of a cache on disk: records of key, meta and body in append-only segment files, with an index in memory and a
//! hard size limit. It knows nothing of HTTP.
//!
//! Each lane, one for each thread that writes, appends to a segment of its own. What is small is put whole with one call; for
//! what is large or not there yet an extent is reserved, which others fill by splice(2) and read by sendfile(2) while it grows,
//! and which becomes a record when it is committed. One background thread loads the index and evicts ahead of need,
//! another syncs. No caller waits for a sync, and what a crash cuts off is never found. `docs/internals/store.md` has the format, and says what each
//! call does in the caller's thread.
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

mod background;
mod budget;
mod config;
mod disk;
mod error;
mod file;
pub mod format;
mod index;
mod lane;
mod load;
mod open;
mod pending;
mod read;
mod record;
mod relief;
mod room;
mod scan;
mod shared;
mod snapshot;
mod stats;
mod store;
mod sync;
#[cfg(test)]
mod tests;
mod writer;

pub use config::Config;
pub use error::{Error, Result};
pub use file::{Extent, SegmentFile};
pub use format::hash_of;
pub use read::{Loaded, Verified};
pub use record::Record;
pub use stats::Stats;
pub use store::Store;
pub use strait_sys::Kind as ErrorKind;
pub use writer::Writer;
