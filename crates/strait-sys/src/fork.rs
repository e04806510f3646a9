//! Child processes that run a function of this program: fork(2).
//!
//! The broker of taps has one for each caller, so that the descriptors of callers are in a table
//! without those of the broker. A process with a program of its own is `std::process::Command`.

use std::mem;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::error::{Error, Result, check};
use crate::syscall::close_range;

/// First descriptor after the standard streams.
const FIRST: u32 = 3;

/// Calls `body` with `kept` in a child process, and returns its identifier.
///
/// Of the descriptors the child has `kept` and the standard streams only: when this function
/// returns, it has closed its copies of the others. It ends when `body` returns, and drops nothing
/// after that: the kernel closes the descriptors of the result while the process exits, when no
/// close waits for SO_LINGER.
///
/// A lock that another thread holds at the call stays locked in the child, so the process should
/// have one thread. The heap is an exception: libc unlocks it.
pub fn fork<const N: usize, T>(kept: [OwnedFd; N], body: impl FnOnce([OwnedFd; N]) -> T) -> Result<u32> {
    let failed = |errno: Errno| Error::os("start", "a child process", errno.raw_os_error());
    // The child's copy of the writer is one of the others.
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    // SAFETY: fork(2) copies the memory and the descriptors, so every value is valid in the child.
    // The child does not return from this function: no value that it shares with the parent is
    // dropped a second time.
    let child = check(unsafe { libc::fork() }, "start", "a child process")?;
    if child != 0 {
        drop(writer);
        retry_on_intr(|| rustix::io::read(&reader, &mut [0])).map_err(failed)?;
        return Ok(child as u32);
    }
    let is_closed = close_others(&kept);
    if is_closed {
        mem::forget(catch_unwind(AssertUnwindSafe(|| body(kept))));
    }
    // SAFETY: _exit(2) takes an integer and does not return.
    unsafe { libc::_exit(i32::from(!is_closed)) }
}

/// Closes all descriptors but `kept` and the standard streams.
fn close_others(kept: &[OwnedFd]) -> bool {
    let mut numbers: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd() as u32).collect();
    numbers.sort_unstable();
    let mut first = FIRST;
    for number in numbers {
        // SAFETY: called in a child process that uses no descriptors but `kept`.
        if number > first && !unsafe { close_range(first, number - 1, 0) } {
            return false;
        }
        first = first.max(number + 1);
    }
    // SAFETY: as above.
    unsafe { close_range(first, u32::MAX, 0) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn child_has_the_kept_descriptors_only() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let (_others, other) = std::io::pipe().unwrap();
        let number = other.as_raw_fd();
        let child = fork([writer.into()], |[writer]| {
            let mut writer = File::from(writer);
            let mut numbers: Vec<_> = std::fs::read_dir("/proc/self/fd").unwrap().flatten().collect();
            numbers.retain(|entry| entry.file_name().to_str() == Some(&number.to_string()));
            let _ = write!(writer, "{} {}", std::process::id(), numbers.len());
        });
        let mut written = String::new();
        reader.read_to_string(&mut written).unwrap();
        let child = child.unwrap();
        assert_eq!(written, format!("{child} 0"));
        while crate::syscall::wait4_no_hang(child).unwrap().is_none() {
            std::thread::yield_now();
        }
    }
}
