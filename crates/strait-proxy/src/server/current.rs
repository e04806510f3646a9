//! Worker with the settings in force, exchanged by a reload.

use std::cell::RefCell;
use std::rc::Rc;

use tokio::sync::Notify;

use crate::cache::worker::Worker;

/// Worker as the next request sees it. A request keeps its worker, and so its settings, to its end.
#[derive(Debug)]
pub(crate) struct Current {
    worker: RefCell<Rc<Worker>>,
    closing: Notify,
}

impl Current {
    pub(crate) fn new(worker: Rc<Worker>) -> Self {
        Self { worker: RefCell::new(worker), closing: Notify::new() }
    }

    /// Returns the worker for the next request.
    pub(crate) fn worker(&self) -> Rc<Worker> {
        self.worker.borrow().clone()
    }

    /// Sets the worker for the requests from now on.
    pub(crate) fn set(&self, worker: Rc<Worker>) {
        *self.worker.borrow_mut() = worker;
    }

    /// Wakes the connections that wait in [`Self::closing`].
    pub(crate) fn close(&self) {
        self.closing.notify_waiters();
    }

    /// Waits until the proxy ends, or hands over to another process. The caller checks first if it
    /// does already.
    pub(crate) async fn closing(&self) {
        self.closing.notified().await;
    }
}
