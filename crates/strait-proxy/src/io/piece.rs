//! Large buffers for bodies on their way into the store.
//!
//! A piece is received and written in one go, so that a thread needs few of them: it keeps them for
//! reuse. A piece of this size stays in the processor's second-level cache between both copies.

use crate::io::kept::Kept;

/// Bytes of a piece, a power of two.
pub(crate) const PIECE_BYTES: usize = 256 << 10;
/// Buffers that a thread keeps.
const KEPT_MAX: usize = 4;

thread_local! {
    static KEPT: Kept<PIECE_BYTES, KEPT_MAX> = const { Kept::new() };
}

/// Bytes of a body, in memory of its own.
#[derive(Debug)]
pub(crate) struct Piece {
    memory: Box<[u8]>,
    len: usize,
}

impl Piece {
    /// Returns an empty piece.
    pub(crate) fn take() -> Self {
        Self { memory: Kept::take(&KEPT), len: 0 }
    }

    /// Returns its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    /// Returns the free space for a piece of at most `most` bytes; call [`Piece::grew`] afterwards.
    pub(crate) fn room(&mut self, most: usize) -> &mut [u8] {
        let end = most.min(PIECE_BYTES).max(self.len);
        &mut self.memory[self.len..end]
    }

    /// Adds the first `read` bytes of the free space.
    pub(crate) fn grew(&mut self, read: usize) {
        self.len += read;
        debug_assert!(self.len <= PIECE_BYTES);
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        Kept::give(&KEPT, std::mem::take(&mut self.memory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn piece_grows_up_to_its_limit_and_its_memory_is_used_again() {
        let mut piece = Piece::take();
        assert_eq!([usize::MAX, 5].map(|most| piece.room(most).len()), [PIECE_BYTES, 5]);
        piece.room(5)[..3].copy_from_slice(b"abc");
        piece.grew(3);
        assert_eq!([5, 2].map(|most| piece.room(most).len()), [2, 0]);
        assert_eq!(piece.bytes(), b"abc");
        let memory = piece.memory.as_ptr();
        drop(piece);
        let again = Piece::take();
        assert_eq!((again.bytes(), again.memory.as_ptr()), (&b""[..], memory));
    }
}
