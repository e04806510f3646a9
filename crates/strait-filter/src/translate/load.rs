//! Loads of frame bytes: common ones inline, others by a function.
//!
//! An inline load is a comparison with the end of the frame and an access. A function for each size
//! and kind of frame handles the rare cases: offsets that X made negative, offsets before the VLAN
//! tag, and bytes beyond the first buffer of a frame. [`super::body`] calls this module.
//!
//! Registers: see the table in [`super`].

use super::body::Body;
use super::layout::{HEADER, OFFSET_MAX, SAVED_A, View, check_bounds};
use super::options::Options;
use crate::cbpf::opcode as cop;
use crate::ebpf::{
    Assembler, Condition, Label, Operation,
    Register::{self, R0, R1, R2, R3, R4, R5, R6, R8, R9, R10},
    Size,
};
use crate::interpret::{ETHERNET_HEADER_LEN, ETHERTYPE_OFFSET, TAG_LEN, resolve};

/// Largest offset of a memory access.
const DISPLACEMENT_MAX: usize = i16::MAX as usize;
/// Largest offset that is added to a packet pointer. Larger offsets need `bpf_xdp_load_bytes`. It
/// is one less than a power of two, so that [`bound`] is one `and`.
const VARIABLE_MAX: i32 = 0x7fff;
/// Mask for offsets into the header on the stack, which has 24 bytes. Offsets are below 12; 15 is
/// the next value of the form 2^n - 1, so that [`bound`] is one `and`, and 15 + 4 bytes is within
/// the 24.
const HEADER_MAX: i32 = 15;
/// Largest offset that is not negative as a 32-bit number.
const POSITIVE_MAX: i32 = i32::MAX;

impl Body<'_, '_, '_> {
    /// Emits: R0 = the value at the constant offset `k`.
    pub(super) fn load_absolute(&mut self, k: u32, size: Size) {
        self.load_at_constant_offset(k, size, R0);
    }

    /// Emits: R9 = 4 times the lower half of the byte at `k`.
    pub(super) fn load_header_len(&mut self, k: u32) {
        self.load_at_constant_offset(k, Size::B, R9);
        self.asm.alu32(Operation::And, R9, 0xf);
        self.asm.alu32(Operation::Lsh, R9, 2);
    }

    /// Emits: `dst` = the value at the constant offset `k`; jumps to `unmatched` if it is out of
    /// range.
    fn load_at_constant_offset(&mut self, k: u32, size: Size, dst: Register) {
        let bytes = size.bytes() as usize;
        let Some(at) = resolve(k as i32).filter(|at| self.view.on_wire(*at) + bytes <= OFFSET_MAX) else {
            self.asm.jump(self.unmatched);
            return;
        };
        if self.view.straddles(at, bytes) {
            // `dst` is R0: only loads of one byte use R9, and one byte cannot span the tag.
            self.load_straddling(at, bytes);
            return;
        }
        let (slow, next) = (self.asm.label(), self.asm.label());
        let beyond = if self.filter.options.is_scattered() { slow } else { self.unmatched };
        self.load_in_range(self.view.on_wire(at), size, dst, beyond);
        if self.filter.options.is_scattered() {
            self.asm.jump(next);
            self.asm.bind(slow);
            self.asm.mov(R2, at as i32);
            self.call_loader(size, dst);
        }
        self.asm.bind(next);
    }

    /// Emits: `dst` = the value at offset `at` of the frame's bytes; jumps to `beyond` if it is out
    /// of range. Clobbers R1 and R2.
    fn load_in_range(&mut self, at: usize, size: Size, dst: Register, beyond: Label) {
        let data = self.filter.options.context.data();
        let asm = &mut *self.asm;
        asm.load(Size::W, R1, R6, data);
        let far = at > DISPLACEMENT_MAX;
        if far {
            asm.alu(Operation::Add, R1, at as i32);
        }
        let off = if far { 0 } else { at };
        check_bounds(asm, R1, off + size.bytes() as usize, R8, beyond);
        asm.load(size, dst, R1, off as i16);
        to_host_order(asm, dst, size);
    }

    /// Emits: R0 = the bytes around the tag. They come from the header on the stack, byte by byte,
    /// because stack accesses must be aligned. Clobbers R1.
    fn load_straddling(&mut self, at: usize, bytes: usize) {
        let at = HEADER + at as i16;
        self.asm.load(Size::B, R0, R10, at);
        for off in 1..bytes as i16 {
            self.asm.load(Size::B, R1, R10, at + off);
            self.asm.alu32(Operation::Lsh, R0, 8);
            self.asm.alu32(Operation::Or, R0, R1);
        }
    }

    /// Emits: R0 = the value at offset X + k.
    pub(super) fn load_indirect(&mut self, k: u32, size: Size) {
        let bytes = size.bytes() as usize;
        let (slow, next) = (self.asm.label(), self.asm.label());
        let beyond = if self.filter.options.is_scattered() { slow } else { self.unmatched };
        // In a tagged frame, count from the tag's offset, so that offsets before it become large
        // numbers.
        let (before, skipped) = match self.view {
            View::Untagged => (0, 0),
            View::Tagged => (ETHERTYPE_OFFSET, ETHERTYPE_OFFSET + TAG_LEN),
        };
        let data = self.filter.options.context.data();
        let asm = &mut *self.asm;
        add_to_x(asm, R1, k.wrapping_sub(before as u32));
        asm.jump_if(Condition::Greater, R1, VARIABLE_MAX, slow);
        bound(asm, R1, VARIABLE_MAX);
        asm.load(Size::W, R3, R6, data);
        asm.alu(Operation::Add, R3, R1);
        check_bounds(asm, R3, skipped + bytes, R8, beyond);
        asm.load(size, R0, R3, skipped as i16);
        to_host_order(asm, R0, size);
        asm.jump(next);
        asm.bind(slow);
        add_to_x(asm, R2, k);
        self.call_loader(size, R0);
        self.asm.bind(next);
    }

    /// Emits: `dst` = the result of the function for `size` at offset R2. A is preserved unless it
    /// is the destination.
    fn call_loader(&mut self, size: Size, dst: Register) {
        if !self.asm.is_live() {
            return;
        }
        let loader = self.filter.loader(self.asm, self.view, size);
        let asm = &mut *self.asm;
        if dst != R0 {
            asm.store(Size::W, R10, SAVED_A, R0);
        }
        asm.mov(R1, R6);
        asm.mov(R3, R10);
        asm.alu(Operation::Add, R3, i32::from(HEADER));
        asm.call_function(loader);
        asm.jump_if(Condition::SignedLess, R0, 0, self.unmatched);
        if dst != R0 {
            asm.mov(dst, R0);
            asm.load(Size::W, R0, R10, SAVED_A);
        }
    }
}

