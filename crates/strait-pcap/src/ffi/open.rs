//! Handles from `pcap_create` to `pcap_close`: options, activation, and the fallback to libpcap.

use std::ffi::{CString, c_char, c_int};
use std::sync::Once;
use std::sync::atomic::Ordering;

use strait_capture::Error;

use super::files::NO_MEMORY;
use super::library::variable;
use super::read::stock_calls;
use super::table::{self, FORKED, FORKS, Live};
use super::{
    DLT_EN10MB, PCAP_ERROR, PCAP_ERROR_ACTIVATED, PCAP_ERROR_NO_SUCH_DEVICE, PCAP_ERROR_PERM_DENIED,
    PCAP_ERROR_PROMISC_PERM_DENIED, PCAP_ERROR_RFMON_NOTSUP, Pcap, copy_text, error_text, failed, guarded,
    refused_in_callback, set_error, text,
};
use crate::choice::Choice;
use crate::entry::Entry;
use crate::handle::Options;

/// `pcap_create(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_create(device: *const c_char, errbuf: *mut c_char) -> *mut Pcap {
    guarded(std::ptr::null_mut(), || match create(&text(device), errbuf) {
        Ok(p) => p,
        Err(message) => {
            copy_text(errbuf, &message);
            std::ptr::null_mut()
        }
    })
}

/// Returns a live handle, or libpcap's own if the device is not an interface and fallback is
/// allowed. Returns null if libpcap refuses the device; libpcap has then set the error.
fn create(device: &str, errbuf: *mut c_char) -> Result<*mut Pcap, String> {
    // Look up the functions here, because a signal handler must not be the first to do so.
    stock_calls();
    watch_forks();
    let choice = Choice::new(device, variable)?;
    let device =
        CString::new(choice.device.clone()).map_err(|_| "the device's name contains a NUL".to_owned())?;
    let entry = Entry::new(choice.clone()).map_err(|error| error.to_string())?;
    let name = device.as_ptr();
    let stock = real!(pcap_create(name: *const c_char, errbuf: *mut c_char) -> *mut Pcap);
    if stock.is_null() || !(choice.strict || is_interface(&device)) {
        return Ok(stock);
    }
    let (linktype, snaplen) = (DLT_EN10MB, 262_144);
    let p = real!(pcap_open_dead(linktype: c_int, snaplen: c_int) -> *mut Pcap);
    if p.is_null() {
        real!(pcap_close(stock: *mut Pcap) -> ());
        return Err(NO_MEMORY.to_owned());
    }
    table::insert(Live::new(entry, p, stock, device))
        .ok_or(format!("{}: this program has too many open handles", choice.device))
}

/// Returns true if the device is an interface or "any". libpcap also has devices of other kinds.
fn is_interface(device: &CString) -> bool {
    // SAFETY: if_nametoindex reads a C string.
    device.as_bytes() == b"any" || unsafe { libc::if_nametoindex(device.as_ptr()) } != 0
}

/// Saves an option. libpcap's handle is set too, because it checks values and the order of calls.
fn set(p: *mut Pcap, stock: impl FnOnce(*mut Pcap) -> c_int, change: impl FnOnce(&mut Options)) -> c_int {
    let Some(live) = table::find(p) else { return stock(p) };
    if live.is_active() {
        set_error(p, "can't perform operation on activated capture");
        return PCAP_ERROR_ACTIVATED;
    }
    let code = stock(live.stock());
    // A positive code is a warning: libpcap has ignored the value.
    if code == 0
        && let Some(mut handle) = live.entry.lock()
    {
        change(&mut handle.options);
    }
    code
}

/// Defines a setter for use before activation.
macro_rules! setter {
    ($(#[$doc:meta])* $name:ident($argument:ident) $change:expr) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(p: *mut Pcap, $argument: c_int) -> c_int {
            let change: fn(&mut Options, c_int) = $change;
            guarded(PCAP_ERROR, || {
                let stock = |p: *mut Pcap| real!($name(p: *mut Pcap, $argument: c_int) -> c_int);
                set(p, stock, |options| change(options, $argument))
            })
        }
    };
}

