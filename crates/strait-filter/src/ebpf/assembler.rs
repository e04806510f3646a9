//! Assembler that enforces three rules of the verifier.
//!
//! - **Jumps reach their targets.** A jump has 16 bits. A forward jump that would not reach its
//!   label goes to an *island*: an intermediate jump to the same label. So no instruction newer
//!   than Linux 5.12 is needed.
//! - **No code is unreachable.** The verifier refuses dead code. Instructions after an
//!   unconditional jump are omitted up to the next label that a jump targets, so callers may emit
//!   code that turns out to be dead.
//! - **Every path ends.** [`Assembler::finish`] refuses a program that runs past its end or jumps
//!   to an unbound label.
//!
//! The assembler has no knowledge of packets.

use super::{Instruction, Register, opcode as op};
use crate::error::Error;

/// Interval in instructions at which pending forward jumps are examined. A jump is redirected when
/// it is between one and two intervals old, and a group of islands is never longer than one
/// interval, so every jump stays below 3 x 8192 of its 32767.
const ISLAND_EVERY: usize = 8192;

/// Marks a displacement beyond 16 bits until [`Assembler::finish`] refuses it. No real displacement
/// has this value.
const TOO_FAR: i16 = i16::MIN;

/// A place in the program. It can be created before its position is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// Operand of an operation: a register or a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The value of a register.
    Register(Register),
    /// A constant, sign-extended for 64-bit operations.
    Constant(i32),
}

impl From<Register> for Operand {
    fn from(register: Register) -> Self {
        Self::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(constant: i32) -> Self {
        Self::Constant(constant)
    }
}

/// Arithmetic operations, with the upper bits of their opcodes.
#[allow(missing_docs, reason = "the names are the kernel's")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    Add = 0x00,
    Sub = 0x10,
    Mul = 0x20,
    Div = 0x30,
    Or = 0x40,
    And = 0x50,
    Lsh = 0x60,
    Rsh = 0x70,
    Mod = 0x90,
    Xor = 0xa0,
    Mov = 0xb0,
}

/// Conditions of jumps, with the upper bits of their opcodes. `Signed` conditions compare two's
/// complements.
#[allow(missing_docs, reason = "the names are the kernel's")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Condition {
    Equal = 0x10,
    Greater = 0x20,
    GreaterOrEqual = 0x30,
    AnyBitSet = 0x40,
    NotEqual = 0x50,
    Less = 0xa0,
    LessOrEqual = 0xb0,
    SignedLess = 0xc0,
}

/// Width of a memory access.
#[allow(missing_docs, reason = "the names are the kernel's")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Size {
    W = 0x00,
    H = 0x08,
    B = 0x10,
    Dw = 0x18,
}

