//! CPU affinity, timer slack, identity and signals of this process and its threads.
//!
//! The programs and the lanes call it. Only the signal handlers keep state: one flag a signal.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::thread::{
    CpuSet, SecureComputingMode, sched_getaffinity, sched_setaffinity, secure_computing_mode,
};

use crate::error::{Error, Kind, Result, check};

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

/// Returns the number of this machine's CPUs, including those that this process may not use.
pub fn cpus() -> u32 {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines().filter(|line| line.starts_with("processor")).count() as u32
}

/// Makes the calling thread's sleeps end on time (`PR_SET_TIMERSLACK`, 1 ns). By default they end
/// up to 50 us late.
pub fn end_sleeps_on_time() -> Result<()> {
    // SAFETY: PR_SET_TIMERSLACK takes one integer.
    let returned = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) };
    check(returned, "set the timer slack of", "this thread").map(drop)
}

/// Waits until every CPU has finished the receive path that it was in at the call
/// (`MEMBARRIER_CMD_GLOBAL`, which is `synchronize_rcu`). Afterwards no BPF program that was
/// replaced before the call still runs.
pub fn wait_for_readers() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    /// Longer than a CPU may poll a driver in one go (`net.core.netdev_budget_usecs`).
    const RECEIVE_PATH: std::time::Duration = std::time::Duration::from_millis(20);
    // SAFETY: membarrier(2) takes integers.
    let returned = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if returned != 0 {
        // Unavailable with nohz_full, and in some sandboxes.
        crate::wait::sleep(RECEIVE_PATH);
    }
}

/// Returns the CPU time of the process `pid`: user and system, of all its threads
/// (clock_getcpuclockid(3)).
pub fn cpu_time_of(pid: u32) -> Result<Duration> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: clock is written only.
    let errno = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &raw mut clock) };
    if errno != 0 {
        return Err(Error::os("read the CPU time of", format!("process {pid}"), errno));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is written only.
    let returned = unsafe { libc::clock_gettime(clock, &raw mut time) };
    check(returned, "read the CPU time of", format!("process {pid}"))?;
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
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
    let (mut status, id) = (0, child.id() as libc::pid_t);
    // SAFETY: rusage is plain data, for which zeroes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: status and usage are written only.
    let returned = unsafe { libc::wait4(id, &raw mut status, libc::WNOHANG, &raw mut usage) };
    if check(returned, "wait for", format!("process {id}"))? != id {
        return Ok(None);
    }
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
    // SAFETY: PR_SET_PDEATHSIG takes one integer.
    let returned = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) };
    check(returned, "tie to its parent", "this process").map(drop)
}

/// Makes SIGALRM end this process after `seconds` (alarm(2)). The alarm survives execve(2).
pub fn end_after(seconds: u32) {
    // SAFETY: alarm takes one integer and cannot fail.
    unsafe { libc::alarm(seconds) };
}

