//! Faults to order: the next call of a kind fails with an errno. And how often each was made.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::io::Errno;

use crate::disk::Call;
use crate::file::lock;

/// A fault that is to come.
#[derive(Debug)]
struct Fault {
    call: Call,
    /// Calls of the kind that still go well.
    after: u32,
    /// Calls that fail then.
    times: u32,
    errno: i32,
}

/// What is to fail, and what was asked for.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    ordered: Mutex<Vec<Fault>>,
    counts: Mutex<HashMap<Call, u64>>,
    /// A directory, and how much its file system has for it.
    disk: Mutex<Option<(PathBuf, u64)>>,
}

/// What the files in a directory have on disk.
pub(crate) fn bytes_in(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().filter_map(Result::ok);
    entries.filter_map(|entry| entry.metadata().ok()).map(|data| data.blocks() * 512).sum()
}

impl Faults {
    /// Has `times` calls fail with `errno`, after `after` of them went well.
    pub(crate) fn inject(&self, call: Call, after: u32, times: u32, errno: i32) {
        lock(&self.ordered).push(Fault { call, after, times, errno });
    }

    /// Has room allocated until the files in `dir` have `bytes`.
    pub(crate) fn limit(&self, dir: &Path, bytes: u64) {
        *lock(&self.disk) = Some((dir.to_owned(), bytes));
    }

    /// How much room is left, if it has a limit.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        lock(&self.disk).as_ref().map(|(dir, bytes)| bytes.saturating_sub(bytes_in(dir)))
    }

    /// Whether `file` can be had `bytes` long.
    pub(crate) fn allocates(&self, file: &File, bytes: u64) -> io::Result<()> {
        let more = bytes.saturating_sub(file.metadata()?.blocks() * 512);
        if self.free_bytes().is_some_and(|free| more > free) { Err(Errno::NOSPC.into()) } else { Ok(()) }
    }

    /// Nothing fails any more.
    pub(crate) fn clear(&self) {
        lock(&self.ordered).clear();
        *lock(&self.disk) = None;
    }

    /// How many calls of the kind there were.
    pub(crate) fn count(&self, call: Call) -> u64 {
        lock(&self.counts).get(&call).copied().unwrap_or(0)
    }

    /// The error of this call, if it is to fail.
    pub(crate) fn take(&self, call: Call) -> Option<io::Error> {
        *lock(&self.counts).entry(call).or_default() += 1;
        let mut faults = lock(&self.ordered);
        let fault = faults.iter_mut().find(|fault| fault.call == call && fault.times > 0)?;
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        fault.times -= 1;
        Some(io::Error::from_raw_os_error(fault.errno))
    }
}
