//! Properties of the interface and of the program type that a translation depends on.

use crate::ebpf::opcode as op;

/// Properties of the interface that the translation depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Type of the program.
    pub context: Context,
    /// The program must read frames of several buffers, which a large MTU requires
    /// (`BPF_F_XDP_HAS_FRAGS`, Linux 5.18).
    pub fragments: bool,
    /// The interface's address, for the packet type.
    pub device_mac: [u8; 6],
    /// The interface's `ARPHRD_*` type.
    pub hatype: u16,
    /// The driver's functions for the NIC's metadata of a frame.
    pub functions: MetadataFunctions,
}

impl Options {
    /// Returns true if bytes of a frame may lie beyond its first buffer.
    pub(super) fn is_scattered(&self) -> bool {
        self.fragments || self.context.is_skb()
    }
}

impl Default for Options {
    /// Options for an Ethernet interface of unknown address and driver.
    fn default() -> Self {
        Self {
            context: Context::Xdp,
            fragments: false,
            device_mac: [0; 6],
            hatype: 1,
            functions: MetadataFunctions::default(),
        }
    }
}

/// Context of a program: the structure by which it reaches the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// `struct xdp_md`: the frame before the kernel has processed it.
    Xdp,
    /// `struct __sk_buff` of a received frame, as a packet socket has it.
    Received,
    /// `struct __sk_buff` of a frame that this host sends.
    Sent,
}

impl Context {
    pub(super) fn is_skb(self) -> bool {
        self != Self::Xdp
    }

    /// Returns the offset of `data` in the context.
    pub(super) fn data(self) -> i16 {
        if self.is_skb() { op::SKB_DATA } else { op::XDP_MD_DATA }
    }

    /// Returns the offset of `data_end` in the context.
    pub(super) fn data_end(self) -> i16 {
        if self.is_skb() { op::SKB_DATA_END } else { op::XDP_MD_DATA_END }
    }

    /// Returns the helper that copies bytes of a frame from any of its buffers.
    pub(super) fn load_bytes(self) -> i32 {
        if self.is_skb() { op::SKB_LOAD_BYTES } else { op::XDP_LOAD_BYTES }
    }
}

/// BTF IDs of the metadata functions in the running kernel. A program that calls one must be loaded
/// for its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetadataFunctions {
    /// `bpf_xdp_metadata_rx_timestamp`.
    pub rx_timestamp: Option<i32>,
    /// `bpf_xdp_metadata_rx_hash`.
    pub rx_hash: Option<i32>,
    /// `bpf_xdp_metadata_rx_vlan_tag`.
    pub rx_vlan_tag: Option<i32>,
}
