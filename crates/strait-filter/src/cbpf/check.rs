//! Validity rules for classic programs: the kernel's, in the kernel's order, and the interpreter's.
//!
//! [`check`] follows `bpf_check_classic`, `chk_code_allowed` and `check_load_and_stores` of
//! net/core/filter.c: a program passes exactly when `SO_ATTACH_FILTER` accepts it.
//! [`check_interpretable`] omits the rules that prevent loops in the kernel. [`super::Program`] is
//! the only caller.

use super::opcode as op;
use super::{INSTRUCTIONS_MAX, INTERPRETED_MAX, Instruction, MEMORY_CELLS};
use crate::error::Error;

/// Checks a whole program by the kernel's rules.
pub(super) fn check(program: &[Instruction]) -> Result<(), Error> {
    let last = program.last().ok_or(Error::Empty)?;
    if program.len() > INSTRUCTIONS_MAX {
        return Err(Error::TooLong { instructions: program.len() });
    }
    for (at, &instruction) in program.iter().enumerate() {
        if !is_known(instruction.code) {
            return Err(Error::UnknownOpcode { at, code: instruction.code });
        }
        check_operands(at, instruction)?;
        check_jump(at, instruction, program.len())?;
    }
    if last.code & op::CLASS != op::RET {
        return Err(Error::NoReturn);
    }
    check_memory(program)
}

/// Checks the interpreter's assumptions: known opcodes, existing cells, nonzero constant divisors,
/// and jumps within the program. Loops may be endless, because the interpreter limits the number of
/// steps.
pub(super) fn check_interpretable(program: &[Instruction]) -> Result<(), Error> {
    let last = program.last().ok_or(Error::Empty)?;
    if program.len() > INTERPRETED_MAX {
        return Err(Error::TooLongToInterpret { instructions: program.len() });
    }
    for (at, &instruction) in program.iter().enumerate() {
        if !is_known(instruction.code) {
            return Err(Error::UnknownOpcode { at, code: instruction.code });
        }
        match check_operands(at, instruction) {
            Err(Error::UnknownAncillary { .. }) => {}
            checked => checked?,
        }
        match check_jump(at, instruction, program.len()) {
            Err(Error::JumpBack { .. }) if jumps_back_inside(at, instruction.k) => {}
            checked => checked?,
        }
    }
    if last.code & op::CLASS == op::RET { Ok(()) } else { Err(Error::NoReturn) }
}

/// Returns true if the unconditional jump at `at`, by a negative `k`, lands on an instruction.
fn jumps_back_inside(at: usize, k: u32) -> bool {
    (at as i64 + 1 + i64::from(k as i32)) >= 0
}

/// Returns true if classic BPF defines this opcode.
fn is_known(code: u16) -> bool {
    if code > 0xff {
        return false;
    }
    let operation = code & op::OPERATION;
    match code & op::CLASS {
        op::LD => is_load(code),
        op::LDX => {
            let known = [op::W | op::IMM, op::W | op::MEM, op::W | op::LEN, op::B | op::MSH];
            known.contains(&(code & !op::CLASS))
        }
        op::ST | op::STX => code & !op::CLASS == 0,
        op::ALU if operation == op::NEG => code & op::X == 0,
        op::ALU => operation <= op::XOR,
        op::JMP if operation == op::JA => code & op::X == 0,
        op::JMP => operation <= op::JSET,
        op::RET => [op::K, op::A].contains(&(code & !op::CLASS)),
        _ => [op::TAX, op::TXA].contains(&(code & !op::CLASS)),
    }
}

fn is_load(code: u16) -> bool {
    let size = code & op::SIZE;
    match code & op::MODE {
        op::ABS | op::IND => [op::W, op::H, op::B].contains(&size),
        op::IMM | op::MEM | op::LEN => size == op::W,
        _ => false,
    }
}

fn check_operands(at: usize, instruction: Instruction) -> Result<(), Error> {
    let k = instruction.k;
    match instruction.code {
        code if code == op::ALU | op::DIV | op::K || code == op::ALU | op::MOD | op::K => {
            if k == 0 {
                Err(Error::DivisionByZero { at })
            } else {
                Ok(())
            }
        }
        code if code == op::ALU | op::LSH | op::K || code == op::ALU | op::RSH | op::K => {
            if k >= 32 {
                Err(Error::ShiftTooFar { at, by: k })
            } else {
                Ok(())
            }
        }
        code if accesses_cell(code) => {
            if k as usize >= MEMORY_CELLS {
                Err(Error::NoSuchCell { at, cell: k })
            } else {
                Ok(())
            }
        }
        code if code & (op::CLASS | op::MODE) == op::LD | op::ABS => check_ancillary(at, k),
        _ => Ok(()),
    }
}

/// Returns true if the opcode accesses a scratch memory cell, with index `k`.
fn accesses_cell(code: u16) -> bool {
    [op::ST, op::STX, op::LD | op::MEM, op::LDX | op::MEM].contains(&code)
}

fn check_ancillary(at: usize, k: u32) -> Result<(), Error> {
    let offset = k.wrapping_sub(op::SKF_AD_OFF as u32);
    let ancillary = k >= op::SKF_AD_OFF as u32;
    let known = offset.is_multiple_of(4) && offset <= op::SKF_AD_VLAN_TPID;
    if ancillary && !known { Err(Error::UnknownAncillary { at, offset }) } else { Ok(()) }
}

fn check_jump(at: usize, instruction: Instruction, len: usize) -> Result<(), Error> {
    let remaining = len - at - 1;
    if instruction.code == op::JMP | op::JA && (instruction.k as i32) < 0 {
        return Err(Error::JumpBack { at });
    }
    let inside = match instruction.code {
        code if code & op::CLASS != op::JMP => true,
        code if code & op::OPERATION == op::JA => (instruction.k as usize) < remaining,
        _ => (instruction.jt as usize) < remaining && (instruction.jf as usize) < remaining,
    };
    if inside { Ok(()) } else { Err(Error::JumpOutside { at }) }
}

/// Checks that every load from scratch memory is preceded by a store on all paths to it.
fn check_memory(program: &[Instruction]) -> Result<(), Error> {
    // One bit for each cell: written on every jump to this instruction.
    let mut on_jumps = vec![u16::MAX; program.len()];
    let mut written = 0_u16;
    for (at, &instruction) in program.iter().enumerate() {
        written &= on_jumps[at];
        let next = at + 1;
        match instruction.code {
            op::ST | op::STX => written |= 1 << instruction.k,
            code if accesses_cell(code) => {
                if written & (1 << instruction.k) == 0 {
                    return Err(Error::UnsetCell { at, cell: instruction.k });
                }
            }
            code if code & op::CLASS != op::JMP => {}
            code if code & op::OPERATION == op::JA => {
                on_jumps[next + instruction.k as usize] &= written;
                written = u16::MAX;
            }
            _ => {
                on_jumps[next + instruction.jt as usize] &= written;
                on_jumps[next + instruction.jf as usize] &= written;
                written = u16::MAX;
            }
        }
    }
    Ok(())
}
