//! Filters and directions, frames out, and the header of a file.

use std::ffi::{CString, c_char, c_int, c_uchar, c_void};
use std::sync::OnceLock;

use strait_capture::{Directions, Error};
use strait_filter::cbpf::{Instruction, Program};

use super::{
    BpfInstruction, BpfProgram, ERRBUF_BYTES, Entry, PCAP_ERROR, PCAP_ERROR_NOT_ACTIVATED, Pcap, State,
    Target, failed, guarded, next, say, target, text,
};

/// `pcap_setfilter(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setfilter(p: *mut Pcap, program: *mut BpfProgram) -> c_int {
    guarded(PCAP_ERROR, || {
        let entry = match target(p) {
            Target::Real(p) => return real!(pcap_setfilter(p: *mut Pcap, program: *mut BpfProgram) -> c_int),
            Target::Live(entry) => entry,
        };
        // SAFETY: a program that is not null is the caller's to read.
        if program.is_null() || unsafe { (*program).instructions.is_null() } {
            say(p, "setfilter: No filter specified");
            return PCAP_ERROR;
        }
        // SAFETY: the program gave a filter of that many instructions.
        let instructions =
            unsafe { std::slice::from_raw_parts((*program).instructions, (*program).len as usize) };
        let instructions =
            instructions.iter().map(|&BpfInstruction { code, jt, jf, k }| Instruction { code, jt, jf, k });
        let mut state = entry.lock();
        if !state.handle.is_active() {
            return PCAP_ERROR_NOT_ACTIVATED;
        }
        let set = Program::check(instructions.collect())
            .map_err(|error| Error::Filter(error.to_string()))
            .and_then(|program| state.handle.set_filter(program));
        match set {
            Ok(()) => 0,
            Err(error) => {
                failed(p, &error);
                PCAP_ERROR
            }
        }
    })
}

/// `pcap_setdirection(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setdirection(p: *mut Pcap, direction: c_int) -> c_int {
    guarded(PCAP_ERROR, || {
        let entry = match target(p) {
            Target::Real(p) => return real!(pcap_setdirection(p: *mut Pcap, direction: c_int) -> c_int),
            Target::Live(entry) => entry,
        };
        let directions = match direction {
            0 => Directions::Both,
            1 => Directions::In,
            2 => Directions::Out,
            _ => {
                say(p, "Invalid direction");
                return PCAP_ERROR;
            }
        };
        match entry.lock().handle.set_directions(directions) {
            Ok(()) => 0,
            Err(error) => {
                failed(p, &error);
                PCAP_ERROR
            }
        }
    })
}

/// `pcap_compile(3PCAP)`: on a live handle of libpcap's own, which knows what a live filter may ask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_compile(
    p: *mut Pcap,
    program: *mut BpfProgram,
    filter: *const c_char,
    optimize: c_int,
    netmask: u32,
) -> c_int {
    guarded(PCAP_ERROR, || {
        let q = match target(p) {
            Target::Real(p) => p,
            Target::Live(entry) => compiler(&mut entry.lock()).unwrap_or(p),
        };
        let result = real!(pcap_compile(q: *mut Pcap, program: *mut BpfProgram, filter: *const c_char, optimize: c_int, netmask: u32) -> c_int);
        if result < 0 && q != p {
            say(p, &text(real!(pcap_geterr(q: *mut Pcap) -> *mut c_char)));
        }
        result
    })
}

/// libpcap's live handle on the same device, with as small a buffer as there is.
fn compiler(state: &mut State) -> Option<*mut Pcap> {
    if state.compiler.is_none() {
        let device = CString::new(state.handle.choice().device.clone()).ok()?;
        let (device, mut errbuf) = (device.as_ptr(), [0 as c_char; ERRBUF_BYTES]);
        let errbuf = errbuf.as_mut_ptr();
        let q = real!(pcap_create(device: *const c_char, errbuf: *mut c_char) -> *mut Pcap);
        if q.is_null() {
            return None;
        }
        let (snaplen, bytes) = (262_144, 1 << 16);
        real!(pcap_set_snaplen(q: *mut Pcap, snaplen: c_int) -> c_int);
        real!(pcap_set_buffer_size(q: *mut Pcap, bytes: c_int) -> c_int);
        if real!(pcap_activate(q: *mut Pcap) -> c_int) < 0 {
            real!(pcap_close(q: *mut Pcap) -> ());
            return None;
        }
        state.compiler = Some(q as usize);
    }
    state.compiler.map(|q| q as *mut Pcap)
}

/// `pcap_inject(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_inject(p: *mut Pcap, bytes: *const c_void, size: usize) -> c_int {
    guarded(PCAP_ERROR, || {
        let entry = match target(p) {
            Target::Real(p) => {
                return real!(pcap_inject(p: *mut Pcap, bytes: *const c_void, size: usize) -> c_int);
            }
            Target::Live(entry) => entry,
        };
        if bytes.is_null() {
            say(p, "inject: no frame given");
            return PCAP_ERROR;
        }
        // SAFETY: the program gave that many bytes.
        let frame = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size) };
        match entry.lock().handle.inject(frame) {
            Ok(()) => size as c_int,
            Err(error) => {
                failed(p, &error);
                PCAP_ERROR
            }
        }
    })
}

/// `pcap_sendpacket(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_sendpacket(p: *mut Pcap, bytes: *const c_uchar, size: c_int) -> c_int {
    let Ok(size) = usize::try_from(size) else { return PCAP_ERROR };
    // SAFETY: the arguments are the caller's.
    if unsafe { pcap_inject(p, bytes.cast(), size) } < 0 { PCAP_ERROR } else { 0 }
}

/// A handle with the live one's link type, snaplen and precision, for the header of a file.
fn dead(entry: &Entry) -> *mut Pcap {
    let state = entry.lock();
    let linktype = state.handle.link_type() as c_int;
    let (snaplen, precision) = (state.handle.snaplen(), state.handle.options.nanoseconds as u32);
    real!(pcap_open_dead_with_tstamp_precision(linktype: c_int, snaplen: c_int, precision: u32) -> *mut Pcap)
}

/// A function that begins a file with what it is told of the handle: it gets one that looks like the live one.
macro_rules! dumper {
    ($(#[$doc:meta])* $name:ident($to:ident: $type:ty)) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(p: *mut Pcap, $to: $type) -> *mut c_void {
            guarded(std::ptr::null_mut(), || match target(p) {
                Target::Real(p) => real!($name(p: *mut Pcap, $to: $type) -> *mut c_void),
                Target::Live(entry) => {
                    let q = dead(&entry);
                    let dumper = real!($name(q: *mut Pcap, $to: $type) -> *mut c_void);
                    if dumper.is_null() {
                        say(p, &text(real!(pcap_geterr(q: *mut Pcap) -> *mut c_char)));
                    }
                    real!(pcap_close(q: *mut Pcap) -> ());
                    dumper
                }
            })
        }
    };
}

dumper! {
    /// `pcap_dump_open(3PCAP)`.
    pcap_dump_open(name: *const c_char)
}
dumper! {
    /// `pcap_dump_open_append(3PCAP)`.
    pcap_dump_open_append(name: *const c_char)
}
dumper! {
    /// `pcap_dump_fopen(3PCAP)`.
    pcap_dump_fopen(file: *mut libc::FILE)
}
