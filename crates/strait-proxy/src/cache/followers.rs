//! Followers of a fill: how far each was sent the body, and the sections of a body that is too long
//! to be stored. `docs/internals/proxy.md` draws them.

use std::collections::VecDeque;

use slab::Slab;

use crate::cache::fill::Source;

/// Offset of a follower that is sent no bytes.
const NO_BYTES: u64 = u64::MAX;

/// Followers of a fill.
#[derive(Debug, Default)]
pub(super) struct Followers {
    /// Offset of the next byte for each.
    next: Slab<u64>,
    /// True once the body is too long to be stored: no other request follows the fill.
    pub(super) is_closed: bool,
    /// Full sections of such a body that a follower still needs, and their ends.
    sections: VecDeque<(u64, Source)>,
    /// End of the freed sections. A follower of earlier bytes is lost.
    freed: u64,
}

impl Followers {
    /// Adds a follower that needs all bytes. Returns its place.
    pub(super) fn add(&mut self) -> usize {
        self.next.insert(0)
    }

    pub(super) fn remove(&mut self, place: usize) {
        self.next.remove(place);
        self.free_sections();
    }

    /// Returns their number.
    pub(super) fn count(&self) -> usize {
        self.next.len()
    }

    /// Notes that a follower was sent all bytes before `at`.
    pub(super) fn note_sent(&mut self, place: usize, at: u64) {
        self.next[place] = at;
        if self.sections.front().is_some_and(|(end, _)| *end <= at) {
            self.free_sections();
        }
    }

    /// Notes that a follower is sent no bytes.
    pub(super) fn note_unsent(&mut self, place: usize) {
        self.note_sent(place, NO_BYTES);
    }

    /// Returns the offset of the next byte for the slowest follower that is not lost; `u64::MAX` if
    /// none is sent bytes.
    pub(super) fn slowest(&self) -> u64 {
        self.next.iter().map(|(_, at)| *at).filter(|at| !self.is_lost(*at)).min().unwrap_or(NO_BYTES)
    }

    /// Returns true if the byte `at` was freed before a follower was sent it.
    pub(super) fn is_lost(&self, at: u64) -> bool {
        at < self.freed
    }

    /// Frees sections until no follower of the full ones needs bytes before `at`.
    pub(super) fn lose_before(&mut self, at: u64) {
        while self.slowest() < at
            && let Some((end, _)) = self.sections.pop_front()
        {
            self.freed = end;
        }
        self.free_sections();
    }

    /// Returns true if at most one follower is sent bytes.
    pub(super) fn has_one_at_most(&self) -> bool {
        let is_sent = |at: u64| at != NO_BYTES && !self.is_lost(at);
        self.next.iter().filter(|(_, at)| is_sent(**at)).nth(1).is_none()
    }

    /// Adds a full section.
    pub(super) fn add_section(&mut self, end: u64, source: Source) {
        self.sections.push_back((end, source));
        self.free_sections();
    }

    /// Returns the end and the source of the full section with the byte `at`.
    pub(super) fn section(&self, at: u64) -> Option<&(u64, Source)> {
        self.sections.iter().find(|(end, _)| at < *end)
    }

    /// Frees all sections.
    pub(super) fn clear_sections(&mut self) {
        self.sections.clear();
    }

    /// Frees the sections that all followers were sent.
    fn free_sections(&mut self) {
        if self.sections.is_empty() {
            return;
        }
        let slowest = self.slowest();
        while let Some((end, _)) = self.sections.pop_front_if(|(end, _)| *end <= slowest) {
            self.freed = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn section_is_freed_once_each_follower_was_sent_it_or_has_left() {
        let mut followers = Followers::default();
        let (slow, fast, waiting) = (followers.add(), followers.add(), followers.add());
        followers.note_unsent(waiting);
        for end in [10, 20] {
            followers.add_section(end, Source::Memory(Arc::default(), 0));
        }
        let end_at = |followers: &Followers, at| followers.section(at).map(|(end, _)| *end);
        followers.note_sent(fast, 20);
        assert_eq!([0, 10, 20].map(|at| end_at(&followers, at)), [Some(10), Some(20), None]);
        assert!(followers.slowest() == 0 && !followers.has_one_at_most());
        followers.note_sent(slow, 10);
        assert_eq!(followers.sections.len(), 1);
        followers.remove(slow);
        assert!(followers.sections.is_empty() && followers.has_one_at_most());
        assert_eq!((followers.slowest(), followers.count()), (20, 2));
    }

    #[test]
    fn slow_follower_is_lost_and_the_others_need_no_earlier_bytes() {
        let source = || Source::Memory(Arc::default(), 0);
        let mut followers = Followers::default();
        let (slow, fast) = (followers.add(), followers.add());
        followers.note_sent(slow, 5);
        followers.note_sent(fast, 35);
        for end in [10, 20, 30] {
            followers.add_section(end, source());
        }
        assert!(followers.slowest() == 5 && !followers.has_one_at_most());
        followers.lose_before(25);
        assert!(
            followers.slowest() >= 25
                && followers.is_lost(5)
                && !followers.is_lost(35)
                && followers.has_one_at_most()
        );
        assert_eq!((followers.slowest(), followers.count()), (35, 2));
        // Nothing of the others is freed, and a follower of the last section cannot be lost.
        let mut followers = Followers::default();
        let (one, other) = (followers.add(), followers.add());
        followers.note_sent(one, 15);
        followers.note_sent(other, 25);
        followers.add_section(20, source());
        assert!(!followers.is_lost(15) && followers.section(15).is_some_and(|(end, _)| *end == 20));
        followers.note_sent(one, 25);
        followers.lose_before(30);
        assert!(followers.slowest() < 30 && !followers.is_lost(25));
    }
}
