//! Background check of stored bytes, on a thread of its own, at a limited rate. It adds hashes to
//! new bodies that did not pass through memory, soon after their commit, while they are in the page
//! cache. Apart from that it reads all records in passes, file by file in the order of their
//! offsets, compares them with their hashes, and removes damaged ones.
//!
//! It holds no file while it waits, so that it does not delay the freeing of evicted ones. A failed
//! read is counted, and the record stays.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use strait_os::clock::thread_cpu_time;

use crate::check::{Check, Step};
use crate::config::Scrub;
use crate::eviction;
use crate::file::{SegmentFile, lock};
use crate::record::Record;
use crate::shared::Shared;

/// Bytes that a record counts at least: a short one costs an access to the disk.
const RECORD_BYTES_MIN: u64 = 16 << 10;
/// Shortest wait. Shorter ones are added up.
const WAIT_MIN: Duration = Duration::from_millis(2);
/// Priority of the thread: lower than those of the callers (nice(2)).
const NICE: i32 = 10;

/// Checks records until the store is closed.
pub(crate) fn run(shared: &Shared, config: Scrub) {
    // Without the lower priority it works as well.
    let _ = rustix::process::setpriority_process(None, NICE);
    shared.loading.wait();
    let (pace, cpu) = (Pace::new(config.bytes_per_second), thread_cpu_time());
    let mut worker = Worker { shared, pace, cpu };
    let mut due = Instant::now();
    loop {
        worker.add_hashes();
        // Checked before each wait: an earlier wait may have used up the wake-up of the close.
        if shared.lifecycle.is_closed() {
            return;
        }
        let now = Instant::now();
        if now < due {
            thread::park_timeout(due - now);
            continue;
        }
        worker.pass();
        due = now + config.every;
    }
}

struct Worker<'a> {
    shared: &'a Shared,
    pace: Pace,
    /// CPU time of the thread at the last count.
    cpu: Duration,
}

impl Worker<'_> {
    /// Adds hashes to the queued bodies.
    fn add_hashes(&mut self) {
        while let Some(record) = self.shared.new_bodies.pop() {
            self.check(&record, true);
        }
    }

    /// Checks all records once. New bodies come first.
    fn pass(&mut self) {
        // Before the others are listed: a caller may wait in its lane for eviction to free them.
        let appended: Vec<_> =
            self.shared.lanes.iter().filter_map(|lane| lock(lane).current.clone()).collect();
        let mut files: Vec<_> = self.shared.segments.queued().into_iter().chain(appended).collect();
        // Only the scrub checks parts of very long bodies, which have files of their own.
        files.sort_by_key(|file| !file.is_own());
        let files: Vec<_> = files.into_iter().map(|file| Arc::downgrade(&file)).collect();
        for file in files {
            for record in self.records_of(&file) {
                self.add_hashes();
                self.check(&record, false);
                if self.shared.lifecycle.is_closed() {
                    return;
                }
            }
        }
    }

    /// Records with their head in a file, by offset.
    fn records_of(&self, file: &Weak<SegmentFile>) -> Vec<Arc<Record>> {
        let Some(file) = file.upgrade() else { return Vec::new() };
        let offset = |record: &Arc<Record>| {
            let location = record.location()?;
            Arc::ptr_eq(&location.head, &file).then_some(location.offset)
        };
        let members = eviction::members(self.shared, &file, &file.members());
        let mut records: Vec<_> =
            members.into_iter().filter_map(|record| Some((offset(&record)?, record))).collect();
        records.sort_unstable_by_key(|(offset, _)| *offset);
        records.into_iter().map(|(_, record)| record).collect()
    }

    /// Checks a record at the limited rate. New bodies are read between the pieces of others, and
    /// only if a pass has not added their hash meanwhile. Damage and failed reads are counted by
    /// the steps.
    fn check(&mut self, record: &Arc<Record>, is_new: bool) {
        let mut check = Check::new(record);
        let mut bytes_min = RECORD_BYTES_MIN;
        while record.is_alive() && !self.shared.lifecycle.is_closed() {
            let Ok(step) = check.step(self.shared) else { return };
            if is_new && check.has_hash() == Some(true) {
                return;
            }
            self.count(&step);
            self.pace.wait(self.shared, step.bytes.max(bytes_min));
            if step.outcome.is_some() {
                return;
            }
            bytes_min = 0;
            if !is_new {
                self.add_hashes();
            }
        }
    }

    fn count(&mut self, step: &Step) {
        let counters = &self.shared.counters;
        let before = std::mem::replace(&mut self.cpu, thread_cpu_time());
        counters.scrub_cpu_ns.add(self.cpu.saturating_sub(before).as_nanos() as u64);
        counters.scrubbed_bytes.add(step.bytes);
        counters.scrubbed.add(step.outcome.is_some().into());
    }
}

/// Limit of a rate, without bursts.
struct Pace {
    bytes_per_second: u64,
    due: Instant,
}

impl Pace {
    fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), due: Instant::now() }
    }

    /// Waits until `bytes` may have been read, or the store is closed.
    fn wait(&mut self, shared: &Shared, bytes: u64) {
        let took = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        self.due = self.due.max(Instant::now()) + took;
        let is_over = |left: Duration| left.is_zero() || shared.lifecycle.is_closed();
        let mut left = self.due.saturating_duration_since(Instant::now());
        if left < WAIT_MIN {
            return;
        }
        while !is_over(left) {
            thread::park_timeout(left);
            left = self.due.saturating_duration_since(Instant::now());
        }
    }
}
