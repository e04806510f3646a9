//! CPU time of the kernel's softirq threads, which process packets that the sending program did not
//! process itself.

use std::fs;
use std::time::Duration;

use strait_os::process;

use crate::error::{Error, Result};

/// Returns the CPU time of the softirq threads of `cpus` so far.
///
/// # Errors
/// The threads are not visible, as in a container.
pub(super) fn cpu_time(cpus: &[u32]) -> Result<Duration> {
    let mut time = Duration::ZERO;
    for cpu in cpus {
        time += process::cpu_time_of(thread_of(*cpu)?)?;
    }
    Ok(time)
}

/// Returns the id of the thread `ksoftirqd/CPU`.
fn thread_of(cpu: u32) -> Result<u32> {
    let name = format!("ksoftirqd/{cpu}\n");
    let entries = fs::read_dir("/proc").map_err(|error| Error::file("read /proc", error))?;
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    // A process that ended meanwhile has no name.
    let is_named = |id: &u32| fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|comm| comm == name);
    ids.into_iter().find(is_named).ok_or_else(|| {
        Error::Usage(format!(
            "{} is not visible here, so the host's cost cannot be measured: run outside a container",
            name.trim_end()
        ))
    })
}
