//! Counters of a worker, which other threads read at any time.
//!
//! One thread writes to a block, so that adding is a load and a store without a lock. Readers get
//! recent numbers, which need not be consistent with each other.

use std::time::Duration;

use crate::io::counter::Counter;
use crate::observe::access::{Account, Outcome};

/// Number of outcomes.
const OUTCOMES: usize = Outcome::ALL.len();
/// Classes of statuses by their first digit; 0 without a status.
pub(crate) const CLASSES: usize = 6;

/// Counters of a worker, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    /// Connections accepted, open, and refused.
    pub(crate) accepted: Counter,
    pub(crate) open: Counter,
    pub(crate) refused: Counter,
    outcomes: [Counter; OUTCOMES],
    classes: [Counter; CLASSES],
    /// Responses that ended early.
    cut: Counter,
    /// Bytes to clients, by mechanism.
    copied: Counter,
    sendfile: Counter,
    spliced: Counter,
    /// Durations of hits, and of other responses except tunnels.
    hits: Histogram,
    others: Histogram,
    /// Connections to origins that were opened, and requests on idle ones.
    pub(crate) opened: Counter,
    pub(crate) reused: Counter,
    /// Bytes into the cache, by mechanism.
    pub(crate) filled_copied: Counter,
    pub(crate) filled_spliced: Counter,
    /// Lines of the access log that were dropped because its queue was full.
    pub(crate) log_dropped: Counter,
}

impl Counters {
    pub(crate) fn count(&self, account: &Account<'_, '_>) {
        let record = account.record;
        self.outcomes[record.outcome as usize].add(1);
        self.classes[usize::from(record.status / 100).min(CLASSES - 1)].add(1);
        self.cut.add(u64::from(!account.is_whole));
        self.copied.add(account.moved.sent);
        self.sendfile.add(account.moved.sendfile);
        self.spliced.add(account.moved.spliced);
        match record.outcome {
            Outcome::Hit => self.hits.add(account.took),
            Outcome::Tunnel | Outcome::Unanswered => {}
            _ => self.others.add(account.took),
        }
    }
}

/// Buckets of a histogram: four per octave of microseconds, up to two minutes.
const BUCKETS: usize = 104;

/// Histogram of durations.
#[derive(Debug)]
struct Histogram {
    buckets: [Counter; BUCKETS],
    sum_us: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| Counter::default()), sum_us: Counter::default() }
    }
}

impl Histogram {
    fn add(&self, took: Duration) {
        let us = took.as_micros() as u64;
        self.buckets[bucket(us)].add(1);
        self.sum_us.add(us);
    }
}

/// Returns the bucket of a duration.
fn bucket(us: u64) -> usize {
    if us < 4 {
        return us as usize;
    }
    let octave = us.ilog2() as usize;
    let quarter = (us >> (octave - 2)) as usize & 3;
    (4 * (octave - 1) + quarter).min(BUCKETS - 1)
}

/// Returns the exclusive upper bound of a bucket in microseconds.
fn end_us(bucket: usize) -> u64 {
    if bucket < 4 { bucket as u64 + 1 } else { (bucket as u64 % 4 + 5) << (bucket / 4 - 1) }
}

/// Sums of all workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) accepted: u64,
    pub(crate) open: u64,
    pub(crate) refused: u64,
    pub(crate) outcomes: [u64; OUTCOMES],
    pub(crate) classes: [u64; CLASSES],
    pub(crate) cut: u64,
    pub(crate) copied: u64,
    pub(crate) sendfile: u64,
    pub(crate) spliced: u64,
    pub(crate) hits: Times,
    pub(crate) others: Times,
    pub(crate) opened: u64,
    pub(crate) reused: u64,
    pub(crate) filled_copied: u64,
    pub(crate) filled_spliced: u64,
    pub(crate) log_dropped: u64,
}

impl Sum {
    pub(crate) fn of<'a>(workers: impl IntoIterator<Item = &'a Counters>) -> Self {
        let mut sum = Self::default();
        for worker in workers {
            sum.add(worker);
        }
        sum
    }

    fn add(&mut self, worker: &Counters) {
        for (sum, counter) in [
            (&mut self.accepted, &worker.accepted),
            (&mut self.open, &worker.open),
            (&mut self.refused, &worker.refused),
            (&mut self.cut, &worker.cut),
            (&mut self.copied, &worker.copied),
            (&mut self.sendfile, &worker.sendfile),
            (&mut self.spliced, &worker.spliced),
            (&mut self.opened, &worker.opened),
            (&mut self.reused, &worker.reused),
            (&mut self.filled_copied, &worker.filled_copied),
            (&mut self.filled_spliced, &worker.filled_spliced),
            (&mut self.log_dropped, &worker.log_dropped),
        ] {
            *sum += counter.get();
        }
        self.outcomes.iter_mut().zip(&worker.outcomes).for_each(|(sum, own)| *sum += own.get());
        self.classes.iter_mut().zip(&worker.classes).for_each(|(sum, own)| *sum += own.get());
        self.hits.add(&worker.hits);
        self.others.add(&worker.others);
    }

    /// Returns the number of responses with an outcome.
    pub(crate) fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    /// Returns the number of all exchanges.
    pub(crate) fn exchanges(&self) -> u64 {
        self.outcomes.iter().sum()
    }
}

/// Durations of all workers.
#[derive(Clone, Debug)]
pub(crate) struct Times {
    buckets: [u64; BUCKETS],
    pub(crate) sum_us: u64,
}

impl Default for Times {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], sum_us: 0 }
    }
}

impl Times {
    fn add(&mut self, worker: &Histogram) {
        self.buckets.iter_mut().zip(&worker.buckets).for_each(|(sum, own)| *sum += own.get());
        self.sum_us += worker.sum_us.get();
    }

    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns a quantile in microseconds, at most an eighth too large; 0 without durations.
    pub(crate) fn quantile_us(&self, part: f64) -> u64 {
        let wanted = (self.count() as f64 * part).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return end_us(index);
            }
        }
        0
    }

    /// Returns for each octave its end in microseconds, and the number of durations below it.
    pub(crate) fn octaves(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut below = 0;
        self.buckets.chunks(4).enumerate().map(move |(octave, counts)| {
            below += counts.iter().sum::<u64>();
            (end_us(4 * octave + 3), below)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_below_the_end_of_their_bucket() {
        for us in (0..5000).chain([1 << 20, (1 << 20) + 1, 100_000_000]) {
            let bucket = bucket(us);
            assert!(us < end_us(bucket), "{us}: {bucket}");
            assert!(bucket == 0 || us >= end_us(bucket - 1), "{us}: {bucket}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn sum_adds_all_workers() {
        let (one, other) = (Counters::default(), Counters::default());
        for us in 1..=100 {
            one.hits.add(Duration::from_micros(us));
        }
        other.hits.add(Duration::from_millis(1));
        other.opened.add(3);
        let sum = Sum::of([&one, &other]);
        assert_eq!((sum.hits.count(), sum.hits.sum_us, sum.opened), (101, 6050, 3));
        assert!((50..=64).contains(&sum.hits.quantile_us(0.5)), "{}", sum.hits.quantile_us(0.5));
        assert!((1000..=1250).contains(&sum.hits.quantile_us(1.0)));
        assert_eq!(Sum::default().hits.quantile_us(0.5), 0);
        let octaves: Vec<_> = sum.hits.octaves().collect();
        assert_eq!((octaves[0], octaves[1], octaves.last()), ((4, 3), (8, 7), Some(&(1 << 27, 101))));
    }
}
