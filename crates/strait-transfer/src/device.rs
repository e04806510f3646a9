//! Knowledge about a device by which packets leave: whether the kernel copied what was lent by it,
//! and which way to send costs less, by size class. Shared by all connections of the process. Pure:
//! times and costs are arguments.
//!
//! A new route begins with what is known of its device. So a thousand short connections learn as
//! much as a long one, and where the device copies, few of them probe. Before the first report of a
//! device that may send without a copy, several routes probe at once: its first connections would
//! all be copied otherwise. The hope is bounded, and ends with the first copy.

use std::time::Duration;

use crate::route::{THRESHOLD_MAX, THRESHOLD_MIN};

/// Size classes, a power of two each, from [`THRESHOLD_MIN`] to [`THRESHOLD_MAX`].
const CLASSES: usize = (THRESHOLD_MAX / THRESHOLD_MIN).ilog2() as usize;

/// The cost of a way is learned from runs of so many sends in a row, for sends next to each other
/// share packets; the first of a run still share them with those of the other way and do not count.
const RUN: u32 = 16;
const RUN_UNCOUNTED: u32 = 4;
/// Runs of a round in a size class in which lending is expected to pay, and the lent sends before
/// each round: one send in nine is copied to compare, also where few are made. A shorter one costs
/// little either way, and is compared without a pause.
const ROUND_RUNS: u32 = 3;
const GAP_SENDS: u32 = 6 * RUN;
/// Each run is compared with the one before it: the cost of a send falls by a factor while a
/// connection starts, so that runs far apart tell nothing. A way is taken when it has won so many
/// comparisons more than the other.
const LEAD: i32 = 6;
/// So many runs are made at most before a way is taken: where none takes the lead, it matters
/// little.
const RUNS_MAX: u32 = 20;
/// Then each way has one run again in so many sends, so that the other way can win the lead back.
const RECHECK_AFTER: u32 = 1024;
/// A device by which the kernel copied is tried again after a while, longer each time; not as
/// rarely as a route, for other routes may leave by it.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A probe whose report does not come is given up after this.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// So many routes in a row that copy, and the device counts as one that copies.
const COPIED_MAX: u32 = 4;
/// Sends that are lent by a device before its first report, at most, and their bytes. Where the
/// kernel copies all the same, so many are copied at a higher cost.
const CREDIT_SENDS_MAX: u32 = 32;
const CREDIT_BYTES_MAX: usize = 32 << 20;
/// Shorter buffers wait for the first report: at 16 KiB a lent send costs a fifth less than a
/// copied one, at 4 KiB more.
pub const CREDIT_BUFFER_BYTES_MIN: usize = 16 << 10;

/// Expectation for a route of which nothing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// Its first send may be a probe.
    Unknown,
    /// The kernel copies, or a probe of another route will soon tell.
    Copies,
    /// Nothing is reported yet, and some may be lent before the first report.
    OnCredit,
    /// The kernel does not copy.
    ZeroCopy,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Unknown,
    Probing {
        since: Duration,
    },
    /// So many routes in a row were found to copy since one that did not.
    ZeroCopy {
        copied: u32,
    },
    Copying {
        until: Duration,
    },
}

/// A device. Times are since any fixed moment.
#[derive(Clone, Debug)]
pub struct Device {
    state: State,
    pause: Duration,
    /// Sends that may be lent before the first report, and their bytes; `None` until somebody has
    /// looked at the device.
    credit: Option<(u32, usize)>,
    classes: [Class; CLASSES],
}

impl Default for Device {
    fn default() -> Self {
        Self {
            state: State::Unknown,
            pause: PAUSE_MIN,
            credit: None,
            classes: std::array::from_fn(Class::new),
        }
    }
}

impl Device {
    /// Whether the device may send without a copy: it gathers, and is not the loopback. Counts
    /// once.
    pub fn set_capable(&mut self, may_zero_copy: bool) {
        self.credit.get_or_insert(if may_zero_copy { (CREDIT_SENDS_MAX, CREDIT_BYTES_MAX) } else { (0, 0) });
    }

    /// A buffer of `bytes` is lent before the first report.
    pub fn spend_credit(&mut self, bytes: usize) {
        if let Some((sends, left)) = &mut self.credit {
            (*sends, *left) = (sends.saturating_sub(1), left.saturating_sub(bytes));
        }
    }

    fn has_credit(&self, bytes: usize) -> bool {
        bytes >= CREDIT_BUFFER_BYTES_MIN
            && self.credit.is_some_and(|(sends, left)| sends > 0 && left >= bytes)
    }

    /// What a new route may expect for a buffer of `bytes`.
    pub fn expectation(&self, bytes: usize, now: Duration) -> Expectation {
        match self.state {
            State::ZeroCopy { .. } => Expectation::ZeroCopy,
            State::Copying { until } if now < until => Expectation::Copies,
            State::Unknown | State::Probing { .. } if self.has_credit(bytes) => Expectation::OnCredit,
            State::Probing { since } if now.saturating_sub(since) <= REPORT_TIMEOUT => Expectation::Copies,
            State::Unknown | State::Copying { .. } | State::Probing { .. } => Expectation::Unknown,
        }
    }

    /// A route is probed.
    pub fn probes(&mut self, now: Duration) {
        if !matches!(self.state, State::ZeroCopy { .. }) {
            self.state = State::Probing { since: now };
        }
    }

    /// A probe told nothing.
    pub fn abandon(&mut self) {
        if matches!(self.state, State::Probing { .. }) {
            self.state = State::Unknown;
        }
    }

