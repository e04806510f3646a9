//! Fault injection: the next calls of a kind fail with an errno. Also counts the calls.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread::ThreadId;

use rustix::io::Errno;

use crate::disk::Call;
use crate::file::lock;

/// An injected fault.
#[derive(Debug)]
struct Fault {
    call: Call,
    /// Number of calls of the kind that succeed first.
    after: u32,
    /// Number of calls that fail after them.
    times: u32,
    errno: i32,
    /// Thread with the counted calls; `None`: all threads.
    thread: Option<ThreadId>,
}

impl Fault {
    fn applies_to(&self, call: Call) -> bool {
        let is_here = self.thread.is_none_or(|thread| thread == std::thread::current().id());
        self.call == call && self.times > 0 && is_here
    }
}

/// Injected faults, and counts of the calls.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    ordered: Mutex<Vec<Fault>>,
    counts: Mutex<HashMap<(Call, ThreadId), u64>>,
    /// A directory, and the capacity of its simulated file system.
    disk: Mutex<Option<(PathBuf, u64)>>,
}

/// Bytes allocated on disk by the files in a directory.
pub(crate) fn bytes_in(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().filter_map(Result::ok);
    entries.filter_map(|entry| entry.metadata().ok()).map(|data| data.blocks() * 512).sum()
}

impl Faults {
    /// Makes `times` calls fail with `errno`, after `after` calls succeeded.
    pub(crate) fn inject(&self, call: Call, after: u32, times: u32, errno: i32) {
        lock(&self.ordered).push(Fault { call, after, times, errno, thread: None });
    }

    /// Like [`inject`](Self::inject), but counts and fails only calls of this thread: threads of
    /// the store can write at the same time.
    pub(crate) fn inject_here(&self, call: Call, after: u32, times: u32, errno: i32) {
        let thread = Some(std::thread::current().id());
        lock(&self.ordered).push(Fault { call, after, times, errno, thread });
    }

    /// Limits the allocated bytes of the files in `dir` to `bytes`.
    pub(crate) fn limit(&self, dir: &Path, bytes: u64) {
        *lock(&self.disk) = Some((dir.to_owned(), bytes));
    }

    /// Bytes left below the limit, if there is one.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        lock(&self.disk).as_ref().map(|(dir, bytes)| bytes.saturating_sub(bytes_in(dir)))
    }

    /// Fails with ENOSPC if `file` cannot grow to `bytes` within the limit.
    pub(crate) fn allocates(&self, file: &File, bytes: u64) -> io::Result<()> {
        let more = bytes.saturating_sub(file.metadata()?.blocks() * 512);
        if self.free_bytes().is_some_and(|free| more > free) { Err(Errno::NOSPC.into()) } else { Ok(()) }
    }

    /// Removes all faults and the limit.
    pub(crate) fn clear(&self) {
        lock(&self.ordered).clear();
        *lock(&self.disk) = None;
    }

    /// Number of calls of the kind so far.
    pub(crate) fn count(&self, call: Call) -> u64 {
        let counts = lock(&self.counts);
        counts.iter().filter(|((counted, _), _)| *counted == call).map(|(_, count)| count).sum()
    }

    /// Number of calls of the kind that this thread has made.
    pub(crate) fn count_here(&self, call: Call) -> u64 {
        lock(&self.counts).get(&(call, std::thread::current().id())).copied().unwrap_or(0)
    }

    /// Returns the error of this call, if it is to fail.
    pub(crate) fn take(&self, call: Call) -> Option<io::Error> {
        *lock(&self.counts).entry((call, std::thread::current().id())).or_default() += 1;
        let mut faults = lock(&self.ordered);
        let fault = faults.iter_mut().find(|fault| fault.applies_to(call))?;
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        fault.times -= 1;
        Some(io::Error::from_raw_os_error(fault.errno))
    }
}
