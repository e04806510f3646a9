//! Whether the kernel copies what is lent on a route, learned from its reports. What sends cost,
//! and what to expect of a new route, is the [`Device`]'s. Pure: times, sizes and reports are
//! arguments.
//!
//! ```text
//!            probe sent            not copied
//! Unknown ---------------> Probing -----------> ZeroCopy: each size class of the device takes the cheaper way
//!                          ^     \  copied          |
//!                          |      v                 | so many reports of copies in a row,
//!                          +---- Copying <----------+ or no memory
//!                        after a while, longer each time
//! ```
//!
//! With several zero-copy sends in flight on one connection the kernel may report a copy that did
//! not happen, where it joins their notifications. So a route is judged by a probe that is alone on
//! its connection; later reports only raise the suspicion that asks for the next probe.
//!
//! Where the device is known not to copy, a route lends beside its first probe, too; where it is
//! known to copy, a new route is not probed until the device is tried again. Before the first
//! report of a hopeful device it lends beside the probe as far as the device's credit go.
//!
//! Where the device has no scatter-gather the kernel copies and may not report it: such a route is
//! not probed at all, and what is lent on it nevertheless counts as copied, whatever the report
//! says.

use std::time::Duration;

use crate::device::{CREDIT_BUFFER_BYTES_MIN, Device, Expectation};

/// Buffers smaller than this are never lent, whatever they cost: pages, notifications and packets
/// are worth more.
pub const THRESHOLD_MIN: usize = 4 << 10;
/// Buffers of this size and above are lent wherever the kernel does not copy them.
pub const THRESHOLD_MAX: usize = 1 << 20;

/// SendOptions long a route stays with copying before it is probed again; doubled with each probe that says
/// the same.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_mins(1);
/// Sends that are copied before it is probed again, however long they take: of a slow route's few
/// sends most would be probes.
const COPIED_SENDS: u32 = 64;
/// So many reports of copies in a row ask for a probe.
const COPY_REPORTS_MAX: u32 = 16;
/// A route that is zero-copy is probed as often as this all the same, when nothing else is lent on
/// it: it may have changed.
const REPROBE_AFTER: Duration = Duration::from_secs(10);
/// A probe whose report does not come is given up after this.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a route copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The kernel reported that it copied: loopback, veth, or somebody captures.
    Copied,
    /// The device by which the route leaves does not take a packet from several places.
    NoScatterGather,
    /// It had no memory for the request, or the locked-memory limit was reached.
    NoMemory,
    /// It does not do it on this socket.
    Unsupported,
}

impl Reason {
    /// For people and for accounts.
    pub fn text(self) -> &'static str {
        match self {
            Self::Copied => "the kernel copies on this route",
            Self::NoScatterGather => "the device of this route has no scatter-gather",
            Self::NoMemory => "no memory, or the locked-memory limit is reached",
            Self::Unsupported => "the socket does no zero-copy",
        }
    }
}

/// What to do with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Copy it.
    Copy,
    /// Lend it.
    ZeroCopy,
    /// Lend it alone: no other lent buffer is to be in flight on the connection until its report.
    Probe,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Unknown,
    /// A probe is under way since then; the others are lent meanwhile if no copy is expected.
    Probing {
        since: Duration,
        expects_zero_copy: bool,
    },
    ZeroCopy {
        since: Duration,
        copy_reports: u32,
    },
    /// Until then, and for so many sends more.
    Copying {
        until: Duration,
        sends: u32,
        reason: Reason,
    },
}

/// What was seen of the device by which a route leaves.
#[derive(Clone, Copy, Debug)]
struct Offload {
    gathers: bool,
    seen: Duration,
}

