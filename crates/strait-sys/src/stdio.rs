//! Standard descriptors 0, 1 and 2 that were closed when this process was started (`>&-` in a
//! shell).
//!
//! Before `main`, the runtime of the standard library opens /dev/null in place of a closed
//! descriptor, so that no other file gets its number. Bytes written there are lost without an
//! error. Shells and daemons also pass /dev/null to their children, read-write too, so the open
//! file does not show the difference: a function that runs before the runtime checks the
//! descriptors. `stdio` of strait-os calls this module; nothing here writes.

use std::sync::atomic::{AtomicBool, Ordering};

/// For each descriptor: true if it was closed at the start.
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// Runs before `main` and before the runtime: the dynamic loader or the C library's start calls
/// each function of this section (gABI, "Initialization and Termination Functions").
// SAFETY: the section holds pointers to functions of the C calling convention; the
// arguments of the caller are ignored.
#[used]
#[unsafe(link_section = ".init_array")]
static CHECK_DESCRIPTORS: extern "C" fn() = check_descriptors;

extern "C" fn check_descriptors() {
    for (number, closed) in (0..).zip(&CLOSED) {
        // SAFETY: fcntl(2) fails on a number that is not a descriptor.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        closed.store(flags == -1, Ordering::Relaxed);
    }
}

/// Returns for each of the descriptors 0, 1 and 2 if it was closed when this process was started.
pub fn closed_at_start() -> [bool; 3] {
    CLOSED.each_ref().map(|closed| closed.load(Ordering::Relaxed))
}
