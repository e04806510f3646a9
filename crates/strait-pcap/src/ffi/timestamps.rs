//! Timestamp types, from libpcap's own handle.

use std::ffi::c_int;

use super::{PCAP_ERROR, Pcap, guarded, table};

/// `pcap_list_tstamp_types(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_list_tstamp_types(p: *mut Pcap, list: *mut *mut c_int) -> c_int {
    guarded(PCAP_ERROR, || {
        let p = table::find(p).map_or(p, |live| live.stock());
        real!(pcap_list_tstamp_types(p: *mut Pcap, list: *mut *mut c_int) -> c_int)
    })
}
