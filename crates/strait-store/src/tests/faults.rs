//! Faults to order: the next call of a kind fails with an errno.

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

/// What is to fail.
#[derive(Debug, Default)]
pub(crate) struct Faults(Mutex<Vec<Fault>>);

impl Faults {
    /// Has `times` calls fail with `errno`, after `after` of them went well.
    pub(crate) fn inject(&self, call: Call, after: u32, times: u32, errno: i32) {
        lock(&self.0).push(Fault { call, after, times, errno });
    }

    /// Nothing fails any more.
    pub(crate) fn clear(&self) {
        lock(&self.0).clear();
    }

    /// The error of this call, if it is to fail.
    pub(crate) fn take(&self, call: Call) -> Option<io::Error> {
        let mut faults = lock(&self.0);
        let fault = faults.iter_mut().find(|fault| fault.call == call && fault.times > 0)?;
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        fault.times -= 1;
        Some(io::Error::from_raw_os_error(fault.errno))
    }
}