    /// The report of a probe.
    pub fn probed(&mut self, copied: bool, now: Duration) {
        if copied {
            self.credit = Some((0, 0));
        }
        match &mut self.state {
            _ if !copied => (self.state, self.pause) = (State::ZeroCopy { copied: 0 }, PAUSE_MIN),
            // Another probe of those under way.
            State::Copying { until } if now < *until => {}
            State::ZeroCopy { copied } if *copied + 1 < COPIED_MAX => *copied += 1,
            _ => {
                self.state = State::Copying { until: now + self.pause };
                self.pause = (self.pause * 2).min(PAUSE_MAX);
            }
        }
    }

    /// Whether a buffer of `bytes` is to be lent where the kernel does not copy it.
    pub fn prefers_zero_copy(&self, bytes: usize) -> bool {
        class_of(bytes).is_none_or(|class| self.classes[class].prefers_zero_copy())
    }

    /// Size from which buffers are worth asking about.
    pub fn threshold(&self) -> usize {
        let dearer = self.classes.iter().take_while(|class| class.prefers_copy()).count();
        THRESHOLD_MIN << dearer
    }

    /// Whether the cost of the next send of `bytes` is wanted.
    pub fn wants_cost(&self, bytes: usize) -> bool {
        class_of(bytes).is_some_and(|class| self.classes[class].wants_cost())
    }

    /// A send of `bytes`, of which the kernel took `taken`, cost the thread so much CPU time.
    pub fn cost(&mut self, bytes: usize, taken: usize, lent: bool, took: Duration) {
        if let Some(class) = class_of(bytes) {
            self.classes[class].learn(taken, lent, took);
        }
    }

    /// A send of `bytes` took place, measured or not.
    pub fn sent(&mut self, bytes: usize) {
        if let Some(class) = class_of(bytes) {
            self.classes[class].count();
        }
    }
}

/// Costs of the sends of a size class.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// Sends that were tried, both ways together, and those since a way was taken.
    samples: u32,
    since: u32,
    /// Lending is expected to pay, and so many are lent before the next round.
    has_gaps: bool,
    gap: u32,
    /// Time and bytes of the run under way.
    run: (Duration, usize),
    /// Nanoseconds a byte of the run before, once there was one.
    before: Option<f64>,
    /// Comparisons that lending won, less those that copying won.
    lead: i32,
    /// A way was taken.
    is_decided: bool,
}

impl Class {
    fn new(class: usize) -> Self {
        let has_gaps = THRESHOLD_MIN << class >= CREDIT_BUFFER_BYTES_MIN;
        Self { has_gaps, gap: if has_gaps { GAP_SENDS } else { 0 }, ..Self::default() }
    }

    /// Whether a run is under way: until a way is taken, and then one of each way in a round.
    fn wants_cost(&self) -> bool {
        if self.is_decided { self.since >= RECHECK_AFTER } else { self.gap == 0 }
    }

    /// Whether copying is worth its while; where no way leads by much, less work for memory does.
    fn prefers_copy(&self) -> bool {
        self.is_decided && self.lead <= -LEAD / 2
    }

    /// Whether the next try is to be lent.
    fn samples_zero_copy(&self) -> bool {
        let run = self.samples / RUN;
        let turn = if self.has_gaps { run % ROUND_RUNS != 1 } else { run.is_multiple_of(2) };
        if self.is_decided { turn != self.prefers_copy() } else { turn }
    }

    fn prefers_zero_copy(&self) -> bool {
        if self.wants_cost() { self.samples_zero_copy() } else { !self.prefers_copy() }
    }

    fn count(&mut self) {
        if self.is_decided && !self.wants_cost() {
            self.since += 1;
            (self.samples, self.before, self.run) = (0, None, Default::default());
        }
        self.gap = self.gap.saturating_sub(1);
    }

    /// Counts a try of the way that was to be tried.
    fn learn(&mut self, taken: usize, lent: bool, took: Duration) {
        if !self.wants_cost() || lent != self.samples_zero_copy() {
            return;
        }
        if self.samples % RUN >= RUN_UNCOUNTED {
            self.run = (self.run.0 + took, self.run.1 + taken);
        }
        self.samples += 1;
        if !self.samples.is_multiple_of(RUN) {
            return;
        }
        let (took, taken) = std::mem::take(&mut self.run);
        let cost = took.as_nanos() as f64 / taken.max(1) as f64;
        if let Some(before) = self.before.replace(cost) {
            let winner = cost.total_cmp(&before) as i32;
            self.lead = (self.lead + if lent { -winner } else { winner }).clamp(-LEAD, LEAD);
        }
        let is_over = if self.is_decided {
            self.samples >= 2 * RUN
        } else {
            self.lead.abs() >= LEAD || self.samples >= RUNS_MAX * RUN
        };
        if is_over {
            self.is_decided = true;
            (self.since, self.samples, self.before) = (0, 0, None);
        } else if self.has_gaps && self.samples.is_multiple_of(ROUND_RUNS * RUN) {
            (self.gap, self.before) = (GAP_SENDS, None);
        }
    }
}

/// The size class; `None` from [`THRESHOLD_MAX`] on, or below [`THRESHOLD_MIN`].
fn class_of(bytes: usize) -> Option<usize> {
    let class = (bytes / THRESHOLD_MIN).checked_ilog2()? as usize;
    (class < CLASSES).then_some(class)
}

#[cfg(test)]
mod tests;
