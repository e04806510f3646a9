//! Packet socket: options, filter, fanout, statistics.
//!
//! A socket starts with protocol 0, so it receives nothing until [`Socket::bind`]: filter, ring and
//! options are in place before the first frame. Every setter is one `setsockopt(SOL_PACKET, ...)`;
//! packet(7) describes them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::error::{Error, Result, check};
use crate::socket::{self, LinkState};

/// Classic BPF instruction: code, jt, jf, k (`struct sock_filter`).
pub type Instruction = (u16, u8, u8, u32);

/// Protocol that no frame has: values below 0x600 are lengths on the wire, and the kernel assigns
/// no meaning to this one (linux/if_ether.h).
const ETH_P_NONE: u16 = 0x00ff;

/// Distribution of frames over the members of a fanout group (packet(7), `PACKET_FANOUT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fanout {
    /// By flow hash. The kernel's hash is symmetric, so one member gets both directions of a flow.
    /// IP fragments have no ports and are hashed by their addresses, so all fragments of a datagram
    /// go to one member.
    Hash,
    /// By the CPU that received the frame.
    Cpu,
    /// By the NIC's receive queue.
    Queue,
    /// To the first member, or to the next one while its ring is full.
    Rollover,
}

impl Fanout {
    fn type_flags(self) -> u16 {
        match self {
            // Without PACKET_FANOUT_FLAG_DEFRAG, because it merges the frames of IP fragments.
            Self::Hash => libc::PACKET_FANOUT_HASH as u16,
            Self::Cpu => libc::PACKET_FANOUT_CPU as u16,
            Self::Queue => libc::PACKET_FANOUT_QM as u16,
            Self::Rollover => libc::PACKET_FANOUT_ROLLOVER as u16,
        }
    }
}

/// `PACKET_STATISTICS` since the last call: reading resets them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames that passed the filter, including dropped ones.
    pub packets: u32,
    /// Frames that passed the filter but found no room.
    pub drops: u32,
    /// Times that a TPACKET_V3 queue froze because the reader still held its next block.
    pub freezes: u32,
}

/// Binds a packet socket to the address that it has (`bind(2)` after `getsockname(2)`), which
/// changes nothing.
///
/// # Errors
/// EINVAL if the socket can never be bound to another interface: it is a member of a fanout group.
/// `PACKET_FANOUT` does not tell, because it is 0 for members of group 0 too.
pub fn bind_again(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: sockaddr_ll is plain data, for which zeroes are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: address points at len writable bytes.
    let returned = unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast(), &raw mut len) };
    check(returned, "read the address of", "a packet socket")?;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: address points at len readable bytes for the length of the call.
    let returned = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) };
    check(returned, "bind", "a packet socket").map(drop)
}

/// `AF_PACKET` socket, `SOCK_RAW` or `SOCK_DGRAM`.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    interface: String,
}

impl Socket {
    /// `socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)`. Errors name `interface`.
    ///
    /// # Errors
    /// EPERM without `CAP_NET_RAW`.
    pub fn open(interface: &str) -> Result<Self> {
        Self::of_type(interface, libc::SOCK_RAW)
    }

    /// Opens a `SOCK_DGRAM` socket: packets come without their link header, see [`super::Cooked`].
    /// Index 0 binds it to all interfaces.
    pub fn open_cooked(interface: &str) -> Result<Self> {
        Self::of_type(interface, libc::SOCK_DGRAM)
    }

    fn of_type(interface: &str, kind: libc::c_int) -> Result<Self> {
        let kind = kind | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: socket(2) takes no pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        let fd = check(fd, "open a packet socket on", interface)
            .map_err(|error| error.remedy("run as root, or give the program cap_net_raw+ep with setcap"))?;
        // SAFETY: fd was just returned by socket(2) and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, interface: interface.to_owned() })
    }

    /// Duplicates the descriptor, so that another owner can stop reception.
    pub fn try_clone(&self) -> Result<Self> {
        let fd = self
            .fd
            .try_clone()
            .map_err(|error| Error::from_io("duplicate a packet socket of", &self.interface, &error))?;
        Ok(Self { fd, interface: self.interface.clone() })
    }

