//! Upgrade without a refused connection: SIGUSR2 starts the program again, and the new process
//! takes over the listening sockets, and then the store.
//!
//! ```text
//! running process                       successor
//! starts it with its sockets ────────▶ configuration, sockets, user
//!                            ◀─ ready, with the kind of proxy
//! closes the store        released ──▶ opens the store, starts its threads
//!                           ◀─ opened
//! stops accepting               go ──▶ accepts
//! ends with its connections
//! ```
//!
//! Until `go` the running process serves all requests, with the stored responses; if the successor
//! ends or hangs before that, it takes the store back and goes on. If the running process is
//! killed, the successor goes on alone.

use std::ffi::OsString;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use rustix::time::Timespec;
use strait_os::{process, service};
use strait_program::Error;
use strait_proxy::{Bound, Clock, Proxy, Removals};

/// Names of the sockets for the messages of an upgrade.
const MESSAGES: &str = "strait.upgrade";
const REMOVALS: &str = "strait.removals";
/// Messages. The first one of the successor has its kind of proxy.
const READY: &[u8] = b"ready forward";
const READY_REVERSE: &[u8] = b"ready reverse";
const RELEASED: &[u8] = b"released";
const OPENED: &[u8] = b"opened";
const GO: &[u8] = b"go";
/// Reason against a successor of the other kind, as for a reload: a reverse proxy without origins
/// would connect wherever clients ask.
const OTHER_KIND: &str = "its configuration makes a forward proxy of a reverse proxy, or the reverse; \
    check that the file is complete; restart to change the kind of proxy";
/// Maximum length of a message.
const MESSAGE_BYTES_MAX: usize = 64;
/// Longest wait for each message of the successor.
const STEP_MAX: Duration = Duration::from_mins(1);
/// Time in which a successor that is given up can end by itself.
const END_MAX: Duration = Duration::from_secs(5);
/// Longest wait of the successor for the lock of the store, which the kernel may release after the
/// socket of a killed process.
const LOCK_MAX: Duration = Duration::from_secs(10);
/// Interval between two checks for a signal or an end.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// Program and arguments of this process, for its successor.
#[derive(Debug)]
pub(crate) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// Looks up the path of the program, which `/proc` no longer has after a package upgrade. To be
    /// called at the start.
    ///
    /// # Errors
    /// /proc is not mounted.
    pub(crate) fn of_this_process() -> std::io::Result<Self> {
        let running = std::env::current_exe()?;
        let arguments: Vec<_> = std::env::args_os().collect();
        // The name by which it was called may be a link that a later version replaces.
        let named = arguments.first().map(Path::new).filter(|name| name.components().count() > 1);
        let named = named.and_then(|name| std::path::absolute(name).ok());
        let is_same = |named: &PathBuf| named.canonicalize().is_ok_and(|path| path == running);
        Ok(Self { path: named.filter(is_same).unwrap_or(running), arguments })
    }
}

/// Upgrade under way.
#[derive(Debug)]
pub(crate) struct Upgrade {
    child: u32,
    messages: OwnedFd,
    removals: Option<OwnedFd>,
    /// Time of the last message of the successor, or of its start.
    since: Instant,
    has_store: bool,
}

/// End of the successor.
#[derive(Debug)]
pub(crate) enum Ended {
    Well,
    /// With its status as text.
    Failed(String),
}

impl fmt::Display for Ended {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Well => out.write_str("exit status: 0"),
            Self::Failed(status) => out.write_str(status),
        }
    }
}

/// State of an upgrade.
#[derive(Debug)]
pub(crate) enum Progress {
    UnderWay,
    /// The successor accepts connections, and this process no longer does.
    HandedOver,
    /// The successor has ended; this process goes on.
    Failed(String),
}

