//! Headers of savefiles for packets of live handles.

use std::ffi::{c_char, c_int, c_void};

use super::table::{Live, Target, target};
use super::{Pcap, dlt, guarded, set_error, stock_error_text};

/// Error message if libpcap cannot allocate another handle.
pub(super) const NO_MEMORY: &str = "out of memory for a libpcap handle";

/// Returns a handle that cannot capture, with the live handle's link type, snaplen and precision.
pub(super) fn dead(live: &Live) -> *mut Pcap {
    let properties = &live.entry.properties;
    let (linktype, snaplen) = (dlt(properties.link_type()), properties.snaplen());
    let precision = u32::from(properties.nanoseconds());
    real!(pcap_open_dead_with_tstamp_precision(linktype: c_int, snaplen: c_int, precision: u32) -> *mut Pcap)
}

/// Defines a function that starts a savefile. For a live handle, libpcap's function gets a dead
/// handle with the same properties.
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
                        set_error(p, NO_MEMORY);
                        return std::ptr::null_mut();
                    }
                    let dumper = real!($name(q: *mut Pcap, $to: $type) -> *mut c_void);
                    if dumper.is_null() {
                        set_error(p, &stock_error_text(q));
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
