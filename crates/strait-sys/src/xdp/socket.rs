//! `AF_XDP` socket: one receive queue of one interface.
//!
//! Call [`Socket::open`], then [`Socket::register`] for the first socket of a UMEM, then
//! [`Socket::receiver`] and [`Socket::transmitter`] for its rings, then [`Socket::bind`], or
//! [`Socket::bind_shared`] for further sockets of the UMEM. Frames arrive when an XDP program
//! redirects them to the socket through an XSKMAP. Nothing here waits.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::memory::Mapped;
use super::ring::{Consumer, Producer};
use super::umem::Memory;
use super::{Receiver, SLOTS_MAX, Share, Transmitter, Umem};
use crate::error::{Error, Kind, Result, check};
use crate::mmap::Mapping;
use crate::socket::{INTERFACE_REMOVED, LinkState};

/// Copy mode of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Zero-copy if the driver can, otherwise copies: the kernel decides. [`Socket::is_zero_copy`]
    /// returns its choice.
    Either,
    /// `XDP_ZEROCOPY`: the NIC writes into the UMEM, or binding fails.
    ZeroCopy,
    /// `XDP_COPY`: the kernel copies. The only mode under a generic XDP program.
    Copy,
}

/// Queue and mode that a socket is bound with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// Index of the interface.
    pub ifindex: u32,
    /// Receive queue, from 0.
    pub queue: u32,
    /// Copy mode.
    pub mode: Mode,
    /// `XDP_USE_SG`, Linux 6.6: frames longer than a chunk arrive in fragments.
    pub multi_buffer: bool,
}

impl Binding {
    fn flags(&self) -> u16 {
        let mode = match self.mode {
            Mode::Either => 0,
            Mode::ZeroCopy => libc::XDP_ZEROCOPY,
            Mode::Copy => libc::XDP_COPY,
        };
        let multi_buffer = if self.multi_buffer { libc::XDP_USE_SG } else { 0 };
        libc::XDP_USE_NEED_WAKEUP | mode | multi_buffer
    }
}

/// `XDP_STATISTICS`: counts since the socket was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Frames dropped because the fill ring had no chunk (copy mode), or because they were longer
    /// than a chunk.
    pub rx_dropped: u64,
    /// Addresses on the fill ring that the kernel refused.
    pub rx_invalid_descriptors: u64,
    /// Descriptors on the TX ring that the kernel refused.
    pub tx_invalid_descriptors: u64,
    /// Frames dropped because the RX ring was full.
    pub rx_ring_full: u64,
    /// Times that the kernel found the fill ring empty.
    pub fill_ring_empty: u64,
    /// Times that the kernel found the TX ring empty.
    pub tx_ring_empty: u64,
}

/// `AF_XDP` socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    interface: String,
    has_fill: bool,
    has_completion: bool,
    /// UMEM of this socket: the registered one, or that of the shares of its rings. The kernel
    /// resolves chunk addresses in this UMEM, so shares of another one are refused.
    memory: Option<Arc<Memory>>,
}

