//! Which handles are live here.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use strait_capture::{Error, Gauge, Reading, is_shared_interface};

use super::{PacketHeader, Pcap};
use crate::entry::Entry;

/// The process has a child that may go on with its captures, or is one.
pub(super) static FORKED: AtomicBool = AtomicBool::new(false);

/// Forks between the process that opened the first handle and this one.
pub(super) static FORKS: AtomicU32 = AtomicU32::new(0);

/// [`Live::read_by`] of a handle that no process has read.
const UNREAD: u32 = u32::MAX;

/// Live handles at most.
const HANDLES_MAX: usize = 256;

/// The device that stands for all interfaces.
const ANY: &str = "any";

static TURN: Mutex<()> = Mutex::new(());
static TABLE: RwLock<Option<HashMap<usize, Arc<Live>>>> = RwLock::new(None);
static SLOTS: [Slot; HANDLES_MAX] = [const { Slot::free() }; HANDLES_MAX];

/// A handle of `pcap_create`.
pub(super) struct Live {
    pub(super) entry: Entry,
    /// What the program holds: a handle of `pcap_open_dead`.
    handle: usize,
    /// libpcap's own handle for the same device: it hears of everything that is set, answers what is no matter of the
    /// capture, compiles filters, and captures where Strait does not.
    theirs: usize,
    pub(super) device: CString,
    /// The capture is open, and Strait's.
    active: AtomicBool,
    /// The capture is open, and libpcap's.
    pub(super) taken_over: AtomicBool,
    /// `theirs` compiles for a live capture.
    pub(super) compiles: AtomicBool,
    /// Read the counters, once the capture is open.
    pub(super) gauges: OnceLock<Vec<Gauge>>,
    pub(super) lent: Mutex<Lent>,
    /// The process that opened the capture.
    opened_by: u32,
    /// [`FORKS`] of the process that read it last, as far as this process knows.
    read_by: AtomicU32,
    /// Packets received and dropped at the last [`Self::statistics`].
    last: [AtomicU64; 2],
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
    /// Owns both handles from now on.
    pub(super) fn new(entry: Entry, handle: *mut Pcap, theirs: *mut Pcap, device: CString) -> Self {
        let zero = PacketHeader { ts: libc::timeval { tv_sec: 0, tv_usec: 0 }, caplen: 0, len: 0 };
        Self {
            entry,
            handle: handle as usize,
            theirs: theirs as usize,
            device,
            active: AtomicBool::new(false),
            taken_over: AtomicBool::new(false),
            compiles: AtomicBool::new(false),
            gauges: OnceLock::new(),
            lent: Mutex::new(Lent { header: Box::new(zero), bytes: Vec::new() }),
            opened_by: std::process::id(),
            read_by: AtomicU32::new(UNREAD),
            last: [const { AtomicU64::new(0) }; 2],
        }
    }

    pub(super) fn theirs(&self) -> *mut Pcap {
        self.theirs as *mut Pcap
    }

    /// Notes that this process reads the capture.
    pub(super) fn set_read(&self) {
        self.read_by.store(FORKS.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Returns true if the capture's counters and report are for this process: it has opened the capture and not
    /// handed it to a child unread, or it reads it. Reading the kernel's counters sets them to 0 for all processes that
    /// share the socket.
    pub(super) fn is_ours(&self) -> bool {
        let (forks, read_by) = (FORKS.load(Ordering::Relaxed), self.read_by.load(Ordering::Relaxed));
        if std::process::id() == self.opened_by {
            return read_by != UNREAD || !FORKED.load(Ordering::Relaxed);
        }
        forks != 0 && read_by == forks
    }

    /// Packets received and dropped so far; in a process that does not read the capture, as they stood at the fork.
    pub(super) fn statistics(&self) -> Result<Reading, Error> {
        let [received, dropped] = &self.last;
        if self.is_ours() {
            let mut sum = Reading::default();
            for gauge in self.gauges.get().into_iter().flatten() {
                let reading = gauge.read()?;
                sum.received += reading.received;
                sum.dropped += reading.dropped;
            }
            received.store(sum.received, Ordering::Relaxed);
            dropped.store(sum.dropped, Ordering::Relaxed);
        }
        let (received, dropped) = (received.load(Ordering::Relaxed), dropped.load(Ordering::Relaxed));
        Ok(Reading { received, dropped })
    }

    /// Returns true if packets of the capture reach no other handle on the device; those of all interfaces at once are
    /// never taken.
    fn takes_packets(&self) -> bool {
        let choice = &self.entry.choice;
        choice.device != ANY && choice.path.takes_frames()
    }

    /// Returns true if this handle and `other`, which is open, cannot both receive. The caller has the [`turn`].
    pub(super) fn excludes(&self, other: &Self) -> bool {
        let is_open = other.is_active() || other.taken_over.load(Ordering::Relaxed);
        let takes = self.takes_packets() || (other.is_active() && other.takes_packets());
        let [own, others] = [self, other].map(|live| live.entry.choice.device.as_str());
        self.handle != other.handle && is_open && takes && is_shared_interface(own, others)
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

/// Whoever is the last in a call on a handle that was closed ends it.
impl Drop for Live {
    fn drop(&mut self) {
        // The gauges keep sockets open.
        self.gauges.take();
        let is_ours = self.is_ours();
        let handle = self.entry.handle_mut();
        if is_ours {
            handle.close(FORKED.load(Ordering::Relaxed));
        } else {
            handle.forget();
        }
        let (p, theirs) = (self.handle as *mut Pcap, self.theirs());
        real!(pcap_close(theirs: *mut Pcap) -> ());
        real!(pcap_close(p: *mut Pcap) -> ());
    }
}

/// Makes a handle live, and returns it; `None` where there are too many.
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

/// The turn to open a capture. With it a handle looks at the others that are open, and is open when it gives it back: of two
/// threads that open a device, the second sees the first.
pub(super) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All handles that are live now.
pub(super) fn all() -> Vec<Arc<Live>> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.iter().flat_map(HashMap::values).map(Arc::clone).collect()
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

/// [`find`] without a lock, for as long as nobody closes the handle.
pub(super) fn peek(p: *mut Pcap) -> Option<&'static Live> {
    let slot = SLOTS.iter().find(|slot| slot.handle.load(Ordering::Acquire) == p as usize)?;
    // SAFETY: the table holds the handle until `remove`, which clears the slot first; a call on a handle that another
    // thread closes is an error of the program's, as in libpcap.
    unsafe { slot.live.load(Ordering::Acquire).as_ref() }
}
