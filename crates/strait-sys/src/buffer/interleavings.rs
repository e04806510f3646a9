//! Buffers against every interleaving of two threads: `RUSTFLAGS="--cfg loom" cargo test -p strait-sys --lib --release loom`
//!
//! Loom does not see the mapping. A cell beside it stands for the bytes: reading or writing it where a view or a `BufMut` would
//! allow that fails the test if the other thread may be at it.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::{BufMut, Frozen, Pool};

/// What stands for the bytes of the chunk.
#[derive(Clone)]
struct Bytes(Arc<UnsafeCell<u8>>);

impl Bytes {
    fn new() -> Self {
        Self(Arc::new(UnsafeCell::new(0)))
    }

    fn read(&self, _through: &Frozen) {
        // SAFETY: loom fails the test where another thread writes meanwhile.
        self.0.with(|byte| unsafe { *byte });
    }

    fn write(&self, _through: &mut BufMut) {
        // SAFETY: loom fails the test where another thread accesses it meanwhile.
        self.0.with_mut(|byte| unsafe { *byte += 1 });
    }
}

/// A pool of one chunk, two views of it, and its bytes.
fn two_views() -> (Pool, [Frozen; 2], Bytes) {
    let pool = Pool::new(1, 1).unwrap();
    let view = pool.take().unwrap().freeze(0..1);
    let other = view.clone();
    (pool, [view, other], Bytes::new())
}

#[test]
fn loom_the_last_view_becomes_writable_when_the_other_is_read_no_more() {
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
fn loom_of_two_who_ask_for_a_buffer_at_most_one_has_it() {
    /// Reads, asks, and writes if it may; whether it might.
    fn ask(view: Frozen, bytes: &Bytes) -> bool {
        bytes.read(&view);
        view.try_mut().map(|mut buffer| bytes.write(&mut buffer)).is_ok()
    }
    loom::model(|| {
        let (pool, [view, other], bytes) = two_views();
        let theirs = bytes.clone();
        let asker = thread::spawn(move || ask(other, &theirs));
        let ours = ask(view, &bytes);
        assert!(!(asker.join().unwrap() && ours), "both were given the chunk");
        assert!(pool.take().is_some(), "it is back when both are done");
    });
}

#[test]
fn loom_pages_that_the_kernel_reads_on_are_given_to_nobody() {
    loom::model(|| {
        let (pool, [view, other], _) = two_views();
        let ring = thread::spawn(move || {
            other.read_on();
            drop(other);
        });
        assert!(view.try_mut().is_err());
        ring.join().unwrap();
        assert!(pool.take().is_none());
    });
}

#[test]
fn loom_a_chunk_is_out_once_at_a_time() {
    /// Waits for the chunk, writes it and gives it back.
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
fn loom_a_chunk_whose_parts_are_dropped_apart_comes_back_once() {
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
