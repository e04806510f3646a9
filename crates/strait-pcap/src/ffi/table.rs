//! Which handles are live here.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use strait_capture::Gauge;

use super::{PacketHeader, Pcap};
use crate::entry::Entry;

/// Live handles at most; further ones are libpcap's.
const HANDLES_MAX: usize = 256;

static TABLE: RwLock<Option<HashMap<usize, Arc<Live>>>> = RwLock::new(None);
static SLOTS: [Slot; HANDLES_MAX] = [const { Slot::free() }; HANDLES_MAX];

/// A handle of `pcap_create`.
pub(super) struct Live {
    pub(super) entry: Entry,
    /// libpcap's own handle for the same device: it hears of everything that is set, answers what is no matter of the
    /// capture, and captures where Strait does not.
    pub(super) theirs: usize,
    pub(super) device: CString,
    /// The capture is open, and Strait's.
    active: AtomicBool,
    /// Read the counters, once the capture is open.
    pub(super) gauges: OnceLock<Vec<Gauge>>,
    pub(super) lent: Mutex<Lent>,
}

/// What `pcap_next` and `pcap_next_ex` lend until the next call.
pub(super) struct Lent {
    pub(super) header: Box<PacketHeader>,
    pub(super) bytes: Vec<u8>,
}

/// What finds a handle without a lock, as a signal handler must.
struct Slot {
    /// 0 where this is nobody's.
    handle: AtomicUsize,
    live: AtomicPtr<Live>,
}

impl Slot {
    const fn free() -> Self {
        Self { handle: AtomicUsize::new(0), live: AtomicPtr::new(std::ptr::null_mut()) }
    }
}

/// What a call on a handle is for.
pub(super) enum Target {
    Live(Arc<Live>),
    Real(*mut Pcap),
}

impl Live {
    pub(super) fn new(entry: Entry, theirs: *mut Pcap, device: CString) -> Self {
        let zero = PacketHeader { ts: libc::timeval { tv_sec: 0, tv_usec: 0 }, caplen: 0, len: 0 };
        Self {
            entry,
            theirs: theirs as usize,
            device,
            active: AtomicBool::new(false),
            gauges: OnceLock::new(),
            lent: Mutex::new(Lent { header: Box::new(zero), bytes: Vec::new() }),
        }
    }

    pub(super) fn theirs(&self) -> *mut Pcap {
        self.theirs as *mut Pcap
    }

    /// Whether Strait captures.
    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    pub(super) fn set_active(&self, gauges: Vec<Gauge>) {
        self.gauges.get_or_init(|| gauges);
        self.active.store(true, Ordering::Release);
    }
}

/// Makes `p` a live handle; false where there are too many.
pub(super) fn insert(p: *mut Pcap, live: Live) -> bool {
    let free = |slot: &&Slot| {
        slot.handle.compare_exchange(0, p as usize, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let Some(slot) = SLOTS.iter().find(free) else { return false };
    let live = Arc::new(live);
    slot.live.store(Arc::as_ptr(&live).cast_mut(), Ordering::Release);
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.get_or_insert_default().insert(p as usize, live);
    true
}

/// Makes `p` unknown here.
pub(super) fn remove(p: *mut Pcap) -> Option<Arc<Live>> {
    if let Some(slot) = SLOTS.iter().find(|slot| slot.handle.load(Ordering::Acquire) == p as usize) {
        slot.live.store(std::ptr::null_mut(), Ordering::Release);
        slot.handle.store(0, Ordering::Release);
    }
    TABLE.write().unwrap_or_else(PoisonError::into_inner).as_mut()?.remove(&(p as usize))
}

/// The handle made by `pcap_create`, open or not, whoever captures.
pub(super) fn find(p: *mut Pcap) -> Option<Arc<Live>> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.as_ref()?.get(&(p as usize)).map(Arc::clone)
}

/// Whose capture a call is about.
pub(super) fn target(p: *mut Pcap) -> Target {
    match find(p) {
        None => Target::Real(p),
        Some(live) if live.is_active() => Target::Live(live),
        Some(live) => Target::Real(live.theirs()),
    }
}

/// The same without a lock, for as long as nobody closes the handle.
pub(super) fn peek(p: *mut Pcap) -> Result<&'static Live, *mut Pcap> {
    let Some(slot) = SLOTS.iter().find(|slot| slot.handle.load(Ordering::Acquire) == p as usize) else {
        return Err(p);
    };
    // SAFETY: the table holds the handle until `remove`, which clears the slot first; a call on a handle that another
    // thread closes is an error of the program's, as in libpcap.
    match unsafe { slot.live.load(Ordering::Acquire).as_ref() } {
        None => Err(p),
        Some(live) if live.is_active() => Ok(live),
        Some(live) => Err(live.theirs()),
    }
}
