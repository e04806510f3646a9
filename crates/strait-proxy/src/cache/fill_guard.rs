//! Guard of a fill: ends it in any case, and publishes its object.

use std::rc::Rc;
use std::sync::Arc;

use crate::cache::fill::{Fill, Phase};
use crate::cache::generation::Generation;
use crate::cache::object::Object;
use crate::cache::worker::Worker;

/// Guard of a fill. Dropping it before the end marks the fill as broken.
#[derive(Debug)]
pub(crate) struct FillGuard {
    pub(crate) worker: Rc<Worker>,
    pub(crate) hash: u64,
    pub(crate) fill: Arc<Fill>,
    pub(super) generation: Generation,
    is_over: bool,
}

impl FillGuard {
    pub(crate) fn new(worker: &Rc<Worker>, hash: u64, fill: Arc<Fill>) -> Self {
        let generation = worker.shared.generations.take(hash);
        Self { worker: worker.clone(), hash, fill, generation, is_over: false }
    }

    /// Returns a guard of another fill of the key, which no other request follows.
    pub(super) fn unshared(&self) -> Self {
        let fill = Arc::new(Fill::new(self.fill.key().clone(), None));
        let generation = self.generation.clone();
        Self { worker: self.worker.clone(), hash: self.hash, fill, generation, is_over: false }
    }

    pub(crate) fn end(mut self, phase: Phase) {
        self.finish(phase);
    }

    /// Calls `store`, which makes a record visible and returns its object, and puts the object into
    /// the cache. Does nothing if the key was invalidated since the fill began.
    pub(super) fn publish(&self, store: impl FnOnce() -> Option<Arc<Object>>) -> Option<Arc<Object>> {
        self.fill.publish(|| {
            let object = store()?;
            self.cache(&object);
            Some(object)
        })
    }

    /// Puts a stored object into the cache, during a publication.
    pub(super) fn cache(&self, object: &Arc<Object>) {
        if object.is_alive() && object.is_current() {
            self.worker.replace(self.hash, object);
        }
    }

    /// Ends the fill after a failure of the origin before the head. Followers get the same failure.
    pub(crate) fn fail(mut self, status: u16, why: &str) {
        self.fill.fail((status, why.to_owned()));
        self.finish(Phase::Broken);
    }

    fn finish(&mut self, phase: Phase) {
        self.is_over = true;
        self.worker.shared.fills.remove(self.hash, &self.fill);
        self.fill.end(phase);
    }
}

impl Drop for FillGuard {
    fn drop(&mut self) {
        if !self.is_over {
            self.finish(Phase::Broken);
        }
    }
}
