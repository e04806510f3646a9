//! Check that a received packet is for an address of this host.
//!
//! The lookup of a socket finds one that is bound to no address for every destination, also for a
//! packet that this host forwards or drops. So the destination must be the address to which the
//! socket is bound, or an address of the packet's interface. The kernel's list of them is read, so
//! a change counts from the next packet on.

use super::Offsets;
use crate::ebpf::{
    Assembler, Condition, Label, Operation,
    Register::{R0, R1, R2, R3, R6, R8, R9, R10},
    Size, opcode as op,
};

/// Maximum number of addresses of an interface that are compared. A packet to a later one has an
/// owner only if the socket is bound to the address.
const ADDRESSES_MAX: usize = 16;

/// Destination of a packet in the network header on the stack, whose other parts are overwritten.
pub(super) struct Destination {
    is_ipv6: bool,
    /// Offset on the stack.
    at: i16,
    /// Offsets of 8 bytes for a pointer, and of space for an address.
    pointer: i16,
    address: i16,
    /// Offset of 8 bytes for the end of the list (IPv6).
    end: i16,
}

impl Destination {
    /// Returns the destination of the IPv4 header at `header`, with 28 bytes behind it.
    pub(super) fn ipv4(header: i16) -> Self {
        Self { is_ipv6: false, at: header + 16, pointer: header + 24, address: header + 32, end: header + 40 }
    }

    /// Returns the destination of the IPv6 header at `header`, with 8 bytes behind it.
    pub(super) fn ipv6(header: i16) -> Self {
        Self { is_ipv6: true, at: header + 24, pointer: header, address: header + 8, end: header + 40 }
    }
}

/// Jumps to `foreign` if the destination of the packet in R6 is not known to be local. R9 = the
/// socket that the lookup found. Overwrites R0 to R5 and R8.
pub(super) fn check(asm: &mut Assembler, offsets: &Offsets, destination: &Destination, foreign: Label) {
    let (unbound, local) = (asm.label(), asm.label());
    let (source, words) = if destination.is_ipv6 { (op::SOCK_SRC_IP6, 4) } else { (op::SOCK_SRC_IP4, 1) };
    for at in (0..words).map(|word| 4 * word) {
        asm.load(Size::W, R1, R9, source + at);
        asm.load(Size::W, R2, R10, destination.at + at);
        asm.jump_if(Condition::NotEqual, R1, R2, unbound);
    }
    asm.jump(local);
    asm.bind(unbound);
    follow(asm, destination, R6, offsets.sk_buff_dev, foreign);
    if destination.is_ipv6 {
        of_interface_ipv6(asm, offsets, destination, local, foreign);
    } else {
        of_interface_ipv4(asm, offsets, destination, local, foreign);
    }
    asm.jump(foreign);
    asm.bind(local);
}

/// Jumps to `local` if the interface in R8 has the address.
fn of_interface_ipv4(
    asm: &mut Assembler,
    offsets: &Offsets,
    destination: &Destination,
    local: Label,
    foreign: Label,
) {
    follow(asm, destination, R8, offsets.net_device_ip_ptr, foreign);
    follow(asm, destination, R8, offsets.in_device_ifa_list, foreign);
    for _ in 0..ADDRESSES_MAX {
        read(asm, destination.address, 4, R8, offsets.in_ifaddr_ifa_local, foreign);
        asm.load(Size::W, R1, R10, destination.address);
        asm.load(Size::W, R2, R10, destination.at);
        asm.jump_if(Condition::Equal, R1, R2, local);
        follow(asm, destination, R8, offsets.in_ifaddr_ifa_next, foreign);
    }
}

/// Jumps to `local` if the interface in R8 has the address. The list ends at its head.
fn of_interface_ipv6(
    asm: &mut Assembler,
    offsets: &Offsets,
    destination: &Destination,
    local: Label,
    foreign: Label,
) {
    follow(asm, destination, R8, offsets.net_device_ip6_ptr, foreign);
    asm.mov(R1, R8);
    asm.alu(Operation::Add, R1, i32::from(offsets.inet6_dev_addr_list));
    asm.store(Size::Dw, R10, destination.end, R1);
    follow(asm, destination, R8, offsets.inet6_dev_addr_list, foreign);
    let address = offsets.inet6_ifaddr_addr - offsets.inet6_ifaddr_if_list;
    for _ in 0..ADDRESSES_MAX {
        let other = asm.label();
        asm.load(Size::Dw, R1, R10, destination.end);
        asm.jump_if(Condition::Equal, R1, R8, foreign);
        read(asm, destination.address, 16, R8, address, foreign);
        for at in [0, 8] {
            asm.load(Size::Dw, R1, R10, destination.address + at);
            asm.load(Size::Dw, R2, R10, destination.at + at);
            asm.jump_if(Condition::NotEqual, R1, R2, other);
        }
        asm.jump(local);
        asm.bind(other);
        follow(asm, destination, R8, 0, foreign);
    }
}

/// R8 = the pointer at `offset` of the structure in `from`. Jumps to `none` if it is null.
fn follow(
    asm: &mut Assembler,
    destination: &Destination,
    from: crate::ebpf::Register,
    offset: i16,
    none: Label,
) {
    read(asm, destination.pointer, 8, from, offset, none);
    asm.load(Size::Dw, R8, R10, destination.pointer);
    asm.jump_if(Condition::Equal, R8, 0, none);
}

/// Reads `bytes` of kernel memory to the stack at `to`.
fn read(asm: &mut Assembler, to: i16, bytes: i32, from: crate::ebpf::Register, offset: i16, failed: Label) {
    asm.mov(R3, from);
    asm.alu(Operation::Add, R3, i32::from(offset));
    asm.mov(R1, R10);
    asm.alu(Operation::Add, R1, i32::from(to));
    asm.mov(R2, bytes);
    asm.call(op::PROBE_READ_KERNEL);
    asm.jump_if(Condition::NotEqual, R0, 0, failed);
}
