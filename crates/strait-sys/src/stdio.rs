//! Standard descriptors 0, 1 and 2 that were closed when this process was started (`>&-` in a
//! shell).
//!
//! Before `main`, the runtime of the standard library opens /dev/null in place of a closed
//! descriptor, so that no other file gets its number. Bytes written there are lost without an
//! error. Shells and daemons also pass /dev/null to their children, read-write too, so the open
//! file does not show the difference: a function that runs before the runtime checks the
//! descriptors. The commands of `strait` call this module; nothing here writes.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::FdFlags;

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

/// Returns true if standard input was closed when this process was started.
pub fn is_input_closed() -> bool {
    CLOSED[0].load(Ordering::Relaxed)
}

/// Returns true if standard output was closed when this process was started.
pub fn is_output_closed() -> bool {
    CLOSED[1].load(Ordering::Relaxed)
}

/// Closes on execve(2) the descriptors that were closed at the start, so that the next program does
/// not get /dev/null in their place.
pub fn close_again_on_exec() {
    let (input, output, error) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let descriptors: [BorrowedFd<'_>; 3] = [input.as_fd(), output.as_fd(), error.as_fd()];
    for (descriptor, closed) in descriptors.into_iter().zip(&CLOSED) {
        if closed.load(Ordering::Relaxed) {
            // If marking fails, the program gets /dev/null, which is harmless.
            let _ = rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC);
        }
    }
}
