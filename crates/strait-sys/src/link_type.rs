//! Link types that the kernel's packets have here, in the numbers of pcap files (`LINKTYPE_*`).
//!
//! `interface`, `packet` and `libpcap` return and take them. `strait_packet::summary::link_type`
//! has those of files, too; it cannot be used below the pure crates.

/// Ethernet.
pub const ETHERNET: u32 = 1;
/// IPv4 or IPv6 without a link header.
pub const RAW: u32 = 101;
/// Linux "any" device, first form.
pub const LINUX_SLL: u32 = 113;
/// Linux "any" device, second form.
pub const LINUX_SLL2: u32 = 276;
