//! A process and its descendants: CPU time, memory and CPU affinity.

use std::fs;
use std::time::Duration;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};
use strait_os::process;

use crate::error::Result;

/// Limit of processes of a tree.
const PROCESSES_MAX: usize = 256;

/// Returns the process and all its descendants (proc_pid_task(5), `children`).
pub(crate) fn processes(root: u32) -> Vec<u32> {
    let mut processes = vec![root];
    let mut next = 0;
    while let Some(&process) = processes.get(next) {
        next += 1;
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for thread in threads.flatten() {
            let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            processes.extend(text.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
        }
        processes.truncate(PROCESSES_MAX);
    }
    processes
}

/// Returns the CPU time of the tree so far, user and system, without that of ended processes.
///
/// # Errors
/// The root process has ended.
pub(crate) fn cpu(root: u32) -> Result<Duration> {
    let mut cpu = process::cpu_time_of(root)?;
    for process in processes(root).into_iter().skip(1) {
        // A process that ended meanwhile counts as 0.
        cpu += process::cpu_time_of(process).unwrap_or_default();
    }
    Ok(cpu)
}

/// Returns the sum of the peak memory of all processes of the tree, in bytes (`VmHWM`).
pub(crate) fn memory(root: u32) -> u64 {
    sum_of_status(root, "VmHWM:")
}

/// Returns the sum of the present memory of all processes of the tree, in bytes (`VmRSS`).
pub(crate) fn resident(root: u32) -> u64 {
    sum_of_status(root, "VmRSS:")
}

/// Returns the sum of a line of all processes of the tree, in bytes (proc_pid_status(5)).
fn sum_of_status(root: u32, name: &str) -> u64 {
    let of = |process: u32| {
        let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
        line.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
    };
    processes(root).into_iter().map(of).sum()
}

/// Pins every thread of the tree to `cpus`: some programs choose the CPUs of their threads
/// themselves.
pub(crate) fn pin(root: u32, cpus: &[u32]) {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu as usize);
    }
    for process in processes(root) {
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for thread in threads.flatten() {
            let id = thread.file_name().to_str().and_then(|id| Pid::from_raw(id.parse().ok()?));
            // Fails for threads that ended meanwhile.
            let _ = id.map(|id| sched_setaffinity(Some(id), &set));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_includes_children_and_their_cost() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let own = std::process::id();
        let (processes, memory, cpu) = (processes(own), memory(own), cpu(own));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(processes[0] == own && processes.contains(&child.id()));
        assert!(memory > 0 && cpu.unwrap() > Duration::ZERO);
    }
}