/// Returns true if the effective user is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns true if the calling thread has `capability` (`CAP_*` of linux/capability.h) in its
/// effective set (capget(2)).
pub fn has_capability(capability: u32) -> Result<bool> {
    let (_, data) = capabilities()?;
    let word = data.get(capability as usize / 32).map_or(0, |data| data.effective);
    Ok(word & 1 << (capability % 32) != 0)
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

/// `CAP_NET_ADMIN`, `CAP_NET_RAW`, `CAP_IPC_LOCK`, `CAP_PERFMON` and `CAP_BPF`.
pub const CAP_NET_ADMIN: u32 = 12;
/// See [`CAP_NET_ADMIN`].
pub const CAP_NET_RAW: u32 = 13;
/// See [`CAP_NET_ADMIN`].
pub const CAP_IPC_LOCK: u32 = 14;
/// See [`CAP_NET_ADMIN`].
pub const CAP_PERFMON: u32 = 38;
/// See [`CAP_NET_ADMIN`].
pub const CAP_BPF: u32 = 39;

/// Capabilities that AF_XDP and its program need. Locked memory beyond RLIMIT_MEMLOCK needs
/// [`CAP_IPC_LOCK`] too.
pub const AF_XDP_CAPABILITIES: [(u32, &str); 4] = [
    (CAP_NET_RAW, "CAP_NET_RAW"),
    (CAP_NET_ADMIN, "CAP_NET_ADMIN"),
    (CAP_BPF, "CAP_BPF"),
    (CAP_PERFMON, "CAP_PERFMON"),
];

/// Remedy for a missing capability of [`AF_XDP_CAPABILITIES`]. It includes [`CAP_IPC_LOCK`], which
/// kernels before 5.11 require.
pub(crate) const AF_XDP_REMEDY: &str = "needs CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON, and CAP_IPC_LOCK \
    where locked memory is limited: run as root, or setcap \
    cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon,cap_ipc_lock+ep PROGRAM";

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

/// `struct __user_cap_data_struct`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn capabilities() -> Result<(CapabilityHeader, [CapabilityData; 2])> {
    const LINUX_CAPABILITY_VERSION_3: u32 = 0x2008_0522;
    let header = CapabilityHeader { version: LINUX_CAPABILITY_VERSION_3, pid: 0 };
    let mut data = [CapabilityData::default(); 2];
    // SAFETY: version 3 reads one header and writes two data structs.
    let returned = unsafe { libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) };
    check(returned as libc::c_int, "read the capabilities of", "this thread")?;
    Ok((header, data))
}

/// Permission to create and rename files in every directory.
pub const CAP_DAC_OVERRIDE: u32 = 1;
/// Permission to replace files of other users in a sticky directory of another user.
pub const CAP_FOWNER: u32 = 3;

/// Drops all capabilities of the calling thread, and of the threads that it starts later,
/// permanently (capset(2)). With `keep_file_access` [`CAP_DAC_OVERRIDE`] stays.
pub fn drop_capabilities(keep_file_access: bool) -> Result<()> {
    drop_capabilities_except(if keep_file_access { &[CAP_DAC_OVERRIDE] } else { &[] })
}

/// Like [`drop_capabilities`], but `kept` (below 32) stay if the process has them.
pub fn drop_capabilities_except(kept: &[u32]) -> Result<()> {
    let (header, data) = capabilities()?;
    let kept = data[0].permitted & kept.iter().fold(0, |bits, capability| bits | 1 << capability);
    let kept = CapabilityData { effective: kept, permitted: kept, inheritable: 0 };
    let data = [kept, CapabilityData::default()];
    // SAFETY: version 3 reads one header and two data structs.
    let returned = unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
    check(returned as libc::c_int, "drop the capabilities of", "this thread").map(drop)
}

static TERMINATED: AtomicBool = AtomicBool::new(false);

/// Signals by which users and service managers end a program.
const TERMINATION: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Makes SIGINT, SIGTERM and SIGHUP set a flag instead of ending the process, and returns the flag.
/// A second signal ends the process as usual, even if it hangs. An ignored SIGHUP, as under
/// nohup(1), stays ignored.
pub fn on_termination() -> Result<&'static AtomicBool> {
    for signal in TERMINATION {
        // No SA_RESTART: the signal interrupts a system call, so that the caller sees the flag at
        // once.
        let before = on_signal(signal, terminate, libc::SA_RESETHAND)?;
        if signal == libc::SIGHUP && before.sa_sigaction == libc::SIG_IGN {
            // SAFETY: this restores the previous action.
            let returned = unsafe { libc::sigaction(signal, &raw const before, std::ptr::null_mut()) };
            check(returned, "ignore signal", signal.to_string())?;
        }
    }
    Ok(&TERMINATED)
}

