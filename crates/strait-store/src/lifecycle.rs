//! End of a store: closed, abandoned. Also wakes the eviction thread.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Thread};

/// End of a store.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    is_closed: AtomicBool,
    is_abandoned: AtomicBool,
    /// The eviction thread.
    thread: OnceLock<Thread>,
}

impl Lifecycle {
    /// Returns true if the store is closed, or about to be.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Closes the store: writes are refused from now on.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Closes the store; nothing more is written from now on.
    pub(crate) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
        self.close();
    }

    /// Returns true if nothing more may be written.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    /// Sets the eviction thread.
    pub(crate) fn set_thread(&self, thread: Thread) {
        let _ = self.thread.set(thread);
    }

    /// Wakes the eviction thread, unless it calls this itself: it would not sleep any more while it
    /// fails.
    pub(crate) fn wake(&self) {
        if let Some(thread) = self.thread.get()
            && thread.id() != thread::current().id()
        {
            thread.unpark();
        }
    }
}
