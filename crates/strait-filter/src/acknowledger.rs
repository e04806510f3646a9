//! Classifier program that drops TCP segments and records their sequence numbers, so that user
//! space can acknowledge them without reading a byte.
//!
//! The kernel copies zero-copy sends as soon as a packet reaches a socket on the same machine. A
//! program at tcx ingress runs before that copy. It cannot turn the packet into an acknowledgement:
//! to shorten a packet the kernel makes it linear, which is a copy. So the program drops the
//! segment and writes the fields of the acknowledgement into a map; a user-space loop sends it.
//! SYN, FIN and RST pass to a real listener, which accepts connections as usual and never sees a
//! byte.
//!
//! Benchmarks and tests load it on one end of a veth pair. It handles TCP over IPv4 without IP
//! options. It does not reorder segments: a veth pair keeps their order.

use crate::Error;
use crate::ebpf::Register::{R0, R1, R2, R3, R6, R7, R8, R9, R10};
use crate::ebpf::{Assembler, Condition, Label, Operation, Size, encode, opcode as op};

/// Number of connections, one for each last octet of the destination address: the entries of the
/// map.
pub const CONNECTIONS: u32 = 256;
/// Bytes of an entry: two words.
pub const ENTRY_BYTES: u32 = 16;
/// Index of the entry's first word. Lower half: the next sequence number to acknowledge. Upper
/// half: the sender's port. Both are in host order.
pub const NEXT_BYTE: usize = 0;
/// Index of the entry's second word. Lower half: the peer's own next sequence number. Upper half:
/// the peer's port. Both are in host order.
pub const OWN_BYTE: usize = 1;

/// Offsets in the frame: Ethernet, IPv4 without options (RFC 791), TCP (RFC 9293).
const IP: i16 = 14;
const TCP: i16 = 34;
/// The last octet of the receiver's address.
const LAST_OCTET: i16 = IP + 19;
/// Bytes of the headers that the program reads.
const HEADERS: i32 = 54;
/// A stack word for the key of the map.
const KEY: i16 = -4;

/// Returns the program as words for the kernel (`BPF_PROG_TYPE_SCHED_CLS`). `map` is the descriptor
/// of an array of [`CONNECTIONS`] entries of [`ENTRY_BYTES`].
///
/// # Errors
/// None that a caller can cause.
pub fn program(map: i32) -> Result<Vec<u64>, Error> {
    let mut asm = Assembler::new();
    let next = asm.label();
    asm.mov(R6, R1);
    asm.load(Size::W, R7, R6, op::SKB_DATA);
    asm.load(Size::W, R2, R6, op::SKB_DATA_END);
    asm.mov(R3, R7);
    asm.alu(Operation::Add, R3, HEADERS);
    asm.jump_if(Condition::Greater, R3, R2, next);
    take_segment(&mut asm, next);
    find_entry(&mut asm, map, next);
    write_entry(&mut asm);
    asm.mov(R0, op::TC_ACT_SHOT);
    asm.exit();
    asm.bind(next);
    asm.mov(R0, op::TCX_NEXT);
    asm.exit();
    Ok(encode(&asm.finish()?))
}

/// Jumps to `next` unless the frame is a TCP segment with data. R9 = the sequence number after its
/// last byte.
fn take_segment(asm: &mut Assembler, next: Label) {
    field(asm, Size::H, 12);
    asm.jump_if(Condition::NotEqual, R1, 0x0800, next);
    for (at, value) in [(IP, 0x45), (IP + 9, 6)] {
        asm.load(Size::B, R1, R7, at);
        asm.jump_if(Condition::NotEqual, R1, value, next);
    }
    // FIN, SYN and RST go to the listener.
    asm.load(Size::B, R1, R7, TCP + 13);
    asm.jump_if(Condition::AnyBitSet, R1, 0x07, next);
    // The upper half of the byte is the length of the header in 32-bit words.
    asm.load(Size::B, R8, R7, TCP + 12);
    asm.alu(Operation::Rsh, R8, 4);
    asm.alu(Operation::Lsh, R8, 2);
    asm.load(Size::W, R9, R6, op::SKB_LEN);
    asm.alu(Operation::Sub, R9, i32::from(TCP));
    asm.alu(Operation::Sub, R9, R8);
    asm.jump_if(Condition::Equal, R9, 0, next);
    field(asm, Size::W, TCP + 4);
    asm.alu32(Operation::Add, R9, R1);
}

/// R0 = the entry of the receiver's address, R8 = the sender's port.
fn find_entry(asm: &mut Assembler, map: i32, next: Label) {
    field(asm, Size::H, TCP);
    asm.mov(R8, R1);
    asm.load(Size::B, R1, R7, LAST_OCTET);
    asm.store(Size::W, R10, KEY, R1);
    asm.load_map(R1, map);
    asm.mov(R2, R10);
    asm.alu(Operation::Add, R2, i32::from(KEY));
    asm.call(op::MAP_LOOKUP_ELEM);
    asm.jump_if(Condition::Equal, R0, 0, next);
}

/// Writes both words. Each is one 64-bit store, so a reader sees either the old or the new word.
fn write_entry(asm: &mut Assembler) {
    asm.alu(Operation::Lsh, R8, 32);
    asm.alu(Operation::Or, R9, R8);
    field(asm, Size::H, TCP + 2);
    asm.mov(R8, R1);
    asm.alu(Operation::Lsh, R8, 32);
    field(asm, Size::W, TCP + 8);
    asm.alu(Operation::Or, R8, R1);
    asm.store(Size::Dw, R0, 8 * OWN_BYTE as i16, R8);
    asm.store(Size::Dw, R0, 8 * NEXT_BYTE as i16, R9);
}

/// R1 = a field of the frame, in host order.
fn field(asm: &mut Assembler, size: Size, at: i16) {
    asm.load(size, R1, R7, at);
    asm.swap_big_endian(R1, 8 * size.bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_assembles() {
        assert!(!program(3).unwrap().is_empty());
    }
}