impl Socket {
    /// `socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0)`. Errors name `interface`.
    ///
    /// # Errors
    /// EPERM without `CAP_NET_RAW`; EAFNOSUPPORT if the kernel was built without `AF_XDP`.
    pub fn open(interface: &str) -> Result<Self> {
        // SAFETY: socket(2) takes no pointers.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        let fd = check(fd, "open an AF_XDP socket on", interface).map_err(|error| match error.errno() {
            Some(libc::EAFNOSUPPORT) => {
                error.with_kind(Kind::Refused).remedy("this kernel has no AF_XDP (CONFIG_XDP_SOCKETS)")
            }
            _ => error.remedy(crate::bpf::PRIVILEGE),
        })?;
        // SAFETY: fd was just returned by socket(2) and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, interface: interface.to_owned(), has_fill: false, has_completion: false, memory: None })
    }

    /// `setsockopt(XDP_UMEM_REG)`: makes this socket the owner of `umem`; others share it by
    /// [`Socket::bind_shared`]. The kernel pins its pages.
    ///
    /// # Errors
    /// ENOBUFS if the pages exceed `RLIMIT_MEMLOCK`; [`Kind::Usage`] if the socket has a share of
    /// another UMEM.
    pub fn register(&mut self, umem: &Umem) -> Result<()> {
        self.adopt_umem(umem.memory())?;
        self.set_xdp(libc::XDP_UMEM_REG, &umem.registration(), "register a UMEM with").map_err(|error| {
            match error.errno() {
                Some(libc::ENOBUFS | libc::ENOMEM) => {
                    let mib = umem.geometry().bytes().div_ceil(1 << 20);
                    error.with_kind(Kind::Refused).remedy(format!(
                        "it locks {mib} MiB of memory: raise `ulimit -l`, give the program cap_ipc_lock, or ask for \
                         less memory"
                    ))
                }
                _ => error,
            }
        })
    }

    /// Makes and maps an RX ring of `slots` and a fill ring with a slot for each chunk of `share`,
    /// and puts all chunks on the fill ring. Must precede [`Socket::bind`].
    ///
    /// # Errors
    /// [`Kind::Usage`] if `slots` is not a power of two or exceeds [`SLOTS_MAX`], or if `share`
    /// belongs to another UMEM than the socket.
    pub fn receiver(&mut self, slots: u32, share: Share) -> Result<Receiver> {
        self.adopt_umem(share.memory())?;
        let fill_slots = share.chunks().next_power_of_two();
        self.make_ring(libc::XDP_RX_RING, slots)?;
        self.make_ring(libc::XDP_UMEM_FILL_RING, fill_slots)?;
        self.has_fill = true;
        let offsets = self.offsets()?;
        let rx = self.map_ring(offsets.rx, slots, libc::XDP_PGOFF_RX_RING)?;
        let fill = self.map_ring(offsets.fr, fill_slots, libc::XDP_UMEM_PGOFF_FILL_RING as i64)?;
        Ok(Receiver::new(Consumer::new(Arc::new(rx)), Producer::new(fill), share))
    }

    /// Makes and maps a TX ring of `slots` and a completion ring with a slot for each chunk of
    /// `share`. Must precede [`Socket::bind`].
    ///
    /// # Errors
    /// [`Kind::Usage`] if `slots` is not a power of two or exceeds [`SLOTS_MAX`], or if `share`
    /// belongs to another UMEM than the socket.
    pub fn transmitter(&mut self, slots: u32, share: Share) -> Result<Transmitter> {
        self.adopt_umem(share.memory())?;
        let completion_slots = share.chunks().next_power_of_two();
        self.make_ring(libc::XDP_TX_RING, slots)?;
        self.make_ring(libc::XDP_UMEM_COMPLETION_RING, completion_slots)?;
        self.has_completion = true;
        let offsets = self.offsets()?;
        let tx = self.map_ring(offsets.tx, slots, libc::XDP_PGOFF_TX_RING)?;
        let completion =
            self.map_ring(offsets.cr, completion_slots, libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64)?;
        Ok(Transmitter::new(Producer::new(tx), Consumer::new(completion), share))
    }

    /// Binds to a queue, with need-wakeup.
    ///
    /// # Errors
    /// EBUSY if another socket has the queue, EINVAL if there is no such queue, EOPNOTSUPP if the
    /// driver lacks zero-copy and the mode requires it.
    pub fn bind(&mut self, binding: &Binding) -> Result<()> {
        self.make_missing_rings()?;
        self.bind_to(binding, binding.flags(), 0)
    }

    /// Binds with `XDP_SHARED_UMEM`: to a queue, on the UMEM and in the mode of `first`, which is
    /// bound.
    ///
    /// # Errors
    /// As for [`Socket::bind`]; [`Kind::Usage`] if `first` has another UMEM, or none.
    pub fn bind_shared(&mut self, binding: &Binding, first: &Self) -> Result<()> {
        match &first.memory {
            Some(memory) => self.adopt_umem(memory)?,
            None => return Err(self.foreign_umem()),
        }
        self.make_missing_rings()?;
        self.bind_to(binding, libc::XDP_SHARED_UMEM, first.fd.as_raw_fd() as u32)
    }

    /// Checks that `memory` is the socket's UMEM, or makes it so. The kernel resolves chunk
    /// addresses in the socket's UMEM: chunks of another UMEM would make it write to memory that
    /// has another owner.
    fn adopt_umem(&mut self, memory: &Arc<Memory>) -> Result<()> {
        if Arc::ptr_eq(self.memory.get_or_insert_with(|| Arc::clone(memory)), memory) {
            return Ok(());
        }
        Err(self.foreign_umem())
    }

    fn foreign_umem(&self) -> Error {
        Error::new(
            Kind::Usage,
            "use a share of a UMEM on",
            self.interface.as_str(),
            "the socket has another UMEM",
        )
    }

    /// Returns true if the NIC writes into the UMEM itself (`XDP_OPTIONS`).
    pub fn is_zero_copy(&self) -> Result<bool> {
        let mut options = libc::xdp_options { flags: 0 };
        self.get_xdp(libc::XDP_OPTIONS, &mut options, "read the mode of")?;
        Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// `getsockopt(XDP_STATISTICS)`.
    pub fn statistics(&self) -> Result<Statistics> {
        // SAFETY: xdp_statistics is plain data, for which zeroes are valid.
        let mut raw: libc::xdp_statistics = unsafe { std::mem::zeroed() };
        self.get_xdp(libc::XDP_STATISTICS, &mut raw, "read the statistics of")?;
        Ok(Statistics {
            rx_dropped: raw.rx_dropped,
            rx_invalid_descriptors: raw.rx_invalid_descs,
            tx_invalid_descriptors: raw.tx_invalid_descs,
            rx_ring_full: raw.rx_ring_full,
            fill_ring_empty: raw.rx_fill_ring_empty_descs,
            tx_ring_empty: raw.tx_ring_empty_descs,
        })
    }

    /// `SO_PREFER_BUSY_POLL`, `SO_BUSY_POLL`, `SO_BUSY_POLL_BUDGET`: the driver's NAPI poll runs in
    /// this thread's system calls, for at most `budget` frames each, and the NIC's interrupts stay
    /// off. Linux 5.11.
    ///
    /// # Errors
    /// EPERM without `CAP_NET_ADMIN`; EINVAL on an older kernel. Drivers without NAPI ignore it.
    pub fn set_busy_poll(&self, busy_poll_us: u32, budget: u16) -> Result<()> {
        // include/uapi/asm-generic/socket.h
        const SO_BUSY_POLL: libc::c_int = 46;
        const SO_PREFER_BUSY_POLL: libc::c_int = 69;
        const SO_BUSY_POLL_BUDGET: libc::c_int = 70;
        let set = |option, value: u32| {
            self.set(libc::SOL_SOCKET, option, &value, "set busy polling on")
                .map_err(|error| error.with_kind(Kind::Refused))
        };
        set(SO_PREFER_BUSY_POLL, 1)?;
        set(SO_BUSY_POLL, busy_poll_us)?;
        set(SO_BUSY_POLL_BUDGET, u32::from(budget))
    }

    /// `recvfrom(MSG_DONTWAIT)`: notifies the driver of new chunks, or runs it if busy polling is
    /// set.
    ///
    /// # Errors
    /// ENETDOWN if the interface is down, ENXIO if it was removed.
    pub fn wake_rx(&self) -> Result<()> {
        let (none, flags) = (std::ptr::null_mut(), libc::MSG_DONTWAIT);
        // SAFETY: an AF_XDP socket takes a null buffer of length 0 and no address.
        let returned =
            unsafe { libc::recvfrom(self.raw(), none, 0, flags, std::ptr::null_mut(), std::ptr::null_mut()) };
        self.wake_result(returned, "receive on").map(drop)
    }

    /// `sendto(MSG_DONTWAIT)`: makes the kernel send from the TX ring. Returns true if frames are
    /// left because of the kernel's limit for a call or the device's: call again.
    ///
    /// # Errors
    /// ENETDOWN if the interface is down, ENXIO if it was removed.
    pub fn wake_tx(&self) -> Result<bool> {
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: an AF_XDP socket takes a null buffer of length 0 and no address.
        let returned = unsafe { libc::sendto(self.raw(), std::ptr::null(), 0, flags, std::ptr::null(), 0) };
        self.wake_result(returned, "send on")
    }

    /// Returns the state of the bound interface: a wake-up fails if the device is down or removed
    /// (`xsk_recvmsg` in net/xdp/xsk.c).
    pub fn link_state(&self) -> Result<LinkState> {
        match self.wake_rx() {
            Ok(()) => Ok(LinkState::Up),
            Err(error) => match error.errno() {
                Some(libc::ENETDOWN) => Ok(LinkState::Down),
                Some(libc::ENXIO) => Ok(LinkState::Removed),
                _ => Err(error),
            },
        }
    }

    /// Returns the interface's name, as passed to [`Socket::open`].
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Returns true if the kernel is busy or short of memory, so the call must be repeated.
    fn wake_result(&self, returned: isize, operation: &'static str) -> Result<bool> {
        if returned >= 0 {
            return Ok(false);
        }
        let error = Error::last_os(operation, &*self.interface);
        match error.errno() {
            Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::EINTR) => Ok(true),
            Some(libc::ENETDOWN) => Err(self.explain_down(error)),
            Some(libc::ENXIO) => Err(error.with_kind(Kind::Failed).remedy(INTERFACE_REMOVED)),
            _ => Err(error),
        }
    }

    fn explain_down(&self, error: Error) -> Error {
        error.remedy(format!("bring it up: ip link set {} up", self.interface))
    }

    /// Makes the rings that are missing: bind(2) requires a fill and a completion ring even of a
    /// socket that only sends or only receives.
    fn make_missing_rings(&mut self) -> Result<()> {
        const UNUSED_SLOTS: u32 = 2;
        if !self.has_fill {
            self.make_ring(libc::XDP_UMEM_FILL_RING, UNUSED_SLOTS)?;
            self.has_fill = true;
        }
        if !self.has_completion {
            self.make_ring(libc::XDP_UMEM_COMPLETION_RING, UNUSED_SLOTS)?;
            self.has_completion = true;
        }
        Ok(())
    }

    fn bind_to(&self, binding: &Binding, flags: u16, shared_umem_fd: u32) -> Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: binding.ifindex,
            sxdp_queue_id: binding.queue,
            sxdp_shared_umem_fd: shared_umem_fd,
        };
        let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
        // SAFETY: address points at a sockaddr_xdp of that length.
        let returned = unsafe { libc::bind(self.raw(), (&raw const address).cast(), len) };
        let subject = format!("queue {} of {}", binding.queue, self.interface);
        check(returned, "bind an AF_XDP socket to", subject)
            .map(drop)
            .map_err(|error| self.explain_bind(error, binding))
    }

    fn explain_bind(&self, error: Error, binding: &Binding) -> Error {
        match error.errno() {
            Some(libc::EBUSY) => error.with_kind(Kind::Refused).remedy("another AF_XDP socket has this queue"),
            Some(libc::EOPNOTSUPP) => error.remedy("the driver has no zero-copy: --path xdp uses copies instead"),
            Some(libc::ENETDOWN) => self.explain_down(error),
            Some(libc::EINVAL) if binding.multi_buffer => error.with_kind(Kind::Usage).remedy(
                "the interface has no such queue (`ethtool -l` shows them), or the kernel has no multi-buffer \
                 AF_XDP (Linux 6.6)",
            ),
            Some(libc::EINVAL) => error
                .with_kind(Kind::Usage)
                .remedy("the interface has no such queue (`ethtool -l` shows them)"),
            _ => error,
        }
    }

    fn make_ring(&self, option: libc::c_int, slots: u32) -> Result<()> {
        if !slots.is_power_of_two() || slots > SLOTS_MAX {
            let subject = format!("{slots} slots on {}", self.interface);
            let cause = format!("not a power of two up to {SLOTS_MAX}");
            return Err(Error::new(Kind::Usage, "make a ring of", subject, cause));
        }
        self.set_xdp(option, &slots, "make an AF_XDP ring on")
    }

    fn offsets(&self) -> Result<libc::xdp_mmap_offsets> {
        // SAFETY: xdp_mmap_offsets is plain data, for which zeroes are valid.
        let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
        self.get_xdp(libc::XDP_MMAP_OFFSETS, &mut offsets, "read the ring offsets of")?;
        Ok(offsets)
    }

    fn map_ring<T: Copy>(
        &self,
        offsets: libc::xdp_ring_offset,
        slots: u32,
        page_offset: i64,
    ) -> Result<Mapped<T>> {
        let memory = Mapping::shared(self.fd.as_fd(), Mapped::<T>::bytes(&offsets, slots), page_offset)?;
        Mapped::new(memory, offsets, slots)
    }

    fn set_xdp<T>(&self, option: libc::c_int, value: &T, operation: &'static str) -> Result<()> {
        self.set(libc::SOL_XDP, option, value, operation)
    }

    fn set<T>(
        &self,
        level: libc::c_int,
        option: libc::c_int,
        value: &T,
        operation: &'static str,
    ) -> Result<()> {
        let len = size_of::<T>() as libc::socklen_t;
        let value: *const T = value;
        // SAFETY: value points at len readable bytes.
        let returned = unsafe { libc::setsockopt(self.raw(), level, option, value.cast(), len) };
        check(returned, operation, &*self.interface).map(drop)
    }

    /// Reads an option of `SOL_XDP` of exactly the size of `value`, which is plain data.
    fn get_xdp<T>(&self, option: libc::c_int, value: &mut T, operation: &'static str) -> Result<()> {
        let mut len = size_of::<T>() as libc::socklen_t;
        let value: *mut T = value;
        // SAFETY: value points at len writable bytes; the callers' types are integers throughout.
        let returned =
            unsafe { libc::getsockopt(self.raw(), libc::SOL_XDP, option, value.cast(), &raw mut len) };
        check(returned, operation, &*self.interface)?;
        if len as usize == size_of::<T>() {
            return Ok(());
        }
        let cause = format!("the kernel returned {len} of {} bytes", size_of::<T>());
        Err(Error::new(Kind::Refused, operation, &*self.interface, cause)
            .remedy("Linux 5.15 or newer is needed"))
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
