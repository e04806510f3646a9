//! State of a live handle that calls from several threads share, and access to its capture.
//!
//! The capture is behind a lock, which the reading call holds while it delivers packets. Another
//! thread that needs the lock requests it, and the reader yields it between two batches. A call
//! from the reader's own callback cannot wait for that: its changes are saved in [`Deferred`] and
//! applied after the callback has returned.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use strait_capture::{Directions, Error, Interrupter, Path, Sender};
use strait_filter::cbpf::Program;

use crate::choice::Choice;
use crate::handle::Handle;
use crate::properties::Properties;

/// One live handle.
pub(crate) struct Entry {
    pub(crate) choice: Choice,
    pub(crate) properties: Properties,
    /// Sender of injected frames. It is opened with the capture, because the program may drop the
    /// privilege to open it later.
    pub(crate) sender: OnceLock<Result<Sender, Error>>,
    pub(crate) interrupter: Interrupter,
    handle: Mutex<Handle>,
    /// The thread that delivers packets, or 0.
    reader: AtomicUsize,
    /// Number of threads that request the lock.
    lock_requests: AtomicUsize,
    break_requested: AtomicBool,
    deferred: Mutex<Deferred>,
    has_deferred: AtomicBool,
    /// Number of changes that callbacks have requested.
    requests: AtomicUsize,
}

/// Changes that a callback has requested for its own handle.
#[derive(Default)]
pub(crate) struct Deferred {
    pub(crate) filter: Option<Program>,
    pub(crate) directions: Option<Directions>,
}

impl Entry {
    pub(crate) fn new(choice: Choice) -> Result<Self, Error> {
        Ok(Self {
            properties: Properties::default(),
            sender: OnceLock::new(),
            interrupter: Interrupter::new()?,
            handle: Mutex::new(Handle::new(choice.clone())),
            choice,
            reader: AtomicUsize::new(0),
            lock_requests: AtomicUsize::new(0),
            break_requested: AtomicBool::new(false),
            deferred: Mutex::default(),
            has_deferred: AtomicBool::new(false),
            requests: AtomicUsize::new(0),
        })
    }

    /// Locks the handle when its reader has released it. Returns `None` in the reader's own
    /// callback.
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, Handle>> {
        if self.reader.load(Ordering::Relaxed) == this_thread() {
            return None;
        }
        if let Ok(handle) = self.handle.try_lock() {
            return Some(handle);
        }
        self.lock_requests.fetch_add(1, Ordering::AcqRel);
        self.interrupter.interrupt();
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        self.lock_requests.fetch_sub(1, Ordering::AcqRel);
        Some(handle)
    }

    /// Returns true if the interface still exists.
    pub(crate) fn device_exists(&self) -> bool {
        self.choice.device == "any" || Path::Auto.suits(&self.choice.device)
    }

    /// Returns the handle of an entry without other users.
    pub(crate) fn handle_mut(&mut self) -> &mut Handle {
        self.handle.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the handle unless another thread holds it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Handle>> {
        self.handle.try_lock().ok()
    }

    /// Marks the calling thread as the one that delivers packets, until the result is dropped.
    pub(crate) fn read(&self) -> Reading<'_> {
        self.reader.store(this_thread(), Ordering::Relaxed);
        Reading(self)
    }

    /// Returns true if another thread requests the lock.
    pub(crate) fn is_lock_requested(&self) -> bool {
        self.lock_requests.load(Ordering::Acquire) > 0
    }

    /// Waits until the requesting threads have had the lock. The caller must not hold it.
    pub(crate) fn yield_lock(&self) {
        while self.is_lock_requested() {
            std::thread::yield_now();
        }
    }

    /// Requests the end of the loop like `pcap_breakloop`, but does not wake the reader.
    pub(crate) fn request_break(&self) {
        self.break_requested.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_break_requested(&self) -> bool {
        self.break_requested.load(Ordering::Relaxed)
    }

    /// Returns true if a callback has requested the end of the loop or a change.
    #[inline]
    pub(crate) fn needs_frame_check(&self) -> bool {
        self.is_break_requested() || self.has_deferred()
    }

    /// Returns true if the end of the loop was requested, and resets the request.
    pub(crate) fn take_break_requested(&self) -> bool {
        self.is_break_requested() && self.break_requested.swap(false, Ordering::Relaxed)
    }

    /// Replaces the filter. No packet that the new filter rejects is delivered afterwards.
    pub(crate) fn set_filter(&self, filter: Program) -> Result<(), Error> {
        if let Some(mut handle) = self.lock() {
            return handle.set_filter(&filter);
        }
        // Check now, because no call can return the error when the change is applied.
        self.choice.path.check_filter(&filter)?;
        self.defer(|deferred| deferred.filter = Some(filter));
        Ok(())
    }

    /// Restricts the capture to these directions: at once, or from a callback with the next batch.
    pub(crate) fn set_directions(&self, directions: Directions) -> Result<(), Error> {
        if let Some(mut handle) = self.lock() {
            return handle.set_directions(directions);
        }
        self.choice.path.check_directions(directions)?;
        self.defer(|deferred| deferred.directions = Some(directions));
        Ok(())
    }

    fn defer(&self, change: impl FnOnce(&mut Deferred)) {
        change(&mut self.deferred.lock().unwrap_or_else(PoisonError::into_inner));
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.has_deferred.store(true, Ordering::Relaxed);
    }

    /// Returns a number that changes with each request of a callback; 0 while none is pending.
    pub(crate) fn request_number(&self) -> usize {
        if self.has_deferred() { self.requests.load(Ordering::Relaxed) } else { 0 }
    }

    /// Returns true if a callback's request is pending.
    pub(crate) fn has_deferred(&self) -> bool {
        self.has_deferred.load(Ordering::Relaxed)
    }

    /// Returns the filter that a callback has requested, until it is applied.
    pub(crate) fn pending_filter(&self) -> Option<Program> {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner).filter.clone()
    }

    /// Returns the pending requests of callbacks, once.
    pub(crate) fn take_deferred(&self) -> Option<Deferred> {
        if !self.has_deferred() || !self.has_deferred.swap(false, Ordering::Relaxed) {
            return None;
        }
        Some(std::mem::take(&mut *self.deferred.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Guard of [`Entry::read`].
pub(crate) struct Reading<'a>(&'a Entry);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.reader.store(0, Ordering::Relaxed);
    }
}

/// Returns a number that no other living thread has, without a system call.
fn this_thread() -> usize {
    thread_local!(static MARK: Cell<u8> = const { Cell::new(0) });
    MARK.with(|mark| std::ptr::from_ref(mark) as usize)
}
