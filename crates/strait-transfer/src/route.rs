//! Whether zero-copy pays on a route, and from which size: learned from what the kernel reports and from what sends cost.
//! Pure: it is told the time, sizes, costs and reports.
//!
//! ```text
//!            probe sent            not copied
//! Unknown ---------------> Probing -----------> ZeroCopy: each size class takes the cheaper way
//!                          ^     \  copied          |
//!                          |      v                 | so many reports of copies in a row,
//!                          +---- Copying <----------+ or no memory
//!                        after a while, longer each time
//! ```
//!
//! With several zero-copy sends in flight on one connection the kernel may report a copy that did not happen, where it joins
//! their notifications. So a route is judged by a probe that is alone on its connection; later reports only raise the
//! suspicion that asks for the next probe.
//!
//! Where the device has no scatter-gather the kernel copies and may not report it: such a route is not probed at all, and
//! what is lent on it nevertheless counts as copied, whatever the report says.

use std::time::Duration;

/// Buffers smaller than this are never lent, whatever they cost: pages, notifications and packets are worth more.
pub const THRESHOLD_MIN: usize = 4 << 10;
/// Buffers of this size and above are lent wherever the kernel does not copy them.
pub const THRESHOLD_MAX: usize = 1 << 20;

/// How long a route stays with copying before it is probed again; doubled with each probe that says the same.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_mins(1);
/// So many reports of copies in a row ask for a probe.
const SUSPICIONS_MAX: u32 = 16;
/// A route that is zero-copy is probed as often as this all the same, and what it costs is learned anew: it may have changed.
const TRUST: Duration = Duration::from_secs(10);
/// A probe whose report does not come is given up after this.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a way costs is learned from runs of so many sends in a row, for sends next to each other share packets; the first of a run
/// still share them with the other way's and do not count.
const RUN: u32 = 16;
const RUN_UNCOUNTED: u32 = 4;
/// The two ways take turns, and each run is compared with the one before it: what a send costs falls by a factor while a connection
/// starts, so that runs far apart tell nothing. A way is taken when it has won so many comparisons more than the other.
const LEAD: i32 = 6;
/// So many runs are made at most: where no way takes the lead, it matters little.
const RUNS_MAX: u32 = 64;

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
    Lend,
    /// Lend it alone: no other lent buffer is to be in flight on the connection until its report.
    Probe,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Unknown,
    /// A probe is under way since then.
    Probing {
        since: Duration,
    },
    ZeroCopy {
        since: Duration,
        suspicions: u32,
    },
    Copying {
        until: Duration,
        reason: Reason,
    },
}

/// What was seen of the device by which a route leaves.
#[derive(Clone, Copy, Debug)]
struct Device {
    gathers: bool,
    seen: Duration,
}

/// What is known of a route. Times are since any fixed moment.
#[derive(Clone, Debug)]
pub struct Route {
    state: State,
    device: Option<Device>,
    pause: Duration,
    classes: [Class; CLASSES],
}

/// Size classes, a power of two each, from [`THRESHOLD_MIN`] to [`THRESHOLD_MAX`].
const CLASSES: usize = (THRESHOLD_MAX / THRESHOLD_MIN).ilog2() as usize;

/// What sends of a size class cost.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// Sends that were tried, both ways together.
    tries: u32,
    /// Time and bytes of the run under way.
    run: (Duration, usize),
    /// Nanoseconds a byte of the run before, once there was one.
    before: Option<f64>,
    /// Comparisons that lending won, less those that copying won.
    lead: i32,
}

impl Class {
    /// Whether the next try is to be lent.
    fn tries_lending(&self) -> bool {
        (self.tries / RUN).is_multiple_of(2)
    }

    /// Whether both ways were tried often enough.
    fn is_known(&self) -> bool {
        self.lead.abs() >= LEAD || self.tries >= RUNS_MAX * RUN
    }

    /// Whether both ways were tried, and lending was the dearer one.
    fn is_dearer_lent(&self) -> bool {
        self.is_known() && self.lead < 0
    }

    /// Whether to lend: the cheaper way, once both were tried.
    fn lends(&self) -> bool {
        if self.is_known() { !self.is_dearer_lent() } else { self.tries_lending() }
    }

