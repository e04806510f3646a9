//! Line of a pool's `servers`: a server, a name with an address for each of its servers, or a
//! service with SRV records for them (RFC 2782).
//!
//! [`crate::config::pool`] makes members from entries. The addresses are found by `server::names`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use crate::config::member::MemberOptions;
use crate::config::server::Server;

/// Tier of backups: above all priorities of SRV records.
const BACKUP: u32 = 1 << 16;
/// Factor of the weights of SRV records, so that those of a target can be divided among its
/// addresses. Divisible by 1 to 7. With the greatest weight, 65535, and a percentage, the product
/// fits in 32 bits.
const WEIGHT_UNIT: u32 = 420;
/// Weight of a record of weight 0 beside records with others: "a very small chance of being
/// selected" (RFC 2782), a hundredth of weight 1.
const WEIGHT_OF_ZERO: u32 = 4;

/// Line of a pool's `servers`.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) server: Server,
    pub(crate) options: MemberOptions,
    pub(crate) state: Arc<EntryState>,
}

/// State of an entry, which all workers share. A reload keeps it.
#[derive(Debug, Default)]
pub(crate) struct EntryState {
    /// True if the operator has taken out all servers of the name.
    is_drained: AtomicBool,
    /// Lookups that have ended.
    pub(crate) lookups: AtomicU64,
    /// Lookups without an answer.
    pub(crate) failures: AtomicU64,
    /// Error of the last lookup.
    error: Mutex<Option<String>>,
    located: Mutex<Vec<Located>>,
    /// Set once a lookup has ended.
    looked_up: watch::Sender<bool>,
    /// Woken if a server cannot be reached.
    doubted: Notify,
}

/// Server of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Located {
    /// Position of its priority among those of the records; 0 for the first.
    pub(crate) tier: u16,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    /// Share of the requests; `None`: that of the entry.
    pub(crate) weight: Option<u32>,
}

/// Target of an SRV record with its addresses.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) priority: u16,
    pub(crate) weight: u16,
    pub(crate) port: u16,
    pub(crate) addresses: Vec<IpAddr>,
}

impl Entry {
    pub(crate) fn new(server: Server, options: MemberOptions) -> Self {
        Self { server, options, state: Arc::default() }
    }

    /// Returns true if its servers are looked up.
    pub(crate) fn is_followed(&self) -> bool {
        matches!(self.server, Server::Service(_)) || self.server.name().is_some()
    }

    /// Returns its servers with their options and tiers: itself while none is located.
    pub(super) fn servers(&self) -> Vec<(Server, MemberOptions, u32)> {
        let backup = if self.options.is_backup { BACKUP } else { 0 };
        let located = self.state.located();
        if located.is_empty() {
            return vec![(self.server.clone(), self.options, backup)];
        }
        let server = |it: &Located| {
            let weight = it.weight.unwrap_or(self.options.weight);
            let options = MemberOptions { weight, ..self.options };
            (self.server.at(it.address, it.port), options, backup + u32::from(it.tier))
        };
        located.iter().map(server).collect()
    }
}

impl EntryState {
    fn located(&self) -> MutexGuard<'_, Vec<Located>> {
        self.located.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the servers of the name, sorted.
    pub(super) fn locate(&self, located: Vec<Located>) {
        *self.located() = located;
    }

    /// Returns the addresses of its servers.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.located().iter().map(|it| it.address).collect()
    }

    /// Notes that a lookup has ended, and its error. It has failed if there was no answer.
    pub(crate) fn note_lookup(&self, error: Option<String>, has_failed: bool) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
        self.failures.fetch_add(has_failed.into(), Ordering::Relaxed);
        self.lookups.fetch_add(1, Ordering::Relaxed);
        self.looked_up.send_replace(true);
    }

    /// Returns the error of the last lookup.
    pub(crate) fn error(&self) -> Option<String> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until a lookup has ended, if none has yet.
    pub(crate) async fn looked_up(&self) {
        // The sender lives as long as this state.
        let _ = self.looked_up.subscribe().wait_for(|is_done| *is_done).await;
    }

    /// Asks for a lookup before the records expire: a server cannot be reached.
    pub(crate) fn doubt(&self) {
        self.doubted.notify_one();
    }

    /// Waits until a server could not be reached.
    pub(crate) async fn doubted(&self) {
        self.doubted.notified().await;
    }

    pub(crate) fn drain(&self, is_drained: bool) {
        self.is_drained.store(is_drained, Ordering::Relaxed);
    }

    pub(super) fn is_drained(&self) -> bool {
        self.is_drained.load(Ordering::Relaxed)
    }
}

/// Returns the servers of a name, at most `max`.
pub(crate) fn of_addresses(addresses: &[IpAddr], port: u16, max: usize) -> Vec<Located> {
    let sorted: BTreeSet<_> = addresses.iter().collect();
    let located = |address: &IpAddr| Located { tier: 0, address: *address, port, weight: None };
    sorted.into_iter().take(max).map(located).collect()
}