/// Makes SIGINT, SIGTERM and SIGHUP end the process again, as before [`on_termination`], for work
/// that cannot check a flag. An ignored SIGHUP stays ignored.
pub fn end_on_termination() -> Result<()> {
    for signal in TERMINATION {
        // SAFETY: sigaction is plain data, for which zeroes are valid: SIG_DFL without flags.
        let (action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
        // SAFETY: a null action only queries the current one.
        let returned = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut before) };
        check(returned, "look at the handler of signal", signal.to_string())?;
        if before.sa_sigaction != libc::SIG_IGN {
            // SAFETY: the default action runs no code of this process.
            let returned = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
            check(returned, "restore the default action of signal", signal.to_string())?;
        }
    }
    Ok(())
}

/// Handles a signal and returns its previous action. The handlers of this module only store to an
/// atomic, which is async-signal-safe.
fn on_signal(
    signal: libc::c_int,
    handler: extern "C" fn(libc::c_int),
    flags: libc::c_int,
) -> Result<libc::sigaction> {
    // SAFETY: sigaction is plain data, for which zeroes are valid.
    let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = flags;
    // SAFETY: the handler is one of this module's, see above.
    let returned = unsafe { libc::sigaction(signal, &raw const action, &raw mut before) };
    check(returned, "handle signal", signal.to_string())?;
    Ok(before)
}

static RELOADS: AtomicBool = AtomicBool::new(false);
static REOPENS: AtomicBool = AtomicBool::new(false);

/// Flags set by the signals of a service.
#[derive(Clone, Copy, Debug)]
pub struct Signals {
    /// Set by SIGTERM or SIGINT: end. A second such signal ends the process as usual.
    pub terminated: &'static AtomicBool,
    /// Set by each SIGHUP: read the configuration again.
    pub reloads: &'static AtomicBool,
    /// Set by each SIGUSR1: open the log again.
    pub reopens: &'static AtomicBool,
}

/// Makes the signals of a service set flags. SIGHUP is handled even if it was ignored at start, as
/// under nohup(1): for a service it means reload, and a reload is harmless when a terminal hangs
/// up.
pub fn on_service_signals() -> Result<Signals> {
    on_signal(libc::SIGTERM, terminate, libc::SA_RESETHAND)?;
    on_signal(libc::SIGINT, terminate, libc::SA_RESETHAND)?;
    on_signal(libc::SIGUSR1, reopen, libc::SA_RESTART)?;
    on_signal(libc::SIGHUP, reload, libc::SA_RESTART)?;
    Ok(Signals { terminated: &TERMINATED, reloads: &RELOADS, reopens: &REOPENS })
}

/// Signals that a shell or nohup(1) may leave ignored in the programs that it starts.
const IGNORED_BY_SHELLS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP];

/// Resets SIGINT, SIGQUIT and SIGHUP to their default action (sigaction(2)).
///
/// A program inherits ignored signals over execve(2). A shell without job control ignores SIGINT
/// and SIGQUIT in background commands, and nohup(1) ignores SIGHUP. A child that one of them shall
/// end must reset it first. Async-signal-safe: it may run between fork(2) and execve(2).
fn reset_signals() -> std::io::Result<()> {
    // SAFETY: sigaction is plain data; all zeroes are SIG_DFL, no flags and an empty mask.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    for signal in IGNORED_BY_SHELLS {
        // SAFETY: SIG_DFL is a valid action for these signals, and the old action is not requested.
        if unsafe { libc::sigaction(signal, &raw const default, std::ptr::null_mut()) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Makes `command` start with SIGINT, SIGQUIT and SIGHUP at their default action.
pub fn with_default_signals(command: &mut std::process::Command) -> &mut std::process::Command {
    use std::os::unix::process::CommandExt as _;
    // SAFETY: the closure only calls sigaction(2), which is async-signal-safe, and does not
    // allocate.
    unsafe { command.pre_exec(reset_signals) }
}

extern "C" fn reload(_signal: libc::c_int) {
    RELOADS.store(true, Ordering::Relaxed);
}

extern "C" fn reopen(_signal: libc::c_int) {
    REOPENS.store(true, Ordering::Relaxed);
}

extern "C" fn terminate(_signal: libc::c_int) {
    TERMINATED.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
    use std::sync::atomic::{AtomicBool, Ordering};

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
