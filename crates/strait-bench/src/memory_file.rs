//! Files in memory (memfd_create(2)), and paths of descriptors (proc_pid_fd(5)).

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::{Error, Result};

/// Creates a file in memory; `name` appears in /proc.
pub(crate) fn create(name: &str) -> Result<File> {
    with(name, MemfdFlags::empty())
}

/// A file in memory that can be sealed, and so mapped.
pub(crate) fn sealable(name: &str) -> Result<File> {
    with(name, MemfdFlags::ALLOW_SEALING)
}

fn with(name: &str, flags: MemfdFlags) -> Result<File> {
    let file = memfd_create(name, flags | MemfdFlags::CLOEXEC);
    Ok(File::from(file.map_err(|error| Error::file("make a file in memory", error))?))
}

/// Returns a path at which processes of the same user can open `fd` while this process has it open.
pub(crate) fn path_of(fd: impl AsFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), fd.as_fd().as_raw_fd())
}
