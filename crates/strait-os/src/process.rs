//! CPU affinity, timer slack, identity and signals of this process and its threads.
//!
//! The programs and the lanes call it. Only the signal handlers keep state: one flag a signal.

use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, CpuSet, SecureComputingMode,
    capabilities_secure_bits, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, sched_getaffinity, sched_setaffinity, secure_computing_mode,
    set_capabilities, set_capabilities_secure_bits, set_current_timer_slack, set_no_new_privs,
};
use strait_sys::signal::{self, Handling};
use strait_sys::syscall;
pub use strait_sys::syscall::cpu_time_of;

use crate::{Error, Kind, Result};

/// Pins the calling thread to `cpu` (sched_setaffinity(2)).
///
/// # Errors
/// [`Kind::Usage`] if the machine has no such CPU or the process may not use it.
pub fn pin_thread(cpu: u32) -> Result<()> {
    pin_thread_to(&[cpu])
}

/// Restricts the calling thread, and the threads that it starts later, to `cpus`.
///
/// # Errors
/// As for [`pin_thread`], for any of `cpus`.
pub fn pin_thread_to(cpus: &[u32]) -> Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        check_cpu(cpu)?;
        set.set(cpu as usize);
    }
    sched_setaffinity(None, &set)
        .map_err(|errno| Error::os("pin a thread to", format!("CPUs {cpus:?}"), errno.raw_os_error()))
}

/// Checks that the calling thread may run on `cpu`, before anything is opened.
///
/// # Errors
/// [`Kind::Usage`] if it may not, or the machine has no such CPU.
pub fn check_cpu(cpu: u32) -> Result<()> {
    let (operation, subject) = ("pin a thread to", format!("CPU {cpu}"));
    let allowed = sched_getaffinity(None)
        .map_err(|errno| Error::os("read the CPUs of", "this thread", errno.raw_os_error()))?;
    if (cpu as usize) < CpuSet::MAX_CPU && allowed.is_set(cpu as usize) {
        return Ok(());
    }
    let cause = "no such CPU, or this process may not use it";
    Err(Error::new(Kind::Usage, operation, subject, cause).remedy("`taskset -cp $$` lists the allowed CPUs"))
}

/// Returns the number of CPUs that the kernel can ever have: the highest number of a CPU, plus one.
///
/// # Errors
/// [`Kind::Refused`] if sysfs cannot be read.
pub fn possible_cpus() -> Result<u32> {
    const PATH: &str = "/sys/devices/system/cpu/possible";
    let text = std::fs::read_to_string(PATH).map_err(|error| {
        Error::new(Kind::Refused, "read", PATH, error.to_string()).remedy("mount sysfs at /sys")
    })?;
    // Ranges in rising order, as in "0-3" or "0,2-5".
    let last = text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<u32>().ok());
    let unknown = || Error::new(Kind::Failed, "read", PATH, "its format is unknown");
    last.and_then(|last| last.checked_add(1)).ok_or_else(unknown)
}

/// Returns the number of this machine's CPUs, including those that this process may not use; 0 if
/// /proc/cpuinfo cannot be read or has no `processor` lines.
pub fn cpus() -> u32 {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines().filter(|line| line.starts_with("processor")).count() as u32
}

/// Makes the calling thread's sleeps end on time (`PR_SET_TIMERSLACK`, 1 ns). By default they end
/// up to 50 us late.
pub fn set_precise_sleeps() -> Result<()> {
    set_current_timer_slack(NonZeroU64::new(1))
        .map_err(|errno| Error::os("set the timer slack of", "this thread", errno.raw_os_error()))
}

/// Waits until every CPU has finished the receive path that it was in at the call
/// (`MEMBARRIER_CMD_GLOBAL`, which is `synchronize_rcu`). Afterwards no BPF program that was
/// replaced before the call still runs.
///
/// If the kernel refuses membarrier(2) (`nohz_full`, some sandboxes), sleeps 20 ms instead. By
/// default no CPU polls a driver for longer in one go, but this is no guarantee.
pub fn wait_for_receive_paths() {
    /// At least the time for which a CPU polls a driver in one go by default
    /// (`net.core.netdev_budget_usecs`).
    const RECEIVE_PATH: std::time::Duration = std::time::Duration::from_millis(20);
    if !syscall::membarrier_global() {
        strait_sys::wait::sleep(RECEIVE_PATH);
    }
}

