//! Clocks and CPU time: clock_gettime(2), getrusage(2).
//!
//! Engines read a clock to stamp and to keep deadlines, never to decide what a packet means.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_REALTIME`: the clock of packet timestamps.
pub fn realtime_ns() -> u64 {
    nanoseconds(ClockId::Realtime)
}

/// Nanoseconds of `CLOCK_MONOTONIC`: the clock of `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// CPU time of this process, all threads, user and system.
pub fn process_cpu_time() -> Duration {
    Duration::from_nanos(nanoseconds(ClockId::ProcessCPUTime))
}

/// CPU time of the calling thread, user and system.
pub fn thread_cpu_time() -> Duration {
    Duration::from_nanos(nanoseconds(ClockId::ThreadCPUTime))
}

/// What to add to a `CLOCK_MONOTONIC` time to get `CLOCK_REALTIME`, in nanoseconds. It changes when the wall clock
/// is set or slewed; measured as the middle of the closest of a few readings.
pub fn realtime_offset_ns() -> i64 {
    const READINGS: usize = 5;
    let reading = || {
        let before = monotonic_ns();
        let real = realtime_ns();
        let after = monotonic_ns();
        (after - before, real as i64 - (before + (after - before) / 2) as i64)
    };
    let best = (0..READINGS).map(|_| reading()).min_by_key(|&(width, _)| width);
    best.map_or(0, |(_, offset)| offset)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
