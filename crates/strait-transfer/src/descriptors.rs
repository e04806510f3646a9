//! Budget of file descriptors that the connections and pipes of a process share, so that neither
//! has a fixed share.
//!
//! Connections may take any free descriptor. Pipes leave an eighth of the budget for new
//! connections, as long as more connections are allowed at all. Clients leave it too
//! ([`Budget::has_room_for_client`]): without a connection to an origin, their requests fail. A
//! [`Share`] returns its descriptors when it is dropped. Counts only; opens nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Divisor of the budget: pipes leave the result for new connections, and clients for those to
/// origins.
const RESERVED_DIVISOR: u64 = 8;

/// Limit of open descriptors, and their current number.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    limit_max: u64,
    connections_limit: u64,
    used: AtomicU64,
    /// Used descriptors of connections.
    used_by_connections: AtomicU64,
}

/// Descriptors in use; dropping it returns them.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    descriptors: u64,
    is_connection: bool,
}

impl Budget {
    /// Budget of `limit` descriptors, of which connections use at most `connections_limit`.
    pub fn new(limit: u64, connections_limit: u64) -> Arc<Self> {
        let (used, used_by_connections) = Default::default();
        Arc::new(Self { limit: limit.into(), limit_max: limit, connections_limit, used, used_by_connections })
    }

    /// Lowers the limit to what is used: the process has no other descriptor, as what does not
    /// share the budget has more than was left for it. One connection each of a client and an
    /// origin stay possible.
    pub fn note_exhausted(&self) {
        self.limit.fetch_min(self.used().max(2), Ordering::Relaxed);
    }

    /// Returns true after [`Budget::note_exhausted`], until the limit is the first one again.
    pub fn is_lowered(&self) -> bool {
        self.limit() < self.limit_max
    }

    /// Raises a lowered limit, as the process could open `free` more descriptors by now. It gets
    /// half of them, as others need some too.
    pub fn recover(&self, free: u64) {
        let limit = self.used().saturating_add(free / 2).min(self.limit_max);
        self.limit.fetch_max(limit, Ordering::Relaxed);
    }

    fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Descriptors in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes the descriptors of a connection; returns `None` if too few are free.
    pub fn take_for_connection(self: &Arc<Self>, descriptors: u64) -> Option<Share> {
        let mut share = self.take(descriptors, 0)?;
        self.used_by_connections.fetch_add(descriptors, Ordering::Relaxed);
        share.is_connection = true;
        Some(share)
    }

    /// Takes the descriptors of a pipe; returns `None` if too few would stay free for new
    /// connections.
    pub fn take_for_pipe(self: &Arc<Self>, descriptors: u64) -> Option<Share> {
        self.take(descriptors, self.reserved())
    }

    /// Returns true if a client's connection leaves enough descriptors for those to origins.
    pub fn has_room_for_client(&self) -> bool {
        let limit = self.limit();
        limit.saturating_sub(self.used()) > limit / RESERVED_DIVISOR
    }

    /// Returns true if fewer descriptors are free than pipes must leave.
    pub fn is_short(&self) -> bool {
        self.limit().saturating_sub(self.used()) < self.reserved()
    }

    /// Returns the number of descriptors that pipes must leave: those that new connections may
    /// still take, at most the reserved part.
    fn reserved(&self) -> u64 {
        let used = self.used_by_connections.load(Ordering::Relaxed);
        self.connections_limit.saturating_sub(used).min(self.limit() / RESERVED_DIVISOR)
    }

    fn take(self: &Arc<Self>, descriptors: u64, left: u64) -> Option<Share> {
        let fits = |used: u64| {
            let sum = used.checked_add(descriptors)?;
            (sum.checked_add(left)? <= self.limit()).then_some(sum)
        };
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(Share { budget: Arc::clone(self), descriptors, is_connection: false })
    }
}

impl Share {
    /// Splits off at most `descriptors` of a connection, for sockets that outlive it.
    #[must_use]
    pub fn split(&mut self, descriptors: u64) -> Self {
        let descriptors = descriptors.min(self.descriptors);
        self.descriptors -= descriptors;
        Self { budget: Arc::clone(&self.budget), descriptors, is_connection: self.is_connection }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.is_connection {
            self.budget.used_by_connections.fetch_sub(self.descriptors, Ordering::Relaxed);
        }
        self.budget.used.fetch_sub(self.descriptors, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_leave_an_eighth_of_the_descriptors_for_connections() {
        let budget = Budget::new(80, 80);
        let connection = budget.take_for_connection(2).unwrap();
        let pipes: Vec<_> = std::iter::from_fn(|| budget.take_for_pipe(2)).collect();
        assert_eq!((pipes.len(), budget.used()), (34, 70));
        assert!(!budget.is_short());
        let connections: Vec<_> = std::iter::from_fn(|| budget.take_for_connection(2)).collect();
        assert_eq!((connections.len(), budget.used()), (5, 80));
        assert!(budget.is_short() && budget.take_for_pipe(2).is_none());
        drop((pipes, connections));
        assert!(budget.take_for_pipe(2).is_some());
        drop(connection);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn pipes_take_the_last_descriptors_if_no_more_connections_are_allowed() {
        let budget = Budget::new(80, 72);
        let connections: Vec<_> = (0..36).map(|_| budget.take_for_connection(2).unwrap()).collect();
        let pipes: Vec<_> = std::iter::from_fn(|| budget.take_for_pipe(2)).collect();
        assert_eq!((connections.len(), pipes.len()), (36, 4));
    }

    #[test]
    fn clients_leave_an_eighth_of_the_descriptors() {
        let budget = Budget::new(80, 80);
        let clients: Vec<_> = std::iter::from_fn(|| {
            budget.has_room_for_client().then(|| budget.take_for_connection(1).unwrap())
        })
        .collect();
        assert_eq!(clients.len(), 70);
        let origin = budget.take_for_connection(10).unwrap();
        drop(clients);
        assert!(budget.has_room_for_client());
        drop(origin);
        assert!(Budget::new(1, 1).has_room_for_client());
    }

    #[test]
    fn exhausted_budget_keeps_its_lower_limit_until_descriptors_are_free() {
        let budget = Budget::new(80, 80);
        let clients: Vec<_> = (0..40).map(|_| budget.take_for_connection(1).unwrap()).collect();
        budget.note_exhausted();
        assert!(!budget.has_room_for_client() && budget.take_for_connection(1).is_none());
        drop(clients);
        let clients = std::iter::from_fn(|| {
            budget.has_room_for_client().then(|| budget.take_for_connection(1).unwrap())
        });
        let clients: Vec<_> = clients.collect();
        assert_eq!(clients.len(), 35);
        budget.recover(8);
        assert!(budget.is_lowered() && budget.take_for_connection(6).is_none());
        drop(clients);
        budget.recover(100);
        assert!(budget.is_lowered() && budget.take_for_connection(50).is_some());
        budget.recover(1000);
        assert!(!budget.is_lowered() && budget.take_for_connection(80).is_some());
        assert!(budget.take_for_connection(81).is_none());
    }

    #[test]
    fn socket_keeps_its_descriptor_after_its_connection() {
        let budget = Budget::new(8, 8);
        let mut connection = budget.take_for_connection(2).unwrap();
        let socket = connection.split(1);
        drop(connection);
        assert_eq!(budget.used(), 1);
        drop(socket);
        assert_eq!(budget.used(), 0);
    }
}
