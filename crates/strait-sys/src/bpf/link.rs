//! `BPF_LINK_CREATE` and `BPF_LINK_UPDATE` for XDP and tcx: a program on an interface, detached
//! with its descriptor.
//!
//! The capture engine holds one link for each session. If the process dies, the kernel closes the
//! descriptor and detaches the program, so no program is left on the interface. Netlink, not this
//! module, reports a program that is already attached.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::program::{Classifier, XdpProgram};
use super::{Attribute, Command, bpf, bpf_fd, explain};
use crate::error::{Kind, Result};

/// `BPF_XDP` of `enum bpf_attach_type`.
pub(super) const BPF_XDP: u32 = 37;
/// `BPF_TCX_INGRESS` and `BPF_TCX_EGRESS` of `enum bpf_attach_type`.
const BPF_TCX_INGRESS: u32 = 46;
const BPF_TCX_EGRESS: u32 = 47;
/// The program becomes the first of its hook.
const BPF_F_BEFORE: u32 = 1 << 3;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Place of the program in the receive path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// In the driver if it can, otherwise generic: the kernel chooses.
    Auto,
    /// In the driver (`XDP_FLAGS_DRV_MODE`).
    Native,
    /// After the driver made an `sk_buff` (`XDP_FLAGS_SKB_MODE`).
    Generic,
}

impl AttachMode {
    fn flags(self) -> u32 {
        match self {
            Self::Auto => 0,
            Self::Native => XDP_FLAGS_DRV_MODE,
            Self::Generic => XDP_FLAGS_SKB_MODE,
        }
    }
}

/// Hook of tcx programs (Linux 6.6). Several programs run there one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcxHook {
    /// Received packets, after packet sockets and before the host's network stack.
    Ingress,
    /// Sent packets, before the queueing discipline.
    Egress,
}

impl TcxHook {
    fn attach_type(self) -> u32 {
        match self {
            Self::Ingress => BPF_TCX_INGRESS,
            Self::Egress => BPF_TCX_EGRESS,
        }
    }
}

#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

// SAFETY: mirrors the head of the struct for BPF_LINK_CREATE in linux/bpf.h: four u32, no
// addresses.
unsafe impl Attribute for LinkCreate {}

#[repr(C)]
struct LinkUpdate {
    link_fd: u32,
    new_prog_fd: u32,
    flags: u32,
    old_prog_fd: u32,
}

// SAFETY: mirrors the struct for BPF_LINK_UPDATE in linux/bpf.h: four u32, no addresses.
unsafe impl Attribute for LinkUpdate {}

#[repr(C)]
struct ProgramQuery {
    target_ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    program_ids: u64,
    count: u32,
    pad: u32,
}

// SAFETY: mirrors the head of the struct for BPF_PROG_QUERY in linux/bpf.h; `pad` is the kernel's
// own alignment hole.
unsafe impl Attribute for ProgramQuery {}

/// Maximum number of programs on a hook (`BPF_MPROG_MAX`).
const TCX_PROGRAMS_MAX: usize = 64;

/// Returns the identifiers of the programs on a hook of the interface, in the order in which they
/// run.
///
/// # Errors
/// EINVAL if the kernel has no tcx; EPERM without CAP_NET_ADMIN.
pub fn tcx_programs(ifindex: u32, hook: TcxHook) -> Result<Vec<u32>> {
    let mut ids = [0_u32; TCX_PROGRAMS_MAX];
    let mut attribute = ProgramQuery {
        target_ifindex: ifindex,
        attach_type: hook.attach_type(),
        query_flags: 0,
        attach_flags: 0,
        program_ids: ids.as_mut_ptr() as u64,
        count: ids.len() as u32,
        pad: 0,
    };
    match bpf(Command::ProgramQuery, &mut attribute) {
        Ok(_) => Ok(ids.iter().copied().take(attribute.count as usize).collect()),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Vec::new()),
        Err(error) => Err(explain("list the programs of", format!("interface {ifindex}"), &error)),
    }
}

/// Attached program; dropping the link detaches it.
#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
}

impl Link {
    /// Takes a link of which the kernel, or another process, made the descriptor.
    pub fn from_descriptor(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Attaches a program to a target without flags.
    pub(super) fn create(program: BorrowedFd<'_>, target: u32, attach_type: u32) -> io::Result<Self> {
        let prog_fd = program.as_raw_fd() as u32;
        let mut attribute = LinkCreate { prog_fd, target_ifindex: target, attach_type, flags: 0 };
        Ok(Self { fd: bpf_fd(Command::LinkCreate, &mut attribute)? })
    }

    /// Attaches `program` to the interface with index `ifindex` in the calling thread's network
    /// namespace.
    ///
    /// # Errors
    /// EBUSY ([`Kind::Refused`]) if another program is attached; EOPNOTSUPP if the driver has no
    /// native XDP; EINVAL or ERANGE if the driver cannot run it at this MTU or queue setting.
    pub fn attach_xdp(program: &XdpProgram, ifindex: u32, mode: AttachMode) -> Result<Self> {
        let mut attribute = LinkCreate {
            prog_fd: program.as_fd().as_raw_fd() as u32,
            target_ifindex: ifindex,
            attach_type: BPF_XDP,
            flags: mode.flags(),
        };
        let subject = format!("interface {ifindex}");
        let fd = bpf_fd(Command::LinkCreate, &mut attribute).map_err(|error| {
            let explained = explain("attach the XDP program to", subject, &error);
            match error.raw_os_error() {
                Some(libc::EBUSY) => explained.with_kind(Kind::Refused),
                _ => explained,
            }
        })?;
        Ok(Self { fd })
    }

    /// Attaches `program` to a hook of an interface, before the other programs there.
    ///
    /// # Errors
    /// EINVAL if the kernel has no tcx, ERANGE if the hook has as many programs as the kernel
    /// allows (64), both [`Kind::Refused`].
    pub fn attach_tcx(program: &Classifier, ifindex: u32, hook: TcxHook) -> Result<Self> {
        let mut attribute = LinkCreate {
            prog_fd: program.as_fd().as_raw_fd() as u32,
            target_ifindex: ifindex,
            attach_type: hook.attach_type(),
            flags: BPF_F_BEFORE,
        };
        let fd = bpf_fd(Command::LinkCreate, &mut attribute).map_err(|error| {
            let explained = explain("attach a program to", format!("interface {ifindex}"), &error);
            match error.raw_os_error() {
                Some(libc::EINVAL) => explained.with_kind(Kind::Refused).remedy("needs Linux 6.6 (tcx)"),
                Some(libc::ERANGE) => {
                    explained.with_kind(Kind::Refused).remedy("the hook is full: detach a program of it")
                }
                _ => explained,
            }
        })?;
        Ok(Self { fd })
    }

    /// Replaces the attached program by `program` (`BPF_LINK_UPDATE`). The exchange is atomic: one
    /// of the two programs runs for each frame.
    ///
    /// # Errors
    /// EPERM without the privilege to use BPF; EINVAL if the programs differ in their support of
    /// fragments.
    pub fn update(&self, program: &impl AsFd) -> Result<()> {
        let mut attribute = LinkUpdate {
            link_fd: self.fd.as_raw_fd() as u32,
            new_prog_fd: program.as_fd().as_raw_fd() as u32,
            flags: 0,
            old_prog_fd: 0,
        };
        bpf(Command::LinkUpdate, &mut attribute)
            .map(drop)
            .map_err(|error| explain("replace the attached program", "", &error))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
