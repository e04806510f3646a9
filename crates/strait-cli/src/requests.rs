//! Work on another thread for each request, such as reading a file again.
//!
//! It can take long: the capture goes on meanwhile, and its end does not wait for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::Error;

/// Work on a thread of its own for each request. At most one thread runs: a request meanwhile
/// starts the work once more afterwards.
pub(crate) struct Requests<T> {
    is_requested: AtomicBool,
    running: Mutex<Option<Receiver<T>>>,
}

impl<T> Default for Requests<T> {
    fn default() -> Self {
        Self { is_requested: AtomicBool::new(false), running: Mutex::new(None) }
    }
}

impl<T: Send + 'static> Requests<T> {
    /// Requests the work.
    pub(crate) fn add(&self) {
        self.is_requested.store(true, Ordering::Release);
    }

    /// Returns true if the result of a request is not returned yet.
    pub(crate) fn is_pending(&self) -> bool {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.is_some() || self.is_requested.load(Ordering::Acquire)
    }

    /// After a request, starts `work` on a thread. Returns its result once, some time later.
    pub(crate) fn poll<F>(&self, name: &str, work: impl FnOnce() -> F) -> Option<Result<T, Error>>
    where
        F: FnOnce() -> T + Send + 'static,
    {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() && self.is_requested.swap(false, Ordering::AcqRel) {
            match start(name, work()) {
                Ok(receiver) => *running = Some(receiver),
                Err(error) => return Some(Err(error)),
            }
        }
        let result = match running.as_ref()?.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Ok(result) => Ok(result),
            Err(TryRecvError::Disconnected) => {
                Err(Error::Failed(format!("the thread {name} that reads it panicked")))
            }
        };
        *running = None;
        Some(result)
    }
}

fn start<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Receiver<T>, Error> {
    let (sender, receiver) = sync_channel(1);
    // Nothing receives after the end of the capture.
    let send = move || drop(sender.send(work()));
    let started = thread::Builder::new().name(name.into()).spawn(send);
    started.map_err(|error| Error::Failed(format!("start a thread that reads it: {error}")))?;
    Ok(receiver)
}
