//! Read buffer that holds memory only while it holds bytes.
//!
//! Of ten thousand connections a few dozen have a request at a time. A buffer that becomes empty
//! gives its memory back to a list of its thread, from which the next reader takes it.

use std::cell::RefCell;

pub(crate) use crate::config::limits::BUFFER_BYTES;
use crate::io::gate::Permit;

/// Buffers that a thread keeps for later readers.
const KEPT_MAX: usize = 256;

thread_local! {
    static KEPT: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes that were read and are not consumed yet.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    memory: Option<Box<[u8]>>,
    start: usize,
    end: usize,
    /// Permits under `limits.request_ahead_memory`, released with the last byte.
    permits: Vec<Permit>,
}

impl Buffer {
    /// Sets the permits that are released once all bytes are consumed.
    pub(crate) fn set_permits(&mut self, permits: Vec<Permit>) {
        self.permits = permits;
    }

    /// Returns the bytes that are not consumed yet.
    pub(crate) fn filled(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory[self.start..self.end])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns the free space to read into; call [`Buffer::grew`] afterwards.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        let memory = self.memory.get_or_insert_with(|| {
            KEPT.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice())
        });
        if self.end == BUFFER_BYTES && self.start > 0 {
            memory.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut memory[self.end..]
    }

    /// Adds the first `read` bytes of the free space.
    pub(crate) fn grew(&mut self, read: usize) {
        self.end += read;
        debug_assert!(self.end <= BUFFER_BYTES);
        self.release_if_empty();
    }

    /// Removes the first `used` bytes.
    pub(crate) fn consume(&mut self, used: usize) {
        self.start += used;
        debug_assert!(self.start <= self.end);
        self.release_if_empty();
        if self.memory.is_none() {
            self.permits.clear();
        }
    }

    /// Puts bytes back before those that are not consumed. Returns false if they do not fit.
    pub(crate) fn put_back(&mut self, bytes: &[u8]) -> bool {
        let after = self.filled().to_vec();
        let len = bytes.len() + after.len();
        if len > BUFFER_BYTES {
            return false;
        }
        (self.start, self.end) = (0, 0);
        let room = self.room();
        room[..bytes.len()].copy_from_slice(bytes);
        room[bytes.len()..len].copy_from_slice(&after);
        self.grew(len);
        true
    }

    /// Removes the bytes after the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.end = self.end.min(self.start + len);
        self.release_if_empty();
    }

    /// Removes all bytes.
    pub(crate) fn clear(&mut self) {
        self.consume(self.end - self.start);
    }

    fn release_if_empty(&mut self) {
        if self.start < self.end {
            return;
        }
        (self.start, self.end) = (0, 0);
        let Some(memory) = self.memory.take() else { return };
        KEPT.with_borrow_mut(|kept| {
            if kept.len() < KEPT_MAX {
                kept.push(memory);
            }
        });
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::limits::GateLimits;
    use crate::io::gate::{Gates, Key};

    #[test]
    fn a_permit_is_released_with_the_last_byte() {
        let limits =
            GateLimits { origin: 1, origin_of_client: 1, ahead: 1, ahead_of_client: 1, passwords: 1 };
        let gates = Arc::new(Gates::new(limits));
        let is_free = || gates.try_enter(Key::Ahead).is_some();
        let mut buffer = Buffer::default();
        buffer.set_permits(gates.try_enter(Key::Ahead).into_iter().collect());
        // The permit is held for the bytes to come.
        buffer.grew(0);
        assert!(!is_free());
        buffer.room()[..3].copy_from_slice(b"abc");
        buffer.grew(3);
        buffer.consume(2);
        assert!(!is_free());
        buffer.consume(1);
        assert!(is_free());
    }

    #[test]
    fn unconsumed_bytes_move_to_the_front_and_an_empty_buffer_holds_no_memory() {
        let mut buffer = Buffer::default();
        assert_eq!(buffer.room().len(), BUFFER_BYTES);
        buffer.room().fill(b'a');
        buffer.grew(BUFFER_BYTES);
        assert!(buffer.room().is_empty());
        buffer.consume(BUFFER_BYTES - 3);
        assert_eq!(buffer.room().len(), BUFFER_BYTES - 3);
        assert_eq!(buffer.filled(), b"aaa");
        buffer.consume(3);
        assert!(buffer.is_empty() && buffer.memory.is_none());
    }
}
