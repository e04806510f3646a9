//! Clocks, CPU time and the time zone: clock_gettime(2), localtime_r(3).
//!
//! Engines read a clock for timestamps and deadlines, never to interpret a packet.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
pub use strait_sys::local_time::{local_format, local_offset_s};

/// Returns the nanoseconds of `CLOCK_REALTIME`: the clock of packet timestamps.
pub fn realtime_ns() -> u64 {
    nanoseconds(ClockId::Realtime)
}

/// Returns the nanoseconds of `CLOCK_MONOTONIC`: the clock of `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Returns `CLOCK_MONOTONIC` as of the last tick, some milliseconds old, at a tenth of the cost of
/// the exact one.
pub fn monotonic_coarse() -> Duration {
    Duration::from_nanos(nanoseconds(ClockId::MonotonicCoarse))
}

/// Returns the CPU time of the calling thread, user and system.
pub fn thread_cpu_time() -> Duration {
    Duration::from_nanos(nanoseconds(ClockId::ThreadCPUTime))
}

/// Returns the nanoseconds to add to a `CLOCK_MONOTONIC` time to get `CLOCK_REALTIME`. The offset
/// changes when the wall clock is set or slewed. It is measured as the middle of the tightest of a
/// few readings.
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