impl Upgrade {
    /// Starts the successor.
    ///
    /// # Errors
    /// This process cannot be replaced, or a system call fails.
    pub(crate) fn begin(program: &Program, proxy: &Proxy) -> Result<Self, String> {
        if std::process::id() == 1 {
            return Err("this is process 1, and its container ends with it: start a new container".to_owned());
        }
        let is_unit = std::env::var("SYSTEMD_EXEC_PID").is_ok_and(|id| id == std::process::id().to_string());
        if is_unit && std::env::var_os("NOTIFY_SOCKET").is_none() {
            let why =
                "the unit ends with this process: set Type=notify, so that systemd learns of the new one";
            return Err(why.to_owned());
        }
        let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let mut descriptors = proxy.lend_sockets().map_err(|error| failed(&error))?;
        let (messages, of_child) = pair().map_err(|error| failed(&error))?;
        let (removals, removals_of_child) = pair().map_err(|error| failed(&error))?;
        descriptors.push((MESSAGES.to_owned(), of_child));
        descriptors.push((REMOVALS.to_owned(), removals_of_child));
        let child = service::start_with_descriptors(&program.path, &program.arguments, &descriptors);
        let child = child.map_err(|error| failed(&error))?;
        Ok(Self { child, messages, removals: Some(removals), since: Instant::now(), has_store: false })
    }

    /// Process id of the successor.
    pub(crate) fn successor(&self) -> u32 {
        self.child
    }

    /// Waits for at most `limit` for the next message, and takes the step that it asks for.
    pub(crate) fn step(&mut self, proxy: &mut Proxy, limit: Duration) -> Progress {
        match receive(&self.messages, limit) {
            Received::Nothing if self.since.elapsed() < STEP_MAX => return Progress::UnderWay,
            Received::Nothing => {
                let step = if self.has_store { "open the store" } else { "start" };
                return self.fail(proxy, &format!("it did not {step} within {} s", STEP_MAX.as_secs()));
            }
            Received::End => return self.fail(proxy, "it ended"),
            Received::Message(ready @ (READY | READY_REVERSE)) if !self.has_store => {
                if (ready == READY_REVERSE) != proxy.is_reverse() {
                    return self.fail(proxy, OTHER_KIND);
                }
                self.has_store = true;
                if let Some(removals) = self.removals.take() {
                    proxy.release_store(removals);
                }
                self.send(RELEASED);
            }
            Received::Message(OPENED) if self.has_store && !self.is_waiting() => {
                return self.fail(proxy, "it ended");
            }
            Received::Message(OPENED) if self.has_store => {
                // Otherwise the service manager would take the end of this process for that of the
                // service.
                if let Err(error) = service::notify(&format!("MAINPID={}", self.child)) {
                    return self.fail(proxy, &format!("the service manager does not learn of it: {error}"));
                }
                proxy.hand_over();
                self.send(GO);
                return Progress::HandedOver;
            }
            Received::Message(_) => return self.fail(proxy, "its version has another order of steps"),
        }
        self.since = Instant::now();
        Progress::UnderWay
    }

    /// Returns the status of the successor once it has ended. The service manager, which gets the
    /// children of this process, can still read it (`waitid` with WNOWAIT).
    pub(crate) fn status(&self) -> Option<Ended> {
        let id = i32::try_from(self.child).ok().and_then(Pid::from_raw)?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(id), options).ok().flatten()?;
        Some(match (status.exit_status(), status.terminating_signal()) {
            (Some(0), _) => Ended::Well,
            (Some(code), _) => Ended::Failed(format!("exit status: {code}")),
            (_, signal) => Ended::Failed(format!("signal: {}", signal.unwrap_or_default())),
        })
    }

    /// Gives the upgrade up because this process is to end.
    pub(crate) fn cancel(self) {
        self.end_successor();
    }

    /// Passes a signal on to the successor.
    pub(crate) fn pass_on(&self, signal: Signal) {
        if let Some(id) = i32::try_from(self.child).ok().and_then(Pid::from_raw) {
            // The id is still that of the child, which was not waited for. It may have ended.
            let _ = kill_process(id, signal);
        }
    }

    fn send(&self, message: &[u8]) {
        // A successor that has ended is noticed by the next step.
        let _ = send(&self.messages, message, SendFlags::NOSIGNAL);
    }

    /// Ends the successor, and takes the store back.
    fn fail(&self, proxy: &Proxy, why: &str) -> Progress {
        let status = self.end_successor();
        let taken = if self.has_store { proxy.take_store_back() } else { Ok(()) };
        let store =
            taken.err().map_or_else(String::new, |error| format!("; the store stays closed: {error}"));
        Progress::Failed(format!("the new process: {why}{status}{store}"))
    }

    /// Ends the successor by SIGTERM, or by SIGKILL if it hangs. Returns its status as text.
    fn end_successor(&self) -> String {
        // One that ends by itself gets time to do so: its status is part of the reason.
        let begin = Instant::now();
        let mut next = Some(Signal::TERM).filter(|_| self.is_waiting());
        loop {
            if let Some(signal) = next.take() {
                self.pass_on(signal);
            }
            match process::try_wait_for(self.child) {
                Ok(Some((status, _))) => return format!(" ({status})"),
                Ok(None) if begin.elapsed() > END_MAX => next = Some(Signal::KILL),
                Ok(None) => {}
                Err(_) => return String::new(),
            }
            thread::sleep(CHECK_EVERY);
        }
    }

    /// Returns true while the successor has its end of the socket.
    fn is_waiting(&self) -> bool {
        !matches!(receive(&self.messages, Duration::ZERO), Received::End)
    }
}

