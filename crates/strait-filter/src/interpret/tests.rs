//! Tests of the interpreter's results, with and without a VLAN tag.

use super::{Metadata, Vlan, ethernet_pkttype};
use crate::cbpf::{INTERPRETED_MAX, Instruction, Program, opcode as op};

/// A tagged frame: bytes 0 to 11 count up, then tag 0x8100/0x2064, type 0x0800, then 18 to 39.
fn tagged_frame() -> Vec<u8> {
    let mut frame: Vec<u8> = (0..40).collect();
    frame[12..18].copy_from_slice(&[0x81, 0x00, 0x20, 0x64, 0x08, 0x00]);
    frame
}

/// The tagged frame without its tag.
fn untagged_frame() -> Vec<u8> {
    let mut frame = tagged_frame();
    frame.drain(12..16);
    frame
}

fn meta() -> Metadata {
    Metadata { wire_len: 40, hatype: 1, ..Metadata::default() }
}

fn untagged_meta() -> Metadata {
    Metadata { wire_len: 36, protocol: 0x0800, vlan: Some(Vlan { tci: 0x2064, tpid: 0x8100 }), ..meta() }
}

fn program(instructions: &[Instruction]) -> Program {
    Program::check(instructions.to_vec()).unwrap()
}

/// Returns a program that returns the result of one load plus one, so that zero is not "no match".
fn returning(load: Instruction) -> Program {
    program(&[
        load,
        Instruction::statement(op::ALU | op::ADD | op::K, 1),
        Instruction::statement(op::RET | op::A, 0),
    ])
}

fn abs(size: u16, k: u32) -> Instruction {
    Instruction::statement(op::LD | op::ABS | size, k)
}

#[test]
fn loads_of_every_offset_and_size_skip_the_tag() {
    let (wire, seen) = (tagged_frame(), untagged_frame());
    for size in [op::W, op::H, op::B] {
        for k in 0..45 {
            for load in [abs(size, k), Instruction::statement(op::LD | op::IND | size, k)] {
                let program = returning(load);
                let expected = program.run(&seen, &untagged_meta());
                assert_eq!(program.run_wire(&wire, &meta()), expected, "{load:?}");
            }
        }
    }
}

#[test]
fn loads_are_big_endian_and_bounded() {
    let seen = untagged_frame();
    assert_eq!(returning(abs(op::H, 12)).run(&seen, &meta()), 0x0801);
    assert_eq!(returning(abs(op::B, 35)).run(&seen, &meta()), 40);
    assert_eq!(returning(abs(op::B, 36)).run(&seen, &meta()), 0);
    assert_eq!(returning(abs(op::W, 33)).run(&seen, &meta()), 0);
}

#[test]
fn negative_offsets_count_from_a_header() {
    let seen = untagged_frame();
    let byte = |offset: i32| returning(abs(op::B, offset as u32)).run(&seen, &meta());
    assert_eq!(byte(op::SKF_LL_OFF), 1);
    assert_eq!(byte(op::SKF_LL_OFF + 5), 6);
    assert_eq!(byte(op::SKF_NET_OFF), 19);
    assert_eq!(byte(op::SKF_LL_OFF - 1), 0);
}

#[test]
fn an_indirect_load_wraps_at_32_bits() {
    let indirect = program(&[
        Instruction::statement(op::LDX | op::IMM, u32::MAX),
        Instruction::statement(op::LD | op::B | op::IND, 6),
        Instruction::statement(op::RET | op::A, 0),
    ]);
    assert_eq!(indirect.run(&untagged_frame(), &meta()), 5);
}

#[test]
fn the_tag_is_metadata_and_not_counted_in_the_length() {
    let wire = tagged_frame();
    let value = |offset| returning(Instruction::ancillary(offset)).run_wire(&wire, &meta()) - 1;
    assert_eq!(value(op::SKF_AD_VLAN_TAG), 0x2064);
    assert_eq!(value(op::SKF_AD_VLAN_TPID), 0x8100);
    assert_eq!(value(op::SKF_AD_VLAN_TAG_PRESENT), 1);
    assert_eq!(value(op::SKF_AD_PROTOCOL), 0x0800);
    assert_eq!(returning(Instruction::statement(op::LD | op::LEN, 0)).run_wire(&wire, &meta()), 37);
}

#[test]
fn a_tag_stripped_by_the_device_leaves_the_inner_tag_in_place() {
    let stripped = Metadata { vlan: Some(Vlan { tci: 5, tpid: 0x88a8 }), ..meta() };
    let value = |offset| returning(Instruction::ancillary(offset)).run_wire(&tagged_frame(), &stripped) - 1;
    assert_eq!(value(op::SKF_AD_VLAN_TAG), 5);
    assert_eq!(value(op::SKF_AD_PROTOCOL), 0x8100);
}