impl Size {
    /// Returns the width in bytes.
    pub fn bytes(self) -> i32 {
        match self {
            Self::B => 1,
            Self::H => 2,
            Self::W => 4,
            Self::Dw => 8,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Place {
    at: Option<usize>,
    /// Jumps to this place from before it was bound.
    jumps: Vec<usize>,
    /// Calls of this place from before it was bound.
    calls: Vec<usize>,
}

/// Collects instructions and enforces the rules in the module's documentation.
#[derive(Clone, Debug)]
pub struct Assembler {
    code: Vec<Instruction>,
    places: Vec<Place>,
    /// True if the next instruction can be reached.
    live: bool,
    islands_at: usize,
    /// Position of the last reachable label, so that a jump just before it is not removed.
    bound_at: usize,
    /// Labels bound at this position that are not reachable so far.
    unused_here: Vec<Label>,
}

impl Default for Assembler {
    fn default() -> Self {
        Self::new()
    }
}

impl Assembler {
    /// Returns an empty program.
    pub fn new() -> Self {
        Self {
            code: Vec::new(),
            places: Vec::new(),
            live: true,
            islands_at: ISLAND_EVERY,
            bound_at: 0,
            unused_here: Vec::new(),
        }
    }

    /// Returns a new, unbound label.
    pub fn label(&mut self) -> Label {
        self.places.push(Place::default());
        Label(self.places.len() - 1)
    }

    /// Binds the label to this position. It is reachable if a jump targets it or the code before it
    /// runs into it.
    pub fn bind(&mut self, label: Label) {
        self.drop_jump_to_next(label);
        let here = self.code.len();
        let place = &mut self.places[label.0];
        debug_assert!(place.at.is_none(), "a label is bound once");
        place.at = Some(here);
        let (jumps, calls) = (std::mem::take(&mut place.jumps), std::mem::take(&mut place.calls));
        self.live |= !jumps.is_empty() || !calls.is_empty();
        if self.live {
            self.bound_at = here;
        } else {
            self.unused_here.push(label);
        }
        for at in jumps {
            self.code[at].off = displacement(at, here);
        }
        for at in calls {
            self.code[at].imm = (here - at - 1) as i32;
        }
    }

    /// Returns true if the next instruction can be reached. An unreachable instruction is not
    /// emitted.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// `dst = dst operation operand`, 64 bits.
    pub fn alu(&mut self, operation: Operation, dst: Register, operand: impl Into<Operand>) {
        self.operate(op::ALU64 | operation as u8, dst, operand.into());
    }

    /// Like [`Self::alu`], on the lower 32 bits; the upper ones become zero.
    pub fn alu32(&mut self, operation: Operation, dst: Register, operand: impl Into<Operand>) {
        self.operate(op::ALU | operation as u8, dst, operand.into());
    }

    /// `dst = -dst`, 32 bits.
    pub fn negate32(&mut self, dst: Register) {
        self.push(Instruction { code: op::ALU | op::NEG, dst: dst as u8, ..Instruction::default() });
    }

    /// `dst = operand`, 64 bits.
    pub fn mov(&mut self, dst: Register, operand: impl Into<Operand>) {
        self.alu(Operation::Mov, dst, operand);
    }

    /// Converts the lower `bits` (16, 32 or 64) of `dst` between host and big-endian order; the
    /// other bits become zero.
    pub fn swap_big_endian(&mut self, dst: Register, bits: i32) {
        self.push(Instruction {
            code: op::ALU | op::END | op::TO_BE,
            dst: dst as u8,
            imm: bits,
            ..Instruction::default()
        });
    }

    /// `dst = *(size *)(base + off)`, zero-extended.
    pub fn load(&mut self, size: Size, dst: Register, base: Register, off: i16) {
        let code = op::LDX | op::MEM | size as u8;
        self.push(Instruction { code, dst: dst as u8, src: base as u8, off, imm: 0 });
    }

    /// `*(size *)(base + off) = operand`.
    pub fn store(&mut self, size: Size, base: Register, off: i16, operand: impl Into<Operand>) {
        let (class, src, imm) = match operand.into() {
            Operand::Register(register) => (op::STX, register as u8, 0),
            Operand::Constant(constant) => (op::ST, 0, constant),
        };
        self.push(Instruction { code: class | op::MEM | size as u8, dst: base as u8, src, off, imm });
    }

    /// `lock *(u64 *)(base + off) += src`.
    pub fn atomic_add(&mut self, base: Register, off: i16, src: Register) {
        self.atomic(base, off, src, op::ATOMIC_ADD);
    }

    /// Like [`Self::atomic_add`], and sets `src` to the previous value.
    pub fn atomic_fetch_add(&mut self, base: Register, off: i16, src: Register) {
        self.atomic(base, off, src, op::ATOMIC_ADD | op::ATOMIC_FETCH);
    }

    fn atomic(&mut self, base: Register, off: i16, src: Register, imm: i32) {
        let code = op::STX | op::ATOMIC | op::DW;
        self.push(Instruction { code, dst: base as u8, src: src as u8, off, imm });
    }

    /// `dst = constant`, all 64 bits of it.
    pub fn load_constant(&mut self, dst: Register, constant: u64) {
        self.wide(dst, 0, constant);
    }

    /// `dst` = the map with descriptor `fd`.
    pub fn load_map(&mut self, dst: Register, fd: i32) {
        self.wide(dst, op::PSEUDO_MAP_FD, u64::from(fd as u32));
    }

    /// `dst` = the address of the only value of the array map with descriptor `fd`.
    pub fn load_map_value(&mut self, dst: Register, fd: i32) {
        self.wide(dst, op::PSEUDO_MAP_VALUE, u64::from(fd as u32));
    }

    fn wide(&mut self, dst: Register, src: u8, constant: u64) {
        let first = Instruction {
            code: op::LD | op::IMM | op::DW,
            dst: dst as u8,
            src,
            off: 0,
            imm: constant as i32,
        };
        let second = Instruction { imm: (constant >> 32) as i32, ..Instruction::default() };
        self.push(first);
        // Not by `push`: an island must not separate the halves.
        if self.live {
            self.code.push(second);
        }
    }

    /// Calls a helper function.
    pub fn call(&mut self, helper: i32) {
        self.push(Instruction { code: op::JMP | op::CALL, imm: helper, ..Instruction::default() });
    }

    /// Calls the kernel function with this BTF ID.
    pub fn call_kernel(&mut self, btf_id: i32) {
        let src = op::PSEUDO_KFUNC_CALL;
        self.push(Instruction { code: op::JMP | op::CALL, src, imm: btf_id, ..Instruction::default() });
    }

    /// Calls the function of this program at `label`, which is bound later.
    pub fn call_function(&mut self, label: Label) {
        let src = op::PSEUDO_CALL;
        if self.push(Instruction { code: op::JMP | op::CALL, src, ..Instruction::default() }) {
            let at = self.code.len() - 1;
            self.places[label.0].calls.push(at);
        }
    }

    /// Returns from the program or function.
    pub fn exit(&mut self) {
        self.push(Instruction { code: op::JMP | op::EXIT, ..Instruction::default() });
        self.live = false;
    }

    /// `goto label`.
    pub fn jump(&mut self, label: Label) {
        self.branch(Instruction { code: op::JMP | op::JA, ..Instruction::default() }, label);
        self.live = false;
    }

    /// `if dst condition operand goto label`, on 64 bits.
    pub fn jump_if(
        &mut self,
        condition: Condition,
        dst: Register,
        operand: impl Into<Operand>,
        label: Label,
    ) {
        self.compare(op::JMP | condition as u8, dst, operand.into(), label);
    }

    /// Like [`Self::jump_if`], on the lower 32 bits.
    pub fn jump32_if(
        &mut self,
        condition: Condition,
        dst: Register,
        operand: impl Into<Operand>,
        label: Label,
    ) {
        self.compare(op::JMP32 | condition as u8, dst, operand.into(), label);
    }

    /// Returns the program.
    ///
    /// # Errors
    /// [`Error::UnboundLabel`] if a jump's label is unbound, [`Error::NoReturn`] if the last
    /// instruction is not a return or jump, [`Error::JumpTooFar`] for a backward jump beyond 16
    /// bits.
    pub fn finish(self) -> Result<Vec<Instruction>, Error> {
        if self.live {
            return Err(Error::NoReturn);
        }
        if self.places.iter().any(|place| !place.jumps.is_empty() || !place.calls.is_empty()) {
            return Err(Error::UnboundLabel);
        }
        let is_too_far = |i: &Instruction| i.off == TOO_FAR && [op::JMP, op::JMP32].contains(&(i.code & 7));
        if self.code.iter().any(is_too_far) { Err(Error::JumpTooFar) } else { Ok(self.code) }
    }

    fn operate(&mut self, code: u8, dst: Register, operand: Operand) {
        let (source, src, imm) = split(operand);
        self.push(Instruction { code: code | source, dst: dst as u8, src, off: 0, imm });
    }

    fn compare(&mut self, code: u8, dst: Register, operand: Operand, label: Label) {
        let (source, src, imm) = split(operand);
        self.branch(Instruction { code: code | source, dst: dst as u8, src, off: 0, imm }, label);
    }

    /// Emits a jump to a label, which may still be unbound.
    fn branch(&mut self, instruction: Instruction, label: Label) {
        if !self.push(instruction) {
            return;
        }
        let at = self.code.len() - 1;
        match self.places[label.0].at {
            Some(to) => self.code[at].off = displacement(at, to),
            None => self.places[label.0].jumps.push(at),
        }
    }

    /// Emits the instruction if it is reachable, and returns true if so.
    fn push(&mut self, instruction: Instruction) -> bool {
        if self.live {
            if self.code.len() >= self.islands_at {
                self.build_islands();
            }
            self.code.push(instruction);
            self.unused_here.clear();
        }
        self.live
    }

    /// Redirects old forward jumps to islands. The code before the islands jumps over them.
    fn build_islands(&mut self) {
        let here = self.code.len();
        let (next, old) = (here + ISLAND_EVERY, here - ISLAND_EVERY);
        let skip_at = here;
        self.code.push(Instruction { code: op::JMP | op::JA, ..Instruction::default() });
        for place in &mut self.places {
            let is_old = |at: &usize| *at < old;
            if !place.jumps.iter().any(is_old) {
                continue;
            }
            let island = self.code.len();
            for at in place.jumps.extract_if(.., |at| is_old(at)) {
                self.code[at].off = displacement(at, island);
            }
            place.jumps.push(island);
            self.code.push(Instruction { code: op::JMP | op::JA, ..Instruction::default() });
        }
        self.code[skip_at].off = displacement(skip_at, self.code.len());
        self.islands_at = next;
    }

    /// Removes a jump to the instruction right after it.
    fn drop_jump_to_next(&mut self, label: Label) {
        let Some(last) = self.code.len().checked_sub(1) else { return };
        let jumps = &mut self.places[label.0].jumps;
        let is_plain_jump = self.code[last].code == op::JMP | op::JA;
        if is_plain_jump && jumps.last() == Some(&last) && self.bound_at <= last && !self.live {
            jumps.pop();
            self.code.pop();
            self.live = true;
            for label in self.unused_here.drain(..) {
                self.places[label.0].at = Some(last);
            }
        }
    }
}

/// Returns the displacement of a jump from `from` to `to`.
fn displacement(from: usize, to: usize) -> i16 {
    i16::try_from(to as i64 - from as i64 - 1).unwrap_or(TOO_FAR)
}

fn split(operand: Operand) -> (u8, u8, i32) {
    match operand {
        Operand::Register(register) => (op::X, register as u8, 0),
        Operand::Constant(constant) => (op::K, 0, constant),
    }
}
