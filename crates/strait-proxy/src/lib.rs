//! Caching HTTP proxy that moves bodies inside the kernel, for hits and misses.
//!
//! ```text
//! client ◀── sendfile ── store ◀── splice ── origin      a miss, with all its followers
//!    ▲                     │
//!    └───── sendfile ──────┘                              a hit; small bodies from memory
//! ```
//!
//! Each worker is a thread with its own listening sockets and connections; workers share the store,
//! the memory cache and the fills. The pure functions of `strait-http` decide by RFC 9111 which
//! responses are stored and reused. The folders are layers: `docs/internals/proxy.md` lists them,
//! `cargo xtask layers` checks them.

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
pub use cache::removals::Removals;
pub use cache::tag::Tag;
pub use config::error::{Error, Result};
pub use config::file::{Config, FillMethod, Format};
pub use config::read::Checked;
pub use io::clock::Clock;
pub use observe::report::{Quantiles, Report};
pub use server::listen::Inherited;
pub use server::proxy::{Bound, Proxy};
pub use strait_store::{Stats, Verified};
