//! Lookup of a packet's owner in a tap program.
//!
//! A sent packet has its socket with it. So has a received one that a process on this host sent
//! into a pair of virtual interfaces: its owner is its sender. For others, the kernel looks up the
//! socket that would receive it, as it will do a moment later itself. With a selection a packet has
//! the owner that is selected, its sender or its receiver.

use super::Offsets;
use super::layout::{CGROUP, COMMAND, FLAGS, Owner, PID, SHARED};
use super::local::{self, Casts, Destination};
use crate::ebpf::{
    Assembler, Condition, Label, Operation,
    Register::{R0, R1, R2, R3, R4, R5, R6, R8, R9, R10},
    Size, opcode as op,
};
use crate::translate::Context;

/// Parts of the lookup in a tap program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup<'a> {
    /// Storage of sockets, which [`use_program`](super::use_program) writes.
    pub storage_fd: i32,
    /// Offsets in the running kernel's structures.
    pub offsets: Offsets,
    /// Identifiers in the running kernel.
    pub casts: Casts,
    /// Bytes of the link header; `None` if packets of the interface have unknown headers: their
    /// sockets are not looked up.
    pub link_header: Option<u8>,
    /// The interface's packets return to this host, so a sent packet has a receiver here.
    pub is_loopback: bool,
    /// Of a connection, look up only received packets with SYN: the reader knows the owner of the
    /// others from the packets before them. A lookup costs more than the copy of a short packet.
    pub only_syn: bool,
    /// Packets to capture; `None` for all.
    pub selection: Option<&'a Selection>,
}

/// Owners of the packets to capture. A packet without an owner is not captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The process with this identifier.
    Pid(u32),
    /// Processes with this name, padded by NUL.
    Command([u8; Owner::COMMAND_BYTES]),
    /// Processes in these cgroups.
    Cgroups(Vec<u64>),
}

/// Bytes on the stack: the network header, the ports behind it, and the process identifier.
pub(crate) const STACK_BYTES: i16 = IPV6_BYTES + 8 + 8;
const IPV4_BYTES: i16 = 20;
const IPV6_BYTES: i16 = 40;
/// Ports at the start of the headers of TCP and UDP.
const PORTS_BYTES: i32 = 4;
/// Offsets of the addresses, which the ports follow on the stack: `struct bpf_sock_tuple`.
const IPV4_ADDRESSES: i16 = 12;
const IPV6_ADDRESSES: i16 = 8;
/// Bits of the fragment offset in the second half of an IPv4 header's second word.
const FRAGMENT_OFFSET: i32 = 0x1fff;

const ETH_P_IP: i32 = 0x0800;
const ETH_P_IPV6: i32 = 0x86dd;
const TCP: i32 = 6;
/// Offset of the flags in a TCP header, and SYN among them.
const TCP_FLAGS: i32 = 13;
const TCP_SYN: i32 = 1 << 1;
const UDP: i32 = 17;
const PACKET_HOST: i32 = 0;

/// Emits the lookup for a packet in R6 and a stack below `top`. It leaves the process identifier, 0
/// if the owner is unknown, in the four bytes at `top - 8`, and preserves R6 and R7. It jumps to
/// `rejected` if the packet is not selected.
pub(crate) fn find(asm: &mut Assembler, lookup: &Lookup<'_>, context: Context, top: i16, rejected: Label) {
    let pid = top - 8;
    let (none, end) = (asm.label(), asm.label());
    asm.store(Size::Dw, R10, pid, 0);
    let unknown = if lookup.selection.is_some() { rejected } else { none };
    let receive = asm.label();
    asm.load(Size::Dw, R9, R6, op::SKB_SK);
    asm.jump_if(Condition::Equal, R9, 0, receive);
    // The packet may have a socket of another kind, such as that of tun by which it came here.
    of_socket(asm, lookup, context, pid, receive);
    asm.jump(end);
    asm.bind(receive);
    let has_receiver = context == Context::Received || lookup.is_loopback;
    match lookup.link_header.filter(|_| has_receiver) {
        Some(link_header) => {
            let header = pid - IPV6_BYTES - 8;
            of_receiver(asm, lookup, i32::from(link_header), [header, pid], unknown);
        }
        None => asm.jump(unknown),
    }
    asm.bind(none);
    asm.bind(end);
}

/// Finds the owner by the packet's socket in R9.
fn of_socket(asm: &mut Assembler, lookup: &Lookup<'_>, context: Context, pid: i16, unknown: Label) {
    let found = asm.label();
    asm.mov(R2, R9);
    read_storage(asm, lookup);
    asm.jump_if(Condition::NotEqual, R0, 0, found);
    // The socket of a connection that is not established yet has no storage: its listener has.
    asm.mov(R1, R9);
    asm.call(op::GET_LISTENER_SOCK);
    asm.jump_if(Condition::Equal, R0, 0, unknown);
    asm.mov(R2, R0);
    read_storage(asm, lookup);
    asm.jump_if(Condition::Equal, R0, 0, unknown);
    asm.bind(found);
    asm.mov(R8, R0);
    asm.load(Size::W, R1, R8, FLAGS);
    if context == Context::Received {
        asm.jump_if(Condition::AnyBitSet, R1, SHARED, unknown);
    } else {
        check_running(asm, lookup, unknown);
    }
    take(asm, lookup, pid, unknown);
}

