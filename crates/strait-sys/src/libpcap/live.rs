//! Capture with the system's libpcap, as in a program that is linked with it: pcap(3pcap).
//!
//! Benchmarks compare it with Strait's own engines, and the doctor inspects the socket that it
//! opens on an interface.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::{Handle, PacketHeader, Statistics, snaplen_of};
use crate::error::{Error, Kind, Result};

/// `PCAP_TSTAMP_PRECISION_NANO`.
const NANOSECONDS: i32 = 1;
/// `PCAP_ERROR_BREAK`: [`Breaker::end`] ended the loop.
const ENDED: i32 = -2;

/// Options of a capture with libpcap.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Maximum captured bytes of a packet; they determine the layout of the ring.
    pub snaplen: u32,
    /// Maximum time that libpcap holds packets back.
    pub timeout: Duration,
    /// Hold no packets back.
    pub immediate: bool,
    /// Set the interface to promiscuous mode.
    pub promiscuous: bool,
}

/// Open libpcap capture, with its default ring.
#[derive(Debug)]
pub struct Reader {
    handle: Arc<Shared>,
}

/// Ends the wait of a [`Reader`] from another thread.
#[derive(Clone, Debug)]
pub struct Breaker {
    handle: Arc<Shared>,
}

#[derive(Debug)]
struct Shared(Handle);

// SAFETY: a shared reference only allows `pcap_breakloop`, which any thread may call at any time.
// All other calls need the one `Reader`, mutably.
unsafe impl Sync for Shared {}

/// Packet from libpcap.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Captured bytes.
    pub bytes: &'a [u8],
    /// Length on the wire.
    pub wire_len: u32,
    /// Nanoseconds since the epoch.
    pub timestamp_ns: u64,
}

/// `struct pcap_stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that passed the filter, including dropped ones.
    pub received: u32,
    /// Packets dropped for lack of room.
    pub dropped: u32,
}

impl Reader {
    /// `pcap_create`, `pcap_activate`.
    ///
    /// # Errors
    /// As for [`super::Compiler::live`].
    pub fn open(interface: &str, options: Options) -> Result<Self> {
        let Options { snaplen, timeout, immediate, promiscuous } = options;
        let handle = Handle::create(interface)?;
        let (library, pcap) = (handle.library, handle.pcap);
        // SAFETY: the handle is new and not yet active, as these calls require.
        unsafe {
            (library.set_snaplen)(pcap, snaplen_of(snaplen));
            (library.set_promisc)(pcap, i32::from(promiscuous));
            (library.set_timeout)(pcap, timeout.as_millis().min(i32::MAX as u128) as i32);
            (library.set_immediate_mode)(pcap, i32::from(immediate));
            (library.set_tstamp_precision)(pcap, NANOSECONDS);
        }
        handle.activate(interface)?;
        Ok(Self { handle: Arc::new(Shared(handle)) })
    }

    /// `pcap_compile`, `pcap_setfilter`.
    ///
    /// # Errors
    /// [`Kind::Usage`] if the text is not a filter.
    pub fn set_filter(&mut self, filter: &str) -> Result<()> {
        let handle = &self.handle.0;
        let failed = |message| Error::new(Kind::Usage, "set the filter", format!("{filter:?}"), message);
        let mut compiled = handle.compile(filter, true)?.map_err(failed)?;
        // SAFETY: the handle is active; libpcap made the program and only reads it.
        match unsafe { (handle.library.set_filter)(handle.pcap, &raw mut compiled.program) } {
            0 => Ok(()),
            _ => Err(failed(handle.error())),
        }
    }

    /// Returns a handle that ends this reader's wait.
    pub fn breaker(&self) -> Breaker {
        Breaker { handle: Arc::clone(&self.handle) }
    }

    /// `pcap_dispatch`: waits for packets and passes those of one pass over the ring to `take`.
    /// Returns false after [`Breaker::end`].
    pub fn dispatch<F: FnMut(Packet<'_>)>(&mut self, take: &mut F) -> Result<bool> {
        unsafe extern "C" fn call<F: FnMut(Packet<'_>)>(
            user: *mut u8,
            header: *const PacketHeader,
            bytes: *const u8,
        ) {
            // SAFETY: `user` is the closure that `dispatch` borrows mutably; libpcap guarantees the
            // other pointers.
            let (take, header, bytes) = unsafe {
                let header = &*header;
                (
                    &mut *user.cast::<F>(),
                    header,
                    std::slice::from_raw_parts(bytes, header.captured_bytes as usize),
                )
            };
            // tv_usec holds nanoseconds, as requested.
            let timestamp_ns = header.time.tv_sec as u64 * 1_000_000_000 + header.time.tv_usec as u64;
            take(Packet { bytes, wire_len: header.wire_bytes, timestamp_ns });
        }
        let Handle { library, pcap } = self.handle.0;
        // SAFETY: the handle is active, and the closure outlives the call.
        let returned = unsafe { (library.dispatch)(pcap, -1, call::<F>, std::ptr::from_mut(take).cast()) };
        match returned {
            0.. => Ok(true),
            ENDED => Ok(false),
            _ => Err(Error::new(Kind::Failed, "read with", "libpcap", self.handle.0.error())),
        }
    }

    /// `pcap_stats`.
    pub fn counts(&mut self) -> Result<Counts> {
        let mut counts = Statistics::default();
        let Handle { library, pcap } = self.handle.0;
        // SAFETY: the handle is active, and counts is written only.
        if unsafe { (library.stats)(pcap, &raw mut counts) } < 0 {
            return Err(Error::new(Kind::Failed, "read the counters of", "libpcap", self.handle.0.error()));
        }
        Ok(Counts { received: counts.received, dropped: counts.dropped })
    }

    /// `pcap_fileno`: returns its packet socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        let Handle { library, pcap } = self.handle.0;
        // SAFETY: the handle is active, so it has a descriptor, which lives as long as the handle.
        unsafe { BorrowedFd::borrow_raw((library.fileno)(pcap)) }
    }
}

impl Breaker {
    /// `pcap_breakloop`.
    pub fn end(&self) {
        let Handle { library, pcap } = self.handle.0;
        // SAFETY: the handle is open; any thread may call this.
        unsafe { (library.breakloop)(pcap) }
    }
}
