//! Tap program: copies each frame that matches the filter once, into a ring that the reader maps,
//! and lets the frame pass.
//!
//! ```text
//!   frame -> filter -- no match ------------------------------------------------> TCX_NEXT
//!               |
//!             match -> rings of this CPU - no room --> drops += 1 --------------> TCX_NEXT
//!                        |
//!                        room -> frame, time -> publish -> wakeup requested? --> TCX_NEXT
//!                                                            |
//!                                                            yes -> ring the doorbell
//! ```
//!
//! The capture engine's `tap` path loads it for tcx ingress and egress. It never changes, drops or
//! redirects a frame, and the next program on the hook runs after it. Its rings are those of
//! [`layout`].
//!
//! The rings have one producer: softirqs do not nest, and frames are sent with softirqs disabled,
//! so programs of both hooks run one after the other on a CPU.

mod copy;
pub mod layout;
mod namespace;
#[cfg(test)]
mod tests;

use self::copy::{ADDRESSES, TAG_BYTES, copy_frame};
use self::layout::{CAPTURED, MARK, Record, Sizes, TAG, TIME, WIRE};
pub use self::namespace::Confinement;
use crate::cbpf::Program;
use crate::ebpf::{
    Assembler, Condition, Instruction, Label, Operation,
    Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10},
    Size, opcode as op,
};
use crate::error::Error;
use crate::owner::{self, Lookup};
use crate::translate::{self, Context, Filter};

/// Options of a tap program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapOptions<'a> {
    /// The interface and the hook: [`Context::Received`] or [`Context::Sent`].
    pub interface: translate::Options,
    /// Descriptor of the array of rings, one value of [`Sizes::value_bytes`] for each possible CPU.
    pub rings_fd: i32,
    /// Descriptors of the ring buffers that are the doorbells of the lanes, at least one. Lane n
    /// has the CPUs with a number of n modulo the number of lanes.
    pub doorbells: &'a [i32],
    /// Sizes of a CPU's rings.
    pub sizes: Sizes,
    /// Record the flow hash.
    pub rx_hash: bool,
    /// Record the process that owns the packet's socket, instead of the flow hash.
    pub owner: Option<Lookup<'a>>,
    /// Copy only frames of an interface in this network namespace.
    pub confinement: Option<Confinement>,
}

/// Stack slots below the filter's.
const KEY: i16 = -translate::STACK_BYTES - 8;
const STACK_TAG: i16 = KEY - 8;
const STACK_CAPTURED: i16 = STACK_TAG - 8;
const STACK_STRIDE: i16 = STACK_CAPTURED - 8;
/// Address of the position of the ring that has the record.
const STACK_PRODUCER: i16 = STACK_STRIDE - 8;
/// Entry of the doorbell.
const STACK_BELL: i16 = STACK_PRODUCER - 8;
const BELL_BYTES: i32 = 8;
/// Process identifier of the owner.
const STACK_OWNER: i16 = STACK_BELL - 8;
const _: () = assert!(owner::STACK_BYTES - STACK_BELL <= STACK_BYTES_MAX);
/// `MAX_BPF_STACK`.
const STACK_BYTES_MAX: i16 = 512;

/// Offset of the frame in a record.
const FRAME: i32 = Record::BYTES as i32;

/// Places outside the straight path of a captured frame.
#[derive(Clone, Copy)]
struct Exits {
    /// The rings are full.
    full: Label,
    /// The end of the program.
    next: Label,
}

/// Returns a program that copies the frames that match `filter`.
///
/// # Errors
/// [`Error::Untranslatable`] if the filter loads a value that a classifier cannot read, or the
/// filter's refusal.
pub fn tap_program(filter: &Program, options: &TapOptions<'_>) -> Result<Vec<Instruction>, Error> {
    let mut asm = Assembler::new();
    let matched = asm.label();
    let exits = Exits { full: asm.label(), next: asm.label() };
    asm.mov(R6, R1);
    let mut filter = Filter::new(filter, &options.interface);
    filter.emit(&mut asm, matched, exits.next)?;
    asm.bind(matched);
    limit(&mut asm, options, exits);
    if let Some(confinement) = &options.confinement {
        namespace::check(&mut asm, confinement, exits);
    }
    if let Some(lookup) = &options.owner {
        owner::find(&mut asm, lookup, options.interface.context, STACK_BELL, exits.next);
    }
    find_ring(&mut asm, options, exits);
    read_tag(&mut asm);
    reserve(&mut asm, options, exits);
    write_header(&mut asm, options);
    copy_frame(&mut asm, exits);
    stamp(&mut asm);
    publish(&mut asm, options, exits);
    asm.bind(exits.full);
    add_one(&mut asm, layout::DROPS);
    asm.bind(exits.next);
    asm.mov(R0, op::TCX_NEXT);
    asm.exit();
    filter.emit_functions(&mut asm);
    asm.finish()
}

