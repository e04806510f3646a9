//! Classic BPF to eBPF for XDP, with the answer that a packet socket's filter gives.
//!
//! An XDP program sees the frame before the kernel has looked at it: the VLAN tag is still inside, and there is no
//! `sk_buff` with facts about it. The translation therefore holds the program twice: once for frames without a
//! tag, once for frames with one, where offsets from 12 on lie 4 bytes further. Every load is checked against
//! the end of the frame; beyond it, as in classic BPF, there is no match.
//!
//! | register | holds |
//! |---|---|
//! | R0 | A, and the result |
//! | R1 to R5 | nothing between two classic instructions |
//! | R6 | the context, `struct xdp_md` |
//! | R7 | the VLAN tag: type in the upper half of 32 bits, control information in the lower; 0 is none |
//! | R8 | `data_end` |
//! | R9 | X |
//!
//! `data` is read from the context at each load rather than kept: a kept pointer would carry "so many bytes are
//! there" into every join of two ways, and the verifier would walk what follows again for each such number.
//!
//! [`crate::xdp`] puts a filter into a capture program; [`translate`] makes one that just returns the answer.

mod ancillary;
mod body;
mod entry;
mod load;
#[cfg(test)]
mod tests;

use crate::cbpf::{Program, opcode as cop};
use crate::ebpf::{
    Assembler, Condition, Instruction, Label, Operation,
    Register::{self, R0, R1, R2, R6},
    Size,
};
use crate::error::Error;
use crate::interpret::{ETHERTYPE_OFFSET, TAG_LEN};

/// What the translation has to know of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The program must read frames of several buffers, as a large MTU needs (`BPF_F_XDP_HAS_FRAGS`, Linux 5.18).
    pub fragments: bool,
    /// The interface's address, by which frames are for this host or not.
    pub device_mac: [u8; 6],
    /// The interface's `ARPHRD_*` type.
    pub hatype: u16,
    /// Functions of the driver that tell what the NIC knows of a frame.
    pub functions: MetadataFunctions,
}

impl Default for Options {
    /// An Ethernet interface that nothing is known of.
    fn default() -> Self {
        Self { fragments: false, device_mac: [0; 6], hatype: 1, functions: MetadataFunctions::default() }
    }
}

/// BTF numbers of the metadata functions in the running kernel. A program that calls one must be loaded for its
/// device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataFunctions {
    /// `bpf_xdp_metadata_rx_timestamp`.
    pub rx_timestamp: Option<i32>,
    /// `bpf_xdp_metadata_rx_hash`.
    pub rx_hash: Option<i32>,
    /// `bpf_xdp_metadata_rx_vlan_tag`.
    pub rx_vlan_tag: Option<i32>,
}

/// An XDP program that returns what the filter returns, for tests and measurements.
pub fn translate(program: &Program, options: &Options) -> Result<Vec<Instruction>, Error> {
    let mut asm = Assembler::new();
    let (matched, unmatched) = (asm.label(), asm.label());
    asm.mov(R6, R1);
    let mut filter = Filter::new(program, options);
    filter.emit(&mut asm, matched, unmatched)?;
    asm.bind(unmatched);
    asm.mov(R0, 0);
    asm.bind(matched);
    asm.exit();
    filter.emit_functions(&mut asm);
    asm.finish()
}

/// Bytes of stack, from the frame pointer down, that a filter uses; what is below is the caller's.
pub(crate) const STACK_BYTES: i16 = 120;

/// The first 16 bytes of the frame as the filter sees it (24 while it is being read), where loads need them.
const HEADER: i16 = -24;
/// Scratch memory, 16 cells of 4 bytes. It needs no zeroes: `Program::check` knows that no cell is read unset.
const MEMORY: i16 = HEADER - 64;
/// A, while a helper is called by an instruction that keeps it.
const SAVED_A: i16 = MEMORY - 8;
/// Where metadata functions put their results.
const RESULTS: i16 = SAVED_A - 16;
/// The tag that the device took out, as R7 has it; kept if there is a function that tells.
pub(crate) const DEVICE_TAG: i16 = RESULTS - 8;

const _: () = assert!(-DEVICE_TAG <= STACK_BYTES);

/// Loads beyond this are no match: packet pointers and `bpf_xdp_load_bytes` do not go further. Indirect ones go half as
/// far where the program does not read fragments; no driver has a first buffer that long.
const OFFSET_MAX: usize = 0xffff;

/// Which of the two kinds of frames a copy of the program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    /// Without a VLAN tag in it.
    Untagged,
    /// With a tag at offset 12.
    Tagged,
}

impl View {
    /// Where the byte at `at`, as the filter counts, is on the wire.
    fn on_wire(self, at: usize) -> usize {
        if self == Self::Tagged && at >= ETHERTYPE_OFFSET { at + TAG_LEN } else { at }
    }

    /// Whether a load of `bytes` at `at` has the tag in its middle.
    fn straddles(self, at: usize, bytes: usize) -> bool {
        self == Self::Tagged && at < ETHERTYPE_OFFSET && at + bytes > ETHERTYPE_OFFSET
    }
}

