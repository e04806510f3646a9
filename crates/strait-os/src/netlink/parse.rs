//! Parsers of the kernel's replies without I/O: each takes the bytes of one datagram.
//!
//! The functions of the parent module send a request and parse its reply with the same code. Tests
//! and fuzz targets can pass any bytes to it here. A negative
//! acknowledgement (`NLMSG_ERROR`) is an error with the kernel's errno and message.

use super::message::{Message, malformed};
use super::{LinkEvent, LinkReading, LinkStats, PacketSocket, Route, XdpAbilities, XdpAttachment};
use super::{accept, diag, first_message, link, monitor, netdev, route};
use crate::Result;
use crate::interface::Interface;

/// Reads the identity of a link (`RTM_NEWLINK`).
pub fn interface(datagram: &[u8]) -> Result<Interface> {
    answer(datagram, link::parse_interface)
}

/// Reads the state of a link (`RTM_NEWLINK`).
pub fn link(datagram: &[u8]) -> Result<LinkReading> {
    answer(datagram, link::parse_reading)
}

/// Reads the counters of a link (`RTM_NEWSTATS`).
pub fn stats(datagram: &[u8]) -> Result<LinkStats> {
    answer(datagram, link::parse_stats)
}

/// Reads the XDP program of a link (`RTM_NEWLINK`).
pub fn xdp(datagram: &[u8]) -> Result<Option<XdpAttachment>> {
    answer(datagram, link::parse_xdp)
}

/// Reads a route (`RTM_NEWROUTE`).
pub fn route(datagram: &[u8]) -> Result<Route> {
    answer(datagram, route::parse)
}

/// Reads the id of a generic family (`CTRL_CMD_NEWFAMILY`).
pub fn family(datagram: &[u8]) -> Result<u16> {
    answer(datagram, netdev::parse_family)
}

/// Reads the XDP features of a driver (`NETDEV_CMD_DEV_GET`).
pub fn xdp_abilities(datagram: &[u8]) -> Result<XdpAbilities> {
    answer(datagram, netdev::parse)
}

/// Reads the packet sockets of a dump (`packet_diag`).
pub fn packet_sockets(mut datagram: &[u8]) -> Result<Vec<PacketSocket>> {
    let mut sockets = Vec::new();
    while let Some(message) = Message::take(&mut datagram)? {
        if message.kind == libc::NLMSG_DONE as u16 {
            break;
        }
        sockets.push(diag::parse(accept(message, OPERATION, SUBJECT)?)?);
    }
    Ok(sockets)
}

/// Reads a notification about a link; `None` for one that does not concern its state.
pub fn link_event(mut datagram: &[u8]) -> Result<Option<LinkEvent>> {
    Ok(Message::take(&mut datagram)?.map(monitor::parse).transpose()?.flatten())
}

const OPERATION: &str = "read";
const SUBJECT: &str = "a netlink reply";

fn answer<T>(datagram: &[u8], parse: impl FnOnce(Message<'_>) -> Result<T>) -> Result<T> {
    let message = accept(first_message(datagram)?, OPERATION, SUBJECT)?;
    if message.kind == libc::NLMSG_ERROR as u16 {
        return Err(malformed("an acknowledgement in place of data"));
    }
    parse(message)
}
