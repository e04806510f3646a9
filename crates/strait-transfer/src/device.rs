//! State of an egress device: whether the kernel copies zero-copy sends on it, and which method
//! costs less in each size class. All connections of the process share it. Pure: times and costs
//! are arguments.
//!
//! A new route starts with the device's state. A thousand short connections therefore learn as much
//! as a long one, and where the kernel copies, few of them probe. Before the first report on a
//! device that may send without a copy, several routes probe at once, on credit: otherwise the
//! first connections would copy everything. The credit is bounded, and is withdrawn by the first
//! reported copy.
//!
//! The method is chosen by measured cost, because neither is always cheaper: a zero-copy send costs
//! page references and a notification, a copy costs time for each byte. Measured on a veth pair
//! (docs/internals/zero-copy-send.md): at 16 KiB zero-copy costs a fifth less CPU time than a copy,
//! at 4 KiB more. Only neighbouring trials are compared: while a connection starts, a send of 64
//! KiB falls from 35 us to 5 us by zero-copy and to 11 us by copy, and a comparison of the cheapest
//! trials of each method chose the wrong method on every fifth connection.

use std::time::Duration;

use crate::route::{THRESHOLD_MAX, THRESHOLD_MIN};

/// Number of size classes, each a power of two, from [`THRESHOLD_MIN`] to [`THRESHOLD_MAX`].
const CLASSES: usize = (THRESHOLD_MAX / THRESHOLD_MIN).ilog2() as usize;

/// Number of consecutive sends by one method in a trial. Neighbouring sends share packets, so the
/// first sends of a trial share them with the other method and are not counted.
const TRIAL_SENDS: u32 = 16;
const TRIAL_SENDS_UNCOUNTED: u32 = 4;
/// Trials in a round, and zero-copy sends before each round, in a size class in which zero-copy is
/// expected to be cheaper: one send in nine is copied for comparison, and none if there are few
/// sends. In a shorter class the difference is small either way, and rounds follow each other
/// without a gap.
const ROUND_TRIALS: u32 = 3;
const GAP_SENDS: u32 = 6 * TRIAL_SENDS;
/// Lead in comparisons that decides for a method. Each trial is compared with the one before it
/// only: the cost of a send falls by a factor while a connection starts.
const LEAD: i32 = 6;
/// Limit of trials before a decision. If no method takes the lead, the choice matters little.
const TRIALS_MAX: u32 = 20;
/// Sends after a decision before each method has one more trial, so that the other method can win
/// the lead back.
const RECHECK_AFTER: u32 = 1024;
/// Pause before a device on which the kernel copied is probed again; doubled each time. Shorter
/// than the pause of a route, because other routes may use the device.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Time after which a probe without a report is abandoned.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of consecutive routes with a copy after which the device counts as one that copies.
const COPIED_MAX: u32 = 4;
/// Limits of zero-copy sends before the first report: sends, and their bytes. If the kernel copies
/// after all, these sends are copied at a higher cost.
const CREDIT_SENDS_MAX: u32 = 32;
const CREDIT_BYTES_MAX: usize = 32 << 20;
/// Shortest buffer that may be sent by zero-copy before the first report: at 16 KiB a zero-copy
/// send costs a fifth less than a copy, at 4 KiB more.
pub const CREDIT_BUFFER_BYTES_MIN: usize = 16 << 10;

/// Expectation for a route without reports of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// Unknown: the first send may be a probe.
    Unknown,
    /// The kernel copies, or the report of another route's probe is due soon.
    Copies,
    /// Without a report so far; some buffers may be sent by zero-copy before the first one.
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
    /// `copied` consecutive routes were found to copy, since one that did not.
    ZeroCopy {
        copied: u32,
    },
    Copying {
        until: Duration,
    },
}

