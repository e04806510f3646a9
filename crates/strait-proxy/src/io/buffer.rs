//! Memory to read into, that is there only while there is something in it.
//!
//! Ten thousand connections wait for their next request, and a few dozen have one: so a buffer that
//! runs empty gives its memory to the others of its thread.

use std::cell::RefCell;

pub(crate) use crate::config::limits::BUFFER_BYTES;
use crate::io::gate::Place;

/// Buffers that a thread keeps for the next reader.
const KEPT_MAX: usize = 256;

thread_local! {
    static KEPT: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes that were read and are not used yet.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    memory: Option<Box<[u8]>>,
    start: usize,
    end: usize,
    /// Place of its bytes among those that memory is limited for; given back with the last of them.
    place: Option<Place>,
}

impl Buffer {
    /// Counts its bytes for a place until they are used.
    pub(crate) fn set_place(&mut self, place: Option<Place>) {
        self.place = place;
    }

    /// What is in it.
    pub(crate) fn filled(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory[self.start..self.end])
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Where more may be read to; then [`Buffer::grew`].
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

    /// So many bytes were read into its room.
    pub(crate) fn grew(&mut self, read: usize) {
        self.end += read;
        debug_assert!(self.end <= BUFFER_BYTES);
        self.release_if_empty();
    }

    /// So many of its bytes are used.
    pub(crate) fn consume(&mut self, used: usize) {
        self.start += used;
        debug_assert!(self.start <= self.end);
        self.release_if_empty();
        if self.memory.is_none() {
            self.place = None;
        }
    }

    /// Forgets what is in it.
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
    fn a_place_is_given_back_with_the_last_byte() {
        let limits = GateLimits { origin: 1, origin_of_client: 1, ahead: 1, ahead_of_client: 1 };
        let gates = Arc::new(Gates::new(limits));
        let is_free = || gates.try_enter(Key::Ahead).is_some();
        let mut buffer = Buffer::default();
        buffer.set_place(gates.try_enter(Key::Ahead));
        // It was reserved for what is to be read.
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
    fn what_is_unused_stays_when_room_is_made_and_an_empty_buffer_holds_no_memory() {
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
