//! Queries of a handle, and its descriptor.

use std::ffi::{c_char, c_int};

use strait_packet::summary::link_type;

use super::table::{self, Live, Target, target};
use super::{PCAP_ERROR, Pcap, code, dlt, failed, guarded, refused_in_callback, set_error, stock_error_text};

/// `pcap_geterr(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_geterr(p: *mut Pcap) -> *mut c_char {
    let p = error_owner(p);
    real!(pcap_geterr(p: *mut Pcap) -> *mut c_char)
}

/// `pcap_perror(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_perror(p: *mut Pcap, prefix: *const c_char) {
    let p = error_owner(p);
    real!(pcap_perror(p: *mut Pcap, prefix: *const c_char) -> ());
}

/// Returns the handle with the error message: libpcap's own until Strait captures.
fn error_owner(p: *mut Pcap) -> *mut Pcap {
    table::peek(p).filter(|live| !live.is_active()).map_or(p, Live::stock)
}

/// Defines a query that [`crate::properties::Properties`] answers.
macro_rules! fact {
    ($(#[$doc:meta])* $name:ident |$properties:ident| $answer:expr) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(p: *mut Pcap) -> c_int {
            guarded(PCAP_ERROR, || match target(p) {
                Target::Real(p) => real!($name(p: *mut Pcap) -> c_int),
                Target::Live(live) => {
                    let $properties = &live.entry.properties;
                    $answer
                }
            })
        }
    };
}

fact! {
    /// `pcap_datalink(3PCAP)`.
    pcap_datalink |properties| dlt(properties.link_type())
}
fact! {
    /// `pcap_snapshot(3PCAP)`.
    pcap_snapshot |properties| properties.snaplen()
}
fact! {
    /// `pcap_bufsize(3PCAP)`: maximum size of a packet.
    pcap_bufsize |properties| properties.snaplen()
}
fact! {
    /// `pcap_get_tstamp_precision(3PCAP)`.
    pcap_get_tstamp_precision |properties| c_int::from(properties.nanoseconds())
}

/// `pcap_setnonblock(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setnonblock(p: *mut Pcap, on: c_int, errbuf: *mut c_char) -> c_int {
    guarded(PCAP_ERROR, || match target(p) {
        Target::Real(q) => {
            let code = real!(pcap_setnonblock(q: *mut Pcap, on: c_int, errbuf: *mut c_char) -> c_int);
            if let Some(live) = table::find(p).filter(|_| code == 0) {
                live.entry.properties.set_nonblocking(on != 0);
            }
            code
        }
        Target::Live(live) => {
            live.entry.properties.set_nonblocking(on != 0);
            0
        }
    })
}

/// `pcap_getnonblock(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_getnonblock(p: *mut Pcap, errbuf: *mut c_char) -> c_int {
    guarded(PCAP_ERROR, || match target(p) {
        Target::Real(p) => real!(pcap_getnonblock(p: *mut Pcap, errbuf: *mut c_char) -> c_int),
        Target::Live(live) => c_int::from(live.entry.properties.nonblocking()),
    })
}

/// Defines a function that returns the descriptor of a live handle. From the first call on the
/// descriptor is readable while packets wait.
macro_rules! descriptor {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(p: *mut Pcap) -> c_int {
            guarded(PCAP_ERROR, || match target(p) {
                Target::Real(p) => real!($name(p: *mut Pcap) -> c_int),
                Target::Live(live) => {
                    let properties = &live.entry.properties;
                    if properties.is_polled() {
                        return properties.descriptor();
                    }
                    properties.set_polled();
                    // From a callback, the reading call does this after the callback has returned.
                    let prepared = live.entry.lock().map_or(Ok(()), |mut handle| handle.prepare_to_poll());
                    match prepared {
                        Ok(()) => properties.descriptor(),
                        Err(error) => failed(p, &error),
                    }
                }
            })
        }
    };
}

descriptor! {
    /// `pcap_fileno(3PCAP)`.
    pcap_fileno
}
descriptor! {
    /// `pcap_get_selectable_fd(3PCAP)`.
    pcap_get_selectable_fd
}

/// `pcap_get_required_select_timeout(3PCAP)`: not required, because the descriptor always becomes
/// readable for packets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_get_required_select_timeout(p: *mut Pcap) -> *const libc::timeval {
    guarded(std::ptr::null(), || match target(p) {
        Target::Real(p) => real!(pcap_get_required_select_timeout(p: *mut Pcap) -> *const libc::timeval),
        Target::Live(_) => std::ptr::null(),
    })
}

/// `pcap_list_datalinks(3PCAP)`: of libpcap's own handle for the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_list_datalinks(p: *mut Pcap, list: *mut *mut c_int) -> c_int {
    guarded(PCAP_ERROR, || {
        let p = table::find(p).map_or(p, |live| live.stock());
        real!(pcap_list_datalinks(p: *mut Pcap, list: *mut *mut c_int) -> c_int)
    })
}

/// `pcap_set_datalink(3PCAP)`: libpcap's own handle checks the type. Only cooked headers change the
/// capture.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_datalink(p: *mut Pcap, wanted: c_int) -> c_int {
    guarded(PCAP_ERROR, || {
        let live = match target(p) {
            Target::Real(p) => return real!(pcap_set_datalink(p: *mut Pcap, wanted: c_int) -> c_int),
            Target::Live(live) => live,
        };
        let stock = live.stock();
        if real!(pcap_set_datalink(stock: *mut Pcap, wanted: c_int) -> c_int) < 0 {
            set_error(p, &stock_error_text(stock));
            return PCAP_ERROR;
        }
        let properties = &live.entry.properties;
        if dlt(properties.link_type()) == wanted {
            return 0;
        }
        if !is_cooked(wanted) {
            properties.set_link_type(wanted as u32);
            return 0;
        }
        match live.entry.lock() {
            Some(mut handle) => code(p, handle.set_link_type(&live.entry, wanted as u32)),
            None => refused_in_callback(p),
        }
    })
}

/// Returns true for `DLT_LINUX_SLL` and `DLT_LINUX_SLL2`.
fn is_cooked(dlt: c_int) -> bool {
    // Their numbers are those of pcap files.
    u32::try_from(dlt).is_ok_and(link_type::is_cooked)
}
