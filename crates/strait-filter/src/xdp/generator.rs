//! Traffic generator program: numbers, timestamps and checksums a frame, and redirects it to an
//! interface.
//!
//! `BPF_PROG_TEST_RUN` with live frames runs it on copies of one frame, without a system call, a
//! socket or an allocation per frame. The kernel recycles the copies with the content that the
//! program last wrote. Every varying field is therefore written in full, and checksums start from
//! sums that were computed when the program was assembled. `strait-capture` loads it for
//! `LiveGenerator`. It drops a frame only if none is due, the limit is reached, or the frame is too
//! short.

use super::Assembled;
use crate::ebpf::{
    Assembler, Condition, Operation, Register,
    Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10},
    Size, opcode as op,
};
use crate::error::Error;

/// Maximum length of a frame: larger than any MTU, and within the range of one memory access.
pub const FRAME_BYTES_MAX: usize = 16_384;

/// Size of the value in a generator's map, see [`GeneratorOptions::state_fd`].
pub const STATE_BYTES: u32 = 16;

/// Offsets of the varying fields from the start of the frame, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneratorFields {
    /// Source address (the last 32 bits of an IPv6 address).
    pub source_address: usize,
    /// Destination address (the last 32 bits of an IPv6 address).
    pub destination_address: usize,
    /// IPv4 header checksum.
    pub header_checksum: Option<usize>,
    /// Source port.
    pub source_port: usize,
    /// Destination port.
    pub destination_port: usize,
    /// Checksum of the UDP or TCP header.
    pub transport_checksum: usize,
    /// 64-bit sequence number, at an even offset of the transport header.
    pub sequence: usize,
    /// 64-bit time, at an even offset of the transport header.
    pub sent_ns: usize,
}

/// Options of a generator. Flow = sequence mod flows. The flow number's low bits are added to the
/// source address and port, the others to the destination address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneratorOptions {
    /// Descriptor of an array. Its first value is two 64-bit words in host order: the next sequence
    /// number, and the time of the last clock reading or, with a pace, of the last frame. If the
    /// time is 0 the program reads the clock. Only one run at a time may use the array.
    pub state_fd: i32,
    /// Interface to send on.
    pub ifindex: u32,
    /// Length of the frame.
    pub frame_bytes: usize,
    /// Number of flows.
    pub flows: u32,
    /// Number of low bits of the flow number.
    pub flow_low_bits: u32,
    /// Offsets of the varying fields.
    pub fields: GeneratorFields,
    /// Source and destination address of flow 0.
    pub addresses: [u32; 2],
    /// Source and destination port of flow 0.
    pub ports: [u16; 2],
    /// Folded ones' complement sum of the IPv4 header with zeroes in its varying fields.
    pub header_sum: u16,
    /// Folded ones' complement sum of pseudo header, transport header and payload, with zeroes in
    /// their varying fields.
    pub transport_sum: u16,
    /// The transport is UDP: a checksum of 0 is sent as 0xffff.
    pub udp: bool,
    /// Limit of the sequence number: frames from this number on are not sent.
    pub frames_max: u64,
    /// Schedule of the frames; without one they are sent as fast as possible.
    pub pace: Option<Pace>,
    /// Offset from `CLOCK_MONOTONIC` to the time in the frame, in nanoseconds.
    pub clock_offset_ns: i64,
}

/// Schedule of a generator: frame n is due at `start_ns` + n * `interval` / 2^[`PACE_SHIFT`].
/// Delays are caught up gradually, never in a burst: frames are at least 15/16 of the interval
/// apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time at which frame 0 is due, in nanoseconds of `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// Time between frames, in nanoseconds times 2^[`PACE_SHIFT`].
    pub interval: u64,
}

impl Pace {
    /// Returns the minimum time from one frame to the next, in nanoseconds.
    fn shortest_ns(self) -> u64 {
        (self.interval - self.interval / 16) >> PACE_SHIFT
    }
}

/// Number of fractional bits of an interval in nanoseconds.
pub const PACE_SHIFT: u32 = 10;

/// Number of frames, a power of two, with the same clock reading if there is no pace.
const FRAMES_PER_CLOCK_READING: i32 = 16;
/// Offsets of the words in the map's value.
const SEQUENCE_OFFSET: i16 = 0;
const TIME_OFFSET: i16 = 8;
/// Stack word for the key of the map.
const KEY: i16 = -4;

