//! The program's decision and its counts.
//!
//! Registers: R6 = the packet, R7 = the arguments of the tracepoint.

use super::copy;
use super::layout::{
    ETHER_TYPE, ETHER_TYPES, IFINDEX, IP_PROTOCOL, IP_PROTOCOLS, LOCATION, LOST, NAMESPACE, Offsets, PAD,
    Place, REASON, UNCOUNTED,
};
use crate::ebpf::{
    Assembler, Condition, Instruction, Label, Operation,
    Register::{R0, R1, R2, R3, R4, R6, R7, R10},
    Size, opcode as op,
};
use crate::error::Error;

/// Offsets of the tracepoint's arguments.
const PACKET: i16 = 0;
const DROPPED_AT: i16 = 8;
const DROPPED_FOR: i16 = 16;
const RECEIVER: i16 = 24;

/// Types of packets in Ethernet, and the offsets of the protocol in their headers.
const IPV4: (i32, i32) = (0x0800, 9);
const IPV6: (i32, i32) = (0x86dd, 6);

/// The place, on the stack.
pub(super) const KEY: i16 = -(Place::BYTES as i16);
/// A new counter.
const VALUE: i16 = KEY - 8;
/// Below are the slots of [`copy`].
pub(super) const STACK: i16 = VALUE;

/// Options of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Descriptor of the hash from [`Place`] to 64 bits.
    pub counts_fd: i32,
    /// Descriptor of the array of one value of [`STATE_BYTES`](super::STATE_BYTES).
    pub state_fd: i32,
    /// Offsets in the running kernel.
    pub offsets: Offsets,
    /// Reason of packets that are freed after their use (`SKB_CONSUMED`), if the kernel has it.
    pub consumed: Option<u32>,
    /// First address and end of `skb_release_data`, where members of a packet are freed. The packet
    /// itself is counted, so they are not.
    pub members: Option<(u64, u64)>,
    /// True if the tracepoint has the receiving socket (Linux 6.11).
    pub has_receiver: bool,
    /// Count only packets of this namespace, and without `ifindex` those of no known one.
    pub namespace: Option<u32>,
    /// Count only packets of the interface with this index in `namespace`.
    pub ifindex: Option<u32>,
    /// Copy packets.
    pub copies: Option<Copies>,
}

/// Copies of dropped packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// Descriptor of the ring buffer.
    pub ring_fd: i32,
    /// Maximum number of copied bytes of a packet.
    pub snaplen: u32,
}

/// Returns the program.
///
/// # Errors
/// Those of the assembler.
pub fn program(options: &Options) -> Result<Vec<Instruction>, Error> {
    let mut asm = Assembler::new();
    let end = asm.label();
    asm.mov(R7, R1);
    asm.load(Size::Dw, R6, R7, PACKET);
    asm.load(Size::W, R1, R7, DROPPED_FOR);
    if let Some(consumed) = options.consumed {
        asm.jump_if(Condition::Equal, R1, consumed as i32, end);
    }
    asm.store(Size::W, R10, KEY + REASON, R1);
    asm.load(Size::Dw, R1, R7, DROPPED_AT);
    if let Some(members) = options.members {
        skip_members(&mut asm, members, end);
    }
    asm.store(Size::Dw, R10, KEY + LOCATION, R1);
    find_interface(&mut asm, options);
    select(&mut asm, options, end);
    find_protocol(&mut asm, &options.offsets);
    count(&mut asm, options);
    if let Some(copies) = options.copies {
        copy::copy_packet(&mut asm, copies, options, end);
    }
    asm.bind(end);
    asm.mov(R0, 0);
    asm.exit();
    asm.finish()
}

/// Jumps to `end` if the location in R1 is between both addresses.
fn skip_members(asm: &mut Assembler, (start, after): (u64, u64), end: Label) {
    let other = asm.label();
    asm.load_constant(R2, start);
    asm.jump_if(Condition::Less, R1, R2, other);
    asm.load_constant(R2, after);
    asm.jump_if(Condition::Less, R1, R2, end);
    asm.bind(other);
}

/// Stores the interface and the namespace.
fn find_interface(asm: &mut Assembler, options: &Options) {
    let offsets = &options.offsets;
    let (no_receiver, no_device, unknown, found) = (asm.label(), asm.label(), asm.label(), asm.label());
    if options.has_receiver {
        asm.load(Size::Dw, R1, R7, RECEIVER);
        asm.jump_if(Condition::Equal, R1, 0, no_receiver);
        store_namespace(asm, offsets, offsets.sock_net);
        asm.load(Size::W, R1, R6, offsets.skb_iif);
        asm.jump(found);
    }
    asm.bind(no_receiver);
    asm.load(Size::Dw, R1, R6, offsets.skb_dev);
    only_pointers(asm, no_device);
    asm.load(Size::W, R2, R1, offsets.device_ifindex);
    asm.store(Size::W, R10, KEY + IFINDEX, R2);
    store_namespace(asm, offsets, offsets.device_net);
    asm.load(Size::W, R1, R10, KEY + IFINDEX);
    asm.jump(found);
    asm.bind(no_device);
    asm.load(Size::Dw, R1, R6, offsets.skb_sk);
    asm.store(Size::W, R10, KEY + NAMESPACE, 0);
    only_pointers(asm, unknown);
    store_namespace(asm, offsets, offsets.sock_net);
    asm.bind(unknown);
    asm.load(Size::W, R1, R6, offsets.skb_iif);
    asm.bind(found);
    asm.store(Size::W, R10, KEY + IFINDEX, R1);
}

