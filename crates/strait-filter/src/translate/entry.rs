//! Entry of a translated filter: detects the VLAN tag and saves the required parts of the header.
//!
//! It has the effect of `__netif_receive_skb_core` and `skb_vlan_untag` before a packet socket sees
//! a frame, without changes to the frame. Only [`Filter::emit`] calls it.

use super::filter::Filter;
use super::layout::{DEVICE_TAG, HEADER, RESULTS, check_bounds};
use crate::ebpf::{
    Assembler, Condition, Label, Operation,
    Register::{R0, R1, R2, R3, R4, R6, R7, R8, R9, R10},
    Size, opcode as op,
};
use crate::interpret::{ETHERNET_HEADER_LEN, ETHERTYPE_OFFSET, TAG_LEN, TAG_TYPES, TAGGED_LEN_MIN};

const TYPE: i16 = ETHERTYPE_OFFSET as i16;
const AFTER_TYPE: i16 = ETHERNET_HEADER_LEN as i16;
const AFTER_TAG: i16 = (ETHERTYPE_OFFSET + TAG_LEN) as i16;

/// Bytes of the header that are copied to the stack, without the tag.
const HEADER_BYTES: usize = 16;

impl Filter<'_> {
    /// Looks for a tag: jumps to `tagged`, falls through to `untagged`, or jumps to `unmatched` for
    /// a frame that the kernel would drop. Afterwards R1 is the start of the frame, with its header
    /// in range. If the program reads fragments the header is on the stack instead, and R9 is its
    /// length.
    pub(super) fn emit_entry(&self, asm: &mut Assembler, untagged: Label, tagged: Label, unmatched: Label) {
        self.emit_device_tag(asm);
        asm.load(Size::W, R8, R6, op::XDP_MD_DATA_END);
        asm.load(Size::W, R1, R6, op::XDP_MD_DATA);
        let (base, off) = if self.options.fragments {
            emit_header_of_fragments(asm, unmatched);
            (R10, HEADER)
        } else {
            check_bounds(asm, R1, ETHERNET_HEADER_LEN, R8, unmatched);
            (R1, 0)
        };
        if self.options.functions.rx_vlan_tag.is_some() {
            // The kernel removes one tag, and here the device has already removed it.
            asm.jump_if(Condition::NotEqual, R7, 0, untagged);
        }
        asm.load(Size::H, R3, base, off + TYPE);
        for tag in TAG_TYPES {
            asm.jump_if(Condition::Equal, R3, i32::from(tag.to_be()), tagged);
        }
    }

    /// R7 = the tag that the device removed, or 0 if there is none or the driver cannot report it.
    fn emit_device_tag(&self, asm: &mut Assembler) {
        asm.mov(R7, 0);
        let Some(function) = self.options.functions.rx_vlan_tag else { return };
        let none = asm.label();
        asm.store(Size::W, R10, RESULTS, 0);
        asm.mov(R1, R6);
        asm.mov(R2, R10);
        asm.alu(Operation::Add, R2, i32::from(RESULTS));
        asm.mov(R3, R10);
        asm.alu(Operation::Add, R3, i32::from(RESULTS) + 2);
        asm.call_kernel(function);
        asm.jump_if(Condition::NotEqual, R0, 0, none);
        asm.load(Size::H, R7, R10, RESULTS);
        asm.swap_big_endian(R7, 16);
        asm.alu(Operation::Lsh, R7, 16);
        asm.load(Size::H, R1, R10, RESULTS + 2);
        asm.alu(Operation::Or, R7, R1);
        asm.bind(none);
        asm.store(Size::W, R10, DEVICE_TAG, R7);
    }

    /// Copies the header to the stack if the program loads ancillary values that depend on it.
    pub(super) fn emit_untagged_header(&self, asm: &mut Assembler) {
        if self.options.fragments || !self.needs.header_facts {
            return;
        }
        let (short, done) = (asm.label(), asm.label());
        check_bounds(asm, R1, HEADER_BYTES, R8, short);
        copy_words(asm, &[0, 4, 8, 12]);
        asm.jump(done);
        asm.bind(short);
        copy_words(asm, &[0, 4, 8]);
        asm.load(Size::H, R3, R1, TYPE);
        asm.store(Size::H, R10, HEADER + TYPE, R3);
        asm.store(Size::H, R10, HEADER + AFTER_TYPE, 0);
        asm.bind(done);
    }

    /// R7 = the tag. Copies the header without the tag to the stack.
    pub(super) fn emit_tagged_header(&self, asm: &mut Assembler, unmatched: Label) {
        let (base, off) = if self.options.fragments {
            asm.jump_if(Condition::Less, R9, TAGGED_LEN_MIN as i32, unmatched);
            (R10, HEADER)
        } else {
            check_bounds(asm, R1, TAGGED_LEN_MIN, R8, unmatched);
            (R1, 0)
        };
        if self.needs.vlan {
            asm.load(Size::W, R7, base, off + TYPE);
            asm.swap_big_endian(R7, 32);
        }
        if self.options.fragments || self.needs.header_facts || self.needs.header_bytes {
            if !self.options.fragments {
                copy_words(asm, &[0, 4, 8]);
            }
            asm.load(Size::W, R3, base, off + AFTER_TAG);
            asm.store(Size::W, R10, HEADER + TYPE, R3);
            // The verifier may walk loads with offsets beyond the header, so initialize the bytes
            // after it.
            asm.store(Size::Dw, R10, HEADER + HEADER_BYTES as i16, 0);
        }
    }

    /// Returns `result` for every frame with a complete header. The kernel passes no other frames
    /// to a packet socket's filter.
    pub(super) fn emit_constant(&self, asm: &mut Assembler, result: i32, matched: Label, unmatched: Label) {
        if !self.options.context.is_skb() {
            check_header(asm, unmatched);
        }
        asm.mov(R0, result);
        asm.jump(if result == 0 { unmatched } else { matched });
    }
}