setter! {
    /// `pcap_set_snaplen(3PCAP)`.
    pcap_set_snaplen(snaplen) |options, snaplen| options.snaplen = snaplen
}
setter! {
    /// `pcap_set_promisc(3PCAP)`.
    pcap_set_promisc(on) |options, on| options.promiscuous = on != 0
}
setter! {
    /// `pcap_set_timeout(3PCAP)`.
    pcap_set_timeout(ms) |options, ms| options.timeout_ms = ms
}
setter! {
    /// `pcap_set_immediate_mode(3PCAP)`: no effect here, because packets are always delivered at
    /// once.
    pcap_set_immediate_mode(on) |_, _| {}
}
setter! {
    /// `pcap_set_buffer_size(3PCAP)`.
    pcap_set_buffer_size(bytes) |options, bytes| options.buffer_bytes = bytes
}
setter! {
    /// `pcap_set_rfmon(3PCAP)`: requires capture by libpcap.
    pcap_set_rfmon(on) |options, on| options.monitor = on != 0
}
setter! {
    /// `pcap_set_tstamp_type(3PCAP)`: times other than the kernel's require capture by libpcap.
    pcap_set_tstamp_type(kind) |options, kind| options.timestamp_type = kind
}
setter! {
    /// `pcap_set_tstamp_precision(3PCAP)`.
    pcap_set_tstamp_precision(precision) |options, precision| options.nanoseconds = precision != 0
}
setter! {
    /// `pcap_set_protocol_linux(3PCAP)`: a single protocol requires capture by libpcap.
    pcap_set_protocol_linux(protocol) |options, protocol| options.protocol = protocol
}

/// `pcap_can_set_rfmon(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_can_set_rfmon(p: *mut Pcap) -> c_int {
    guarded(PCAP_ERROR, || {
        let p = table::find(p).map_or(p, |live| live.stock());
        real!(pcap_can_set_rfmon(p: *mut Pcap) -> c_int)
    })
}

/// `pcap_activate(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_activate(p: *mut Pcap) -> c_int {
    guarded(PCAP_ERROR, || {
        let live = match table::find(p) {
            None => return real!(pcap_activate(p: *mut Pcap) -> c_int),
            Some(live) if live.is_active() => {
                set_error(p, "can't perform operation on activated capture");
                return PCAP_ERROR_ACTIVATED;
            }
            Some(live) => live,
        };
        let status = activate(p, &live);
        if status < 0 && error_text(p).is_empty() {
            // Like libpcap, for programs that know no code other than PCAP_ERROR.
            set_error(p, &text(real!(pcap_statustostr(status: c_int) -> *const c_char)));
        }
        status
    })
}

/// Opens the capture of a handle that is not open, with Strait or with libpcap.
fn activate(p: *mut Pcap, live: &Live) -> c_int {
    let Some(mut handle) = live.entry.lock() else { return refused_in_callback(p) };
    let stock = live.stock();
    if live.taken_over.load(Ordering::Relaxed) {
        return real!(pcap_activate(stock: *mut Pcap) -> c_int);
    }
    if handle.options.monitor && real!(pcap_can_set_rfmon(stock: *mut Pcap) -> c_int) == 0 {
        return PCAP_ERROR_RFMON_NOTSUP;
    }
    let _lock = table::activation_lock();
    if let Some(other) = table::all().iter().find(|other| live.excludes(other)) {
        let device = &other.entry.choice.device;
        set_error(
            p,
            &format!(
                "this program has {device} open already: on paths xdp and zerocopy one handle takes all packets, \
                 and the other would receive nothing. Use path v3 for both: strait run --path v3 (STRAIT_PATH=v3)"
            ),
        );
        return PCAP_ERROR;
    }
    match handle.activate(&live.entry) {
        Ok(live_counters) => {
            live.compiles.store(make_compiler(live), Ordering::Relaxed);
            report_at_exit(live);
            live.set_active(live_counters);
            0
        }
        Err(error) if live.entry.choice.strict && !is_interface(&live.device) => {
            set_error(p, &error.to_string());
            PCAP_ERROR_NO_SUCH_DEVICE
        }
        Err(error) if live.entry.choice.strict => failed(p, &error),
        Err(error) => fall_back(live, &error),
    }
}

