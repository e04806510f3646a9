//! CPU cycles of a process, if the machine counts them: perf_event_open(2).
//!
//! Virtual machines often have no counters, and containers often forbid them: callers must handle
//! an error.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::FromRawFd as _;

use crate::error::{Error, Result};

/// First version of `struct perf_event_attr` (`PERF_ATTR_SIZE_VER0`, linux/perf_event.h).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

const PERF_TYPE_HARDWARE: u32 = 0;
const PERF_COUNT_HW_CPU_CYCLES: u64 = 0;
/// `PERF_FLAG_FD_CLOEXEC`.
const FLAG_CLOEXEC: libc::c_ulong = 1 << 3;
/// The bit `inherit`: later threads and child processes count too.
const INHERIT: u64 = 1 << 1;

/// Cycle counter of a process.
#[derive(Debug)]
pub struct Cycles {
    counter: File,
}

impl Cycles {
    /// Counts the cycles of process `pid` from now on, user and kernel, and of its later children.
    ///
    /// # Errors
    /// If the machine has no counter, or `kernel.perf_event_paranoid` forbids it.
    pub fn of(pid: u32) -> Result<Self> {
        let attributes = Attributes {
            kind: PERF_TYPE_HARDWARE,
            size: size_of::<Attributes>() as u32,
            config: PERF_COUNT_HW_CPU_CYCLES,
            flags: INHERIT,
            ..Attributes::default()
        };
        let (any_cpu, no_group) = (-1, -1);
        // SAFETY: the kernel reads the length that the attributes contain; the other arguments are
        // integers.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                pid,
                any_cpu,
                no_group,
                FLAG_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(Error::last_os("count the cycles of", format!("process {pid}")));
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Self { counter: unsafe { File::from_raw_fd(fd as i32) } })
    }

    /// Returns the cycles so far.
    pub fn count(&self) -> Result<u64> {
        let mut count = [0; 8];
        (&self.counter)
            .read_exact(&mut count)
            .map_err(|error| Error::from_io("read", "a cycle counter", &error))?;
        Ok(u64::from_ne_bytes(count))
    }
}
