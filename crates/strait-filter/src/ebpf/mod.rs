//! eBPF instructions and an assembler for whole programs.
//!
//! The names and encodings are those of linux/bpf.h and of the kernel's instruction-set document. [`crate::translate`]
//! and [`crate::xdp`] write programs with it; whoever loads them passes [`encode`]'s words to the kernel.

mod assembler;
pub mod opcode;
#[cfg(test)]
mod tests;

pub use assembler::{Assembler, Condition, Label, Operand, Operation, Size};

/// A register. R0 returns, R1 to R5 are arguments and lost in a call, R6 to R9 are kept, R10 is the frame pointer.
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

/// One instruction: `struct bpf_insn`, its two register fields as numbers of four bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// Opcode.
    pub code: u8,
    /// Destination register.
    pub dst: u8,
    /// Source register, or what kind of constant or call it is.
    pub src: u8,
    /// Offset of a jump, in instructions, or of a memory access, in bytes.
    pub off: i16,
    /// Constant operand.
    pub imm: i32,
}

impl Instruction {
    /// The eight bytes that the kernel of this machine takes.
    pub fn to_bytes(self) -> [u8; 8] {
        let low_nibble_first = cfg!(target_endian = "little");
        let registers = if low_nibble_first { self.dst | self.src << 4 } else { self.dst << 4 | self.src };
        let ([o0, o1], [i0, i1, i2, i3]) = (self.off.to_ne_bytes(), self.imm.to_ne_bytes());
        [self.code, registers, o0, o1, i0, i1, i2, i3]
    }

    /// The same as one word in memory order.
    pub fn to_word(self) -> u64 {
        u64::from_ne_bytes(self.to_bytes())
    }
}

/// A program as `bpf(BPF_PROG_LOAD)` takes it.
pub fn encode(program: &[Instruction]) -> Vec<u64> {
    program.iter().map(|instruction| instruction.to_word()).collect()
}
