//! Worker with the settings in force, exchanged by a reload.

use std::cell::RefCell;
use std::rc::Rc;

use crate::cache::worker::Worker;

/// Worker as the next request sees it. A request keeps its worker, and so its settings, to its end.
#[derive(Debug)]
pub(crate) struct Current(RefCell<Rc<Worker>>);

impl Current {
    pub(crate) fn new(worker: Rc<Worker>) -> Self {
        Self(RefCell::new(worker))
    }

    /// Returns the worker for the next request.
    pub(crate) fn worker(&self) -> Rc<Worker> {
        self.0.borrow().clone()
    }

    /// Sets the worker for the requests from now on.
    pub(crate) fn set(&self, worker: Rc<Worker>) {
        *self.0.borrow_mut() = worker;
    }
}
