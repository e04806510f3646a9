//! Opcodes and ancillary offsets of classic BPF, with the names of `linux/bpf_common.h` and
//! `linux/filter.h`.
//!
//! The low three bits of an opcode are its class; the class defines the other bits. The checker,
//! the interpreter and the translator use these constants. There is no logic here.

#![allow(missing_docs, reason = "the names are the kernel's own and are documented there")]

pub const LD: u16 = 0x00;
pub const LDX: u16 = 0x01;
pub const ST: u16 = 0x02;
pub const STX: u16 = 0x03;
pub const ALU: u16 = 0x04;
pub const JMP: u16 = 0x05;
pub const RET: u16 = 0x06;
pub const MISC: u16 = 0x07;
/// Bits of the class.
pub const CLASS: u16 = 0x07;

pub const W: u16 = 0x00;
pub const H: u16 = 0x08;
pub const B: u16 = 0x10;
/// Bits of a load's size.
pub const SIZE: u16 = 0x18;

pub const IMM: u16 = 0x00;
pub const ABS: u16 = 0x20;
pub const IND: u16 = 0x40;
pub const MEM: u16 = 0x60;
pub const LEN: u16 = 0x80;
pub const MSH: u16 = 0xa0;
/// Bits of a load's mode.
pub const MODE: u16 = 0xe0;

pub const ADD: u16 = 0x00;
pub const SUB: u16 = 0x10;
pub const MUL: u16 = 0x20;
pub const DIV: u16 = 0x30;
pub const OR: u16 = 0x40;
pub const AND: u16 = 0x50;
pub const LSH: u16 = 0x60;
pub const RSH: u16 = 0x70;
pub const NEG: u16 = 0x80;
pub const MOD: u16 = 0x90;
pub const XOR: u16 = 0xa0;

pub const JA: u16 = 0x00;
pub const JEQ: u16 = 0x10;
pub const JGT: u16 = 0x20;
pub const JGE: u16 = 0x30;
pub const JSET: u16 = 0x40;
/// Bits of an ALU or jump operation.
pub const OPERATION: u16 = 0xf0;

pub const K: u16 = 0x00;
pub const X: u16 = 0x08;
pub const A: u16 = 0x10;

pub const TAX: u16 = 0x00;
pub const TXA: u16 = 0x80;

/// Offsets from here up are ancillary data of the frame instead of its bytes.
pub const SKF_AD_OFF: i32 = -0x1000;
/// Offsets from here up count from the network header.
pub const SKF_NET_OFF: i32 = -0x0010_0000;
/// Offsets from here up count from the link-layer header.
pub const SKF_LL_OFF: i32 = -0x0020_0000;

pub const SKF_AD_PROTOCOL: u32 = 0;
pub const SKF_AD_PKTTYPE: u32 = 4;
pub const SKF_AD_IFINDEX: u32 = 8;
pub const SKF_AD_NLATTR: u32 = 12;
pub const SKF_AD_NLATTR_NEST: u32 = 16;
pub const SKF_AD_MARK: u32 = 20;
pub const SKF_AD_QUEUE: u32 = 24;
pub const SKF_AD_HATYPE: u32 = 28;
pub const SKF_AD_RXHASH: u32 = 32;
pub const SKF_AD_CPU: u32 = 36;
pub const SKF_AD_ALU_XOR_X: u32 = 40;
pub const SKF_AD_VLAN_TAG: u32 = 44;
pub const SKF_AD_VLAN_TAG_PRESENT: u32 = 48;
pub const SKF_AD_PAY_OFFSET: u32 = 52;
pub const SKF_AD_RANDOM: u32 = 56;
pub const SKF_AD_VLAN_TPID: u32 = 60;

/// `PACKET_*` types of `linux/if_packet.h`, as `SKF_AD_PKTTYPE` returns them.
pub const PACKET_HOST: u32 = 0;
pub const PACKET_BROADCAST: u32 = 1;
pub const PACKET_MULTICAST: u32 = 2;
pub const PACKET_OTHERHOST: u32 = 3;
pub const PACKET_OUTGOING: u32 = 4;
