//! Classic BPF programs: those that the kernel accepts, and those that only the interpreter can
//! run.
//!
//! [`Program::check`] applies the kernel's own rules. [`Program::check_interpretable`] also accepts
//! programs that libpcap runs in user space: loops (`protochain`) and programs over
//! [`INSTRUCTIONS_MAX`]. Both kinds can be interpreted. Only a program without a
//! [`Program::refusal`] can be attached or translated. The capture engine makes programs from
//! libpcap's output; the rewrites here (snapshot length, direction) check their results again.

mod check;
pub mod opcode;
#[cfg(test)]
mod tests;

use opcode as op;

use crate::error::Error;

/// `BPF_MAXINSNS`: the length of the longest program that the kernel accepts.
pub const INSTRUCTIONS_MAX: usize = 4096;

/// Length of the longest program that the interpreter accepts: 8 MiB of instructions. A libpcap
/// filter of 20,000 ports has a tenth of it.
pub const INTERPRETED_MAX: usize = 1 << 20;

/// Cells of scratch memory, `BPF_MEMWORDS`.
pub const MEMORY_CELLS: usize = 16;

/// One instruction, laid out as `struct sock_filter` of `linux/filter.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// Opcode, see [`opcode`].
    pub code: u16,
    /// Instructions to skip if a conditional jump's condition holds.
    pub jt: u8,
    /// Instructions to skip if it does not hold.
    pub jf: u8,
    /// The constant operand.
    pub k: u32,
}

impl Instruction {
    /// Returns `BPF_STMT(code, k)`: anything but a conditional jump.
    pub const fn statement(code: u16, k: u32) -> Self {
        Self { code, jt: 0, jf: 0, k }
    }

    /// Returns `BPF_JUMP(code, k, jt, jf)`: a conditional jump.
    pub const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Self {
        Self { code, jt, jf, k }
    }

    /// Returns an absolute load of the ancillary value at `offset` from `SKF_AD_OFF`.
    pub const fn ancillary(offset: u32) -> Self {
        Self::statement(op::LD | op::W | op::ABS, (op::SKF_AD_OFF as u32).wrapping_add(offset))
    }
}

impl From<(u16, u8, u8, u32)> for Instruction {
    fn from((code, jt, jf, k): (u16, u8, u8, u32)) -> Self {
        Self { code, jt, jf, k }
    }
}

/// A checked program. It returns the maximum number of captured bytes of a frame; 0 means no match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    instructions: Vec<Instruction>,
    /// Reason why the kernel refuses the program.
    refusal: Option<Error>,
}

impl Program {
    /// Accepts `instructions` if the kernel does: `bpf_check_classic` and `check_load_and_stores`
    /// of net/core/filter.c.
    pub fn check(instructions: Vec<Instruction>) -> Result<Self, Error> {
        check::check(&instructions)?;
        Ok(Self { instructions, refusal: None })
    }

    /// Accepts `instructions` if the interpreter can run them. In addition to the kernel's programs
    /// these are loops, up to [`INTERPRETED_MAX`] instructions, ancillary loads that the kernel
    /// does not define (no match) and loads of unwritten cells (0), as in libpcap's `bpf_validate`
    /// and `bpf_filter`.
    pub fn check_interpretable(instructions: Vec<Instruction>) -> Result<Self, Error> {
        let refusal = check::check(&instructions).err();
        if refusal.is_some() {
            check::check_interpretable(&instructions)?;
        }
        Ok(Self { instructions, refusal })
    }

    /// Returns the reason why the kernel refuses the program, or `None` if it accepts it.
    pub fn refusal(&self) -> Option<&Error> {
        self.refusal.as_ref()
    }

    /// Returns the program that matches every frame and cuts it to `snaplen` bytes; 0 is no limit.
    pub fn accept_all(snaplen: u32) -> Self {
        let limit = if snaplen == 0 { u32::MAX } else { snaplen };
        Self { instructions: vec![Instruction::statement(RET_K, limit)], refusal: None }
    }

    /// Returns the program that matches no frame.
    pub fn reject_all() -> Self {
        Self { instructions: vec![Instruction::statement(RET_K, 0)], refusal: None }
    }

    /// Returns the instructions, for `SO_ATTACH_FILTER`.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Returns the result for every frame if the first instruction is a constant return.
    pub fn constant(&self) -> Option<u32> {
        let first = self.instructions.first()?;
        (first.code == opcode::RET | opcode::K).then_some(first.k)
    }

    /// Returns true if its result may be neither 0 nor at least `snaplen`: it cuts frames.
    pub fn cuts_below(&self, snaplen: u32) -> bool {
        self.instructions.iter().any(|instruction| match instruction.code {
            RET_K => (1..snaplen).contains(&instruction.k),
            code => code == RET_A,
        })
    }

