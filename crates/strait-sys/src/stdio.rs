//! The standard descriptors 0, 1 and 2: which of them were closed when this process was started
//! (`>&-` in a shell).
//!
//! The runtime of the standard library opens /dev/null in place of a closed one before `main`, so
//! that no other file gets its number. Bytes written there are lost without an error. Programs and
//! daemons also open /dev/null themselves for their children, read-write too, so the open file
//! cannot tell the two apart: a function that runs before the runtime looks at the descriptors. The
//! commands of `strait` ask; nothing here writes.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::FdFlags;

/// Closed at the start, by number.
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

/// Runs before `main` and before the runtime: the dynamic loader or the C library's start calls
/// each function of this section (gABI, "Initialization and Termination Functions").
// SAFETY: the section holds pointers to functions of the C calling convention; whatever arguments
// the caller passes are ignored.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for (number, closed) in (0..).zip(&CLOSED) {
        // SAFETY: fcntl(2) on a number that is no descriptor fails.
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

/// Lets a program that takes the place of this one (execve(2)) find closed what this one found
/// closed, in place of /dev/null.
pub fn close_again_on_exec() {
    let (input, output, error) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let descriptors: [BorrowedFd<'_>; 3] = [input.as_fd(), output.as_fd(), error.as_fd()];
    for (descriptor, closed) in descriptors.into_iter().zip(&CLOSED) {
        if closed.load(Ordering::Relaxed) {
            // One that cannot be marked is /dev/null for the program, which does no harm.
            let _ = rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC);
        }
    }
}
