//! The one error of this crate: what is wrong with a program or with what was asked of it, and where.

/// Why a program is not accepted, or not translated. `at` counts instructions from 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program needs at least one instruction.
    #[error("the filter program is empty")]
    Empty,
    /// More instructions than `BPF_MAXINSNS`.
    #[error(
        "the filter program has {instructions} instructions; the kernel takes at most {}",
        crate::cbpf::INSTRUCTIONS_MAX
    )]
    TooLong {
        /// How many it has.
        instructions: usize,
    },
    /// More instructions than the interpreter takes.
    #[error(
        "the filter program has {instructions} instructions; at most {} can be run",
        crate::cbpf::INTERPRETED_MAX
    )]
    TooLongToInterpret {
        /// How many it has.
        instructions: usize,
    },
    /// An opcode that classic BPF does not have.
    #[error("filter instruction {at}: unknown opcode {code:#06x}")]
    UnknownOpcode {
        /// Index of the instruction.
        at: usize,
        /// Its opcode.
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
        /// The cell asked for.
        cell: u32,
    },
    /// A load from a scratch memory cell that is not stored to on every way there.
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
    /// A jump back, which makes a loop: libpcap's `protochain` has one, the kernel runs none.
    #[error(
        "filter instruction {at} jumps back; the kernel takes no filter with a loop (libpcap's protochain)"
    )]
    JumpBack {
        /// Index of the instruction.
        at: usize,
    },
    /// An absolute load in the ancillary area that no kernel knows.
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
    /// A load whose meaning XDP cannot give.
    #[error("filter instruction {at}: {what} is not known to an XDP program")]
    Untranslatable {
        /// Index of the instruction.
        at: usize,
        /// The fact asked for.
        what: &'static str,
    },
    /// An assembled program jumps to a label that is nowhere.
    #[error("the assembled program jumps to a label that was never bound")]
    UnboundLabel,
    /// An assembled program jumps back further than 16 bits reach.
    #[error("the assembled program jumps back too far")]
    JumpTooFar,
    /// A traffic generator's frame template that does not fit its options.
    #[error("the frame template does not fit: {why}")]
    BadTemplate {
        /// What does not fit.
        why: &'static str,
    },
}
