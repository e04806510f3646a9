//! Phases of a store: loading, open, closed. Also wakes the eviction thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use crate::file::lock;

/// Phase of a store.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    is_closed: AtomicBool,
    is_abandoned: AtomicBool,
    is_loaded: Mutex<bool>,
    loaded: Condvar,
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

    /// Returns true if the records of earlier sessions are loaded.
    pub(crate) fn is_loaded(&self) -> bool {
        *lock(&self.is_loaded)
    }

    /// Ends loading.
    pub(crate) fn set_loaded(&self) {
        *lock(&self.is_loaded) = true;
        self.loaded.notify_all();
    }

    /// Waits for the end of loading.
    pub(crate) fn wait_loaded(&self) {
        let guard = lock(&self.is_loaded);
        drop(self.loaded.wait_while(guard, |is_loaded| !*is_loaded));
    }

    /// Waits up to `timeout` for the end of loading. Returns true if the store is loaded.
    pub(crate) fn wait_loaded_for(&self, timeout: Duration) -> bool {
        let guard = lock(&self.is_loaded);
        let waited = self.loaded.wait_timeout_while(guard, timeout, |is_loaded| !*is_loaded);
        waited.is_ok_and(|(is_loaded, _)| *is_loaded)
    }

    /// Sets the eviction thread.
    pub(crate) fn set_thread(&self, thread: Thread) {
        let _ = self.thread.set(thread);
    }

    /// Wakes the eviction thread.
    pub(crate) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}
