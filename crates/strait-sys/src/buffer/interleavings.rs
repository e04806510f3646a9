//! Buffers under every interleaving of two threads: `RUSTFLAGS="--cfg loom" cargo test -p
//! strait-sys --lib --release loom`
//!
//! Loom does not see the mapping. A cell represents the bytes: it is accessed wherever a view or a
//! `BufMut` allows an access, and loom fails the test if the other thread can access it at that
//! time.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::{BufMut, Frozen, Pool};

/// Cell that represents the bytes of the chunk.
#[derive(Clone)]
struct Bytes(Arc<UnsafeCell<u8>>);

impl Bytes {
    fn new() -> Self {
        Self(Arc::new(UnsafeCell::new(0)))
    }

    fn read(&self, _through: &Frozen) {
        // SAFETY: loom fails the test if another thread writes meanwhile.
        self.0.with(|byte| unsafe { *byte });
    }

    fn write(&self, _through: &mut BufMut) {
        // SAFETY: loom fails the test if another thread accesses it meanwhile.
        self.0.with_mut(|byte| unsafe { *byte += 1 });
    }
}

/// Returns a pool of one chunk, two views of it, and its bytes.
fn two_views() -> (Pool, [Frozen; 2], Bytes) {
    let pool = Pool::new(1, 1).unwrap();
    let view = pool.take().unwrap().freeze(0..1);
    let other = view.clone();
    (pool, [view, other], Bytes::new())
}

#[test]
fn loom_last_view_becomes_writable_after_the_other_is_dropped() {
    loom::model(|| {
        let (_pool, [mut view, other], bytes) = two_views();
        let theirs = bytes.clone();
        let reader = thread::spawn(move || {
            theirs.read(&other);
            drop(other);
        });
        let mut buffer = loop {
            match view.try_mut() {
                Ok(buffer) => break buffer,
                Err(refused) => view = refused,
            }
            thread::yield_now();
        };
        bytes.write(&mut buffer);
        reader.join().unwrap();
    });
}

#[test]
fn loom_at_most_one_of_two_views_becomes_writable() {
    /// Reads, tries to get the buffer, and writes to it; returns true if it got the buffer.
    fn try_write(view: Frozen, bytes: &Bytes) -> bool {
        bytes.read(&view);
        view.try_mut().map(|mut buffer| bytes.write(&mut buffer)).is_ok()
    }
    loom::model(|| {
        let (pool, [view, other], bytes) = two_views();
        let theirs = bytes.clone();
        let other_thread = thread::spawn(move || try_write(other, &theirs));
        let ours = try_write(view, &bytes);
        assert!(!(other_thread.join().unwrap() && ours), "both were given the chunk");
        assert!(pool.take().is_some(), "it is back when both are done");
    });
}

#[test]
fn loom_pages_that_the_kernel_still_reads_are_not_reused() {
    loom::model(|| {
        let (pool, [view, other], _) = two_views();
        let ring = thread::spawn(move || {
            other.retire();
            drop(other);
        });
        assert!(view.try_mut().is_err());
        ring.join().unwrap();
        assert!(pool.take().is_none());
    });
}

#[test]
fn loom_a_chunk_is_out_once_at_a_time() {
    /// Waits for the chunk, writes it and returns it.
    fn use_it(pool: &Pool, bytes: &Bytes) {
        let mut buffer = loop {
            match pool.take() {
                Some(buffer) => break buffer,
                None => thread::yield_now(),
            }
        };
        bytes.write(&mut buffer);
    }
    loom::model(|| {
        let (pool, bytes) = (Pool::new(1, 1).unwrap(), Bytes::new());
        let theirs = (pool.clone(), bytes.clone());
        let other = thread::spawn(move || use_it(&theirs.0, &theirs.1));
        use_it(&pool, &bytes);
        other.join().unwrap();
        assert!(pool.take().is_some());
    });
}

#[test]
fn loom_chunk_of_two_parts_returns_once() {
    loom::model(|| {
        let pool = Pool::new(1, 1).unwrap();
        let mut rest = pool.take().unwrap();
        let part = rest.split_to(1).freeze(0..1);
        let other = thread::spawn(move || drop(part));
        drop(rest);
        other.join().unwrap();
        let back = pool.take();
        assert!(back.is_some() && pool.take().is_none());
    });
}