/// R7 = the number of bytes to copy, at least 1, from the filter's result in R0.
fn limit(asm: &mut Assembler, options: &TapOptions<'_>, exits: Exits) {
    let (whole, bounded) = (asm.label(), asm.label());
    asm.alu32(Operation::Mov, R7, R0);
    asm.load(Size::W, R1, R6, op::SKB_LEN);
    asm.jump_if(Condition::LessOrEqual, R7, R1, whole);
    asm.mov(R7, R1);
    asm.bind(whole);
    asm.jump_if(Condition::LessOrEqual, R7, options.sizes.frame_bytes_max as i32, bounded);
    asm.mov(R7, options.sizes.frame_bytes_max as i32);
    asm.bind(bounded);
    asm.jump_if(Condition::Less, R7, 1, exits.next);
}

/// R8 = the rings of this CPU.
fn find_ring(asm: &mut Assembler, options: &TapOptions<'_>, exits: Exits) {
    asm.call(op::GET_SMP_PROCESSOR_ID);
    asm.store(Size::W, R10, KEY, R0);
    asm.load_map(R1, options.rings_fd);
    asm.mov(R2, R10);
    asm.alu(Operation::Add, R2, i32::from(KEY));
    asm.call(op::MAP_LOOKUP_ELEM);
    asm.jump_if(Condition::Equal, R0, 0, exits.next);
    asm.mov(R8, R0);
}

/// Stores the tag in the frame's metadata, and the number of captured bytes with it.
fn read_tag(asm: &mut Assembler) {
    let (untagged, counted) = (asm.label(), asm.label());
    asm.mov(R9, 0);
    asm.mov(R2, R7);
    asm.load(Size::W, R1, R6, op::SKB_VLAN_PRESENT);
    asm.jump_if(Condition::Equal, R1, 0, untagged);
    asm.load(Size::W, R9, R6, op::SKB_VLAN_PROTO);
    asm.swap_big_endian(R9, 16);
    asm.alu(Operation::Lsh, R9, 16);
    asm.load(Size::W, R1, R6, op::SKB_VLAN_TCI);
    asm.alu(Operation::Or, R9, R1);
    // A frame that is cut within its addresses has no place for the tag.
    asm.jump_if(Condition::Less, R7, ADDRESSES, counted);
    asm.alu(Operation::Add, R2, TAG_BYTES);
    asm.bind(untagged);
    asm.bind(counted);
    asm.store(Size::Dw, R10, STACK_TAG, R9);
    asm.store(Size::Dw, R10, STACK_CAPTURED, R2);
}

/// R9 = the record's place in a ring that has room for R2 captured bytes.
fn reserve(asm: &mut Assembler, options: &TapOptions<'_>, exits: Exits) {
    let (align, sizes) = (layout::RECORD_ALIGN as i32, &options.sizes);
    let (spilled, reserved) = (asm.label(), asm.label());
    asm.alu(Operation::Add, R2, FRAME + align - 1);
    asm.alu(Operation::And, R2, -align);
    asm.store(Size::Dw, R10, STACK_STRIDE, R2);
    // While the spill ring has frames, later ones follow there, so that they stay in order.
    asm.load(Size::Dw, R3, R8, layout::SPILL_PRODUCER as i16);
    asm.load(Size::Dw, R4, R8, layout::SPILL_CONSUMER as i16);
    asm.jump_if(Condition::NotEqual, R3, R4, spilled);
    let first = (layout::PRODUCER, layout::CONSUMER, layout::DATA);
    place_in(asm, first, sizes.ring_bytes, spilled);
    asm.jump(reserved);
    asm.bind(spilled);
    let spill = (layout::SPILL_PRODUCER, layout::SPILL_CONSUMER, sizes.spill());
    place_in(asm, spill, sizes.spill_bytes, exits.full);
    asm.bind(reserved);
    asm.store(Size::Dw, R10, STACK_PRODUCER, R1);
}

