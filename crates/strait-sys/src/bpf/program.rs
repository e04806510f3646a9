//! eBPF programs: load, test run, and information from the kernel.
//!
//! Errors carry the last lines of the verifier's log. The capture engine loads the programs that
//! `strait-filter` assembles; tests and the traffic generator run programs without an interface.

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

/// Size of the verifier's log buffer after a failure. The reason is at the end of the log, so the
/// buffer must hold all of it.
const LOG_BYTES: usize = 1 << 20;
/// Number of log lines in an error.
const LOG_LINES: usize = 4;
/// Maximum number of attempts at a load that signals interrupt.
const LOAD_ATTEMPTS_MAX: usize = 5;

/// Licence of the programs. The verifier allows calls of kernel functions only under a
/// GPL-compatible licence and knows a fixed list of names (include/linux/license.h). These programs
/// are under MIT, among others; this is the name on the list that covers it.
const LICENSE: &std::ffi::CStr = c"Dual MIT/GPL";

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct ProgramLoad {
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
    prog_btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    line_info_rec_size: u32,
    line_info: u64,
    line_info_cnt: u32,
    attach_btf_id: u32,
    attach_btf_obj_fd: u32,
    core_relo_cnt: u32,
}

// SAFETY: mirrors the head of the struct for BPF_PROG_LOAD in linux/bpf.h, where every u64 falls on
// 8 bytes.
unsafe impl Attribute for ProgramLoad {}

impl ProgramLoad {
    /// Returns the attributes of a program for a hook, and for the type with the identifier
    /// `btf_id` there, if the hook needs one.
    pub(super) fn attached(prog_type: u32, expected_attach_type: u32, btf_id: i32) -> Self {
        Self { prog_type, expected_attach_type, attach_btf_id: btf_id as u32, ..Self::default() }
    }
}

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
pub(super) struct ObjectInfo {
    pub(super) bpf_fd: u32,
    pub(super) info_len: u32,
    pub(super) info: u64,
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

/// `struct bpf_prog_info` up to the number of omitted runs (Linux 5.12). Counts of 0 in it request
/// no arrays.
#[derive(Default)]
#[repr(C)]
struct ProgramInfoRuns {
    head: ProgramInfoHead,
    between: [u64; 16],
    recursion_misses: u64,
}

/// Options of loading an XDP program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// The program supports frames of several buffers (`BPF_F_XDP_HAS_FRAGS`).
    pub fragments: bool,
    /// Interface, for a program that calls metadata functions of its driver
    /// (`BPF_F_XDP_DEV_BOUND_ONLY`).
    pub device: Option<u32>,
}

/// Loaded `BPF_PROG_TYPE_XDP` program.
#[derive(Debug)]
pub struct XdpProgram {
    fd: OwnedFd,
}

/// Loaded `BPF_PROG_TYPE_SOCKET_FILTER` program, for `SO_ATTACH_BPF`.
#[derive(Debug)]
pub struct SocketFilter {
    fd: OwnedFd,
}

/// Loaded `BPF_PROG_TYPE_SCHED_CLS` program, for an interface's ingress or egress.
#[derive(Debug)]
pub struct Classifier {
    fd: OwnedFd,
}

/// Context of the frame that a test run passes to an XDP program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpContext {
    /// Index of the interface; 0 is the kernel's default, its loopback.
    pub ingress_ifindex: u32,
    /// Receive queue; the interface must have it.
    pub rx_queue: u32,
    /// Bytes at the start of the data that are metadata and not frame.
    pub metadata_bytes: u32,
    /// Bytes of the data in the first buffer; the rest goes into fragments. `None` puts as many
    /// there as fit. Kernels before 6.18 refuse a number below the data's length.
    pub linear_bytes: Option<u32>,
}

/// Arguments of a `BPF_PROG_TEST_RUN`.
#[derive(Debug, Default)]
pub struct TestRun<'a> {
    /// The frame; XDP requires at least 14 bytes.
    pub data: &'a [u8],
    /// Receives the frame as the program left it, preceded by its metadata.
    pub data_out: Option<&'a mut [u8]>,
    /// Context of the frame.
    pub context: Option<XdpContext>,
    /// Number of runs; 0 means one.
    pub repeat: u32,
    /// `BPF_F_TEST_XDP_LIVE_FRAMES`: redirected and passed frames really reach their target.
    /// Excludes `data_out`.
    pub live_frames: bool,
    /// Live frames in a batch; 0 is the kernel's default, 64.
    pub batch: u32,
}

/// Result of a test run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TestOutcome {
    /// Return value of the last run.
    pub returned: u32,
    /// Mean duration of a run in nanoseconds.
    pub duration_ns: u32,
    /// Bytes of metadata and frame that the program left; `data_out` may hold only a part.
    pub data_bytes: u32,
    /// Bytes of metadata among them; 0 for live frames.
    pub metadata_bytes: u32,
}

/// Identity of a program in the kernel, by which bpftool finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramInfo {
    /// Identifier that the kernel assigned.
    pub id: u32,
    /// Name given at load; may be empty.
    pub name: String,
    /// Hash of the instructions.
    pub tag: [u8; BPF_TAG_SIZE],
}

impl XdpProgram {
    /// Loads eBPF `instructions` under `name`. If the verifier refuses, the error holds the last
    /// lines of its log.
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

