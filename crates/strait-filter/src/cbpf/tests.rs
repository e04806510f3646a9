//! Tests of the checker's rules, one by one, and of the rewrites.

use super::opcode as op;
use super::{INSTRUCTIONS_MAX, INTERPRETED_MAX, Instruction, Program};
use crate::translate::{Options, translate};
use crate::{Error, Metadata};

const RET: u16 = op::RET | op::K;
const LOAD_CELL: u16 = op::LD | op::MEM;

fn stmt(code: u16, k: u32) -> Instruction {
    Instruction::statement(code, k)
}

fn check(instructions: &[Instruction]) -> Result<Program, Error> {
    Program::check(instructions.to_vec())
}

#[test]
fn an_instruction_is_laid_out_as_sock_filter() {
    assert_eq!(size_of::<Instruction>(), 8);
    assert_eq!(std::mem::offset_of!(Instruction, jt), 2);
    assert_eq!(std::mem::offset_of!(Instruction, k), 4);
}

#[test]
fn an_empty_or_overlong_program_is_refused() {
    assert_eq!(check(&[]), Err(Error::Empty));
    assert!(check(&vec![stmt(RET, 0); INSTRUCTIONS_MAX]).is_ok());
    let instructions = INSTRUCTIONS_MAX + 1;
    assert_eq!(check(&vec![stmt(RET, 0); instructions]), Err(Error::TooLong { instructions }));
}

#[test]
fn known_opcodes_are_those_of_the_kernel() {
    let mut known = Vec::new();
    for code in 0..=u16::MAX {
        let accepted = check(&[stmt(op::ST, 1), stmt(code, 1), stmt(RET, 0), stmt(RET, 0)]);
        if !matches!(accepted, Err(Error::UnknownOpcode { .. })) {
            known.push(code);
        }
    }
    // Table of `chk_code_allowed`, in ascending order.
    let expected = [
        0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x0c, 0x14, 0x15, 0x16, 0x1c, 0x1d, 0x20, 0x24, 0x25,
        0x28, 0x2c, 0x2d, 0x30, 0x34, 0x35, 0x3c, 0x3d, 0x40, 0x44, 0x45, 0x48, 0x4c, 0x4d, 0x50, 0x54, 0x5c,
        0x60, 0x61, 0x64, 0x6c, 0x74, 0x7c, 0x80, 0x81, 0x84, 0x87, 0x94, 0x9c, 0xa4, 0xac, 0xb1,
    ];
    assert_eq!(known, expected);
}

#[test]
fn invalid_constant_operands_are_refused() {
    let refused = |code, k| check(&[stmt(code, k), stmt(RET, 0)]).unwrap_err();
    assert_eq!(refused(op::ALU | op::DIV | op::K, 0), Error::DivisionByZero { at: 0 });
    assert_eq!(refused(op::ALU | op::MOD | op::K, 0), Error::DivisionByZero { at: 0 });
    assert_eq!(refused(op::ALU | op::LSH | op::K, 32), Error::ShiftTooFar { at: 0, by: 32 });
    assert_eq!(refused(op::ST, 16), Error::NoSuchCell { at: 0, cell: 16 });
    assert_eq!(refused(op::LD | op::ABS, 0xffff_f041), Error::UnknownAncillary { at: 0, offset: 0x41 });
    assert_eq!(refused(op::LD | op::H | op::ABS, 0xffff_f002), Error::UnknownAncillary { at: 0, offset: 2 });
}

#[test]
fn a_jump_stays_inside() {
    let condition = op::JMP | op::JEQ | op::K;
    assert!(check(&[Instruction::jump(condition, 0, 0, 0), stmt(RET, 0)]).is_ok());
    for outside in
        [Instruction::jump(condition, 0, 1, 0), Instruction::jump(condition, 0, 0, 1), stmt(op::JMP, 1)]
    {
        assert_eq!(check(&[outside, stmt(RET, 0)]), Err(Error::JumpOutside { at: 0 }));
    }
    assert_eq!(check(&[stmt(op::JMP, u32::MAX), stmt(RET, 0)]), Err(Error::JumpBack { at: 0 }));
    let farthest = i32::MAX as u32;
    assert_eq!(check(&[stmt(op::JMP, farthest), stmt(RET, 0)]), Err(Error::JumpOutside { at: 0 }));
}

