//! Network namespaces without names: created, entered, and freed with their last descriptor.
//!
//! The test rigs and the demo build their private networks on [`Namespace`]; an unprivileged run
//! calls [`unshare_user`] first. Nothing is bound under `/run/netns`, so a process killed at any
//! time leaves nothing behind: the kernel frees a namespace with its last descriptor, socket and
//! process. Only [`Namespace::enter`] and [`unshare_user`] change the namespace of a thread that
//! this module did not start.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;

use rustix::fs::{Mode, OFlags};
use rustix::thread::LinkNameSpaceType;
use strait_sys::syscall::{unshare_network, unshare_user_and_network};

use crate::{Error, Kind, Result};

/// The namespace of the calling thread; `/proc/self` would be the main thread's (`proc(5)`).
const CURRENT: &str = "/proc/thread-self/ns/net";

/// Open network namespace.
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
}

impl Namespace {
    /// Creates a namespace with only `lo`, which is down (`unshare(CLONE_NEWNET)` on a separate
    /// thread).
    pub fn new() -> Result<Self> {
        on_thread(|| {
            unshare_network().map_err(|errno| {
                Error::os("unshare", "CLONE_NEWNET", errno.raw_os_error())
                    .remedy("a network namespace needs CAP_SYS_ADMIN: run as root")
            })?;
            Self::current()
        })?
    }

    /// Returns the namespace of the calling thread.
    pub fn current() -> Result<Self> {
        Self::open(Path::new(CURRENT))
    }

    /// Opens the namespace at `path`, for example in /run/netns or /proc/PID/ns. A file of another
    /// kind is refused by [`Namespace::enter`]; a FIFO is not waited for.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| Error::os("open", path.display().to_string(), errno.raw_os_error()))?;
        Ok(Self { fd })
    }

    /// Returns another handle of this namespace.
    pub fn try_clone(&self) -> Result<Self> {
        let failed = |error: io::Error| Error::from_io("duplicate", "a network namespace", &error);
        Ok(Self { fd: self.fd.try_clone().map_err(failed)? })
    }

    /// `setns(fd, CLONE_NEWNET)`: moves the calling thread, and its later children, permanently.
    pub fn enter(&self) -> Result<()> {
        rustix::thread::move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network)).map_err(
            |errno| {
                Error::os("setns", "network namespace", errno.raw_os_error())
                    .remedy("entering a namespace needs CAP_SYS_ADMIN: run as root")
            },
        )
    }

    /// Returns true if the calling thread is in this namespace.
    pub fn is_current(&self) -> Result<bool> {
        let failed = |errno: rustix::io::Errno| Error::os("stat", CURRENT, errno.raw_os_error());
        let own = rustix::fs::fstat(&self.fd).map_err(failed)?;
        let current = rustix::fs::stat(CURRENT).map_err(failed)?;
        Ok((own.st_dev, own.st_ino) == (current.st_dev, current.st_ino))
    }

    /// Runs `work` on a thread inside this namespace and waits for it. Its sockets stay in the
    /// namespace, and its threads and processes start there. A panic in `work` continues in the
    /// caller.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        on_thread(|| self.enter().map(|()| work()))?
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// `unshare(CLONE_NEWUSER|CLONE_NEWNET)` of the whole process, with its user mapped to root inside:
/// an unprivileged process gets a network of its own (`user_namespaces(7)`). The privileges apply
/// inside only.
///
/// The process must still be single-threaded, otherwise the kernel returns EINVAL. Systems may
/// forbid it; the error is then [`Kind::Refused`].
pub fn unshare_user() -> Result<()> {
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    unshare_user_and_network().map_err(|errno| {
        Error::os("unshare", "CLONE_NEWUSER|CLONE_NEWNET", errno.raw_os_error())
            .with_kind(Kind::Refused)
            .remedy(FORBIDDEN)
    })?;
    map_ids("/proc/self/setgroups", "deny")?;
    map_ids("/proc/self/uid_map", &format!("0 {user} 1"))?;
    map_ids("/proc/self/gid_map", &format!("0 {group} 1"))
}

/// Disables IPv6 on every link of the calling thread's namespace, including later ones: a link that
/// comes up then sends no router solicitation and no multicast report of its own.
pub fn disable_ipv6() -> Result<()> {
    for scope in ["all", "default"] {
        let path = format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6");
        match fs::write(&path, "1") {
            // A kernel without IPv6 needs no setting.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::from_io("write", path, &error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Processes received packets on `cpu`, for links created later in the calling thread's namespace
/// (`net.core.rps_default_mask`). A kernel without the setting (before Linux 6.3) keeps them on the
/// receiving CPU.
pub fn steer_packets_to(cpu: u32) -> Result<()> {
    const PATH: &str = "/proc/sys/net/core/rps_default_mask";
    const WORD_BITS: u32 = 32;
    // The last word holds the lowest CPUs.
    let mask = format!("{:x}", 1_u32 << (cpu % WORD_BITS)) + &",00000000".repeat((cpu / WORD_BITS) as usize);
    match fs::write(PATH, mask) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::from_io("write", PATH, &error)),
        _ => Ok(()),
    }
}

/// Remedy for a system that forbids user namespaces: three settings, by distribution.
const FORBIDDEN: &str = "this system forbids user namespaces to ordinary users (see sysctl \
    user.max_user_namespaces, kernel.unprivileged_userns_clone, \
    kernel.apparmor_restrict_unprivileged_userns): run as root";

fn map_ids(path: &'static str, line: &str) -> Result<()> {
    fs::write(path, line)
        .map_err(|error| Error::from_io("write", path, &error).with_kind(Kind::Refused).remedy(FORBIDDEN))
}

fn on_thread<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, work)
            .map_err(|error| Error::from_io("start", "thread", &error))?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(ns: &Namespace) -> u64 {
        rustix::fs::fstat(ns).unwrap().st_ino
    }

    #[test]
    fn run_does_not_move_the_caller() {
        let outside = Namespace::current().unwrap();
        let Ok(inside) = Namespace::new().inspect_err(|error| eprintln!("SKIP netns: {error}")) else {
            return;
        };
        let seen = inside.run(|| inode(&Namespace::current().unwrap())).unwrap();
        assert_eq!(seen, inode(&inside));
        assert_ne!(seen, inode(&outside));
        assert_eq!(inode(&Namespace::current().unwrap()), inode(&outside));
    }

    #[test]
    fn ipv6_is_disabled_inside_and_stays_enabled_outside() {
        let Ok(inside) = Namespace::new().inspect_err(|error| eprintln!("SKIP netns: {error}")) else {
            return;
        };
        let read = || fs::read_to_string("/proc/sys/net/ipv6/conf/default/disable_ipv6").unwrap();
        let before = read();
        assert_eq!(inside.run(|| disable_ipv6().map(|()| read())).unwrap().unwrap(), "1\n");
        assert_eq!(read(), before);
    }

    #[test]
    fn a_panic_inside_reaches_the_caller() {
        let Ok(inside) = Namespace::new().inspect_err(|error| eprintln!("SKIP netns: {error}")) else {
            return;
        };
        let panic = std::panic::catch_unwind(|| inside.run(|| panic!("inside"))).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"inside"));
    }

    #[test]
    fn a_user_namespace_is_refused_to_a_process_with_threads() {
        let error = on_thread(unshare_user).unwrap().unwrap_err();
        assert_eq!(error.kind(), Kind::Refused);
        assert!(error.to_string().contains("user namespaces"), "{error}");
    }
}
