//! Tests of encodings and of the assembler's rules. A small virtual machine runs the programs.

use super::{
    Assembler, Condition, Instruction, Operation,
    Register::{R0, R1, R2, R3, R9, R10},
    Size, encode, opcode as op,
};
use crate::Error;

fn run(program: &[Instruction]) -> u64 {
    let bytes: Vec<u8> = program.iter().flat_map(|i| i.to_bytes()).collect();
    rbpf::EbpfVmNoData::new(Some(&bytes)).unwrap().execute_program().unwrap()
}

#[test]
#[cfg(target_endian = "little")]
fn instructions_have_the_kernels_encoding() {
    let mut asm = Assembler::new();
    let end = asm.label();
    asm.load_map(R1, 7);
    asm.load(Size::H, R3, R10, -2);
    asm.jump32_if(Condition::AnyBitSet, R0, R9, end);
    asm.store(Size::Dw, R10, -8, -1);
    asm.atomic_fetch_add(R0, 16, R1);
    asm.bind(end);
    asm.exit();
    let expected = [
        0x0000_0007_0000_1118,
        0,
        0x0000_0000_fffe_a369,
        0x0000_0000_0002_904e,
        0xffff_ffff_fff8_0a7a,
        0x0000_0001_0010_10db,
        0x95,
    ];
    assert_eq!(encode(&asm.finish().unwrap()), expected);
}

#[test]
fn a_loop_jumps_backward() {
    let mut asm = Assembler::new();
    let again = asm.label();
    asm.mov(R0, 0);
    asm.mov(R1, 10);
    asm.bind(again);
    asm.alu(Operation::Add, R0, R1);
    asm.alu(Operation::Sub, R1, 1);
    asm.jump_if(Condition::NotEqual, R1, 0, again);
    asm.exit();
    assert_eq!(run(&asm.finish().unwrap()), 55);
}

#[test]
fn a_constant_has_64_bits() {
    let mut asm = Assembler::new();
    asm.load_constant(R0, 0x1234_5678_9abc_def0);
    asm.exit();
    assert_eq!(run(&asm.finish().unwrap()), 0x1234_5678_9abc_def0);
}

#[test]
fn a_function_is_called_and_returns() {
    let mut asm = Assembler::new();
    let double = asm.label();
    asm.mov(R1, 21);
    asm.call_function(double);
    asm.exit();
    asm.bind(double);
    asm.mov(R0, R1);
    asm.alu(Operation::Add, R0, R1);
    asm.exit();
    assert_eq!(run(&asm.finish().unwrap()), 42);
}

#[test]
fn unreachable_code_is_not_emitted() {
    let mut asm = Assembler::new();
    let (unused, end) = (asm.label(), asm.label());
    asm.mov(R0, 1);
    asm.jump(end);
    asm.mov(R0, 2);
    asm.bind(unused);
    asm.jump_if(Condition::Equal, R0, 0, unused);
    asm.bind(end);
    asm.exit();
    let program = asm.finish().unwrap();
    assert_eq!(program.len(), 2, "the jump to the next instruction is removed too: {program:?}");
    assert_eq!(run(&program), 1);
}

/// Interprets the few instructions of the long programs below; rbpf counts instructions in 16 bits.
fn walk(program: &[Instruction]) -> i64 {
    const MOV: u8 = op::ALU64 | op::MOV;
    const WIDE: u8 = op::LD | op::IMM | op::DW;
    let mut registers = [0_i64; 11];
    let mut at = 0;
    loop {
        let i = program[at];
        let dst = &mut registers[usize::from(i.dst)];
        let equal = *dst == i64::from(i.imm);
        let jumps = match i.code {
            MOV => {
                *dst = i64::from(i.imm);
                false
            }
            WIDE => {
                at += 1;
                false
            }
            code if code == op::JMP | Condition::Equal as u8 => equal,
            code if code == op::JMP | Condition::NotEqual as u8 => !equal,
            code if code == op::JMP | op::JA => true,
            code => {
                assert_eq!(code, op::JMP | op::EXIT);
                return registers[0];
            }
        };
        at = at.strict_add_signed(if jumps { 1 + i.off as isize } else { 1 });
    }
}

/// Jumps from all positions to the end of a program reach it through islands, also in programs far
/// longer than 16 bits.
#[test]
fn jumps_reach_any_distance() {
    for len in [1_000, 40_000, 150_000] {
        let mut asm = Assembler::new();
        let (early, end) = (asm.label(), asm.label());
        asm.mov(R0, 7);
        asm.mov(R1, 0);
        for at in 0..len {
            match at % 1000 {
                0 => asm.jump_if(Condition::NotEqual, R1, 0, early),
                500 => asm.jump_if(Condition::NotEqual, R0, 7, end),
                _ => asm.mov(R2, at),
            }
        }
        asm.jump_if(Condition::Equal, R1, 0, end);
        asm.bind(early);
        asm.mov(R0, 1);
        asm.bind(end);
        asm.exit();
        let program = asm.finish().unwrap();
        assert_eq!(walk(&program), 7);
        assert_jumps_land_on_instructions(&program);
    }
}

/// A jump from the first instruction reaches the end of a program far longer than 16 bits.
#[test]
fn a_forward_jump_spans_the_whole_program() {
    let mut asm = Assembler::new();
    let end = asm.label();
    asm.mov(R0, 3);
    asm.jump_if(Condition::Equal, R0, 3, end);
    for at in 0..200_000 {
        asm.load_constant(R0, at);
    }
    asm.bind(end);
    asm.exit();
    let program = asm.finish().unwrap();
    assert_eq!(walk(&program), 3);
    assert_jumps_land_on_instructions(&program);
}

/// Asserts that no jump leaves the program or lands on the second half of a 64-bit constant.
fn assert_jumps_land_on_instructions(program: &[Instruction]) {
    for (at, i) in program.iter().enumerate() {
        let is_jump =
            [op::JMP, op::JMP32].contains(&(i.code & 7)) && ![op::CALL, op::EXIT].contains(&(i.code & 0xf0));
        if is_jump {
            let to = program.get(at.wrapping_add_signed(1 + i.off as isize)).expect("the jump stays inside");
            assert_ne!(
                *to,
                Instruction { imm: to.imm, ..Instruction::default() },
                "instruction {at} jumps into a constant"
            );
        }
    }
}

#[test]
fn an_incomplete_program_is_refused() {
    let mut runs_off = Assembler::new();
    runs_off.mov(R0, 0);
    assert_eq!(runs_off.finish(), Err(Error::NoReturn));
    let mut leads_nowhere = Assembler::new();
    let nowhere = leads_nowhere.label();
    leads_nowhere.jump(nowhere);
    assert_eq!(leads_nowhere.finish(), Err(Error::UnboundLabel));
}

#[test]
fn a_backward_jump_beyond_16_bits_is_refused() {
    let mut asm = Assembler::new();
    let again = asm.label();
    asm.bind(again);
    (0..40_000).for_each(|at| asm.mov(R0, at));
    asm.jump_if(Condition::NotEqual, R0, 0, again);
    asm.exit();
    assert_eq!(asm.finish(), Err(Error::JumpTooFar));
}
