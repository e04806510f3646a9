//! Socket: options, rings, statistics.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::ring::Ring;
use super::{Receiver, SLOT_BYTES, SLOTS_MAX, SLOTS_MIN, Transmitter};
use crate::error::{Error, Kind, Result, check};
use crate::mmap::Mapping;
use crate::packet::Instruction;
use crate::socket::{self, LinkState};

/// `AF_ZEROCOPY` and its constants (`kmod/pf_zerocopy/pf_zerocopy.h`).
const AF_ZEROCOPY: libc::c_int = 25;
const SOL_ZEROCOPY: libc::c_int = 350;
const ZEROCOPY_RX_RING: libc::c_int = 1;
const ZEROCOPY_TX_RING: libc::c_int = 2;
const ZEROCOPY_STATISTICS: libc::c_int = 3;
const ZEROCOPY_MODERATION: libc::c_int = 4;
const ZEROCOPY_PGOFF_RX_RING: i64 = 0;
const ZEROCOPY_PGOFF_TX_RING: i64 = 0x8000_0000;

/// `struct sockaddr_zerocopy`
#[repr(C)]
struct Address {
    family: u16,
    queue: u16,
    ifindex: u32,
}

/// `struct zerocopy_ring_req`
#[repr(C)]
struct RingRequest {
    addr: u64,
    slots: u32,
    reserved: u32,
}

/// `struct zerocopy_statistics`: counts since the socket was bound.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames made readable.
    pub rx_frames: u64,
    /// Frames that the NIC lost because no slot was writable.
    pub rx_no_buffer: u64,
    /// Frames that were damaged or longer than a slot.
    pub rx_errors: u64,
    /// Frames that the NIC has sent.
    pub tx_frames: u64,
    /// Frames handed over but not sent, because the device went down.
    pub tx_dropped: u64,
    /// Frames that the filter rejected.
    pub rx_filtered: u64,
}

/// `PF_ZEROCOPY` socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    interface: String,
}

