//! Table of the live handles.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use strait_capture::{Error, LiveCounters, Reading, is_shared_interface};

use super::{PacketHeader, Pcap};
use crate::entry::Entry;

/// The process has forked and a child may continue its captures, or the process is such a child.
pub(super) static FORKED: AtomicBool = AtomicBool::new(false);

/// Number of forks between the process that opened the first handle and this one.
pub(super) static FORKS: AtomicU32 = AtomicU32::new(0);

/// Value of [`Live::read_by`] for a handle that no process has read.
const UNREAD: u32 = u32::MAX;

/// Maximum number of live handles.
const HANDLES_MAX: usize = 256;

/// The device that stands for all interfaces.
const ANY: &str = "any";

static ACTIVATION: Mutex<()> = Mutex::new(());
static TABLE: RwLock<Option<HashMap<usize, Arc<Live>>>> = RwLock::new(None);
static SLOTS: [Slot; HANDLES_MAX] = [const { Slot::free() }; HANDLES_MAX];

/// A handle of `pcap_create`.
pub(super) struct Live {
    pub(super) entry: Entry,
    /// The program's handle, from `pcap_open_dead`.
    handle: usize,
    /// libpcap's own handle for the same device. It gets all options, answers queries without
    /// relation to the capture, compiles filters, and captures if Strait cannot.
    stock: usize,
    pub(super) device: CString,
    /// The capture is open by Strait.
    active: AtomicBool,
    /// The capture is open by libpcap.
    pub(super) taken_over: AtomicBool,
    /// `stock` compiles filters for a live capture.
    pub(super) compiles: AtomicBool,
    /// Live counters of the open capture.
    pub(super) counters: OnceLock<Vec<LiveCounters>>,
    pub(super) last_packet: Mutex<LastPacket>,
    /// ID of the process that opened the capture.
    opened_by: u32,
    /// [`FORKS`] of the last process that read the capture, as far as this process knows.
    read_by: AtomicU32,
    /// Packets received and dropped at the last [`Self::statistics`].
    last: [AtomicU64; 2],
}

/// The packet that `pcap_next` and `pcap_next_ex` returned, valid until the next call.
pub(super) struct LastPacket {
    pub(super) header: Box<PacketHeader>,
    pub(super) bytes: Vec<u8>,
}

/// Entry of a table that can be searched without a lock, as signal handlers require.
struct Slot {
    /// The handle; 0 if the slot is free.
    handle: AtomicUsize,
    live: AtomicPtr<Live>,
}

impl Slot {
    const fn free() -> Self {
        Self { handle: AtomicUsize::new(0), live: AtomicPtr::new(std::ptr::null_mut()) }
    }
}

/// Handle to which a call applies.
pub(super) enum Target {
    Live(Arc<Live>),
    Real(*mut Pcap),
}

impl Live {
    /// Takes ownership of both handles.
    pub(super) fn new(entry: Entry, handle: *mut Pcap, stock: *mut Pcap, device: CString) -> Self {
        let zero = PacketHeader { ts: libc::timeval { tv_sec: 0, tv_usec: 0 }, caplen: 0, len: 0 };
        Self {
            entry,
            handle: handle as usize,
            stock: stock as usize,
            device,
            active: AtomicBool::new(false),
            taken_over: AtomicBool::new(false),
            compiles: AtomicBool::new(false),
            counters: OnceLock::new(),
            last_packet: Mutex::new(LastPacket { header: Box::new(zero), bytes: Vec::new() }),
            opened_by: std::process::id(),
            read_by: AtomicU32::new(UNREAD),
            last: [const { AtomicU64::new(0) }; 2],
        }
    }

    pub(super) fn stock(&self) -> *mut Pcap {
        self.stock as *mut Pcap
    }

