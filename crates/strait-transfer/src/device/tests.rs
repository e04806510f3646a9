//! Learning of a device's state, and loads of a server with simulated costs.

use super::*;
use crate::route::{Advice, Route};

const KIB: usize = 1024;

/// Delays of a report: a few packets' times on a local network, and on a longer path.
const REPORT: Duration = Duration::from_micros(200);
const LATE_REPORT: Duration = Duration::from_millis(3);

/// Peers behind one device.
struct Simulation {
    device: Device,
    /// Route of each peer, and the time of its probe's report.
    routes: Vec<(Route, Option<Duration>)>,
    now: Duration,
    copies: bool,
    report: Duration,
    random: u64,
}

impl Simulation {
    fn new(peers: usize, copies: bool, report: Duration) -> Self {
        let routes = (0..peers).map(|_| (Route::default(), None)).collect();
        let mut device = Device::default();
        device.set_capable(true);
        Self { device, routes, now: Duration::ZERO, copies, report, random: 1 }
    }

    /// Returns a pseudo-random number below `limit`.
    fn random(&mut self, limit: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % limit
    }

    /// Sends to a peer. Returns the bytes sent by zero-copy.
    fn send(&mut self, peer: usize, bytes: usize) -> usize {
        let noise = 100 + self.random(60);
        for (route, probe) in &mut self.routes {
            if let Some(due) = probe.take_if(|due| *due <= self.now) {
                route.probed(&mut self.device, self.copies, due);
            }
        }
        let (route, probe) = &mut self.routes[peer];
        let asked = route.begin_send(&self.device, self.now).is_some_and(|least| bytes >= least);
        let advice = if asked {
            route.advise(&mut self.device, bytes, self.now, probe.is_none())
        } else {
            Advice::Copy
        };
        if advice == Advice::Probe {
            *probe = Some(self.now + self.report);
        }
        let zero_copy = advice != Advice::Copy;
        self.device.sent(bytes);
        if route.chooses_by_cost() && self.device.wants_cost(bytes) {
            // Zero-copy costs 4 us, a copy one nanosecond per six bytes; chance adds up to three
            // fifths.
            let ns = if zero_copy { 4000 } else { bytes as u64 / 6 } * noise / 100;
            self.device.cost(bytes, bytes, zero_copy, Duration::from_nanos(ns));
        }
        if zero_copy { bytes } else { 0 }
    }

    /// Sends `sends` times to each peer in turn, with a pause after each send. Returns the
    /// zero-copy share in percent.
    fn share(&mut self, sends: usize, bytes: usize, pause: Duration) -> usize {
        let (mut zero_copy, peers) = (0, self.routes.len());
        for send in 0..sends * peers {
            zero_copy += self.send(send % peers, bytes);
            self.now += pause;
        }
        zero_copy * 100 / (sends * peers * bytes)
    }
}

#[test]
fn short_connections_use_zero_copy_unless_the_kernel_copies() {
    let us = Duration::from_micros;
    let loads = [
        (64, 64, 256 * KIB, us(20), 90),
        (44, 32, 64 * KIB, us(20), 85),
        (64, 4, KIB * KIB, us(50), 85),
        (1, 100, 256 * KIB, us(50_000), 85),
        (1, 150, 64 * KIB, us(100_000), 85),
        (1, 400, 64 * KIB, us(50_000), 85),
        (1, 1000, 256 * KIB, us(200_000), 85),
    ];
    for (peers, sends, bytes, pause, least) in loads {
        for report in [REPORT, LATE_REPORT] {
            let share = Simulation::new(peers, false, report).share(sends, bytes, pause);
            assert!(share >= least, "{peers} x {sends} of {bytes}, {report:?}: {share} %");
        }
        let share = Simulation::new(peers, true, REPORT).share(sends, bytes, pause);
        assert!(share <= 3, "{peers} x {sends} of {bytes} where the kernel copies: {share} %");
    }
}

/// Measures a size class until a method is chosen. Returns the number of measured sends.
fn teach(device: &mut Device, bytes: usize, zero_copy_ns: u64, copied_ns: u64) -> u32 {
    let mut samples = 0;
    while !is_decided(device, bytes) || device.wants_cost(bytes) {
        if device.wants_cost(bytes) {
            let zero_copy = device.prefers_zero_copy(bytes);
            let ns = if zero_copy { zero_copy_ns } else { copied_ns };
            device.cost(bytes, bytes, zero_copy, Duration::from_nanos(ns));
            samples += 1;
        } else {
            device.sent(bytes);
        }
    }
    samples
}

#[test]
fn each_size_class_uses_the_cheaper_method() {
    let mut device = Device::default();
    teach(&mut device, 4 * KIB, 5000, 1000);
    teach(&mut device, 8 * KIB, 5000, 2000);
    teach(&mut device, 64 * KIB, 5000, 11_000);
    assert!(
        !device.prefers_zero_copy(4 * KIB)
            && device.prefers_zero_copy(64 * KIB)
            && device.prefers_zero_copy(2 * THRESHOLD_MAX)
    );
    assert_eq!(device.threshold(), 16 * KIB);
}

