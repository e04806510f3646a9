//! Capture program: filter, metadata, redirect.
//!
//! ```text
//!   frame -> filter -- no match --> count passed ---------------> XDP_PASS, frame unchanged
//!               |
//!             match -> metadata before it (or count without_metadata)
//!                        -> socket of this queue? -- yes ------> XDP_REDIRECT
//!                             |
//!                             no ------------------------------> XDP_PASS, metadata removed
//! ```
//!
//! The capture engine's AF_XDP path loads it. It never changes or drops a frame. It does not count
//! redirected frames, because their socket does: a counter would cost ten instructions, and a
//! program without a filter executes 23.

use super::metadata::{HARDWARE, HASH, HEAD, SNAPLEN, TIMESTAMP, VLAN};
use super::{Assembled, Counter, Counters, Metadata, count};
use crate::cbpf::Program;
use crate::ebpf::{
    Assembler, Condition, Label, Operation,
    Register::{R0, R1, R2, R3, R6, R8, R9, R10},
    Size, opcode as op,
};
use crate::error::Error;
use crate::translate::{self, DEVICE_TAG, Filter, MetadataFunctions};

/// Options of a capture program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureOptions {
    /// The interface, including support for frames of several buffers.
    pub interface: translate::Options,
    /// Descriptor of the XSKMAP, indexed by receive queue.
    pub xskmap_fd: i32,
    /// The counters to update.
    pub counters: Counters,
    /// Write [`Metadata`].
    pub metadata: bool,
    /// Include a timestamp in the metadata, which costs tens of nanoseconds for each frame.
    pub timestamps: bool,
}

/// Stack slots below the filter's, for the fields of the metadata.
const STACK_TIME: i16 = -translate::STACK_BYTES - 8;
const STACK_HARDWARE: i16 = STACK_TIME - 8;
/// The hash, followed by its type.
const STACK_HASH: i16 = STACK_HARDWARE - 8;

/// Returns a program that captures the frames that match `filter`.
pub fn capture_program(filter: &Program, options: &CaptureOptions) -> Result<Assembled, Error> {
    let mut asm = Assembler::new();
    let (matched, unmatched) = (asm.label(), asm.label());
    asm.mov(R6, R1);
    let mut filter = Filter::new(filter, &options.interface);
    filter.emit(&mut asm, matched, unmatched)?;
    asm.bind(matched);
    if options.metadata {
        emit_metadata(&mut asm, options);
    }
    emit_redirect(&mut asm, options);
    asm.bind(unmatched);
    count(&mut asm, options.counters, Counter::Passed);
    asm.mov(R0, op::XDP_PASS);
    asm.exit();
    filter.emit_functions(&mut asm);
    let functions = options.interface.functions;
    Ok(Assembled {
        instructions: asm.finish()?,
        fragments: options.interface.fragments,
        device_bound: functions != MetadataFunctions::default(),
    })
}

/// Prepends metadata to the frame; R8 = its length, or 0 without metadata.
fn emit_metadata(asm: &mut Assembler, options: &CaptureOptions) {
    let (refused, done) = (asm.label(), asm.label());
    asm.mov(R9, R0);
    gather(asm, options);
    asm.mov(R1, R6);
    asm.mov(R2, -(Metadata::BYTES as i32));
    asm.call(op::XDP_ADJUST_META);
    asm.jump_if(Condition::NotEqual, R0, 0, refused);
    write(asm, options, refused);
    asm.mov(R8, Metadata::BYTES as i32);
    asm.jump(done);
    asm.bind(refused);
    count(asm, options.counters, Counter::WithoutMetadata);
    asm.mov(R8, 0);
    asm.bind(done);
}

/// Stores time and hash on the stack while the frame is unmodified; R8 = the metadata's first word.
fn gather(asm: &mut Assembler, options: &CaptureOptions) {
    let functions = options.interface.functions;
    asm.mov(R8, Metadata::MAGIC as i32);
    if options.timestamps {
        asm.call(op::KTIME_GET_NS);
        asm.store(Size::Dw, R10, STACK_TIME, R0);
        asm.alu(Operation::Or, R8, Metadata::TIME as i32);
    }
    if let Some(function) = functions.rx_timestamp {
        gather_hardware_time(asm, function);
    }
    if let Some(function) = functions.rx_hash {
        gather_hash(asm, function);
    }
}