/// R9 = the place of R2 bytes in a ring, R1 = the address of its producer's position. Jumps to
/// `full` if it has no room.
fn place_in(
    asm: &mut Assembler,
    (producer, consumer, data): (usize, usize, usize),
    ring_bytes: u32,
    full: Label,
) {
    asm.load(Size::Dw, R3, R8, producer as i16);
    asm.load(Size::Dw, R4, R8, consumer as i16);
    asm.mov(R5, R3);
    asm.alu(Operation::Sub, R5, R4);
    asm.alu(Operation::Add, R5, R2);
    asm.jump_if(Condition::Greater, R5, ring_bytes as i32, full);
    asm.alu(Operation::And, R3, ring_bytes as i32 - layout::RECORD_ALIGN as i32);
    asm.mov(R9, R8);
    asm.alu(Operation::Add, R9, R3);
    asm.alu(Operation::Add, R9, data as i32);
    asm.mov(R1, R8);
    asm.alu(Operation::Add, R1, producer as i32);
}

/// Writes the header except the time.
fn write_header(asm: &mut Assembler, options: &TapOptions<'_>) {
    let untagged = asm.label();
    asm.load(Size::Dw, R1, R10, STACK_CAPTURED);
    asm.store(Size::W, R9, CAPTURED, R1);
    asm.load(Size::W, R1, R6, op::SKB_LEN);
    asm.load(Size::Dw, R2, R10, STACK_TAG);
    asm.store(Size::W, R9, TAG, R2);
    asm.jump_if(Condition::Equal, R2, 0, untagged);
    asm.alu(Operation::Add, R1, TAG_BYTES);
    asm.bind(untagged);
    if options.interface.context == Context::Sent {
        asm.alu32(Operation::Or, R1, Record::SENT as i32);
    }
    asm.store(Size::W, R9, WIRE, R1);
    if options.owner.is_some() {
        asm.load(Size::W, R1, R10, STACK_OWNER);
        asm.store(Size::W, R9, MARK, R1);
    } else if options.rx_hash {
        asm.load(Size::W, R1, R6, op::SKB_HASH);
        asm.store(Size::W, R9, MARK, R1);
    } else {
        asm.store(Size::W, R9, MARK, 0);
    }
}

/// Writes the time. This is the last part of the record, for two reasons: a later frame of another
/// CPU can overtake this one only between the clock and the publication, and the frame's stores
/// reach the cache while the clock is read, instead of while the publication waits for them.
fn stamp(asm: &mut Assembler) {
    asm.call(op::KTIME_GET_NS);
    asm.store(Size::Dw, R9, TIME, R0);
}

/// Publishes the record, and rings the doorbell if the reader requested it.
fn publish(asm: &mut Assembler, options: &TapOptions<'_>, exits: Exits) {
    add_one(asm, layout::FRAMES);
    // The atomic addition with a result is a full barrier: the record is written before it, and
    // the request is loaded after it.
    asm.load(Size::Dw, R1, R10, STACK_STRIDE);
    asm.load(Size::Dw, R2, R10, STACK_PRODUCER);
    asm.atomic_fetch_add(R2, 0, R1);
    asm.load(Size::W, R1, R8, layout::WAKEUP as i16);
    asm.jump_if(Condition::Equal, R1, 0, exits.next);
    asm.store(Size::W, R8, layout::WAKEUP as i16, 0);
    asm.store(Size::Dw, R10, STACK_BELL, 0);
    select_doorbell(asm, options.doorbells, exits);
    asm.mov(R2, R10);
    asm.alu(Operation::Add, R2, i32::from(STACK_BELL));
    asm.mov(R3, BELL_BYTES);
    asm.mov(R4, op::RB_FORCE_WAKEUP);
    asm.call(op::RINGBUF_OUTPUT);
    asm.jump(exits.next);
}

/// R1 = the doorbell of this CPU's lane.
fn select_doorbell(asm: &mut Assembler, doorbells: &[i32], exits: Exits) {
    if let [doorbell] = doorbells {
        return asm.load_map(R1, *doorbell);
    }
    let found = asm.label();
    asm.load(Size::W, R2, R10, KEY);
    asm.alu(Operation::Mod, R2, doorbells.len() as i32);
    for (lane, doorbell) in doorbells.iter().enumerate() {
        let other = asm.label();
        asm.jump_if(Condition::NotEqual, R2, lane as i32, other);
        asm.load_map(R1, *doorbell);
        asm.jump(found);
        asm.bind(other);
    }
    asm.jump(exits.next);
    asm.bind(found);
}

/// Adds one to a 64-bit field of the ring that only this CPU writes.
fn add_one(asm: &mut Assembler, field: usize) {
    asm.load(Size::Dw, R1, R8, field as i16);
    asm.alu(Operation::Add, R1, 1);
    asm.store(Size::Dw, R8, field as i16, R1);
}
