//! A live handle as calls meet it: who may touch it when.
//!
//! The capture itself is behind a lock, which the reading call holds while it hands packets over. Another thread that
//! wants it knocks: the reader lets it in between two batches. A call out of the reader's own callback cannot wait for
//! that; what it may change is noted in [`Later`] and done when the callback is back.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use strait_capture::{Directions, Error, Interrupter, Path, Sender};
use strait_filter::cbpf::Program;

use crate::choice::Choice;
use crate::facts::Facts;
use crate::handle::Handle;

/// One live handle.
pub(crate) struct Entry {
    pub(crate) choice: Choice,
    pub(crate) facts: Facts,
    /// For frames out, once the capture is open: the program may give up the privilege to open it later.
    pub(crate) sender: OnceLock<Result<Sender, Error>>,
    pub(crate) interrupter: Interrupter,
    handle: Mutex<Handle>,
    /// The thread that hands packets over; 0 for none.
    reader: AtomicUsize,
    /// Threads that want the handle.
    knocks: AtomicUsize,
    broken: AtomicBool,
    later: Mutex<Later>,
    has_later: AtomicBool,
    /// How often callbacks have asked for something.
    asked: AtomicUsize,
}

/// What a callback asked of its own handle.
#[derive(Default)]
pub(crate) struct Later {
    pub(crate) filter: Option<Program>,
    pub(crate) directions: Option<Directions>,
}

impl Entry {
    pub(crate) fn new(choice: Choice) -> Result<Self, Error> {
        Ok(Self {
            facts: Facts::default(),
            sender: OnceLock::new(),
            interrupter: Interrupter::new()?,
            handle: Mutex::new(Handle::new(choice.clone())),
            choice,
            reader: AtomicUsize::new(0),
            knocks: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            later: Mutex::default(),
            has_later: AtomicBool::new(false),
            asked: AtomicUsize::new(0),
        })
    }

    /// The handle, once its reader has let go of it; `None` in the reader's own callback.
    pub(crate) fn lock(&self) -> Option<MutexGuard<'_, Handle>> {
        if self.reader.load(Ordering::Relaxed) == this_thread() {
            return None;
        }
        if let Ok(handle) = self.handle.try_lock() {
            return Some(handle);
        }
        self.knocks.fetch_add(1, Ordering::AcqRel);
        self.interrupter.interrupt();
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        self.knocks.fetch_sub(1, Ordering::AcqRel);
        Some(handle)
    }

    /// Whether there still is an interface of this name.
    pub(crate) fn device_exists(&self) -> bool {
        self.choice.device == "any" || Path::Auto.suits(&self.choice.device)
    }

    /// The handle, for who has the entry to itself.
    pub(crate) fn handle_mut(&mut self) -> &mut Handle {
        self.handle.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle, unless somebody has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Handle>> {
        self.handle.try_lock().ok()
    }

    /// The calling thread hands packets over until the result drops.
    pub(crate) fn read(&self) -> Reading<'_> {
        self.reader.store(this_thread(), Ordering::Relaxed);
        Reading(self)
    }

    /// Whether another thread wants the handle.
    pub(crate) fn is_knocked(&self) -> bool {
        self.knocks.load(Ordering::Acquire) > 0
    }

    /// Waits until those who knocked have the handle; the caller must not.
    pub(crate) fn let_in(&self) {
        while self.is_knocked() {
            std::thread::yield_now();
        }
    }

    /// `pcap_breakloop`, but that it does not wake the reader.
    pub(crate) fn set_broken(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Whether a callback has broken the loop or asked for something.
    #[inline]
    pub(crate) fn is_disturbed(&self) -> bool {
        self.is_broken() || self.has_later()
    }

    /// Whether the loop was broken, which is taken back by this.
    pub(crate) fn take_broken(&self) -> bool {
        self.is_broken() && self.broken.swap(false, Ordering::Relaxed)
    }

    /// Puts another filter in place: no packet that it rejects is handed over after this.
    pub(crate) fn set_filter(&self, filter: Program) -> Result<(), Error> {
        if let Some(mut handle) = self.lock() {
            return handle.set_filter(&filter);
        }
        // No call is there to return an error when the filter is put in place.
        self.choice.path.check_filter(&filter)?;
        self.ask_later(|later| later.filter = Some(filter));
        Ok(())
    }

    /// Captures in these directions from now on; out of a callback, from the next batch on.
    pub(crate) fn set_directions(&self, directions: Directions) -> Result<(), Error> {
        if let Some(mut handle) = self.lock() {
            return handle.set_directions(directions);
        }
        self.choice.path.check_directions(directions)?;
        self.ask_later(|later| later.directions = Some(directions));
        Ok(())
    }

    fn ask_later(&self, ask: impl FnOnce(&mut Later)) {
        ask(&mut self.later.lock().unwrap_or_else(PoisonError::into_inner));
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.has_later.store(true, Ordering::Relaxed);
    }

    /// A number that changes when a callback asks for something, and is 0 while nothing is to be done.
    pub(crate) fn asked(&self) -> usize {
        if self.has_later() { self.asked.load(Ordering::Relaxed) } else { 0 }
    }

    /// Whether a callback has asked for something that is not done yet.
    pub(crate) fn has_later(&self) -> bool {
        self.has_later.load(Ordering::Relaxed)
    }

    /// The filter that a callback has set and that is not in place yet.
    pub(crate) fn coming_filter(&self) -> Option<Program> {
        self.later.lock().unwrap_or_else(PoisonError::into_inner).filter.clone()
    }

    /// What callbacks wanted, once.
    pub(crate) fn take_later(&self) -> Option<Later> {
        if !self.has_later() || !self.has_later.swap(false, Ordering::Relaxed) {
            return None;
        }
        Some(std::mem::take(&mut *self.later.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// See [`Entry::read`].
pub(crate) struct Reading<'a>(&'a Entry);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.reader.store(0, Ordering::Relaxed);
    }
}

/// A number that no other living thread has, for less than a system call.
fn this_thread() -> usize {
    thread_local!(static MARK: Cell<u8> = const { Cell::new(0) });
    MARK.with(|mark| std::ptr::from_ref(mark) as usize)
}