fn gather_hardware_time(asm: &mut Assembler, function: i32) {
    let none = asm.label();
    asm.store(Size::Dw, R10, STACK_HARDWARE, 0);
    asm.mov(R1, R6);
    address(asm, R2, STACK_HARDWARE);
    asm.call_kernel(function);
    asm.jump_if(Condition::NotEqual, R0, 0, none);
    // A driver without a clock, such as veth, may report 0.
    asm.load(Size::Dw, R1, R10, STACK_HARDWARE);
    asm.jump_if(Condition::Equal, R1, 0, none);
    asm.alu(Operation::Or, R8, Metadata::HARDWARE_TIME as i32);
    asm.bind(none);
}

fn gather_hash(asm: &mut Assembler, function: i32) {
    let none = asm.label();
    asm.store(Size::Dw, R10, STACK_HASH, 0);
    asm.mov(R1, R6);
    address(asm, R2, STACK_HASH);
    address(asm, R3, STACK_HASH + 4);
    asm.call_kernel(function);
    asm.jump_if(Condition::NotEqual, R0, 0, none);
    asm.alu(Operation::Or, R8, Metadata::RX_HASH as i32);
    asm.bind(none);
}

/// Writes the metadata to the space that `bpf_xdp_adjust_meta` added.
fn write(asm: &mut Assembler, options: &CaptureOptions, refused: Label) {
    let functions = options.interface.functions;
    asm.load(Size::W, R1, R6, op::XDP_MD_DATA_META);
    asm.load(Size::W, R2, R6, op::XDP_MD_DATA);
    asm.mov(R3, R1);
    asm.alu(Operation::Add, R3, Metadata::BYTES as i32);
    asm.jump_if(Condition::Greater, R3, R2, refused);
    asm.store(Size::W, R1, HEAD, R8);
    asm.store(Size::W, R1, SNAPLEN, R9);
    copy(asm, Size::Dw, TIMESTAMP, options.timestamps.then_some(STACK_TIME));
    copy(asm, Size::Dw, HARDWARE, functions.rx_timestamp.map(|_| STACK_HARDWARE));
    copy(asm, Size::W, HASH, functions.rx_hash.map(|_| STACK_HASH));
    copy(asm, Size::W, VLAN, functions.rx_vlan_tag.map(|_| DEVICE_TAG));
}

/// Copies a metadata field from the stack to R1, or writes zero.
fn copy(asm: &mut Assembler, size: Size, field: i16, from: Option<i16>) {
    match from {
        Some(slot) => {
            asm.load(size, R2, R10, slot);
            asm.store(size, R1, field, R2);
        }
        None => asm.store(size, R1, field, 0),
    }
}

/// Redirects the frame to its queue's socket. Without one, removes the metadata and passes the
/// frame.
fn emit_redirect(asm: &mut Assembler, options: &CaptureOptions) {
    asm.load_map(R1, options.xskmap_fd);
    asm.load(Size::W, R2, R6, op::XDP_MD_RX_QUEUE_INDEX);
    asm.mov(R3, op::XDP_PASS);
    asm.call(op::REDIRECT_MAP);
    if options.metadata {
        let redirected = asm.label();
        asm.jump_if(Condition::Equal, R0, op::XDP_REDIRECT, redirected);
        asm.mov(R1, R6);
        asm.mov(R2, R8);
        asm.call(op::XDP_ADJUST_META);
        asm.mov(R0, op::XDP_PASS);
        asm.bind(redirected);
    }
    asm.exit();
}

/// `register` = the address of a stack slot.
fn address(asm: &mut Assembler, register: crate::ebpf::Register, slot: i16) {
    asm.mov(register, R10);
    asm.alu(Operation::Add, register, i32::from(slot));
}
