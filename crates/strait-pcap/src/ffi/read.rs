//! Reading packets, and what may be asked meanwhile: `pcap_breakloop`, `pcap_stats`.

use std::ffi::{c_int, c_uchar};
use std::sync::{OnceLock, PoisonError};

use strait_capture::Reading;

use super::table::{Live, Target, peek, target};
use super::{
    Handler, PCAP_ERROR, PCAP_ERROR_BREAK, PacketHeader, Pcap, Stat, failed, guarded, library,
    refused_in_callback, say,
};
use crate::handle::{Ended, Packet};

/// Hands packets to `take`; the codes are those of `pcap_dispatch` (`looping` false) and `pcap_loop`.
fn pump(
    p: *mut Pcap,
    live: &Live,
    max: c_int,
    looping: bool,
    mut take: impl FnMut(&PacketHeader, &[u8]),
) -> c_int {
    let entry = &live.entry;
    let max = usize::try_from(max).ok().filter(|max| *max > 0).unwrap_or(usize::MAX);
    let divisor = if entry.facts.nanoseconds() { 1 } else { 1000 };
    let mut count = 0;
    loop {
        let Some(mut handle) = entry.lock() else { return refused_in_callback(p) };
        let reading = entry.read();
        let ended = handle.dispatch(entry, max, looping, &mut count, |packet| {
            take(&header(&packet, divisor), packet.bytes);
        });
        drop(reading);
        if !matches!(ended, Ok(Ended::Knocked)) {
            handle.refresh(entry);
        }
        drop(handle);
        return match ended {
            Ok(Ended::Knocked) if looping || count == 0 => {
                entry.let_in();
                continue;
            }
            Ok(Ended::Broken) => PCAP_ERROR_BREAK,
            Ok(Ended::Done) if looping => 0,
            Ok(Ended::Done | Ended::Knocked) => c_int::try_from(count).unwrap_or(c_int::MAX),
            Err(error) => {
                failed(p, &error);
                if !entry.device_exists() {
                    say(p, "The interface disappeared");
                }
                PCAP_ERROR
            }
        };
    }
}

fn header(packet: &Packet<'_>, divisor: u64) -> PacketHeader {
    let (seconds, rest) = (packet.timestamp_ns / 1_000_000_000, packet.timestamp_ns % 1_000_000_000);
    let ts = libc::timeval { tv_sec: seconds as i64, tv_usec: (rest / divisor) as i64 };
    PacketHeader { ts, caplen: packet.bytes.len() as u32, len: packet.wire_len }
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
                Target::Live(live) => pump(p, &live, count, $looping, |header, bytes| {
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
        let live = match target(p) {
            Target::Real(p) => {
                return real!(pcap_next_ex(p: *mut Pcap, header: *mut *mut PacketHeader, data: *mut *const c_uchar) -> c_int);
            }
            Target::Live(live) => live,
        };
        let mut lent = live.lent.lock().unwrap_or_else(PoisonError::into_inner);
        let lent = &mut *lent;
        let result = pump(p, &live, 1, false, |found, bytes| {
            *lent.header = *found;
            lent.bytes.clear();
            lent.bytes.extend_from_slice(bytes);
        });
        if result == 1 {
            // SAFETY: the program gave places for both; what they point at lives until its next call on the handle.
            unsafe {
                header.write(&raw mut *lent.header);
                data.write(lent.bytes.as_ptr());
            }
        }
        result
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
    match peek(p) {
        Ok(live) => {
            live.entry.set_broken();
            live.entry.interrupter.interrupt();
        }
        // SAFETY: libpcap's function, on a handle of libpcap's.
        Err(theirs) => unsafe { break_theirs()(theirs) },
    }
}

/// libpcap's own `pcap_breakloop`.
pub(super) fn break_theirs() -> unsafe extern "C" fn(*mut Pcap) {
    static FOUND: OnceLock<usize> = OnceLock::new();
    let address = *FOUND.get_or_init(|| library::function("pcap_breakloop\0"));
    // SAFETY: libpcap's function of this name has this signature.
    unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(*mut Pcap)>(address) }
}

/// `pcap_stats(3PCAP)`: takes no lock, because programs call it from signal handlers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_stats(p: *mut Pcap, stat: *mut Stat) -> c_int {
    guarded(PCAP_ERROR, || {
        let live = match peek(p) {
            Ok(live) => live,
            Err(p) => return real!(pcap_stats(p: *mut Pcap, stat: *mut Stat) -> c_int),
        };
        let mut sum = Reading::default();
        for gauge in live.gauges.get().into_iter().flatten() {
            match gauge.read() {
                Ok(reading) => {
                    sum.received += reading.received;
                    sum.dropped += reading.dropped;
                }
                Err(error) => return failed(p, &error),
            }
        }
        let missed = live.entry.facts.missed();
        let stats = Stat { recv: sum.received as u32, drop: sum.dropped as u32, ifdrop: missed as u32 };
        // SAFETY: the program gave a place for it.
        unsafe { stat.write(stats) };
        0
    })
}