/// State of an egress device. Times are relative to any fixed moment.
#[derive(Clone, Debug)]
pub struct Device {
    state: State,
    pause: Duration,
    /// Remaining zero-copy sends before the first report, and their bytes; `None` until
    /// [`Device::set_capable`].
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
    /// Sets whether the device may send without a copy: it has scatter-gather, and is not the
    /// loopback. Only the first call has an effect.
    pub fn set_capable(&mut self, may_zero_copy: bool) {
        self.credit.get_or_insert(if may_zero_copy { (CREDIT_SENDS_MAX, CREDIT_BYTES_MAX) } else { (0, 0) });
    }

    /// Deducts a zero-copy send of `bytes` before the first report.
    pub fn spend_credit(&mut self, bytes: usize) {
        if let Some((sends, left)) = &mut self.credit {
            (*sends, *left) = (sends.saturating_sub(1), left.saturating_sub(bytes));
        }
    }

    fn has_credit(&self, bytes: usize) -> bool {
        bytes >= CREDIT_BUFFER_BYTES_MIN
            && self.credit.is_some_and(|(sends, left)| sends > 0 && left >= bytes)
    }

    /// Returns the expectation of a new route for a buffer of `bytes`.
    pub fn expectation(&self, bytes: usize, now: Duration) -> Expectation {
        match self.state {
            State::ZeroCopy { .. } => Expectation::ZeroCopy,
            State::Copying { until } if now < until => Expectation::Copies,
            State::Unknown | State::Probing { .. } if self.has_credit(bytes) => Expectation::OnCredit,
            State::Probing { since } if now.saturating_sub(since) <= REPORT_TIMEOUT => Expectation::Copies,
            State::Unknown | State::Copying { .. } | State::Probing { .. } => Expectation::Unknown,
        }
    }

    /// Notes that a route is being probed.
    pub fn probes(&mut self, now: Duration) {
        if !matches!(self.state, State::ZeroCopy { .. }) {
            self.state = State::Probing { since: now };
        }
    }

    /// Notes that a probe ended without a report.
    pub fn abandon(&mut self) {
        if matches!(self.state, State::Probing { .. }) {
            self.state = State::Unknown;
        }
    }

    /// Takes the report of a probe.
    pub fn probed(&mut self, copied: bool, now: Duration) {
        if copied {
            self.credit = Some((0, 0));
        }
        match &mut self.state {
            _ if !copied => (self.state, self.pause) = (State::ZeroCopy { copied: 0 }, PAUSE_MIN),
            // The report of a concurrent probe.
            State::Copying { until } if now < *until => {}
            State::ZeroCopy { copied } if *copied + 1 < COPIED_MAX => *copied += 1,
            _ => {
                self.state = State::Copying { until: now + self.pause };
                self.pause = (self.pause * 2).min(PAUSE_MAX);
            }
        }
    }

    /// Returns true if a buffer of `bytes` goes by zero-copy, provided that the kernel does not
    /// copy it.
    pub fn prefers_zero_copy(&self, bytes: usize) -> bool {
        class_of(bytes).is_none_or(|class| self.classes[class].prefers_zero_copy())
    }

    /// Returns the size from which zero-copy is considered.
    pub fn threshold(&self) -> usize {
        let dearer = self.classes.iter().take_while(|class| class.prefers_copy()).count();
        THRESHOLD_MIN << dearer
    }

    /// Returns true if the cost of the next send of `bytes` is to be measured.
    pub fn wants_cost(&self, bytes: usize) -> bool {
        class_of(bytes).is_some_and(|class| self.classes[class].wants_cost())
    }

    /// Takes the measured cost of a send of `bytes`: CPU time of the thread, for `taken` bytes that
    /// the kernel accepted.
    pub fn cost(&mut self, bytes: usize, taken: usize, zero_copy: bool, took: Duration) {
        if let Some(class) = class_of(bytes) {
            self.classes[class].learn(taken, zero_copy, took);
        }
    }

    /// Counts a send of `bytes`, measured or not.
    pub fn sent(&mut self, bytes: usize) {
        if let Some(class) = class_of(bytes) {
            self.classes[class].count();
        }
    }
}