/// Resources that an ended process used, with those of its descendants that it waited for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// User and system time of all threads.
    pub cpu: Duration,
    /// Context switches at the process's own request, such as a sleep.
    pub voluntary_switches: u64,
    /// Context switches at the end of a time slice.
    pub involuntary_switches: u64,
}

/// Returns the status and resources of `child` if it has ended (wait4(2) with WNOHANG), and None
/// while it runs. After Some, its process id is free: do not signal or wait for `child` again.
pub fn try_wait(child: &std::process::Child) -> Result<Option<(ExitStatus, Usage)>> {
    try_wait_for(child.id())
}

/// Like [`try_wait`], for a child process that [`crate::service`] has started.
pub fn try_wait_for(child: u32) -> Result<Option<(ExitStatus, Usage)>> {
    let Some((status, usage)) = syscall::wait4_no_hang(child)? else { return Ok(None) };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    let usage = Usage {
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        voluntary_switches: usage.ru_nvcsw as u64,
        involuntary_switches: usage.ru_nivcsw as u64,
    };
    Ok(Some((ExitStatus::from_raw(status), usage)))
}

/// Makes the kernel kill this process when the thread that started it ends (`PR_SET_PDEATHSIG`).
/// The setting survives execve(2).
pub fn end_with_parent() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| Error::os("tie to its parent", "this process", errno.raw_os_error()))
}

/// Makes SIGALRM end this process after `seconds` (alarm(2)). The alarm survives execve(2).
pub fn end_after(seconds: u32) {
    syscall::alarm(seconds);
}

/// Returns true if the effective user is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns true if the calling thread has `capability` (`CAP_*` of linux/capability.h) in its
/// effective set (capget(2)).
pub fn has_capability(capability: u32) -> Result<bool> {
    let effective = capabilities()?.effective.bits();
    Ok(effective.checked_shr(capability).is_some_and(|bits| bits & 1 != 0))
}

/// Returns true if this process is in the machine's initial user namespace. Elsewhere the kernel's
/// `capable()` fails, regardless of [`has_capability`]: BPF and the limit of locked memory use it
/// (capabilities(7), user_namespaces(7)).
///
/// # Errors
/// If /proc is not mounted.
pub fn is_in_initial_user_namespace() -> Result<bool> {
    /// `USER_NS_INIT_INO` (linux/nsfs.h). The user mapping is no substitute: a child namespace may
    /// map all users.
    const INITIAL: u64 = 0xefff_fffd;
    const NAMESPACE: &str = "/proc/self/ns/user";
    let metadata =
        std::fs::metadata(NAMESPACE).map_err(|error| Error::from_io("look at", NAMESPACE, &error))?;
    Ok(metadata.ino() == INITIAL)
}

/// Returns true if a seccomp filter applies to the calling thread (seccomp(2)): it can refuse calls
/// that the kernel would allow.
pub fn has_seccomp_filter() -> bool {
    secure_computing_mode() == Ok(SecureComputingMode::Filter)
}

/// Returns the umask of this process; 0o077, the safe one, if /proc is not mounted.
///
/// umask(2) can only read it by setting it: for a moment all threads would make files with another
/// one.
pub fn umask() -> u32 {
    const PRIVATE: u32 = 0o077;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(PRIVATE)
}

/// Configure interfaces, attach XDP programs.
pub const CAP_NET_ADMIN: u32 = 12;
/// Open packet sockets and AF_XDP sockets.
pub const CAP_NET_RAW: u32 = 13;
/// Lock memory beyond RLIMIT_MEMLOCK.
pub const CAP_IPC_LOCK: u32 = 14;
/// Use bpf(2) pointer operations and tracing.
pub const CAP_PERFMON: u32 = 38;
/// Load BPF programs.
pub const CAP_BPF: u32 = 39;

/// Capabilities that AF_XDP and the tap need for their programs. Of AF_XDP, locked memory beyond
/// RLIMIT_MEMLOCK needs [`CAP_IPC_LOCK`] too.
pub const AF_XDP_CAPABILITIES: [(u32, &str); 4] = [
    (CAP_NET_RAW, "CAP_NET_RAW"),
    (CAP_NET_ADMIN, "CAP_NET_ADMIN"),
    (CAP_BPF, "CAP_BPF"),
    (CAP_PERFMON, "CAP_PERFMON"),
];

/// Returns the capabilities of the calling thread (capget(2)).
fn capabilities() -> Result<CapabilitySets> {
    rustix::thread::capabilities(None)
        .map_err(|errno| Error::os("read the capabilities of", "this thread", errno.raw_os_error()))
}

