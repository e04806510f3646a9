//! From `pcap_create` to `pcap_close`: what may be set, and libpcap's part where Strait cannot open the device.

use std::ffi::{CString, c_char, c_int};
use std::sync::Once;
use std::sync::atomic::Ordering;

use strait_capture::Error;

use super::read::find_theirs;
use super::table::{self, FORKED, FORKS, Live};
use super::{
    DLT_EN10MB, PCAP_ERROR, PCAP_ERROR_ACTIVATED, PCAP_ERROR_NO_SUCH_DEVICE, PCAP_ERROR_PERM_DENIED,
    PCAP_ERROR_PROMISC_PERM_DENIED, PCAP_ERROR_RFMON_NOTSUP, Pcap, failed, guarded, put, refused_in_callback,
    said, say, text,
};
use crate::choice::Choice;
use crate::entry::Entry;
use crate::handle::Options;

/// `pcap_create(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_create(device: *const c_char, errbuf: *mut c_char) -> *mut Pcap {
    guarded(std::ptr::null_mut(), || match create(&text(device), errbuf) {
        Ok(p) => p,
        Err(wrong) => {
            put(errbuf, &wrong);
            std::ptr::null_mut()
        }
    })
}

/// A handle that Strait opens, or libpcap's own for what is no interface. NULL where libpcap said why.
fn create(device: &str, errbuf: *mut c_char) -> Result<*mut Pcap, String> {
    // A signal handler must not be the first to look for them.
    find_theirs();
    watch_forks();
    let choice = Choice::new(device, |name| std::env::var(name).ok())?;
    let device = CString::new(choice.device.clone()).map_err(|_| "a NUL in a device's name".to_owned())?;
    let entry = Entry::new(choice.clone()).map_err(|error| error.to_string())?;
    let name = device.as_ptr();
    let theirs = real!(pcap_create(name: *const c_char, errbuf: *mut c_char) -> *mut Pcap);
    if theirs.is_null() || !(choice.strict || is_interface(&device)) {
        return Ok(theirs);
    }
    let (linktype, snaplen) = (DLT_EN10MB, 262_144);
    let p = real!(pcap_open_dead(linktype: c_int, snaplen: c_int) -> *mut Pcap);
    if p.is_null() {
        return Ok(theirs);
    }
    table::insert(Live::new(entry, p, theirs, device))
        .ok_or(format!("{}: this program has too many handles open", choice.device))
}

/// Whether packets of this device come from interfaces; libpcap knows devices that are none.
fn is_interface(device: &CString) -> bool {
    // SAFETY: if_nametoindex reads a C string.
    device.as_bytes() == b"any" || unsafe { libc::if_nametoindex(device.as_ptr()) } != 0
}

/// Notes what the program sets, and tells libpcap's handle, which knows what may be set and when.
fn set(p: *mut Pcap, theirs: impl FnOnce(*mut Pcap) -> c_int, change: impl FnOnce(&mut Options)) -> c_int {
    let Some(live) = table::find(p) else { return theirs(p) };
    if live.is_active() {
        say(p, "can't perform operation on activated capture");
        return PCAP_ERROR_ACTIVATED;
    }
    let code = theirs(live.theirs());
    // A warning: libpcap passes over what it was given.
    if code == 0
        && let Some(mut handle) = live.entry.lock()
    {
        change(&mut handle.options);
    }
    code
}

