//! Phases of a store: loading, open, closed. Also wakes the eviction thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::thread::Thread;
use std::time::Duration;

use crate::file::lock;

/// Phase of a store.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    is_closed: AtomicBool,
    is_abandoned: AtomicBool,
    loading: Mutex<Loading>,
    loaded: Condvar,
    /// The eviction thread.
    thread: OnceLock<Thread>,
}

#[derive(Debug, Default)]
struct Loading {
    is_done: bool,
    /// Tasks that wait for the end, each once.
    waiting: Vec<Waker>,
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
        lock(&self.loading).is_done
    }

    /// Ends loading.
    pub(crate) fn set_loaded(&self) {
        let mut loading = lock(&self.loading);
        loading.is_done = true;
        let waiting = std::mem::take(&mut loading.waiting);
        drop(loading);
        self.loaded.notify_all();
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Returns `Ready` if the store is loaded, else wakes the task at the end of loading.
    pub(crate) fn poll_loaded(&self, context: &Context<'_>) -> Poll<()> {
        let mut loading = lock(&self.loading);
        if loading.is_done {
            return Poll::Ready(());
        }
        if !loading.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            loading.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Waits for the end of loading.
    pub(crate) fn wait_loaded(&self) {
        let guard = lock(&self.loading);
        drop(self.loaded.wait_while(guard, |loading| !loading.is_done));
    }

    /// Waits up to `timeout` for the end of loading. Returns true if the store is loaded.
    pub(crate) fn wait_loaded_for(&self, timeout: Duration) -> bool {
        let guard = lock(&self.loading);
        let waited = self.loaded.wait_timeout_while(guard, timeout, |loading| !loading.is_done);
        waited.is_ok_and(|(loading, _)| loading.is_done)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn end_of_loading_wakes_each_waiting_task_once() {
        let lifecycle = Lifecycle::default();
        let counts = [Arc::<Count>::default(), Arc::<Count>::default()];
        let wakers = counts.clone().map(Waker::from);
        let poll = || wakers.each_ref().map(|waker| lifecycle.poll_loaded(&Context::from_waker(waker)));
        assert_eq!((poll(), poll()), ([Poll::Pending; 2], [Poll::Pending; 2]));
        lifecycle.set_loaded();
        assert_eq!(counts.map(|count| count.0.load(Ordering::Relaxed)), [1, 1]);
        assert_eq!(poll(), [Poll::Ready(()); 2]);
    }
}
