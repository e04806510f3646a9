//! Local time of the C library, which knows the time zone: localtime_r(3), strftime(3).
//!
//! `clock` of strait-os returns it to the programs.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

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
