//! `--netns`: the network namespace of a command's interfaces.
//!
//! Commands open their sockets and look up interfaces on a thread inside the namespace; files and
//! connections to other machines stay in the namespace of the program.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use rustix::io::Errno;
use strait_os::netns::Namespace;

use crate::Error;

/// Directory of the named namespaces (ip-netns(8)).
const NAMED: &str = "/run/netns";
/// Privilege to open a namespace (`ptrace_may_access` of proc_ns_get_link).
const OPEN: &str = "opening the network namespace of another user's process needs CAP_SYS_PTRACE";
/// Privilege to enter a namespace (setns(2)).
const ENTER: &str = "entering a network namespace needs CAP_SYS_ADMIN";
/// Maximum bytes of a name: that of a file (`NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;
/// Maximum digits of a process identifier (`PID_MAX_LIMIT` is 4194304).
const PID_DIGITS_MAX: usize = 7;

/// Option of the namespace.
#[derive(Clone, Debug, Default, ClapArgs)]
// The group would have the name Args, like the group of the command.
#[group(skip)]
pub(crate) struct Args {
    /// Network namespace of the interfaces: its name as in ip netns, the number of a process, or a
    /// path; needs CAP_SYS_ADMIN
    #[arg(long, value_name = "NAME|PID|PATH", value_parser = parse)]
    netns: Option<Wanted>,
}

/// Namespace by name, process or path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    /// Text of the option.
    text: String,
    path: PathBuf,
    /// Remedy if the path does not exist.
    missing: &'static str,
}

fn parse(text: &str) -> Result<Wanted, String> {
    let wanted = |path: PathBuf, missing| Ok(Wanted { text: text.into(), path, missing });
    if text.is_empty() || matches!(text, "." | "..") {
        return Err("give the name of a namespace, the number of a process, or a path".into());
    }
    if text.contains('/') {
        return wanted(text.into(), "give the path of a namespace, as in /run/netns/NAME");
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        if text.len() > PID_DIGITS_MAX {
            return Err(format!("the number of a process has at most {PID_DIGITS_MAX} digits"));
        }
        return wanted(format!("/proc/{text}/ns/net").into(), "there is no such process");
    }
    if text.len() > NAME_BYTES_MAX {
        return Err(format!("a name has at most {NAME_BYTES_MAX} bytes"));
    }
    wanted(PathBuf::from(NAMED).join(text), "there is no such namespace; `ip netns` lists them")
}

impl Args {
    /// Returns true if a namespace is given.
    pub(crate) fn is_given(&self) -> bool {
        self.netns.is_some()
    }

    /// Runs `work` in the namespace, on a thread that stays there, or without one on this thread.
    ///
    /// # Errors
    /// The namespace does not exist, the file is of another kind, or CAP_SYS_ADMIN is missing; and
    /// those of `work`.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
        let Some(wanted) = &self.netns else { return work() };
        wanted.open()?.run(work).map_err(|error| wanted.explain(error, ENTER))?
    }

    /// Moves this thread into the namespace, and so its later threads, for a command that uses no
    /// other network.
    ///
    /// # Errors
    /// Those of [`Args::run`].
    pub(crate) fn enter(&self) -> Result<(), Error> {
        let Some(wanted) = &self.netns else { return Ok(()) };
        wanted.open()?.enter().map_err(|error| wanted.explain(error, ENTER))
    }
}

impl Wanted {
    fn open(&self) -> Result<Namespace, Error> {
        Namespace::open(&self.path).map_err(|error| self.explain(error, OPEN))
    }

    /// Returns the error of opening or entering the namespace, and the privilege that it needs.
    fn explain(&self, error: strait_os::Error, privilege: &str) -> Error {
        let text = &self.text;
        match error.errno().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::SRCH) => {
                Error::Usage(format!("--netns {text}: {}: {}", self.path.display(), self.missing))
            }
            Some(Errno::INVAL) => {
                Error::Usage(format!("--netns {text}: {} is no network namespace", self.path.display()))
            }
            Some(Errno::PERM | Errno::ACCESS) => {
                Error::Refused(format!("--netns {text}: {privilege}: run as root"))
            }
            _ => Error::System(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_is_given_by_name_process_or_path() {
        let path = |text: &str| parse(text).map(|wanted| wanted.path.display().to_string());
        assert_eq!(path("blue").unwrap(), "/run/netns/blue");
        assert_eq!(path("4194304").unwrap(), "/proc/4194304/ns/net");
        assert_eq!(path("/run/netns/12").unwrap(), "/run/netns/12");
        assert_eq!(path("./here").unwrap(), "./here");
        for text in ["", ".", "..", "12345678", &"x".repeat(256)] {
            assert!(path(text).is_err(), "{text}");
        }
    }
}
