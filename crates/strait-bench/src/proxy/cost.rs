//! What a program and those that it started have cost: CPU time and memory.

use std::fs;
use std::time::Duration;

use crate::error::Result;
use strait_sys::process;

/// Processes of a tree at most.
const PROCESSES_MAX: usize = 256;

/// The process and all that descend from it (proc_pid_task(5), `children`).
pub(crate) fn tree(root: u32) -> Vec<u32> {
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

/// CPU time of the tree so far, user and system, that of processes that have ended left out.
///
/// # Errors
/// The process itself has ended.
pub(crate) fn cpu(root: u32) -> Result<Duration> {
    let mut cpu = process::cpu_time_of(root)?;
    for process in tree(root).into_iter().skip(1) {
        // One that ends meanwhile has none any more.
        cpu += process::cpu_time_of(process).unwrap_or_default();
    }
    Ok(cpu)
}

/// The most memory that each process of the tree has had at once, added up, in bytes (`VmHWM`).
pub(crate) fn memory(root: u32) -> u64 {
    let of = |process: u32| {
        let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        line.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
    };
    tree(root).into_iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_its_children_and_their_cost() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let own = std::process::id();
        let (processes, memory, cpu) = (tree(own), memory(own), cpu(own));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(processes[0] == own && processes.contains(&child.id()));
        assert!(memory > 0 && cpu.unwrap() > Duration::ZERO);
    }
}
