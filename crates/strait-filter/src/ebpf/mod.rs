//! eBPF instructions and an assembler for whole programs.
//!
//! Names and encodings follow linux/bpf.h and the kernel's instruction-set document.
//! [`crate::translate`] and [`crate::xdp`] build programs with this module; a loader passes
//! [`encode`]'s words to the kernel.

mod assembler;
pub mod opcode;
#[cfg(test)]
mod tests;

pub use assembler::{Assembler, Condition, Label, Operand, Operation, Size};

/// A register. R0 holds return values. R1 to R5 hold arguments and are clobbered by a call. R6 to
/// R9 are preserved. R10 is the frame pointer.
#[allow(missing_docs, reason = "the names are the kernel's")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// One instruction: `struct bpf_insn`, with its two register fields as numbers of four bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// Opcode.
    pub code: u8,
    /// Destination register.
    pub dst: u8,
    /// Source register, or the kind of a constant or call.
    pub src: u8,
    /// Offset of a jump, in instructions, or of a memory access, in bytes.
    pub off: i16,
    /// Constant operand.
    pub imm: i32,
}

impl Instruction {
    /// Returns the eight bytes of `struct bpf_insn` on this machine.
    pub fn to_bytes(self) -> [u8; 8] {
        let low_nibble_first = cfg!(target_endian = "little");
        let registers = if low_nibble_first { self.dst | self.src << 4 } else { self.dst << 4 | self.src };
        let ([o0, o1], [i0, i1, i2, i3]) = (self.off.to_ne_bytes(), self.imm.to_ne_bytes());
        [self.code, registers, o0, o1, i0, i1, i2, i3]
    }

    /// Returns the instruction as one word in memory order.
    pub fn to_word(self) -> u64 {
        u64::from_ne_bytes(self.to_bytes())
    }
}

/// Returns a program in the form that `bpf(BPF_PROG_LOAD)` takes.
pub fn encode(program: &[Instruction]) -> Vec<u64> {
    program.iter().map(|instruction| instruction.to_word()).collect()
}
