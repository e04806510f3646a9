//! Choice of the method that moves long bodies into the store, with `transfer.fill = "auto"`.
//!
//! Splicing copies a body once, in small pieces, and the scrub reads it again for its hash. Copying
//! copies it twice, in large pieces, and hashes it on the way. Which of them takes less CPU time
//! depends on the processor, the file system and the scrub, so a worker measures both: it uses the
//! cheaper one, and the other one for one in sixteen bodies.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use strait_os::clock::thread_cpu_time;

use crate::config::file::FillMethod;

/// Shortest body that is measured.
pub(crate) const MEASURED_BYTES_MIN: u64 = 256 << 10;
/// Bytes of each method before the first choice by cost.
const FIRST_BYTES: u64 = 8 << 20;
/// Bytes after which older measurements count half.
const WINDOW_BYTES: u64 = 256 << 20;
/// Additional CPU time of sendfile for each byte that was spliced into the store, in nanoseconds:
/// its pages are single ones, and those of a copied one are together in large folios. Measured as
/// 172 and 104 us a MB. Each body is sent once at least.
const SEND_NS_PER_BYTE: f64 = 0.068;
/// Bodies per body that the dearer method moves.
const TRIAL_EVERY: u32 = 16;

/// Measured CPU time of both methods.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FillCosts {
    splice: Cost,
    copy: Cost,
    /// Bodies since the last trial of the dearer method.
    since_trial: u32,
}

/// CPU time of some bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    bytes: u64,
    cpu: Duration,
}

impl Cost {
    fn add(&mut self, bytes: u64, cpu: Duration) {
        self.bytes += bytes;
        self.cpu += cpu;
        if self.bytes > WINDOW_BYTES {
            self.bytes /= 2;
            self.cpu /= 2;
        }
    }

    fn ns_per_byte(self) -> f64 {
        self.cpu.as_nanos() as f64 / self.bytes.max(1) as f64
    }
}

impl FillCosts {
    /// Returns the method for the next long body. `hash_ns_per_byte` is the time that the scrub
    /// takes to hash a spliced byte.
    pub(crate) fn choose(&mut self, hash_ns_per_byte: f64) -> FillMethod {
        if self.splice.bytes.min(self.copy.bytes) < FIRST_BYTES {
            let splices = self.splice.bytes <= self.copy.bytes;
            return if splices { FillMethod::Splice } else { FillMethod::Copy };
        }
        let splice_ns_per_byte = self.splice.ns_per_byte() + hash_ns_per_byte + SEND_NS_PER_BYTE;
        let splices = splice_ns_per_byte <= self.copy.ns_per_byte();
        self.since_trial = (self.since_trial + 1) % TRIAL_EVERY;
        let is_trial = self.since_trial == 0;
        if splices == is_trial { FillMethod::Copy } else { FillMethod::Splice }
    }

    /// Adds the CPU time of a body that `method` moved.
    pub(crate) fn add(&mut self, method: FillMethod, bytes: u64, cpu: Duration) {
        match method {
            FillMethod::Splice => self.splice.add(bytes, cpu),
            FillMethod::Copy => self.copy.add(bytes, cpu),
            FillMethod::Auto => {}
        }
    }
}

/// Returns the result of `work`, and the CPU time of this thread that it took.
pub(crate) async fn with_cpu_time<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let mut work = pin!(work);
    let mut cpu = Duration::ZERO;
    let done = std::future::poll_fn(|context| -> Poll<T> {
        let began = thread_cpu_time();
        let polled = work.as_mut().poll(context);
        cpu += thread_cpu_time().saturating_sub(began);
        polled
    });
    let done = done.await;
    (done, cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Chooses the method of `bodies` bodies of 1 MiB that cost so many nanoseconds a byte, and
    /// returns how many were copied.
    fn copied(costs: &mut FillCosts, bodies: u32, (splice, copy, hash): (u64, u64, f64)) -> u32 {
        let mut copied = 0;
        for _ in 0..bodies {
            let method = costs.choose(hash);
            let copies = method == FillMethod::Copy;
            copied += u32::from(copies);
            costs.add(method, MIB, Duration::from_nanos(MIB * if copies { copy } else { splice }));
        }
        copied
    }

    #[test]
    fn cheaper_method_moves_most_bodies() {
        let mut costs = FillCosts::default();
        assert_eq!(copied(&mut costs, 16, (2, 3, 0.0)), 8, "first both are measured");
        assert_eq!(copied(&mut costs, 160, (2, 3, 0.0)), 10, "splicing is cheaper");
        assert_eq!(copied(&mut costs, 160, (2, 3, 1.5)), 150, "splicing with the hash is dearer");
    }

    #[test]
    fn choice_follows_a_change_of_the_costs() {
        let mut costs = FillCosts::default();
        copied(&mut costs, 1000, (2, 4, 0.0));
        copied(&mut costs, 10_000, (4, 2, 0.0));
        assert_eq!(copied(&mut costs, 160, (4, 2, 0.0)), 150);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn time_of_other_tasks_is_not_counted() {
        let spin = |duration: Duration| {
            let began = thread_cpu_time();
            while thread_cpu_time().saturating_sub(began) < duration {}
        };
        let (spun, waited) = (Duration::from_millis(2), Duration::from_millis(50));
        let work = async {
            spin(spun);
            tokio::task::yield_now().await;
            spin(spun);
        };
        let (((), cpu), ()) = tokio::join!(with_cpu_time(work), async { spin(waited) });
        assert!(cpu >= 2 * spun && cpu < waited, "{cpu:?}");
    }
}
