//! Compilation of filter texts to programs of the kernel.
//!
//! libpcap compiles the text, `strait-filter` checks the program and sets the snaplen, [`Link`]
//! converts it to the kernel's program, and the engines attach that. A filter that the kernel
//! refuses runs in this process, as in libpcap.

use rustix::io::Errno;
use strait_filter::cbpf::{Instruction, Program};
use strait_packet::summary::link_type::dlt;
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
        // libpcap's live handle on all interfaces has another cooked header.
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

/// Checks `instructions` and makes a program of them, which may be too large for the kernel.
///
/// # Errors
/// [`Error::Filter`]: the program is invalid.
pub fn check(instructions: Vec<Instruction>) -> Result<Program, Error> {
    Program::check_interpretable(instructions).map_err(|error| Error::Filter(error.to_string()))
}

/// Start of the note in [`crate::Session::notes`] on a filter that the kernel does not run.
const HERE: &str = "the filter runs in this process: ";

/// Replaces the note on an earlier filter by the reason `why` the filter runs in this process.
pub(crate) fn note(notes: &mut Vec<String>, why: Option<String>) {
    notes.retain(|note| !note.starts_with(HERE));
    notes.extend(why.map(|why| format!("{HERE}{why}")));
}

/// Returns true if `error` may mean that a filter is too large for the kernel: by memory
/// (net.core.optmem_max), or by the number of instructions with those that the path adds.
pub(crate) fn may_be_too_large(error: &Error) -> bool {
    matches!(error, Error::Filter(_)) || error.is_one_of(&[Errno::NOMEM, Errno::INVAL])
}

/// Refuses a program that AF_XDP cannot run. In this process it would run too late: frames that the
/// XDP program matches never reach the host.
pub(crate) fn refuse_on_xdp(program: &Program) -> Result<(), Error> {
    match program.refusal() {
        None => Ok(()),
        Some(refusal) => Err(Error::Filter(format!(
            "{refusal}. AF_XDP takes what its program matches away from the host, so the filter must run in the \
             kernel: use --path v3, where it runs in this process"
        ))),
    }
}

/// Returns `program` with at most `snaplen` bytes kept of each frame.
pub(crate) fn cut(program: &Program, snaplen: u32) -> Result<Program, Error> {
    program.with_snaplen(snaplen).map_err(|error| Error::Filter(error.to_string()))
}

/// Replaces a packet socket's filter. A program that keeps every frame whole is left out, because
/// it costs time for each frame.
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