/// Jumps to `unknown` if several processes share the socket and the owner of the storage in R8 is
/// not running: another process may have used the socket since this packet. R1 = the flags.
fn check_running(asm: &mut Assembler, lookup: &Lookup<'_>, unknown: Label) {
    let (shared, known) = (asm.label(), asm.label());
    asm.jump_if(Condition::AnyBitSet, R1, SHARED, shared);
    asm.jump(known);
    asm.bind(shared);
    asm.call(op::GET_CURRENT_TASK_BTF);
    asm.load(Size::W, R1, R0, lookup.offsets.task_tgid);
    asm.load(Size::W, R2, R8, PID);
    asm.jump_if(Condition::NotEqual, R1, R2, unknown);
    asm.bind(known);
}

/// Finds the owner of the socket that will receive the packet. The network header and the ports
/// behind it are read to the stack.
fn of_receiver(
    asm: &mut Assembler,
    lookup: &Lookup<'_>,
    link_header: i32,
    [header, pid]: [i16; 2],
    unknown: Label,
) {
    let (ipv4, has_ports, ipv6, end) = (asm.label(), asm.label(), asm.label(), asm.label());
    let scratch = pid + 4;
    if !lookup.is_loopback {
        asm.load(Size::W, R1, R6, op::SKB_PKT_TYPE);
        asm.jump_if(Condition::NotEqual, R1, PACKET_HOST, unknown);
        // The packet belongs to an interface for its VLAN, or to none.
        asm.load(Size::W, R1, R6, op::SKB_VLAN_PRESENT);
        asm.jump_if(Condition::NotEqual, R1, 0, unknown);
    }
    asm.load(Size::W, R1, R6, op::SKB_PROTOCOL);
    asm.swap_big_endian(R1, 16);
    asm.jump_if(Condition::Equal, R1, ETH_P_IP, ipv4);
    asm.jump_if(Condition::Equal, R1, ETH_P_IPV6, ipv6);
    asm.jump(unknown);
    asm.bind(ipv4);
    // Almost no header has options, so the ports are behind these bytes. A packet of TCP or UDP has
    // as many.
    read(asm, link_header, header, i32::from(IPV4_BYTES) + PORTS_BYTES, unknown);
    asm.load(Size::H, R1, R10, header + 6);
    asm.swap_big_endian(R1, 16);
    asm.jump_if(Condition::AnyBitSet, R1, FRAGMENT_OFFSET, unknown);
    asm.load(Size::B, R8, R10, header + 9);
    asm.load(Size::B, R9, R10, header);
    asm.alu(Operation::And, R9, 0xf);
    asm.alu(Operation::Lsh, R9, 2);
    asm.alu(Operation::Add, R9, link_header);
    check_syn(asm, lookup, scratch, unknown);
    asm.jump_if(Condition::Equal, R9, link_header + i32::from(IPV4_BYTES), has_ports);
    asm.mov(R2, R9);
    read_at_r2(asm, header + IPV4_BYTES, PORTS_BYTES, unknown);
    asm.bind(has_ports);
    look_up(asm, [header + IPV4_ADDRESSES, IPV4_BYTES - IPV4_ADDRESSES + 4], unknown);
    receiver(asm, lookup, &Destination::ipv4(header), pid, unknown);
    asm.jump(end);
    asm.bind(ipv6);
    read(asm, link_header, header, i32::from(IPV6_BYTES) + PORTS_BYTES, unknown);
    asm.load(Size::B, R8, R10, header + 6);
    asm.mov(R9, link_header + i32::from(IPV6_BYTES));
    check_syn(asm, lookup, scratch, unknown);
    look_up(asm, [header + IPV6_ADDRESSES, IPV6_BYTES - IPV6_ADDRESSES + 4], unknown);
    receiver(asm, lookup, &Destination::ipv6(header), pid, unknown);
    asm.bind(end);
}

/// Jumps to `unknown` for a packet of TCP without SYN, if those are not looked up. R8 = the
/// protocol, R9 = the offset of its header. `scratch` is a byte on the stack.
fn check_syn(asm: &mut Assembler, lookup: &Lookup<'_>, scratch: i16, unknown: Label) {
    if !lookup.only_syn {
        return;
    }
    let looked_up = asm.label();
    asm.jump_if(Condition::NotEqual, R8, TCP, looked_up);
    asm.mov(R2, R9);
    asm.alu(Operation::Add, R2, TCP_FLAGS);
    read_at_r2(asm, scratch, 1, unknown);
    asm.load(Size::B, R1, R10, scratch);
    asm.jump_if(Condition::AnyBitSet, R1, TCP_SYN, looked_up);
    asm.jump(unknown);
    asm.bind(looked_up);
}

