//! Binds an `AF_XDP` socket to a queue, for capture and injection.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use strait_os::wait;
use strait_sys::xdp::{Binding, ENOTSUPP, Socket};

use crate::error::Error;

/// Maximum wait for a queue that is busy. With four runnable threads for each processor it was busy
/// for more than 500 ms, with eight for more than 2 s. A queue that is busy for longer than the
/// maximum belongs to another program.
const QUEUE_RELEASE_MAX: Duration = Duration::from_secs(5);
/// Pause between two attempts to bind.
const QUEUE_RELEASE_PAUSE: Duration = Duration::from_millis(2);

/// Returns true if the driver or the kernel does not support the requested mode.
pub(crate) fn is_unsupported(error: &strait_sys::Error) -> bool {
    error.is_one_of(&[Errno::INVAL, Errno::RANGE, Errno::OPNOTSUPP, ENOTSUPP])
}

/// Binds a socket. A queue that was just released stays busy for a moment, because the kernel frees
/// it in a work queue (`xp_put_pool`).
pub(crate) fn bind(socket: &mut Socket, binding: &Binding, first: Option<&Socket>) -> Result<(), Error> {
    let deadline = Instant::now() + QUEUE_RELEASE_MAX;
    loop {
        let bound = match first {
            None => socket.bind(binding),
            Some(first) => socket.bind_shared(binding, first),
        };
        match bound {
            Err(error) if error.is_one_of(&[Errno::BUSY]) && Instant::now() < deadline => {
                wait::sleep(QUEUE_RELEASE_PAUSE);
            }
            bound => return Ok(bound?),
        }
    }
}