    /// Binds to an interface, for all protocols: frames arrive from now on.
    ///
    /// # Errors
    /// ENODEV if the interface was removed, ENETDOWN (from [`Socket::take_error`]) if it is down.
    pub fn bind(&self, ifindex: u32) -> Result<()> {
        self.bind_protocol(ifindex, libc::ETH_P_ALL as u16)
    }

    /// Binds to an interface for sending only, without a cost in the kernel's receive path.
    ///
    /// # Errors
    /// As for [`Socket::bind`].
    pub fn bind_for_sending(&self, ifindex: u32) -> Result<()> {
        self.bind_protocol(ifindex, 0)
    }

    /// Binds to a protocol that no frame has: frames stop arriving, and the kernel's receive path
    /// skips the socket. Takes some milliseconds if frames were arriving.
    ///
    /// # Errors
    /// EINVAL for a member of a fanout group; otherwise as for [`Socket::bind`].
    pub fn bind_to_no_protocol(&self, ifindex: u32) -> Result<()> {
        self.bind_protocol(ifindex, ETH_P_NONE)
    }

    fn bind_protocol(&self, ifindex: u32, protocol: u16) -> Result<()> {
        // SAFETY: sockaddr_ll is plain data, for which zeroes are valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = ifindex as i32;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: address points at a sockaddr_ll of that length.
        let returned = unsafe { libc::bind(self.raw(), (&raw const address).cast(), len) };
        check(returned, "bind a packet socket to", &*self.interface).map(drop)
    }

