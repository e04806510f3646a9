//! The header of a file of a live handle's packets.

use std::ffi::{c_char, c_int, c_void};

use super::table::{Live, Target, target};
use super::{Pcap, dlt, guarded, said_by, say};

/// The error where libpcap has no memory for another handle.
pub(super) const NO_MEMORY: &str = "no memory for a handle of libpcap's";

/// A handle that cannot capture, with the live one's link type, snaplen and precision.
pub(super) fn dead(live: &Live) -> *mut Pcap {
    let facts = &live.entry.facts;
    let (linktype, snaplen) = (dlt(facts.link_type()), facts.snaplen());
    let precision = u32::from(facts.nanoseconds());
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
                Target::Live(live) => {
                    let q = dead(&live);
                    if q.is_null() {
                        say(p, NO_MEMORY);
                        return std::ptr::null_mut();
                    }
                    let dumper = real!($name(q: *mut Pcap, $to: $type) -> *mut c_void);
                    if dumper.is_null() {
                        say(p, &said_by(q));
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
