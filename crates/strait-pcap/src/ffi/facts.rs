//! What may be asked of a handle, and its descriptor.

use std::ffi::{c_char, c_int};

use super::table::{self, Target, target};
use super::{DLT_EN10MB, PCAP_ERROR, Pcap, code, dlt, failed, guarded, refused_in_callback, say};

/// `pcap_geterr(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_geterr(p: *mut Pcap) -> *mut c_char {
    let p = table::peek(p).map_or_else(|theirs| theirs, |_| p);
    real!(pcap_geterr(p: *mut Pcap) -> *mut c_char)
}

/// `pcap_perror(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_perror(p: *mut Pcap, prefix: *const c_char) {
    let p = table::peek(p).map_or_else(|theirs| theirs, |_| p);
    real!(pcap_perror(p: *mut Pcap, prefix: *const c_char) -> ());
}

/// A question that [`crate::facts::Facts`] answers.
macro_rules! fact {
    ($(#[$doc:meta])* $name:ident |$facts:ident| $answer:expr) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(p: *mut Pcap) -> c_int {
            guarded(PCAP_ERROR, || match target(p) {
                Target::Real(p) => real!($name(p: *mut Pcap) -> c_int),
                Target::Live(live) => {
                    let $facts = &live.entry.facts;
                    $answer
                }
            })
        }
    };
}

fact! {
    /// `pcap_datalink(3PCAP)`.
    pcap_datalink |facts| dlt(facts.link_type())
}
fact! {
    /// What `pcap_datalink` says, by the name that libpcap itself uses.
    pcap_datalink_ext |facts| dlt(facts.link_type())
}
fact! {
    /// `pcap_snapshot(3PCAP)`.
    pcap_snapshot |facts| facts.snaplen()
}
fact! {
    /// `pcap_bufsize(3PCAP)`: room for a packet.
    pcap_bufsize |facts| facts.snaplen()
}
fact! {
    /// `pcap_get_tstamp_precision(3PCAP)`.
    pcap_get_tstamp_precision |facts| c_int::from(facts.nanoseconds())
}

/// `pcap_setnonblock(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setnonblock(p: *mut Pcap, on: c_int, errbuf: *mut c_char) -> c_int {
    guarded(PCAP_ERROR, || match target(p) {
        Target::Real(q) => {
            let code = real!(pcap_setnonblock(q: *mut Pcap, on: c_int, errbuf: *mut c_char) -> c_int);
            if let Some(live) = table::find(p).filter(|_| code == 0) {
                live.entry.facts.set_nonblocking(on != 0);
            }
            code
        }
        Target::Live(live) => {
            live.entry.facts.set_nonblocking(on != 0);
            0
        }
    })
}

/// `pcap_getnonblock(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_getnonblock(p: *mut Pcap, errbuf: *mut c_char) -> c_int {
    guarded(PCAP_ERROR, || match target(p) {
        Target::Real(p) => real!(pcap_getnonblock(p: *mut Pcap, errbuf: *mut c_char) -> c_int),
        Target::Live(live) => c_int::from(live.entry.facts.nonblocking()),
    })
}

/// The descriptor of a live handle, which tells of packets from now on; or what libpcap answers.
macro_rules! descriptor {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(p: *mut Pcap) -> c_int {
            guarded(PCAP_ERROR, || match target(p) {
                Target::Real(p) => real!($name(p: *mut Pcap) -> c_int),
                Target::Live(live) => {
                    let facts = &live.entry.facts;
                    let known = facts.is_polled();
                    facts.set_polled();
                    // In a callback the reading call does it when the callback is back.
                    let prepared = match live.entry.lock().filter(|_| !known) {
                        Some(mut handle) => handle.prepare_to_poll(),
                        None => Ok(()),
                    };
                    match prepared {
                        Ok(()) => facts.descriptor(),
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

/// `pcap_get_required_select_timeout(3PCAP)`: the descriptor tells everything, so none is required.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_get_required_select_timeout(p: *mut Pcap) -> *const libc::timeval {
    guarded(std::ptr::null(), || match target(p) {
        Target::Real(p) => real!(pcap_get_required_select_timeout(p: *mut Pcap) -> *const libc::timeval),
        Target::Live(_) => std::ptr::null(),
    })
}

/// `pcap_list_datalinks(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_list_datalinks(p: *mut Pcap, list: *mut *mut c_int) -> c_int {
    guarded(PCAP_ERROR, || {
        let live = match target(p) {
            Target::Real(p) => {
                return real!(pcap_list_datalinks(p: *mut Pcap, list: *mut *mut c_int) -> c_int);
            }
            Target::Live(live) => live,
        };
        let types = datalinks(live.entry.facts.link_type());
        // SAFETY: calloc takes two sizes; pcap_free_datalinks frees.
        let room = unsafe { libc::calloc(types.len(), size_of::<c_int>()) }.cast::<c_int>();
        if room.is_null() {
            say(p, "no memory");
            return PCAP_ERROR;
        }
        // SAFETY: room holds that many; the program gave a place for its address.
        unsafe {
            room.copy_from_nonoverlapping(types.as_ptr(), types.len());
            list.write(room);
        }
        types.len() as c_int
    })
}

/// What a handle of this link type can be made to have: those of libpcap (`map_arphrd_to_dlt` of pcap-linux.c).
fn datalinks(link_type: u32) -> Vec<c_int> {
    match dlt(link_type) {
        cooked @ (113 | 276) => vec![cooked, 113 + 276 - cooked],
        DLT_EN10MB | DLT_DOCSIS => vec![DLT_EN10MB, DLT_DOCSIS],
        only => vec![only],
    }
}

/// `DLT_DOCSIS`: Ethernet, for a cable modem head end that puts other frames on it.
const DLT_DOCSIS: c_int = 143;

/// `pcap_set_datalink(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_datalink(p: *mut Pcap, wanted: c_int) -> c_int {
    guarded(PCAP_ERROR, || {
        let live = match target(p) {
            Target::Real(p) => return real!(pcap_set_datalink(p: *mut Pcap, wanted: c_int) -> c_int),
            Target::Live(live) => live,
        };
        let facts = &live.entry.facts;
        match wanted {
            DLT_EN10MB | DLT_DOCSIS if datalinks(facts.link_type()).contains(&wanted) => {
                facts.set_link_type(wanted as u32);
                0
            }
            _ if dlt(facts.link_type()) == wanted => 0,
            113 | 276 if datalinks(facts.link_type()).contains(&wanted) => match live.entry.lock() {
                Some(mut handle) => code(p, handle.set_link_type(&live.entry, wanted as u32)),
                None => refused_in_callback(p),
            },
            _ => {
                let name = real!(pcap_datalink_val_to_name(wanted: c_int) -> *const c_char);
                let name = if name.is_null() { format!("DLT {wanted}") } else { super::text(name) };
                say(p, &format!("{name} is not one of the DLTs supported by this device"));
                PCAP_ERROR
            }
        }
    })
}
