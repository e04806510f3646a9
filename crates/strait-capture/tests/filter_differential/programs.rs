//! Random valid classic programs of all opcodes.

use strait_filter::cbpf::{INSTRUCTIONS_MAX, Instruction, Program, opcode as op};

use super::rng::Rng;

/// Number of cells that every program fills first, so that it may load from all of them.
const CELLS: u32 = 4;

/// Instructions that a program may have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// All instructions that XDP can translate and that give equal results in two runs.
    Everything,
    /// Instructions on which libpcap's interpreter and the kernel agree: no metadata except the
    /// length, no negative offsets, no shifts by X (libpcap returns 0 from 32 on, the kernel
    /// shifts modulo 32), and no X that makes an offset wrap.
    Portable,
}

/// Returns a program of at most `len_max` instructions.
pub(crate) fn program(rng: &mut Rng, flavour: Flavour, len_max: usize) -> Program {
    let mut code = Vec::new();
    for cell in 0..CELLS {
        code.push(Instruction::statement(op::LD | op::IMM, number(rng)));
        code.push(Instruction::statement(if rng.chance(50) { op::ST } else { op::STX }, cell));
    }
    let len = code.len() + 1 + rng.below(len_max.min(INSTRUCTIONS_MAX) - code.len() - 2);
    while code.len() < len {
        let rest = len - code.len();
        code.push(instruction(rng, flavour, rest));
    }
    code.push(ret(rng));
    Program::check(code).expect("the generator keeps the rules")
}

fn instruction(rng: &mut Rng, flavour: Flavour, rest: usize) -> Instruction {
    match rng.below(100) {
        0..=23 => absolute(rng, flavour),
        24..=27 if flavour == Flavour::Portable => {
            Instruction::statement(op::LDX | op::IMM, rng.below(64) as u32)
        }
        24..=27 => Instruction::statement(op::MISC | op::TAX, 0),
        28..=37 => Instruction::statement(op::LD | op::IND | size(rng), offset(rng, flavour)),
        38..=43 => Instruction::statement(op::LDX | op::B | op::MSH, offset(rng, flavour)),
        44..=47 => Instruction::statement(rng.pick(&[op::LD, op::LDX]) | op::LEN, 0),
        48..=50 => Instruction::statement(op::LD | op::MEM, rng.below(CELLS as usize) as u32),
        51..=53 => Instruction::statement(op::ST, rng.below(CELLS as usize) as u32),
        54..=55 => Instruction::statement(op::MISC | op::TXA, 0),
        56..=57 => Instruction::statement(op::LD | op::IMM, number(rng)),
        58..=71 => arithmetic(rng, flavour),
        72..=75 if rest > 1 => Instruction::statement(op::JMP | op::JA, rng.below(rest.min(6)) as u32),
        76..=94 => conditional(rng, rest),
        95..=97 => ret(rng),
        _ if flavour == Flavour::Portable => Instruction::statement(op::LDX | op::IMM, rng.below(64) as u32),
        98 => Instruction::statement(rng.pick(&[op::MISC | op::TAX, op::STX]), 0),
        _ => Instruction::statement(rng.pick(&[op::LDX | op::MEM, op::LDX | op::IMM]), rng.below(4) as u32),
    }
}

fn absolute(rng: &mut Rng, flavour: Flavour) -> Instruction {
    const FACTS: [u32; 12] = [
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
        op::SKF_AD_PROTOCOL,
    ];
    if flavour == Flavour::Everything && rng.chance(30) {
        return Instruction::ancillary(rng.pick(&FACTS));
    }
    Instruction::statement(op::LD | op::ABS | size(rng), offset(rng, flavour))
}

fn size(rng: &mut Rng) -> u16 {
    rng.pick(&[op::W, op::H, op::B])
}

/// Returns an offset, mostly in the headers and around the tag, sometimes beyond any frame,
/// sometimes from a header.
fn offset(rng: &mut Rng, flavour: Flavour) -> u32 {
    let from_header = |base: i32, by: usize| (base + by as i32) as u32;
    match rng.below(40) {
        0..=9 => 8 + rng.below(12) as u32,
        10..=33 => rng.below(56) as u32,
        34..=36 => rng.below(4000) as u32,
        37 => rng.pick(&[0x7ffe, 0x7fff, 0x8000, 0xfffb, 0xffff, 0x1_0000, 0x7fff_ffff]),
        _ if flavour == Flavour::Portable => rng.below(40) as u32,
        38 => from_header(op::SKF_NET_OFF, rng.below(40)),
        _ => from_header(op::SKF_LL_OFF, rng.below(40)),
    }
}

