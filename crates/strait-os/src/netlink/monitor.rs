//! Notifications of the changes of one link (`RTNLGRP_LINK` of rtnetlink(7)).
//!
//! A capture reads them to detect that its link went down or lost its carrier. The kernel sends one
//! for each change of the flags, even for changes in quick succession. Nothing here waits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use strait_sys::socket;

use super::link::{self, LinkReading};
use super::message::Message;
use super::{REPLY_BYTES_MAX, subject};
use crate::{Error, Result};

/// `RTMGRP_LINK` (linux/rtnetlink.h).
const RTMGRP_LINK: u32 = 1;
/// Offsets in a notification: `struct ifinfomsg` follows `struct nlmsghdr`.
const FAMILY_OFFSET: u32 = 16;
const INDEX_OFFSET: u32 = 20;
/// Bytes charged to the socket for a notification, with a margin (`skb->truesize`).
const NOTIFICATION_BYTES: u32 = 8 << 10;
/// Maximum number of notifications that wait for a reader.
const WAITING_MAX: u32 = 256;

/// Notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// New state of the link.
    Changed(LinkReading),
    /// The link was deleted or moved to another network namespace.
    Removed,
    /// Notifications were lost, because the socket's buffer was full.
    Lost,
}

/// Socket for the notifications of one link, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct LinkMonitor(OwnedFd);

impl LinkMonitor {
    /// Subscribes to the notifications of link `index`.
    pub fn open(index: u32) -> Result<Self> {
        let name = subject(index);
        let os = |errno: rustix::io::Errno| Error::os("watch", &*name, errno.raw_os_error());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None).map_err(os)?;
        // Attach the filter before the first notification can come.
        attach_link_filter(&fd, index)?;
        // The kernel limits the size to net.core.rmem_max. Notifications beyond it are lost, which
        // is reported.
        let bytes = (WAITING_MAX * NOTIFICATION_BYTES) as usize;
        rustix::net::sockopt::set_socket_recv_buffer_size(&fd, bytes).map_err(os)?;
        rustix::net::bind(&fd, &SocketAddrNetlink::new(0, RTMGRP_LINK)).map_err(os)?;
        Ok(Self(fd))
    }

    /// Returns the next notification, or `None` if none has come.
    pub fn next(&self) -> Result<Option<LinkEvent>> {
        let mut buffer = [0; REPLY_BYTES_MAX];
        loop {
            let len = match rustix::net::recv(&self.0, &mut buffer[..], RecvFlags::TRUNC) {
                Ok((_, len)) => len,
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::NOBUFS) => return Ok(Some(LinkEvent::Lost)),
                Err(errno) => return Err(Error::os("read changes of", "a link", errno.raw_os_error())),
            };
            let Some(datagram) = buffer.get(..len) else { return Ok(Some(LinkEvent::Lost)) };
            if let Some(event) = super::parse::link_event(datagram)? {
                return Ok(Some(event));
            }
        }
    }
}

/// Readable while a notification waits.
impl AsFd for LinkMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(super) fn parse(message: Message<'_>) -> Result<Option<LinkEvent>> {
    Ok(match message.kind {
        libc::RTM_NEWLINK => Some(LinkEvent::Changed(link::parse_reading(message)?)),
        libc::RTM_DELLINK => Some(LinkEvent::Removed),
        _ => None,
    })
}

/// Filters out notifications of other links in the kernel, so that a busy host does not fill the
/// socket. Notifications of a bridge about its port (`AF_BRIDGE`) do not describe the link.
fn attach_link_filter(fd: &OwnedFd, index: u32) -> Result<()> {
    const LOAD_WORD: u16 = 0x20;
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    // The program loads in network order, but netlink uses the host's order.
    let index = u32::from_be_bytes(index.to_ne_bytes());
    let program = [
        (LOAD_BYTE, 0, 0, FAMILY_OFFSET),
        (JUMP_EQUAL, 0, 3, libc::AF_UNSPEC as u32),
        (LOAD_WORD, 0, 0, INDEX_OFFSET),
        (JUMP_EQUAL, 0, 1, index),
        (RETURN, 0, 0, u32::MAX),
        (RETURN, 0, 0, 0),
    ];
    socket::attach_filter(fd.as_fd(), &program, ("attach a filter to", "a netlink socket"))
}