/// Process that this one replaces.
#[derive(Debug)]
pub(crate) struct Predecessor {
    messages: OwnedFd,
    removals: OwnedFd,
}

impl Predecessor {
    /// Takes the sockets for messages out of the inherited descriptors; `None` without them.
    pub(crate) fn of(descriptors: &mut Vec<(String, OwnedFd)>) -> Option<Self> {
        let mut take = |wanted: &str| {
            let at = descriptors.iter().position(|(name, _)| name == wanted)?;
            Some(descriptors.remove(at).1)
        };
        let (messages, removals) = (take(MESSAGES), take(REMOVALS));
        Some(Self { messages: messages?, removals: removals? })
    }

    /// Starts the proxy in place of the other process. If that is killed, goes on without it.
    /// `explain` adds to an error of the start.
    ///
    /// # Errors
    /// The store cannot be opened, a thread cannot be started, or `is_terminated` was set.
    pub(crate) fn replace(
        self,
        bound: Bound,
        is_terminated: &AtomicBool,
        explain: impl Fn(strait_proxy::Error) -> Error,
    ) -> Result<Proxy, Error> {
        let Self { messages, removals } = self;
        let removals = Removals::receive(removals)?;
        let tell = |message| {
            // One that was killed is noticed by the next wait.
            let _ = send(&messages, message, SendFlags::NOSIGNAL);
        };
        tell(if bound.is_reverse() { READY_REVERSE } else { READY });
        await_message(&messages, RELEASED, is_terminated)?;
        let mut proxy = bound.prepare(Clock::system(), LOCK_MAX).map_err(explain)?;
        // A removal by a pattern waits until the store is loaded, while the other process serves.
        proxy.adopt(removals);
        tell(OPENED);
        await_message(&messages, GO, is_terminated)?;
        proxy.open();
        Ok(proxy)
    }
}

/// Waits for a message, or for the end of the other process.
fn await_message(messages: &OwnedFd, expected: &[u8], is_terminated: &AtomicBool) -> Result<(), Error> {
    loop {
        match receive(messages, CHECK_EVERY) {
            Received::End => return Ok(()),
            Received::Message(message) if message == expected => return Ok(()),
            Received::Message(_) => {
                return Err(Error::failed("upgrade: the other process has another version"));
            }
            Received::Nothing if is_terminated.load(Ordering::Relaxed) => {
                return Err(Error::failed("upgrade: a signal has cancelled it"));
            }
            Received::Nothing => {}
        }
    }
}

/// Result of waiting for a message.
enum Received {
    Nothing,
    Message(&'static [u8]),
    /// The other process has ended.
    End,
}

/// Waits for at most `limit` for a message.
fn receive(messages: &OwnedFd, limit: Duration) -> Received {
    let limit = Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos().into() };
    let mut polled = [PollFd::new(messages, PollFlags::IN)];
    if !poll(&mut polled, Some(&limit)).is_ok_and(|ready| ready > 0) {
        return Received::Nothing;
    }
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    match recv(messages, &mut bytes, RecvFlags::DONTWAIT) {
        Ok((0, _)) => Received::End,
        Ok((len, _)) => {
            let known = [READY, READY_REVERSE, RELEASED, OPENED, GO]
                .into_iter()
                .find(|known| *known == &bytes[..len]);
            Received::Message(known.unwrap_or_default())
        }
        Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
        Err(_) => Received::End,
    }
}
