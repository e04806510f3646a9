//! Capture by the system's libpcap, as a program that is linked with it does: pcap(3pcap).
//!
//! Benchmarks read with it beside Strait's own engines, and the doctor asks it what it does on an interface.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use super::{Handle, PacketHeader, Statistics, snaplen_of};
use crate::error::{Error, Kind, Result};

/// `PCAP_TSTAMP_PRECISION_NANO`.
const NANOSECONDS: i32 = 1;
/// `PCAP_ERROR_BREAK`: the loop was ended by [`Breaker::end`].
const ENDED: i32 = -2;

/// How libpcap is to capture.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of a packet that it is to keep; it lays its ring out for them.
    pub snaplen: u32,
    /// How long it may keep packets back.
    pub timeout: Duration,
    /// It keeps back none.
    pub immediate: bool,
    /// It sets the interface to promiscuous mode.
    pub promiscuous: bool,
}

/// An open capture of libpcap's, with its default ring.
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

// SAFETY: through a shared reference only `pcap_breakloop` is called, which any thread may call at any time; all else
// needs the one `Reader`, mutably.
unsafe impl Sync for Shared {}

/// A packet as libpcap hands it over.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The captured bytes.
    pub bytes: &'a [u8],
    /// Length on the wire.
    pub wire_len: u32,
    /// Nanoseconds since the epoch.
    pub timestamp_ns: u64,
}

/// `struct pcap_stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that passed the filter, dropped ones included.
    pub received: u32,
    /// Packets for which there was no room.
    pub dropped: u32,
}

impl Reader {
    /// `pcap_create`, `pcap_activate`.
    ///
    /// # Errors
    /// As [`super::Compiler::live`].
    pub fn open(interface: &str, options: Options) -> Result<Self> {
        let Options { snaplen, timeout, immediate, promiscuous } = options;
        let handle = Handle::create(interface)?;
        let (library, pcap) = (handle.library, handle.pcap);
        // SAFETY: the handle is new and not yet active, which is what these calls ask for.
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

    /// What ends this reader's wait.
    pub fn breaker(&self) -> Breaker {
        Breaker { handle: Arc::clone(&self.handle) }
    }

    /// `pcap_dispatch`: waits for packets and hands those of one look at the ring to `take`. False after
    /// [`Breaker::end`].
    pub fn dispatch<F: FnMut(Packet<'_>)>(&mut self, take: &mut F) -> Result<bool> {
        unsafe extern "C" fn call<F: FnMut(Packet<'_>)>(
            user: *mut u8,
            header: *const PacketHeader,
            bytes: *const u8,
        ) {
            // SAFETY: `user` is the closure that `dispatch` borrows mutably; the rest is libpcap's word.
            let (take, header, bytes) = unsafe {
                let header = &*header;
                (
                    &mut *user.cast::<F>(),
                    header,
                    std::slice::from_raw_parts(bytes, header.captured_bytes as usize),
                )
            };
            // Nanoseconds stand in tv_usec, as was asked for.
            let timestamp_ns = header.time.tv_sec as u64 * 1_000_000_000 + header.time.tv_usec as u64;
            take(Packet { bytes, wire_len: header.wire_bytes, timestamp_ns });
        }
        let Handle { library, pcap } = self.handle.0;
        // SAFETY: the handle is active, and the closure outlives the call.
        let returned = unsafe { (library.dispatch)(pcap, -1, call::<F>, std::ptr::from_mut(take).cast()) };
        match returned {
            0.. => Ok(true),
            ENDED => Ok(false),
            _ => Err(Error::said(Kind::Failed, "read with", "libpcap", self.handle.0.error())),
        }
    }

    /// `pcap_stats`.
    pub fn counts(&mut self) -> Result<Counts> {
        let mut counts = Statistics::default();
        let Handle { library, pcap } = self.handle.0;
        // SAFETY: the handle is active, and counts is written only.
        if unsafe { (library.stats)(pcap, &raw mut counts) } < 0 {
            return Err(Error::said(Kind::Failed, "read the counters of", "libpcap", self.handle.0.error()));
        }
        Ok(Counts { received: counts.received, dropped: counts.dropped })
    }

    /// `pcap_fileno`: its packet socket.
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
