//! Limit on the connections in use to each origin, counted over all workers.
//!
//! [`crate::origin`] takes a slot for each connection that carries a request or a tunnel. Idle
//! connections hold none: `limits.origin_idle` bounds those.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::settings::Server;

/// Origins with connections in use. An entry exists only as long as one is in use or awaited.
#[derive(Debug, Default)]
pub(crate) struct Gates(Mutex<HashMap<Server, Gate>>);

#[derive(Debug, Default)]
struct Gate {
    used: usize,
    waiting: usize,
    freed: Arc<Notify>,
}

/// Right to use one connection to an origin, until it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    gates: Arc<Gates>,
    server: Server,
}

/// Keeps the entry of an origin while somebody waits there.
struct Waiting<'a> {
    gates: &'a Gates,
    server: &'a Server,
    freed: Arc<Notify>,
}

impl Gates {
    /// Takes one of the `most` slots of `server`. Waits for `patience` if all are in use; `None` if none
    /// became free.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        server: &Server,
        most: usize,
        patience: Duration,
    ) -> Option<Slot> {
        if let Some(slot) = self.take(server, most) {
            return Some(slot);
        }
        let waiting = Waiting::new(self, server);
        let deadline = Instant::now() + patience;
        loop {
            let mut freed = pin!(waiting.freed.notified());
            // Registered before the look, so that a slot freed in between wakes this waiter.
            freed.as_mut().enable();
            if let Some(slot) = self.take(server, most) {
                return Some(slot);
            }
            timeout_at(deadline, freed).await.ok()?;
        }
    }

    fn take(self: &Arc<Self>, server: &Server, most: usize) -> Option<Slot> {
        let mut gates = self.gates();
        let gate = gates.entry(server.clone()).or_default();
        // A limit of 0 would refuse everything: the configuration does not allow it.
        if gate.used >= most.max(1) {
            return None;
        }
        gate.used += 1;
        Some(Slot { gates: self.clone(), server: server.clone() })
    }

    fn leave(&self, server: &Server, change: impl FnOnce(&mut Gate)) {
        let mut gates = self.gates();
        let Some(gate) = gates.get_mut(server) else { return };
        change(gate);
        if gate.used == 0 && gate.waiting == 0 {
            gates.remove(server);
        }
    }

    fn gates(&self) -> MutexGuard<'_, HashMap<Server, Gate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a> Waiting<'a> {
    fn new(gates: &'a Gates, server: &'a Server) -> Self {
        let mut entries = gates.gates();
        let gate = entries.entry(server.clone()).or_default();
        gate.waiting += 1;
        Self { gates, server, freed: gate.freed.clone() }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.gates.leave(self.server, |gate| gate.waiting -= 1);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.gates.leave(&self.server, |gate| {
            gate.used -= 1;
            gate.freed.notify_one();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(port: u16) -> Server {
        Server { host: "a".into(), port, is_tls: false }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_origin_is_waited_for_and_refused_in_the_end() {
        let (gates, patience) = (Arc::new(Gates::default()), Duration::from_secs(3));
        let first = gates.enter(&server(1), 1, patience).await.unwrap();
        assert!(gates.enter(&server(1), 1, patience).await.is_none());
        assert!(gates.enter(&server(2), 1, patience).await.is_some(), "another origin has its own");
        let full = server(1);
        let (waited, ()) = tokio::join!(gates.enter(&full, 1, patience), async { drop(first) });
        assert!(waited.is_some());
        drop(waited);
        assert!(gates.gates().is_empty());
    }
}
