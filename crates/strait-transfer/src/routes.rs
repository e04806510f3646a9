//! Table of routes, each with its egress device. All threads of the process share the state of a
//! device; a route belongs to an engine.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::device::Device;
use crate::route::{Advice, Reason, Route};

/// Limit of routes. Beyond it, the least recently used eighth is dropped.
const ROUTES_MAX: usize = 4096;
/// Limit of devices, by interface index in a namespace: containers come and go. Beyond it, all are
/// learned anew.
const DEVICES_MAX: usize = 256;

type SharedDevice = Arc<Mutex<Device>>;

/// Returns the process-wide state of a device.
fn device(index: u32) -> SharedDevice {
    static DEVICES: OnceLock<Mutex<HashMap<u32, SharedDevice>>> = OnceLock::new();
    let mut devices = lock(DEVICES.get_or_init(Mutex::default));
    if devices.len() >= DEVICES_MAX && !devices.contains_key(&index) {
        devices.clear();
    }
    devices.entry(index).or_default().clone()
}

/// Locks `shared` even if it is poisoned: costs and counts are usable after any panic.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Key of a route: own address, and address of the peer with port 0.
pub(crate) type Ends = (IpAddr, SocketAddr);

/// Route state that its senders share.
pub(crate) type SharedRoute = Rc<RefCell<RouteEntry>>;

/// Route with its device.
#[derive(Debug, Default)]
pub(crate) struct RouteEntry {
    route: Route,
    index: Option<u32>,
    /// Private state until the egress device is known.
    device: SharedDevice,
    used: u64,
}

impl RouteEntry {
    /// Sets the egress device by its interface index.
    pub(crate) fn set_interface(&mut self, index: u32) {
        if self.index.replace(index) != Some(index) {
            self.device = device(index);
        }
    }

    pub(crate) fn needs_device_check(&self, now: Duration) -> bool {
        self.route.needs_device_check(now)
    }

    /// Sets the capability of its device. The loopback has scatter-gather, but copies.
    pub(crate) fn set_device(&mut self, has_scatter_gather: bool, is_loopback: bool, now: Duration) {
        self.route.set_device(has_scatter_gather, now);
        lock(&self.device).set_capable(has_scatter_gather && !is_loopback);
    }

    pub(crate) fn copies_silently(&self) -> bool {
        self.route.copies_silently()
    }

    pub(crate) fn advise(&mut self, bytes: usize, now: Duration, alone: bool) -> Advice {
        let mut device = lock(&self.device);
        let advice = self.route.advise(&mut device, bytes, now, alone);
        device.sent(bytes);
        advice
    }

    pub(crate) fn begin_send(&mut self, now: Duration) -> Option<usize> {
        self.route.begin_send(&lock(&self.device), now)
    }

    pub(crate) fn abandon(&mut self) {
        self.route.abandon(&mut lock(&self.device));
    }

    pub(crate) fn probed(&mut self, copied: bool, now: Duration) {
        self.route.probed(&mut lock(&self.device), copied, now);
    }

    pub(crate) fn reported(&mut self, copied: bool) {
        self.route.reported(copied);
    }

    pub(crate) fn refuse(&mut self, reason: Reason, now: Duration) {
        self.route.refuse(&mut lock(&self.device), reason, now);
    }

    pub(crate) fn chooses_by_cost(&self) -> bool {
        self.route.chooses_by_cost()
    }

    pub(crate) fn wants_cost(&self, bytes: usize) -> bool {
        self.route.chooses_by_cost() && lock(&self.device).wants_cost(bytes)
    }

    pub(crate) fn cost(&mut self, bytes: usize, taken: usize, zero_copy: bool, took: Duration) {
        lock(&self.device).cost(bytes, taken, zero_copy, took);
    }
}

/// Routes of an engine.
#[derive(Debug, Default)]
pub(crate) struct RouteTable {
    ways: HashMap<Ends, SharedRoute>,
    /// Number of lookups so far.
    clock: u64,
}

impl RouteTable {
    pub(crate) fn find(&mut self, ends: Ends) -> SharedRoute {
        self.clock += 1;
        if self.ways.len() >= ROUTES_MAX && !self.ways.contains_key(&ends) {
            self.evict();
        }
        let way = self.ways.entry(ends).or_default();
        way.borrow_mut().used = self.clock;
        Rc::clone(way)
    }

    fn evict(&mut self) {
        let mut used: Vec<u64> = self.ways.values().map(|way| way.borrow().used).collect();
        let (_, last, _) = used.select_nth_unstable(ROUTES_MAX / 8);
        let last = *last;
        self.ways.retain(|_, way| way.borrow().used > last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(number: u32) -> Ends {
        (IpAddr::from([127, 0, 0, 1]), SocketAddr::from((number.to_be_bytes(), 0)))
    }

    #[test]
    fn full_table_drops_only_the_least_recently_used_routes() {
        let mut ways = RouteTable::default();
        let first = ways.find(ends(0));
        for number in 1..ROUTES_MAX as u32 {
            ways.find(ends(number));
        }
        let used = ways.find(ends(0));
        assert!(Rc::ptr_eq(&first, &used));
        ways.find(ends(1 << 20));
        assert!(ways.ways.len() > ROUTES_MAX / 2 && ways.ways.len() <= ROUTES_MAX);
        assert!(Rc::ptr_eq(&first, &ways.find(ends(0))) && !ways.ways.contains_key(&ends(1)));
    }

    #[test]
    fn routes_share_the_state_of_their_device() {
        let (mut one, mut other) = (RouteEntry::default(), RouteEntry::default());
        for way in [&mut one, &mut other] {
            way.set_interface(u32::MAX);
        }
        assert!(Arc::ptr_eq(&one.device, &other.device));
        other.set_interface(u32::MAX - 1);
        assert!(!Arc::ptr_eq(&one.device, &other.device));
    }
}
