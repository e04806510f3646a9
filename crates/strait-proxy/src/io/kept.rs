//! Memory that a thread keeps for reuse: new memory costs as much as a copy of its bytes, because
//! it is cleared, and is not in the processor's cache.

use std::cell::RefCell;
use std::thread::LocalKey;

/// Memory that a thread keeps, in blocks of `BYTES`, at most `BLOCKS`.
#[derive(Debug)]
pub(crate) struct Kept<const BYTES: usize, const BLOCKS: usize>(RefCell<Vec<Box<[u8]>>>);

impl<const BYTES: usize, const BLOCKS: usize> Kept<BYTES, BLOCKS> {
    pub(crate) const fn new() -> Self {
        Self(RefCell::new(Vec::new()))
    }

    /// Returns a block. It has the bytes of its last use.
    pub(crate) fn take(of_thread: &'static LocalKey<Self>) -> Box<[u8]> {
        let kept = of_thread.with(|kept| kept.0.borrow_mut().pop());
        kept.unwrap_or_else(|| vec![0; BYTES].into_boxed_slice())
    }

    /// Gives a block back.
    pub(crate) fn give(of_thread: &'static LocalKey<Self>, block: Box<[u8]>) {
        // The list is gone while its thread ends.
        let _ = of_thread.try_with(|kept| {
            let mut kept = kept.0.borrow_mut();
            if kept.len() < BLOCKS {
                kept.push(block);
            }
        });
    }
}
