//! eBPF programs: load, test run, and what the kernel says of one.
//!
//! The verifier's last words travel in the error. The capture engine loads what `strait-filter` assembled; tests and
//! the traffic generator run programs without an interface.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::link::BPF_XDP;
use super::{Attribute, Command, NAME_LEN, PRIVILEGE, bpf, bpf_fd, explain, object_name};
use crate::error::{Error, Kind, Result};

const BPF_PROG_TYPE_SOCKET_FILTER: u32 = 1;
const BPF_PROG_TYPE_SCHED_CLS: u32 = 3;
const BPF_PROG_TYPE_XDP: u32 = 6;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const BPF_F_XDP_DEV_BOUND_ONLY: u32 = 1 << 6;
const BPF_F_TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;
const BPF_TAG_SIZE: usize = 8;

/// Bytes of the verifier's log that are asked for after a failure; its end is what matters.
const LOG_BYTES: usize = 1 << 20;
/// Lines of the log that an error carries.
const LOG_LINES: usize = 4;
/// How often a load that a signal interrupted is tried again.
const LOAD_TRIES: usize = 5;

/// The verifier lets kernel functions be called by programs under a GPL-compatible licence only. The programs are
/// ours, under MIT among others; this is the compatible one of the names that the kernel knows.
const LICENSE: &std::ffi::CStr = c"Dual MIT/GPL";

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProgramLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; NAME_LEN],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

// SAFETY: mirrors the head of the struct for BPF_PROG_LOAD in linux/bpf.h, where every u64 falls on 8 bytes.
unsafe impl Attribute for ProgramLoad {}

#[repr(C)]
#[derive(Default)]
struct ProgramTest {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    pad: u32,
}

// SAFETY: mirrors the struct for BPF_PROG_TEST_RUN in linux/bpf.h; `pad` fills its end to 8 bytes.
unsafe impl Attribute for ProgramTest {}

#[repr(C)]
struct ObjectInfo {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

// SAFETY: mirrors the struct for BPF_OBJ_GET_INFO_BY_FD in linux/bpf.h.
unsafe impl Attribute for ObjectInfo {}

#[repr(C)]
struct ObjectId {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

// SAFETY: mirrors the struct for BPF_PROG_GET_FD_BY_ID in linux/bpf.h.
unsafe impl Attribute for ObjectId {}

/// `struct xdp_md` of linux/bpf.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct XdpMd {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_ifindex: u32,
    rx_queue_index: u32,
    egress_ifindex: u32,
}

/// The head of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct ProgramInfoHead {
    kind: u32,
    id: u32,
    tag: [u8; BPF_TAG_SIZE],
    jited_prog_len: u32,
    xlated_prog_len: u32,
    jited_prog_insns: u64,
    xlated_prog_insns: u64,
    load_time: u64,
    created_by_uid: u32,
    nr_map_ids: u32,
    map_ids: u64,
    name: [u8; NAME_LEN],
}

/// How an XDP program is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// It reads frames of several buffers right (`BPF_F_XDP_HAS_FRAGS`).
    pub fragments: bool,
    /// It calls metadata functions of this interface's driver (`BPF_F_XDP_DEV_BOUND_ONLY`).
    pub device: Option<u32>,
}

/// A loaded `BPF_PROG_TYPE_XDP` program.
#[derive(Debug)]
pub struct XdpProgram {
    fd: OwnedFd,
}

/// A loaded `BPF_PROG_TYPE_SOCKET_FILTER` program, for `SO_ATTACH_BPF`.
#[derive(Debug)]
pub struct SocketFilter {
    fd: OwnedFd,
}

/// A loaded `BPF_PROG_TYPE_SCHED_CLS` program, for an interface's way in or out.
#[derive(Debug)]
pub struct Classifier {
    fd: OwnedFd,
}

/// What an XDP program is told of the frame in a test run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpContext {
    /// The interface; 0 leaves the kernel's choice, its loopback.
    pub ingress_ifindex: u32,
    /// The receive queue, which the interface must have.
    pub rx_queue: u32,
    /// Bytes at the start of the data that are metadata, not frame.
    pub metadata_bytes: u32,
    /// Bytes of the data that go into the first buffer, the rest into fragments; absent is as many as fit.
    /// Kernels before 6.18 refuse a number below the data's length.
    pub linear_bytes: Option<u32>,
}

