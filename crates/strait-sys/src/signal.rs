//! Signal actions (sigaction(2)): a flag that is set, the default action, and the actions with
//! which a new program starts.
//!
//! `process` of strait-os decides which signals a program handles. The handlers store to atomics,
//! read a clock and set the default action, which is async-signal-safe (signal-safety(7)).

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result, check};

/// Signal numbers are below this (`_NSIG` of asm-generic/signal.h, and 0).
const NUMBERS: usize = 65;

/// For each signal: the flag that its handler sets, or null.
static FLAGS: [AtomicPtr<AtomicBool>; NUMBERS] = [const { AtomicPtr::new(ptr::null_mut()) }; NUMBERS];

/// For each debounced signal: the time of the first one, or 0.
static FIRST_NS: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];

/// Time in which a repeated signal is ignored.
const REPEAT_NS: u64 = 1_000_000_000;

/// Signals that set a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handling {
    /// The first one, which also interrupts a system call. The next one has its default action
    /// (`SA_RESETHAND`).
    Once,
    /// Like `Once`, but repeats within one second are ignored. timeout(1) sends its signal to its
    /// child and then to its process group, so that the child gets it twice.
    Debounced,
    /// Every one. Interrupted system calls continue (`SA_RESTART`).
    Always,
}

/// Makes `signal` set `flag` instead of its present action.
///
/// # Errors
/// EINVAL if there is no such signal, or it cannot be handled.
pub fn set_flag_on(signal: i32, flag: &'static AtomicBool, handling: Handling) -> Result<()> {
    const OPERATION: &str = "handle signal";
    let slot = slot(&FLAGS, signal).ok_or_else(|| Error::os(OPERATION, signal.to_string(), libc::EINVAL))?;
    if let Some(first) = self::slot(&FIRST_NS, signal) {
        first.store(0, Ordering::Relaxed);
    }
    slot.store(ptr::from_ref(flag).cast_mut(), Ordering::Release);
    let mut action = default_action();
    (action.sa_sigaction, action.sa_flags) = match handling {
        Handling::Once => (set_flag as *const () as libc::sighandler_t, libc::SA_RESETHAND),
        Handling::Debounced => (set_flag_debounced as *const () as libc::sighandler_t, 0),
        Handling::Always => (set_flag as *const () as libc::sighandler_t, libc::SA_RESTART),
    };
    // SAFETY: the handlers are async-signal-safe, and the old action is not requested.
    let returned = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    check(returned, OPERATION, signal.to_string()).map(drop)
}

/// Returns true if `signal` is ignored, as SIGHUP is under nohup(1).
pub fn is_ignored(signal: i32) -> Result<bool> {
    let mut action = default_action();
    // SAFETY: a null action only queries the current one.
    let returned = unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) };
    check(returned, "look at the handler of signal", signal.to_string())?;
    Ok(action.sa_sigaction == libc::SIG_IGN)
}

/// Interrupts the waits of this process's only thread by SIGALRM after each `interval`
/// (setitimer(2)), also those of close(2) for SO_LINGER; zero ends this.
pub fn interrupt_each(interval: Duration) -> Result<()> {
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    const OPERATION: &str = "set a timer for";
    set_flag_on(libc::SIGALRM, &INTERRUPTED, Handling::Always)?;
    // SAFETY: sigset_t is plain data, for which zeroes are valid.
    let mut alarm: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the calls read and write the set only; the old mask is not requested.
    let returned = unsafe {
        libc::sigemptyset(&raw mut alarm);
        libc::sigaddset(&raw mut alarm, libc::SIGALRM);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const alarm, ptr::null_mut())
    };
    check(returned, OPERATION, "this process")?;
    let time = libc::timeval { tv_sec: interval.as_secs() as _, tv_usec: interval.subsec_micros() as _ };
    let timer = libc::itimerval { it_interval: time, it_value: time };
    // SAFETY: setitimer(2) reads the timer; the old one is not requested.
    let returned = unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut()) };
    check(returned, OPERATION, "this process").map(drop)
}

