//! Copy of a frame into its record.
//!
//! The helper `bpf_skb_load_bytes` copies any frame. The call and its returns cost more than the
//! copy of a short frame: on a processor whose returns the kernel protects against speculation, as
//! much as 512 bytes copied here. So the program itself copies a short frame, if all its bytes are
//! in the packet's linear part: the first n bytes and the last n bytes, where n is a power of two
//! of at least half the frame's length. The parts overlap, so no length needs a loop.
//!
//! ```text
//!   60 bytes, n = 32:   |0 ............ 31|
//!                                   |28 ............ 59|
//! ```
//!
//! A tag of the frame's metadata belongs after the addresses. The frame is then copied four bytes
//! further, and its addresses are moved back to make the place.

use super::{Exits, FRAME, STACK_TAG};
use crate::ebpf::{
    Assembler, Condition, Label, Operation,
    Register::{R0, R1, R2, R3, R4, R5, R6, R7, R9, R10},
    Size, opcode as op,
};
use crate::interpret::{ETHERTYPE_OFFSET, TAG_LEN};

/// Bytes before the place of a VLAN tag.
pub(super) const ADDRESSES: i32 = ETHERTYPE_OFFSET as i32;
pub(super) const TAG_BYTES: i32 = TAG_LEN as i32;

/// Bytes of one load.
const WORD: i32 = 8;
/// Sizes of the two parts of a frame, in the order in which they are tried. A frame of minimum size
/// is among the first.
const PARTS: [i32; 6] = [32, 64, 128, 256, 16, 8];
/// Bytes of the longest frame that is copied without the helper: two of the longest parts.
const SHORT_MAX: i32 = 512;
const _: () = assert!(SHORT_MAX == 2 * PARTS[3]);
/// True if processors load and store words at any address. Elsewhere the verifier refuses accesses
/// that are not aligned (`BPF_F_STRICT_ALIGNMENT`), and the helper copies all frames.
const COPIES_WORDS: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// Copies R7 bytes of the frame into the record at R9, with its tag after the addresses.
pub(super) fn copy_frame(asm: &mut Assembler, exits: Exits) {
    let (plain, copied, done) = (asm.label(), asm.label(), asm.label());
    asm.mov(R3, R9);
    asm.alu(Operation::Add, R3, FRAME);
    jump_unless_tagged(asm, plain);
    asm.alu(Operation::Add, R3, TAG_BYTES);
    asm.bind(plain);
    copy(asm, copied, exits);
    asm.bind(copied);
    jump_unless_tagged(asm, done);
    insert_tag(asm);
    asm.bind(done);
}

/// R1 = the tag, or jumps to `plain` if the frame has none, or no place for it.
fn jump_unless_tagged(asm: &mut Assembler, plain: Label) {
    asm.load(Size::Dw, R1, R10, STACK_TAG);
    asm.jump_if(Condition::Equal, R1, 0, plain);
    asm.jump_if(Condition::Less, R7, ADDRESSES, plain);
}

/// Moves the addresses to the start of the record's frame, and writes the tag R1 after them.
fn insert_tag(asm: &mut Assembler) {
    for at in (FRAME..FRAME + ADDRESSES).step_by(TAG_LEN) {
        asm.load(Size::W, R0, R9, (at + TAG_BYTES) as i16);
        asm.store(Size::W, R9, at as i16, R0);
    }
    asm.swap_big_endian(R1, 32);
    asm.store(Size::W, R9, (FRAME + ADDRESSES) as i16, R1);
}

/// Copies R7 bytes of the frame to R3. Continues at `copied`.
fn copy(asm: &mut Assembler, copied: Label, exits: Exits) {
    let nonlinear = asm.label();
    if COPIES_WORDS {
        copy_short(asm, copied, nonlinear);
    }
    asm.bind(nonlinear);
    copy_by_helper(asm, exits);
}

/// Copies R7 bytes of the frame to R3 and continues at `copied`, if the frame is short. Jumps to
/// `nonlinear` if its bytes are not in the linear part.
fn copy_short(asm: &mut Assembler, copied: Label, nonlinear: Label) {
    asm.jump_if(Condition::Greater, R7, SHORT_MAX, nonlinear);
    asm.load(Size::W, R1, R6, op::SKB_DATA);
    asm.load(Size::W, R2, R6, op::SKB_DATA_END);
    for part in PARTS {
        let other = asm.label();
        asm.jump_if(Condition::Less, R7, part, other);
        asm.jump_if(Condition::Greater, R7, 2 * part, other);
        copy_parts(asm, part, nonlinear);
        asm.jump(copied);
        asm.bind(other);
    }
}

/// Copies the first and the last `part` bytes of R7 bytes from R1 to R3. Jumps to `nonlinear` if
/// they end behind R2.
fn copy_parts(asm: &mut Assembler, part: i32, nonlinear: Label) {
    // R4 = the start of the last bytes, R5 = its offset.
    asm.mov(R5, R7);
    asm.alu(Operation::Sub, R5, part);
    asm.mov(R4, R1);
    asm.alu(Operation::Add, R4, R5);
    // The check of the first bytes follows from that of the last. It is for the verifier.
    for start in [R4, R1] {
        asm.mov(R0, start);
        asm.alu(Operation::Add, R0, part);
        asm.jump_if(Condition::Greater, R0, R2, nonlinear);
    }
    for start in [R1, R4] {
        for at in (0..part as i16).step_by(WORD as usize) {
            asm.load(Size::Dw, R0, start, at);
            asm.store(Size::Dw, R3, at, R0);
        }
        if start == R1 {
            asm.alu(Operation::Add, R3, R5);
        }
    }
}

/// Copies R7 bytes of the frame to R3.
fn copy_by_helper(asm: &mut Assembler, exits: Exits) {
    asm.mov(R1, R6);
    asm.mov(R2, 0);
    asm.mov(R4, R7);
    asm.call(op::SKB_LOAD_BYTES);
    // The bytes are within the frame, so this is the loss of a frame that the kernel cannot read.
    asm.jump_if(Condition::NotEqual, R0, 0, exits.full);
}
