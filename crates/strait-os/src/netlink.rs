//! `rtnetlink(7)`: creates and configures links, reads their state and counters.
//!
//! The capture engine reads link counters and attached XDP programs with it; the test rigs and the
//! demo create veth pairs. The doctor uses two related families: [`packet_socket`] reads the rings
//! of packet sockets (sock_diag(7)), and [`xdp_abilities`] the XDP features of a driver (generic
//! family `netdev`). A [`Netlink`] always works in the network namespace of the thread that opened
//! it. It never dumps a table: each call is about one link. [`LinkMonitor`] reports the changes of
//! one link.
//!
//! The messages are written and parsed here and not by `netlink-packet-route` (examined in version
//! 0.34) for three reasons. It has neither `packet_diag` nor the `netdev` family, so this parser
//! would be needed anyway. It decodes every attribute of a message and fails if one of them has an
//! unknown layout; this parser reads only the attributes that it needs, and later kernels may
//! change the others. It brings 52,000 lines into the program that gets capabilities. The sockets
//! need no crate: rustix opens them. [`parse`] has the parsers of replies without I/O, for tests
//! and fuzzing.

mod diag;
mod link;
mod message;
mod monitor;
mod netdev;
pub mod parse;
mod route;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use strait_sys::socket::enable_netlink_option;

pub use diag::{PacketRing, PacketSocket, packet_socket};
pub use link::{LinkReading, LinkStats, XdpAttachment, XdpMode};
use message::{Attributes, HEADER_LEN, Message, Request, malformed};
pub use monitor::{LinkEvent, LinkMonitor};
pub use netdev::{XdpAbilities, XdpMetadata, xdp_abilities};
pub use route::Route;

use crate::interface::Interface;
use crate::name::check_name;
use crate::{Error, Kind, Result};

/// `RTM_GETSTATS` (linux/rtnetlink.h), which libc does not have for musl.
const RTM_GETSTATS: u16 = 94;
/// Maximum bytes of a reply. `RTM_NEWLINK` without statistics and virtual functions is below 4 KiB.
const REPLY_BYTES_MAX: usize = 16 * 1024;
/// Maximum wait for a reply. The kernel answers inside `send`, so a timeout means a kernel fault.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of other messages before the reply, which bounds the wait.
const STRAY_MESSAGES_MAX: u32 = 64;

/// Maximum number of datagrams of a dump: enough for some ten thousand sockets.
const DUMP_DATAGRAMS_MAX: u32 = 4096;

/// `VETH_INFO_PEER` (linux/veth.h).
const VETH_INFO_PEER: u16 = 1;
/// `NLMSGERR_ATTR_MSG` (linux/netlink.h): the kernel's error message.
const NLMSGERR_ATTR_MSG: u16 = 1;

/// Attribute of a bridge in linux/if_link.h.
const IFLA_BR_MCAST_SNOOPING: u16 = 23;

const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
const CHANGE: u16 = REQUEST | libc::NLM_F_ACK as u16;
const CREATE: u16 = CHANGE | (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;

/// Route socket with its buffer; keep one for frequent reads of counters.
#[derive(Debug)]
pub struct Netlink {
    fd: OwnedFd,
    sequence: u32,
    reply: Box<[u8; REPLY_BYTES_MAX]>,
}

/// One end of a veth pair to be created.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    /// Interface name, 1 to 15 bytes.
    pub name: &'a str,
    /// MAC address; the kernel picks one if absent.
    pub mac: Option<[u8; 6]>,
    /// Number of receive queues and of transmit queues.
    pub queues: u32,
    /// Maximum bytes of a packet without its Ethernet header; 1500 if absent.
    pub mtu: Option<u32>,
    /// Namespace of this end; that of the [`Netlink`] if absent.
    pub namespace: Option<BorrowedFd<'a>>,
}

