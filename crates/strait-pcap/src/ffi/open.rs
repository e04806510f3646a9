//! From `pcap_create` to `pcap_close`: what may be set, and libpcap's part where Strait cannot open the device.

use std::ffi::{CString, c_char, c_int};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use strait_capture::Error;

use super::read::break_theirs;
use super::{
    BREAKS, Break, DLT_EN10MB, ERRBUF_BYTES, Entry, PCAP_ERROR, PCAP_ERROR_ACTIVATED,
    PCAP_ERROR_NO_SUCH_DEVICE, PCAP_ERROR_TSTAMP_PRECISION_NOTSUP, PCAP_TSTAMP_PRECISION_MICRO,
    PCAP_TSTAMP_PRECISION_NANO, PacketHeader, Pcap, State, TABLE, Target, failed, guarded, next, put, say,
    target, text,
};
use crate::choice::Choice;
use crate::handle::{Handle, Shared};

/// `pcap_create(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_create(device: *const c_char, errbuf: *mut c_char) -> *mut Pcap {
    let theirs = || real!(pcap_create(device: *const c_char, errbuf: *mut c_char) -> *mut Pcap);
    guarded(std::ptr::null_mut(), || {
        let choice = match Choice::new(&text(device), |name| std::env::var(name).ok()) {
            Ok(choice) => choice,
            Err(wrong) => {
                put(errbuf, &wrong);
                return std::ptr::null_mut();
            }
        };
        let (linktype, snaplen) = (DLT_EN10MB, 262_144);
        let p = real!(pcap_open_dead(linktype: c_int, snaplen: c_int) -> *mut Pcap);
        let free = BREAKS.iter().find(|flag| {
            flag.handle.compare_exchange(0, p as usize, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        let Some(flag) = free.filter(|_| !p.is_null()) else { return theirs() };
        flag.broken.store(false, Ordering::Relaxed);
        flag.instead.store(0, Ordering::Release);
        // A signal handler must not be the first to look for it.
        break_theirs();
        let zero = PacketHeader { ts: libc::timeval { tv_sec: 0, tv_usec: 0 }, caplen: 0, len: 0 };
        let state =
            State { handle: Handle::new(choice), compiler: None, header: Box::new(zero), bytes: Vec::new() };
        let entry = Entry { state: Mutex::new(state), shared: Shared::default(), flag };
        let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
        table.get_or_insert_default().insert(p as usize, Arc::new(entry));
        p
    })
}

/// A setter that libpcap allows before activation.
macro_rules! setter {
    ($(#[$doc:meta])* $name:ident($argument:ident) $change:expr) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(p: *mut Pcap, $argument: c_int) -> c_int {
            guarded(PCAP_ERROR, || match target(p) {
                Target::Real(p) => real!($name(p: *mut Pcap, $argument: c_int) -> c_int),
                Target::Live(entry) => {
                    let change: fn(&mut Handle, c_int) = $change;
                    entry.set(|handle| change(handle, $argument))
                }
            })
        }
    };
}

setter! {
    /// `pcap_set_snaplen(3PCAP)`.
    pcap_set_snaplen(snaplen) |handle, snaplen| handle.options.snaplen = snaplen
}
setter! {
    /// `pcap_set_promisc(3PCAP)`.
    pcap_set_promisc(on) |handle, on| handle.options.promiscuous = on != 0
}
setter! {
    /// `pcap_set_timeout(3PCAP)`.
    pcap_set_timeout(ms) |handle, ms| handle.options.timeout_ms = ms
}
setter! {
    /// `pcap_set_immediate_mode(3PCAP)`: packets always come at once here.
    pcap_set_immediate_mode(_on) |_, _| {}
}
setter! {
    /// `pcap_set_buffer_size(3PCAP)`.
    pcap_set_buffer_size(bytes) |handle, bytes| handle.options.buffer_bytes = bytes
}
setter! {
    /// `pcap_set_rfmon(3PCAP)`: an Ethernet device has no monitor mode; libpcap says so when it activates.
    pcap_set_rfmon(_on) |_, _| {}
}
setter! {
    /// `pcap_set_tstamp_type(3PCAP)`: times are the kernel's.
    pcap_set_tstamp_type(_kind) |_, _| {}
}

setter! {
    /// `pcap_set_protocol_linux(3PCAP)`: all protocols come; a filter chooses among them.
    pcap_set_protocol_linux(_protocol) |_, _| {}
}

/// `pcap_datalink(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_datalink(p: *mut Pcap) -> c_int {
    const LINKTYPE_RAW: u32 = 101;
    const DLT_RAW: c_int = 12;
    guarded(PCAP_ERROR, || match target(p) {
        Target::Real(p) => real!(pcap_datalink(p: *mut Pcap) -> c_int),
        Target::Live(entry) => match entry.lock().handle.link_type() {
            LINKTYPE_RAW => DLT_RAW,
            link_type => link_type as c_int,
        },
    })
}

/// `pcap_set_tstamp_precision(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_set_tstamp_precision(p: *mut Pcap, precision: c_int) -> c_int {
    guarded(PCAP_ERROR, || match target(p) {
        Target::Real(p) => real!(pcap_set_tstamp_precision(p: *mut Pcap, precision: c_int) -> c_int),
        Target::Live(entry) => match precision {
            PCAP_TSTAMP_PRECISION_MICRO | PCAP_TSTAMP_PRECISION_NANO => {
                entry.set(|handle| handle.options.nanoseconds = precision == PCAP_TSTAMP_PRECISION_NANO)
            }
            _ => PCAP_ERROR_TSTAMP_PRECISION_NOTSUP,
        },
    })
}

