//! Fuzzes checking and translation of classic programs: neither panics, and the translation returns
//! the interpreter's result.
//!
//! Input: a byte that selects raw instructions (most are refused) or instructions shaped into valid
//! ones; a byte with their number; 8 bytes for each; the rest is the frame.

#![no_main]

use libfuzzer_sys::fuzz_target;
use strait_filter::cbpf::{Instruction, MEMORY_CELLS, Program, opcode as op};
use strait_filter::ebpf::{Instruction as Ebpf, opcode as eop};
use strait_filter::translate::{Options, translate};
use strait_filter::{Metadata, ethernet_pkttype};

const DEVICE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Offset of the 64-bit addresses that the kernel provides as `data` and `data_end`.
const DATA: i16 = 40;
const DATA_END: i16 = 48;
/// rbpf counts instructions in 16 bits.
const INSTRUCTIONS_MAX: usize = i16::MAX as usize;

const CODES: [u16; 44] = [
    0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x0c, 0x14, 0x15, 0x16, 0x1c, 0x1d, 0x20, 0x24, 0x25,
    0x28, 0x2c, 0x2d, 0x30, 0x34, 0x35, 0x3c, 0x3d, 0x40, 0x44, 0x45, 0x48, 0x4c, 0x4d, 0x50, 0x54, 0x5c,
    0x60, 0x61, 0x64, 0x6c, 0x74, 0x7c, 0x80, 0x84, 0x87, 0xb1,
];
/// Ancillary loads that give equal results in both executions.
const ANCILLARY_OFFSETS: [u32; 11] = [0, 4, 8, 20, 24, 28, 32, 40, 44, 48, 60];

fuzz_target!(|data: &[u8]| {
    let [shaped, count, rest @ ..] = data else { return };
    let count = usize::from(*count).min(rest.len() / 8);
    let (code, frame) = rest.split_at(8 * count);
    let mut code: Vec<Instruction> = code.chunks_exact(8).map(instruction).collect();
    if shaped & 1 == 1 {
        shape(&mut code);
    }
    let Ok(program) = Program::check_interpretable(code) else {
        assert_eq!(shaped & 1, 0, "a shaped program is valid");
        return;
    };
    if program.refusal().is_some() {
        assert_eq!(shaped & 1, 0, "the kernel takes a shaped program");
        // The program must end, even with loops.
        let _ = program.run_wire(frame, &metadata(frame));
        return;
    }
    let _ = program.with_snaplen(60).and_then(|cut| cut.only_pkttype_outgoing());
    let _ = translate(&program, &Options { fragments: true, ..Options::default() });
    let Ok(code) = translate(&program, &Options { device_mac: DEVICE_MAC, ..Options::default() }) else {
        return;
    };
    let needs_helper = |i: &Ebpf| i.code == eop::JMP | eop::CALL && i.src == 0;
    if code.len() > INSTRUCTIONS_MAX || code.iter().any(needs_helper) {
        return;
    }
    assert_eq!(run(code, frame), program.run_wire(frame, &metadata(frame)));
});

fn instruction(bytes: &[u8]) -> Instruction {
    let [c0, c1, jt, jf, k @ ..] = bytes else { unreachable!("chunks have eight bytes") };
    let k = u32::from_le_bytes(k.try_into().expect("four of eight are left"));
    Instruction { code: u16::from_le_bytes([*c0, *c1]), jt: *jt, jf: *jf, k }
}

/// Makes a valid program from any instructions: known opcodes and ancillary loads, jumps inside the
/// program, a return at the end.
fn shape(code: &mut Vec<Instruction>) {
    code.splice(0..0, (0..4).map(|cell| Instruction::statement(op::ST, cell)));
    code.push(Instruction::statement(op::RET | op::A, 0));
    let len = code.len();
    for (at, i) in code.iter_mut().enumerate().take(len - 1).skip(4) {
        i.code = CODES[usize::from(i.code) % CODES.len()];
        let room = len - at - 2;
        match (i.code & op::CLASS, i.code & op::OPERATION) {
            (op::JMP, op::JA) => i.k %= room as u32 + 1,
            (op::JMP, _) => {
                i.jt = (usize::from(i.jt) % (room + 1)) as u8;
                i.jf = (usize::from(i.jf) % (room + 1)) as u8;
            }
            (op::ALU, op::LSH | op::RSH) => i.k %= 32,
            (op::ALU, op::DIV | op::MOD) => i.k = i.k.max(1),
            (op::ST | op::STX, _) => i.k %= MEMORY_CELLS as u32,
            (op::LD | op::LDX, _) if i.code & op::MODE == op::MEM => i.k %= 4,
            (op::LD, _) if i.code & op::MODE == op::ABS && i.k >= op::SKF_AD_OFF as u32 => {
                *i = Instruction::ancillary(ANCILLARY_OFFSETS[i.k as usize % ANCILLARY_OFFSETS.len()]);
            }
            _ => {}
        }
    }
}

fn metadata(frame: &[u8]) -> Metadata {
    Metadata {
        wire_len: frame.len() as u32,
        pkttype: ethernet_pkttype(frame.first_chunk().copied().unwrap_or_default(), DEVICE_MAC),
        ifindex: 3,
        queue: 6,
        hatype: 1,
        ..Metadata::default()
    }
}

fn run(mut code: Vec<Ebpf>, frame: &[u8]) -> u32 {
    let load_word = eop::LDX | eop::MEM;
    for i in code.iter_mut().filter(|i| i.code == load_word && i.src == 6) {
        let field = match i.off {
            eop::XDP_MD_DATA => DATA,
            eop::XDP_MD_DATA_END => DATA_END,
            _ => continue,
        };
        *i = Ebpf { code: load_word | eop::DW, off: field, ..*i };
    }
    let bytes: Vec<u8> = code.iter().flat_map(|i| i.to_bytes()).collect();
    let mut context = [0; 64];
    let start = frame.as_ptr() as u64;
    let mut put =
        |at: i16, bytes: &[u8]| context[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    put(eop::XDP_MD_INGRESS_IFINDEX, &3_u32.to_ne_bytes());
    put(eop::XDP_MD_RX_QUEUE_INDEX, &5_u32.to_ne_bytes());
    put(DATA, &start.to_ne_bytes());
    put(DATA_END, &(start + frame.len() as u64).to_ne_bytes());
    let vm = rbpf::EbpfVmMbuff::new(Some(&bytes)).expect("rbpf takes what the verifier takes");
    vm.execute_program(frame, &context).expect("no access outside of frame, context and stack") as u32
}