/// A setter that libpcap allows before activation.
macro_rules! setter {
    ($(#[$doc:meta])* $name:ident($argument:ident) $change:expr) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(p: *mut Pcap, $argument: c_int) -> c_int {
            let change: fn(&mut Options, c_int) = $change;
            guarded(PCAP_ERROR, || {
                let theirs = |p: *mut Pcap| real!($name(p: *mut Pcap, $argument: c_int) -> c_int);
                set(p, theirs, |options| change(options, $argument))
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
    /// `pcap_set_immediate_mode(3PCAP)`: packets always come at once here.
    pcap_set_immediate_mode(on) |_, _| {}
}
setter! {
    /// `pcap_set_buffer_size(3PCAP)`.
    pcap_set_buffer_size(bytes) |options, bytes| options.buffer_bytes = bytes
}
setter! {
    /// `pcap_set_rfmon(3PCAP)`: libpcap captures then.
    pcap_set_rfmon(on) |options, on| options.monitor = on != 0
}
setter! {
    /// `pcap_set_tstamp_type(3PCAP)`: for other times than the kernel's libpcap captures.
    pcap_set_tstamp_type(kind) |options, kind| options.timestamp_type = kind
}
setter! {
    /// `pcap_set_tstamp_precision(3PCAP)`.
    pcap_set_tstamp_precision(precision) |options, precision| options.nanoseconds = precision != 0
}
setter! {
    /// `pcap_set_protocol_linux(3PCAP)`: for one protocol alone libpcap captures.
    pcap_set_protocol_linux(protocol) |options, protocol| options.protocol = protocol
}

/// `pcap_can_set_rfmon(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_can_set_rfmon(p: *mut Pcap) -> c_int {
    guarded(PCAP_ERROR, || {
        let p = table::find(p).map_or(p, |live| live.theirs());
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
                say(p, "can't perform operation on activated capture");
                return PCAP_ERROR_ACTIVATED;
            }
            Some(live) => live,
        };
        let status = activate(p, &live);
        if status < 0 && said(p).is_empty() {
            // As libpcap does, for programs that know no code but PCAP_ERROR.
            say(p, &text(real!(pcap_statustostr(status: c_int) -> *const c_char)));
        }
        status
    })
}

/// Opens the capture of a handle that is not open, by Strait or by libpcap.
fn activate(p: *mut Pcap, live: &Live) -> c_int {
    let Some(mut handle) = live.entry.lock() else { return refused_in_callback(p) };
    let theirs = live.theirs();
    if live.taken_over.load(Ordering::Relaxed) {
        return real!(pcap_activate(theirs: *mut Pcap) -> c_int);
    }
    if handle.options.monitor && real!(pcap_can_set_rfmon(theirs: *mut Pcap) -> c_int) == 0 {
        return PCAP_ERROR_RFMON_NOTSUP;
    }
    let _turn = table::turn();
    if let Some(other) = table::all().iter().find(|other| live.excludes(other)) {
        let device = &other.entry.choice.device;
        say(
            p,
            &format!(
                "this program has {device} open already: on paths xdp and zerocopy one handle takes all packets, \
                 and the other would receive nothing. Use path v3 for both: strait run --path v3 (STRAIT_PATH=v3)"
            ),
        );
        return PCAP_ERROR;
    }
    match handle.activate(&live.entry) {
        Ok(gauges) => {
            live.compiles.store(make_compiler(live), Ordering::Relaxed);
            report_at_exit(live);
            live.set_active(gauges);
            0
        }
        Err(error) if live.entry.choice.strict && !is_interface(&live.device) => {
            say(p, &error.to_string());
            PCAP_ERROR_NO_SUCH_DEVICE
        }
        Err(error) if live.entry.choice.strict => failed(p, &error),
        Err(error) => take_over(live, &error),
    }
}

/// Makes libpcap's own handle one that compiles filters for a live capture, which are others where they ask for VLAN
/// tags: the kernel has taken these out of a live frame. It is open for a protocol that no frame has, and costs nothing.
fn make_compiler(live: &Live) -> bool {
    const ETH_P_NONE: c_int = 0x00ff;
    let theirs = live.theirs();
    let (protocol, off, bytes) = (ETH_P_NONE, 0, 1 << 16);
    real!(pcap_set_protocol_linux(theirs: *mut Pcap, protocol: c_int) -> c_int);
    real!(pcap_set_promisc(theirs: *mut Pcap, off: c_int) -> c_int);
    real!(pcap_set_immediate_mode(theirs: *mut Pcap, off: c_int) -> c_int);
    real!(pcap_set_buffer_size(theirs: *mut Pcap, bytes: c_int) -> c_int);
    real!(pcap_activate(theirs: *mut Pcap) -> c_int) >= 0
}

/// Many programs end without closing their handles: a report that was asked for comes all the same.
fn report_at_exit(live: &Live) {
    static ONCE: Once = Once::new();
    if live.entry.choice.report {
        // SAFETY: the function takes nothing, and may run while the process ends.
        ONCE.call_once(|| unsafe {
            libc::atexit(report_all);
        });
    }
}

/// Has each fork noted, in the parent and in the child.
fn watch_forks() {
    static ONCE: Once = Once::new();
    // SAFETY: the functions take nothing and only store to atomics.
    ONCE.call_once(|| unsafe {
        libc::pthread_atfork(None, Some(note_fork), Some(note_birth));
    });
}

unsafe extern "C" fn note_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

unsafe extern "C" fn note_birth() {
    FORKED.store(true, Ordering::Relaxed);
    FORKS.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn report_all() {
    guarded((), || {
        for live in table::all().into_iter().filter(|live| live.is_ours()) {
            match live.entry.try_lock() {
                Some(mut handle) => handle.close(FORKED.load(Ordering::Relaxed)),
                None => {
                    live.entry.choice.notices.tell("strait: no report: the program ended in a callback\n");
                }
            }
        }
    });
}

/// Strait cannot open the device as asked: libpcap does. It says itself what is wrong where it cannot either.
fn take_over(live: &Live, error: &Error) -> c_int {
    let theirs = live.theirs();
    let status = real!(pcap_activate(theirs: *mut Pcap) -> c_int);
    if status >= 0 {
        live.taken_over.store(true, Ordering::Relaxed);
        live.entry.choice.notices.tell(&format!("strait: {error}; libpcap captures instead\n"));
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
    // SAFETY: the arguments are the caller's, each for the function that takes it.
    let p = unsafe { pcap_create(device, errbuf) };
    if p.is_null() {
        return p;
    }
    // SAFETY: as above; p was just made.
    let status = unsafe {
        pcap_set_snaplen(p, snaplen);
        pcap_set_promisc(p, promisc);
        pcap_set_timeout(p, to_ms);
        pcap_activate(p)
    };
    if status >= 0 {
        return p;
    }
    let (device, said) = (text(device), said(p));
    let meaning = text(real!(pcap_statustostr(status: c_int) -> *const c_char));
    let wrong = match status {
        PCAP_ERROR => format!("{device}: {said}"),
        PCAP_ERROR_NO_SUCH_DEVICE | PCAP_ERROR_PERM_DENIED | PCAP_ERROR_PROMISC_PERM_DENIED => {
            format!("{device}: {meaning} ({said})")
        }
        _ => format!("{device}: {meaning}"),
    };
    put(errbuf, &wrong);
    // SAFETY: pcap_create gave it.
    unsafe { pcap_close(p) };
    std::ptr::null_mut()
}

/// `pcap_close(3PCAP)`. Its own callback, or another thread, that is in a call on the handle ends it when it is out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_close(p: *mut Pcap) {
    guarded((), || {
        let Some(live) = table::remove(p) else { return real!(pcap_close(p: *mut Pcap) -> ()) };
        live.entry.set_broken();
        live.entry.interrupter.interrupt();
    });
}