/// Emits the function that loads `size` at the classic offset R2 of the frame with context R1 and
/// header R3. It returns -1 if the offset is out of range.
pub(super) fn emit_loader(asm: &mut Assembler, view: View, size: Size, options: &Options) {
    let (bad, beyond) = (asm.label(), asm.label());
    let outside = if options.is_scattered() { beyond } else { bad };
    asm.mov(R6, R1);
    resolve_at_run_time(asm, bad);
    if view == View::Tagged {
        let after_addresses = asm.label();
        asm.jump_if(Condition::GreaterOrEqual, R2, ETHERTYPE_OFFSET as i32, after_addresses);
        bound(asm, R2, HEADER_MAX);
        load_from_header(asm, size);
        asm.bind(after_addresses);
        asm.alu(Operation::Add, R2, TAG_LEN as i32);
    }
    asm.jump_if(Condition::Greater, R2, VARIABLE_MAX, outside);
    bound(asm, R2, VARIABLE_MAX);
    asm.load(Size::W, R3, R6, options.context.data());
    asm.load(Size::W, R4, R6, options.context.data_end());
    asm.alu(Operation::Add, R3, R2);
    asm.mov(R5, R3);
    asm.alu(Operation::Add, R5, size.bytes());
    asm.jump_if(Condition::Greater, R5, R4, outside);
    asm.load(size, R0, R3, 0);
    to_host_order(asm, R0, size);
    asm.exit();
    asm.bind(beyond);
    load_from_fragments(asm, size, options.context.load_bytes(), bad);
    asm.bind(bad);
    asm.mov(R0, -1);
    asm.exit();
}

/// Emits: resolves the offset R2 like `interpret::resolve`; jumps to `bad` if it has no meaning.
fn resolve_at_run_time(asm: &mut Assembler, bad: Label) {
    let (from_network, positive) = (asm.label(), asm.label());
    asm.jump_if(Condition::LessOrEqual, R2, POSITIVE_MAX, positive);
    asm.alu32(Operation::Add, R2, -cop::SKF_NET_OFF);
    asm.jump_if(Condition::LessOrEqual, R2, POSITIVE_MAX, from_network);
    asm.alu32(Operation::Add, R2, cop::SKF_NET_OFF - cop::SKF_LL_OFF);
    asm.jump_if(Condition::LessOrEqual, R2, POSITIVE_MAX, positive);
    asm.jump(bad);
    asm.bind(from_network);
    asm.alu32(Operation::Add, R2, ETHERNET_HEADER_LEN as i32);
    asm.bind(positive);
}

/// Emits: R0 = bytes of the header at R3 + R2 (R2 below 12), then exit.
fn load_from_header(asm: &mut Assembler, size: Size) {
    asm.alu(Operation::Add, R3, R2);
    asm.load(Size::B, R0, R3, 0);
    for off in 1..size.bytes() as i16 {
        asm.load(Size::B, R4, R3, off);
        asm.alu32(Operation::Lsh, R0, 8);
        asm.alu32(Operation::Or, R0, R4);
    }
    asm.exit();
}

/// Emits: R0 = bytes at R2 by the helper `load_bytes`, then exit; jumps to `bad` if it fails.
fn load_from_fragments(asm: &mut Assembler, size: Size, load_bytes: i32, bad: Label) {
    asm.store(Size::Dw, R10, -8, 0);
    asm.mov(R1, R6);
    asm.mov(R3, R10);
    asm.alu(Operation::Add, R3, -8);
    asm.mov(R4, size.bytes());
    asm.call(load_bytes);
    asm.jump_if(Condition::NotEqual, R0, 0, bad);
    asm.load(size, R0, R10, -8);
    to_host_order(asm, R0, size);
    asm.exit();
}

fn to_host_order(asm: &mut Assembler, register: Register, size: Size) {
    if size != Size::B {
        asm.swap_big_endian(register, size.bytes() * 8);
    }
}

/// Repeats the comparison before it as a mask, without effect on the value. The verifier also
/// tracks single bits, and sometimes walks an impossible path with a value beyond the comparison's
/// limit. Without the mask it refuses the accesses on that path.
fn bound(asm: &mut Assembler, register: Register, max: i32) {
    asm.alu(Operation::And, register, max);
}

/// Emits: `register` = X + k. The addition starts with k: for a copy of X, the verifier would track
/// the distance from X, and it refuses packet offsets with a distance over 2^29 whatever their
/// bounds.
fn add_to_x(asm: &mut Assembler, register: Register, k: u32) {
    if k == 0 {
        asm.alu32(Operation::Mov, register, R9);
    } else {
        asm.alu32(Operation::Mov, register, k as i32);
        asm.alu32(Operation::Add, register, R9);
    }
}
