//! Derived limits: one client's share of the connections to an origin and of the memory for request
//! bodies, background fetches, and connections by the number of open files.
//!
//! [`crate::config::settings`] uses them. A share without a value in the file is a fraction of its
//! limit.

use bytesize::ByteSize;
use rustix::process::{Resource, getrlimit};
use strait_http::head::HEAD_BYTES_MAX;

use crate::config::file::Limits;
use crate::config::member::Queue;

/// Bytes of a connection's buffer: the longest head fits.
pub(crate) const BUFFER_BYTES: usize = HEAD_BYTES_MAX;

/// Permits of each gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GateLimits {
    /// Connections in use to one origin.
    pub(crate) origin: usize,
    /// Connections in use to one origin for one client.
    pub(crate) origin_of_client: usize,
    /// Request bodies that are read ahead.
    pub(crate) ahead: usize,
    /// Request bodies of one client that are read ahead.
    pub(crate) ahead_of_client: usize,
    /// Passwords that are hashed at the same time.
    pub(crate) passwords: usize,
}

/// Limits of the connections to a server that has a maximum of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerLimits {
    /// Connections in use.
    pub(crate) connections: usize,
    /// Connections in use for one client.
    pub(crate) of_client: usize,
    pub(crate) queue: Queue,
    /// Maximum of waiting requests of one client.
    pub(crate) waiters_of_client: usize,
}

impl GateLimits {
    /// Returns the limits of a server with a maximum of connections. One client has the same share
    /// of them, and of the queue, as of the connections to any other origin.
    pub(crate) fn of_server(&self, connections: u32, queue: Queue) -> ServerLimits {
        let share = |all: usize| {
            let share = all.saturating_mul(self.origin_of_client).div_ceil(self.origin.max(1));
            share.max(1).min(all)
        };
        let connections = self.origin.min(connections as usize);
        let (of_client, waiters_of_client) = (share(connections), share(queue.waiters));
        ServerLimits { connections, of_client, queue, waiters_of_client }
    }
}

/// Maximum of fetches without a waiting client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackgroundLimits {
    pub(crate) of_origin: usize,
    pub(crate) of_client: usize,
}

/// Divisor of the limit of open files: the result is for the store; connections and pipes share the
/// others.
const FILES_DIVISOR: usize = 4;

/// Returns the number of files that the process may have open (`RLIMIT_NOFILE`).
pub(crate) fn files_allowed() -> usize {
    let allowed = getrlimit(Resource::Nofile).current.and_then(|files| usize::try_from(files).ok());
    allowed.unwrap_or(usize::MAX)
}

/// Returns the number of files that the process has open; `None` without /proc.
pub(crate) fn files_open() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count())
}

/// Returns the number of files that connections and pipes share, of `allowed` open files.
pub(crate) fn files_shared(allowed: usize) -> usize {
    allowed / FILES_DIVISOR * (FILES_DIVISOR - 1)
}

/// Returns the number of client connections for which there are files. Most connections are idle,
/// and connections to origins get files from closed idle ones.
pub(crate) fn connections_max() -> usize {
    files_shared(files_allowed())
}

/// Divisors for unset shares: one client may use a quarter of an origin's connections and of the
/// memory for request bodies. A fifth of an origin's connections may be in the background, a tenth
/// of these for one client.
const CLIENT_DIVISOR: usize = 4;
const BACKGROUND_DIVISOR: usize = 5;
const BACKGROUND_CLIENT_DIVISOR: usize = 10;

/// Returns the permits of each gate.
pub(crate) fn gates(limits: &Limits) -> GateLimits {
    let bodies =
        |memory: ByteSize| usize::try_from(memory.as_u64() / BUFFER_BYTES as u64).unwrap_or(usize::MAX);
    let (origin, ahead) = (limits.origin_connections, bodies(limits.request_ahead_memory));
    let ahead_of_client = limits.request_ahead_memory_per_client.map(bodies);
    GateLimits {
        origin,
        origin_of_client: share(limits.origin_connections_per_client, origin, CLIENT_DIVISOR),
        ahead,
        ahead_of_client: share(ahead_of_client, ahead, CLIENT_DIVISOR),
        passwords: std::thread::available_parallelism().map_or(1, |all| all.get().div_ceil(2)),
    }
}

/// Returns the limits of fetches without a waiting client.
pub(crate) fn background(limits: &Limits) -> BackgroundLimits {
    let default = limits.origin_connections.div_ceil(BACKGROUND_DIVISOR);
    let of_origin = limits.background_fetches.unwrap_or(default);
    let of_client = share(limits.background_fetches_per_client, of_origin, BACKGROUND_CLIENT_DIVISOR);
    BackgroundLimits { of_origin, of_client }
}

/// Returns the configured share of `all`, `all` for 0, and `all` by `divisor` if unset.
fn share(set: Option<usize>, all: usize, divisor: usize) -> usize {
    match set {
        None => all.div_ceil(divisor),
        Some(0) => all,
        Some(share) => share,
    }
}

#[cfg(test)]
mod tests {
    use crate::config::file::Config;
    use crate::config::settings::Settings;

    #[test]
    fn unset_shares_are_fractions_of_their_limits() {
        let of = |toml: &str| {
            let settings = Settings::new(&Config::from_toml(toml).unwrap()).unwrap();
            let (gates, background) = (settings.gates, settings.background);
            let connections = (gates.origin, gates.origin_of_client, background.of_origin);
            (connections, background.of_client, (gates.ahead, gates.ahead_of_client))
        };
        assert_eq!(of(""), ((2000, 500, 400), 40, (2048, 512)));
        assert_eq!(of("limits.origin_connections = 2"), ((2, 1, 1), 1, (2048, 512)));
        let set = "[limits]\norigin_connections_per_client = 7\nbackground_fetches = 6\n";
        assert_eq!(of(set), ((2000, 7, 6), 1, (2048, 512)));
        let all = "[limits]\norigin_connections_per_client = 0\nbackground_fetches_per_client = 0\nrequest_ahead_memory_per_client = 0\n";
        assert_eq!(of(all), ((2000, 2000, 400), 400, (2048, 2048)));
        assert_eq!(of("limits.background_fetches = 0").1, 0);
    }
}
