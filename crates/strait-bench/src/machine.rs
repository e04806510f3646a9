//! Machine, program and command line of a run: the context of its figures.

use std::fs;

use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};
use strait_os::process;
use strait_sys::libpcap;
use time::OffsetDateTime;

use crate::error::{Error, Result};

/// Machine, program and command line of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Start of the run in UTC, by the system clock.
    pub date: String,
    /// The command line.
    pub command: String,
    /// Commit of the program, as given by the user.
    pub commit: String,
    /// Program name and version.
    pub program: String,
    /// Kernel name and release.
    pub kernel: String,
    /// Processor model.
    pub cpu: String,
    /// Number of online CPUs.
    pub cpus: u32,
    /// Memory in KiB.
    pub memory_kib: u64,
    /// Load averages of the last 1, 5 and 15 minutes before the run: figures from a busy machine
    /// are less reliable.
    pub load_average: String,
    /// Version of libpcap; empty if not installed.
    pub libpcap: String,
    /// Versions of tcpdump and its libraries; empty if it was not measured.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tcpdump: String,
}

impl Machine {
    /// Detects the properties of this machine; unknown ones stay empty.
    pub fn detect(command: String, commit: String, program: String) -> Self {
        let uname = rustix::system::uname();
        let word = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        Self {
            date: utc(strait_os::clock::realtime_ns() / 1_000_000_000),
            command,
            commit,
            program,
            kernel: format!("{} {}", word(uname.sysname()), word(uname.release())),
            cpu: field("/proc/cpuinfo", "model name"),
            cpus: process::cpus(),
            memory_kib: field("/proc/meminfo", "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0),
            load_average: load_average(),
            libpcap: libpcap::version().unwrap_or_default(),
            tcpdump: String::new(),
        }
    }
}

/// Returns the numbers of the CPUs that this process may use, ascending.
///
/// # Errors
/// sched_getaffinity(2) fails, which does not happen for the own process.
pub fn usable_cpus() -> Result<Vec<u32>> {
    let set = rustix::thread::sched_getaffinity(None)
        .map_err(|error| Error::file("ask which CPUs this process may use", error))?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|cpu| cpu as u32).collect())
}

fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

/// Returns the value of the first `name : value` line of a file.
fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let value = |line: &str| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim().to_owned())
    };
    text.lines().find_map(value).unwrap_or_default()
}

/// Formats seconds since the epoch, such as `2025-01-31T12:00:00Z`.
fn utc(seconds: u64) -> String {
    let time =
        i64::try_from(seconds).ok().and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    let time = time.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let ((year, month, day), (hour, minute, second)) = (time.to_calendar_date(), time.to_hms());
    format!("{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z", u8::from(month))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_formatted_as_date() {
        assert_eq!(utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(utc(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(utc(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(utc(1_735_689_599), "2024-12-31T23:59:59Z");
    }

    #[test]
    fn kernel_and_cpus_are_detected() {
        let machine = Machine::detect("command".into(), String::new(), "strait".into());
        assert!(machine.kernel.starts_with("Linux ") && machine.cpus > 0 && machine.memory_kib > 0);
    }
}
