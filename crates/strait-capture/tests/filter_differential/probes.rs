//! Programs that return one value each: all metadata, every load around the tag, every operation on
//! boundary values.
//!
//! A random program seldom returns a wrong value in the middle; these programs return it.

use strait_filter::cbpf::{Instruction, Program, opcode as op};

/// Metadata with one correct value.
const FACTS: [u32; 11] = [
    op::SKF_AD_PROTOCOL,
    op::SKF_AD_PKTTYPE,
    op::SKF_AD_IFINDEX,
    op::SKF_AD_MARK,
    op::SKF_AD_QUEUE,
    op::SKF_AD_HATYPE,
    op::SKF_AD_RXHASH,
    op::SKF_AD_ALU_XOR_X,
    op::SKF_AD_VLAN_TAG,
    op::SKF_AD_VLAN_TAG_PRESENT,
    op::SKF_AD_VLAN_TPID,
];
const SIZES: [u16; 3] = [op::W, op::H, op::B];
/// Values of X that make offsets ordinary, wrap, count from the network header, from the link
/// header, or invalid.
const INDICES: [u32; 6] = [0, 5, u32::MAX, op::SKF_NET_OFF as u32, op::SKF_LL_OFF as u32 + 3, 0x8000_0000];
const OPERATIONS: [u16; 10] =
    [op::ADD, op::SUB, op::MUL, op::DIV, op::OR, op::AND, op::LSH, op::RSH, op::MOD, op::XOR];
const OPERANDS: [(u32, u32); 9] = [
    (0xdead_beef, 0),
    (0xdead_beef, 1),
    (0xdead_beef, 31),
    (0xdead_beef, 32),
    (0xdead_beef, 37),
    (0xdead_beef, u32::MAX),
    (0x7fff_ffff, 0x8000_0000),
    (0, 5),
    (9, 7),
];

/// Returns a program that returns the value of `source` in A plus one, because 0 means no match.
pub(crate) fn whole(source: &[Instruction]) -> Program {
    let end =
        [Instruction::statement(op::ALU | op::ADD | op::K, 1), Instruction::statement(op::RET | op::A, 0)];
    Program::check([source, &end].concat()).expect("a probe keeps the rules")
}

/// Returns a program that returns three bits of the value from `shift` on: the length of a frame
/// can show so few.
pub(crate) fn three_bits(source: &[Instruction], shift: u32) -> Program {
    let window = [
        Instruction::statement(op::ALU | op::RSH | op::K, shift),
        Instruction::statement(op::ALU | op::AND | op::K, 7),
    ];
    whole(&[source, &window].concat())
}

/// Number of [`sources`] that are metadata; they come first.
pub(crate) const FACT_COUNT: usize = FACTS.len();

/// Returns all sources of a value in A.
pub(crate) fn sources() -> Vec<Vec<Instruction>> {
    let mut sources = Vec::new();
    sources.extend(FACTS.map(|fact| vec![Instruction::ancillary(fact)]));
    loads(&mut sources);
    indirect_loads(&mut sources);
    arithmetic(&mut sources);
    kept_values(&mut sources);
    sources
}

fn loads(sources: &mut Vec<Vec<Instruction>>) {
    let near = 0..22;
    let far = [36, 59, 60, 200, 1500];
    let from_headers = [op::SKF_NET_OFF, op::SKF_NET_OFF + 7, op::SKF_LL_OFF, op::SKF_LL_OFF + 11];
    let offsets = near.chain(far).chain(from_headers.map(|offset| offset as u32));
    for k in offsets {
        sources.extend(SIZES.map(|size| vec![Instruction::statement(op::LD | op::ABS | size, k)]));
    }
    sources.push(vec![Instruction::statement(op::LD | op::LEN, 0)]);
}

fn indirect_loads(sources: &mut Vec<Vec<Instruction>>) {
    for index in INDICES {
        for k in [0, 1, 6, 7, 8, 9, 11, 12, 13, 40, op::SKF_NET_OFF as u32] {
            sources.extend(SIZES.map(|size| {
                vec![
                    Instruction::statement(op::LDX | op::IMM, index),
                    Instruction::statement(op::LD | op::IND | size, k),
                ]
            }));
        }
    }
}

fn arithmetic(sources: &mut Vec<Vec<Instruction>>) {
    for (a, x) in OPERANDS {
        let operands =
            [Instruction::statement(op::LD | op::IMM, a), Instruction::statement(op::LDX | op::IMM, x)];
        let with = |operation| [&operands[..], &[operation]].concat();
        sources.push(with(Instruction::statement(op::ALU | op::NEG, 0)));
        for operation in OPERATIONS {
            sources.push(with(Instruction::statement(op::ALU | operation | op::X, 0)));
            let shifts = [op::LSH, op::RSH].contains(&operation) && x >= 32;
            let divides = [op::DIV, op::MOD].contains(&operation) && x == 0;
            if !shifts && !divides {
                sources.push(with(Instruction::statement(op::ALU | operation | op::K, x)));
            }
        }
        for condition in [op::JEQ, op::JGT, op::JGE, op::JSET] {
            for source in [op::K, op::X] {
                let jump = Instruction::jump(op::JMP | condition | source, x, 0, 1);
                let taken = Instruction::statement(op::LD | op::IMM, 0x55);
                sources.push([&operands[..], &[jump, taken]].concat());
            }
        }
    }
}

/// Returns programs for X and scratch memory, and for loads of X that must not change A.
fn kept_values(sources: &mut Vec<Vec<Instruction>>) {
    let a = Instruction::statement(op::LD | op::IMM, 0x1234_5678);
    let txa = Instruction::statement(op::MISC | op::TXA, 0);
    for load in [(op::LDX | op::LEN, 0), (op::LDX | op::B | op::MSH, 3), (op::LDX | op::B | op::MSH, 14)] {
        let load = Instruction::statement(load.0, load.1);
        sources.push(vec![a, load]);
        sources.push(vec![a, load, txa]);
    }
    for cell in 0..16 {
        let store = Instruction::statement(op::ST, cell);
        let clear = Instruction::statement(op::LD | op::IMM, 0);
        sources.push(vec![a, store, clear, Instruction::statement(op::LD | op::MEM, cell)]);
        sources.push(vec![a, store, clear, Instruction::statement(op::LDX | op::MEM, cell), txa]);
    }
    sources.push(vec![
        a,
        Instruction::statement(op::MISC | op::TAX, 0),
        Instruction::ancillary(op::SKF_AD_ALU_XOR_X),
    ]);
}
