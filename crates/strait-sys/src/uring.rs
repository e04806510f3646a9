//! io_uring: checks if this process may use it and which operations the kernel has
//! (io_uring_setup(2), `IORING_REGISTER_PROBE`), and a [`Ring`] that sends.
//!
//! Containers often forbid it: the doctor reports that, and the sender works without it.

mod ring;
mod slots;

pub use ring::{Event, Full, Ring, SendOptions, VIEWS_MAX};

use io_uring::{IoUring, Probe, opcode};
use rustix::thread::{SecureComputingMode, secure_computing_mode};

use crate::error::{Error, Kind, Result};

/// Setting that forbids io_uring to all users (2), to users outside a group (1), or to none (0);
/// Linux 6.6.
const SYSCTL: &str = "/proc/sys/kernel/io_uring_disabled";

/// Operations that Strait can use, by their names in linux/io_uring.h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// `IORING_OP_SEND_ZC` (Linux 6.0).
    pub send_zc: bool,
    /// `IORING_OP_SENDMSG_ZC` (Linux 6.1).
    pub sendmsg_zc: bool,
}

/// Sets up a small ring, probes its operations and closes it.
///
/// # Errors
/// [`Kind::Refused`] if the kernel has no io_uring or forbids it; the remedy names the setting.
pub fn operations() -> Result<Operations> {
    let failed = |error: &std::io::Error| explain(Error::from_io("set up", "io_uring", error));
    let ring = IoUring::new(2).map_err(|error| failed(&error))?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|error| failed(&error))?;
    Ok(Operations {
        send_zc: probe.is_supported(opcode::SendZc::CODE),
        sendmsg_zc: probe.is_supported(opcode::SendMsgZc::CODE),
    })
}

fn explain(error: Error) -> Error {
    let disabled = std::fs::read_to_string(SYSCTL).is_ok_and(|text| text.trim() != "0");
    match error.errno() {
        Some(libc::EPERM) if disabled => error.remedy("sysctl kernel.io_uring_disabled=0 allows it"),
        Some(libc::EPERM) if secure_computing_mode() == Ok(SecureComputingMode::Filter) => {
            error.remedy("a seccomp filter forbids it: run the container with a profile that allows io_uring")
        }
        Some(libc::ENOSYS) => {
            error.with_kind(Kind::Refused).remedy("this kernel has no io_uring, or a seccomp filter hides it")
        }
        Some(libc::ENOMEM) => {
            error.with_kind(Kind::Refused).remedy("raise the locked-memory limit (ulimit -l)")
        }
        _ => error,
    }
}