/// Jumps to `other` unless R1 is an address of the kernel: unions of the packet have other values.
/// Such an address is negative as a signed number.
fn only_pointers(asm: &mut Assembler, other: Label) {
    let pointer = asm.label();
    // The verifier requires this comparison, which the next one includes.
    asm.jump_if(Condition::Equal, R1, 0, other);
    asm.jump_if(Condition::SignedLess, R1, 0, pointer);
    asm.jump(other);
    asm.bind(pointer);
}

/// Stores the namespace to which the structure in R1 points at `member`. A load at a wrong address
/// results in 0. Each call has loads of its own, as the verifier refuses a load by pointers of
/// different types.
fn store_namespace(asm: &mut Assembler, offsets: &Offsets, member: i16) {
    asm.load(Size::Dw, R1, R1, member);
    asm.load(Size::W, R1, R1, offsets.net_ns.saturating_add(offsets.ns_inum));
    asm.store(Size::W, R10, KEY + NAMESPACE, R1);
}

/// Jumps to `end` if the packet is not selected.
fn select(asm: &mut Assembler, options: &Options, end: Label) {
    if let Some(namespace) = options.namespace {
        let unknown = asm.label();
        asm.load(Size::W, R1, R10, KEY + NAMESPACE);
        // Indices of interfaces are numbers of a namespace: without one they say nothing.
        let other = if options.ifindex.is_some() { end } else { unknown };
        asm.jump_if(Condition::Equal, R1, 0, other);
        // A comparison of 32 bits: the constant of one of 64 bits would be sign-extended.
        asm.jump32_if(Condition::NotEqual, R1, namespace as i32, end);
        asm.bind(unknown);
    }
    if let Some(ifindex) = options.ifindex {
        asm.load(Size::W, R1, R10, KEY + IFINDEX);
        asm.jump32_if(Condition::NotEqual, R1, ifindex as i32, end);
    }
}

/// Stores the type of the packet, and the protocol of an IP packet.
fn find_protocol(asm: &mut Assembler, offsets: &Offsets) {
    let (known, done) = (asm.label(), asm.label());
    asm.store(Size::H, R10, KEY + IP_PROTOCOL, 0);
    asm.load(Size::H, R1, R6, offsets.skb_protocol);
    asm.swap_big_endian(R1, 16);
    bucket(asm, ETHER_TYPES.map(i32::from), Place::OTHER_TYPE.into());
    asm.store(Size::H, R10, KEY + ETHER_TYPE, R1);
    for (ether_type, at) in [IPV4, IPV6] {
        asm.mov(R3, at);
        asm.jump_if(Condition::Equal, R1, ether_type, known);
    }
    asm.jump(done);
    asm.bind(known);
    asm.load(Size::H, R2, R6, offsets.skb_network_header);
    asm.jump_if(Condition::Equal, R2, 0, done);
    asm.alu(Operation::Add, R3, R2);
    asm.load(Size::W, R2, R6, offsets.skb_tail);
    asm.jump_if(Condition::GreaterOrEqual, R3, R2, done);
    asm.load(Size::Dw, R1, R6, offsets.skb_head);
    asm.alu(Operation::Add, R3, R1);
    asm.mov(R1, R10);
    asm.alu(Operation::Add, R1, i32::from(KEY + IP_PROTOCOL));
    asm.mov(R2, 1);
    asm.call(op::PROBE_READ_KERNEL);
    asm.load(Size::B, R1, R10, KEY + IP_PROTOCOL);
    bucket(asm, IP_PROTOCOLS.map(i32::from), Place::OTHER_PROTOCOL.into());
    asm.store(Size::B, R10, KEY + IP_PROTOCOL, R1);
    asm.bind(done);
    asm.store(Size::B, R10, KEY + PAD, 0);
}

/// R1 = `other`, unless it is one of the known numbers. Otherwise a sender could fill the hash by
/// packets with different numbers.
fn bucket<const N: usize>(asm: &mut Assembler, known: [i32; N], other: i32) {
    let is_known = asm.label();
    for number in known {
        asm.jump_if(Condition::Equal, R1, number, is_known);
    }
    asm.mov(R1, other);
    asm.bind(is_known);
}

/// Adds one to the counter of the place.
fn count(asm: &mut Assembler, options: &Options) {
    let (found, done) = (asm.label(), asm.label());
    look_up(asm, options);
    asm.jump_if(Condition::NotEqual, R0, 0, found);
    asm.store(Size::Dw, R10, VALUE, 0);
    asm.load_map(R1, options.counts_fd);
    asm.mov(R2, R10);
    asm.alu(Operation::Add, R2, i32::from(KEY));
    asm.mov(R3, R10);
    asm.alu(Operation::Add, R3, i32::from(VALUE));
    asm.mov(R4, op::BPF_NOEXIST);
    asm.call(op::MAP_UPDATE_ELEM);
    // Another CPU may have added it.
    look_up(asm, options);
    asm.jump_if(Condition::NotEqual, R0, 0, found);
    add_to_state(asm, options, UNCOUNTED);
    asm.jump(done);
    asm.bind(found);
    asm.mov(R1, 1);
    asm.atomic_add(R0, 0, R1);
    asm.bind(done);
}

/// R0 = the counter of the place, or 0.
fn look_up(asm: &mut Assembler, options: &Options) {
    asm.load_map(R1, options.counts_fd);
    asm.mov(R2, R10);
    asm.alu(Operation::Add, R2, i32::from(KEY));
    asm.call(op::MAP_LOOKUP_ELEM);
}

/// Counts a packet that has no record.
pub(super) fn count_lost(asm: &mut Assembler, options: &Options) {
    add_to_state(asm, options, LOST);
}

fn add_to_state(asm: &mut Assembler, options: &Options, at: usize) {
    asm.load_map_value(R1, options.state_fd);
    asm.mov(R2, 1);
    asm.atomic_add(R1, at as i16, R2);
}