#[test]
fn equal_costs_are_compared_for_a_while_then_zero_copy_is_used() {
    let mut device = Device::default();
    assert!(teach(&mut device, 64 * KIB, 5000, 5000) <= TRIALS_MAX * TRIAL_SENDS);
    assert!(device.prefers_zero_copy(64 * KIB));
}

#[test]
fn cheaper_method_is_found_again_without_a_reset() {
    let mut device = Device::default();
    teach(&mut device, 64 * KIB, 5000, 11_000);
    let mut copied = 0;
    for _ in 0..20 {
        for _ in 0..RECHECK_AFTER {
            copied += u32::from(!device.prefers_zero_copy(64 * KIB));
            device.sent(64 * KIB);
        }
        teach(&mut device, 64 * KIB, 11_000, 5000);
    }
    assert!(copied > 0 && !device.prefers_zero_copy(64 * KIB), "{copied}");
}

#[test]
fn slow_start_does_not_mislead_the_comparison() {
    // For every send at which the costs fall by a factor, and for either method at that send.
    for fast in 0..500 {
        let mut device = Device::default();
        for send in 0..2000 {
            let zero_copy = device.prefers_zero_copy(64 * KIB);
            let us = if zero_copy { 5 } else { 11 } * if send < fast { 7 } else { 1 };
            device.sent(64 * KIB);
            if device.wants_cost(64 * KIB) {
                device.cost(64 * KIB, 64 * KIB, zero_copy, Duration::from_micros(us));
            }
        }
        assert!(!class_prefers_copy(&device), "{fast}");
    }
}

fn is_decided(device: &Device, bytes: usize) -> bool {
    device.classes[class_of(bytes).unwrap()].is_decided
}

fn class_prefers_copy(device: &Device) -> bool {
    device.classes[class_of(64 * KIB).unwrap()].prefers_copy()
}

#[test]
fn credit_is_limited_and_ends_with_the_first_copy() {
    let (mut device, now) = (Device::default(), Duration::ZERO);
    assert_eq!(device.expectation(64 * KIB, now), Expectation::Unknown, "its capability is unknown");
    device.set_capable(true);
    assert_eq!(device.expectation(CREDIT_BUFFER_BYTES_MIN - 1, now), Expectation::Unknown);
    device.probes(now);
    assert_eq!(device.expectation(CREDIT_BUFFER_BYTES_MIN - 1, now), Expectation::Copies);
    for _ in 0..CREDIT_SENDS_MAX {
        assert_eq!(device.expectation(CREDIT_BUFFER_BYTES_MIN, now), Expectation::OnCredit);
        device.spend_credit(CREDIT_BUFFER_BYTES_MIN);
    }
    assert_eq!(device.expectation(CREDIT_BUFFER_BYTES_MIN, now), Expectation::Copies);

    let mut device = Device::default();
    device.set_capable(true);
    device.spend_credit(CREDIT_BYTES_MAX);
    device.probes(now);
    assert_eq!(device.expectation(CREDIT_BUFFER_BYTES_MIN, now), Expectation::Copies);

    let mut device = Device::default();
    device.set_capable(true);
    device.probes(now);
    device.probed(true, now);
    device.set_capable(true);
    assert_eq!(device.expectation(64 * KIB, PAUSE_MIN), Expectation::Unknown);
    device.probes(PAUSE_MIN);
    assert_eq!(device.expectation(64 * KIB, PAUSE_MIN), Expectation::Copies);
}

#[test]
fn concurrent_reports_of_copies_count_once() {
    let mut device = Device::default();
    device.set_capable(true);
    for _ in 0..CREDIT_SENDS_MAX {
        device.probes(Duration::ZERO);
    }
    for _ in 0..CREDIT_SENDS_MAX {
        device.probed(true, Duration::ZERO);
    }
    assert_eq!(device.expectation(64 * KIB, PAUSE_MIN), Expectation::Unknown);
}

#[test]
fn device_copies_after_several_consecutive_routes_did() {
    let mut device = Device::default();
    device.probed(false, Duration::ZERO);
    for _ in 1..COPIED_MAX {
        device.probed(true, Duration::ZERO);
        assert_eq!(device.expectation(64 * KIB, Duration::ZERO), Expectation::ZeroCopy);
    }
    device.probed(true, Duration::ZERO);
    assert_eq!(device.expectation(64 * KIB, Duration::ZERO), Expectation::Copies);
    assert_eq!(device.expectation(64 * KIB, PAUSE_MIN), Expectation::Unknown);
    device.probed(false, PAUSE_MIN);
    assert_eq!(device.expectation(64 * KIB, PAUSE_MIN), Expectation::ZeroCopy);
}
