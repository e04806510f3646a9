//! Reading packets, and what may be asked meanwhile: `pcap_breakloop`, `pcap_stats`.

use std::ffi::{c_char, c_int, c_uchar};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use strait_capture::Frame;

use super::{
    BREAKS, Entry, Handler, PCAP_ERROR, PCAP_ERROR_BREAK, PCAP_ERROR_NOT_ACTIVATED, PacketHeader, Pcap, Stat,
    Target, failed, guarded, next, target,
};
use crate::handle::Ended;

/// Hands packets to `take`; the codes are those of `pcap_dispatch` (`looping` false) and `pcap_loop`.
fn pump(
    p: *mut Pcap,
    entry: &Entry,
    count: c_int,
    looping: bool,
    mut take: impl FnMut(&PacketHeader, &[u8]),
) -> c_int {
    let mut state = entry.lock();
    if !state.handle.is_active() {
        return PCAP_ERROR_NOT_ACTIVATED;
    }
    let max = usize::try_from(count).ok().filter(|count| *count > 0).unwrap_or(usize::MAX);
    let divisor = if state.handle.options.nanoseconds { 1 } else { 1000 };
    let take = |frame: &Frame<'_>| take(&header(frame, divisor), frame.bytes);
    match state.handle.dispatch(&entry.shared, &entry.flag.broken, max, looping, take) {
        Ok(Ended::Broken) => PCAP_ERROR_BREAK,
        Ok(Ended::Count(_)) if looping => 0,
        Ok(Ended::Count(count)) => count as c_int,
        Err(error) => {
            failed(p, &error);
            PCAP_ERROR
        }
    }
}

fn header(frame: &Frame<'_>, divisor: u64) -> PacketHeader {
    let (seconds, rest) = (frame.timestamp_ns / 1_000_000_000, frame.timestamp_ns % 1_000_000_000);
    let ts = libc::timeval { tv_sec: seconds as i64, tv_usec: (rest / divisor) as i64 };
    PacketHeader { ts, caplen: frame.bytes.len() as u32, len: frame.wire_len }
}

/// `pcap_dispatch` and `pcap_loop` (pcap_loop(3PCAP)).
macro_rules! reader {
    ($(#[$doc:meta])* $name:ident, $looping:expr) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(p: *mut Pcap, count: c_int, call: Handler, user: *mut c_uchar) -> c_int {
            guarded(PCAP_ERROR, || match target(p) {
                Target::Real(p) => {
                    real!($name(p: *mut Pcap, count: c_int, call: Handler, user: *mut c_uchar) -> c_int)
                }
                Target::Live(entry) => pump(p, &entry, count, $looping, |header, bytes| {
                    if let Some(call) = call {
                        // SAFETY: the program gave the function and its argument; header and bytes live through it.
                        unsafe { call(user, header, bytes.as_ptr()) };
                    }
                }),
            })
        }
    };
}

reader! {
    /// `pcap_dispatch(3PCAP)`.
    pcap_dispatch, false
}
reader! {
    /// `pcap_loop(3PCAP)`.
    pcap_loop, true
}

/// `pcap_next_ex(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_next_ex(
    p: *mut Pcap,
    header: *mut *mut PacketHeader,
    data: *mut *const c_uchar,
) -> c_int {
    guarded(PCAP_ERROR, || {
        let entry = match target(p) {
            Target::Real(p) => {
                return real!(pcap_next_ex(p: *mut Pcap, header: *mut *mut PacketHeader, data: *mut *const c_uchar) -> c_int);
            }
            Target::Live(entry) => entry,
        };
        let mut kept = None;
        let mut room = std::mem::take(&mut entry.lock().bytes);
        let result = pump(p, &entry, 1, false, |header, bytes| {
            room.clear();
            room.extend_from_slice(bytes);
            kept = Some(*header);
        });
        let mut state = entry.lock();
        state.bytes = room;
        let Some(found) = kept else { return result };
        *state.header = found;
        // SAFETY: the program gave places for both; what they point at lives until its next call on the handle.
        unsafe {
            header.write(&raw mut *state.header);
            data.write(state.bytes.as_ptr());
        }
        1
    })
}

