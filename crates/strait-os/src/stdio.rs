//! Standard descriptors: those that were closed when this process was started (`>&-` in a shell),
//! and a standard input that is a socket.
//!
//! `strait_sys::stdio` checks them before `main`. The commands of `strait` call this module;
//! nothing here writes.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::FdFlags;
pub use strait_sys::inherited::{close_on_exec, take_standard_input};
use strait_sys::stdio::closed_at_start;

/// Returns true if standard input was closed when this process was started.
pub fn is_input_closed() -> bool {
    closed_at_start()[0]
}

/// Returns true if standard output was closed when this process was started.
pub fn is_output_closed() -> bool {
    closed_at_start()[1]
}

/// Closes on execve(2) the descriptors that were closed at the start, so that the next program does
/// not get /dev/null in their place.
pub fn close_again_on_exec() {
    let (input, output, error) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let descriptors: [BorrowedFd<'_>; 3] = [input.as_fd(), output.as_fd(), error.as_fd()];
    for (descriptor, is_closed) in descriptors.into_iter().zip(closed_at_start()) {
        if is_closed {
            // If marking fails, the program gets /dev/null, which is harmless.
            let _ = rustix::io::fcntl_setfd(descriptor, FdFlags::CLOEXEC);
        }
    }
}