/// Create and rename files in every directory.
pub const CAP_DAC_OVERRIDE: u32 = 1;
/// Replace files of other users in a sticky directory of another user.
pub const CAP_FOWNER: u32 = 3;

/// Drops all capabilities of the calling thread, and of the threads that it starts later,
/// permanently (capset(2)). With `keep_file_access` [`CAP_DAC_OVERRIDE`] stays.
pub fn drop_capabilities(keep_file_access: bool) -> Result<()> {
    drop_capabilities_except(if keep_file_access { &[CAP_DAC_OVERRIDE] } else { &[] })
}

/// Like [`drop_capabilities`], but capabilities in `retained` stay if the process has them.
pub fn drop_capabilities_except(retained: &[u32]) -> Result<()> {
    let retained = retained.iter().fold(0, |bits, capability| bits | 1 << capability);
    let remaining = capabilities()?.permitted & CapabilitySet::from_bits_retain(retained);
    let sets =
        CapabilitySets { effective: remaining, permitted: remaining, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)
        .map_err(|errno| Error::os("drop the capabilities of", "this thread", errno.raw_os_error()))
}

/// Change the bounding set and the secure bits.
const CAP_SETPCAP: u32 = 8;

/// Makes the calling thread, and those that it starts later, gain no capability by execve(2):
/// `PR_SET_NO_NEW_PRIVS`, and no ambient ones. With CAP_SETPCAP also an empty bounding set and
/// `SECBIT_NOROOT`. To be called before [`drop_capabilities_except`], which keeps no CAP_SETPCAP.
pub fn refuse_new_capabilities() -> Result<()> {
    let failed = |errno: Errno| Error::os("refuse new capabilities to", "this thread", errno.raw_os_error());
    set_no_new_privs(true).map_err(failed)?;
    clear_ambient_capability_set().map_err(failed)?;
    if !has_capability(CAP_SETPCAP)? {
        return Ok(());
    }
    let no_root = CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED;
    set_capabilities_secure_bits(capabilities_secure_bits().map_err(failed)? | no_root).map_err(failed)?;
    // The kernel knows no capabilities from one number on.
    let numbers = (0..u64::BITS).map(|number| CapabilitySet::from_bits_retain(1 << number));
    for capability in numbers.take_while(|capability| capability_is_in_bounding_set(*capability).is_ok()) {
        remove_capability_from_bounding_set(capability).map_err(failed)?;
    }
    Ok(())
}

/// Makes this process, and the child processes that it forks, unreachable for a debugger without
/// CAP_SYS_PTRACE (`PR_SET_DUMPABLE`). The kernel protects a process with more capabilities than
/// the debugger by itself, but not the children that have dropped theirs.
pub fn refuse_tracers() -> Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|errno| Error::os("refuse tracers to", "this process", errno.raw_os_error()))
}

static TERMINATED: AtomicBool = AtomicBool::new(false);

/// Signals by which users and service managers end a program.
const TERMINATION: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Makes SIGINT, SIGTERM and SIGHUP set a flag instead of ending the process, and returns the flag.
/// A second signal ends the process as usual, even if it hangs, but not within a second of the
/// first one: timeout(1) sends each signal twice. An ignored SIGHUP, as under nohup(1), stays
/// ignored.
pub fn on_termination() -> Result<&'static AtomicBool> {
    for number in TERMINATION {
        if number != libc::SIGHUP || !signal::is_ignored(number)? {
            // The signal interrupts a system call, so that the caller sees the flag at once.
            signal::set_flag_on(number, &TERMINATED, Handling::Debounced)?;
        }
    }
    Ok(&TERMINATED)
}

/// Makes SIGINT, SIGTERM and SIGHUP end the process again, as before [`on_termination`], for work
/// that cannot check a flag. An ignored SIGHUP stays ignored.
pub fn end_on_termination() -> Result<()> {
    for number in TERMINATION {
        if !signal::is_ignored(number)? {
            signal::set_default(number)?;
        }
    }
    Ok(())
}

/// Like [`on_termination`], but leaves SIGHUP to [`on_reload`].
pub fn on_termination_except_hangup() -> Result<&'static AtomicBool> {
    for number in TERMINATION.into_iter().filter(|number| *number != libc::SIGHUP) {
        signal::set_flag_on(number, &TERMINATED, Handling::Debounced)?;
    }
    Ok(&TERMINATED)
}

