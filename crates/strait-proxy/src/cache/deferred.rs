//! Short responses that are stored after their clients are answered: one write for all that came in
//! an iteration of the event loop.
//!
//! The fill of a response ends when it is stored. Until then other requests for it wait for the
//! fill, so that a client that has the complete response gets a hit on its next request.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;
use strait_store::{NewObject, Record};
use tokio::sync::Notify;

use crate::cache::fill::Phase;
use crate::cache::fill_guard::FillGuard;
use crate::cache::object::{Body, Home, Object, Part};
use crate::io::buffer::Buffer;

/// Maximum of responses that wait to be stored; each holds a buffer.
const WAITING_MAX: usize = 64;

thread_local! {
    static OF_THREAD: Rc<Deferred> = Rc::default();
}

/// Responses of a worker that wait to be stored. Its thread has them, not its state, because each
/// refers to that.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    waiting: RefCell<Vec<Response>>,
    is_due: Notify,
}

/// Response with its whole body in memory.
#[derive(Debug)]
struct Response {
    guard: FillGuard,
    object: Arc<Object>,
    body: Rc<Buffer>,
}

/// Deferral of a response. Dropping it makes the response due: it is stored after the tasks that
/// can run now.
#[derive(Debug)]
pub(crate) struct Deferral(Rc<Deferred>);

impl Drop for Deferral {
    fn drop(&mut self) {
        self.0.is_due.notify_one();
    }
}

impl Deferred {
    /// Returns those of this thread.
    pub(crate) fn of_thread() -> Rc<Self> {
        OF_THREAD.with(Rc::clone)
    }

    /// Adds a response; drop the deferral when the client is about to be answered.
    pub(crate) fn add(self: Rc<Self>, guard: FillGuard, object: Arc<Object>, body: Rc<Buffer>) -> Deferral {
        self.waiting.borrow_mut().push(Response { guard, object, body });
        if self.waiting.borrow().len() >= WAITING_MAX {
            self.store_all();
        }
        Deferral(self)
    }

    /// Stores responses whenever some are due; does not end.
    pub(crate) async fn run(&self) {
        loop {
            self.is_due.notified().await;
            self.store_all();
        }
    }

    /// Stores all responses that wait, and ends their fills.
    pub(crate) fn store_all(&self) {
        let all = self.waiting.take();
        let Some(worker) = all.first().map(|first| first.guard.worker.clone()) else { return };
        let meta = |object: &Object| {
            let mut meta = worker.heads.take();
            object.meta(0).write(&mut meta);
            meta
        };
        // An invalidation waits for the end of a publication, and then removes the object.
        let valid: Vec<_> =
            all.iter().filter_map(|it| Some((it, it.guard.fill.publication()?, meta(&it.object)))).collect();
        let news: Vec<_> = valid.iter().map(|(it, _, meta)| it.new_object(meta)).collect();
        let records = worker.shared.store.iter().flat_map(|store| store.put_all(worker.lane, &news));
        let records: Vec<_> = records.collect();
        for ((it, ..), record) in valid.iter().zip(records) {
            it.publish(record.ok());
        }
        for (_, _, meta) in valid {
            worker.heads.give_back(meta);
        }
        for it in all {
            it.guard.end(Phase::Done);
        }
    }
}

impl Response {
    fn new_object<'a>(&'a self, meta: &'a [u8]) -> NewObject<'a> {
        NewObject { key: self.object.key.as_bytes(), meta, body: self.body.filled() }
    }

    /// Puts the object into the cache. One that the store refuses stays in memory.
    fn publish(&self, record: Option<Arc<Record>>) {
        let bytes = self.body.filled();
        let length = bytes.len() as u64;
        let body = match record {
            Some(record) => Body::Stored(SmallVec::from_iter([Part { range: 0..length, record }])),
            None => Body::Memory(bytes.into(), Home::Memory(self.guard.generation.clone())),
        };
        self.guard.cache(&Arc::new(self.object.with_body(Some(length), body)));
    }
}