    /// Runs the program on given bytes, without an interface.
    ///
    /// # Errors
    /// ENOTSUPP or EINVAL if the kernel lacks live frames; EINVAL for data under 14 bytes or longer
    /// than the program accepts; ENOSPC if `data_out` is too short for the result.
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

    /// Runs the program on a frame of the loopback interface and returns its result.
    ///
    /// # Errors
    /// EINVAL for a frame under 14 bytes or longer than a page.
    pub fn test_run(&self, frame: &[u8]) -> Result<u32> {
        let mut attribute = ProgramTest {
            prog_fd: self.fd.as_raw_fd() as u32,
            data_size_in: frame.len() as u32,
            data_in: frame.as_ptr() as u64,
            ..ProgramTest::default()
        };
        bpf(Command::ProgramTestRun, &mut attribute).map_err(|error| {
            explain("test-run the classifier on", format!("{} bytes", frame.len()), &error)
        })?;
        Ok(attribute.retval)
    }
}

impl AsFd for Classifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Reads the identity of the program behind `fd`.
pub fn program_info(fd: BorrowedFd<'_>) -> Result<ProgramInfo> {
    let mut head = ProgramInfoHead::default();
    let mut attribute = ObjectInfo {
        bpf_fd: fd.as_raw_fd() as u32,
        info_len: size_of::<ProgramInfoHead>() as u32,
        info: std::ptr::from_mut(&mut head) as u64,
    };
    bpf(Command::ObjectInfo, &mut attribute)
        .map_err(|error| explain("read information about", "a BPF program", &error))?;
    let name: Vec<u8> = head.name.into_iter().take_while(|byte| *byte != 0).collect();
    Ok(ProgramInfo { id: head.id, name: String::from_utf8_lossy(&name).into_owned(), tag: head.tag })
}

/// Returns the number of events for which the program behind `fd` did not run, because it was
/// running on the same CPU; 0 from kernels that do not count them.
pub fn nested_runs(fd: BorrowedFd<'_>) -> Result<u64> {
    let mut info = ProgramInfoRuns::default();
    let mut attribute = ObjectInfo {
        bpf_fd: fd.as_raw_fd() as u32,
        info_len: size_of::<ProgramInfoRuns>() as u32,
        info: std::ptr::from_mut(&mut info) as u64,
    };
    bpf(Command::ObjectInfo, &mut attribute)
        .map_err(|error| explain("read information about", "a BPF program", &error))?;
    Ok(info.recursion_misses)
}

/// Reads the identity of the program with this identifier, for example one that netlink reports on
/// an interface.
pub fn program_info_by_id(id: u32) -> Result<ProgramInfo> {
    let mut attribute = ObjectId { id, next_id: 0, open_flags: 0 };
    let fd = bpf_fd(Command::ProgramFdById, &mut attribute)
        .map_err(|error| explain("open BPF program", format!("id {id}"), &error))?;
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

pub(super) fn load(name: &str, instructions: &[u64], mut attribute: ProgramLoad) -> Result<OwnedFd> {
    attribute.insn_cnt = u32::try_from(instructions.len())
        .map_err(|_| Error::new(Kind::Usage, "load the BPF program", name, "the program is too long"))?;
    attribute.insns = instructions.as_ptr() as u64;
    attribute.license = LICENSE.as_ptr() as u64;
    attribute.prog_name = object_name(name);
    load_with_retries(&mut attribute).map_err(|error| {
        let explained = explain("load the BPF program", name, &error);
        if error.raw_os_error() == Some(libc::EPERM) {
            return explained;
        }
        let log = verifier_log(attribute);
        // The verifier's message for operations that need CAP_PERFMON: arithmetic on packet
        // pointers.
        let lacks_privilege = log.contains("prohibited");
        let kind = if lacks_privilege { Kind::Refused } else { Kind::Failed };
        let hint = if lacks_privilege { format!("{PRIVILEGE}; ") } else { String::new() };
        explained.with_kind(kind).remedy(format!("{hint}the kernel's verifier reports: {log}"))
    })
}

/// Loads, and repeats after EAGAIN, by which the verifier reports that a signal interrupted it.
fn load_with_retries(attribute: &mut ProgramLoad) -> io::Result<OwnedFd> {
    for _ in 1..LOAD_ATTEMPTS_MAX {
        match bpf_fd(Command::ProgramLoad, attribute) {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            result => return result,
        }
    }
    bpf_fd(Command::ProgramLoad, attribute)
}

/// Loads once more with a log, and returns the log's last lines.
fn verifier_log(mut attribute: ProgramLoad) -> String {
    let mut log = vec![0_u8; LOG_BYTES];
    attribute.log_level = 1;
    attribute.log_size = log.len() as u32;
    attribute.log_buf = log.as_mut_ptr() as u64;
    if bpf_fd(Command::ProgramLoad, &mut attribute).is_ok() {
        return "no error on the second attempt".into();
    }
    let text: Vec<u8> = log.into_iter().take_while(|byte| *byte != 0).collect();
    let text = String::from_utf8_lossy(&text);
    let mut last: Vec<&str> = text.lines().rev().filter(|line| !line.is_empty()).take(LOG_LINES).collect();
    last.reverse();
    if last.is_empty() { "no message".into() } else { last.join(" | ") }
}
