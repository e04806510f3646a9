//! Limit of fetches without a waiting client, counted over all workers: fills after their last
//! client has disconnected, and validations in the background (RFC 5861 s3).
//!
//! [`crate::cache::fill_task`] and [`crate::serve::miss`] use it. Such a fetch holds a connection
//! to its origin, but no connection of a client: without a limit one client could begin thousands
//! and disconnect. A fetch counts for its origin and for the client that caused it. Fetches do not
//! wait: beyond the limit a fill is given up, and a validation is left to the next request.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::limits::BackgroundLimits;
use crate::config::server::Server;
use crate::io::gate::Client;

/// Numbers of such fetches. An entry exists only while its number is not zero.
#[derive(Debug, Default)]
pub(crate) struct Background(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    by_origin: HashMap<Server, usize>,
    by_client: HashMap<Client, usize>,
}

/// Fetch that is counted while no client waits for it.
#[derive(Debug)]
pub(crate) struct Fetch {
    background: Arc<Background>,
    server: Server,
    client: Client,
    is_counted: bool,
}

impl Fetch {
    /// Fetch from `server` that `client` caused; not counted yet.
    pub(crate) fn new(background: &Arc<Background>, server: &Server, client: Client) -> Self {
        Self { background: background.clone(), server: server.clone(), client, is_counted: false }
    }

    /// Counts the fetch, if it is not counted yet. Returns false if the limit is reached.
    pub(crate) fn begin(&mut self, limits: BackgroundLimits) -> bool {
        if !self.is_counted {
            self.is_counted = self.background.begin(&self.server, self.client, limits);
        }
        self.is_counted
    }

    /// Stops counting the fetch: a client waits for it.
    pub(crate) fn end(&mut self) {
        if std::mem::take(&mut self.is_counted) {
            self.background.end(&self.server, self.client);
        }
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.end();
    }
}

impl Background {
    fn begin(&self, server: &Server, client: Client, limits: BackgroundLimits) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_origin = counts.by_origin.get(server).copied().unwrap_or(0);
        let of_client = counts.by_client.get(&client).copied().unwrap_or(0);
        if of_origin >= limits.of_origin || of_client >= limits.of_client {
            return false;
        }
        counts.by_origin.insert(server.clone(), of_origin + 1);
        counts.by_client.insert(client, of_client + 1);
        true
    }

    fn end(&self, server: &Server, client: Client) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        count_down(&mut counts.by_origin, server);
        count_down(&mut counts.by_client, &client);
    }
}

fn count_down<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    let Some(count) = counts.get_mut(key) else { return };
    *count -= 1;
    if *count == 0 {
        counts.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetches_are_limited_per_origin_and_per_client() {
        let background = Arc::new(Background::default());
        let limits = BackgroundLimits { of_origin: 3, of_client: 2 };
        let server = |port| Server::tcp("a", port, false);
        let fetch = |port, last| {
            let mut fetch = Fetch::new(&background, &server(port), Client::of([192, 0, 2, last].into()));
            let is_counted = fetch.begin(limits);
            (fetch, is_counted)
        };
        let (mut first, is_counted) = fetch(1, 1);
        assert!(is_counted && first.begin(limits));
        let (second, is_counted) = fetch(2, 1);
        assert!(is_counted);
        assert!(!fetch(3, 1).1, "its client has two, of whatever origin");
        let others = [fetch(1, 2), fetch(1, 3)];
        assert!(others.iter().all(|(_, is_counted)| *is_counted));
        assert!(!fetch(1, 4).1, "the origin has three");
        first.end();
        first.end();
        assert!(fetch(1, 4).1 && fetch(3, 1).1);
        drop((first, second, others));
        let counts = background.0.lock().unwrap();
        assert!(counts.by_origin.is_empty() && counts.by_client.is_empty());
    }
}
