//! Dynamic table (RFC 7541, section 2.3.2) behind the static one.

use std::collections::VecDeque;

use super::fixed::STATIC;

/// Bytes that an entry counts in addition to its name and value (RFC 7541, section 4.1).
pub(super) const ENTRY_BYTES: usize = 32;

/// Fields that the peer has added, the latest one first.
#[derive(Debug)]
pub(super) struct Table {
    entries: VecDeque<Entry>,
    size: usize,
    size_max: usize,
}

#[derive(Debug)]
struct Entry {
    /// Name and value.
    text: Box<[u8]>,
    name_len: usize,
}

impl Table {
    pub(super) fn new(size_max: usize) -> Self {
        Self { entries: VecDeque::new(), size: 0, size_max }
    }

    /// Returns name and value of an entry of either table.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let at = index.checked_sub(1)?;
        if let Some((name, value)) = STATIC.get(at) {
            return Some((name.as_bytes(), value.as_bytes()));
        }
        let entry = self.entries.get(at - STATIC.len())?;
        Some(entry.text.split_at(entry.name_len))
    }

    /// Adds an entry. One that is larger than the table empties it (RFC 7541, section 4.4).
    pub(super) fn add(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + ENTRY_BYTES;
        if size > self.size_max {
            self.evict_to(0);
            return;
        }
        self.evict_to(self.size_max - size);
        self.size += size;
        self.entries.push_front(Entry { text: [name, value].concat().into(), name_len: name.len() });
    }

    pub(super) fn resize(&mut self, size_max: usize) {
        self.size_max = size_max;
        self.evict_to(size_max);
    }

    fn evict_to(&mut self, size: usize) {
        while self.size > size
            && let Some(entry) = self.entries.pop_back()
        {
            self.size -= entry.text.len() + ENTRY_BYTES;
        }
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }
}
