//! State of a route: whether the kernel copies zero-copy sends on it, learned from its reports. The
//! costs of sends, and the expectation for a new route, belong to the [`Device`]. Pure: times,
//! sizes and reports are arguments.
//!
//! Zero-copy is not requested for every send, because the kernel may copy anyway (loopback, veth, a
//! capture of the interface), and then the send costs more than send(2). Only the notification
//! reports that. docs/performance.md compares the adaptive sender with send(2) where the kernel
//! copies, and with the better of send(2) and registered SEND_ZC where it does not.
//!
//! ```text
//!            probe sent            not copied
//! Unknown ---------------> Probing -----------> ZeroCopy: each size class of the device
//!    ^                    |  ^ ^  \                |      uses the cheaper method
//!    +--------------------+  | |   \ copied       |
//!      no report             | |    v             |
//!                            | +-- Copying        |
//!                            |   after a pause,   |
//!                            |   doubled each     |
//!                            |   time             |
//!                            +--------------------+
//!                              more than 16 consecutive reports of copies, or 10 s have passed
//!
//! any state ---> Copying: a request was refused, or the device has no scatter-gather
//! ```
//!
//! With several zero-copy sends in flight on one connection, the kernel may report a copy that did
//! not happen, because it joins their notifications. A route is therefore judged by a probe that is
//! alone on its connection. Later reports of copies only lead to the next probe.
//!
//! If the device is known not to copy, a route uses zero-copy during its first probe, too. If the
//! device is known to copy, a new route is not probed until the device's pause is over. Before the
//! first report on a capable device, a route uses zero-copy during its probe as far as the device's
//! credit allows.
//!
//! If the device has no scatter-gather, the kernel copies and may not report it. Such a route is
//! not probed at all, and forced zero-copy sends on it count as copied, whatever is reported.

use std::time::Duration;

use crate::device::{CREDIT_BUFFER_BYTES_MIN, Device, Expectation};

/// Buffers smaller than this are always copied: page references, notifications and extra packets
/// cost more than the copy.
pub const THRESHOLD_MIN: usize = 4 << 10;
/// Buffers of at least this size go by zero-copy wherever the kernel does not copy them.
pub const THRESHOLD_MAX: usize = 1 << 20;

/// Pause of a copying route before its next probe; doubled after each probe with the same result.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_mins(1);
/// Copied sends before a copying route is probed again, however long they take: otherwise most
/// sends of a slow route would be probes.
const COPIED_SENDS: u32 = 64;
/// Consecutive reports of copies after which a zero-copy route is probed.
const COPY_REPORTS_MAX: u32 = 16;
/// Time after which a zero-copy route is probed again, because it may have changed. The probe waits
/// until the connection has no other zero-copy send.
const REPROBE_AFTER: Duration = Duration::from_secs(10);
/// Time after which a probe without a report is abandoned.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason why a route copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The kernel reported a copy: loopback, veth, or a capture of the interface.
    Copied,
    /// The egress device has no scatter-gather.
    NoScatterGather,
    /// The kernel had no memory for the request, or the locked-memory limit was reached.
    NoMemory,
    /// The kernel does not support zero-copy on this socket.
    Unsupported,
}

impl Reason {
    /// Returns the text for messages and accounts.
    pub fn text(self) -> &'static str {
        match self {
            Self::Copied => "the kernel copies on this route",
            Self::NoScatterGather => "the device of this route has no scatter-gather",
            Self::NoMemory => "no memory, or the locked-memory limit is reached",
            Self::Unsupported => "the socket does not support zero-copy",
        }
    }
}

/// Decision for a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Copy it.
    Copy,
    /// Send it by zero-copy.
    ZeroCopy,
    /// Send it by zero-copy, and no other on the connection until its report.
    Probe,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Unknown,
    /// A probe that was sent at `since` awaits its report. Other buffers go by zero-copy meanwhile
    /// if no copy is expected.
    Probing {
        since: Duration,
        expects_zero_copy: bool,
    },
    ZeroCopy {
        since: Duration,
        copy_reports: u32,
    },
    /// Everything is copied until `until`, and for at least `sends` more sends.
    Copying {
        until: Duration,
        sends: u32,
        reason: Reason,
    },
}

/// Capability of the egress device, and the time of the check.
#[derive(Clone, Copy, Debug)]
struct Offload {
    has_scatter_gather: bool,
    checked_at: Duration,
}

/// State of a route. Times are relative to any fixed moment.
#[derive(Clone, Debug)]
pub struct Route {
    state: State,
    device: Option<Offload>,
    pause: Duration,
}

impl Default for Route {
    fn default() -> Self {
        Self { state: State::Unknown, device: None, pause: PAUSE_MIN }
    }
}