fn number(rng: &mut Rng) -> u32 {
    match rng.below(6) {
        0 => rng.next() as u32,
        1 => rng.pick(&[0, 1, 4, 0x800, 0x8100, 0x86dd, 0x7fff_ffff, 0x8000_0000, u32::MAX]),
        2 => rng.below(0x1_0000) as u32,
        _ => rng.below(256) as u32,
    }
}

fn arithmetic(rng: &mut Rng, flavour: Flavour) -> Instruction {
    let operation = rng.pick(&[
        op::ADD,
        op::SUB,
        op::MUL,
        op::DIV,
        op::OR,
        op::AND,
        op::LSH,
        op::RSH,
        op::NEG,
        op::MOD,
        op::XOR,
    ]);
    let shifts = [op::LSH, op::RSH].contains(&operation);
    let by_x = rng.chance(40) && !(shifts && flavour == Flavour::Portable);
    match operation {
        op::NEG => Instruction::statement(op::ALU | op::NEG, 0),
        _ if by_x => Instruction::statement(op::ALU | operation | op::X, 0),
        _ if shifts => Instruction::statement(op::ALU | operation | op::K, rng.below(32) as u32),
        op::DIV | op::MOD => Instruction::statement(op::ALU | operation | op::K, number(rng).max(1)),
        _ => Instruction::statement(op::ALU | operation | op::K, number(rng)),
    }
}

fn conditional(rng: &mut Rng, rest: usize) -> Instruction {
    let operation = rng.pick(&[op::JEQ, op::JGT, op::JGE, op::JSET]);
    let source = if rng.chance(20) { op::X } else { op::K };
    let reach = rest.min(if rng.chance(5) { 256 } else { 5 });
    let (jt, jf) = (rng.below(reach) as u8, rng.below(reach) as u8);
    Instruction::jump(op::JMP | operation | source, number(rng), jt, jf)
}

fn ret(rng: &mut Rng) -> Instruction {
    if rng.chance(35) {
        return Instruction::statement(op::RET | op::A, 0);
    }
    let keep = rng.pick(&[0, 1, 60, 96, 65_535, 262_144, u32::MAX]);
    Instruction::statement(op::RET | op::K, keep)
}

/// Returns programs of `BPF_MAXINSNS` instructions: all loads, all branches, the longest jump.
pub(crate) fn extremes(rng: &mut Rng) -> Vec<(&'static str, Program)> {
    let last = INSTRUCTIONS_MAX - 1;
    let filled = |fill: &mut dyn FnMut(usize) -> Instruction| {
        let mut code: Vec<_> = (0..last).map(fill).collect();
        code.push(Instruction::statement(op::RET | op::K, 96));
        Program::check(code).expect("every fill keeps the rules")
    };
    let at = |at: usize| (at % 50) as u32;
    let branch = |at: usize, last: usize| {
        let reach = (last - at).min(256);
        Instruction::jump(
            op::JMP | op::JGT | op::K,
            at as u32,
            (at * 7 % reach) as u8,
            (at * 13 % reach) as u8,
        )
    };
    let load = |i: usize| Instruction::statement(op::LD | op::W | op::ABS, at(i));
    let indirect = |i: usize| Instruction::statement(op::LD | op::W | op::IND, at(i));
    vec![
        ("constant loads", filled(&mut |i| load(i))),
        ("growing loads", filled(&mut |i| Instruction::statement(op::LD | op::B | op::ABS, (i / 16) as u32))),
        // The verifier also accepts 4095 of them, after a quarter of a minute.
        ("indirect loads", filled(&mut |i| if i % 16 == 0 { indirect(i) } else { load(i) })),
        ("header lengths", filled(&mut |i| Instruction::statement(op::LDX | op::B | op::MSH, at(i)))),
        ("branches", filled(&mut |i| branch(i, last))),
        ("loads and branches", filled(&mut |i| if i % 2 == 0 { load(i) } else { branch(i, last) })),
        (
            "a jump over everything",
            filled(&mut |i| match i {
                0 => Instruction::statement(op::JMP | op::JA, last as u32 - 1),
                i => load(i),
            }),
        ),
        (
            "jumps over everything else",
            filled(&mut |i| match i % 3 {
                0 => load(i),
                1 => Instruction::jump(op::JMP | op::JSET | op::K, 1, 0, u8::from(last - i > 1)),
                _ => Instruction::statement(op::JMP | op::JA, (last - i - 1) as u32),
            }),
        ),
        ("random", program(rng, Flavour::Everything, INSTRUCTIONS_MAX)),
    ]
}
