//! Check that a packet's interface is in one network namespace.
//!
//! A program stays on an interface that moves to another namespace. The process that reads its
//! rings may have no right to the packets of that one.

use super::Exits;
use crate::ebpf::{
    Assembler, Condition,
    Register::{R0, R1, R2, R6},
    Size,
};
use crate::owner::Casts;

/// Network namespace, and where a program reads that of a packet in the running kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// Number of the namespace (`SO_NETNS_COOKIE`).
    pub cookie: u64,
    /// Identifier of the function [`Confinement::FUNCTION`].
    pub to_sk_buff: i32,
    /// Offsets of [`Confinement::MEMBERS`].
    pub offsets: [i16; 3],
}

impl Confinement {
    /// Function that converts the context to `struct sk_buff` (Linux 6.2).
    pub const FUNCTION: &str = Casts::FUNCTIONS[0];
    /// Members of structures that lead to the number of a namespace.
    pub const MEMBERS: [(&str, &str); 3] =
        [("sk_buff", "dev"), ("net_device", "nd_net"), ("net", "net_cookie")];
}

/// Jumps to the end if the packet in R6 is in another namespace. Overwrites R0 to R5.
pub(super) fn check(asm: &mut Assembler, confinement: &Confinement, exits: Exits) {
    let [device, namespace, cookie] = confinement.offsets;
    asm.mov(R1, R6);
    asm.call_kernel(confinement.to_sk_buff);
    asm.load(Size::Dw, R1, R0, device);
    asm.jump_if(Condition::Equal, R1, 0, exits.next);
    asm.load(Size::Dw, R1, R1, namespace);
    asm.jump_if(Condition::Equal, R1, 0, exits.next);
    asm.load(Size::Dw, R1, R1, cookie);
    asm.load_constant(R2, confinement.cookie);
    asm.jump_if(Condition::NotEqual, R1, R2, exits.next);
}