/// Returns the program that sends one frame for each run. It returns `XDP_REDIRECT`, or `XDP_DROP`
/// if none is due, the limit is reached, or the frame is too short.
///
/// # Errors
/// [`Error::BadTemplate`] if a field lies outside the frame, or an option is out of range.
pub fn generator_program(options: &GeneratorOptions) -> Result<Assembled, Error> {
    check(options)?;
    let mut asm = Assembler::new();
    let drop = asm.label();
    asm.mov(R6, R1);
    take_number_and_time(&mut asm, options, drop);
    asm.load(Size::W, R1, R6, op::XDP_MD_DATA);
    asm.load(Size::W, R3, R6, op::XDP_MD_DATA_END);
    asm.mov(R2, R1);
    asm.alu(Operation::Add, R2, options.frame_bytes as i32);
    asm.jump_if(Condition::Greater, R2, R3, drop);
    write_flow(&mut asm, options);
    write_payload(&mut asm, options);
    asm.mov(R1, options.ifindex as i32);
    asm.mov(R2, 0);
    asm.call(op::REDIRECT);
    asm.exit();
    asm.bind(drop);
    asm.mov(R0, op::XDP_DROP);
    asm.exit();
    Ok(Assembled { instructions: asm.finish()?, fragments: false, device_bound: false })
}

fn check(options: &GeneratorOptions) -> Result<(), Error> {
    let GeneratorOptions { frame_bytes, fields, flows, .. } = options;
    let ends = [
        fields.source_address + 4,
        fields.destination_address + 4,
        fields.header_checksum.unwrap_or(0) + 2,
        fields.source_port + 2,
        fields.destination_port + 2,
        fields.transport_checksum + 2,
        fields.sequence + 8,
        fields.sent_ns + 8,
    ];
    let bad = |cause| Err(Error::BadTemplate { cause });
    match () {
        () if *frame_bytes > FRAME_BYTES_MAX => bad("the frame is longer than 16384 bytes"),
        () if ends.iter().any(|end| end > frame_bytes) => bad("a field lies outside the frame"),
        () if *flows == 0 || *flows > i32::MAX as u32 => bad("the number of flows is not 1 to 2147483647"),
        () if options.flow_low_bits > 31 => bad("the number of low flow bits is not 0 to 31"),
        () => Ok(()),
    }
}

/// R7 = the frame's sequence number, R8 = its time. Jumps to `drop` if no frame is due or the limit
/// is reached. Clobbers R9.
fn take_number_and_time(asm: &mut Assembler, options: &GeneratorOptions, drop: crate::ebpf::Label) {
    asm.store(Size::W, R10, KEY, 0);
    asm.load_map(R1, options.state_fd);
    asm.mov(R2, R10);
    asm.alu(Operation::Add, R2, i32::from(KEY));
    asm.call(op::MAP_LOOKUP_ELEM);
    asm.jump_if(Condition::Equal, R0, 0, drop);
    asm.mov(R9, R0);
    asm.load(Size::Dw, R7, R9, SEQUENCE_OFFSET);
    asm.load_constant(R1, options.frames_max);
    asm.jump_if(Condition::GreaterOrEqual, R7, R1, drop);
    read_time(asm, options);
    if let Some(pace) = options.pace {
        asm.load_constant(R1, pace.interval);
        asm.alu(Operation::Mul, R1, R7);
        asm.alu(Operation::Rsh, R1, PACE_SHIFT as i32);
        asm.load_constant(R2, pace.start_ns);
        asm.alu(Operation::Add, R1, R2);
        asm.jump_if(Condition::Greater, R1, R8, drop);
        asm.load(Size::Dw, R1, R9, TIME_OFFSET);
        asm.load_constant(R2, pace.shortest_ns());
        asm.alu(Operation::Add, R1, R2);
        asm.jump_if(Condition::Greater, R1, R8, drop);
        asm.store(Size::Dw, R9, TIME_OFFSET, R8);
    }
    asm.mov(R1, R7);
    asm.alu(Operation::Add, R1, 1);
    asm.store(Size::Dw, R9, SEQUENCE_OFFSET, R1);
    asm.load_constant(R1, options.clock_offset_ns as u64);
    asm.alu(Operation::Add, R8, R1);
}