/// Jumps to `unmatched` unless the frame has a complete header.
fn check_header(asm: &mut Assembler, unmatched: Label) {
    let whole = asm.label();
    asm.load(Size::W, R1, R6, op::XDP_MD_DATA);
    asm.load(Size::W, R3, R6, op::XDP_MD_DATA_END);
    asm.mov(R2, R1);
    asm.alu(Operation::Add, R2, TAGGED_LEN_MIN as i32);
    asm.jump_if(Condition::LessOrEqual, R2, R3, whole);
    check_bounds(asm, R1, ETHERNET_HEADER_LEN, R3, unmatched);
    asm.load(Size::H, R3, R1, TYPE);
    for tag in TAG_TYPES {
        asm.jump_if(Condition::Equal, R3, i32::from(tag.to_be()), unmatched);
    }
    asm.bind(whole);
}

/// Copies words of the frame at R1 to the header on the stack, at the same offsets.
fn copy_words(asm: &mut Assembler, offsets: &[i16]) {
    for &off in offsets {
        asm.load(Size::W, R3, R1, off);
        asm.store(Size::W, R10, HEADER + off, R3);
    }
}

/// Copies up to 20 bytes of the frame to the stack; R9 = their number. They may be in any of the
/// frame's buffers, because some drivers leave the first one empty. The rest of a shorter frame is
/// zeroes.
fn emit_header_of_fragments(asm: &mut Assembler, unmatched: Label) {
    let (scattered, counted, done) = (asm.label(), asm.label(), asm.label());
    check_bounds(asm, R1, TAGGED_LEN_MIN, R8, scattered);
    copy_words(asm, &[0, 4, 8, 12, 16]);
    asm.mov(R9, TAGGED_LEN_MIN as i32);
    asm.jump(done);
    asm.bind(scattered);
    asm.mov(R1, R6);
    asm.call(op::XDP_GET_BUFF_LEN);
    asm.mov(R9, R0);
    asm.jump_if(Condition::Less, R9, ETHERNET_HEADER_LEN as i32, unmatched);
    asm.jump_if(Condition::LessOrEqual, R9, TAGGED_LEN_MIN as i32, counted);
    asm.mov(R9, TAGGED_LEN_MIN as i32);
    asm.bind(counted);
    for off in [0, 4, 8, 12, 16] {
        asm.store(Size::W, R10, HEADER + off, 0);
    }
    asm.mov(R1, R6);
    asm.mov(R2, 0);
    asm.mov(R3, R10);
    asm.alu(Operation::Add, R3, i32::from(HEADER));
    asm.mov(R4, R9);
    asm.call(op::XDP_LOAD_BYTES);
    asm.jump_if(Condition::NotEqual, R0, 0, unmatched);
    asm.bind(done);
}