/// What a program asks for, which decides what has to be kept for it.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    /// The VLAN tag.
    vlan: bool,
    /// The header's addresses or type as facts (`SKF_AD_PKTTYPE`, `SKF_AD_PROTOCOL`).
    header_facts: bool,
    /// Bytes on both sides of offset 12 at once.
    header_bytes: bool,
}

impl Needs {
    fn of(program: &Program) -> Self {
        let mut needs = Self::default();
        for instruction in program.instructions() {
            let k = instruction.k;
            match instruction.code & (cop::CLASS | cop::MODE) {
                LD_ABS if k >= cop::SKF_AD_OFF as u32 => match k.wrapping_sub(cop::SKF_AD_OFF as u32) {
                    cop::SKF_AD_PROTOCOL | cop::SKF_AD_PKTTYPE => needs.header_facts = true,
                    cop::SKF_AD_VLAN_TAG | cop::SKF_AD_VLAN_TAG_PRESENT | cop::SKF_AD_VLAN_TPID => {
                        needs.vlan = true;
                    }
                    _ => {}
                },
                LD_ABS => {
                    let bytes = size_of(instruction.code).bytes() as usize;
                    let at = crate::interpret::resolve(k as i32);
                    needs.header_bytes |= at.is_some_and(|at| View::Tagged.straddles(at, bytes));
                }
                LD_IND => needs.header_bytes = true,
                _ => {}
            }
        }
        needs
    }
}

const LD_ABS: u16 = cop::LD | cop::ABS;
const LD_IND: u16 = cop::LD | cop::IND;

/// The size of a classic load.
fn size_of(code: u16) -> Size {
    match code & cop::SIZE {
        cop::W => Size::W,
        cop::H => Size::H,
        _ => Size::B,
    }
}

/// A filter on its way into an XDP program.
///
/// [`Filter::emit`] writes it where the caller's program wants the answer; the functions that it calls follow the end
/// of that program by [`Filter::emit_functions`].
pub(crate) struct Filter<'a> {
    program: &'a Program,
    options: &'a Options,
    needs: Needs,
    /// Functions that were called, by what they load.
    loaders: Vec<(View, Size, Label)>,
}

impl<'a> Filter<'a> {
    pub(crate) fn new(program: &'a Program, options: &'a Options) -> Self {
        Self { program, options, needs: Needs::of(program), loaders: Vec::new() }
    }

    /// Writes the filter. On entry R6 is the context; R0 to R5 and R7 to R9 are the filter's. It goes to `matched` with
    /// a result that is not 0 in R0, or to `unmatched`. R6 is kept. A program that the kernel does not take is refused:
    /// the translation relies on its rules (no loop, no cell read before it is written).
    pub(crate) fn emit(
        &mut self,
        asm: &mut Assembler,
        matched: Label,
        unmatched: Label,
    ) -> Result<(), Error> {
        if let Some(refusal) = self.program.refusal() {
            return Err(refusal.clone());
        }
        if let Some(result) = self.constant() {
            entry::emit_constant(asm, result, matched, unmatched);
            return Ok(());
        }
        let (untagged, tagged) = (asm.label(), asm.label());
        self.emit_entry(asm, untagged, tagged, unmatched);
        asm.bind(untagged);
        self.emit_untagged_header(asm);
        self.emit_body(asm, View::Untagged, matched, unmatched)?;
        asm.bind(tagged);
        self.emit_tagged_header(asm, unmatched);
        self.emit_body(asm, View::Tagged, matched, unmatched)
    }

    /// What the filter answers, if it is the same for every frame and nobody is to be asked about the frame.
    fn constant(&self) -> Option<i32> {
        if self.options.fragments || self.options.functions.rx_vlan_tag.is_some() {
            return None;
        }
        self.program.constant().map(|result| result as i32)
    }

    fn emit_body(
        &mut self,
        asm: &mut Assembler,
        view: View,
        matched: Label,
        unmatched: Label,
    ) -> Result<(), Error> {
        let labels = self.program.instructions().iter().map(|_| asm.label()).collect();
        let mut body = body::Body { filter: self, asm, view, matched, unmatched, labels };
        body.emit()
    }

    /// The function that loads `size` at any offset; see [`load`].
    fn loader(&mut self, asm: &mut Assembler, view: View, size: Size) -> Label {
        let known = self.loaders.iter().find(|(v, s, _)| (*v, *s) == (view, size));
        if let Some((_, _, label)) = known {
            return *label;
        }
        let label = asm.label();
        self.loaders.push((view, size, label));
        label
    }

    /// Writes the functions that the filter calls, after the end of the program.
    pub(crate) fn emit_functions(&self, asm: &mut Assembler) {
        for (view, size, label) in &self.loaders {
            asm.bind(*label);
            load::emit_loader(asm, *view, *size, self.options.fragments);
        }
    }
}

/// Jumps to `to` unless `bytes` from `start` on are in front of `end`; R2 is lost.
fn check_room(asm: &mut Assembler, start: Register, bytes: usize, end: Register, to: Label) {
    asm.mov(R2, start);
    asm.alu(Operation::Add, R2, bytes as i32);
    asm.jump_if(Condition::Greater, R2, end, to);
}