/// Reads `bytes` at the offset `from` of the packet to the stack at `to`.
fn read(asm: &mut Assembler, from: i32, to: i16, bytes: i32, unknown: Label) {
    asm.mov(R2, from);
    read_at_r2(asm, to, bytes, unknown);
}

fn read_at_r2(asm: &mut Assembler, to: i16, bytes: i32, unknown: Label) {
    asm.mov(R1, R6);
    asm.mov(R3, R10);
    asm.alu(Operation::Add, R3, i32::from(to));
    asm.mov(R4, bytes);
    asm.call(op::SKB_LOAD_BYTES);
    asm.jump_if(Condition::NotEqual, R0, 0, unknown);
}

/// R9 = the socket for the protocol in R8 and the addresses on the stack, to be released.
fn look_up(asm: &mut Assembler, [addresses, bytes]: [i16; 2], unknown: Label) {
    let (udp, found) = (asm.label(), asm.label());
    let arguments = |asm: &mut Assembler| {
        asm.mov(R1, R6);
        asm.mov(R2, R10);
        asm.alu(Operation::Add, R2, i32::from(addresses));
        asm.mov(R3, i32::from(bytes));
        asm.mov(R4, op::CURRENT_NETNS);
        asm.mov(R5, 0);
    };
    asm.jump_if(Condition::Equal, R8, UDP, udp);
    asm.jump_if(Condition::NotEqual, R8, TCP, unknown);
    arguments(asm);
    asm.call(op::SK_LOOKUP_TCP);
    asm.jump(found);
    asm.bind(udp);
    arguments(asm);
    asm.call(op::SK_LOOKUP_UDP);
    asm.bind(found);
    asm.jump_if(Condition::Equal, R0, 0, unknown);
    asm.mov(R9, R0);
}

/// Takes the owner of the socket in R9 and releases the socket.
fn receiver(asm: &mut Assembler, lookup: &Lookup<'_>, destination: &Destination, pid: i16, unknown: Label) {
    let (none, end) = (asm.label(), asm.label());
    // Packets come over the loopback interface only to addresses of this host.
    if !lookup.is_loopback {
        local::check(asm, lookup, destination, none);
    }
    asm.mov(R2, R9);
    read_storage(asm, lookup);
    asm.jump_if(Condition::Equal, R0, 0, none);
    asm.mov(R8, R0);
    asm.load(Size::W, R1, R8, FLAGS);
    // Any of the processes that share the socket may receive it.
    asm.jump_if(Condition::AnyBitSet, R1, SHARED, none);
    take(asm, lookup, pid, none);
    release(asm);
    asm.jump(end);
    asm.bind(none);
    release(asm);
    asm.jump(unknown);
    asm.bind(end);
}

fn release(asm: &mut Assembler) {
    asm.mov(R1, R9);
    asm.call(op::SK_RELEASE);
}

/// R0 = the storage of the socket in R2, or 0.
fn read_storage(asm: &mut Assembler, lookup: &Lookup<'_>) {
    asm.load_map(R1, lookup.storage_fd);
    asm.mov(R3, 0);
    asm.mov(R4, 0);
    asm.call(op::SK_STORAGE_GET);
}

/// Stores the process identifier of the storage in R8 if it is selected.
fn take(asm: &mut Assembler, lookup: &Lookup<'_>, pid: i16, unselected: Label) {
    asm.load(Size::W, R1, R8, PID);
    asm.store(Size::W, R10, pid, R1);
    if lookup.selection.is_some() {
        asm.jump_if(Condition::Equal, R1, 0, unselected);
    }
    match lookup.selection {
        None => {}
        Some(Selection::Pid(selected)) => {
            asm.load_constant(R2, u64::from(*selected));
            asm.jump_if(Condition::NotEqual, R1, R2, unselected);
        }
        Some(Selection::Command(command)) => {
            let (words, _) = command.as_chunks::<8>();
            for (at, word) in (COMMAND..).step_by(8).zip(words) {
                asm.load(Size::Dw, R1, R8, at);
                asm.load_constant(R2, u64::from_ne_bytes(*word));
                asm.jump_if(Condition::NotEqual, R1, R2, unselected);
            }
        }
        Some(Selection::Cgroups(selected)) => {
            let found = asm.label();
            asm.load(Size::Dw, R1, R8, CGROUP);
            for cgroup in selected {
                asm.load_constant(R2, *cgroup);
                asm.jump_if(Condition::Equal, R1, R2, found);
            }
            asm.jump(unselected);
            asm.bind(found);
        }
    }
}
