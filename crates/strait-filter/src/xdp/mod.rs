//! XDP programs, assembled at run time: capture, traffic generation, and two trivial ones.
//!
//! No compiler is needed on the user's machine. The capture engine and the generator create the
//! maps, pass their descriptors in the options and load the words. This module assembles the words,
//! and documents the data that the programs share with user space: [`Metadata`], [`Counter`], and
//! the generator's sequence.

mod capture;
mod generator;
mod metadata;
#[cfg(test)]
mod tests;
mod verdict;

pub use capture::{CaptureOptions, capture_program};
pub use generator::{
    FRAME_BYTES_MAX, GeneratorFields, GeneratorOptions, PACE_SHIFT, Pace, STATE_BYTES, generator_program,
};
pub use metadata::Metadata;
pub use verdict::{drop_program, pass_program};

use crate::ebpf::{
    Assembler, Condition, Instruction, Operation,
    Register::{R1, R2, R6},
    Size, encode, opcode as op,
};

/// An assembled XDP program and its load requirements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembled {
    /// Its instructions.
    pub instructions: Vec<Instruction>,
    /// The program reads frames of several buffers: load it with `BPF_F_XDP_HAS_FRAGS`.
    pub fragments: bool,
    /// The program calls functions of the driver: load it bound to its device
    /// (`BPF_F_XDP_DEV_BOUND_ONLY`).
    pub device_bound: bool,
}

impl Assembled {
    /// Returns the instructions in the form that `bpf(BPF_PROG_LOAD)` takes.
    pub fn words(&self) -> Vec<u64> {
        encode(&self.instructions)
    }
}

/// Counters of a program: the only value of an array map, with [`COUNTERS_BYTES`] for each receive
/// queue (`BPF_F_MMAPABLE` lets user space read it without system calls). A program addresses a
/// single value without a look-up. The program adds to counters atomically, because generic XDP may
/// run one queue on several CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// The map's descriptor.
    pub fd: i32,
    /// Number of queues with counters in the map.
    pub queues: u32,
}

/// Bytes of a queue's counters: one cache line of 64-bit counters.
pub const COUNTERS_BYTES: u32 = 1 << COUNTERS_SHIFT;
const COUNTERS_SHIFT: i32 = 6;

/// Outcome of a frame: index of the 64-bit counter among the counters of its queue.
///
/// All other frames are redirected to the `AF_XDP` socket of their queue, which counts them, or
/// pass to the host because their queue has none: it is not captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Not matched by the filter, and passed to the host.
    Passed = 0,
    /// Matched and without [`Metadata`], because the driver leaves no space for it.
    WithoutMetadata = 1,
}

impl Counter {
    /// Returns the index among the 64-bit counters of all queues.
    pub fn slot(self, queue: u32) -> usize {
        queue as usize * (COUNTERS_BYTES as usize / size_of::<u64>()) + self as usize
    }

    fn offset(self) -> i16 {
        8 * self as i16
    }
}

/// Adds one to a counter of the frame's queue, if the queue has counters. R6 is the context; R1 and
/// R2 are lost.
fn count(asm: &mut Assembler, counters: Counters, counter: Counter) {
    let none = asm.label();
    asm.load(Size::W, R1, R6, op::XDP_MD_RX_QUEUE_INDEX);
    asm.jump_if(Condition::GreaterOrEqual, R1, counters.queues as i32, none);
    asm.alu(Operation::Lsh, R1, COUNTERS_SHIFT);
    asm.load_map_value(R2, counters.fd);
    asm.alu(Operation::Add, R2, R1);
    asm.mov(R1, 1);
    asm.atomic_add(R2, counter.offset(), R1);
    asm.bind(none);
}
