//! Properties of the interface that a translation depends on.

/// Properties of the interface that the translation depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
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

impl Default for Options {
    /// Options for an Ethernet interface of unknown address and driver.
    fn default() -> Self {
        Self { fragments: false, device_mac: [0; 6], hatype: 1, functions: MetadataFunctions::default() }
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