/// `pcap_next(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_next(p: *mut Pcap, header: *mut PacketHeader) -> *const c_uchar {
    let (mut found, mut data) = (std::ptr::null_mut(), std::ptr::null());
    // SAFETY: both places are ours; found points at a header where the result is 1.
    unsafe {
        if pcap_next_ex(p, &raw mut found, &raw mut data) == 1 {
            header.write(*found);
            return data;
        }
    }
    std::ptr::null()
}

/// `pcap_breakloop(3PCAP)`: takes no lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_breakloop(p: *mut Pcap) {
    let flag = BREAKS.iter().find(|flag| flag.handle.load(Ordering::Acquire) == p as usize);
    let q = match flag.map(|flag| (flag, flag.instead.load(Ordering::Acquire))) {
        Some((flag, 0)) => return flag.broken.store(true, Ordering::Relaxed),
        Some((_, instead)) => instead as *mut Pcap,
        None => p,
    };
    // SAFETY: libpcap's function, on a handle of libpcap's.
    unsafe { break_theirs()(q) };
}

/// libpcap's own `pcap_breakloop`.
pub(super) fn break_theirs() -> unsafe extern "C" fn(*mut Pcap) {
    static FOUND: OnceLock<usize> = OnceLock::new();
    let address = *FOUND.get_or_init(|| next("pcap_breakloop\0"));
    // SAFETY: libpcap's function of this name has this signature.
    unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(*mut Pcap)>(address) }
}

/// `pcap_stats(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_stats(p: *mut Pcap, stat: *mut Stat) -> c_int {
    guarded(PCAP_ERROR, || {
        let entry = match target(p) {
            Target::Real(p) => return real!(pcap_stats(p: *mut Pcap, stat: *mut Stat) -> c_int),
            Target::Live(entry) => entry,
        };
        // From a callback the handle is locked: the account is that of its batch.
        if let Ok(mut state) = entry.state.try_lock()
            && let Err(error) = state.handle.refresh(&entry.shared)
        {
            return failed(p, &error);
        }
        let stats = entry.shared.stats();
        let stats =
            Stat { recv: stats.received as u32, drop: stats.dropped as u32, ifdrop: stats.missed as u32 };
        // SAFETY: the program gave a place for it.
        unsafe { stat.write(stats) };
        0
    })
}

/// `pcap_setnonblock(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_setnonblock(p: *mut Pcap, on: c_int, errbuf: *mut c_char) -> c_int {
    guarded(PCAP_ERROR, || match target(p) {
        Target::Real(p) => real!(pcap_setnonblock(p: *mut Pcap, on: c_int, errbuf: *mut c_char) -> c_int),
        Target::Live(entry) => {
            entry.lock().handle.nonblocking = on != 0;
            0
        }
    })
}

/// `pcap_getnonblock(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_getnonblock(p: *mut Pcap, errbuf: *mut c_char) -> c_int {
    guarded(PCAP_ERROR, || match target(p) {
        Target::Real(p) => real!(pcap_getnonblock(p: *mut Pcap, errbuf: *mut c_char) -> c_int),
        Target::Live(entry) => c_int::from(entry.lock().handle.nonblocking),
    })
}

/// The descriptor of a live handle, or what libpcap answers.
macro_rules! descriptor {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(p: *mut Pcap) -> c_int {
            guarded(PCAP_ERROR, || match target(p) {
                Target::Real(p) => real!($name(p: *mut Pcap) -> c_int),
                Target::Live(entry) => match entry.lock().handle.descriptor() {
                    Ok(descriptor) => descriptor,
                    Err(error) => failed(p, &error),
                },
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
