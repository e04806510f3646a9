//! Ending a lane's wait from outside.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io;

use crate::error::Error;

/// Ends the wait of the [`crate::Lane`] that it was given to, or its next one: from another thread
/// or a signal handler.
#[derive(Clone, Debug)]
pub struct Interrupter(Arc<OwnedFd>);

impl Interrupter {
    /// An eventfd(2).
    pub fn new() -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor = eventfd(0, flags).map_err(|errno| {
            Error::System(strait_sys::Error::os("make", "an eventfd", errno.raw_os_error()))
        })?;
        Ok(Self(Arc::new(descriptor)))
    }

    /// Ends the wait. It takes no lock and allocates nothing.
    pub fn interrupt(&self) {
        // It fails only where the counter is full: the wait is ended anyhow.
        let _ = io::write(&*self.0, &1_u64.to_ne_bytes());
    }

    /// Takes note of an interruption; a lane that returns because of one has.
    pub fn clear(&self) {
        // It fails where nobody had interrupted.
        let _ = io::read(&*self.0, &mut [0_u8; 8]);
    }
}

/// Readable while an interruption waits to be noticed.
impl AsFd for Interrupter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