/// What is known of a route. Times are since any fixed moment.
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
    /// Whether somebody is to look at the device before something is lent: nobody has, or it may
    /// have changed.
    pub fn needs_device_check(&self, now: Duration) -> bool {
        self.device.is_none_or(|device| {
            now.saturating_sub(device.seen) >= if device.gathers { REPROBE_AFTER } else { PAUSE_MIN }
        })
    }

    /// Whether the device has scatter-gather; without it all is copied for a while.
    pub fn set_device(&mut self, gathers: bool, now: Duration) {
        self.device = Some(Offload { gathers, seen: now });
        if !gathers {
            self.copy(Reason::NoScatterGather, now);
        }
    }

    /// Whether what is lent is copied, whatever the kernel reports.
    pub fn copies_silently(&self) -> bool {
        self.device.is_some_and(|device| !device.gathers)
    }

    /// What to do with a buffer of `bytes` at the time `now`; `alone` says that nothing is lent on
    /// the connection.
    pub fn advise(&mut self, device: &mut Device, bytes: usize, now: Duration, alone: bool) -> Advice {
        if bytes < THRESHOLD_MIN {
            return Advice::Copy;
        }
        match self.state {
            State::Unknown => self.begin(device, bytes, now, alone),
            State::Probing { since, .. } if now.saturating_sub(since) > REPORT_TIMEOUT => {
                self.begin(device, bytes, now, alone)
            }
            // It is known better than its device.
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

    /// A route of which nothing is known.
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
            // What is in flight comes back first.
            return Advice::Copy;
        }
        device.probes(now);
        self.state = State::Probing { since: now, expects_zero_copy };
        Advice::Probe
    }

    /// Why everything is copied; `None` while buffers are lent, or it is not known yet.
    pub fn copy_reason(&self) -> Option<Reason> {
        match self.state {
            State::Copying { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Size from which buffers are worth asking about; `None` while all are copied. To be asked
    /// before each send.
    pub fn threshold(&mut self, device: &Device, now: Duration) -> Option<usize> {
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

    /// A probe told nothing: there was no room for it, or the connection ended.
    pub fn abandon(&mut self, device: &mut Device) {
        if matches!(self.state, State::Probing { .. }) {
            self.state = State::Unknown;
            device.abandon();
        }
    }

    /// The report of a probe.
    pub fn probed(&mut self, device: &mut Device, copied: bool, now: Duration) {
        if self.copies_silently() {
            // The device was looked at meanwhile, and knows better.
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

    /// The report of a buffer that was lent beside others.
    pub fn reported(&mut self, was_copied: bool) {
        if let State::ZeroCopy { copy_reports, .. } = &mut self.state {
            *copy_reports = if was_copied { *copy_reports + 1 } else { 0 };
        }
    }

    /// The kernel refused to lend: copy for a while. It may have been a probe, which will have no
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

    /// Whether the way is the device's to choose, so that the cost of a send is worth knowing.
    pub fn chooses_by_cost(&self) -> bool {
        matches!(self.state, State::ZeroCopy { .. } | State::Probing { expects_zero_copy: true, .. })
    }
}

/// What to do with a buffer beside the first probe of its route.
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

    /// A route that a probe found to be zero-copy.
    fn zero_copy() -> (Route, Device) {
        let (mut route, mut device) = (Route::default(), Device::default());
        assert_eq!(route.advise(&mut device, 64 * KIB, at(0), true), Advice::Probe);
        route.probed(&mut device, false, at(1));
        (route, device)
    }

    #[test]
    fn one_probe_is_under_way_at_a_time_and_small_buffers_are_none() {
        let (mut route, mut device) = (Route::default(), Device::default());
        assert_eq!(route.advise(&mut device, KIB, at(0), true), Advice::Copy);
        assert_eq!(route.advise(&mut device, 64 * KIB, at(0), false), Advice::Copy);
        assert_eq!(route.advise(&mut device, 64 * KIB, at(0), true), Advice::Probe);
        assert_eq!(route.advise(&mut device, 64 * KIB, at(1), true), Advice::Copy);
        assert_eq!(route.advise(&mut device, 64 * KIB, at(6000), true), Advice::Probe);
    }

    #[test]
    fn a_route_that_copies_is_left_alone_longer_each_time() {
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
    fn a_slow_route_that_copies_is_probed_once_in_many_sends() {
        let (mut route, mut device) = (Route::default(), Device::default());
        assert_eq!(route.advise(&mut device, 64 * KIB, at(0), true), Advice::Probe);
        route.probed(&mut device, true, at(0));
        for send in 1..u64::from(COPIED_SENDS) {
            assert!(route.threshold(&device, at(1000 * send)).is_none());
        }
        assert!(route.threshold(&device, at(100_000)).is_some());
    }

    #[test]
    fn a_device_without_scatter_gather_is_not_lent_to_until_it_has_it() {
        let (mut route, mut device) = (Route::default(), Device::default());
        assert!(route.needs_device_check(at(0)));
        route.set_device(false, at(0));
        assert_eq!(route.copy_reason(), Some(Reason::NoScatterGather));
        assert!(route.copies_silently() && route.threshold(&device, at(99)).is_none());
        assert_eq!(route.advise(&mut device, 64 * KIB, at(99), true), Advice::Copy);
        // It is looked at again before it is lent to again, and left alone longer each time.
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
        // A probe that was on its way then changes nothing.
        route.probed(&mut device, false, at(10_301));
        assert_eq!(route.copy_reason(), Some(Reason::NoScatterGather));
    }

    #[test]
    fn reports_of_copies_raise_a_suspicion_and_only_a_probe_condemns() {
        let (mut route, mut device) = zero_copy();
        for _ in 0..=COPY_REPORTS_MAX {
            route.reported(true);
        }
        assert_eq!(route.copy_reason(), None);
        // What is in flight comes back first.
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
    fn hope_lends_beside_first_probes_until_one_was_copied() {
        let (mut route, mut other, mut late) = (Route::default(), Route::default(), Route::default());
        let mut device = Device::default();
        device.set_capable(true);
        assert_eq!(route.advise(&mut device, 64 * KIB, at(0), true), Advice::Probe);
        assert_eq!(route.advise(&mut device, 64 * KIB, at(0), false), Advice::ZeroCopy);
        assert_eq!(other.advise(&mut device, 64 * KIB, at(0), true), Advice::Probe);
        assert!(other.threshold(&device, at(0)).is_some() && late.threshold(&device, at(0)).is_some());
        route.probed(&mut device, true, at(1));
        assert_eq!(other.advise(&mut device, 64 * KIB, at(1), false), Advice::Copy);
        assert_eq!(late.advise(&mut device, 64 * KIB, at(1), true), Advice::Copy);
        assert!(other.threshold(&device, at(1)).is_none() && late.threshold(&device, at(1)).is_none());
    }

    #[test]
    fn a_report_of_another_route_ends_the_wait_for_the_own() {
        let (mut route, mut other, mut device) = (Route::default(), Route::default(), Device::default());
        assert_eq!(route.advise(&mut device, 64 * KIB, at(0), true), Advice::Probe);
        other.probed(&mut device, false, at(1));
        assert_eq!(route.advise(&mut device, 64 * KIB, at(1), false), Advice::ZeroCopy);
    }

    #[test]
    fn a_probe_that_told_nothing_is_made_again() {
        let (mut route, mut device) = (Route::default(), Device::default());
        assert_eq!(route.advise(&mut device, 64 * KIB, at(0), true), Advice::Probe);
        route.abandon(&mut device);
        assert_eq!(route.advise(&mut device, 64 * KIB, at(1), true), Advice::Probe);
    }

    #[test]
    fn a_probe_that_was_refused_leaves_the_device_to_other_routes() {
        let (mut refused, mut other, mut device) = (Route::default(), Route::default(), Device::default());
        assert_eq!(refused.advise(&mut device, 64 * KIB, at(0), true), Advice::Probe);
        assert_eq!(other.advise(&mut device, 64 * KIB, at(0), true), Advice::Copy);
        refused.refuse(&mut device, Reason::NoMemory, at(1));
        refused.abandon(&mut device);
        assert_eq!(refused.copy_reason(), Some(Reason::NoMemory));
        assert_eq!(other.advise(&mut device, 64 * KIB, at(1), true), Advice::Probe);
        // A refusal of a send that was no probe says nothing of the other route's probe.
        refused.refuse(&mut device, Reason::NoMemory, at(2));
        assert_eq!(Route::default().advise(&mut device, 64 * KIB, at(2), true), Advice::Copy);
    }

    #[test]
    fn trust_and_refusals_end() {
        let (mut route, mut device) = zero_copy();
        assert_eq!(route.advise(&mut device, THRESHOLD_MAX, at(20_000), true), Advice::Probe);
        route.refuse(&mut device, Reason::NoMemory, at(20_001));
        assert_eq!(route.copy_reason(), Some(Reason::NoMemory));
        assert_eq!(route.advise(&mut device, THRESHOLD_MAX, at(20_050), true), Advice::Copy);
        assert_eq!(route.advise(&mut device, THRESHOLD_MAX, at(20_102), true), Advice::Probe);
    }
}
