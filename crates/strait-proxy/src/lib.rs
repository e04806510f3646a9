//! A caching HTTP proxy whose hits and misses do not visit user space.
//!
//! ```text
//! client ◀── sendfile ── store ◀── splice ── origin      a miss, and all who ask for the same while it comes
//!    ▲                     │
//!    └───── sendfile ──────┘                              a hit; small ones from memory, in one system call
//! ```
//!
//! Each worker is a thread with its own listener, connections and objects at hand; they share the
//! store and what is being fetched. What is stored and reused follows RFC 9111, by the pure
//! functions of `strait-http`.

mod admin;
mod cache;
mod config;
mod io;
mod observe;
mod serve;
mod server;
mod upstream;

pub use cache::contents::{Contents, Entry};
pub use cache::memory::MemoryEntry;
pub use cache::pattern::Pattern;
pub use config::error::{Error, Result};
pub use config::file::{Config, Format};
pub use io::clock::Clock;
pub use observe::report::{Quantiles, Report};
pub use server::proxy::{Bound, Proxy};
pub use strait_store::{Stats, Verified};