#[test]
fn a_frame_shorter_than_its_header_does_not_match() {
    let all = Program::accept_all(0);
    assert_eq!(all.run_wire(&untagged_frame()[..13], &meta()), 0);
    assert_eq!(all.run_wire(&untagged_frame()[..14], &meta()), u32::MAX);
    assert_eq!(all.run_wire(&tagged_frame()[..19], &meta()), 0);
    assert_eq!(all.run_wire(&tagged_frame()[..20], &meta()), u32::MAX);
}

#[test]
fn a_length_in_the_type_field_is_an_802_protocol() {
    let protocol = |bytes: [u8; 4]| {
        let mut frame = untagged_frame();
        frame[12..16].copy_from_slice(&bytes);
        returning(Instruction::ancillary(op::SKF_AD_PROTOCOL)).run_wire(&frame, &meta()) - 1
    };
    assert_eq!(protocol([0x05, 0xff, 0xff, 0xff]), 1);
    assert_eq!(protocol([0x05, 0xff, 0x42, 0x42]), 4);
    assert_eq!(protocol([0x06, 0x00, 0xff, 0xff]), 0x0600);
}

#[test]
fn division_by_zero_is_no_match() {
    for operation in [op::DIV, op::MOD] {
        let divides = program(&[
            Instruction::statement(op::LD | op::IMM, 9),
            Instruction::statement(op::ALU | operation | op::X, 0),
            Instruction::statement(op::RET | op::K, 5),
        ]);
        assert_eq!(divides.run(&[], &meta()), 0);
    }
}

#[test]
fn msh_gives_an_ip_header_length() {
    let mut frame = untagged_frame();
    frame[14] = 0x46;
    let header_len = program(&[
        Instruction::statement(op::LDX | op::B | op::MSH, 14),
        Instruction::statement(op::MISC | op::TXA, 0),
        Instruction::statement(op::RET | op::A, 0),
    ]);
    assert_eq!(header_len.run(&frame, &meta()), 24);
}

#[test]
fn a_netlink_attribute_is_found_by_type() {
    // Two attributes: type 1 with 4 bytes, and type 7 with a nested attribute of type 3.
    let mut message = Vec::new();
    for half in [8_u16, 1, 0xaaaa, 0xbbbb, 12, 7, 8, 3, 0x1111, 0x2222] {
        message.extend(half.to_ne_bytes());
    }
    let find = |what, start, kind| {
        program(&[
            Instruction::statement(op::LDX | op::IMM, kind),
            Instruction::statement(op::LD | op::IMM, start),
            Instruction::ancillary(what),
            Instruction::statement(op::RET | op::A, 0),
        ])
        .run(&message, &meta())
    };
    assert_eq!(find(op::SKF_AD_NLATTR, 0, 7), 8);
    assert_eq!(find(op::SKF_AD_NLATTR, 0, 9), 0);
    assert_eq!(find(op::SKF_AD_NLATTR_NEST, 8, 3), 12);
    assert_eq!(find(op::SKF_AD_NLATTR_NEST, u32::MAX, 3), 0);
}

#[test]
fn packet_types_follow_the_destination() {
    let device = [2, 0, 0, 0, 0, 1];
    assert_eq!(ethernet_pkttype(device, device), 0);
    assert_eq!(ethernet_pkttype([0xff; 6], device), 1);
    assert_eq!(ethernet_pkttype([1, 0, 0x5e, 0, 0, 1], device), 2);
    assert_eq!(ethernet_pkttype([2, 0, 0, 0, 0, 2], device), 3);
}

/// The program decrements A, from the first byte of the frame, to 0.
#[test]
fn a_loop_ends_when_its_condition_does() {
    let program = Program::check_interpretable(vec![
        Instruction::statement(op::LD | op::ABS | op::B, 0),
        Instruction::jump(op::JMP | op::JEQ | op::K, 0, 2, 0),
        Instruction::statement(op::ALU | op::SUB | op::K, 1),
        Instruction::statement(op::JMP | op::JA, (-3_i32) as u32),
        Instruction::statement(op::RET | op::K, 7),
    ])
    .unwrap();
    for count in [0, 1, 255] {
        assert_eq!(program.run(&[count], &meta()), 7);
    }
    assert_eq!(program.run(&[], &meta()), 0);
}

#[test]
fn an_endless_loop_is_no_match() {
    let program = Program::check_interpretable(vec![
        Instruction::statement(op::JMP | op::JA, (-1_i32) as u32),
        Instruction::statement(op::RET | op::K, 7),
    ]);
    assert_eq!(program.unwrap().run(&[1], &meta()), 0);
}

/// A program over the kernel's limit is not cut off by the limit of steps.
#[test]
fn the_longest_program_runs_to_its_end() {
    let mut code = vec![Instruction::statement(op::LD | op::IMM, 7); INTERPRETED_MAX - 1];
    code.push(Instruction::statement(op::RET | op::A, 0));
    assert_eq!(Program::check_interpretable(code).unwrap().run(&[], &meta()), 7);
}
