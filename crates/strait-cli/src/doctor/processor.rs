//! Findings on the CPU settings that delay waking: idle states and frequency.
//!
//! Only the findings for captures call it. It reads sysfs (Documentation/admin-guide/pm/cpuidle.rst
//! and cpufreq.rst). Tests pass a directory of their own.

use std::fs;
use std::path::{Path, PathBuf};

use super::finding::Recorder;

/// Maximum number of examined CPUs.
const CPUS_MAX: usize = 4096;
/// Idle states of a CPU (`CPUIDLE_STATE_MAX` of linux/cpuidle.h is 10).
const STATES_MAX: u32 = 16;
/// Acceptable wake-up time: waiting for an interrupt costs as much in any case.
const WAKE_MAX_US: u64 = 50;

/// Examines all CPUs below `directory`, which is `/sys/devices/system/cpu` except in tests.
pub(super) fn examine(directory: &Path, recorder: &mut Recorder<'_>) {
    let cpus = online(directory);
    let mut governors: Vec<String> =
        cpus.iter().filter_map(|cpu| read(cpu, "cpufreq/scaling_governor")).collect();
    governors.sort_unstable();
    governors.dedup();
    if !governors.is_empty() {
        let good = governors == ["performance"];
        let message = format!("frequency governor {}", governors.join(", "));
        recorder.judge(good, "cpu frequency", message, "cpupower frequency-set -g performance");
    }
    if let Some(deepest_us) = cpus.iter().filter_map(|cpu| deepest_us(cpu)).max() {
        let message = format!("waking from the deepest idle state takes {deepest_us} us");
        let fix = format!("cpupower idle-set -D {WAKE_MAX_US}");
        recorder.judge(deepest_us <= WAKE_MAX_US, "cpu idle", message, &fix);
    }
}

fn online(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_cpu = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("cpu"));
        name.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let cpus = entries.map(|entry| entry.path()).filter(is_cpu).take(CPUS_MAX);
    // A CPU that cannot be taken offline has no file `online`.
    cpus.filter(|cpu| read(cpu, "online").is_none_or(|online| online != "0")).collect()
}

/// Returns the wake-up time from the deepest enabled idle state of this CPU.
fn deepest_us(cpu: &Path) -> Option<u64> {
    let states = (0..STATES_MAX).map(|state| cpu.join(format!("cpuidle/state{state}")));
    let states = states.take_while(|state| state.is_dir());
    let enabled = states.filter(|state| read(state, "disable").is_none_or(|disabled| disabled == "0"));
    enabled.filter_map(|state| read(&state, "latency")?.parse().ok()).max()
}

fn read(directory: &Path, file: &str) -> Option<String> {
    Some(fs::read_to_string(directory.join(file)).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::args::Area;
    use super::super::finding::{Finding, State};
    use super::*;

    fn write(file: &Path, text: &str) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn state(directory: &Path, cpu: u32, state: u32, latency_us: u64, disabled: bool) {
        let state = directory.join(format!("cpu{cpu}/cpuidle/state{state}"));
        write(&state.join("latency"), &format!("{latency_us}\n"));
        write(&state.join("disable"), if disabled { "1\n" } else { "0\n" });
    }

    fn found(directory: &Path) -> Vec<Finding> {
        let mut findings = Vec::new();
        examine(directory, &mut Recorder::new(Area::Capture, &mut findings));
        findings
    }

    #[test]
    fn deepest_enabled_state_of_any_cpu_counts() {
        let directory = tempfile::tempdir().unwrap();
        for cpu in [0, 1] {
            state(directory.path(), cpu, 0, 0, false);
            state(directory.path(), cpu, 1, 2, false);
        }
        state(directory.path(), 1, 2, 133, false);
        let deep = found(directory.path());
        assert!(deep[0].state == State::Better && deep[0].message.contains("133 us"), "{deep:?}");
        // The effect of the fix.
        state(directory.path(), 1, 2, 133, true);
        let light = found(directory.path());
        assert!(light[0].state == State::Ok && light[0].message.contains(" 2 us"), "{light:?}");
    }

    #[test]
    fn offline_cpus_do_not_count_and_one_slow_governor_does() {
        let directory = tempfile::tempdir().unwrap();
        for (cpu, governor) in [(0, "performance"), (1, "powersave"), (2, "performance")] {
            write(&directory.path().join(format!("cpu{cpu}/cpufreq/scaling_governor")), governor);
        }
        write(&directory.path().join("cpuidle/current_driver"), "none");
        let mixed = found(directory.path());
        assert!(mixed[0].state == State::Better && mixed[0].message.contains("performance, powersave"));
        write(&directory.path().join("cpu1/online"), "0\n");
        let rest = found(directory.path());
        assert!(rest.len() == 1 && rest[0].state == State::Ok, "{rest:?}");
    }
}