/// `pcap_get_tstamp_precision(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_get_tstamp_precision(p: *mut Pcap) -> c_int {
    guarded(PCAP_ERROR, || match target(p) {
        Target::Real(p) => real!(pcap_get_tstamp_precision(p: *mut Pcap) -> c_int),
        Target::Live(entry) => c_int::from(entry.lock().handle.options.nanoseconds),
    })
}

/// `pcap_snapshot(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_snapshot(p: *mut Pcap) -> c_int {
    guarded(PCAP_ERROR, || match target(p) {
        Target::Real(p) => real!(pcap_snapshot(p: *mut Pcap) -> c_int),
        Target::Live(entry) => entry.lock().handle.snaplen(),
    })
}

/// `pcap_activate(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_activate(p: *mut Pcap) -> c_int {
    guarded(PCAP_ERROR, || {
        let entry = match target(p) {
            Target::Real(p) => return real!(pcap_activate(p: *mut Pcap) -> c_int),
            Target::Live(entry) => entry,
        };
        let mut state = entry.lock();
        if state.handle.is_active() {
            return PCAP_ERROR_ACTIVATED;
        }
        match state.handle.activate() {
            Ok(()) => 0,
            Err(error) if !exists(&state.handle.choice().device) => {
                say(p, &error.to_string());
                PCAP_ERROR_NO_SUCH_DEVICE
            }
            Err(error) if state.handle.choice().strict => failed(p, &error),
            Err(error) => take_over(p, &state, entry.flag, &error),
        }
    })
}

/// Whether there is an interface of this name; libpcap knows names that are none.
fn exists(device: &str) -> bool {
    const NOT_INTERFACES: [&str; 6] = ["any", "nflog", "nfqueue", "usbmon", "bluetooth", "dbus-"];
    let Ok(name) = CString::new(device) else { return false };
    // SAFETY: if_nametoindex reads a C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    index != 0 || NOT_INTERFACES.iter().any(|prefix| device.starts_with(prefix))
}

/// Strait cannot open the device as asked: libpcap does.
fn take_over(p: *mut Pcap, state: &State, flag: &Break, error: &Error) -> c_int {
    let Ok(device) = CString::new(state.handle.choice().device.clone()) else { return failed(p, error) };
    let (device, mut errbuf) = (device.as_ptr(), [0 as c_char; ERRBUF_BYTES]);
    let errbuf = errbuf.as_mut_ptr();
    let q = real!(pcap_create(device: *const c_char, errbuf: *mut c_char) -> *mut Pcap);
    if q.is_null() {
        return failed(p, error);
    }
    let options = &state.handle.options;
    let (snaplen, promiscuous) = (options.snaplen, c_int::from(options.promiscuous));
    let (timeout, bytes, precision) =
        (options.timeout_ms, options.buffer_bytes, c_int::from(options.nanoseconds));
    real!(pcap_set_snaplen(q: *mut Pcap, snaplen: c_int) -> c_int);
    real!(pcap_set_promisc(q: *mut Pcap, promiscuous: c_int) -> c_int);
    real!(pcap_set_timeout(q: *mut Pcap, timeout: c_int) -> c_int);
    real!(pcap_set_tstamp_precision(q: *mut Pcap, precision: c_int) -> c_int);
    if bytes > 0 {
        real!(pcap_set_buffer_size(q: *mut Pcap, bytes: c_int) -> c_int);
    }
    let status = real!(pcap_activate(q: *mut Pcap) -> c_int);
    if status < 0 {
        let said = real!(pcap_geterr(q: *mut Pcap) -> *mut c_char);
        say(p, &text(said));
        real!(pcap_close(q: *mut Pcap) -> ());
        return status;
    }
    eprintln!("strait: {error}; libpcap captures instead");
    flag.instead.store(q as usize, Ordering::Release);
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
    // SAFETY: the arguments are the caller's, each for the function that takes it.
    let p = unsafe { pcap_create(device, errbuf) };
    if p.is_null() {
        return p;
    }
    // SAFETY: as above; p was just made.
    unsafe {
        pcap_set_snaplen(p, snaplen);
        pcap_set_promisc(p, promisc);
        pcap_set_timeout(p, to_ms);
        if pcap_activate(p) >= 0 {
            return p;
        }
    }
    put(errbuf, &format!("{}: {}", text(device), text(real!(pcap_geterr(p: *mut Pcap) -> *mut c_char))));
    // SAFETY: pcap_create gave it.
    unsafe { pcap_close(p) };
    std::ptr::null_mut()
}

/// `pcap_close(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_close(p: *mut Pcap) {
    guarded((), || {
        let entry = {
            let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
            table.as_mut().and_then(|table| table.remove(&(p as usize)))
        };
        if let Some(entry) = entry {
            let (flag, instead) = (entry.flag, entry.flag.instead.load(Ordering::Acquire));
            end(entry);
            if instead != 0 {
                let q = instead as *mut Pcap;
                real!(pcap_close(q: *mut Pcap) -> ());
            }
            flag.handle.store(0, Ordering::Release);
        }
        real!(pcap_close(p: *mut Pcap) -> ());
    });
}

fn end(entry: Arc<Entry>) {
    // Another thread that is still in a call keeps it; the capture then ends with that call.
    let Some(entry) = Arc::into_inner(entry) else { return };
    let state = entry.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(q) = state.compiler {
        let q = q as *mut Pcap;
        real!(pcap_close(q: *mut Pcap) -> ());
    }
    if let Some(report) = state.handle.close() {
        eprint!("strait: {report}");
    }
}
