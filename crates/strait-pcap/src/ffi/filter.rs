//! Filters and directions, and frames out.

use std::ffi::{c_char, c_int, c_uchar, c_void};

use strait_capture::{Directions, Error};
use strait_filter::cbpf::{Instruction, Program};

use super::files::dead;
use super::table::{Live, Target, target};
use super::{
    BpfInstruction, BpfProgram, ERRBUF_BYTES, PCAP_ERROR, Pcap, code, failed, guarded, said, say, text,
};
use crate::handle::inject;

/// `pcap_setfilter(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setfilter(p: *mut Pcap, program: *mut BpfProgram) -> c_int {
    guarded(PCAP_ERROR, || {
        let live = match target(p) {
            Target::Real(p) => return real!(pcap_setfilter(p: *mut Pcap, program: *mut BpfProgram) -> c_int),
            Target::Live(live) => live,
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
        let checked =
            Program::check(instructions.collect()).map_err(|error| Error::Filter(error.to_string()));
        code(p, checked.and_then(|program| live.entry.set_filter(program)))
    })
}

/// `pcap_setdirection(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setdirection(p: *mut Pcap, direction: c_int) -> c_int {
    guarded(PCAP_ERROR, || {
        let live = match target(p) {
            Target::Real(p) => return real!(pcap_setdirection(p: *mut Pcap, direction: c_int) -> c_int),
            Target::Live(live) => live,
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
        code(p, live.entry.set_directions(directions))
    })
}

/// `pcap_compile(3PCAP)`: for a handle of the live one's link type.
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
            Target::Live(live) => compiler(&live, filter),
        };
        let result = real!(pcap_compile(q: *mut Pcap, program: *mut BpfProgram, filter: *const c_char, optimize: c_int, netmask: u32) -> c_int);
        if let Target::Live(_) = target(p) {
            if result < 0 {
                say(p, &said(q));
            }
            real!(pcap_close(q: *mut Pcap) -> ());
        }
        result
    })
}

/// A handle to compile on. libpcap writes another program for a live one where a filter asks for VLAN tags, which are not
/// in a live frame's bytes; to open one takes time and privilege, so it is done for those alone.
fn compiler(live: &Live, filter: *const c_char) -> *mut Pcap {
    let asks_for_tags = !filter.is_null() && text(filter).contains("vlan");
    if asks_for_tags && let Some(twin) = twin(live) { twin } else { dead(live) }
}

/// libpcap's own live handle on the same device, with as small a buffer as there is.
fn twin(live: &Live) -> Option<*mut Pcap> {
    let (device, mut errbuf) = (live.device.as_ptr(), [0 as c_char; ERRBUF_BYTES]);
    let errbuf = errbuf.as_mut_ptr();
    let q = real!(pcap_create(device: *const c_char, errbuf: *mut c_char) -> *mut Pcap);
    if q.is_null() {
        return None;
    }
    let (snaplen, bytes) = (live.entry.facts.snaplen(), 1 << 16);
    real!(pcap_set_snaplen(q: *mut Pcap, snaplen: c_int) -> c_int);
    real!(pcap_set_buffer_size(q: *mut Pcap, bytes: c_int) -> c_int);
    let link_type = super::dlt(live.entry.facts.link_type());
    if real!(pcap_activate(q: *mut Pcap) -> c_int) < 0
        || real!(pcap_set_datalink(q: *mut Pcap, link_type: c_int) -> c_int) < 0
    {
        real!(pcap_close(q: *mut Pcap) -> ());
        return None;
    }
    Some(q)
}

/// `pcap_inject(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_inject(p: *mut Pcap, bytes: *const c_void, size: usize) -> c_int {
    guarded(PCAP_ERROR, || {
        let live = match target(p) {
            Target::Real(p) => {
                return real!(pcap_inject(p: *mut Pcap, bytes: *const c_void, size: usize) -> c_int);
            }
            Target::Live(live) => live,
        };
        if live.entry.choice.device == "any" {
            say(p, "Sending packets isn't supported on the \"any\" device");
            return PCAP_ERROR;
        }
        if bytes.is_null() || size > c_int::MAX as usize {
            say(p, "inject: no frame given");
            return PCAP_ERROR;
        }
        // SAFETY: the program gave that many bytes.
        let frame = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size) };
        match inject(&live.entry, frame) {
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
