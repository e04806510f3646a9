//! Filters, directions and injection.

use std::ffi::{c_char, c_int, c_uchar, c_void};
use std::sync::atomic::Ordering;

use strait_capture::{Directions, check_filter};
use strait_filter::cbpf::Instruction;

use super::files::{NO_MEMORY, dead};
use super::table::{Target, target};
use super::{
    BpfInstruction, BpfProgram, PCAP_ERROR, Pcap, code, failed, guarded, set_error, stock_error_text, text,
};
use crate::expression;

/// `pcap_setfilter(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setfilter(p: *mut Pcap, program: *mut BpfProgram) -> c_int {
    guarded(PCAP_ERROR, || {
        let live = match target(p) {
            Target::Real(p) => return real!(pcap_setfilter(p: *mut Pcap, program: *mut BpfProgram) -> c_int),
            Target::Live(live) => live,
        };
        // SAFETY: a program that is not null is readable.
        if program.is_null() || unsafe { (*program).instructions.is_null() } {
            set_error(p, "setfilter: No filter specified");
            return PCAP_ERROR;
        }
        // SAFETY: the caller passed a filter of that many instructions.
        let instructions =
            unsafe { std::slice::from_raw_parts((*program).instructions, (*program).len as usize) };
        let instructions =
            instructions.iter().map(|&BpfInstruction { code, jt, jf, k }| Instruction { code, jt, jf, k });
        code(p, check_filter(instructions.collect()).and_then(|program| live.entry.set_filter(program)))
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
                set_error(p, "Invalid direction");
                return PCAP_ERROR;
            }
        };
        code(p, live.entry.set_directions(directions))
    })
}

/// `pcap_compile(3PCAP)`: with libpcap's own handle for the device or, if that could not be opened,
/// for the link type only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_compile(
    p: *mut Pcap,
    program: *mut BpfProgram,
    filter: *const c_char,
    optimize: c_int,
    netmask: u32,
) -> c_int {
    guarded(PCAP_ERROR, || {
        let live = match target(p) {
            Target::Real(p) => {
                return real!(pcap_compile(p: *mut Pcap, program: *mut BpfProgram, filter: *const c_char, optimize: c_int, netmask: u32) -> c_int);
            }
            Target::Live(live) => live,
        };
        let compiles = live.compiles.load(Ordering::Relaxed);
        if !compiles && !filter.is_null() && expression::names_vlan(&text(filter)) {
            set_error(
                p,
                "libpcap could not open the device, which it needs to compile a filter for VLAN tags",
            );
            return PCAP_ERROR;
        }
        let q = if compiles { live.stock() } else { dead(&live) };
        if q.is_null() {
            set_error(p, NO_MEMORY);
            return PCAP_ERROR;
        }
        let result = real!(pcap_compile(q: *mut Pcap, program: *mut BpfProgram, filter: *const c_char, optimize: c_int, netmask: u32) -> c_int);
        if result < 0 {
            set_error(p, &stock_error_text(q));
        }
        if !compiles {
            real!(pcap_close(q: *mut Pcap) -> ());
        }
        result
    })
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
            set_error(p, "Sending packets isn't supported on the \"any\" device");
            return PCAP_ERROR;
        }
        if bytes.is_null() || size > c_int::MAX as usize {
            set_error(p, "inject: no frame given");
            return PCAP_ERROR;
        }
        // SAFETY: the caller passed that many bytes.
        let frame = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), size) };
        let Some(sender) = live.entry.sender.get() else {
            set_error(p, "inject: the capture is not open for sending");
            return PCAP_ERROR;
        };
        let sent = match sender {
            Ok(sender) => sender.send(frame).map_err(|error| failed(p, &error)),
            Err(error) => Err(failed(p, error)),
        };
        sent.map_or(PCAP_ERROR, |()| size as c_int)
    })
}

/// `pcap_sendpacket(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_sendpacket(p: *mut Pcap, bytes: *const c_uchar, size: c_int) -> c_int {
    let Ok(size) = usize::try_from(size) else {
        set_error(p, "inject: a frame cannot have a negative size");
        return PCAP_ERROR;
    };
    // SAFETY: the arguments are the caller's, and pcap_inject has the same contract.
    if unsafe { pcap_inject(p, bytes.cast(), size) } < 0 { PCAP_ERROR } else { 0 }
}