/// A `BPF_PROG_TEST_RUN`.
#[derive(Debug, Default)]
pub struct TestRun<'a> {
    /// The frame; XDP takes no fewer than 14 bytes.
    pub data: &'a [u8],
    /// Where the frame as the program left it goes, its metadata first.
    pub data_out: Option<&'a mut [u8]>,
    /// What the program is told of it.
    pub context: Option<XdpContext>,
    /// How often it runs; 0 is once.
    pub repeat: u32,
    /// `BPF_F_TEST_XDP_LIVE_FRAMES`: what it redirects or passes really goes there. Excludes `data_out`.
    pub live_frames: bool,
    /// Live frames that are handled at a time; 0 is the kernel's choice, 64.
    pub batch: u32,
}

/// What came of a test run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TestOutcome {
    /// What the program returned last.
    pub returned: u32,
    /// Mean duration of a run in nanoseconds.
    pub duration_ns: u32,
    /// Bytes of metadata and frame that the program left, of which `data_out` may hold a part.
    pub data_bytes: u32,
    /// Bytes of metadata among them; 0 for live frames.
    pub metadata_bytes: u32,
}

/// How the kernel names a program, so that a user can find it with bpftool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramInfo {
    /// Its number in this kernel.
    pub id: u32,
    /// The name it was loaded with; may be empty.
    pub name: String,
    /// Hash of its instructions.
    pub tag: [u8; BPF_TAG_SIZE],
}

impl XdpProgram {
    /// Loads eBPF `instructions` under `name`; the verifier's last lines are in the error if it refuses.
    pub fn load(name: &str, instructions: &[u64], options: LoadOptions) -> Result<Self> {
        let fragments = if options.fragments { BPF_F_XDP_HAS_FRAGS } else { 0 };
        let bound = if options.device.is_some() { BPF_F_XDP_DEV_BOUND_ONLY } else { 0 };
        let attribute = ProgramLoad {
            prog_type: BPF_PROG_TYPE_XDP,
            prog_flags: fragments | bound,
            prog_ifindex: options.device.unwrap_or(0),
            expected_attach_type: BPF_XDP,
            ..ProgramLoad::default()
        };
        Ok(Self { fd: load(name, instructions, attribute)? })
    }

    /// Runs it on given bytes; no interface need have it.
    ///
    /// # Errors
    /// ENOTSUPP or EINVAL where the kernel has no live frames; EINVAL for data under 14 bytes or beyond what the
    /// program takes; ENOSPC if `data_out` is too short for the result.
    pub fn test_run(&self, run: TestRun<'_>) -> Result<TestOutcome> {
        let mut context = run.context.map(|context| xdp_md(&context, run.data.len()));
        let (data_out, data_size_out) = match run.data_out {
            Some(out) => (out.as_mut_ptr() as u64, out.len() as u32),
            None => (0, 0),
        };
        let mut attribute = ProgramTest {
            prog_fd: self.fd.as_raw_fd() as u32,
            data_size_in: run.data.len() as u32,
            data_in: run.data.as_ptr() as u64,
            data_size_out,
            data_out,
            repeat: run.repeat,
            flags: if run.live_frames { BPF_F_TEST_XDP_LIVE_FRAMES } else { 0 },
            batch_size: run.batch,
            ..ProgramTest::default()
        };
        if let Some(context) = &mut context {
            attribute.ctx_in = std::ptr::from_mut(context) as u64;
            attribute.ctx_size_in = size_of::<XdpMd>() as u32;
            if !run.live_frames {
                attribute.ctx_out = attribute.ctx_in;
                attribute.ctx_size_out = attribute.ctx_size_in;
            }
        }
        bpf(Command::ProgramTestRun, &mut attribute).map_err(|error| {
            explain("test-run the XDP program on", format!("{} bytes", run.data.len()), &error)
        })?;
        Ok(TestOutcome {
            returned: attribute.retval,
            duration_ns: attribute.duration,
            data_bytes: attribute.data_size_out,
            metadata_bytes: context.filter(|_| !run.live_frames).map_or(0, |context| context.data),
        })
    }
}