    /// Counts a try of the way that was to be tried.
    fn learn(&mut self, taken: usize, lent: bool, took: Duration) {
        if self.is_known() || lent != self.tries_lending() {
            return;
        }
        if self.tries % RUN >= RUN_UNCOUNTED {
            self.run = (self.run.0 + took, self.run.1 + taken);
        }
        self.tries += 1;
        if self.tries.is_multiple_of(RUN) {
            let (took, taken) = std::mem::take(&mut self.run);
            let cost = took.as_nanos() as f64 / taken.max(1) as f64;
            if let Some(before) = self.before.replace(cost) {
                let winner = cost.total_cmp(&before) as i32;
                self.lead += if lent { -winner } else { winner };
            }
        }
    }
}

impl Default for Route {
    fn default() -> Self {
        Self { state: State::Unknown, device: None, pause: PAUSE_MIN, classes: [Class::default(); CLASSES] }
    }
}

impl Route {
    /// Whether somebody is to look at the device before something is lent: nobody has, or it may have changed.
    pub fn asks_for_device(&self, now: Duration) -> bool {
        self.device.is_none_or(|device| {
            now.saturating_sub(device.seen) >= if device.gathers { TRUST } else { PAUSE_MIN }
        })
    }

    /// Whether the device has scatter-gather; without it all is copied for a while.
    pub fn device(&mut self, gathers: bool, now: Duration) {
        self.device = Some(Device { gathers, seen: now });
        if !gathers {
            self.refuse(Reason::NoScatterGather, now);
        }
    }

    /// Whether what is lent is copied, whatever the kernel reports.
    pub fn copies_unreported(&self) -> bool {
        self.device.is_some_and(|device| !device.gathers)
    }

    /// What to do with a buffer of `bytes` at the time `now`; `alone` says that nothing is lent on the connection.
    pub fn advise(&mut self, bytes: usize, now: Duration, alone: bool) -> Advice {
        if bytes < THRESHOLD_MIN {
            return Advice::Copy;
        }
        match self.state {
            State::Unknown => self.probe(now, alone),
            State::Probing { since } if now.saturating_sub(since) > PATIENCE => self.probe(now, alone),
            State::Copying { until, .. } if now >= until => self.probe(now, alone),
            State::Probing { .. } | State::Copying { .. } => Advice::Copy,
            State::ZeroCopy { since, suspicions } => {
                if suspicions > SUSPICIONS_MAX || now.saturating_sub(since) > TRUST {
                    return self.probe(now, alone);
                }
                if self.lends(bytes) { Advice::Lend } else { Advice::Copy }
            }
        }
    }

    fn probe(&mut self, now: Duration, alone: bool) -> Advice {
        if !alone {
            // What is in flight comes back first.
            return Advice::Copy;
        }
        self.state = State::Probing { since: now };
        Advice::Probe
    }

    fn lends(&self, bytes: usize) -> bool {
        match class_of(bytes) {
            Some(class) => self.classes[class].lends(),
            None => true,
        }
    }

