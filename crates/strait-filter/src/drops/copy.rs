//! Copy of a dropped packet into the ring.
//!
//! Only the linear part of the packet is copied, from its Ethernet header if the packet has one
//! before its IP header, else from the IP header. The kernel keeps both offsets also after a layer
//! has removed its header from the data.

use super::layout::{
    CAPTURED, ETHER_TYPE, LINK, LINK_ETHERNET, LINK_RAW, Offsets, Place, Record, TIME, WIRE,
};
use super::program::{Copies, KEY, Options, STACK, count_lost};
use crate::ebpf::{
    Assembler, Condition, Label, Operation,
    Register::{R0, R1, R2, R3, R6, R8, R9, R10},
    Size, opcode as op,
};

const ETHERNET_BYTES: i32 = 14;
/// Offset of the first copied byte.
const START: i16 = STACK - 8;

/// Copies the packet in R6. Jumps to `end` if the ring is full.
pub(super) fn copy_packet(asm: &mut Assembler, copies: Copies, options: &Options, end: Label) {
    let (reserved, empty, submit) = (asm.label(), asm.label(), asm.label());
    let offsets = &options.offsets;
    asm.load_map(R1, copies.ring_fd);
    asm.mov(R2, Record::BYTES as i32 + copies.snaplen as i32);
    asm.mov(R3, 0);
    asm.call(op::RINGBUF_RESERVE);
    asm.jump_if(Condition::NotEqual, R0, 0, reserved);
    count_lost(asm, options);
    asm.jump(end);
    asm.bind(reserved);
    asm.mov(R8, R0);
    write_header(asm);
    find_start(asm, offsets, empty);
    // R9 = the bytes from the first one to the end of the linear part.
    asm.load(Size::W, R9, R6, offsets.skb_tail);
    asm.load(Size::Dw, R1, R10, START);
    asm.jump_if(Condition::LessOrEqual, R9, R1, empty);
    asm.alu(Operation::Sub, R9, R1);
    asm.load(Size::W, R1, R6, offsets.skb_data_len);
    asm.alu(Operation::Add, R1, R9);
    asm.store(Size::W, R8, WIRE, R1);
    copy_bytes(asm, offsets, copies.snaplen as i32, empty);
    asm.jump(submit);
    asm.bind(empty);
    for field in [WIRE, CAPTURED] {
        asm.store(Size::W, R8, field, 0);
    }
    asm.bind(submit);
    asm.mov(R1, R8);
    asm.mov(R2, op::RB_NO_WAKEUP);
    asm.call(op::RINGBUF_SUBMIT);
}

/// Writes the place and the time.
fn write_header(asm: &mut Assembler) {
    for at in (0..Place::BYTES as i16).step_by(8) {
        asm.load(Size::Dw, R1, R10, KEY + at);
        asm.store(Size::Dw, R8, at, R1);
    }
    asm.call(op::KTIME_GET_NS);
    asm.store(Size::Dw, R8, TIME, R0);
}

/// Stores the offset of the first byte to copy, and writes the link type. Jumps to `empty` if there
/// is none.
fn find_start(asm: &mut Assembler, offsets: &Offsets, empty: Label) {
    let (raw, found) = (asm.label(), asm.label());
    asm.store(Size::W, R8, LINK, LINK_ETHERNET);
    asm.load(Size::H, R1, R6, offsets.skb_mac_header);
    asm.load(Size::H, R2, R6, offsets.skb_network_header);
    asm.mov(R3, R1);
    asm.alu(Operation::Add, R3, ETHERNET_BYTES);
    // An unset offset of the Ethernet header is 65535.
    asm.jump_if(Condition::Equal, R3, R2, found);
    asm.mov(R1, R2);
    asm.jump_if(Condition::Equal, R1, 0, empty);
    asm.load(Size::H, R2, R10, KEY + ETHER_TYPE);
    for ether_type in [0x0800, 0x86dd] {
        asm.jump_if(Condition::Equal, R2, ether_type, raw);
    }
    asm.jump(empty);
    asm.bind(raw);
    asm.store(Size::W, R8, LINK, LINK_RAW);
    asm.bind(found);
    asm.store(Size::Dw, R10, START, R1);
}

/// Copies R9 bytes, at most `snaplen`.
fn copy_bytes(asm: &mut Assembler, offsets: &Offsets, snaplen: i32, empty: Label) {
    let bounded = asm.label();
    asm.jump_if(Condition::LessOrEqual, R9, snaplen, bounded);
    asm.mov(R9, snaplen);
    asm.bind(bounded);
    asm.store(Size::W, R8, CAPTURED, R9);
    asm.load(Size::Dw, R3, R6, offsets.skb_head);
    asm.load(Size::Dw, R1, R10, START);
    asm.alu(Operation::Add, R3, R1);
    asm.mov(R1, R8);
    asm.alu(Operation::Add, R1, Record::BYTES as i32);
    asm.mov(R2, R9);
    asm.call(op::PROBE_READ_KERNEL);
    asm.jump_if(Condition::NotEqual, R0, 0, empty);
}
