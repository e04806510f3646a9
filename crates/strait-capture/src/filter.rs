//! From filter text to the programs that the kernel runs.
//!
//! libpcap compiles the text, `strait-filter` checks it, sets the snaplen; [`Link`] makes of it
//! what the kernel runs, and the engines attach that. A filter that the kernel does not take runs
//! in this process, as libpcap does it.

use strait_filter::cbpf::{Instruction, Program};
use strait_sys::libpcap::Compiler;
use strait_sys::packet::Socket;

use crate::error::Error;
use crate::link::{self, Link};

/// The largest snaplen, libpcap's MAXIMUM_SNAPLEN.
pub(crate) const SNAPLEN_MAX: u32 = 262_144;

/// Compiles `text` for live capture on `interface`; no text matches everything. The program returns
/// at most `snaplen` bytes.
pub(crate) fn live(interface: &str, link: Link, text: Option<&str>, snaplen: u32) -> Result<Program, Error> {
    match text.filter(|text| !text.trim().is_empty()) {
        None => Ok(Program::accept_all(snaplen)),
        Some(text) => checked(&compiler(interface, link)?, text, snaplen),
    }
}

fn compiler(interface: &str, link: Link) -> Result<Compiler, Error> {
    Ok(match link.cooked() {
        // libpcap's handle on all interfaces is for another header; from a file it compiles the same.
        Some(_) => Compiler::offline(dlt(link.link_type()), SNAPLEN_MAX)?,
        None => Compiler::live(interface, SNAPLEN_MAX)?,
    })
}

/// Compiles filters for a capture that runs, [`crate::Session::set_filter`]. libpcap does so on a
/// handle of its own, which needs the privilege to open the interface: make this before that is
/// given up.
#[derive(Debug)]
pub struct FilterCompiler {
    compiler: Compiler,
}

impl FilterCompiler {
    /// For `interface`.
    ///
    /// # Errors
    /// There is no libpcap, no such interface, or no privilege.
    pub fn open(interface: &str) -> Result<Self, Error> {
        let link = Link::of(&link::find(interface)?)?;
        Ok(Self { compiler: compiler(interface, link)? })
    }

    /// The program of `text`, see pcap-filter(7); of one that keeps everything where it is empty.
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

/// The number that libpcap's own calls know a link type by: files number it differently where
/// systems disagree (pcap-linktype(7)).
fn dlt(linktype: u32) -> i32 {
    const LINKTYPE_RAW: u32 = 101;
    const DLT_RAW: i32 = 12;
    if linktype == LINKTYPE_RAW { DLT_RAW } else { linktype as i32 }
}

fn checked(compiler: &Compiler, text: &str, snaplen: u32) -> Result<Program, Error> {
    let instructions = compiler.compile(text, true)?;
    let instructions =
        instructions.into_iter().map(|(code, jt, jf, k)| Instruction { code, jt, jf, k }).collect();
    cut(&check(instructions)?, snaplen)
}

/// A program of `instructions`, one that the kernel takes or one that runs in this process.
///
/// # Errors
/// [`Error::Filter`]: it is no valid program.
pub fn check(instructions: Vec<Instruction>) -> Result<Program, Error> {
    Program::check_interpretable(instructions).map_err(|error| Error::Filter(error.to_string()))
}

/// How [`crate::Session::notes`] begins to tell of a filter that the kernel does not run.
const HERE: &str = "the filter runs in this process: ";

/// Puts into `notes` why the filter runs in this process, in the place of what they say of an
/// earlier filter.
pub(crate) fn note(notes: &mut Vec<String>, why: Option<String>) {
    notes.retain(|note| !note.starts_with(HERE));
    notes.extend(why.map(|why| format!("{HERE}{why}")));
}

/// Returns true if `error` may mean that a filter is too large for the kernel: its answer
/// (net.core.optmem_max), or the limit of instructions, where the socket's own are added.
pub(crate) fn may_be_too_large(error: &Error) -> bool {
    const ENOMEM: i32 = 12;
    const EINVAL: i32 = 22;
    matches!(error, Error::Filter(_)) || matches!(error.errno(), Some(ENOMEM | EINVAL))
}

/// Refuses a program that AF_XDP cannot run. In this process it would come too late: what the XDP
/// program matches never reaches the host.
pub(crate) fn refuse_on_xdp(program: &Program) -> Result<(), Error> {
    match program.refusal() {
        None => Ok(()),
        Some(refusal) => Err(Error::Filter(format!(
            "{refusal}. AF_XDP takes what its program matches away from the host, so the filter must run in the \
             kernel: use --path v3, where it runs in this process"
        ))),
    }
}

/// The same program keeping `snaplen` bytes at most.
pub(crate) fn cut(program: &Program, snaplen: u32) -> Result<Program, Error> {
    program.with_snaplen(snaplen).map_err(|error| Error::Filter(error.to_string()))
}

/// Puts `program` in the place of a packet socket's filter; a program that keeps everything is not
/// worth its cost.
pub(crate) fn attach(program: &Program, socket: &Socket) -> Result<(), Error> {
    if *program == Program::accept_all(SNAPLEN_MAX) {
        return Ok(socket.detach_filter()?);
    }
    Ok(socket.attach_filter(&instructions(program))?)
}

/// As the packet sockets take it.
pub(crate) fn instructions(program: &Program) -> Vec<strait_sys::packet::Instruction> {
    program.instructions().iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect()
}
