//! Programs that follow what processes do: on tracepoints, on the sockets of a cgroup, and over the
//! open files of all processes.
//!
//! A tracing program reads the tracepoint's arguments, and what they point to, at offsets of
//! [`Types::members`](super::btf::Types::members). The capture engine learns with these programs
//! which process uses a socket, and where the kernel drops packets. They are attached as long as
//! their links are held, so they do not outlive this process.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::link::Link;
use super::program::{ProgramLoad, load};
use super::{Attribute, Command, bpf_fd, explain};
use crate::error::{Error, Result};

const BPF_PROG_TYPE_CGROUP_SOCK: u32 = 9;
const BPF_PROG_TYPE_CGROUP_SOCK_ADDR: u32 = 18;
const BPF_PROG_TYPE_TRACING: u32 = 26;
/// `BPF_TRACE_RAW_TP` and `BPF_TRACE_ITER` of `enum bpf_attach_type`.
const BPF_TRACE_RAW_TP: u32 = 23;
const BPF_TRACE_ITER: u32 = 28;

/// Loaded program for a tracepoint.
#[derive(Debug)]
pub struct TracepointProgram {
    fd: OwnedFd,
}

/// Loaded program for the items of an iterator.
#[derive(Debug)]
pub struct IteratorProgram {
    fd: OwnedFd,
}

/// Loaded program for the sockets of the processes in a cgroup and below it.
#[derive(Debug)]
pub struct CgroupProgram {
    fd: OwnedFd,
    hook: CgroupHook,
}

/// Call of a process that runs a program, with its number in `enum bpf_attach_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CgroupHook {
    /// The process has made a socket.
    Create = 2,
    /// The process connects a socket to an IPv4 address.
    Connect4 = 10,
    /// The process connects a socket to an IPv6 address.
    Connect6 = 11,
    /// The process sends a datagram to an IPv4 address by a socket that is not connected.
    Send4 = 14,
    /// The process sends a datagram to an IPv6 address by a socket that is not connected.
    Send6 = 15,
}

#[repr(C)]
struct RawTracepoint {
    name: u64,
    prog_fd: u32,
    pad: u32,
}

// SAFETY: mirrors the head of the struct for BPF_RAW_TRACEPOINT_OPEN in linux/bpf.h; a program with
// the type of its tracepoint has no name there, and `pad` fills its end.
unsafe impl Attribute for RawTracepoint {}

#[repr(C)]
struct IterCreate {
    link_fd: u32,
    flags: u32,
}

// SAFETY: mirrors the struct for BPF_ITER_CREATE in linux/bpf.h.
unsafe impl Attribute for IterCreate {}

impl TracepointProgram {
    /// Loads eBPF `instructions` under `name` for the tracepoint with this type identifier.
    ///
    /// # Errors
    /// EPERM without `CAP_BPF` and `CAP_PERFMON`; EINVAL or EACCES if the verifier refuses the
    /// program.
    pub fn load(name: &str, instructions: &[u64], tracepoint: i32) -> Result<Self> {
        let attribute = ProgramLoad::attached(BPF_PROG_TYPE_TRACING, BPF_TRACE_RAW_TP, tracepoint);
        Ok(Self { fd: load(name, instructions, attribute)? })
    }

    /// Attaches the program to its tracepoint.
    pub fn attach(&self) -> Result<Link> {
        let mut attribute = RawTracepoint { name: 0, prog_fd: self.fd.as_raw_fd() as u32, pad: 0 };
        let fd = bpf_fd(Command::RawTracepointOpen, &mut attribute)
            .map_err(|error| explain("attach a program to", "a tracepoint", &error))?;
        Ok(Link::from_descriptor(fd))
    }
}

impl AsFd for TracepointProgram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl IteratorProgram {
    /// Loads eBPF `instructions` under `name` for the iterator with the function of this type
    /// identifier.
    ///
    /// # Errors
    /// As [`TracepointProgram::load`].
    pub fn load(name: &str, instructions: &[u64], function: i32) -> Result<Self> {
        let attribute = ProgramLoad::attached(BPF_PROG_TYPE_TRACING, BPF_TRACE_ITER, function);
        Ok(Self { fd: load(name, instructions, attribute)? })
    }

    /// Runs the program for every item.
    pub fn iterate(&self) -> Result<()> {
        let link = Link::create(self.fd.as_fd(), 0, BPF_TRACE_ITER)
            .map_err(|error| explain("attach a program to", "an iterator", &error))?;
        let mut attribute = IterCreate { link_fd: link.as_fd().as_raw_fd() as u32, flags: 0 };
        let fd = bpf_fd(Command::IterCreate, &mut attribute)
            .map_err(|error| explain("iterate over", "the items of an iterator", &error))?;
        read_to_end(File::from(fd))
            .map_err(|error| Error::from_io("iterate over", "the items of an iterator", &error))
    }
}

/// Reads until the end of the file. The program runs during the reads, and prints nothing.
fn read_to_end(mut items: File) -> io::Result<()> {
    let mut printed = [0; 64];
    loop {
        match items.read(&mut printed) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // The kernel visits a part of the items in one read.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {}
            Err(error) => return Err(error),
        }
    }
}

impl CgroupProgram {
    /// Loads eBPF `instructions` under `name`.
    ///
    /// # Errors
    /// As [`TracepointProgram::load`].
    pub fn load(name: &str, instructions: &[u64], hook: CgroupHook) -> Result<Self> {
        let prog_type = match hook {
            CgroupHook::Create => BPF_PROG_TYPE_CGROUP_SOCK,
            _ => BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
        };
        let attribute = ProgramLoad::attached(prog_type, hook as u32, 0);
        Ok(Self { fd: load(name, instructions, attribute)?, hook })
    }

    /// Attaches the program to a cgroup, given as its open directory, beside other programs.
    ///
    /// # Errors
    /// EPERM if another program allows no program beside it.
    pub fn attach(&self, cgroup: BorrowedFd<'_>) -> Result<Link> {
        Link::create(self.fd.as_fd(), cgroup.as_raw_fd() as u32, self.hook as u32)
            .map_err(|error| explain("attach a program to", "a cgroup", &error))
    }
}