    /// Sends one frame on a bound socket (`send(MSG_DONTWAIT)`).
    ///
    /// # Errors
    /// EMSGSIZE if the frame is too long for the link, ENOBUFS if its queue is full, ENETDOWN.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the frame is readable for its length.
        let sent = unsafe { libc::send(self.raw(), frame.as_ptr().cast(), frame.len(), flags) };
        if sent < 0 { Err(self.explain(Error::last_os("send on", &*self.interface))) } else { Ok(()) }
    }

    /// Returns and clears the pending error of the socket (`SO_ERROR`): ENETDOWN if the interface
    /// went down or was removed.
    pub fn take_error(&self) -> Result<()> {
        socket::take_error(self.as_fd(), &self.interface).map_err(|error| self.explain(error))
    }

    /// Returns the state of the bound interface `ifindex`; 0, all interfaces, is always up.
    pub fn link_state(&self, ifindex: u32) -> Result<LinkState> {
        match ifindex {
            0 => Ok(LinkState::Up),
            // An interface that left this namespace and returned has its old index, but the kernel
            // has unbound the socket.
            _ if self.interface_was_removed() => Ok(LinkState::Removed),
            _ => socket::link_state(self.as_fd(), ifindex, &self.interface),
        }
    }

    /// Adds a remedy for an interface that is down.
    pub(super) fn explain(&self, error: Error) -> Error {
        socket::explain(error, &self.interface, || self.interface_was_removed())
    }

    /// Returns true if the bound interface was removed: the kernel then sets the socket's index to
    /// -1 (`packet_notifier` in net/packet/af_packet.c).
    fn interface_was_removed(&self) -> bool {
        // SAFETY: sockaddr_ll is plain data, for which zeroes are valid.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the kernel writes at most len bytes to address.
        let returned = unsafe { libc::getsockname(self.raw(), (&raw mut address).cast(), &raw mut len) };
        returned == 0 && address.sll_ifindex == -1
    }

    /// Attaches a classic BPF program (`SO_ATTACH_FILTER`), and replaces an earlier one.
    pub fn attach_filter(&self, program: &[Instruction]) -> Result<()> {
        socket::attach_filter(self.as_fd(), program, ("attach a filter to", &self.interface))
    }

    /// Removes the filter (`SO_DETACH_FILTER`): every frame is received from now on. Does nothing
    /// on a socket without a filter.
    pub fn detach_filter(&self) -> Result<()> {
        socket::detach_filter(self.as_fd(), &self.interface)
    }

    /// Stops reception with a filter that rejects every frame. Frames in the ring stay readable.
    pub fn reject_all(&self) -> Result<()> {
        socket::reject_all(self.as_fd(), &self.interface)
    }

    /// Sets promiscuous mode on the interface until this socket closes (`PACKET_ADD_MEMBERSHIP`).
    pub fn set_promiscuous(&self, ifindex: u32) -> Result<()> {
        let request = libc::packet_mreq {
            mr_ifindex: ifindex as i32,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set_packet(libc::PACKET_ADD_MEMBERSHIP, &request, "set promiscuous mode on")
    }

    /// Ignores frames sent by this host, or captures them again
    /// (`PACKET_IGNORE_OUTGOING`, Linux 4.20).
    pub fn ignore_outgoing(&self, ignore: bool) -> Result<()> {
        const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
        self.set_packet(PACKET_IGNORE_OUTGOING, &i32::from(ignore), "ignore outgoing frames on")
    }

    /// Creates a fanout group (`PACKET_FANOUT`) and returns its identifier, which the kernel
    /// chooses. Must follow [`Socket::bind`]: `fanout_add` rejects a socket without a protocol and,
    /// before Linux 6.13, one that does not receive. Until all members have joined, each receives
    /// every frame; [`Socket::reject_all`] prevents that.
    pub fn create_fanout(&self, fanout: Fanout) -> Result<u16> {
        let unique = u32::from(fanout.type_flags() | libc::PACKET_FANOUT_FLAG_UNIQUEID as u16) << 16;
        self.set_packet(libc::PACKET_FANOUT, &unique, "create a fanout group on")?;
        let mut group: u32 = 0;
        self.get(libc::SOL_PACKET, libc::PACKET_FANOUT, &mut group)?;
        Ok(group as u16)
    }

    /// Joins the fanout group `id`. Must follow [`Socket::bind`].
    pub fn join_fanout(&self, id: u16, fanout: Fanout) -> Result<()> {
        let argument = u32::from(id) | u32::from(fanout.type_flags()) << 16;
        self.set_packet(libc::PACKET_FANOUT, &argument, "join a fanout group on")
    }

    /// Bypasses the queueing discipline on sends (`PACKET_QDISC_BYPASS`).
    pub fn bypass_qdisc(&self) -> Result<()> {
        self.set_packet(libc::PACKET_QDISC_BYPASS, &1_i32, "bypass the qdisc on")
    }

    /// Enables control messages with VLAN tags and lengths (`PACKET_AUXDATA`) and kernel timestamps
    /// (`SO_TIMESTAMPNS`).
    pub fn enable_control_messages(&self) -> Result<()> {
        self.set_packet(libc::PACKET_AUXDATA, &1_i32, "enable auxdata on")?;
        self.set(libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1_i32, "enable timestamps on")
    }

    /// Sets the receive buffer to `bytes` (the kernel doubles it for its own overhead) and returns
    /// the granted bytes. Without `CAP_NET_ADMIN` the limit is `net.core.rmem_max`.
    pub fn set_receive_buffer(&self, bytes: u32) -> Result<u32> {
        let forced =
            self.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &(bytes as i32), "set the receive buffer of");
        if forced.is_err() {
            self.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &(bytes as i32), "set the receive buffer of")?;
        }
        let mut granted: libc::c_int = 0;
        self.get(libc::SOL_SOCKET, libc::SO_RCVBUF, &mut granted)?;
        Ok(granted as u32)
    }

    /// Reads and clears the statistics (`PACKET_STATISTICS`).
    pub fn statistics(&self) -> Result<Statistics> {
        let mut raw = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
        self.get(libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut raw)?;
        Ok(Statistics { packets: raw.tp_packets, drops: raw.tp_drops, freezes: raw.tp_freeze_q_cnt })
    }

    /// Returns the name passed to [`Socket::open`].
    pub fn interface(&self) -> &str {
        &self.interface
    }

    pub(super) fn raw(&self) -> libc::c_int {
        self.fd.as_raw_fd()
    }

    pub(super) fn set_packet<T>(&self, option: libc::c_int, value: &T, doing: &'static str) -> Result<()> {
        self.set(libc::SOL_PACKET, option, value, doing)
    }

    fn set<T>(&self, level: libc::c_int, option: libc::c_int, value: &T, doing: &'static str) -> Result<()> {
        socket::set(self.as_fd(), (level, option), value, (doing, &self.interface))
    }

    fn get<T: Copy>(&self, level: libc::c_int, option: libc::c_int, value: &mut T) -> Result<()> {
        let doing = "read an option of a packet socket on";
        socket::get(self.as_fd(), (level, option), value, (doing, &self.interface)).map(drop)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