/// Costs of sends in a size class.
#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// Measured sends by both methods together, and sends since the decision.
    samples: u32,
    since: u32,
    /// True if zero-copy is expected to be cheaper; then `gap` zero-copy sends precede the next
    /// round.
    has_gaps: bool,
    gap: u32,
    /// CPU time and bytes of the current trial.
    trial: (Duration, usize),
    /// Nanoseconds per byte of the previous trial, if there is one.
    before: Option<f64>,
    /// Comparisons won by zero-copy, minus those won by copying.
    lead: i32,
    /// True if a method has been chosen.
    is_decided: bool,
}

impl Class {
    fn new(class: usize) -> Self {
        let has_gaps = THRESHOLD_MIN << class >= CREDIT_BUFFER_BYTES_MIN;
        Self { has_gaps, gap: if has_gaps { GAP_SENDS } else { 0 }, ..Self::default() }
    }

    /// Returns true during a trial. Before the decision: always, except in the gaps between rounds.
    /// After it: for one trial of each method after every [`RECHECK_AFTER`] sends.
    fn wants_cost(&self) -> bool {
        if self.is_decided { self.since >= RECHECK_AFTER } else { self.gap == 0 }
    }

    /// Returns true if copying costs less. Without a clear lead zero-copy is preferred, because it
    /// uses less memory bandwidth. Half of [`LEAD`]: after a decision by [`LEAD`], four lost
    /// rechecks change the method; a decision at [`TRIALS_MAX`] needs only half the lead.
    fn prefers_copy(&self) -> bool {
        self.is_decided && self.lead <= -LEAD / 2
    }

    /// Returns true if the next measured send goes by zero-copy.
    fn samples_zero_copy(&self) -> bool {
        let trial = self.samples / TRIAL_SENDS;
        let planned = if self.has_gaps { trial % ROUND_TRIALS != 1 } else { trial.is_multiple_of(2) };
        if self.is_decided { planned != self.prefers_copy() } else { planned }
    }

    fn prefers_zero_copy(&self) -> bool {
        if self.wants_cost() { self.samples_zero_copy() } else { !self.prefers_copy() }
    }

    fn count(&mut self) {
        if self.is_decided && !self.wants_cost() {
            self.since += 1;
            (self.samples, self.before, self.trial) = (0, None, Default::default());
        }
        self.gap = self.gap.saturating_sub(1);
    }

    /// Takes the cost of a measured send. Ignores one that did not go by the planned method.
    fn learn(&mut self, taken: usize, zero_copy: bool, took: Duration) {
        if !self.wants_cost() || zero_copy != self.samples_zero_copy() {
            return;
        }
        if self.samples % TRIAL_SENDS >= TRIAL_SENDS_UNCOUNTED {
            self.trial = (self.trial.0 + took, self.trial.1 + taken);
        }
        self.samples += 1;
        if !self.samples.is_multiple_of(TRIAL_SENDS) {
            return;
        }
        let (took, taken) = std::mem::take(&mut self.trial);
        let cost = took.as_nanos() as f64 / taken.max(1) as f64;
        if let Some(before) = self.before.replace(cost) {
            // 1 if this trial cost more than the one before, -1 if it cost less.
            let dearer = cost.total_cmp(&before) as i32;
            self.lead = (self.lead + if zero_copy { -dearer } else { dearer }).clamp(-LEAD, LEAD);
        }
        let is_over = if self.is_decided {
            self.samples >= 2 * TRIAL_SENDS
        } else {
            self.lead.abs() >= LEAD || self.samples >= TRIALS_MAX * TRIAL_SENDS
        };
        if is_over {
            self.is_decided = true;
            (self.since, self.samples, self.before) = (0, 0, None);
        } else if self.has_gaps && self.samples.is_multiple_of(ROUND_TRIALS * TRIAL_SENDS) {
            (self.gap, self.before) = (GAP_SENDS, None);
        }
    }
}

/// Returns the size class; `None` from [`THRESHOLD_MAX`] on, or below [`THRESHOLD_MIN`].
fn class_of(bytes: usize) -> Option<usize> {
    let class = (bytes / THRESHOLD_MIN).checked_ilog2()? as usize;
    (class < CLASSES).then_some(class)
}

#[cfg(test)]
mod tests;
