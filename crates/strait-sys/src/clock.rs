//! Clocks, CPU time and the time zone: clock_gettime(2), localtime_r(3).
//!
//! Engines read a clock for timestamps and deadlines, never to interpret a packet.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

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

/// Formats the local time at `seconds` since the epoch (strftime(3)), for example with
/// `%Y-%m-%d_%H%M%S`. A `%` without a valid conversion stays, as in the C library. Returns `None`
/// for a NUL byte in `format`, and for a result that is empty or exceeds 4,095 bytes.
pub fn local_format(format: &OsStr, seconds: i64) -> Option<OsString> {
    const BYTES_MAX: usize = 4096;
    let format = CString::new(format.as_bytes()).ok()?;
    // libc's name for the type is deprecated on musl.
    let seconds = seconds as _;
    let mut text = vec![0_u8; BYTES_MAX];
    // SAFETY: tm is plain data, for which zeroes are valid.
    let mut local: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both point at live values. Nothing in this process changes the environment that it
    // reads.
    let found = unsafe { libc::localtime_r(&raw const seconds, &raw mut local) };
    if found.is_null() {
        return None;
    }
    // SAFETY: text has room for BYTES_MAX bytes, the format ends with NUL, and localtime_r has
    // filled in local.
    let len =
        unsafe { libc::strftime(text.as_mut_ptr().cast(), BYTES_MAX, format.as_ptr(), &raw const local) };
    text.truncate(len);
    (len > 0).then(|| OsString::from_vec(text))
}

/// Returns the seconds by which the local time zone (`TZ`, /etc/localtime) is ahead of UTC at
/// `seconds` since the epoch. Returns 0 if the zone is unknown.
pub fn local_offset_s(seconds: i64) -> i64 {
    // libc's name for the type is deprecated on musl.
    let seconds = seconds as _;
    // SAFETY: tm is plain data, for which zeroes are valid; its zone pointer is not used.
    let mut local: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both point at live values. Nothing in this process changes the environment that it
    // reads.
    let found = unsafe { libc::localtime_r(&raw const seconds, &raw mut local) };
    if found.is_null() { 0 } else { local.tm_gmtoff }
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
