//! Selection of owners in the kernel.

use std::fs::{self, DirEntry};

use strait_filter::owner::{Owner as Record, Selection};

use super::cgroups;
use crate::error::Error;

/// Maximum number of cgroups of a selected container.
const CGROUPS_MAX: usize = 64;

/// Owners of the packets to capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// Process with this identifier, or processes with this name.
    Process(String),
    /// Container with this identifier, the start of it, or this name. It must run when the session
    /// is opened.
    Container(String),
}

/// Returns the kernel's form of a selection.
///
/// # Errors
/// [`Error::Usage`]: the name is empty or too long, or no such container runs.
pub(crate) fn resolve(select: &Select) -> Result<Selection, Error> {
    match select {
        Select::Process(wanted) => process(wanted),
        Select::Container(wanted) => container(wanted),
    }
}

/// Returns a note if no process of the selection runs, for example because its name is misspelt.
pub(crate) fn note(select: &Select) -> Option<String> {
    let Select::Process(wanted) = select else { return None };
    let kind = match process(wanted).ok()? {
        Selection::Pid(pid) if !is_listed(pid) => "number",
        Selection::Command(command) if !runs(&command) => "name",
        _ => return None,
    };
    Some(format!(
        "--process {wanted}: no process with this {kind} is visible; its packets are captured when it runs"
    ))
}

/// Returns true if a process with this number is visible. A thread has a directory in /proc that is
/// not listed.
fn is_listed(pid: u32) -> bool {
    let is_wanted = |process: DirEntry| process.file_name() == *pid.to_string();
    fs::read_dir("/proc").is_ok_and(|processes| processes.flatten().any(is_wanted))
}

/// Returns true if a process with this name, which ends with zeros, is visible.
fn runs(wanted: &[u8]) -> bool {
    let end = wanted.iter().position(|byte| *byte == 0).unwrap_or(wanted.len());
    let is_wanted = |process: DirEntry| {
        let name = fs::read(process.path().join("comm"));
        name.is_ok_and(|name| name.strip_suffix(b"\n") == wanted.get(..end))
    };
    fs::read_dir("/proc").is_ok_and(|processes| processes.flatten().any(is_wanted))
}

fn process(wanted: &str) -> Result<Selection, Error> {
    if wanted.is_empty() || wanted == "0" {
        return Err(Error::Usage("--process: give the name or the number of a process".into()));
    }
    if wanted.bytes().all(|byte| byte.is_ascii_digit()) {
        let pid = wanted.parse().map_err(|_| Error::Usage(format!("--process {wanted}: no such number")))?;
        return Ok(Selection::Pid(pid));
    }
    let mut command = [0; Record::COMMAND_BYTES];
    let longest = command.len() - 1;
    // The kernel keeps the start of a longer name.
    for (to, from) in command.iter_mut().take(longest).zip(wanted.bytes()) {
        *to = from;
    }
    Ok(Selection::Command(command))
}

fn container(wanted: &str) -> Result<Selection, Error> {
    let found = cgroups::of_container(wanted);
    match found.len() {
        0 => Err(Error::Usage(format!(
            "--container {wanted}: no cgroup of version 2 belongs to a container with this name or identifier (at \
             least 8 digits); is it running?"
        ))),
        1..=CGROUPS_MAX => Ok(Selection::Cgroups(found)),
        count => Err(Error::Usage(format!(
            "--container {wanted}: it has {count} cgroups, more than {CGROUPS_MAX}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_selected_by_number_or_by_the_start_of_its_name() {
        assert_eq!(process("4711").unwrap(), Selection::Pid(4711));
        let name = |text: &str| match process(text).unwrap() {
            Selection::Command(name) => String::from_utf8(name.to_vec()).unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(name("curl"), format!("curl{}", "\0".repeat(12)));
        assert_eq!(name("a-name-of-a-process"), "a-name-of-a-pro\0");
        for wrong in ["", "0", "99999999999"] {
            assert!(process(wrong).unwrap_err().to_string().starts_with("--process"), "{wrong}");
        }
    }

    #[test]
    fn process_that_does_not_run_is_noted() {
        let note = |wanted: &str| note(&Select::Process(wanted.to_owned()));
        let name = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!((note(name.trim_end()), note(&std::process::id().to_string())), (None, None));
        // The thread of a test is not the process's first one.
        let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
        assert_ne!(thread, std::process::id().to_string());
        for (wanted, kind) in [("no-such-name", "name"), ("4194304", "number"), (&*thread, "number")] {
            let note = note(wanted).unwrap();
            assert!(note.contains(wanted) && note.contains(kind), "{note}");
        }
        assert_eq!(super::note(&Select::Container("x".into())), None);
    }

    #[test]
    fn missing_container_is_refused() {
        let error = container("no-such-container-at-all").unwrap_err();
        assert!(error.to_string().contains("is it running?"), "{error}");
    }
}