#[test]
fn a_program_ends_in_a_return() {
    assert_eq!(check(&[stmt(RET, 0), stmt(op::MISC, 0)]), Err(Error::NoReturn));
}

#[test]
fn a_cell_must_be_written_on_every_path_to_its_load() {
    assert_eq!(check(&[stmt(LOAD_CELL, 3), stmt(RET, 0)]), Err(Error::UnsetCell { at: 0, cell: 3 }));
    let one_way_only = [
        Instruction::jump(op::JMP | op::JEQ | op::K, 0, 0, 1),
        stmt(op::ST, 3),
        stmt(LOAD_CELL, 3),
        stmt(RET, 0),
    ];
    assert_eq!(check(&one_way_only), Err(Error::UnsetCell { at: 2, cell: 3 }));
    assert!(check(&[stmt(op::STX, 3), stmt(LOAD_CELL, 3), stmt(RET, 0)]).is_ok());
}

#[test]
fn a_snaplen_bounds_constant_and_computed_returns() {
    let meta = Metadata { wire_len: 500, ..Metadata::default() };
    let constant = check(&[stmt(RET, 96)]).unwrap();
    assert_eq!(constant.with_snaplen(60).unwrap().run(&[], &meta), 60);
    assert_eq!(constant.with_snaplen(200).unwrap().run(&[], &meta), 96);
    let computed = check(&[stmt(op::LD | op::LEN, 0), stmt(op::RET | op::A, 0)]).unwrap();
    assert_eq!(computed.with_snaplen(60).unwrap().run(&[], &meta), 60);
    assert_eq!(computed.with_snaplen(600).unwrap().run(&[], &meta), 500);
    assert_eq!(computed.with_snaplen(0).unwrap(), computed);
}

#[test]
fn a_snaplen_leaves_no_match_unchanged() {
    let meta = Metadata::default();
    for instruction in [stmt(RET, 0), stmt(op::RET | op::A, 0)] {
        let program = check(&[instruction]).unwrap().with_snaplen(60).unwrap();
        assert_eq!(program.run(&[], &meta), 0);
    }
}

#[test]
fn a_direction_selects_by_packet_type_and_leaves_the_accumulator_zero() {
    let returns_a = check(&[
        Instruction::jump(op::JMP | op::JEQ | op::K, 0, 0, 1),
        stmt(RET, 7),
        stmt(op::RET | op::A, 0),
    ])
    .unwrap();
    let run = |program: &Program, pkttype| program.run(&[], &Metadata { pkttype, ..Metadata::default() });
    let outgoing = returns_a.only_pkttype_outgoing().unwrap();
    assert_eq!((run(&outgoing, 4), run(&outgoing, 0)), (7, 0));
    let incoming = returns_a.without_pkttype_outgoing().unwrap();
    assert_eq!((run(&incoming, 4), run(&incoming, 0), run(&incoming, 2)), (0, 7, 7));
}

#[test]
fn a_rewrite_over_the_kernels_limit_has_a_refusal() {
    let full = check(&vec![stmt(op::RET | op::A, 0); INSTRUCTIONS_MAX]).unwrap();
    assert_eq!(full.refusal(), None);
    for rewritten in [full.with_snaplen(60), full.only_pkttype_outgoing()] {
        assert!(matches!(rewritten.unwrap().refusal(), Some(Error::TooLong { .. })));
    }
}

#[test]
fn an_interpreter_only_program_has_the_kernels_refusal() {
    let refusal = |instructions: &[Instruction]| {
        Program::check_interpretable(instructions.to_vec()).map(|program| program.refusal().cloned())
    };
    assert_eq!(refusal(&[stmt(RET, 1)]), Ok(None));
    let loops = [stmt(op::LD | op::IMM, 1), stmt(op::JMP, (-2_i32) as u32), stmt(RET, 0)];
    assert_eq!(refusal(&loops), Ok(Some(Error::JumpBack { at: 1 })));
    let instructions = INSTRUCTIONS_MAX + 1;
    assert_eq!(refusal(&vec![stmt(RET, 0); instructions]), Ok(Some(Error::TooLong { instructions })));
    let unset = [stmt(LOAD_CELL, 3), stmt(RET, 0)];
    assert_eq!(refusal(&unset), Ok(Some(Error::UnsetCell { at: 0, cell: 3 })));
    assert!(translate(&Program::check_interpretable(loops.to_vec()).unwrap(), &Options::default()).is_err());
}

