//! Ring of a packet socket, from `packet_diag` of sock_diag(7).
//!
//! The doctor uses it to show libpcap's ring. Layouts: linux/packet_diag.h, linux/sock_diag.h.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::message::{Message, malformed, read_u32};
use super::{Netlink, Protocol, REQUEST};
use crate::{Error, Kind, Result};

/// `NETLINK_SOCK_DIAG`.
const SOCK_DIAG: u32 = 4;
/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `PACKET_SHOW_INFO | PACKET_SHOW_RING_CFG`.
const SHOW: u32 = 1 | 4;
/// `struct packet_diag_msg`: family, type, protocol, inode, cookie.
const MESSAGE_LEN: usize = 16;
/// `PACKET_DIAG_INFO` and `PACKET_DIAG_RX_RING`.
const INFO: u16 = 0;
const RX_RING: u16 = 2;

/// Packet socket as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketSocket {
    /// Version of the ring, 1 to 3; meaningless without a ring.
    pub version: u32,
    /// Receive ring, if there is one.
    pub ring: Option<PacketRing>,
}

/// Fields of `struct packet_diag_ring` that concern a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRing {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// Bytes of a frame; unused by TPACKET_V3.
    pub frame_bytes: u32,
    /// Retire timer: time for which TPACKET_V3 holds back a block that is not full.
    pub retire: Duration,
}

/// Reads the ring of `socket`, a packet socket of the calling thread's namespace.
///
/// # Errors
/// [`Kind::Refused`] if the kernel has no `packet_diag`.
pub fn packet_socket(socket: BorrowedFd<'_>) -> Result<PacketSocket> {
    let failed =
        |errno: rustix::io::Errno| Error::os("read the ring of", "a packet socket", errno.raw_os_error());
    let inode = rustix::fs::fstat(socket.as_fd()).map_err(failed)?.st_ino as u32;
    let mut netlink =
        Netlink::with_protocol(Protocol::from_raw(SOCK_DIAG.try_into().expect("not 0")).into())?;
    // struct packet_diag_req: family, protocol, padding, inode, requested attributes, cookie.
    let mut body = [0; 20];
    body[0] = libc::AF_PACKET as u8;
    body[4..8].copy_from_slice(&inode.to_ne_bytes());
    body[8..12].copy_from_slice(&SHOW.to_ne_bytes());
    let mut request = netlink.request(BY_FAMILY, REQUEST | libc::NLM_F_DUMP as u16, &body);
    let mut found = None;
    netlink.dump(&mut request, ("read the rings of", "packet sockets"), |message| {
        if read_u32(message.body, 4) == Some(inode) {
            found = Some(parse(message)?);
        }
        Ok(())
    })?;
    found.ok_or_else(|| {
        Error::new(
            Kind::Refused,
            "read the ring of",
            "a packet socket",
            "this kernel does not report it (CONFIG_PACKET_DIAG)",
        )
    })
}

pub(super) fn parse(message: Message<'_>) -> Result<PacketSocket> {
    let attributes = message.attributes(MESSAGE_LEN)?;
    let word = |value: &[u8], index: usize| {
        read_u32(value, 4 * index).ok_or_else(|| malformed("a truncated attribute of a packet socket"))
    };
    let version = match attributes.find(INFO)? {
        // TPACKET_V1 is 0.
        Some(info) => word(info, 1)?.saturating_add(1),
        None => 1,
    };
    let ring = match attributes.find(RX_RING)? {
        Some(ring) => Some(PacketRing {
            block_bytes: word(ring, 0)?,
            blocks: word(ring, 1)?,
            frame_bytes: word(ring, 2)?,
            retire: Duration::from_millis(word(ring, 4)?.into()),
        }),
        None => None,
    };
    Ok(PacketSocket { version, ring: ring.filter(|ring| ring.blocks > 0) })
}