    /// Why everything is copied; `None` while buffers are lent, or it is not known yet.
    pub fn copies(&self) -> Option<Reason> {
        match self.state {
            State::Copying { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// From which size buffers are worth asking about; `None` while all are copied, as during a probe.
    pub fn threshold(&self, now: Duration) -> Option<usize> {
        match self.state {
            State::Copying { until, .. } if now < until => None,
            State::Probing { since } if now.saturating_sub(since) <= PATIENCE => None,
            _ => {
                let dearer = self.classes.iter().take_while(|class| class.is_dearer_lent()).count();
                Some(THRESHOLD_MIN << dearer)
            }
        }
    }

    /// A probe told nothing: there was no room for it, or the connection ended.
    pub fn abandon(&mut self) {
        if matches!(self.state, State::Probing { .. }) {
            self.state = State::Unknown;
        }
    }

    /// The report of a probe.
    pub fn probed(&mut self, copied: bool, now: Duration) {
        if self.copies_unreported() {
            // The device was looked at meanwhile, and knows better.
        } else if copied {
            self.refuse(Reason::Copied, now);
        } else {
            let state = State::ZeroCopy { since: now, suspicions: 0 };
            *self = Self { state, device: self.device, ..Self::default() };
        }
    }

    /// The report of a buffer that was lent beside others.
    pub fn reported(&mut self, was_copied: bool) {
        if let State::ZeroCopy { suspicions, .. } = &mut self.state {
            *suspicions = if was_copied { *suspicions + 1 } else { 0 };
        }
    }

    /// The kernel refused to lend: copy for a while.
    pub fn refuse(&mut self, reason: Reason, now: Duration) {
        self.state = State::Copying { until: now + self.pause, reason };
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// Whether it wants to know what a send of `bytes` costs.
    pub fn is_curious(&self, bytes: usize) -> bool {
        let is_zero_copy = matches!(self.state, State::ZeroCopy { .. });
        is_zero_copy && class_of(bytes).is_some_and(|class| !self.classes[class].is_known())
    }

    /// What it cost the caller, all in all, that of a send of `bytes` the kernel took `taken`.
    pub fn cost(&mut self, bytes: usize, taken: usize, lent: bool, took: Duration) {
        if let Some(class) = class_of(bytes) {
            self.classes[class].learn(taken, lent, took);
        }
    }
}

/// The size class; `None` from [`THRESHOLD_MAX`] on, or below [`THRESHOLD_MIN`].
fn class_of(bytes: usize) -> Option<usize> {
    let class = (bytes / THRESHOLD_MIN).checked_ilog2()? as usize;
    (class < CLASSES).then_some(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// A route that a probe found to be zero-copy.
    fn zero_copy() -> Route {
        let mut route = Route::default();
        assert_eq!(route.advise(64 * KIB, at(0), true), Advice::Probe);
        route.probed(false, at(1));
        route
    }

    #[test]
    fn one_probe_is_under_way_at_a_time_and_small_buffers_are_none() {
        let mut route = Route::default();
        assert_eq!(route.advise(KIB, at(0), true), Advice::Copy);
        assert_eq!(route.advise(64 * KIB, at(0), false), Advice::Copy);
        assert_eq!(route.advise(64 * KIB, at(0), true), Advice::Probe);
        assert_eq!(route.advise(64 * KIB, at(1), true), Advice::Copy);
        assert_eq!(route.advise(64 * KIB, at(6000), true), Advice::Probe);
    }

    #[test]
    fn a_route_that_copies_is_left_alone_longer_each_time() {
        let mut route = Route::default();
        let mut now = 0;
        for pause in [100, 200, 400, 800] {
            assert_eq!(route.advise(64 * KIB, at(now), true), Advice::Probe);
            route.probed(true, at(now));
            assert_eq!(route.copies(), Some(Reason::Copied));
            assert_eq!(route.advise(64 * KIB, at(now + pause - 1), true), Advice::Copy);
            now += pause;
        }
    }

    #[test]
    fn a_device_without_scatter_gather_is_not_lent_to_until_it_has_it() {
        let mut route = Route::default();
        assert!(route.asks_for_device(at(0)));
        route.device(false, at(0));
        assert_eq!(route.copies(), Some(Reason::NoScatterGather));
        assert!(route.copies_unreported() && route.threshold(at(99)).is_none());
        assert_eq!(route.advise(64 * KIB, at(99), true), Advice::Copy);
        // It is looked at again before it is lent to again, and left alone longer each time.
        assert!(!route.asks_for_device(at(99)) && route.asks_for_device(at(100)));
        route.device(false, at(100));
        assert_eq!(route.advise(64 * KIB, at(299), true), Advice::Copy);
        route.device(true, at(300));
        assert_eq!(route.advise(64 * KIB, at(300), true), Advice::Probe);
        route.probed(false, at(301));
        assert!(!route.copies_unreported() && !route.asks_for_device(at(10_299)));
        assert!(route.asks_for_device(at(10_300)), "it may have been switched off");
        route.device(false, at(10_300));
        assert_eq!(route.advise(THRESHOLD_MAX, at(10_300), false), Advice::Copy);
        // A probe that was on its way then changes nothing.
        route.probed(false, at(10_301));
        assert_eq!(route.copies(), Some(Reason::NoScatterGather));
    }

    #[test]
    fn each_size_takes_the_way_that_costs_less() {
        let mut route = zero_copy();
        // Lending costs 10 us and nothing a byte, copying a nanosecond for ten bytes: even at 100 kB.
        let mut lent = [0_u32; 2];
        for (place, bytes) in [16 * KIB, 512 * KIB].into_iter().enumerate() {
            for step in 0..2000 {
                let lend = match route.advise(bytes, at(2 + step), false) {
                    Advice::Lend => true,
                    Advice::Copy => false,
                    Advice::Probe => unreachable!("it is trusted"),
                };
                lent[place] += u32::from(lend);
                let took =
                    if lend { Duration::from_micros(10) } else { Duration::from_nanos(bytes as u64 / 10) };
                // Now and then the thread is off its CPU.
                let stolen = Duration::from_millis(if step % 37 == 0 { 5 } else { 0 });
                route.cost(bytes, bytes, lend, took + stolen);
            }
        }
        let [few, most] = lent;
        assert!(few <= RUNS_MAX / 4 * RUN && most >= 2000 - RUNS_MAX / 4 * RUN, "{lent:?}");
        assert_eq!(route.advise(2 * THRESHOLD_MAX, at(5000), false), Advice::Lend);
        // 4 and 8 KiB were never tried, so that they may be asked about.
        assert_eq!(route.threshold(at(5000)), Some(THRESHOLD_MIN));
    }

    #[test]
    fn a_connection_that_starts_slowly_misleads_nobody() {
        // Whatever the send with which all becomes cheaper by a factor, and whichever way is tried then.
        for fast in 0..500 {
            let mut route = zero_copy();
            for step in 0..2000 {
                let lends = route.lends(64 * KIB);
                let took = if lends { 5 } else { 11 } * if step < fast { 7 } else { 1 };
                route.cost(64 * KIB, 64 * KIB, lends, Duration::from_micros(took));
            }
            assert!(!route.is_curious(64 * KIB) && route.lends(64 * KIB), "{fast}");
        }
    }

    #[test]
    fn ways_that_cost_the_same_are_compared_a_while_and_no_longer() {
        let mut route = zero_copy();
        for step in 0..RUNS_MAX * RUN {
            assert!(route.is_curious(64 * KIB), "{step}");
            let lends = route.lends(64 * KIB);
            // Each run costs less than the one before by turns, for one way and for the other.
            let took = [10, 10, 11, 11][(step / RUN) as usize % 4];
            route.cost(64 * KIB, 64 * KIB, lends, Duration::from_micros(took));
        }
        assert!(!route.is_curious(64 * KIB));
    }

    #[test]
    fn reports_of_copies_raise_a_suspicion_and_only_a_probe_condemns() {
        let mut route = zero_copy();
        for _ in 0..=SUSPICIONS_MAX {
            route.reported(true);
        }
        assert_eq!(route.copies(), None);
        // What is in flight comes back first.
        assert_eq!(route.advise(THRESHOLD_MAX, at(2), false), Advice::Copy);
        assert_eq!(route.advise(THRESHOLD_MAX, at(3), true), Advice::Probe);
        route.probed(false, at(4));
        assert_eq!(route.advise(THRESHOLD_MAX, at(5), false), Advice::Lend);
        for _ in 0..SUSPICIONS_MAX {
            route.reported(true);
        }
        route.reported(false);
        route.reported(true);
        assert_eq!(route.advise(THRESHOLD_MAX, at(6), false), Advice::Lend);
    }

    #[test]
    fn sizes_that_are_known_to_cost_more_are_not_asked_about() {
        let mut route = zero_copy();
        for bytes in [4 * KIB, 8 * KIB] {
            while route.is_curious(bytes) {
                let lent = route.lends(bytes);
                route.cost(bytes, bytes, lent, Duration::from_micros(if lent { 2 } else { 1 }));
            }
        }
        assert_eq!(route.threshold(at(1)), Some(16 * KIB));
        route.refuse(Reason::NoMemory, at(1));
        assert_eq!((route.threshold(at(2)), route.threshold(at(200))), (None, Some(16 * KIB)));
    }

    #[test]
    fn a_probe_that_told_nothing_is_made_again() {
        let mut route = Route::default();
        assert_eq!(route.advise(64 * KIB, at(0), true), Advice::Probe);
        route.abandon();
        assert_eq!(route.advise(64 * KIB, at(1), true), Advice::Probe);
    }

    #[test]
    fn trust_and_refusals_end() {
        let mut route = zero_copy();
        assert_eq!(route.advise(THRESHOLD_MAX, at(20_000), true), Advice::Probe);
        route.refuse(Reason::NoMemory, at(20_001));
        assert_eq!(route.copies(), Some(Reason::NoMemory));
        assert_eq!(route.advise(THRESHOLD_MAX, at(20_050), true), Advice::Copy);
        assert_eq!(route.advise(THRESHOLD_MAX, at(20_102), true), Advice::Probe);
    }
}
