//! Compiles filter texts to programs for the kernel.
//!
//! libpcap compiles the text, `strait-filter` checks the program and sets the snaplen, [`Link`]
//! converts it for the kernel, and the engines attach it. A filter that the kernel refuses runs in
//! this process, as in libpcap.

use rustix::io::Errno;
use strait_filter::cbpf::{Instruction, Program};
use strait_packet::summary::link_type::{self, dlt};
use strait_sys::libpcap::Compiler;
use strait_sys::packet::Socket;

use crate::error::Error;
use crate::link::{self, Link};

/// Maximum snaplen: libpcap's MAXIMUM_SNAPLEN.
pub(crate) const SNAPLEN_MAX: u32 = 262_144;

/// Compiles `text` for live capture on `interface`. Without a text the program matches all frames.
/// It returns at most `snaplen` bytes.
pub(crate) fn live(interface: &str, link: Link, text: Option<&str>, snaplen: u32) -> Result<Program, Error> {
    match text.filter(|text| !text.trim().is_empty()) {
        None => Ok(Program::accept_all(snaplen)),
        Some(text) => checked(&compiler(interface, link)?, text, snaplen),
    }
}

fn compiler(interface: &str, link: Link) -> Result<Compiler, Error> {
    Ok(match link.cooked() {
        // A live handle of libpcap on all interfaces compiles for another cooked header.
        Some(_) => Compiler::offline(dlt(link.link_type()), SNAPLEN_MAX)?,
        None => Compiler::live(interface, SNAPLEN_MAX)?,
    })
}

/// Compiler of filters for a running capture, see [`crate::Session::set_filter`]. It holds a handle
/// of libpcap, which needs the privilege to open the interface: open it before the program drops
/// its privileges.
#[derive(Debug)]
pub struct FilterCompiler {
    compiler: Compiler,
}

impl FilterCompiler {
    /// Opens a compiler for `interface`.
    ///
    /// # Errors
    /// There is no libpcap, no such interface, or no privilege.
    pub fn open(interface: &str) -> Result<Self, Error> {
        let link = Link::of(&link::find(interface)?)?;
        Ok(Self { compiler: compiler(interface, link)? })
    }

    /// Compiles `text` (pcap-filter(7)); an empty one matches all frames.
    pub fn compile(&self, text: &str) -> Result<Program, Error> {
        if text.trim().is_empty() {
            return Ok(Program::accept_all(SNAPLEN_MAX));
        }
        checked(&self.compiler, text, SNAPLEN_MAX)
    }
}

/// Compiles `text` for packets of `linktype` from a file.
pub(crate) fn offline(linktype: u32, text: Option<&str>, snaplen: u32) -> Result<Program, Error> {
    match text.filter(|text| !text.trim().is_empty()) {
        None => Ok(Program::accept_all(snaplen)),
        Some(text) => checked(&Compiler::offline(dlt(linktype), SNAPLEN_MAX)?, text, snaplen),
    }
}

fn checked(compiler: &Compiler, text: &str, snaplen: u32) -> Result<Program, Error> {
    let instructions = compiler.compile(text, true)?;
    let instructions =
        instructions.into_iter().map(|(code, jt, jf, k)| Instruction { code, jt, jf, k }).collect();
    cut(&check(instructions)?, snaplen)
}

/// Returns true if libpcap accepts `text` as a filter of Ethernet frames.
pub fn is_filter(text: &str) -> bool {
    let compiler = Compiler::offline(dlt(link_type::ETHERNET.into()), SNAPLEN_MAX);
    compiler.and_then(|compiler| compiler.compile(text, false)).is_ok()
}

/// Checks `instructions` and returns them as a program, which may be too large for the kernel.
///
/// # Errors
/// [`Error::Filter`]: the program is invalid.
pub fn check(instructions: Vec<Instruction>) -> Result<Program, Error> {
    Program::check_interpretable(instructions).map_err(|error| Error::Filter(error.to_string()))
}

/// Start of the note in [`crate::Session::notes`] about a filter that the kernel does not run.
const USERSPACE_NOTE: &str = "the filter runs in this process: ";

/// Replaces the note about an earlier filter by one with the `reason` for running the filter in
/// this process.
pub(crate) fn note(notes: &mut Vec<String>, reason: Option<String>) {
    notes.retain(|note| !note.starts_with(USERSPACE_NOTE));
    notes.extend(reason.map(|reason| format!("{USERSPACE_NOTE}{reason}")));
}

/// Returns true if the filter of these notes runs in this process.
pub(crate) fn is_noted(notes: &[String]) -> bool {
    notes.iter().any(|note| note.starts_with(USERSPACE_NOTE))
}

/// Returns true if `error` may mean that a filter is too large for the kernel: for the limit of
/// memory (net.core.optmem_max), or for the limit of instructions, including those that the path
/// adds.
pub(crate) fn may_be_too_large(error: &Error) -> bool {
    matches!(error, Error::Filter(_)) || error.is_one_of(&[Errno::NOMEM, Errno::INVAL])
}

/// Refuses a program that XDP cannot run. It cannot run in this process instead: the XDP program
/// would have to redirect all frames, and those that the filter rejects would not reach the host.
pub(crate) fn refuse_on_xdp(program: &Program) -> Result<(), Error> {
    match program.refusal() {
        None => Ok(()),
        Some(refusal) => Err(Error::Filter(format!(
            "{refusal}. On AF_XDP the filter must run in the kernel, because redirected frames do not reach the host: \
             use --path v3, where it runs in this process"
        ))),
    }
}

/// Returns `program` with the limit of `snaplen` captured bytes.
pub(crate) fn cut(program: &Program, snaplen: u32) -> Result<Program, Error> {
    program.with_snaplen(snaplen).map_err(|error| Error::Filter(error.to_string()))
}

/// Replaces a packet socket's filter. A program that matches every frame without a cut is left out,
/// because the kernel would run it for each frame.
pub(crate) fn attach(program: &Program, socket: &Socket) -> Result<(), Error> {
    if *program == Program::accept_all(SNAPLEN_MAX) {
        return Ok(socket.detach_filter()?);
    }
    Ok(socket.attach_filter(&instructions(program))?)
}

/// Converts a program for packet sockets.
pub(crate) fn instructions(program: &Program) -> Vec<strait_sys::packet::Instruction> {
    program.instructions().iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect()
}
