//! Queue of records with bodies that did not pass through memory, from their commit until the scrub
//! adds the hash.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;

use crate::file::lock;
use crate::record::Record;

/// Limit of the queue. Records beyond it get their hash in the next pass.
const NEW_BODIES_MAX: usize = 64 << 10;

/// Records with bodies that have no hash yet.
#[derive(Debug, Default)]
pub(crate) struct NewBodies {
    queue: Mutex<VecDeque<Arc<Record>>>,
    /// The scrub thread; unset without a scrub.
    thread: OnceLock<Thread>,
}

impl NewBodies {
    /// Sets the thread that takes the records.
    pub(crate) fn set_thread(&self, thread: Thread) {
        let _ = self.thread.set(thread);
    }

    /// Queues a record, and wakes the thread. Does nothing without a scrub, or if the queue is
    /// full.
    pub(crate) fn push(&self, record: &Arc<Record>) {
        let Some(thread) = self.thread.get() else { return };
        let mut queue = lock(&self.queue);
        if queue.len() < NEW_BODIES_MAX {
            queue.push_back(record.clone());
        }
        let is_first = queue.len() == 1;
        drop(queue);
        if is_first {
            thread.unpark();
        }
    }

    /// Takes the first record.
    pub(crate) fn pop(&self) -> Option<Arc<Record>> {
        lock(&self.queue).pop_front()
    }
}
