//! Stack of a filter, views of a frame, sizes and bounds of loads.

use crate::cbpf::opcode as cop;
use crate::ebpf::{
    Assembler, Condition, Label, Operation,
    Register::{self, R2},
    Size,
};
use crate::interpret::{ETHERTYPE_OFFSET, TAG_LEN};

/// Bytes of stack that a filter uses, from the frame pointer down. The stack below belongs to the
/// caller.
pub(crate) const STACK_BYTES: i16 = 120;

/// First 16 bytes of the frame as the filter sees it, for loads that need them (24 bytes while the
/// header is read).
pub(super) const HEADER: i16 = -24;
/// Scratch memory, 16 cells of 4 bytes. It is not initialized: `Program::check` ensures that no
/// unset cell is read.
pub(super) const MEMORY: i16 = HEADER - 64;
/// Saved A during helper calls of instructions that preserve it.
pub(super) const SAVED_A: i16 = MEMORY - 8;
/// Results of metadata functions.
pub(super) const RESULTS: i16 = SAVED_A - 16;
/// The tag that the device removed, in R7's format; only with a metadata function for tags.
pub(crate) const DEVICE_TAG: i16 = RESULTS - 8;

const _: () = assert!(-DEVICE_TAG <= STACK_BYTES);

/// Limit of load offsets; loads beyond it are no match. Packet pointers and `bpf_xdp_load_bytes`
/// reach no further. Indirect loads reach half as far in a program that does not read fragments; no
/// driver has a first buffer that long.
pub(super) const OFFSET_MAX: usize = 0xffff;

/// Kind of frames that a copy of the program handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// Frames without a VLAN tag in their bytes.
    Untagged,
    /// Frames with a tag at offset 12.
    Tagged,
}

impl View {
    /// Returns the wire offset of the filter's offset `at`.
    pub(super) fn on_wire(self, at: usize) -> usize {
        if self == Self::Tagged && at >= ETHERTYPE_OFFSET { at + TAG_LEN } else { at }
    }

    /// Returns true if a load of `bytes` at `at` spans the tag.
    pub(super) fn straddles(self, at: usize, bytes: usize) -> bool {
        self == Self::Tagged && at < ETHERTYPE_OFFSET && at + bytes > ETHERTYPE_OFFSET
    }
}

/// Returns the size of a classic load.
pub(super) fn size_of(code: u16) -> Size {
    match code & cop::SIZE {
        cop::W => Size::W,
        cop::H => Size::H,
        _ => Size::B,
    }
}

/// Jumps to `outside` unless `bytes` from `start` on end at or before `end`. Clobbers R2.
pub(super) fn check_bounds(
    asm: &mut Assembler,
    start: Register,
    bytes: usize,
    end: Register,
    outside: Label,
) {
    asm.mov(R2, start);
    asm.alu(Operation::Add, R2, bytes as i32);
    asm.jump_if(Condition::Greater, R2, end, outside);
}
