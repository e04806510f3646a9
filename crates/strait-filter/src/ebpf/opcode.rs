//! Opcode bits, helper numbers and context offsets of eBPF, with the kernel's names.
//!
//! The values are those of linux/bpf.h and linux/bpf_common.h. The assembler composes opcodes from
//! them. There is no logic here.

#![allow(missing_docs, reason = "the names are the kernel's own and are documented there")]

pub const LD: u8 = 0x00;
pub const LDX: u8 = 0x01;
pub const ST: u8 = 0x02;
pub const STX: u8 = 0x03;
pub const ALU: u8 = 0x04;
pub const JMP: u8 = 0x05;
pub const JMP32: u8 = 0x06;
pub const ALU64: u8 = 0x07;

pub const IMM: u8 = 0x00;
pub const MEM: u8 = 0x60;
pub const ATOMIC: u8 = 0xc0;
pub const DW: u8 = 0x18;

pub const K: u8 = 0x00;
pub const X: u8 = 0x08;
pub const MOV: u8 = 0xb0;
pub const NEG: u8 = 0x80;
pub const END: u8 = 0xd0;
pub const TO_BE: u8 = 0x08;

pub const JA: u8 = 0x00;
pub const CALL: u8 = 0x80;
pub const EXIT: u8 = 0x90;

/// `BPF_ADD` and `BPF_FETCH` of an atomic operation.
pub const ATOMIC_ADD: i32 = 0x00;
pub const ATOMIC_FETCH: i32 = 0x01;

/// Source register of a 64-bit constant that is a map descriptor.
pub const PSEUDO_MAP_FD: u8 = 1;
/// Source register of a 64-bit constant that is an array map's descriptor and stands for the
/// address of its only value.
pub const PSEUDO_MAP_VALUE: u8 = 2;
/// Source register of a call to another function of the program.
pub const PSEUDO_CALL: u8 = 1;
/// Source register of a call to a kernel function.
pub const PSEUDO_KFUNC_CALL: u8 = 2;

/// Helper functions, `enum bpf_func_id`.
pub const MAP_LOOKUP_ELEM: i32 = 1;
pub const MAP_UPDATE_ELEM: i32 = 2;
pub const KTIME_GET_NS: i32 = 5;
pub const GET_PRANDOM_U32: i32 = 7;
pub const GET_SMP_PROCESSOR_ID: i32 = 8;
pub const REDIRECT: i32 = 23;
pub const SKB_LOAD_BYTES: i32 = 26;
pub const REDIRECT_MAP: i32 = 51;
pub const XDP_ADJUST_META: i32 = 54;
pub const SK_LOOKUP_TCP: i32 = 84;
pub const SK_LOOKUP_UDP: i32 = 85;
pub const SK_RELEASE: i32 = 86;
pub const GET_LISTENER_SOCK: i32 = 98;
pub const SK_STORAGE_GET: i32 = 107;
pub const PROBE_READ_KERNEL: i32 = 113;
pub const RINGBUF_OUTPUT: i32 = 130;
pub const RINGBUF_RESERVE: i32 = 131;
pub const RINGBUF_SUBMIT: i32 = 132;
pub const GET_CURRENT_TASK_BTF: i32 = 158;
pub const SOCK_FROM_FILE: i32 = 162;
pub const XDP_GET_BUFF_LEN: i32 = 188;
pub const XDP_LOAD_BYTES: i32 = 189;

/// Offsets in `struct xdp_md`.
pub const XDP_MD_DATA: i16 = 0;
pub const XDP_MD_DATA_END: i16 = 4;
pub const XDP_MD_DATA_META: i16 = 8;
pub const XDP_MD_INGRESS_IFINDEX: i16 = 12;
pub const XDP_MD_RX_QUEUE_INDEX: i16 = 16;

/// Offsets in `struct __sk_buff`.
pub const SKB_LEN: i16 = 0;
pub const SKB_PKT_TYPE: i16 = 4;
pub const SKB_MARK: i16 = 8;
pub const SKB_QUEUE_MAPPING: i16 = 12;
pub const SKB_PROTOCOL: i16 = 16;
pub const SKB_VLAN_PRESENT: i16 = 20;
pub const SKB_VLAN_TCI: i16 = 24;
pub const SKB_VLAN_PROTO: i16 = 28;
pub const SKB_IFINDEX: i16 = 40;
pub const SKB_HASH: i16 = 68;
pub const SKB_DATA: i16 = 76;
pub const SKB_DATA_END: i16 = 80;
pub const SKB_SK: i16 = 168;

/// Offsets in `struct bpf_sock`, and in `struct bpf_sock_addr`.
pub const SOCK_TYPE: i16 = 8;
pub const SOCK_SRC_IP4: i16 = 24;
pub const SOCK_SRC_IP6: i16 = 28;
pub const SOCK_ADDR_TYPE: i16 = 32;
pub const SOCK_ADDR_SK: i16 = 64;

/// Result of a classifier that runs the next program, and of one that drops the packet (`TCX_NEXT`,
/// `TC_ACT_SHOT`).
pub const TCX_NEXT: i32 = -1;
pub const TC_ACT_SHOT: i32 = 2;

/// Network namespace of a socket lookup: that of the packet's interface.
pub const CURRENT_NETNS: i32 = -1;

/// Flag of `bpf_sk_storage_get`.
pub const SK_STORAGE_CREATE: i32 = 1;

/// `SOCK_STREAM`, and the address families of sockets.
pub const SOCK_STREAM: i32 = 1;
pub const AF_INET: i32 = 2;
pub const AF_INET6: i32 = 10;

/// Flag of `bpf_map_update_elem`: only for a new key.
pub const BPF_NOEXIST: i32 = 1;

/// Flags of `bpf_ringbuf_output` and `bpf_ringbuf_submit`.
pub const RB_NO_WAKEUP: i32 = 1 << 0;
pub const RB_FORCE_WAKEUP: i32 = 1 << 1;

/// `enum xdp_action`.
pub const XDP_DROP: i32 = 1;
pub const XDP_PASS: i32 = 2;
pub const XDP_TX: i32 = 3;
pub const XDP_REDIRECT: i32 = 4;
