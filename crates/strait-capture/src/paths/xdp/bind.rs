//! Binding of an `AF_XDP` socket to a queue, for capture and injection.

use std::time::{Duration, Instant};

use strait_sys::wait;
use strait_sys::xdp::{Binding, Socket};

use crate::error::Error;

/// Errno of a driver or a kernel without the requested ability.
pub(super) const EOPNOTSUPP: i32 = 95;
/// A queue that is busy for longer belongs to another program.
const QUEUE_RELEASE_MAX: Duration = Duration::from_millis(500);
/// Pause between two attempts to bind.
const QUEUE_RELEASE_PAUSE: Duration = Duration::from_millis(2);

/// Returns true if the driver or the kernel lacks the requested ability.
pub(crate) fn is_for_want_of_ability(error: &strait_sys::Error) -> bool {
    const EINVAL: i32 = 22;
    const ERANGE: i32 = 34;
    const ENOTSUPP: i32 = 524;
    matches!(error.errno(), Some(EINVAL | ERANGE | EOPNOTSUPP | ENOTSUPP))
}

/// Binds a socket. A queue that was just released stays busy for a moment, because the kernel frees
/// it in a work queue (`xp_put_pool`).
pub(crate) fn bind(socket: &mut Socket, binding: &Binding, first: Option<&Socket>) -> Result<(), Error> {
    const EBUSY: i32 = 16;
    let deadline = Instant::now() + QUEUE_RELEASE_MAX;
    loop {
        let bound = match first {
            None => socket.bind(binding),
            Some(first) => socket.bind_shared(binding, first),
        };
        match bound {
            Err(error) if error.errno() == Some(EBUSY) && Instant::now() < deadline => {
                wait::sleep(QUEUE_RELEASE_PAUSE);
            }
            bound => return Ok(bound?),
        }
    }
}