impl Route {
    /// Returns true if the egress device must be looked up before a zero-copy send: it never was,
    /// or it may have changed.
    pub fn needs_device_check(&self, now: Duration) -> bool {
        self.device.is_none_or(|device| {
            now.saturating_sub(device.checked_at)
                >= if device.has_scatter_gather { REPROBE_AFTER } else { PAUSE_MIN }
        })
    }

    /// Sets whether the device has scatter-gather. Without it everything is copied for a while.
    pub fn set_device(&mut self, has_scatter_gather: bool, now: Duration) {
        self.device = Some(Offload { has_scatter_gather, checked_at: now });
        if !has_scatter_gather {
            self.copy(Reason::NoScatterGather, now);
        }
    }

    /// Returns true if the kernel copies zero-copy sends without reporting it.
    pub fn copies_silently(&self) -> bool {
        self.device.is_some_and(|device| !device.has_scatter_gather)
    }

    /// Decides about a buffer of `bytes` at the time `now`; `alone` means that the connection has
    /// no other zero-copy send in flight.
    pub fn advise(&mut self, device: &mut Device, bytes: usize, now: Duration, alone: bool) -> Advice {
        if bytes < THRESHOLD_MIN {
            return Advice::Copy;
        }
        match self.state {
            State::Unknown => self.begin(device, bytes, now, alone),
            State::Probing { since, .. } if now.saturating_sub(since) > REPORT_TIMEOUT => {
                self.begin(device, bytes, now, alone)
            }
            // The route has reports of its own, which count more than the device's.
            State::Copying { until, .. } if now >= until => self.probe(device, now, alone, false),
            State::Copying { .. } => Advice::Copy,
            State::Probing { expects_zero_copy: false, .. } => during_probe(device, bytes, now),
            State::ZeroCopy { copy_reports, .. } if copy_reports > COPY_REPORTS_MAX => {
                self.probe(device, now, alone, false)
            }
            State::ZeroCopy { since, .. } if alone && now.saturating_sub(since) > REPROBE_AFTER => {
                self.probe(device, now, alone, true)
            }
            State::ZeroCopy { .. } | State::Probing { expects_zero_copy: true, .. } => cheaper(device, bytes),
        }
    }

    /// Decides for a route without reports.
    fn begin(&mut self, device: &mut Device, bytes: usize, now: Duration, alone: bool) -> Advice {
        match device.expectation(bytes, now) {
            Expectation::Copies => Advice::Copy,
            Expectation::ZeroCopy if !alone => cheaper(device, bytes),
            expectation => {
                let advice = self.probe(device, now, alone, expectation == Expectation::ZeroCopy);
                if expectation == Expectation::OnCredit && advice == Advice::Probe {
                    device.spend_credit(bytes);
                }
                advice
            }
        }
    }

    fn probe(&mut self, device: &mut Device, now: Duration, alone: bool, expects_zero_copy: bool) -> Advice {
        if !alone {
            // The sends in flight must be reported first.
            return Advice::Copy;
        }
        device.probes(now);
        self.state = State::Probing { since: now, expects_zero_copy };
        Advice::Probe
    }

