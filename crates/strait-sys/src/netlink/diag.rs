//! Which ring a packet socket has: what D2 needed strace and a kernel probe for. `packet_diag` of sock_diag(7).
//!
//! The doctor asks it what libpcap does. Layouts: linux/packet_diag.h, linux/sock_diag.h.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::message::{Message, malformed, read_u32};
use super::{Netlink, Protocol, REQUEST};
use crate::error::{Error, Kind, Result};

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

/// A packet socket as the kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketSocket {
    /// The ring's version, 1 to 3; it means nothing without a ring.
    pub version: u32,
    /// Its receive ring, if it has one.
    pub ring: Option<PacketRing>,
}

/// `struct packet_diag_ring`, as far as it concerns a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRing {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// Bytes of a frame; TPACKET_V3 has no use for it.
    pub frame_bytes: u32,
    /// How long TPACKET_V3 keeps back a block that is not full.
    pub retire: Duration,
}

/// What ring `socket`, a packet socket of the calling thread's namespace, has.
///
/// # Errors
/// Refused where the kernel has no `packet_diag`.
pub fn packet_socket(socket: BorrowedFd<'_>) -> Result<PacketSocket> {
    let failed = |errno: rustix::io::Errno| Error::os("look at", "a packet socket", errno.raw_os_error());
    let inode = rustix::fs::fstat(socket.as_fd()).map_err(failed)?.st_ino as u32;
    let mut netlink = Netlink::of(Protocol::from_raw(SOCK_DIAG.try_into().expect("not 0")).into())?;
    // struct packet_diag_req: family, protocol, padding, inode, what to show, cookie.
    let mut body = [0; 20];
    body[0] = libc::AF_PACKET as u8;
    body[4..8].copy_from_slice(&inode.to_ne_bytes());
    body[8..12].copy_from_slice(&SHOW.to_ne_bytes());
    let mut request = netlink.request(BY_FAMILY, REQUEST | libc::NLM_F_DUMP as u16, &body);
    let mut found = None;
    netlink.dump(&mut request, ("look at", "packet sockets"), |message| {
        if read_u32(message.body, 4) == Some(inode) {
            found = Some(parse(message)?);
        }
        Ok(())
    })?;
    found.ok_or_else(|| {
        Error::said(
            Kind::Refused,
            "look at",
            "a packet socket",
            "this kernel does not tell (CONFIG_PACKET_DIAG)",
        )
    })
}

fn parse(message: Message<'_>) -> Result<PacketSocket> {
    let attributes = message.attributes(MESSAGE_LEN)?;
    let word = |value: &[u8], index: usize| {
        read_u32(value, 4 * index).ok_or_else(|| malformed("a packet socket's attribute is cut short"))
    };
    let version = match attributes.find(INFO)? {
        // TPACKET_V1 is 0.
        Some(info) => word(info, 1)? + 1,
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