/// Gives `signal` its default action.
pub fn set_default(signal: i32) -> Result<()> {
    const OPERATION: &str = "restore the default action of signal";
    reset(signal).map_err(|error| Error::from_io(OPERATION, signal.to_string(), &error))
}

/// Makes `command` start with `signals` at their default action, even if this process ignores them:
/// a program inherits ignored signals over execve(2).
pub fn with_default<'a>(command: &'a mut Command, signals: &'static [i32]) -> &'a mut Command {
    let reset_all = move || signals.iter().try_for_each(|&signal| reset(signal));
    // SAFETY: the closure only calls sigaction(2), which is async-signal-safe, and does not
    // allocate.
    unsafe { command.pre_exec(reset_all) }
}

/// Async-signal-safe: it may run between fork(2) and execve(2).
fn reset(signal: i32) -> io::Result<()> {
    let action = default_action();
    // SAFETY: the default action runs no code of this process, and the old action is not requested.
    match unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns `SIG_DFL` without flags and with an empty mask.
fn default_action() -> libc::sigaction {
    // SAFETY: sigaction is plain data, for which zeroes are valid.
    unsafe { std::mem::zeroed() }
}

extern "C" fn set_flag(signal: libc::c_int) {
    let flag = slot(&FLAGS, signal).map_or(ptr::null_mut(), |slot| slot.load(Ordering::Acquire));
    // SAFETY: a pointer of FLAGS is null or comes from a reference that lives as long as the
    // process.
    if let Some(flag) = unsafe { flag.as_ref() } {
        flag.store(true, Ordering::Relaxed);
    }
}

/// Sets the flag at the first signal, ignores repeats for a second, and ends the process by a later
/// one.
extern "C" fn set_flag_debounced(signal: libc::c_int) {
    let Some(first) = slot(&FIRST_NS, signal) else { return };
    let now_ns = monotonic_ns();
    match first.compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => set_flag(signal),
        Err(first_ns) if now_ns.saturating_sub(first_ns) < REPEAT_NS => {}
        Err(_) => {
            // It is blocked while this runs, and takes effect afterwards.
            let _ = reset(signal);
            // SAFETY: raise(3) is async-signal-safe and takes no pointer.
            let _ = unsafe { libc::raise(signal) };
        }
    }
}

fn slot<T>(slots: &[T; NUMBERS], signal: libc::c_int) -> Option<&T> {
    usize::try_from(signal).ok().and_then(|signal| slots.get(signal))
}

/// Returns the monotonic time, at least 1. Async-signal-safe.
fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_a_process_are_interrupted() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let child = crate::fork::fork([reader.into()], |[reader]| {
            interrupt_each(Duration::from_millis(1)).unwrap();
            let waited = rustix::event::poll(
                &mut [rustix::event::PollFd::new(&reader, rustix::event::PollFlags::IN)],
                None,
            );
            assert_eq!(waited, Err(rustix::io::Errno::INTR));
        });
        let child = child.unwrap();
        while crate::syscall::wait4_no_hang(child).unwrap().is_none() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn signal_sets_its_flag_until_its_default_action_is_restored() {
        static FLAG: AtomicBool = AtomicBool::new(false);
        set_flag_on(libc::SIGWINCH, &FLAG, Handling::Always).unwrap();
        assert!(!is_ignored(libc::SIGWINCH).unwrap());
        let signal =
            || rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::WINCH);
        for _ in 0..2 {
            signal().unwrap();
            while !FLAG.swap(false, Ordering::Relaxed) {
                std::thread::yield_now();
            }
        }
        // By default the signal has no effect.
        set_default(libc::SIGWINCH).unwrap();
        signal().unwrap();
        assert!(!FLAG.load(Ordering::Relaxed));
    }

    #[test]
    fn signals_that_do_not_exist_or_cannot_be_handled_are_refused() {
        static FLAG: AtomicBool = AtomicBool::new(false);
        for signal in [-1, 0, libc::SIGKILL, NUMBERS as i32] {
            let error = set_flag_on(signal, &FLAG, Handling::Once).unwrap_err();
            assert_eq!(error.errno(), Some(libc::EINVAL), "{signal}");
        }
    }
}