    /// Returns true if it loads the ancillary value at `offset` from `SKF_AD_OFF`.
    pub fn loads_ancillary(&self, offset: u32) -> bool {
        let k = Instruction::ancillary(offset).k;
        let absolute = |code| code & (op::CLASS | op::MODE) == op::LD | op::ABS;
        self.instructions.iter().any(|instruction| absolute(instruction.code) && instruction.k == k)
    }

    /// Returns this program with its result limited to `snaplen` bytes; 0 is no limit.
    ///
    /// A computed return (`ret a`) is limited at run time, with three more instructions. If the
    /// result is too long for the kernel it has a [`Program::refusal`].
    pub fn with_snaplen(&self, snaplen: u32) -> Result<Self, Error> {
        if snaplen == 0 {
            return Ok(self.clone());
        }
        let mut out = self.instructions.clone();
        let bound_at = out.len();
        for (at, instruction) in out.iter_mut().enumerate() {
            match instruction.code {
                RET_K => instruction.k = instruction.k.min(snaplen),
                RET_A => *instruction = Instruction::statement(op::JMP | op::JA, (bound_at - at - 1) as u32),
                _ => {}
            }
        }
        if self.instructions.iter().any(|i| i.code == RET_A) {
            out.extend([
                Instruction::jump(op::JMP | op::JGT | op::K, snaplen, 0, 1),
                Instruction::statement(RET_K, snaplen),
                Instruction::statement(RET_A, 0),
            ]);
        }
        Self::check_interpretable(out)
    }

    /// Returns this program restricted to frames that this host sends.
    pub fn only_pkttype_outgoing(&self) -> Result<Self, Error> {
        self.prefixed(Instruction::jump(op::JMP | op::JEQ | op::K, op::PACKET_OUTGOING, 1, 0))
    }

    /// Returns this program restricted to frames that this host does not send itself.
    pub fn without_pkttype_outgoing(&self) -> Result<Self, Error> {
        self.prefixed(Instruction::jump(op::JMP | op::JEQ | op::K, op::PACKET_OUTGOING, 0, 1))
    }

    /// Returns this program without the frames that this host sends on the interface `ifindex`: a
    /// loopback interface, where each frame is also received.
    pub fn without_pkttype_outgoing_on(&self, ifindex: u32) -> Result<Self, Error> {
        let mut out = vec![
            Instruction::ancillary(op::SKF_AD_PKTTYPE),
            Instruction::jump(op::JMP | op::JEQ | op::K, op::PACKET_OUTGOING, 0, 3),
            Instruction::ancillary(op::SKF_AD_IFINDEX),
            Instruction::jump(op::JMP | op::JEQ | op::K, ifindex, 0, 1),
            Instruction::statement(RET_K, 0),
            Instruction::statement(op::LD | op::IMM, 0),
        ];
        out.extend_from_slice(&self.instructions);
        Self::check_interpretable(out)
    }

    /// Returns this program for packets that lack their first `bytes` bytes, the header that the
    /// program was compiled for. Loads beyond the header move by its length. Loads within it become
    /// loads of `fields` (offset, `W`, `H` or `B`, and the `SKF_AD_*` with the same value). Returns
    /// `None` if the program loads any other part of the header. `len` is unchanged and does not
    /// count the header, as in libpcap's own rewrite (`fix_offset` of pcap-linux.c).
    pub fn without_header(&self, bytes: u32, fields: &[(u32, u16, u32)]) -> Option<Self> {
        let mut out = self.instructions.clone();
        for instruction in &mut out {
            let Instruction { code, k, .. } = *instruction;
            let mode = code & op::MODE;
            let loads = matches!(code & op::CLASS, op::LD | op::LDX)
                && matches!(mode, op::ABS | op::IND | op::MSH)
                && !(mode == op::ABS && (k as i32) < 0);
            if !loads {
                continue;
            }
            if k >= bytes {
                instruction.k -= bytes;
                continue;
            }
            let absolute = code & op::CLASS == op::LD && mode == op::ABS;
            let &(.., ancillary) =
                fields.iter().find(|field| absolute && field.0 == k && field.1 == code & op::SIZE)?;
            *instruction = Instruction::ancillary(ancillary);
        }
        Self::check_interpretable(out).ok()
    }

    /// Prepends `ld pkttype`, `condition` and `ret #0`; the condition skips the return. Jumps are
    /// relative, so the rest is unchanged. A must be 0 again, as at the start of a program.
    fn prefixed(&self, condition: Instruction) -> Result<Self, Error> {
        let mut out = vec![
            Instruction::ancillary(op::SKF_AD_PKTTYPE),
            condition,
            Instruction::statement(RET_K, 0),
            Instruction::statement(op::LD | op::IMM, 0),
        ];
        out.extend_from_slice(&self.instructions);
        Self::check_interpretable(out)
    }
}

const RET_K: u16 = op::RET | op::K;
const RET_A: u16 = op::RET | op::A;
