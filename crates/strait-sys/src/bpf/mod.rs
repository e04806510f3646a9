//! `bpf(2)`: maps, XDP and socket-filter programs, test runs and links.
//!
//! - [`Map`]: arrays of counters for an XDP program, and the XSKMAP from it to AF_XDP sockets.
//! - [`XdpProgram`], [`SocketFilter`]: eBPF that the verifier accepted; [`XdpProgram::test_run`]
//!   runs it on given bytes or sends live frames.
//! - [`Classifier`]: a program for tcx, which sees packets and lets them pass.
//! - [`Rings`]: byte rings that a program fills and this process reads.
//! - [`RingBuffer`]: one ring for records of all CPUs. [`struct@Hash`]: counters by keys of any
//!   length.
//! - [`TracepointProgram`], [`CgroupProgram`], [`IteratorProgram`]: programs that follow which
//!   process uses a socket, and which packets the kernel drops.
//! - [`Link`]: a program on an interface, for as long as the link is held.
//! - [`btf`]: the kernel's functions and the layout of its structures.
//!
//! The capture engine and the filter's tests call it. Programs come as finished eBPF instructions,
//! 64 bits each, and are not interpreted here. Nothing here pins objects that outlive the process.

pub mod btf;
mod hash;
mod link;
mod map;
mod program;
mod ring_buffer;
mod rings;
mod tracing;

pub use hash::Hash;
pub use link::{AttachMode, Link, TcxHook, tcx_programs};
pub use map::{Map, MappedArray};
pub use program::{
    Classifier, LoadOptions, ProgramInfo, SocketFilter, TestOutcome, TestRun, XdpContext, XdpProgram,
    nested_runs, program_info, program_info_by_id,
};
pub use ring_buffer::RingBuffer;
pub use rings::{Doorbell, RingLayout, RingReader, Rings};
pub use tracing::{CgroupHook, CgroupProgram, IteratorProgram, TracepointProgram};

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use crate::error::Error;

/// `BPF_OBJ_NAME_LEN`: bytes of a map's or program's name, including its NUL.
const NAME_LEN: usize = 16;

/// Remedy for a missing capability of AF_XDP and its program. It includes `CAP_IPC_LOCK`, which
/// kernels before 5.11 require.
pub(crate) const PRIVILEGE: &str = "needs CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON, and CAP_IPC_LOCK \
    where locked memory is limited: run as root, or setcap \
    cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon,cap_ipc_lock+ep PROGRAM";

/// Commands of `enum bpf_cmd` (linux/bpf.h) that are used here.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapNextKey = 4,
    ProgramLoad = 5,
    ProgramTestRun = 10,
    ProgramFdById = 13,
    ObjectInfo = 15,
    ProgramQuery = 16,
    RawTracepointOpen = 17,
    BtfLoad = 18,
    LinkCreate = 28,
    LinkUpdate = 29,
    IterCreate = 33,
}

/// Member of `union bpf_attr`.
///
/// # Safety
/// The implementor is `repr(C)` without padding, mirrors the kernel's layout for its commands, and
/// every address in it is valid for the kernel's access.
unsafe trait Attribute {}

/// `bpf(command, attribute, size)`.
fn bpf<T: Attribute>(command: Command, attribute: &mut T) -> io::Result<i64> {
    let size = size_of::<T>();
    // SAFETY: `Attribute` guarantees the layout and the addresses inside; the reference lives
    // through the call.
    let returned =
        unsafe { libc::syscall(libc::SYS_bpf, command as i32, std::ptr::from_mut(attribute), size) };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

/// Calls [`bpf`] for a command that returns a new descriptor.
fn bpf_fd<T: Attribute>(command: Command, attribute: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attribute)?;
    // SAFETY: the kernel has just made this descriptor, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Returns a name in the kernel's form: cut, and NUL at the end.
fn object_name(name: &str) -> [u8; NAME_LEN] {
    let mut out = [0; NAME_LEN];
    for (to, from) in out.iter_mut().take(NAME_LEN - 1).zip(name.bytes()) {
        *to = from;
    }
    out
}

/// Adds the remedy for a missing privilege or call to an error.
fn explain(operation: &'static str, subject: impl Into<String>, error: &io::Error) -> Error {
    let explained = Error::from_io(operation, subject, error);
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => explained.remedy(PRIVILEGE),
        Some(libc::ENOSYS) => explained.remedy("this kernel has no bpf(2)"),
        _ => explained,
    }
}
