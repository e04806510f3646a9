//! Whole XDP programs, assembled at run time: capture, traffic generation, and two trivial ones.
//!
//! No compiler is needed on the user's machine. The capture engine and the generator create the maps, pass their
//! descriptors in the options and load the words; this module makes the words and documents what the programs share
//! with user space: [`Metadata`], [`Counter`], and the generator's sequence.

mod capture;
mod generator;
mod metadata;
#[cfg(test)]
mod tests;
mod verdict;

pub use capture::{CaptureOptions, capture_program};
pub use generator::{
    FRAME_BYTES_MAX, GeneratorFields, GeneratorOptions, PACE_SHIFT, Pace, SEQUENCE_BYTES, generator_program,
};
pub use metadata::Metadata;
pub use verdict::{drop_program, pass_program};

use crate::ebpf::{
    Assembler, Condition, Instruction, Operation,
    Register::{R0, R1, R2, R6, R10},
    Size, encode, opcode as op,
};

/// An assembled XDP program and how it has to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembled {
    /// Its instructions.
    pub instructions: Vec<Instruction>,
    /// It reads frames of several buffers: load it with `BPF_F_XDP_HAS_FRAGS`.
    pub fragments: bool,
    /// It calls functions of the driver: load it bound to its device (`BPF_F_XDP_DEV_BOUND_ONLY`).
    pub device_bound: bool,
}

impl Assembled {
    /// The instructions as `bpf(BPF_PROG_LOAD)` takes them.
    pub fn words(&self) -> Vec<u64> {
        encode(&self.instructions)
    }
}

/// Bytes of one entry of a counter map: a cache line of 64-bit counters.
///
/// The map is an array (`BPF_F_MMAPABLE` lets user space read it without system calls) with one entry a receive queue.
/// Counters are added to atomically, because generic XDP may run one queue on several CPUs.
pub const COUNTERS_BYTES: u32 = 64;

/// What became of a frame: index of the 64-bit counter in its queue's entry.
///
/// Every frame is in exactly one of the first three, so their sum is what the program saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Not matched by the filter: passed on to the host.
    Passed = 0,
    /// Handed to the AF_XDP socket of its queue. The socket may still drop it, and counts that itself.
    Redirected = 1,
    /// Matched, but no socket is bound to its queue: passed on to the host.
    Unbound = 2,
    /// Redirected or unbound without [`Metadata`], because the driver leaves no room for it.
    WithoutMetadata = 3,
}

impl Counter {
    /// The index among the 64-bit counters of an entry.
    pub fn slot(self) -> usize {
        self as usize
    }

    fn offset(self) -> i16 {
        8 * self as i16
    }
}

/// R0 = the counters of the frame's queue, or 0 where the map has none. R6 is the context; the word at `key` of the
/// stack is lost, as are R1 to R5.
fn look_up_counters(asm: &mut Assembler, counters_fd: i32, key: i16) {
    asm.load(Size::W, R1, R6, op::XDP_MD_RX_QUEUE_INDEX);
    asm.store(Size::W, R10, key, R1);
    asm.load_map(R1, counters_fd);
    asm.mov(R2, R10);
    asm.alu(Operation::Add, R2, i32::from(key));
    asm.call(op::MAP_LOOKUP_ELEM);
}

/// Adds one to a counter of the frame's queue. R0 to R5 are lost.
fn count(asm: &mut Assembler, counters_fd: i32, key: i16, counter: Counter) {
    let none = asm.label();
    look_up_counters(asm, counters_fd, key);
    asm.jump_if(Condition::Equal, R0, 0, none);
    asm.mov(R1, 1);
    asm.atomic_add(R0, counter.offset(), R1);
    asm.bind(none);
}
