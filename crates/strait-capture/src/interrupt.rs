//! Interruption of a lane's wait by another thread or a signal handler.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;

use crate::error::Error;

/// Ends the current or next wait of a [`crate::Lane`], from another thread or a signal handler. See
/// [`crate::Lane::set_interrupter`].
#[derive(Clone, Debug)]
pub struct Interrupter(Arc<OwnedFd>);

impl Interrupter {
    /// Opens an eventfd(2).
    pub fn new() -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor = eventfd(0, flags).map_err(|errno| {
            Error::System(strait_sys::Error::os("make", "an eventfd", errno.raw_os_error()))
        })?;
        Ok(Self(Arc::new(descriptor)))
    }

    /// Ends the wait. It takes no lock and allocates nothing.
    pub fn interrupt(&self) {
        // It fails only if the counter is full, and then the wait ends too.
        let _ = io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Clears an interruption. A lane that returns because of one has cleared it.
    pub fn clear(&self) {
        // It fails if there was no interruption.
        let _ = io::read(&*self.0, &mut [0_u8; 8]);
    }
}

/// Readable until an interruption is cleared.
impl AsFd for Interrupter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
