//! Counters of a worker, which other threads read at any time.
//!
//! One thread writes to a block, so that adding is a load and a store without a lock. Readers get
//! recent numbers, which need not be consistent with each other.

use std::sync::atomic::{AtomicU64, Ordering};

use strait_http2::Abuse;
use strait_ledger::SingleWriterCounter;
use strait_ledger::buckets::{self, Buckets};

use crate::io::tls::Failure;
use crate::observe::access::{Account, Outcome};
use crate::observe::refusals::Refusal;

/// Number of outcomes.
const OUTCOMES: usize = Outcome::ALL.len();
/// Number of limits of HTTP/2 connections.
const ABUSES: usize = Abuse::ALL.len();
/// Number of reasons why handshakes fail.
const FAILURES: usize = Failure::ALL.len();
/// Number of reasons for which connections are refused.
const REFUSALS: usize = Refusal::ALL.len();
/// Classes of statuses by their first digit; 0 without a status.
pub(crate) const CLASSES: usize = 6;

/// Bits of a duration's bucket below its octave: four buckets an octave are precise enough for the
/// metrics and the report, and fit into the block of a worker.
const BITS: u32 = 2;
/// Durations of up to two minutes, in microseconds.
pub(crate) type Durations = Buckets<BITS, { buckets::len(BITS, (1 << 27) - 1) }>;

/// Counters of a worker, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    /// Connections accepted and open, and refused ones by reason.
    pub(crate) accepted: SingleWriterCounter,
    pub(crate) open: SingleWriterCounter,
    pub(crate) refused: [SingleWriterCounter; REFUSALS],
    /// Failed TLS handshakes, by reason.
    pub(crate) handshakes: [SingleWriterCounter; FAILURES],
    outcomes: [SingleWriterCounter; OUTCOMES],
    classes: [SingleWriterCounter; CLASSES],
    /// Responses that ended early.
    cut: SingleWriterCounter,
    /// Bytes to clients, by mechanism.
    copied: SingleWriterCounter,
    sendfile: SingleWriterCounter,
    spliced: SingleWriterCounter,
    /// Durations of hits, and of other responses except tunnels.
    hits: Durations,
    others: Durations,
    /// Connections to origins that were opened, and requests on idle ones.
    pub(crate) opened: SingleWriterCounter,
    pub(crate) reused: SingleWriterCounter,
    /// Bytes into the cache, by mechanism.
    pub(crate) filled_copied: SingleWriterCounter,
    pub(crate) filled_spliced: SingleWriterCounter,
    /// Lines of the access log that were dropped because its queue was full.
    pub(crate) log_dropped: SingleWriterCounter,
    /// Streams of HTTP/2 connections, and open ones.
    pub(crate) http2_streams: SingleWriterCounter,
    pub(crate) http2_open: SingleWriterCounter,
    /// HTTP/2 connections that exceeded a limit, by limit.
    pub(crate) http2_abuse: [SingleWriterCounter; ABUSES],
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
        let took_us = account.took.as_micros() as u64;
        match record.outcome {
            Outcome::Hit => self.hits.record(took_us),
            Outcome::Tunnel | Outcome::Unanswered => {}
            _ => self.others.record(took_us),
        }
    }
}

/// Reason for which a span was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanLoss {
    /// The queue was full.
    Queue,
    /// The collector could not be reached, or was overloaded, at each attempt.
    Collector,
    /// The collector has refused it.
    Refused,
    /// The proxy ended before it was sent.
    End,
}

impl SpanLoss {
    pub(crate) const ALL: [Self; 4] = [Self::Queue, Self::Collector, Self::Refused, Self::End];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Collector => "collector",
            Self::Refused => "refused",
            Self::End => "end",
        }
    }
}

/// Counters of exported spans, of all workers.
#[derive(Debug, Default)]
pub(crate) struct SpanCounters {
    sent: AtomicU64,
    lost: [AtomicU64; SpanLoss::ALL.len()],
}

impl SpanCounters {
    /// Counts spans that a collector has accepted.
    #[cfg(feature = "otlp")]
    pub(crate) fn send(&self, spans: u64) {
        self.sent.fetch_add(spans, Ordering::Relaxed);
    }

    /// Counts spans that were dropped.
    #[cfg(feature = "otlp")]
    pub(crate) fn lose(&self, loss: SpanLoss, spans: u64) {
        self.lost[loss as usize].fetch_add(spans, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn lost(&self, loss: SpanLoss) -> u64 {
        self.lost[loss as usize].load(Ordering::Relaxed)
    }
}

/// Sums of all workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) accepted: u64,
    pub(crate) open: u64,
    pub(crate) refused: [u64; REFUSALS],
    pub(crate) outcomes: [u64; OUTCOMES],
    pub(crate) classes: [u64; CLASSES],
    pub(crate) cut: u64,
    pub(crate) copied: u64,
    pub(crate) sendfile: u64,
    pub(crate) spliced: u64,
    pub(crate) hits: Durations,
    pub(crate) others: Durations,
    pub(crate) opened: u64,
    pub(crate) reused: u64,
    pub(crate) filled_copied: u64,
    pub(crate) filled_spliced: u64,
    pub(crate) log_dropped: u64,
    pub(crate) http2_streams: u64,
    pub(crate) http2_abuse: [u64; ABUSES],
    pub(crate) handshakes: [u64; FAILURES],
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
            (&mut self.cut, &worker.cut),
            (&mut self.copied, &worker.copied),
            (&mut self.sendfile, &worker.sendfile),
            (&mut self.spliced, &worker.spliced),
            (&mut self.opened, &worker.opened),
            (&mut self.reused, &worker.reused),
            (&mut self.filled_copied, &worker.filled_copied),
            (&mut self.filled_spliced, &worker.filled_spliced),
            (&mut self.log_dropped, &worker.log_dropped),
            (&mut self.http2_streams, &worker.http2_streams),
        ] {
            *sum += counter.get();
        }
        self.outcomes.iter_mut().zip(&worker.outcomes).for_each(|(sum, own)| *sum += own.get());
        self.classes.iter_mut().zip(&worker.classes).for_each(|(sum, own)| *sum += own.get());
        self.http2_abuse.iter_mut().zip(&worker.http2_abuse).for_each(|(sum, own)| *sum += own.get());
        self.refused.iter_mut().zip(&worker.refused).for_each(|(sum, own)| *sum += own.get());
        self.handshakes.iter_mut().zip(&worker.handshakes).for_each(|(sum, own)| *sum += own.get());
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

/// Returns a quantile in microseconds, too large by a quarter or 1 us at most; 0 without durations.
pub(crate) fn quantile_us(durations: &Durations, fraction: f64) -> u64 {
    durations.quantile(fraction).map_or(0, |bucket| bucket.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_adds_all_workers() {
        let (one, other) = (Counters::default(), Counters::default());
        for us in 1..=100 {
            one.hits.record(us);
        }
        other.hits.record(1000);
        other.opened.add(3);
        let sum = Sum::of([&one, &other]);
        assert_eq!((sum.hits.count(), sum.hits.sum(), sum.opened), (101, 6050, 3));
        assert!((50..=64).contains(&quantile_us(&sum.hits, 0.5)), "{}", quantile_us(&sum.hits, 0.5));
        assert!((1000..=1250).contains(&quantile_us(&sum.hits, 1.0)));
        assert_eq!(quantile_us(&Sum::default().hits, 0.5), 0);
        let octaves: Vec<_> = sum.hits.octaves().collect();
        assert_eq!((octaves[0], octaves[1], octaves.last()), ((4, 3), (8, 7), Some(&(1 << 27, 101))));
    }
}