    /// Returns the reason why everything is copied; `None` while zero-copy is used or undecided.
    pub fn copy_reason(&self) -> Option<Reason> {
        match self.state {
            State::Copying { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Counts a send, and returns the size from which zero-copy is considered for it; `None` if
    /// everything is copied.
    pub fn begin_send(&mut self, device: &Device, now: Duration) -> Option<usize> {
        let expectation = device.expectation(CREDIT_BUFFER_BYTES_MIN, now);
        let copies = match &mut self.state {
            State::Copying { until, sends, .. } => {
                *sends = sends.saturating_sub(1);
                now < *until || *sends > 0
            }
            State::Probing { since, expects_zero_copy } => {
                let waits = !*expects_zero_copy && now.saturating_sub(*since) <= REPORT_TIMEOUT;
                waits && !matches!(expectation, Expectation::OnCredit | Expectation::ZeroCopy)
            }
            State::Unknown => expectation == Expectation::Copies,
            State::ZeroCopy { .. } => false,
        };
        (!copies).then(|| device.threshold())
    }

    /// Notes that a probe has no report, because the socket was full or the connection ended.
    pub fn abandon(&mut self, device: &mut Device) {
        if matches!(self.state, State::Probing { .. }) {
            self.state = State::Unknown;
            device.abandon();
        }
    }

    /// Takes the report of a probe.
    pub fn probed(&mut self, device: &mut Device, copied: bool, now: Duration) {
        if self.copies_silently() {
            // A lookup during the probe has shown that the device has no scatter-gather, so the
            // report means nothing.
            device.abandon();
            return;
        }
        device.probed(copied, now);
        if copied {
            self.copy(Reason::Copied, now);
        } else {
            let state = State::ZeroCopy { since: now, copy_reports: 0 };
            *self = Self { state, device: self.device, ..Self::default() };
        }
    }

    /// Takes the report of a send that was not a probe.
    pub fn reported(&mut self, was_copied: bool) {
        if let State::ZeroCopy { copy_reports, .. } = &mut self.state {
            *copy_reports = if was_copied { *copy_reports + 1 } else { 0 };
        }
    }

    /// Handles a refused zero-copy send: copies for a while. If it was a probe, there will be no
    /// report.
    pub fn refuse(&mut self, device: &mut Device, reason: Reason, now: Duration) {
        self.abandon(device);
        self.copy(reason, now);
    }

    fn copy(&mut self, reason: Reason, now: Duration) {
        let sends = if reason == Reason::Copied { COPIED_SENDS } else { 0 };
        self.state = State::Copying { until: now + self.pause, sends, reason };
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// Returns true if the method is chosen by the device's costs, which are then measured.
    pub fn chooses_by_cost(&self) -> bool {
        matches!(self.state, State::ZeroCopy { .. } | State::Probing { expects_zero_copy: true, .. })
    }
}

/// Decides about a buffer during the first probe of its route.
fn during_probe(device: &mut Device, bytes: usize, now: Duration) -> Advice {
    match device.expectation(bytes, now) {
        Expectation::ZeroCopy => cheaper(device, bytes),
        Expectation::OnCredit => {
            device.spend_credit(bytes);
            Advice::ZeroCopy
        }
        Expectation::Unknown | Expectation::Copies => Advice::Copy,
    }
}

fn cheaper(device: &Device, bytes: usize) -> Advice {
    if device.prefers_zero_copy(bytes) { Advice::ZeroCopy } else { Advice::Copy }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// Returns a route with a successful probe.
    fn zero_copy() -> (Route, Device) {
        let (mut route, mut device) = (Route::default(), Device::default());
        assert_eq!(route.advise(&mut device, 64 * KIB, at(0), true), Advice::Probe);
        route.probed(&mut device, false, at(1));
        (route, device)
    }

    #[test]
    fn only_one_large_buffer_at_a_time_is_a_probe() {
        let (mut route, mut device) = (Route::default(), Device::default());
        assert_eq!(route.advise(&mut device, KIB, at(0), true), Advice::Copy);
        assert_eq!(route.advise(&mut device, 64 * KIB, at(0), false), Advice::Copy);
        assert_eq!(route.advise(&mut device, 64 * KIB, at(0), true), Advice::Probe);
        assert_eq!(route.advise(&mut device, 64 * KIB, at(1), true), Advice::Copy);
        assert_eq!(route.advise(&mut device, 64 * KIB, at(6000), true), Advice::Probe);
    }

    #[test]
    fn pause_of_a_copying_route_doubles() {
        let (mut route, mut device) = (Route::default(), Device::default());
        let mut now = 0;
        for pause in [100, 200, 400, 800] {
            assert_eq!(route.advise(&mut device, 64 * KIB, at(now), true), Advice::Probe);
            route.probed(&mut device, true, at(now));
            assert_eq!(route.copy_reason(), Some(Reason::Copied));
            assert_eq!(route.advise(&mut device, 64 * KIB, at(now + pause - 1), true), Advice::Copy);
            now += pause;
        }
    }

    #[test]
    fn slow_copying_route_is_probed_once_in_many_sends() {
        let (mut route, mut device) = (Route::default(), Device::default());
        assert_eq!(route.advise(&mut device, 64 * KIB, at(0), true), Advice::Probe);
        route.probed(&mut device, true, at(0));
        for send in 1..u64::from(COPIED_SENDS) {
            assert!(route.begin_send(&device, at(1000 * send)).is_none());
        }
        assert!(route.begin_send(&device, at(100_000)).is_some());
    }

    #[test]
    fn route_without_scatter_gather_copies_until_the_device_has_it() {
        let (mut route, mut device) = (Route::default(), Device::default());
        assert!(route.needs_device_check(at(0)));
        route.set_device(false, at(0));
        assert_eq!(route.copy_reason(), Some(Reason::NoScatterGather));
        assert!(route.copies_silently() && route.begin_send(&device, at(99)).is_none());
        assert_eq!(route.advise(&mut device, 64 * KIB, at(99), true), Advice::Copy);
        // The device is looked up again before the next zero-copy send, after longer pauses each
        // time.
        assert!(!route.needs_device_check(at(99)) && route.needs_device_check(at(100)));
        route.set_device(false, at(100));
        assert_eq!(route.advise(&mut device, 64 * KIB, at(299), true), Advice::Copy);
        route.set_device(true, at(300));
        assert_eq!(route.advise(&mut device, 64 * KIB, at(300), true), Advice::Probe);
        route.probed(&mut device, false, at(301));
        assert!(!route.copies_silently() && !route.needs_device_check(at(10_299)));
        assert!(route.needs_device_check(at(10_300)), "it may have been switched off");
        route.set_device(false, at(10_300));
        assert_eq!(route.advise(&mut device, THRESHOLD_MAX, at(10_300), false), Advice::Copy);
        // The report of an earlier probe changes nothing.
        route.probed(&mut device, false, at(10_301));
        assert_eq!(route.copy_reason(), Some(Reason::NoScatterGather));
    }

    #[test]
    fn only_a_probe_ends_zero_copy_after_reports_of_copies() {
        let (mut route, mut device) = zero_copy();
        for _ in 0..=COPY_REPORTS_MAX {
            route.reported(true);
        }
        assert_eq!(route.copy_reason(), None);
        // The sends in flight must be reported first.
        assert_eq!(route.advise(&mut device, THRESHOLD_MAX, at(2), false), Advice::Copy);
        assert_eq!(route.advise(&mut device, THRESHOLD_MAX, at(3), true), Advice::Probe);
        route.probed(&mut device, false, at(4));
        assert_eq!(route.advise(&mut device, THRESHOLD_MAX, at(5), false), Advice::ZeroCopy);
        for _ in 0..COPY_REPORTS_MAX {
            route.reported(true);
        }
        route.reported(false);
        route.reported(true);
        assert_eq!(route.advise(&mut device, THRESHOLD_MAX, at(6), false), Advice::ZeroCopy);
    }

    #[test]
    fn credit_allows_zero_copy_during_first_probes_until_a_copy() {
        let (mut route, mut other, mut late) = (Route::default(), Route::default(), Route::default());
        let mut device = Device::default();
        device.set_capable(true);
        assert_eq!(route.advise(&mut device, 64 * KIB, at(0), true), Advice::Probe);
        assert_eq!(route.advise(&mut device, 64 * KIB, at(0), false), Advice::ZeroCopy);
        assert_eq!(other.advise(&mut device, 64 * KIB, at(0), true), Advice::Probe);
        assert!(other.begin_send(&device, at(0)).is_some() && late.begin_send(&device, at(0)).is_some());
        route.probed(&mut device, true, at(1));
        assert_eq!(other.advise(&mut device, 64 * KIB, at(1), false), Advice::Copy);
        assert_eq!(late.advise(&mut device, 64 * KIB, at(1), true), Advice::Copy);
        assert!(other.begin_send(&device, at(1)).is_none() && late.begin_send(&device, at(1)).is_none());
    }

    #[test]
    fn report_of_another_route_ends_the_wait() {
        let (mut route, mut other, mut device) = (Route::default(), Route::default(), Device::default());
        assert_eq!(route.advise(&mut device, 64 * KIB, at(0), true), Advice::Probe);
        other.probed(&mut device, false, at(1));
        assert_eq!(route.advise(&mut device, 64 * KIB, at(1), false), Advice::ZeroCopy);
    }

    #[test]
    fn abandoned_probe_is_repeated() {
        let (mut route, mut device) = (Route::default(), Device::default());
        assert_eq!(route.advise(&mut device, 64 * KIB, at(0), true), Advice::Probe);
        route.abandon(&mut device);
        assert_eq!(route.advise(&mut device, 64 * KIB, at(1), true), Advice::Probe);
    }

    #[test]
    fn refused_probe_leaves_the_device_to_other_routes() {
        let (mut refused, mut other, mut device) = (Route::default(), Route::default(), Device::default());
        assert_eq!(refused.advise(&mut device, 64 * KIB, at(0), true), Advice::Probe);
        assert_eq!(other.advise(&mut device, 64 * KIB, at(0), true), Advice::Copy);
        refused.refuse(&mut device, Reason::NoMemory, at(1));
        refused.abandon(&mut device);
        assert_eq!(refused.copy_reason(), Some(Reason::NoMemory));
        assert_eq!(other.advise(&mut device, 64 * KIB, at(1), true), Advice::Probe);
        // A refused send that was not a probe does not affect another route's probe.
        refused.refuse(&mut device, Reason::NoMemory, at(2));
        assert_eq!(Route::default().advise(&mut device, 64 * KIB, at(2), true), Advice::Copy);
    }

    #[test]
    fn routes_are_probed_again_after_success_and_refusal() {
        let (mut route, mut device) = zero_copy();
        assert_eq!(route.advise(&mut device, THRESHOLD_MAX, at(20_000), true), Advice::Probe);
        route.refuse(&mut device, Reason::NoMemory, at(20_001));
        assert_eq!(route.copy_reason(), Some(Reason::NoMemory));
        assert_eq!(route.advise(&mut device, THRESHOLD_MAX, at(20_050), true), Advice::Copy);
        assert_eq!(route.advise(&mut device, THRESHOLD_MAX, at(20_102), true), Advice::Probe);
    }
}