impl Socket {
    /// `socket(PF_ZEROCOPY, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)`. Errors name `interface`.
    ///
    /// # Errors
    /// EAFNOSUPPORT if the module is not loaded or is older than this crate, EPERM without
    /// `CAP_NET_RAW`.
    pub fn open(interface: &str) -> Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: socket(2) takes no pointers.
        let fd = unsafe { libc::socket(AF_ZEROCOPY, kind, 0) };
        let fd =
            check(fd, "open a PF_ZEROCOPY socket on", interface).map_err(|error| match error.errno() {
                Some(libc::EAFNOSUPPORT) => error.with_kind(Kind::Refused).remedy(
                    "load the module if it supports the NIC: see strait doctor and docs/guide/zerocopy.md",
                ),
                _ => error.remedy("run as root, or give the program cap_net_raw+ep with setcap"),
            })?;
        // SAFETY: fd was just returned by socket(2) and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let socket = Self { fd, interface: interface.to_owned() };
        socket.check_version()?;
        Ok(socket)
    }

    /// Refuses an older module, which would ignore a filter: its statistics lack `rx_filtered`.
    fn check_version(&self) -> Result<()> {
        let (_, bytes) = self.read_statistics()?;
        if bytes == size_of::<Statistics>() {
            return Ok(());
        }
        let cause = "the loaded module pf_zerocopy has another version than this program";
        let error = Error::new(Kind::Refused, "open a PF_ZEROCOPY socket on", &*self.interface, cause);
        Err(error.remedy("load the module of this version: rmmod pf_zerocopy, then modprobe pf_zerocopy"))
    }

    /// Registers a buffer of `slots` slots, a power of two from [`SLOTS_MIN`] to [`SLOTS_MAX`], and
    /// maps its ring. Must precede [`Socket::bind`].
    ///
    /// # Errors
    /// ENOBUFS if the limit of locked memory (`ulimit -l`) is too small; EBUSY for a second buffer.
    pub fn receiver(&self, slots: u32) -> Result<Receiver> {
        Ok(Receiver::new(self.ring(slots, ZEROCOPY_RX_RING, ZEROCOPY_PGOFF_RX_RING)?))
    }

    /// Registers a buffer for sending, as [`Socket::receiver`] does for receiving.
    ///
    /// # Errors
    /// As for [`Socket::receiver`].
    pub fn transmitter(&self, slots: u32) -> Result<Transmitter> {
        Ok(Transmitter::new(self.ring(slots, ZEROCOPY_TX_RING, ZEROCOPY_PGOFF_TX_RING)?))
    }

    fn ring(&self, slots: u32, option: libc::c_int, offset: i64) -> Result<Ring> {
        let doing = "register a buffer for";
        if !slots.is_power_of_two() || !(SLOTS_MIN..=SLOTS_MAX).contains(&slots) {
            let cause = format!("{slots} slots: not a power of two from {SLOTS_MIN} to {SLOTS_MAX}");
            return Err(Error::new(Kind::Usage, doing, &*self.interface, cause));
        }
        let buffer = Mapping::anonymous(slots as usize * SLOT_BYTES, false)?;
        let request = RingRequest { addr: buffer.as_ptr() as u64, slots, reserved: 0 };
        // The kernel pins the pages until the socket closes, so the NIC may write to them even
        // after this process has unmapped them.
        let registered =
            socket::set(self.as_fd(), (SOL_ZEROCOPY, option), &request, (doing, &self.interface));
        registered.map_err(|error| match error.errno() {
            Some(libc::ENOBUFS) => error.remedy("raise the limit of locked memory: ulimit -l unlimited"),
            _ => error,
        })?;
        let shared = Mapping::shared(self.as_fd(), Ring::shared_bytes(slots), offset)?;
        Ok(Ring::new(shared, buffer, slots))
    }

    /// Attaches a classic BPF program (`SO_ATTACH_FILTER`), and replaces an earlier one. Rejected
    /// frames use no slot; other frames are received whole.
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

    /// Lets the NIC raise fewer interrupts the more frames arrive, by default one for each frame.
    pub fn moderate_interrupts(&self) -> Result<()> {
        let option = (SOL_ZEROCOPY, ZEROCOPY_MODERATION);
        socket::set(self.as_fd(), option, &1_i32, ("moderate the interrupts of", &self.interface))
    }

    /// Binds to a queue of an interface: its frames arrive from now on.
    ///
    /// # Errors
    /// EOPNOTSUPP if another driver has the interface, or if its DMA would go through bounce
    /// buffers (swiotlb), which is a copy; EBUSY if another socket has the queue; EINVAL if there
    /// is no such queue; ENODEV.
    pub fn bind(&self, ifindex: u32, queue: u16) -> Result<()> {
        let address = Address { family: AF_ZEROCOPY as u16, queue, ifindex };
        let len = size_of::<Address>() as libc::socklen_t;
        // SAFETY: address points at an address of that length.
        let returned = unsafe { libc::bind(self.raw(), (&raw const address).cast(), len) };
        let bound = check(returned, "bind a PF_ZEROCOPY socket to", &*self.interface).map(drop);
        bound.map_err(|error| match error.errno() {
            Some(libc::EBUSY) => error.remedy("a queue takes one socket at a time: end the other program"),
            _ => error,
        })
    }

    /// `sendmsg(MSG_DONTWAIT)` without data: hands the readable slots of the transmit ring to the
    /// NIC. A full NIC is not an error.
    pub(super) fn send(&self) -> Result<()> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: no bytes are passed.
        let sent = unsafe { libc::send(self.raw(), std::ptr::null(), 0, flags) };
        if sent >= 0 {
            return Ok(());
        }
        let error = Error::last_os("send on", &*self.interface);
        if error.errno() == Some(libc::EAGAIN) { Ok(()) } else { Err(self.explain(error)) }
    }

    /// `shutdown(SHUT_RDWR)`: detaches the rings from the NIC. Received frames stay readable.
    /// Succeeds if the interface was removed.
    pub fn shut_down(&self) -> Result<()> {
        // SAFETY: shutdown(2) takes no pointers.
        let returned = unsafe { libc::shutdown(self.raw(), libc::SHUT_RDWR) };
        match check(returned, "end the capture on", &*self.interface) {
            Err(error) if error.errno() == Some(libc::ENOTCONN) => Ok(()),
            shut => shut.map(drop),
        }
    }

    /// Reads the statistics (`ZEROCOPY_STATISTICS`).
    pub fn statistics(&self) -> Result<Statistics> {
        self.read_statistics().map(|(statistics, _)| statistics)
    }

    /// Returns the statistics, and how many bytes of them the module has.
    fn read_statistics(&self) -> Result<(Statistics, usize)> {
        let mut statistics = Statistics::default();
        let option = (SOL_ZEROCOPY, ZEROCOPY_STATISTICS);
        let doing = ("read the statistics of", self.interface.as_str());
        let bytes = socket::get(self.as_fd(), option, &mut statistics, doing)?;
        Ok((statistics, bytes))
    }

    /// Returns and clears the pending error of the socket (`SO_ERROR`): ENETDOWN if the interface
    /// went down, ENODEV if it was removed.
    pub fn take_error(&self) -> Result<()> {
        socket::take_error(self.as_fd(), &self.interface).map_err(|error| self.explain(error))
    }

    /// Returns the state of the bound interface, before [`Socket::shut_down`]. A link that is down
    /// counts as up while frames are in the ring, so that the caller reads them first. The call
    /// clears the pending error of the socket.
    pub fn link_state(&self) -> Result<LinkState> {
        if self.interface_was_removed() {
            return Ok(LinkState::Removed);
        }
        // SAFETY: the socket takes a null buffer of length 0.
        let returned = unsafe { libc::recv(self.raw(), std::ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
        if returned >= 0 {
            return Ok(LinkState::Up);
        }
        let error = Error::last_os("read the state of", &*self.interface);
        match error.errno() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(LinkState::Up),
            Some(libc::ENETDOWN) => Ok(LinkState::Down),
            Some(libc::ENODEV) => Ok(LinkState::Removed),
            _ => Err(error),
        }
    }

    fn explain(&self, error: Error) -> Error {
        socket::explain(error, &self.interface, || self.interface_was_removed())
    }

    /// Returns true if the interface was removed: the socket is then bound to none. An interface
    /// goes down before it is removed; the kernel answers when both are complete.
    fn interface_was_removed(&self) -> bool {
        let mut address = Address { family: 0, queue: 0, ifindex: 0 };
        let mut len = size_of::<Address>() as libc::socklen_t;
        // SAFETY: the kernel writes at most len bytes to address.
        let returned = unsafe { libc::getsockname(self.raw(), (&raw mut address).cast(), &raw mut len) };
        returned == 0 && address.ifindex == 0
    }

    fn raw(&self) -> libc::c_int {
        self.fd.as_raw_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