/// Activates libpcap's own handle to compile filters for a live capture. Such filters differ if
/// they match VLAN tags, which the kernel has removed from a live frame. The handle captures a
/// protocol that no frame has, at no cost. Returns true if it is active.
fn make_compiler(live: &Live) -> bool {
    const ETH_P_NONE: c_int = 0x00ff;
    let stock = live.stock();
    let (protocol, off, bytes) = (ETH_P_NONE, 0, 1 << 16);
    real!(pcap_set_protocol_linux(stock: *mut Pcap, protocol: c_int) -> c_int);
    real!(pcap_set_promisc(stock: *mut Pcap, off: c_int) -> c_int);
    real!(pcap_set_immediate_mode(stock: *mut Pcap, off: c_int) -> c_int);
    real!(pcap_set_buffer_size(stock: *mut Pcap, bytes: c_int) -> c_int);
    real!(pcap_activate(stock: *mut Pcap) -> c_int) >= 0
}

/// Prints a requested report at exit, because many programs end without closing their handles.
fn report_at_exit(live: &Live) {
    static ONCE: Once = Once::new();
    if live.entry.choice.report {
        // SAFETY: the function takes no arguments, and may run at exit.
        ONCE.call_once(|| unsafe {
            libc::atexit(report_all);
        });
    }
}

/// Records each fork, in the parent and in the child.
fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the functions take no arguments and only store to atomics.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, Some(note_fork), Some(note_child));
    });
}

unsafe extern "C" fn note_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

unsafe extern "C" fn note_child() {
    FORKED.store(true, Ordering::Relaxed);
    FORKS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn report_all() {
    guarded((), || {
        for live in table::all().into_iter().filter(|live| live.is_ours()) {
            match live.entry.try_lock() {
                Some(mut handle) => handle.close(FORKED.load(Ordering::Relaxed)),
                None => {
                    live.entry.choice.notices.print("strait: no report: the program exited in a callback\n");
                }
            }
        }
    });
}

/// Captures with libpcap, because Strait cannot open the device with these options. If libpcap
/// fails too, its handle has the error.
fn fall_back(live: &Live, error: &Error) -> c_int {
    let stock = live.stock();
    let status = real!(pcap_activate(stock: *mut Pcap) -> c_int);
    if status >= 0 {
        live.taken_over.store(true, Ordering::Relaxed);
        live.entry.choice.notices.print(&format!("strait: {error}; libpcap captures instead\n"));
    }
    status
}

/// `pcap_open_live(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_open_live(
    device: *const c_char,
    snaplen: c_int,
    promisc: c_int,
    to_ms: c_int,
    errbuf: *mut c_char,
) -> *mut Pcap {
    // SAFETY: the arguments are the caller's, and each function has the same contract for them.
    let p = unsafe { pcap_create(device, errbuf) };
    if p.is_null() {
        return p;
    }
    // SAFETY: as above, and p is a new handle.
    let status = unsafe {
        pcap_set_snaplen(p, snaplen);
        pcap_set_promisc(p, promisc);
        pcap_set_timeout(p, to_ms);
        pcap_activate(p)
    };
    if status >= 0 {
        return p;
    }
    let (device, error_text) = (text(device), error_text(p));
    let meaning = text(real!(pcap_statustostr(status: c_int) -> *const c_char));
    let message = match status {
        PCAP_ERROR => format!("{device}: {error_text}"),
        PCAP_ERROR_NO_SUCH_DEVICE | PCAP_ERROR_PERM_DENIED | PCAP_ERROR_PROMISC_PERM_DENIED => {
            format!("{device}: {meaning} ({error_text})")
        }
        _ => format!("{device}: {meaning}"),
    };
    copy_text(errbuf, &message);
    // SAFETY: p is from pcap_create.
    unsafe { pcap_close(p) };
    std::ptr::null_mut()
}

/// `pcap_close(3PCAP)`. If the handle's own callback or another thread is in a call on it, the
/// capture ends with that call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_close(p: *mut Pcap) {
    guarded((), || {
        let Some(live) = table::remove(p) else { return real!(pcap_close(p: *mut Pcap) -> ()) };
        live.entry.request_break();
        live.entry.interrupter.interrupt();
    });
}
