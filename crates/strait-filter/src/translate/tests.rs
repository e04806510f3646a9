//! Tests of translations in a virtual machine other than the kernel's, compared with the
//! interpreter.
//!
//! The capture crate's tests run far more translations in the kernel. These need no privilege.

use proptest::prelude::*;

use super::{Options, translate};
use crate::cbpf::{Instruction, Program, opcode as op};
use crate::ebpf::{Instruction as Ebpf, opcode as eop};
use crate::{Error, Metadata, ethernet_pkttype};

const DEVICE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const CONTEXT_BYTES: usize = 64;
/// Context offsets of the 64-bit addresses that the kernel substitutes for `data` and `data_end`.
const DATA: i16 = 40;
const DATA_END: i16 = 48;

/// Rewrites loads of packet addresses to 64 bits, as the kernel's loader does.
fn relocate(program: &mut [Ebpf]) {
    let load_word = eop::LDX | eop::MEM;
    for i in program.iter_mut().filter(|i| i.code == load_word && i.src == 6) {
        let field = match i.off {
            eop::XDP_MD_DATA => DATA,
            eop::XDP_MD_DATA_END => DATA_END,
            _ => continue,
        };
        *i = Ebpf { code: load_word | eop::DW, off: field, ..*i };
    }
}

/// Returns the translation's result for a frame from interface 3, queue 5.
fn run(program: &Program, frame: &[u8]) -> u32 {
    let options = Options { device_mac: DEVICE_MAC, ..Options::default() };
    let mut code = translate(program, &options).unwrap();
    relocate(&mut code);
    let bytes: Vec<u8> = code.iter().flat_map(|i| i.to_bytes()).collect();
    let mut context = [0; CONTEXT_BYTES];
    let start = frame.as_ptr() as u64;
    let mut put =
        |at: i16, bytes: &[u8]| context[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    put(eop::XDP_MD_INGRESS_IFINDEX, &3_u32.to_ne_bytes());
    put(eop::XDP_MD_RX_QUEUE_INDEX, &5_u32.to_ne_bytes());
    put(DATA, &start.to_ne_bytes());
    put(DATA_END, &(start + frame.len() as u64).to_ne_bytes());
    let vm = rbpf::EbpfVmMbuff::new(Some(&bytes)).unwrap();
    vm.execute_program(frame, &context).unwrap() as u32
}

fn metadata(frame: &[u8]) -> Metadata {
    let destination = frame.first_chunk().copied().unwrap_or_default();
    Metadata {
        wire_len: frame.len() as u32,
        pkttype: ethernet_pkttype(destination, DEVICE_MAC),
        ifindex: 3,
        queue: 6,
        hatype: 1,
        ..Metadata::default()
    }
}

/// Generates instructions that are valid anywhere. `program` limits the jumps.
fn instruction() -> impl Strategy<Value = Instruction> {
    let size = prop::sample::select(vec![op::W, op::H, op::B]);
    let offset =
        prop_oneof![6 => 0_u32..40, 1 => Just(op::SKF_NET_OFF as u32), 1 => Just(op::SKF_LL_OFF as u32 + 9)];
    let offsets = vec![0, 4, 8, 20, 24, 28, 32, 40, 44, 48, 60];
    let operations =
        vec![op::ADD, op::SUB, op::MUL, op::DIV, op::OR, op::AND, op::LSH, op::RSH, op::MOD, op::XOR];
    let statement = Instruction::statement;
    prop_oneof![
        (size.clone(), offset.clone()).prop_map(move |(size, k)| statement(op::LD | op::ABS | size, k)),
        (size, offset.clone()).prop_map(move |(size, k)| statement(op::LD | op::IND | size, k)),
        offset.prop_map(move |k| statement(op::LDX | op::B | op::MSH, k)),
        prop::sample::select(offsets).prop_map(Instruction::ancillary),
        prop::sample::select(vec![op::LD, op::LDX]).prop_map(move |code| statement(code | op::LEN, 0)),
        any::<u32>().prop_map(move |k| statement(op::LD | op::IMM, k)),
        (0_u32..70).prop_map(move |k| statement(op::LDX | op::IMM, k)),
        prop::sample::select(operations.clone()).prop_map(move |code| statement(op::ALU | code | op::X, 0)),
        (prop::sample::select(operations), 1_u32..32).prop_map(move |(code, k)| statement(op::ALU | code, k)),
        Just(statement(op::ALU | op::NEG, 0)),
        prop::sample::select(vec![op::TAX, op::TXA]).prop_map(move |code| statement(op::MISC | code, 0)),
        (
            prop::sample::select(vec![op::JEQ, op::JGT, op::JGE, op::JSET]),
            any::<bool>(),
            0_u32..300,
            0_u8..4,
            0_u8..4
        )
            .prop_map(|(code, x, k, jt, jf)| Instruction::jump(
                op::JMP | code | if x { op::X } else { 0 },
                k,
                jt,
                jf
            )),
        (0_u32..4).prop_map(move |k| statement(op::JMP | op::JA, k)),
        prop::sample::select(vec![0, 60, u32::MAX]).prop_map(move |k| statement(op::RET, k)),
    ]
}

prop_compose! {
    fn program()(mut code in prop::collection::vec(instruction(), 1..30)) -> Program {
        code.push(Instruction::statement(op::RET | op::A, 0));
        let len = code.len();
        for (at, i) in code.iter_mut().enumerate().filter(|(_, i)| i.code & op::CLASS == op::JMP) {
            let remaining = len - at - 2;
            (i.jt, i.jf) = (i.jt.min(remaining as u8), i.jf.min(remaining as u8));
            if i.code & op::OPERATION == op::JA {
                i.k = i.k.min(remaining as u32);
            }
        }
        Program::check(code).unwrap()
    }
}

prop_compose! {
    fn frame()(
        mut bytes in prop::collection::vec(any::<u8>(), 0..80),
        kind in prop::sample::select(vec![0x0800_u16, 0x8100, 0x88a8, 0x0010]),
        for_us: bool,
    ) -> Vec<u8> {
        if let Some(at) = bytes.get_mut(12..14) {
            at.copy_from_slice(&kind.to_be_bytes());
        }
        if let Some(at) = bytes.get_mut(..6).filter(|_| for_us) {
            at.copy_from_slice(&DEVICE_MAC);
        }
        bytes
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn translation_and_interpreter_return_the_same(program in program(), frame in frame()) {
        prop_assert_eq!(run(&program, &frame), program.run_wire(&frame, &metadata(&frame)));
    }
}

#[test]
fn ancillary_values_unavailable_to_xdp_are_refused() {
    for (offset, what) in [
        (op::SKF_AD_PAY_OFFSET, "the payload offset"),
        (op::SKF_AD_NLATTR, "a netlink attribute"),
        (op::SKF_AD_NLATTR_NEST, "a nested netlink attribute"),
    ] {
        let code = vec![
            Instruction::statement(op::MISC | op::TXA, 0),
            Instruction::ancillary(offset),
            Instruction::statement(op::RET | op::A, 0),
        ];
        let refused = translate(&Program::check(code).unwrap(), &Options::default());
        assert_eq!(refused, Err(Error::Untranslatable { at: 1, what }));
    }
}

/// The classic checker accepts unreachable instructions, which the verifier would refuse.
#[test]
fn unreachable_instructions_are_left_out() {
    let filler = Instruction::statement(op::LD | op::W | op::ABS, 0);
    let leap = Instruction::statement(op::JMP | op::JA, 100);
    let ret = Instruction::statement(op::RET | op::A, 0);
    let short = Program::check(vec![ret]).unwrap();
    let long = Program::check([vec![leap], vec![filler; 100], vec![ret]].concat()).unwrap();
    let len = |program| translate(program, &Options::default()).unwrap().len();
    assert_eq!(len(&long), len(&short));
}
