//! Reading packets, and calls that are allowed meanwhile: `pcap_breakloop`, `pcap_stats`.

use std::ffi::{c_int, c_uchar};
use std::sync::{OnceLock, PoisonError};

use super::table::{Live, Target, peek, target};
use super::{
    Handler, PCAP_ERROR, PCAP_ERROR_BREAK, PacketHeader, Pcap, Stat, failed, library, refused_in_callback,
    set_error,
};
use crate::handle::{Delivery, Ended, Packet};

/// Delivers packets to `take`. The return codes are those of `pcap_dispatch` (`looping` false) and
/// `pcap_loop`.
///
/// It runs the program's callback, which may unwind through it: by a C++ exception, or by the end
/// of its thread. Locks are then released. A panic of this library must not unwind into C: it ends
/// the process.
fn pump(
    p: *mut Pcap,
    live: &Live,
    max: c_int,
    looping: bool,
    mut take: impl FnMut(&PacketHeader, &[u8]),
) -> c_int {
    let _fence = Fence;
    let entry = &live.entry;
    live.set_read();
    let max = usize::try_from(max).ok().filter(|max| *max > 0).unwrap_or(usize::MAX);
    let mut headers = Headers::new(entry.properties.nanoseconds());
    let take = |packet: Packet<'_>| take(headers.of(&packet), packet.bytes);
    let mut delivery = Delivery { entry, max, count: 0, take };
    let mut reading = None;
    loop {
        let Some(mut handle) = entry.lock() else { return refused_in_callback(p) };
        let reading = reading.get_or_insert_with(|| handle.reading(looping));
        let reader = entry.read();
        let ended = handle.dispatch(reading, &mut delivery);
        drop(reader);
        drop(handle);
        return match ended {
            Ok(Ended::LockRequested) if looping || delivery.count == 0 => {
                entry.yield_lock();
                continue;
            }
            Ok(Ended::BreakLoop) => PCAP_ERROR_BREAK,
            Ok(Ended::Done) if looping => 0,
            Ok(Ended::Done | Ended::LockRequested) => c_int::try_from(delivery.count).unwrap_or(c_int::MAX),
            Err(error) => {
                failed(p, &error);
                if !entry.device_exists() {
                    set_error(p, "The interface disappeared");
                }
                PCAP_ERROR
            }
        };
    }
}

/// Aborts the process if it is dropped during a panic.
struct Fence;

impl Drop for Fence {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Headers of packets, written over each other. The time is only divided if it differs from the
/// last packet's: packets of a batch often have the same time.
struct Headers {
    /// True if fractions of a second are in nanoseconds, false for microseconds.
    nanoseconds: bool,
    timestamp_ns: u64,
    header: PacketHeader,
}

impl Headers {
    fn new(nanoseconds: bool) -> Self {
        let ts = libc::timeval { tv_sec: 0, tv_usec: 0 };
        Self { nanoseconds, timestamp_ns: 0, header: PacketHeader { ts, caplen: 0, len: 0 } }
    }

