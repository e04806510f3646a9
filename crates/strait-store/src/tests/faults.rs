//! Faults to order: the next call of a kind fails with an errno. And how often each was made.

use std::collections::HashMap;
use std::io;
use std::sync::Mutex;

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
}

impl Faults {
    /// Has `times` calls fail with `errno`, after `after` of them went well.
    pub(crate) fn inject(&self, call: Call, after: u32, times: u32, errno: i32) {
        lock(&self.ordered).push(Fault { call, after, times, errno });
    }

    /// Nothing fails any more.
    pub(crate) fn clear(&self) {
        lock(&self.ordered).clear();
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