#[test]
fn an_uninterpretable_program_is_refused() {
    let refused =
        |instructions: &[Instruction]| Program::check_interpretable(instructions.to_vec()).unwrap_err();
    assert_eq!(refused(&[]), Error::Empty);
    let instructions = INTERPRETED_MAX + 1;
    let long = vec![stmt(RET, 0); instructions];
    assert_eq!(refused(&long), Error::TooLongToInterpret { instructions });
    assert_eq!(refused(&[stmt(op::JMP, (-2_i32) as u32), stmt(RET, 0)]), Error::JumpBack { at: 0 });
    assert_eq!(refused(&[stmt(op::JMP, i32::MIN as u32), stmt(RET, 0)]), Error::JumpBack { at: 0 });
    assert_eq!(refused(&[stmt(op::JMP, 1), stmt(RET, 0)]), Error::JumpOutside { at: 0 });
    assert_eq!(refused(&[stmt(op::ST, 16), stmt(RET, 0)]), Error::NoSuchCell { at: 0, cell: 16 });
    assert_eq!(refused(&[stmt(RET, 0), stmt(op::MISC, 0)]), Error::NoReturn);
}

#[test]
fn frames_sent_on_one_interface_are_left_out() {
    let program = check(&[stmt(op::RET | op::A, 0)]).unwrap();
    let all = Program::accept_all(7).without_pkttype_outgoing_on(1).unwrap();
    let run = |pkttype, ifindex| all.run(&[], &Metadata { pkttype, ifindex, ..Metadata::default() });
    assert_eq!((run(4, 1), run(4, 2), run(0, 1), run(0, 2)), (0, 7, 7, 7));
    let returns_a = program.without_pkttype_outgoing_on(1).unwrap();
    assert_eq!(returns_a.run(&[], &Metadata { pkttype: 4, ifindex: 2, ..Metadata::default() }), 0);
}

#[test]
fn header_loads_become_ancillary_loads_and_others_move() {
    let fields = [(0, op::H, op::SKF_AD_PKTTYPE), (14, op::H, op::SKF_AD_PROTOCOL)];
    let rewritten = |code, k| check(&[stmt(code, k), stmt(RET, 1)]).unwrap().without_header(16, &fields);
    let load = |code, k| rewritten(code, k).map(|program| program.instructions()[0]);
    assert_eq!(load(op::LD | op::H | op::ABS, 20), Some(stmt(op::LD | op::H | op::ABS, 4)));
    assert_eq!(load(op::LD | op::B | op::IND, 16), Some(stmt(op::LD | op::B | op::IND, 0)));
    assert_eq!(load(op::LDX | op::B | op::MSH, 16), Some(stmt(op::LDX | op::B | op::MSH, 0)));
    assert_eq!(load(op::LD | op::H | op::ABS, 14), Some(Instruction::ancillary(op::SKF_AD_PROTOCOL)));
    let ifindex = Instruction::ancillary(op::SKF_AD_IFINDEX);
    assert_eq!(load(ifindex.code, ifindex.k), Some(ifindex));
    assert_eq!(load(op::LD | op::LEN, 0), Some(stmt(op::LD | op::LEN, 0)));
    // A word at the protocol's offset reaches into the packet. No ancillary value is that of an
    // address byte.
    assert_eq!(load(op::LD | op::W | op::ABS, 14), None);
    assert_eq!(load(op::LD | op::B | op::ABS, 6), None);
    assert_eq!(load(op::LD | op::H | op::IND, 14), None);
    assert_eq!(load(op::LDX | op::B | op::MSH, 14), None);
}