/// R8 = the time. Without a pace the clock is read once for [`FRAMES_PER_CLOCK_READING`] frames:
/// the kernel runs the program for a whole batch before it sends the first frame, so a reading per
/// frame would not be more precise.
fn read_time(asm: &mut Assembler, options: &GeneratorOptions) {
    let (unknown, known) = (asm.label(), asm.label());
    if options.pace.is_none() {
        asm.load(Size::Dw, R8, R9, TIME_OFFSET);
        asm.jump_if(Condition::Equal, R8, 0, unknown);
        asm.jump_if(Condition::AnyBitSet, R7, FRAMES_PER_CLOCK_READING - 1, known);
    }
    asm.bind(unknown);
    asm.call(op::KTIME_GET_NS);
    asm.mov(R8, R0);
    if options.pace.is_none() {
        asm.store(Size::Dw, R9, TIME_OFFSET, R8);
    }
    asm.bind(known);
}

/// Writes addresses, ports and the header checksum of the frame at R1. R9 = the sum of the written
/// fields, for the transport checksum.
fn write_flow(asm: &mut Assembler, options: &GeneratorOptions) {
    let fields = &options.fields;
    asm.mov(R2, R7);
    if options.flows.is_power_of_two() {
        asm.alu(Operation::And, R2, options.flows as i32 - 1);
    } else {
        asm.alu(Operation::Mod, R2, options.flows as i32);
    }
    asm.mov(R3, R2);
    asm.alu(Operation::And, R2, (1_i32 << options.flow_low_bits).wrapping_sub(1));
    asm.alu(Operation::Rsh, R3, options.flow_low_bits as i32);
    asm.mov(R9, 0);
    for (part, base, at) in [
        (R2, options.addresses[0], fields.source_address),
        (R3, options.addresses[1], fields.destination_address),
    ] {
        asm.alu32(Operation::Mov, R4, base as i32);
        asm.alu32(Operation::Add, R4, part);
        store_and_add(asm, R4, Size::W, at);
    }
    if let Some(at) = fields.header_checksum {
        asm.mov(R0, R9);
        asm.alu(Operation::Add, R0, i32::from(options.header_sum));
        store_checksum(asm, at, false);
    }
    for (part, base, at) in
        [(R2, options.ports[0], fields.source_port), (R3, options.ports[1], fields.destination_port)]
    {
        asm.alu32(Operation::Mov, R4, i32::from(base));
        asm.alu32(Operation::Add, R4, part);
        asm.alu32(Operation::And, R4, 0xffff);
        store_and_add(asm, R4, Size::H, at);
    }
}

/// Writes sequence number, time and transport checksum.
fn write_payload(asm: &mut Assembler, options: &GeneratorOptions) {
    for (register, at) in [(R7, options.fields.sequence), (R8, options.fields.sent_ns)] {
        asm.mov(R4, register);
        asm.alu(Operation::Rsh, R4, 32);
        store_and_add(asm, R4, Size::W, at);
        asm.alu32(Operation::Mov, R4, register);
        store_and_add(asm, R4, Size::W, at + 4);
    }
    asm.mov(R0, R9);
    asm.alu(Operation::Add, R0, i32::from(options.transport_sum));
    store_checksum(asm, options.fields.transport_checksum, options.udp);
}

/// Adds `value` to the sum R9, and writes it in network order.
fn store_and_add(asm: &mut Assembler, value: Register, size: Size, at: usize) {
    asm.alu(Operation::Add, R9, value);
    asm.swap_big_endian(value, size.bytes() * 8);
    asm.store(size, R1, at as i16, value);
}

/// Folds the sum R0 to 16 bits, complements it and writes it. Clobbers R5. The sum of a dozen
/// 32-bit words is below 2^36.
fn store_checksum(asm: &mut Assembler, at: usize, udp: bool) {
    // A 36-bit sum becomes 21 bits, then 17, then 16.
    for _ in 0..3 {
        asm.mov(R5, R0);
        asm.alu(Operation::Rsh, R5, 16);
        asm.alu(Operation::And, R0, 0xffff);
        asm.alu(Operation::Add, R0, R5);
    }
    asm.alu(Operation::Xor, R0, 0xffff);
    if udp {
        let not_zero = asm.label();
        asm.jump_if(Condition::NotEqual, R0, 0, not_zero);
        asm.mov(R0, 0xffff);
        asm.bind(not_zero);
    }
    asm.swap_big_endian(R0, 16);
    asm.store(Size::H, R1, at as i16, R0);
}