    /// Records that this process reads the capture.
    pub(super) fn set_read(&self) {
        self.read_by.store(FORKS.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns true if this process may read the capture's counters and print its report: it opened
    /// the capture and has not passed it to a child unread, or it reads the capture. Reading the
    /// kernel's counters resets them for all processes that share the socket.
    pub(super) fn is_ours(&self) -> bool {
        let (forks, read_by) = (FORKS.load(Ordering::Relaxed), self.read_by.load(Ordering::Relaxed));
        if std::process::id() == self.opened_by {
            return read_by != UNREAD || !FORKED.load(Ordering::Relaxed);
        }
        forks != 0 && read_by == forks
    }

    /// Returns the packets received and dropped so far. In a process that does not read the capture
    /// they are the counts at the fork.
    pub(super) fn statistics(&self) -> Result<Reading, Error> {
        let [received, dropped] = &self.last;
        if self.is_ours() {
            let mut sum = Reading::default();
            for counters in self.counters.get().into_iter().flatten() {
                let reading = counters.read()?;
                sum.received += reading.received;
                sum.dropped += reading.dropped;
            }
            received.store(sum.received, Ordering::Relaxed);
            dropped.store(sum.dropped, Ordering::Relaxed);
        }
        let (received, dropped) = (received.load(Ordering::Relaxed), dropped.load(Ordering::Relaxed));
        Ok(Reading { received, dropped })
    }

    /// Returns true if the capture takes packets away from other handles on the device. A capture
    /// on all interfaces never does.
    fn takes_packets(&self) -> bool {
        let choice = &self.entry.choice;
        choice.device != ANY && choice.path.takes_frames()
    }

    /// Returns true if this handle and the open handle `other` cannot both receive packets. The
    /// caller holds the [`activation_lock`].
    pub(super) fn excludes(&self, other: &Self) -> bool {
        let is_open = other.is_active() || other.taken_over.load(Ordering::Relaxed);
        let takes = self.takes_packets() || (other.is_active() && other.takes_packets());
        let [own, others] = [self, other].map(|live| live.entry.choice.device.as_str());
        self.handle != other.handle && is_open && takes && is_shared_interface(own, others)
    }

    /// Returns true if Strait captures.
    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    pub(super) fn set_active(&self, counters: Vec<LiveCounters>) {
        self.counters.get_or_init(|| counters);
        self.active.store(true, Ordering::Release);
    }
}

/// Ends the capture, when the last call on the closed handle has returned.
impl Drop for Live {
    fn drop(&mut self) {
        // The live counters keep sockets open.
        self.counters.take();
        let is_ours = self.is_ours();
        let handle = self.entry.handle_mut();
        if is_ours {
            handle.close(FORKED.load(Ordering::Relaxed));
        } else {
            handle.abandon();
        }
        let (p, stock) = (self.handle as *mut Pcap, self.stock());
        real!(pcap_close(stock: *mut Pcap) -> ());
        real!(pcap_close(p: *mut Pcap) -> ());
    }
}

/// Adds a handle to the table and returns it. Returns `None` if the table is full.
pub(super) fn insert(live: Live) -> Option<*mut Pcap> {
    let p = live.handle as *mut Pcap;
    let free = |slot: &&Slot| {
        slot.handle.compare_exchange(0, p as usize, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let slot = SLOTS.iter().find(free)?;
    let live = Arc::new(live);
    slot.live.store(Arc::as_ptr(&live).cast_mut(), Ordering::Release);
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.get_or_insert_default().insert(p as usize, live);
    Some(p)
}

/// Locks the activation of captures. The holder checks the other open handles and opens its own. So
/// if two threads open the same device, the second sees the first's handle.
pub(super) fn activation_lock() -> MutexGuard<'static, ()> {
    ACTIVATION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns all live handles.
pub(super) fn all() -> Vec<Arc<Live>> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.iter().flat_map(HashMap::values).map(Arc::clone).collect()
}

/// Removes `p` from the table.
pub(super) fn remove(p: *mut Pcap) -> Option<Arc<Live>> {
    if let Some(slot) = SLOTS.iter().find(|slot| slot.handle.load(Ordering::Acquire) == p as usize) {
        slot.live.store(std::ptr::null_mut(), Ordering::Release);
        slot.handle.store(0, Ordering::Release);
    }
    TABLE.write().unwrap_or_else(PoisonError::into_inner).as_mut()?.remove(&(p as usize))
}

/// Returns the handle made by `pcap_create`, open or not, captured by Strait or by libpcap.
pub(super) fn find(p: *mut Pcap) -> Option<Arc<Live>> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.as_ref()?.get(&(p as usize)).map(Arc::clone)
}

/// Returns the handle that a call on `p` applies to.
pub(super) fn target(p: *mut Pcap) -> Target {
    match find(p) {
        None => Target::Real(p),
        Some(live) if live.is_active() => Target::Live(live),
        Some(live) => Target::Real(live.stock()),
    }
}

/// Like [`find`], without a lock. The result is valid until the handle is closed.
pub(super) fn peek(p: *mut Pcap) -> Option<&'static Live> {
    let slot = SLOTS.iter().find(|slot| slot.handle.load(Ordering::Acquire) == p as usize)?;
    // SAFETY: the table holds the handle until `remove`, which clears the slot first. A call on a
    // handle that another thread closes is an error in the program, as with libpcap.
    unsafe { slot.live.load(Ordering::Acquire).as_ref() }
}
