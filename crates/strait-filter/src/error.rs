//! The crate's error type: the fault in a program or in its options, and the instruction.

/// Reason why a program is refused or cannot be translated. `at` counts instructions from 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program needs at least one instruction.
    #[error("the filter program is empty")]
    Empty,
    /// More instructions than `BPF_MAXINSNS`.
    #[error(
        "the filter program has {instructions} instructions; the kernel accepts at most {}",
        crate::cbpf::INSTRUCTIONS_MAX
    )]
    TooLong {
        /// Length of the program.
        instructions: usize,
    },
    /// More instructions than the interpreter accepts.
    #[error(
        "the filter program has {instructions} instructions; the interpreter accepts at most {}",
        crate::cbpf::INTERPRETED_MAX
    )]
    TooLongToInterpret {
        /// Length of the program.
        instructions: usize,
    },
    /// An opcode that classic BPF does not have.
    #[error("filter instruction {at}: unknown opcode {code:#06x}")]
    UnknownOpcode {
        /// Index of the instruction.
        at: usize,
        /// The opcode.
        code: u16,
    },
    /// `div #0` or `mod #0`.
    #[error("filter instruction {at}: division by the constant 0")]
    DivisionByZero {
        /// Index of the instruction.
        at: usize,
    },
    /// A shift by a constant of 32 bits or more.
    #[error("filter instruction {at}: shift of a 32-bit value by {by} bits")]
    ShiftTooFar {
        /// Index of the instruction.
        at: usize,
        /// The shift in bits.
        by: u32,
    },
    /// A scratch memory cell beyond `M[15]`.
    #[error("filter instruction {at}: no scratch memory cell M[{cell}]")]
    NoSuchCell {
        /// Index of the instruction.
        at: usize,
        /// The requested cell.
        cell: u32,
    },
    /// A load from a scratch memory cell that is not written on every path to the load.
    #[error("filter instruction {at}: M[{cell}] is read before it is written")]
    UnsetCell {
        /// Index of the instruction.
        at: usize,
        /// The cell.
        cell: u32,
    },
    /// A jump beyond the last instruction.
    #[error("filter instruction {at}: jump beyond the end of the program")]
    JumpOutside {
        /// Index of the instruction.
        at: usize,
    },
    /// A backward jump, which makes a loop. libpcap's `protochain` has one; the kernel accepts
    /// none.
    #[error(
        "filter instruction {at} jumps back; the kernel accepts no filter with a loop (libpcap's protochain)"
    )]
    JumpBack {
        /// Index of the instruction.
        at: usize,
    },
    /// An absolute load in the ancillary area that the kernel does not define.
    #[error("filter instruction {at}: unknown ancillary load at {offset}")]
    UnknownAncillary {
        /// Index of the instruction.
        at: usize,
        /// Offset from `SKF_AD_OFF`.
        offset: u32,
    },
    /// The last instruction is not a return.
    #[error("the filter program does not end in a return")]
    NoReturn,
    /// A load of a value that is not available to an XDP or tcx program.
    #[error("filter instruction {at}: an eBPF program cannot read {what}")]
    Untranslatable {
        /// Index of the instruction.
        at: usize,
        /// The requested value.
        what: &'static str,
    },
    /// A jump in an assembled program to a label that was never bound.
    #[error("the assembled program jumps to a label that was never bound")]
    UnboundLabel,
    /// A backward jump in an assembled program that does not fit 16 bits.
    #[error("the assembled program jumps back too far")]
    JumpTooFar,
    /// A traffic generator's frame template that does not match its options.
    #[error("invalid frame template: {cause}")]
    BadTemplate {
        /// The mismatch.
        cause: &'static str,
    },
}
