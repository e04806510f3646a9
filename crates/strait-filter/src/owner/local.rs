//! Check that a received packet is for an address of this host.
//!
//! The lookup of a socket finds one that is bound to no address for every destination, also for a
//! packet that this host forwards or drops. So the destination must be the address to which the
//! socket is bound, or an address of the packet's interface. The kernel's list of them is read, so
//! a change counts from the next packet on.

use super::Lookup;
use crate::ebpf::{
    Assembler, Condition, Label, Operation,
    Register::{R0, R1, R2, R6, R8, R9, R10},
    Size, opcode as op,
};

/// Maximum number of addresses of an interface that are compared. A packet to a later one has an
/// owner only if the socket is bound to the address.
const ADDRESSES_MAX: usize = 16;

/// Identifiers by which a program converts pointers: to the kernel's own structures, which it then
/// reads by single instructions instead of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Casts {
    /// Function `bpf_cast_to_kern_ctx`: from the context to `struct sk_buff` (Linux 6.2).
    pub to_sk_buff: i32,
    /// Function `bpf_rdonly_cast`: to a structure of which the identifier is given (Linux 6.2).
    pub to_structure: i32,
    /// `struct inet6_ifaddr`.
    pub inet6_ifaddr: i32,
}

impl Casts {
    /// Names of the functions.
    pub const FUNCTIONS: [&str; 2] = ["bpf_cast_to_kern_ctx", "bpf_rdonly_cast"];
    /// Name of the structure.
    pub const STRUCTURE: &str = "inet6_ifaddr";
}

/// Destination of a packet in the network header on the stack, which has 8 bytes behind it.
pub(super) struct Destination {
    is_ipv6: bool,
    /// Offset on the stack.
    at: i16,
    /// Offset of 8 bytes for the end of the list.
    end: i16,
}

impl Destination {
    /// Returns the destination of the IPv4 header at `header`.
    pub(super) fn ipv4(header: i16) -> Self {
        Self { is_ipv6: false, at: header + 16, end: header }
    }

    /// Returns the destination of the IPv6 header at `header`.
    pub(super) fn ipv6(header: i16) -> Self {
        Self { is_ipv6: true, at: header + 24, end: header }
    }
}

/// Jumps to `foreign` if the destination of the packet in R6 is not known to be local. R9 = the
/// socket that the lookup found. Overwrites R0 to R5, R8, and the start of the header.
pub(super) fn check(asm: &mut Assembler, lookup: &Lookup<'_>, destination: &Destination, foreign: Label) {
    let (unbound, local) = (asm.label(), asm.label());
    let (source, words) = if destination.is_ipv6 { (op::SOCK_SRC_IP6, 4) } else { (op::SOCK_SRC_IP4, 1) };
    for at in (0..words).map(|word| 4 * word) {
        asm.load(Size::W, R1, R9, source + at);
        asm.load(Size::W, R2, R10, destination.at + at);
        asm.jump_if(Condition::NotEqual, R1, R2, unbound);
    }
    asm.jump(local);
    asm.bind(unbound);
    asm.mov(R1, R6);
    asm.call_kernel(lookup.casts.to_sk_buff);
    asm.mov(R8, R0);
    follow(asm, lookup.offsets.sk_buff_dev, foreign);
    if destination.is_ipv6 {
        of_interface_ipv6(asm, lookup, destination, local, foreign);
    } else {
        of_interface_ipv4(asm, lookup, destination, local, foreign);
    }
    asm.jump(foreign);
    asm.bind(local);
}

/// Jumps to `local` if the interface in R8 has the address.
fn of_interface_ipv4(
    asm: &mut Assembler,
    lookup: &Lookup<'_>,
    destination: &Destination,
    local: Label,
    foreign: Label,
) {
    let offsets = &lookup.offsets;
    follow(asm, offsets.net_device_ip_ptr, foreign);
    follow(asm, offsets.in_device_ifa_list, foreign);
    asm.load(Size::W, R2, R10, destination.at);
    for _ in 0..ADDRESSES_MAX {
        asm.load(Size::W, R1, R8, offsets.in_ifaddr_ifa_local);
        asm.jump_if(Condition::Equal, R1, R2, local);
        follow(asm, offsets.in_ifaddr_ifa_next, foreign);
    }
}

/// Jumps to `local` if the interface in R8 has the address. The list ends at its head.
fn of_interface_ipv6(
    asm: &mut Assembler,
    lookup: &Lookup<'_>,
    destination: &Destination,
    local: Label,
    foreign: Label,
) {
    let offsets = &lookup.offsets;
    follow(asm, offsets.net_device_ip6_ptr, foreign);
    asm.mov(R1, R8);
    asm.alu(Operation::Add, R1, i32::from(offsets.inet6_dev_addr_list));
    asm.store(Size::Dw, R10, destination.end, R1);
    follow(asm, offsets.inet6_dev_addr_list, foreign);
    for _ in 0..ADDRESSES_MAX {
        let other = asm.label();
        asm.load(Size::Dw, R1, R10, destination.end);
        asm.jump_if(Condition::Equal, R1, R8, foreign);
        asm.mov(R1, R8);
        asm.alu(Operation::Add, R1, -i32::from(offsets.inet6_ifaddr_if_list));
        asm.mov(R2, lookup.casts.inet6_ifaddr);
        asm.call_kernel(lookup.casts.to_structure);
        for at in [0, 8] {
            asm.load(Size::Dw, R1, R0, offsets.inet6_ifaddr_addr + at);
            asm.load(Size::Dw, R2, R10, destination.at + at);
            asm.jump_if(Condition::NotEqual, R1, R2, other);
        }
        asm.jump(local);
        asm.bind(other);
        follow(asm, 0, foreign);
    }
}

/// R8 = the pointer at `offset` of the structure in R8. Jumps to `none` if it is null.
fn follow(asm: &mut Assembler, offset: i16, none: Label) {
    asm.load(Size::Dw, R8, R8, offset);
    asm.jump_if(Condition::Equal, R8, 0, none);
}