/// Makes each SIGHUP set a flag, and returns the flag, for a program that reads a file again. It
/// replaces the handling of SIGHUP by [`on_termination`].
pub fn on_reload() -> Result<&'static AtomicBool> {
    signal::set_flag_on(libc::SIGHUP, &RELOADS, Handling::Always)?;
    Ok(&RELOADS)
}

/// Returns true if SIGHUP is ignored, as under nohup(1).
pub fn ignores_hangup() -> Result<bool> {
    signal::is_ignored(libc::SIGHUP)
}

static RELOADS: AtomicBool = AtomicBool::new(false);
static REOPENS: AtomicBool = AtomicBool::new(false);
static UPGRADES: AtomicBool = AtomicBool::new(false);

/// Signals of a service that do not end it.
pub(crate) const REQUESTS: [libc::c_int; 3] = [libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];

/// Flags set by the signals of a service.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    /// Set by SIGTERM or SIGINT: end. A second such signal ends the process as usual.
    pub terminated: &'static AtomicBool,
    /// Set by each SIGHUP: read the configuration again.
    pub reloads: &'static AtomicBool,
    /// Set by each SIGUSR1: open the log again.
    pub reopens: &'static AtomicBool,
    /// Set by each SIGUSR2: start the program again, and hand over to it.
    pub upgrades: &'static AtomicBool,
}

/// Makes the signals of a service set flags. SIGHUP is handled even if it was ignored at start, as
/// under nohup(1): for a service it means reload, and a reload is harmless when a terminal hangs
/// up.
pub fn on_service_signals() -> Result<Signals> {
    signal::set_flag_on(libc::SIGTERM, &TERMINATED, Handling::Once)?;
    signal::set_flag_on(libc::SIGINT, &TERMINATED, Handling::Once)?;
    signal::set_flag_on(libc::SIGUSR1, &REOPENS, Handling::Always)?;
    signal::set_flag_on(libc::SIGUSR2, &UPGRADES, Handling::Always)?;
    signal::set_flag_on(libc::SIGHUP, &RELOADS, Handling::Always)?;
    Ok(Signals { terminated: &TERMINATED, reloads: &RELOADS, reopens: &REOPENS, upgrades: &UPGRADES })
}

/// Signals that a shell or nohup(1) may leave ignored in the programs that it starts.
const IGNORED_BY_SHELLS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP];

/// Makes `command` start with SIGINT, SIGQUIT and SIGHUP at their default action.
///
/// A program inherits ignored signals over execve(2). A shell without job control ignores SIGINT
/// and SIGQUIT in background commands, and nohup(1) ignores SIGHUP. Reset them for a child that
/// must end on one of these signals.
pub fn with_default_signals(command: &mut std::process::Command) -> &mut std::process::Command {
    signal::with_default(command, &IGNORED_BY_SHELLS)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Returns the value of a line of the calling thread's status.
    fn status(name: &str) -> String {
        let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().trim().to_owned()
    }

    #[test]
    fn refused_capabilities_are_not_gained() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let may_change_bounds = super::has_capability(super::CAP_SETPCAP).unwrap();
                super::refuse_new_capabilities().unwrap();
                super::drop_capabilities_except(&[super::CAP_BPF]).unwrap();
                assert_eq!(status("NoNewPrivs"), "1");
                let mut empty = vec!["CapInh", "CapAmb"];
                if may_change_bounds {
                    empty.push("CapBnd");
                    let no_root = super::CapabilitiesSecureBits::NO_ROOT;
                    assert!(super::capabilities_secure_bits().unwrap().contains(no_root));
                }
                for set in empty {
                    assert_eq!(status(set), "0000000000000000", "{set}");
                }
            });
        });
    }

    #[test]
    fn umask_is_read_without_an_effect_on_other_threads() {
        let directory = tempfile::tempdir().unwrap();
        let mode_of_a_new_file = |number: u32| {
            let path = directory.path().join(number.to_string());
            let file = std::fs::File::options().write(true).create_new(true).mode(0o666).open(path).unwrap();
            file.metadata().unwrap().mode() & 0o777
        };
        let expected = 0o666 & !super::umask();
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    let _ = super::umask();
                }
            });
            let modes: Vec<_> = (0..2000).map(mode_of_a_new_file).collect();
            ended.store(true, Ordering::Relaxed);
            assert!(modes.iter().all(|mode| *mode == expected), "{modes:?}");
        });
    }
}
