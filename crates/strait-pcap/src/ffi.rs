//! C interface: libpcap's functions and structures.
//!
//! Every exported function has libpcap's signature and return codes (pcap(3PCAP)). For a handle
//! that is not live here it calls libpcap's own function of the same name ([`library`]). Functions
//! without relation to live capture always do so ([`forward`]). No panic leaves a function.
//! `tests/integration/exports.txt` lists the exports.

use std::ffi::{CStr, c_char, c_int, c_uchar};
use std::panic::{AssertUnwindSafe, catch_unwind};

use strait_capture::Error;
use strait_packet::summary::link_type::dlt;

/// `PCAP_ERRBUF_SIZE`.
const ERRBUF_BYTES: usize = 256;
const PCAP_ERROR: c_int = -1;
const PCAP_ERROR_BREAK: c_int = -2;
const PCAP_ERROR_ACTIVATED: c_int = -4;
const PCAP_ERROR_NO_SUCH_DEVICE: c_int = -5;
const PCAP_ERROR_RFMON_NOTSUP: c_int = -6;
const PCAP_ERROR_PERM_DENIED: c_int = -8;
const PCAP_ERROR_IFACE_NOT_UP: c_int = -9;
const PCAP_ERROR_PROMISC_PERM_DENIED: c_int = -11;
const DLT_EN10MB: c_int = 1;

/// `struct pcap`, an opaque type of libpcap.
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

/// The first fields of `struct pcap_if`.
#[repr(C)]
pub struct Device {
    next: *mut Device,
    name: *mut c_char,
    description: *mut c_char,
    addresses: *mut libc::c_void,
    flags: u32,
}

/// `pcap_handler`. It may unwind: by a C++ exception, or because its thread is cancelled.
pub type Handler = Option<unsafe extern "C-unwind" fn(*mut c_uchar, *const PacketHeader, *const c_uchar)>;

/// Calls libpcap's own function of this name. Its address is looked up once.
macro_rules! real {
    ($name:ident($($argument:ident: $type:ty),*) -> $result:ty) => {{
        static FOUND: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        let address = *FOUND.get_or_init(|| $crate::ffi::library::function(concat!(stringify!($name), "\0")));
        // SAFETY: libpcap's function of this name has this signature (pcap/pcap.h), and the caller
        // upholds its contract.
        unsafe {
            let function: unsafe extern "C-unwind" fn($($type),*) -> $result = std::mem::transmute(address);
            function($($argument),*)
        }
    }};
}

pub mod devices;
pub mod files;
pub mod filter;
pub mod forward;
mod library;
pub mod open;
pub mod queries;
pub mod read;
mod table;
pub mod timestamps;

/// Runs `call`; returns `otherwise` if it panics.
fn guarded<T>(otherwise: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(otherwise)
}

/// Copies `text` to a buffer of `PCAP_ERRBUF_SIZE` bytes, truncated if necessary.
fn copy_text(buffer: *mut c_char, text: &str) {
    if buffer.is_null() {
        return;
    }
    // Without allocation, because signal handlers call this too.
    let mut len = 0;
    for byte in text.bytes().filter(|byte| *byte != 0).take(ERRBUF_BYTES - 1) {
        // SAFETY: the buffer has ERRBUF_BYTES, enough for the truncated text and its NUL.
        unsafe { buffer.add(len).write(byte as c_char) };
        len += 1;
    }
    // SAFETY: as above.
    unsafe { buffer.add(len).write(0) };
}

/// Sets the error message of `p` for `pcap_geterr`.
fn set_error(p: *mut Pcap, text: &str) {
    // SAFETY: p is a handle of the caller.
    copy_text(unsafe { queries::pcap_geterr(p) }, text);
}

/// Returns the error message of `p`, as `pcap_geterr` does.
fn error_text(p: *mut Pcap) -> String {
    // SAFETY: p is a handle of the caller.
    text(unsafe { queries::pcap_geterr(p) })
}

/// Returns the error message of one of libpcap's own handles.
fn stock_error_text(q: *mut Pcap) -> String {
    text(real!(pcap_geterr(q: *mut Pcap) -> *mut c_char))
}

/// Sets the error message and returns libpcap's code for the error.
fn failed(p: *mut Pcap, error: &Error) -> c_int {
    set_error(p, &error.to_string());
    match error.errno() {
        Some(libc::ENETDOWN) => PCAP_ERROR_IFACE_NOT_UP,
        Some(libc::ENODEV) => PCAP_ERROR_NO_SUCH_DEVICE,
        Some(libc::EPERM | libc::EACCES) => PCAP_ERROR_PERM_DENIED,
        _ => PCAP_ERROR,
    }
}

/// Returns 0, or sets the error message and returns `PCAP_ERROR`, as most calls do.
fn code(p: *mut Pcap, result: Result<(), Error>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            failed(p, &error);
            PCAP_ERROR
        }
    }
}

/// Refuses a call that is not possible from the handle's own callback.
fn refused_in_callback(p: *mut Pcap) -> c_int {
    set_error(p, "the handle is in use: this cannot be called from its own callback");
    PCAP_ERROR
}

/// Copies a C string. Null becomes "any", the default device name.
fn text(string: *const c_char) -> String {
    if string.is_null() {
        return "any".into();
    }
    // SAFETY: the caller gave a C string.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}