    #[inline]
    fn of(&mut self, packet: &Packet<'_>) -> &PacketHeader {
        const SECOND_NS: u64 = 1_000_000_000;
        if packet.timestamp_ns != self.timestamp_ns {
            self.timestamp_ns = packet.timestamp_ns;
            let (seconds, rest) = (packet.timestamp_ns / SECOND_NS, packet.timestamp_ns % SECOND_NS);
            let fraction = if self.nanoseconds { rest } else { rest / 1000 };
            self.header.ts = libc::timeval { tv_sec: seconds as i64, tv_usec: fraction as i64 };
        }
        self.header.caplen = packet.bytes.len() as u32;
        self.header.len = packet.wire_len;
        &self.header
    }
}

/// Defines `pcap_dispatch` and `pcap_loop` (pcap_loop(3PCAP)).
macro_rules! reader {
    ($(#[$doc:meta])* $name:ident, $looping:expr) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            p: *mut Pcap,
            count: c_int,
            call: Handler,
            user: *mut c_uchar,
        ) -> c_int {
            match target(p) {
                Target::Real(p) => {
                    real!($name(p: *mut Pcap, count: c_int, call: Handler, user: *mut c_uchar) -> c_int)
                }
                Target::Live(live) => pump(p, &live, count, $looping, |header, bytes| {
                    if let Some(call) = call {
                        // SAFETY: the program passed the function and its argument; header and
                        // bytes live through the call.
                        unsafe { call(user, header, bytes.as_ptr()) };
                    }
                }),
            }
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
pub unsafe extern "C-unwind" fn pcap_next_ex(
    p: *mut Pcap,
    header: *mut *mut PacketHeader,
    data: *mut *const c_uchar,
) -> c_int {
    let live = match target(p) {
        Target::Real(p) => {
            return real!(pcap_next_ex(p: *mut Pcap, header: *mut *mut PacketHeader, data: *mut *const c_uchar) -> c_int);
        }
        Target::Live(live) => live,
    };
    let mut last_packet = live.last_packet.lock().unwrap_or_else(PoisonError::into_inner);
    let last_packet = &mut *last_packet;
    let result = pump(p, &live, 1, false, |found, bytes| {
        *last_packet.header = *found;
        last_packet.bytes.clear();
        last_packet.bytes.extend_from_slice(bytes);
    });
    if result == 1 {
        // SAFETY: the program passed pointers to both; the data lives until its next call on the
        // handle.
        unsafe {
            header.write(&raw mut *last_packet.header);
            data.write(last_packet.bytes.as_ptr());
        }
    }
    result
}

/// `pcap_next(3PCAP)`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pcap_next(p: *mut Pcap, header: *mut PacketHeader) -> *const c_uchar {
    let (mut found, mut data) = (std::ptr::null_mut(), std::ptr::null());
    // SAFETY: both are local variables; found points to a header if the result is 1.
    unsafe {
        if pcap_next_ex(p, &raw mut found, &raw mut data) == 1 {
            header.write(*found);
            return data;
        }
    }
    std::ptr::null()
}

/// `pcap_breakloop(3PCAP)`: takes no lock and allocates nothing, because signal handlers call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_breakloop(p: *mut Pcap) {
    let live = peek(p);
    if let Some(live) = live {
        live.entry.request_break();
        live.entry.interrupter.interrupt();
        if live.is_active() {
            return;
        }
    }
    let stock = live.map_or(p, Live::stock);
    // SAFETY: libpcap's function, on one of libpcap's handles.
    unsafe { (stock_calls().breakloop)(stock) };
}

/// `pcap_stats(3PCAP)`: takes no lock and allocates nothing, because signal handlers call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcap_stats(p: *mut Pcap, stat: *mut Stat) -> c_int {
    let live = peek(p);
    let Some(live) = live.filter(|live| live.is_active()) else {
        let stock = live.map_or(p, Live::stock);
        // SAFETY: libpcap's function, on one of libpcap's handles; the program passed a valid
        // pointer.
        return unsafe { (stock_calls().stats)(stock, stat) };
    };
    let Ok(sum) = live.statistics() else {
        set_error(p, "the kernel returned no statistics of the capture");
        return PCAP_ERROR;
    };
    let missed = live.entry.properties.missed();
    let stats = Stat { recv: sum.received as u32, drop: sum.dropped as u32, ifdrop: missed as u32 };
    // SAFETY: the program passed a valid pointer.
    unsafe { stat.write(stats) };
    0
}

/// libpcap's own functions for use in signal handlers.
pub(super) struct StockCalls {
    breakloop: unsafe extern "C" fn(*mut Pcap),
    stats: unsafe extern "C" fn(*mut Pcap, *mut Stat) -> c_int,
}

/// Returns the functions. `pcap_create` calls this first, so that the look-up never happens in a
/// signal handler.
pub(super) fn stock_calls() -> &'static StockCalls {
    static FOUND: OnceLock<StockCalls> = OnceLock::new();
    FOUND.get_or_init(|| {
        let (breakloop, stats) = (library::function("pcap_breakloop\0"), library::function("pcap_stats\0"));
        // SAFETY: libpcap's functions of these names have these signatures.
        unsafe {
            StockCalls {
                breakloop: std::mem::transmute::<usize, unsafe extern "C" fn(*mut Pcap)>(breakloop),
                stats: std::mem::transmute::<usize, unsafe extern "C" fn(*mut Pcap, *mut Stat) -> c_int>(
                    stats,
                ),
            }
        }
    })
}
