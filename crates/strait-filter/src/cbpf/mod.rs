//! Classic BPF programs: those that the kernel takes, and those that only an interpreter can run.
//!
//! [`Program::check`] applies the kernel's own rules. [`Program::check_interpretable`] also takes what libpcap runs in
//! user space: loops (`protochain`) and programs over [`INSTRUCTIONS_MAX`]. Both kinds can be run; only a program
//! without a [`Program::refusal`] can be attached or translated. The capture engine makes them from what libpcap
//! compiled; the rewrites here (snapshot length, direction) keep the rules.

mod check;
pub mod opcode;
#[cfg(test)]
mod tests;

use opcode as op;

use crate::error::Error;

/// `BPF_MAXINSNS`: the longest program the kernel takes.
pub const INSTRUCTIONS_MAX: usize = 4096;

/// The longest program that is interpreted: 8 MiB of instructions. libpcap compiles 20,000 ports to a tenth of it.
pub const INTERPRETED_MAX: usize = 1 << 20;

/// Cells of scratch memory, `BPF_MEMWORDS`.
pub const MEMORY_CELLS: usize = 16;

/// One instruction, laid out as `struct sock_filter` of `linux/filter.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// Opcode, see [`opcode`].
    pub code: u16,
    /// Instructions to skip where a conditional jump's condition holds.
    pub jt: u8,
    /// Instructions to skip where it does not.
    pub jf: u8,
    /// The constant operand.
    pub k: u32,
}

impl Instruction {
    /// `BPF_STMT(code, k)`: anything but a conditional jump.
    pub const fn statement(code: u16, k: u32) -> Self {
        Self { code, jt: 0, jf: 0, k }
    }

    /// `BPF_JUMP(code, k, jt, jf)`: a conditional jump.
    pub const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Self {
        Self { code, jt, jf, k }
    }

    /// An absolute load of the fact at `offset` from `SKF_AD_OFF`.
    pub const fn ancillary(offset: u32) -> Self {
        Self::statement(op::LD | op::W | op::ABS, (op::SKF_AD_OFF as u32).wrapping_add(offset))
    }
}

impl From<(u16, u8, u8, u32)> for Instruction {
    fn from((code, jt, jf, k): (u16, u8, u8, u32)) -> Self {
        Self { code, jt, jf, k }
    }
}

/// A checked program. Its return value is how many bytes of the frame to keep; 0 means no match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    instructions: Vec<Instruction>,
    /// Why the kernel does not take it.
    refusal: Option<Error>,
}

impl Program {
    /// Takes `instructions` if the kernel would: `bpf_check_classic` and `check_load_and_stores` of
    /// net/core/filter.c.
    pub fn check(instructions: Vec<Instruction>) -> Result<Self, Error> {
        check::check(&instructions)?;
        Ok(Self { instructions, refusal: None })
    }

    /// Takes `instructions` if the interpreter can run them. Beyond what the kernel takes these are loops, up to
    /// [`INTERPRETED_MAX`] instructions, facts that no kernel knows (no match) and cells that are read before they are
    /// written (0), as in libpcap's `bpf_validate` and `bpf_filter`.
    pub fn check_interpretable(instructions: Vec<Instruction>) -> Result<Self, Error> {
        let refusal = check::check(&instructions).err();
        if refusal.is_some() {
            check::check_interpretable(&instructions)?;
        }
        Ok(Self { instructions, refusal })
    }

    /// Why the kernel does not take the program; `None` where it does.
    pub fn refusal(&self) -> Option<&Error> {
        self.refusal.as_ref()
    }

    /// The program that matches every frame and keeps `snaplen` bytes of it; 0 keeps all.
    pub fn accept_all(snaplen: u32) -> Self {
        let keep = if snaplen == 0 { u32::MAX } else { snaplen };
        Self { instructions: vec![Instruction::statement(RET_K, keep)], refusal: None }
    }

    /// Keeps nothing.
    pub fn reject_all() -> Self {
        Self { instructions: vec![Instruction::statement(RET_K, 0)], refusal: None }
    }

    /// The instructions, for `SO_ATTACH_FILTER`.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// What it returns for every frame, where its first instruction says so.
    pub fn constant(&self) -> Option<u32> {
        let first = self.instructions.first()?;
        (first.code == opcode::RET | opcode::K).then_some(first.k)
    }

    /// The same program keeping at most `snaplen` bytes of what it matches; 0 is no limit.
    ///
    /// A computed return (`ret a`) is bounded at run time, which takes three more instructions; where they do not fit
    /// the result has a [`Program::refusal`].
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

    /// The same program for frames that this host sends, and no others.
    pub fn only_pkttype_outgoing(&self) -> Result<Self, Error> {
        self.prefixed(Instruction::jump(op::JMP | op::JEQ | op::K, op::PACKET_OUTGOING, 1, 0))
    }

    /// The same program for frames that this host does not send itself.
    pub fn without_pkttype_outgoing(&self) -> Result<Self, Error> {
        self.prefixed(Instruction::jump(op::JMP | op::JEQ | op::K, op::PACKET_OUTGOING, 0, 1))
    }

    /// The same program for all frames but those that this host sends on the interface `ifindex`: a loopback, where each
    /// comes in again.
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

    /// The same program for packets whose header, the first `bytes` bytes that it knows, is not there: loads beyond move
    /// up, loads within become those of `facts` (offset, `W`, `H` or `B`, and the `SKF_AD_*` that has the same value). `None`
    /// where it loads something else of the header. `len` is left as it is and counts without the header, as it does in
    /// libpcap's own rewriting (`fix_offset` of pcap-linux.c).
    pub fn without_header(&self, bytes: u32, facts: &[(u32, u16, u32)]) -> Option<Self> {
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
            let &(.., fact) =
                facts.iter().find(|fact| absolute && fact.0 == k && fact.1 == code & op::SIZE)?;
            *instruction = Instruction::ancillary(fact);
        }
        Self::check_interpretable(out).ok()
    }

    /// Puts `ld pkttype`, `condition` and `ret #0` in front; the condition skips the return. Jumps are relative,
    /// so the rest stays as it is, but A has to be 0 again, as at the start of a program.
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