impl<'a> VethEnd<'a> {
    /// Returns an end with one queue and the kernel's defaults.
    pub fn new(name: &'a str) -> Self {
        Self { name, mac: None, queues: 1, mtu: None, namespace: None }
    }
}

impl Netlink {
    /// `socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE)` in the calling thread's namespace.
    pub fn open() -> Result<Self> {
        Self::with_protocol(None)
    }

    /// Opens a socket of another netlink protocol.
    fn with_protocol(protocol: Option<Protocol>) -> Result<Self> {
        let os = |errno: rustix::io::Errno| Error::os("open", "netlink socket", errno.raw_os_error());
        let flags = SocketFlags::CLOEXEC;
        let fd =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol).map_err(os)?;
        let timeout = rustix::net::sockopt::Timeout::Recv;
        rustix::net::sockopt::set_socket_timeout(&fd, timeout, Some(REPLY_TIMEOUT)).map_err(os)?;
        for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
            enable_netlink_option(fd.as_fd(), option)?;
        }
        Ok(Self { fd, sequence: 0, reply: Box::new([0; REPLY_BYTES_MAX]) })
    }

    /// Returns the interface with the name or alternative name `name`, or [`Kind::Usage`] if there
    /// is none.
    pub fn interface(&mut self, name: &str) -> Result<Interface> {
        check_name(name)?;
        let attribute = if name.len() < libc::IFNAMSIZ { libc::IFLA_IFNAME } else { libc::IFLA_ALT_IFNAME };
        let mut request = self.get_link(0);
        request.attribute_str(attribute, name);
        self.get(&mut request, "find", name, link::parse_interface)
    }

    /// Returns the interface with index `index`, or [`Kind::Usage`] if there is none.
    pub fn interface_at(&mut self, index: u32) -> Result<Interface> {
        let mut request = self.get_link(index);
        self.get(&mut request, "find", &subject(index), link::parse_interface)
    }

    /// Returns the route of packets to `to`, from the address `from` if given. An IPv6 address may
    /// have a scope.
    pub fn route(&mut self, from: Option<IpAddr>, to: SocketAddr) -> Result<Route> {
        let (family, bytes) = address_bytes(to.ip());
        let source = from.map(address_bytes).filter(|(other, _)| *other == family).map(|(_, bytes)| bytes);
        let bits = |bytes: &[u8]| 8 * bytes.len() as u8;
        // struct rtmsg: family, the prefix lengths of both addresses, then fields of replies.
        let mut body = [0; route::HEADER_LEN];
        body[..3].copy_from_slice(&[family, bits(&bytes), source.as_deref().map_or(0, bits)]);
        let mut request = self.request(libc::RTM_GETROUTE, REQUEST, &body);
        request.attribute(libc::RTA_DST, &bytes);
        if let Some(source) = source {
            request.attribute(libc::RTA_SRC, &source);
        }
        if let SocketAddr::V6(to) = to
            && to.scope_id() != 0
        {
            request.attribute_u32(libc::RTA_OIF, to.scope_id());
        }
        self.get(&mut request, "find a route to", &to.ip().to_string(), route::parse)
    }

    /// Returns the 64-bit counters of link `index` since it was created. Allocates little: one
    /// request, one reply.
    pub fn stats(&mut self, index: u32) -> Result<LinkStats> {
        let mut body = [0; 12];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        body[8..].copy_from_slice(&link::STATS_FILTER.to_ne_bytes());
        let mut request = self.request(RTM_GETSTATS, REQUEST, &body);
        self.get(&mut request, "read counters of", &subject(index), link::parse_stats)
    }

    /// Returns the state of link `index` and its carrier.
    pub fn link(&mut self, index: u32) -> Result<LinkReading> {
        let mut request = self.get_link(index);
        self.get(&mut request, "read the state of", &subject(index), link::parse_reading)
    }

    /// Returns the XDP program attached to link `index`, if there is one.
    pub fn xdp(&mut self, index: u32) -> Result<Option<XdpAttachment>> {
        let mut request = self.get_link(index);
        self.get(&mut request, "read XDP state of", &subject(index), link::parse_xdp)
    }

    /// Creates a veth pair with both ends down. Needs `CAP_NET_ADMIN` in both namespaces.
    pub fn add_veth(&mut self, end: &VethEnd<'_>, peer: &VethEnd<'_>) -> Result<()> {
        check_name(end.name)?;
        check_name(peer.name)?;
        let mut request = self.request(libc::RTM_NEWLINK, CREATE, &link_header(0, 0, 0));
        put_end(&mut request, end);
        request.nested(libc::IFLA_LINKINFO, |info| {
            info.attribute(libc::IFLA_INFO_KIND, b"veth").nested(libc::IFLA_INFO_DATA, |data| {
                data.nested(VETH_INFO_PEER, |other| put_end(other.raw(&link_header(0, 0, 0)), peer));
            });
        });
        self.change(&mut request, "add veth", end.name)
    }

    /// Creates the bridge `name`, down and without ports. It does not snoop for multicast groups,
    /// for which a bridge sends reports of its own.
    pub fn add_bridge(&mut self, name: &str) -> Result<()> {
        check_name(name)?;
        let mut request = self.request(libc::RTM_NEWLINK, CREATE, &link_header(0, 0, 0));
        request.attribute_str(libc::IFLA_IFNAME, name).nested(libc::IFLA_LINKINFO, |info| {
            info.attribute(libc::IFLA_INFO_KIND, b"bridge").nested(libc::IFLA_INFO_DATA, |data| {
                data.attribute(IFLA_BR_MCAST_SNOOPING, &[0]);
            });
        });
        self.change(&mut request, "add bridge", name)
    }

    /// Makes link `index` a port of the bridge `bridge`.
    pub fn add_port(&mut self, bridge: u32, index: u32) -> Result<()> {
        let mut request = self.request(libc::RTM_NEWLINK, CHANGE, &link_header(index, 0, 0));
        request.attribute_u32(libc::IFLA_MASTER, bridge);
        self.change(&mut request, "add a port of a bridge", &subject(index))
    }

    /// Deletes link `index`, and a veth's peer with it.
    pub fn delete(&mut self, index: u32) -> Result<()> {
        let mut request = self.request(libc::RTM_DELLINK, CHANGE, &link_header(index, 0, 0));
        self.change(&mut request, "delete", &subject(index))
    }

    /// Sets link `index` up or down.
    pub fn set_up(&mut self, index: u32, up: bool) -> Result<()> {
        self.set_flag(index, libc::IFF_UP as u32, up, if up { "set up" } else { "set down" })
    }

    /// Turns promiscuous mode of link `index` on or off for the whole system. A capture should use
    /// `PACKET_ADD_MEMBERSHIP` instead, which the kernel reverts by itself.
    pub fn set_promiscuous(&mut self, index: u32, on: bool) -> Result<()> {
        self.set_flag(index, libc::IFF_PROMISC as u32, on, "set promiscuous mode of")
    }

    /// Sets the MTU of link `index`, in bytes without the Ethernet header.
    pub fn set_mtu(&mut self, index: u32, mtu: u32) -> Result<()> {
        let mut request = self.request(libc::RTM_NEWLINK, CHANGE, &link_header(index, 0, 0));
        request.attribute_u32(libc::IFLA_MTU, mtu);
        self.change(&mut request, "set MTU of", &subject(index))
    }

    /// Adds `address/prefix` to link `index`. An IPv6 address is usable at once: no duplicate
    /// detection.
    pub fn add_address(&mut self, index: u32, address: IpAddr, prefix: u8) -> Result<()> {
        let (family, bytes) = address_bytes(address);
        let no_detection = if address.is_ipv6() { libc::IFA_F_NODAD as u8 } else { 0 };
        let mut body = [family, prefix, no_detection, 0, 0, 0, 0, 0];
        body[4..].copy_from_slice(&index.to_ne_bytes());
        let mut request = self.request(libc::RTM_NEWADDR, CREATE, &body);
        request.attribute(libc::IFA_LOCAL, &bytes).attribute(libc::IFA_ADDRESS, &bytes);
        self.change(&mut request, "add address", &format!("{address}/{prefix}"))
    }

    /// Adds a permanent neighbour entry to link `index`, so that the kernel sends no ARP or ND
    /// requests for it.
    pub fn add_neighbour(&mut self, index: u32, address: IpAddr, mac: [u8; 6]) -> Result<()> {
        let (family, bytes) = address_bytes(address);
        // struct ndmsg: family, three bytes of padding, index, 16-bit state, flags, type.
        let mut body = [family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        body[8..10].copy_from_slice(&libc::NUD_PERMANENT.to_ne_bytes());
        let mut request = self.request(libc::RTM_NEWNEIGH, CREATE, &body);
        request.attribute(libc::NDA_DST, &bytes).attribute(libc::NDA_LLADDR, &mac);
        self.change(&mut request, "add neighbour", &address.to_string())
    }

    fn set_flag(&mut self, index: u32, flag: u32, on: bool, operation: &'static str) -> Result<()> {
        let value = if on { flag } else { 0 };
        let mut request = self.request(libc::RTM_NEWLINK, CHANGE, &link_header(index, value, flag));
        self.change(&mut request, operation, &subject(index))
    }

    fn get_link(&mut self, index: u32) -> Request {
        let mut request = self.request(libc::RTM_GETLINK, REQUEST, &link_header(index, 0, 0));
        request.attribute_u32(libc::IFLA_EXT_MASK, libc::RTEXT_FILTER_SKIP_STATS as u32);
        request
    }

    fn request(&mut self, kind: u16, flags: u16, body: &[u8]) -> Request {
        self.sequence = self.sequence.wrapping_add(1);
        Request::new(kind, flags, self.sequence, body)
    }

    fn change(&mut self, request: &mut Request, operation: &'static str, subject: &str) -> Result<()> {
        match self.exchange(request, operation, subject)?.kind {
            kind if kind == libc::NLMSG_ERROR as u16 => Ok(()),
            kind => Err(malformed(&format!("message type {kind} in place of an acknowledgement"))),
        }
    }

    fn get<T>(
        &mut self,
        request: &mut Request,
        operation: &'static str,
        subject: &str,
        parse: impl FnOnce(Message<'_>) -> Result<T>,
    ) -> Result<T> {
        parse(self.exchange(request, operation, subject)?)
    }

    /// Sends `request` and returns its reply: data, or an acknowledgement. A negative
    /// acknowledgement is an error.
    fn exchange(
        &mut self,
        request: &mut Request,
        operation: &'static str,
        subject: &str,
    ) -> Result<Message<'_>> {
        let os = |errno: rustix::io::Errno| Error::os(operation, subject, errno.raw_os_error());
        rustix::net::send(&self.fd, request.finish(), SendFlags::empty()).map_err(os)?;
        for _ in 0..STRAY_MESSAGES_MAX {
            let len = self.receive().map_err(os)?;
            if len > REPLY_BYTES_MAX {
                return Err(malformed("a reply is longer than its limit"));
            }
            if first_message(&self.reply[..len])?.sequence == self.sequence {
                return accept(first_message(&self.reply[..len])?, operation, subject);
            }
        }
        Err(malformed("no reply to the request among the messages received"))
    }

    /// Sends a request with a reply of several messages, and passes each to `take`.
    fn dump(
        &mut self,
        request: &mut Request,
        (operation, subject): (&'static str, &str),
        mut take: impl FnMut(Message<'_>) -> Result<()>,
    ) -> Result<()> {
        let os = |errno: rustix::io::Errno| Error::os(operation, subject, errno.raw_os_error());
        rustix::net::send(&self.fd, request.finish(), SendFlags::empty()).map_err(os)?;
        for _ in 0..DUMP_DATAGRAMS_MAX {
            let len = self.receive().map_err(os)?.min(REPLY_BYTES_MAX);
            let mut datagram = &self.reply[..len];
            while let Some(message) = Message::take(&mut datagram)? {
                if message.sequence != self.sequence {
                    continue;
                }
                if message.kind == libc::NLMSG_DONE as u16 {
                    return Ok(());
                }
                take(accept(message, operation, subject)?)?;
            }
        }
        Err(malformed("a dump without NLMSG_DONE"))
    }

    /// Receives one datagram into the buffer and returns its full length, even if it was cut.
    fn receive(&mut self) -> rustix::io::Result<usize> {
        loop {
            match rustix::net::recv(&self.fd, &mut self.reply[..], RecvFlags::TRUNC) {
                Err(rustix::io::Errno::INTR) => {}
                other => return other.map(|(_, len)| len),
            }
        }
    }
}

fn first_message(mut datagram: &[u8]) -> Result<Message<'_>> {
    Message::take(&mut datagram)?.ok_or_else(|| malformed("an empty datagram"))
}

/// Returns data and acknowledgements; converts `NLMSG_ERROR` with an errno to an error.
fn accept<'a>(message: Message<'a>, operation: &'static str, subject: &str) -> Result<Message<'a>> {
    if message.kind != libc::NLMSG_ERROR as u16 {
        return Ok(message);
    }
    let code = message::read_u32(message.body, 0)
        .ok_or_else(|| malformed("a truncated error message"))?
        .cast_signed();
    if code == 0 {
        return Ok(message);
    }
    let errno = code.checked_neg().filter(|&errno| errno > 0);
    let errno = errno.ok_or_else(|| malformed("an error with a positive code"))?;
    let error = Error::os(operation, subject, errno);
    let text = kernel_message(message)?;
    Err(match (errno, text) {
        (libc::EPERM, _) => error.remedy("needs CAP_NET_ADMIN: run as root"),
        (libc::ENODEV, _) => {
            Error::new(Kind::Usage, operation, subject, "no such interface; `ip link` lists them")
        }
        (_, Some(text)) => error.remedy(format!("the kernel reports: {text}")),
        (_, None) => error,
    })
}

/// Returns the text of the extended acknowledgement (`NETLINK_EXT_ACK`, `netlink(7)`).
fn kernel_message(message: Message<'_>) -> Result<Option<String>> {
    if message.flags & libc::NLM_F_ACK_TLVS as u16 == 0 {
        return Ok(None);
    }
    // The request's header follows the code; NETLINK_CAP_ACK excludes its payload.
    let attributes =
        message.body.get(4 + HEADER_LEN..).ok_or_else(|| malformed("a truncated error message"))?;
    Attributes(attributes).find_str(NLMSGERR_ATTR_MSG)
}

/// `struct ifinfomsg`.
fn link_header(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&change.to_ne_bytes());
    header
}

/// Returns the address family and the address in network order.
fn address_bytes(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(v4) => (libc::AF_INET as u8, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6 as u8, v6.octets().to_vec()),
    }
}

fn put_end(request: &mut Request, end: &VethEnd<'_>) {
    request
        .attribute_str(libc::IFLA_IFNAME, end.name)
        .attribute_u32(libc::IFLA_NUM_TX_QUEUES, end.queues)
        .attribute_u32(libc::IFLA_NUM_RX_QUEUES, end.queues);
    if let Some(mtu) = end.mtu {
        request.attribute_u32(libc::IFLA_MTU, mtu);
    }
    if let Some(mac) = end.mac {
        request.attribute(libc::IFLA_ADDRESS, &mac);
    }
    if let Some(namespace) = end.namespace {
        request.attribute_u32(libc::IFLA_NET_NS_FD, namespace.as_raw_fd().cast_unsigned());
    }
}

fn subject(index: u32) -> String {
    format!("link {index}")
}