/// Returns the servers of a service, at most `max`: tiers by priority, and the weight of each
/// record divided among the addresses of its target.
pub(crate) fn of_targets(targets: &[Target], max: usize) -> Vec<Located> {
    let with_address = || targets.iter().filter(|target| !target.addresses.is_empty());
    let priorities: BTreeSet<_> = with_address().map(|target| target.priority).collect();
    let mut located = Vec::new();
    for (tier, priority) in (0..).zip(priorities) {
        let of_tier = || with_address().filter(|target| target.priority == priority);
        let is_equal = of_tier().all(|target| target.weight == 0);
        let mut servers: Vec<_> = of_tier().flat_map(|target| in_tier(tier, target, is_equal)).collect();
        servers.sort_unstable();
        // Two records for the same server: it has the weights of both.
        servers.dedup_by(|one, kept| {
            let is_twice = (one.address, one.port) == (kept.address, kept.port);
            if is_twice {
                let sum = kept.weight.unwrap_or(0).saturating_add(one.weight.unwrap_or(0));
                kept.weight = Some(sum.min(WEIGHT_UNIT * u32::from(u16::MAX)));
            }
            is_twice
        });
        let divisor = servers.iter().filter_map(|it| it.weight).fold(0, greatest_divisor).max(1);
        for server in &mut servers {
            server.weight = server.weight.map(|weight| weight / divisor);
        }
        located.extend(servers);
    }
    // A server of several priorities belongs to the first.
    let mut known = BTreeSet::new();
    located.retain(|it| known.insert((it.address, it.port)));
    located.truncate(max);
    located
}

/// Returns the servers of a target. With `is_equal`, all targets of the tier have weight 0.
fn in_tier(tier: u16, target: &Target, is_equal: bool) -> Vec<Located> {
    let whole = match u32::from(target.weight) {
        0 if is_equal => WEIGHT_UNIT,
        0 => WEIGHT_OF_ZERO,
        weight => weight * WEIGHT_UNIT,
    };
    let addresses: BTreeSet<_> = target.addresses.iter().collect();
    let share = (whole / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1)).max(1);
    let server =
        |address: &IpAddr| Located { tier, address: *address, port: target.port, weight: Some(share) };
    addresses.into_iter().map(server).collect()
}

fn greatest_divisor(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { greatest_divisor(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn target(priority: u16, weight: u16, port: u16, addresses: &[u8]) -> Target {
        let addresses = addresses.iter().map(|last| address(*last)).collect();
        Target { priority, weight, port, addresses }
    }

    /// Returns tier, last byte of the address, port and weight of each server.
    fn located(targets: &[Target]) -> Vec<(u16, u8, u16, u32)> {
        let last = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(_) => unreachable!(),
        };
        let servers = of_targets(targets, 256);
        servers.iter().map(|it| (it.tier, last(it.address), it.port, it.weight.unwrap())).collect()
    }

    #[test]
    fn targets_have_tiers_by_priority_and_shares_by_weight() {
        let targets = [target(20, 5, 80, &[4]), target(10, 30, 80, &[2]), target(10, 10, 81, &[1])];
        assert_eq!(located(&targets), [(0, 1, 81, 1), (0, 2, 80, 3), (1, 4, 80, 1)]);
        // The weight of a record is that of its target, whatever the number of its addresses.
        assert_eq!(
            located(&[target(0, 1, 80, &[1, 2, 2]), target(0, 1, 80, &[3])]),
            [(0, 1, 80, 1), (0, 2, 80, 1), (0, 3, 80, 2)]
        );
        assert_eq!(
            located(&[target(0, 0, 80, &[1]), target(0, 0, 80, &[2])]),
            [(0, 1, 80, 1), (0, 2, 80, 1)]
        );
        let rarely = located(&[target(0, 0, 80, &[1]), target(0, 1, 80, &[2])]);
        assert_eq!(rarely, [(0, 1, 80, 1), (0, 2, 80, 105)]);
    }

    #[test]
    fn server_with_several_records_occurs_once() {
        let twice = [target(0, 1, 80, &[1]), target(0, 2, 80, &[1]), target(0, 1, 80, &[2])];
        assert_eq!(located(&twice), [(0, 1, 80, 3), (0, 2, 80, 1)]);
        assert_eq!(located(&[target(1, 1, 80, &[1]), target(0, 1, 80, &[1])]), [(0, 1, 80, 1)]);
        // A target without an address has no tier.
        assert_eq!(located(&[target(0, 1, 80, &[]), target(9, 1, 80, &[1])]), [(0, 1, 80, 1)]);
        assert!(located(&[]).is_empty());
    }

    #[test]
    fn weights_and_servers_are_bounded() {
        let heavy = [target(0, u16::MAX, 80, &[1]), target(0, u16::MAX, 80, &[1]), target(0, 1, 80, &[2])];
        let greatest = located(&heavy).iter().map(|it| it.3).max().unwrap();
        assert!(greatest.checked_mul(100).is_some());
        let all: Vec<_> = (0..=255).map(address).collect();
        assert_eq!(of_addresses(&all, 80, 100).len(), 100);
        assert_eq!(of_targets(&[target(0, 1, 80, &[1, 2, 3])], 2).len(), 2);
        // The order of records does not matter.
        let reversed: Vec<_> = all.iter().rev().copied().collect();
        assert_eq!(of_addresses(&all, 80, 100), of_addresses(&reversed, 80, 100));
    }
}
