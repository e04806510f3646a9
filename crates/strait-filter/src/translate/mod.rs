//! Translation of classic BPF to eBPF for XDP, with the results of a packet socket's filter.
//!
//! An XDP program sees the frame before the kernel has processed it: the VLAN tag is still in its
//! bytes, and there is no `sk_buff` with facts about it. The translation therefore contains the
//! program twice: once for frames without a tag, and once for frames with one, where offsets from
//! 12 on are 4 bytes higher. Every load is checked against the end of the frame. As in classic BPF,
//! a load beyond it is no match.
//!
//! | register | holds |
//! |---|---|
//! | R0 | A, and the result |
//! | R1 to R5 | nothing between two classic instructions |
//! | R6 | the context, `struct xdp_md` |
//! | R7 | the VLAN tag: type in bits 16 to 31, control information in bits 0 to 15; 0 is none |
//! | R8 | `data_end` |
//! | R9 | X |
//!
//! `data` is read from the context at each load instead of being kept in a register. A register
//! would carry the verified number of bytes into every join of two paths, and the verifier would
//! walk the code after the join again for each such number.
//!
//! [`crate::xdp`] embeds a filter in a capture program. [`translate`] makes a program that only
//! returns the result.

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

/// Properties of the interface that the translation depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The program must read frames of several buffers, which a large MTU requires
    /// (`BPF_F_XDP_HAS_FRAGS`, Linux 5.18).
    pub fragments: bool,
    /// The interface's address, for the packet type.
    pub device_mac: [u8; 6],
    /// The interface's `ARPHRD_*` type.
    pub hatype: u16,
    /// The driver's functions for the NIC's metadata of a frame.
    pub functions: MetadataFunctions,
}

impl Default for Options {
    /// Options for an Ethernet interface of unknown address and driver.
    fn default() -> Self {
        Self { fragments: false, device_mac: [0; 6], hatype: 1, functions: MetadataFunctions::default() }
    }
}

/// BTF IDs of the metadata functions in the running kernel. A program that calls one must be loaded
/// for its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataFunctions {
    /// `bpf_xdp_metadata_rx_timestamp`.
    pub rx_timestamp: Option<i32>,
    /// `bpf_xdp_metadata_rx_hash`.
    pub rx_hash: Option<i32>,
    /// `bpf_xdp_metadata_rx_vlan_tag`.
    pub rx_vlan_tag: Option<i32>,
}

/// Returns an XDP program that returns the filter's result, for tests and measurements.
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

/// Bytes of stack that a filter uses, from the frame pointer down. The stack below belongs to the
/// caller.
pub(crate) const STACK_BYTES: i16 = 120;

/// First 16 bytes of the frame as the filter sees it, for loads that need them (24 bytes while the
/// header is read).
const HEADER: i16 = -24;
/// Scratch memory, 16 cells of 4 bytes. It is not initialized: `Program::check` ensures that no
/// unset cell is read.
const MEMORY: i16 = HEADER - 64;
/// Saved A during helper calls of instructions that preserve it.
const SAVED_A: i16 = MEMORY - 8;
/// Results of metadata functions.
const RESULTS: i16 = SAVED_A - 16;
/// The tag that the device removed, in R7's format; only with a metadata function for tags.
pub(crate) const DEVICE_TAG: i16 = RESULTS - 8;

const _: () = assert!(-DEVICE_TAG <= STACK_BYTES);

/// Limit of load offsets; loads beyond it are no match. Packet pointers and `bpf_xdp_load_bytes`
/// reach no further. Indirect loads reach half as far in a program that does not read fragments; no
/// driver has a first buffer that long.
const OFFSET_MAX: usize = 0xffff;

/// Kind of frames that a copy of the program handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    /// Frames without a VLAN tag in their bytes.
    Untagged,
    /// Frames with a tag at offset 12.
    Tagged,
}

impl View {
    /// Returns the wire offset of the filter's offset `at`.
    fn on_wire(self, at: usize) -> usize {
        if self == Self::Tagged && at >= ETHERTYPE_OFFSET { at + TAG_LEN } else { at }
    }

    /// Returns true if a load of `bytes` at `at` spans the tag.
    fn straddles(self, at: usize, bytes: usize) -> bool {
        self == Self::Tagged && at < ETHERTYPE_OFFSET && at + bytes > ETHERTYPE_OFFSET
    }
}

/// Parts of the frame that the program requires, and that the entry code therefore saves.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    /// The VLAN tag.
    vlan: bool,
    /// The header's addresses or type as facts (`SKF_AD_PKTTYPE`, `SKF_AD_PROTOCOL`).
    header_facts: bool,
    /// Bytes on both sides of offset 12 in one load.
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

/// Returns the size of a classic load.
fn size_of(code: u16) -> Size {
    match code & cop::SIZE {
        cop::W => Size::W,
        cop::H => Size::H,
        _ => Size::B,
    }
}

/// A filter to embed in an XDP program.
///
/// [`Filter::emit`] emits it at the current place of the caller's program.
/// [`Filter::emit_functions`] emits the functions that it calls, after the end of that program.
pub(crate) struct Filter<'a> {
    program: &'a Program,
    options: &'a Options,
    needs: Needs,
    /// Loader functions that were called.
    loaders: Vec<(View, Size, Label)>,
}

impl<'a> Filter<'a> {
    pub(crate) fn new(program: &'a Program, options: &'a Options) -> Self {
        Self { program, options, needs: Needs::of(program), loaders: Vec::new() }
    }

    /// Emits the filter. On entry R6 is the context; the filter may use R0 to R5 and R7 to R9. It
    /// jumps to `matched` with a nonzero result in R0, or to `unmatched`. R6 is preserved. A
    /// program with a refusal is an error, because the translation relies on the kernel's rules (no
    /// loop, no cell read before it is written).
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

    /// Returns the filter's result if it is the same for every frame and no part of the frame is
    /// needed from fragments or from the device.
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

    /// Returns the function that loads `size` at any offset; see [`load`].
    fn loader(&mut self, asm: &mut Assembler, view: View, size: Size) -> Label {
        let known = self.loaders.iter().find(|(v, s, _)| (*v, *s) == (view, size));
        if let Some((_, _, label)) = known {
            return *label;
        }
        let label = asm.label();
        self.loaders.push((view, size, label));
        label
    }

    /// Emits the functions that the filter calls, after the end of the program.
    pub(crate) fn emit_functions(&self, asm: &mut Assembler) {
        for (view, size, label) in &self.loaders {
            asm.bind(*label);
            load::emit_loader(asm, *view, *size, self.options.fragments);
        }
    }
}

/// Jumps to `outside` unless `bytes` from `start` on end at or before `end`. R2 is lost.
fn check_bounds(asm: &mut Assembler, start: Register, bytes: usize, end: Register, outside: Label) {
    asm.mov(R2, start);
    asm.alu(Operation::Add, R2, bytes as i32);
    asm.jump_if(Condition::Greater, R2, end, outside);
}
