//! The C face: libpcap's names, its structures, and the table of live handles.
//!
//! Every exported function has libpcap's signature and return codes (pcap(3PCAP)). One that gets a handle which is not
//! in the table calls the function of the same name behind it (`dlsym(RTLD_NEXT)`). No panic leaves a function.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uchar};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use strait_capture::{Error, ErrorKind};

use crate::handle::{Handle, Shared};

/// `PCAP_ERRBUF_SIZE`.
const ERRBUF_BYTES: usize = 256;
const PCAP_ERROR: c_int = -1;
const PCAP_ERROR_BREAK: c_int = -2;
const PCAP_ERROR_NOT_ACTIVATED: c_int = -3;
const PCAP_ERROR_ACTIVATED: c_int = -4;
const PCAP_ERROR_NO_SUCH_DEVICE: c_int = -5;
const PCAP_ERROR_PERM_DENIED: c_int = -8;
const PCAP_ERROR_IFACE_NOT_UP: c_int = -9;
const PCAP_ERROR_TSTAMP_PRECISION_NOTSUP: c_int = -12;
const PCAP_TSTAMP_PRECISION_MICRO: c_int = 0;
const PCAP_TSTAMP_PRECISION_NANO: c_int = 1;
const DLT_EN10MB: c_int = 1;

/// `struct pcap`, which only libpcap knows.
#[repr(C)]
pub struct Pcap {
    _private: [u8; 0],
}

/// `struct pcap_pkthdr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PacketHeader {
    ts: libc::timeval,
    caplen: u32,
    len: u32,
}

/// `struct pcap_stat`.
#[repr(C)]
pub struct Stat {
    recv: u32,
    drop: u32,
    ifdrop: u32,
}

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BpfInstruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// `struct bpf_program`.
#[repr(C)]
pub struct BpfProgram {
    len: u32,
    instructions: *mut BpfInstruction,
}

/// `pcap_handler`.
pub type Handler = Option<unsafe extern "C" fn(*mut c_uchar, *const PacketHeader, *const c_uchar)>;

/// Calls libpcap's own function of this name, found once.
macro_rules! real {
    ($name:ident($($argument:ident: $type:ty),*) -> $result:ty) => {{
        static FOUND: OnceLock<usize> = OnceLock::new();
        let address = *FOUND.get_or_init(|| next(concat!(stringify!($name), "\0")));
        // SAFETY: libpcap's function of this name has this signature (pcap/pcap.h), and the caller keeps its contract.
        unsafe {
            let function: unsafe extern "C" fn($($type),*) -> $result = std::mem::transmute(address);
            function($($argument),*)
        }
    }};
}

pub mod filter;
pub mod open;
pub mod read;

/// The address of the function behind ours.
fn next(name: &str) -> usize {
    let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("the macro adds the NUL");
    // SAFETY: dlsym and dlopen take C strings.
    unsafe {
        let found = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        if !found.is_null() {
            return found as usize;
        }
        let library = libc::dlopen(c"libpcap.so.0.8".as_ptr(), libc::RTLD_NOW);
        let found = if library.is_null() { library } else { libc::dlsym(library, name.as_ptr()) };
        assert!(!found.is_null(), "this libpcap has no {}", name.to_string_lossy());
        found as usize
    }
}

/// One live handle.
struct Entry {
    state: Mutex<State>,
    shared: Shared,
    flag: &'static Break,
}

/// What `pcap_breakloop` finds without a lock, as a signal handler must.
struct Break {
    /// The handle; 0 where this is nobody's.
    handle: AtomicUsize,
    /// libpcap's handle behind it, where libpcap took over.
    instead: AtomicUsize,
    broken: AtomicBool,
}

impl Break {
    const fn free() -> Self {
        Self { handle: AtomicUsize::new(0), instead: AtomicUsize::new(0), broken: AtomicBool::new(false) }
    }
}

struct State {
    handle: Handle,
    /// libpcap's live handle to compile filters on, made at the first.
    compiler: Option<usize>,
    /// What `pcap_next` and `pcap_next_ex` lend until the next call.
    header: Box<PacketHeader>,
    bytes: Vec<u8>,
}

/// What a call on a handle is for.
enum Target {
    Live(Arc<Entry>),
    Real(*mut Pcap),
}

static TABLE: RwLock<Option<HashMap<usize, Arc<Entry>>>> = RwLock::new(None);

/// Live handles at most; further ones are libpcap's.
const HANDLES_MAX: usize = 256;

static BREAKS: [Break; HANDLES_MAX] = [const { Break::free() }; HANDLES_MAX];

fn target(p: *mut Pcap) -> Target {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    match table.as_ref().and_then(|table| table.get(&(p as usize))) {
        None => Target::Real(p),
        Some(entry) => match entry.flag.instead.load(Ordering::Acquire) {
            0 => Target::Live(Arc::clone(entry)),
            instead => Target::Real(instead as *mut Pcap),
        },
    }
}

impl Entry {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what may be changed before activation.
    fn set(&self, change: impl FnOnce(&mut Handle)) -> c_int {
        let mut state = self.lock();
        if state.handle.is_active() {
            return PCAP_ERROR_ACTIVATED;
        }
        change(&mut state.handle);
        0
    }
}

/// Runs `call`; a panic becomes `otherwise`.
fn guarded<T>(otherwise: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(otherwise)
}

/// Copies `text` to a buffer of `PCAP_ERRBUF_SIZE`.
fn put(buffer: *mut c_char, text: &str) {
    if buffer.is_null() {
        return;
    }
    let text: Vec<u8> = text.bytes().filter(|byte| *byte != 0).take(ERRBUF_BYTES - 1).collect();
    // SAFETY: the buffer has ERRBUF_BYTES, more than the text and its NUL.
    unsafe {
        buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        buffer.add(text.len()).write(0);
    }
}

/// Makes `text` what `pcap_geterr` tells.
fn say(p: *mut Pcap, text: &str) {
    put(real!(pcap_geterr(p: *mut Pcap) -> *mut c_char), text);
}

/// Says what went wrong and returns libpcap's code for it.
fn failed(p: *mut Pcap, error: &Error) -> c_int {
    const ENETDOWN: i32 = 100;
    const ENODEV: i32 = 19;
    say(p, &error.to_string());
    match (error.errno(), error.kind()) {
        (Some(ENETDOWN), _) => PCAP_ERROR_IFACE_NOT_UP,
        (Some(ENODEV), _) => PCAP_ERROR_NO_SUCH_DEVICE,
        (_, ErrorKind::Refused) => PCAP_ERROR_PERM_DENIED,
        _ => PCAP_ERROR,
    }
}

fn text(string: *const c_char) -> String {
    if string.is_null() {
        return "any".into();
    }
    // SAFETY: the caller gave a C string.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}