impl AsFd for XdpProgram {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl SocketFilter {
    /// Loads eBPF `instructions` under `name`.
    pub fn load(name: &str, instructions: &[u64]) -> Result<Self> {
        let attribute = ProgramLoad { prog_type: BPF_PROG_TYPE_SOCKET_FILTER, ..ProgramLoad::default() };
        Ok(Self { fd: load(name, instructions, attribute)? })
    }
}

impl AsFd for SocketFilter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Classifier {
    /// Loads eBPF `instructions` under `name`.
    pub fn load(name: &str, instructions: &[u64]) -> Result<Self> {
        let attribute = ProgramLoad { prog_type: BPF_PROG_TYPE_SCHED_CLS, ..ProgramLoad::default() };
        Ok(Self { fd: load(name, instructions, attribute)? })
    }
}

impl AsFd for Classifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What the kernel says of the program behind `fd`.
pub fn program_info(fd: BorrowedFd<'_>) -> Result<ProgramInfo> {
    let mut head = ProgramInfoHead::default();
    let mut attribute = ObjectInfo {
        bpf_fd: fd.as_raw_fd() as u32,
        info_len: size_of::<ProgramInfoHead>() as u32,
        info: std::ptr::from_mut(&mut head) as u64,
    };
    bpf(Command::ObjectInfo, &mut attribute)
        .map_err(|error| explain("ask about a BPF program", "", &error))?;
    let name: Vec<u8> = head.name.into_iter().take_while(|byte| *byte != 0).collect();
    Ok(ProgramInfo { id: head.id, name: String::from_utf8_lossy(&name).into_owned(), tag: head.tag })
}

/// What the kernel says of the program with this number, for example the one that netlink reports on an interface.
pub fn program_info_by_id(id: u32) -> Result<ProgramInfo> {
    let mut attribute = ObjectId { id, next_id: 0, open_flags: 0 };
    let fd = bpf_fd(Command::ProgramFdById, &mut attribute)
        .map_err(|error| explain("open BPF program", format!("number {id}"), &error))?;
    program_info(fd.as_fd())
}

fn xdp_md(context: &XdpContext, data_bytes: usize) -> XdpMd {
    XdpMd {
        data: context.metadata_bytes,
        data_end: context.linear_bytes.unwrap_or(data_bytes as u32),
        ingress_ifindex: context.ingress_ifindex,
        rx_queue_index: context.rx_queue,
        ..XdpMd::default()
    }
}

fn load(name: &str, instructions: &[u64], mut attribute: ProgramLoad) -> Result<OwnedFd> {
    attribute.insn_cnt = u32::try_from(instructions.len())
        .map_err(|_| Error::said(Kind::Usage, "load the BPF program", name, "it is too long"))?;
    attribute.insns = instructions.as_ptr() as u64;
    attribute.license = LICENSE.as_ptr() as u64;
    attribute.prog_name = object_name(name);
    load_again(&mut attribute).map_err(|error| {
        let explained = explain("load the BPF program", name, &error);
        if error.raw_os_error() == Some(libc::EPERM) {
            return explained;
        }
        let says = verifier_says(attribute);
        // Its words for what CAP_PERFMON allows: arithmetic on packet pointers.
        let lacks_privilege = says.contains("prohibited");
        let kind = if lacks_privilege { Kind::Refused } else { Kind::Failed };
        let hint = if lacks_privilege { format!("{PRIVILEGE}; ") } else { String::new() };
        explained.with_kind(kind).remedy(format!("{hint}the kernel's verifier says: {says}"))
    })
}

/// Loads; a signal in the verifier makes it give up with EAGAIN, which is not ours to report.
fn load_again(attribute: &mut ProgramLoad) -> io::Result<OwnedFd> {
    for _ in 1..LOAD_TRIES {
        match bpf_fd(Command::ProgramLoad, attribute) {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            result => return result,
        }
    }
    bpf_fd(Command::ProgramLoad, attribute)
}

/// Loads once more with a log, and keeps its last lines.
fn verifier_says(mut attribute: ProgramLoad) -> String {
    let mut log = vec![0_u8; LOG_BYTES];
    attribute.log_level = 1;
    attribute.log_size = log.len() as u32;
    attribute.log_buf = log.as_mut_ptr() as u64;
    if bpf_fd(Command::ProgramLoad, &mut attribute).is_ok() {
        return "it took the program on a second try".into();
    }
    let text: Vec<u8> = log.into_iter().take_while(|byte| *byte != 0).collect();
    let text = String::from_utf8_lossy(&text);
    let mut last: Vec<&str> = text.lines().rev().filter(|line| !line.is_empty()).take(LOG_LINES).collect();
    last.reverse();
    if last.is_empty() { "nothing".into() } else { last.join(" | ") }
}
