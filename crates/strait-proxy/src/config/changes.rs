//! Changes of a server's state, for the operator. Without I/O and without a clock; times are
//! seconds.
//!
//! [`crate::config::member`] notes them, a thread takes the last one at an interval: a server that
//! changes more often makes no more lines.

use serde::Serialize;

/// Change of a server's state.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Change {
    /// Time of the change.
    pub(crate) at: u64,
    /// New state with its reason. It follows the name of the server.
    pub(crate) text: String,
}

/// Changes of a server's state.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    last: Option<Change>,
    /// End of the ejection, if the last change is one.
    ejected_until: Option<u64>,
    /// Number of changes that were not taken.
    untaken: u64,
}

impl Changes {
    pub(crate) fn note(&mut self, at: u64, text: String) {
        self.settle(at);
        self.push(at, text);
    }

    /// Notes an ejection. Its end is a change as well.
    pub(crate) fn eject(&mut self, at: u64, until: u64, text: String) {
        self.note(at, text);
        self.ejected_until = Some(until);
    }

    /// Returns the last change until `now`.
    pub(crate) fn last(&mut self, now: u64) -> Option<Change> {
        self.settle(now);
        self.last.clone()
    }

    /// Returns the last change unless it was taken before, with the number of untaken ones before
    /// it.
    pub(crate) fn take(&mut self, now: u64) -> Option<(Change, u64)> {
        self.settle(now);
        let earlier = std::mem::take(&mut self.untaken).checked_sub(1)?;
        self.last.clone().map(|change| (change, earlier))
    }

    /// Notes the end of an ejection.
    fn settle(&mut self, now: u64) {
        if let Some(end) = self.ejected_until.filter(|end| now >= *end) {
            self.push(end, "returns: its ejection has ended".to_owned());
        }
    }

    fn push(&mut self, at: u64, text: String) {
        self.last = Some(Change { at, text });
        self.ejected_until = None;
        self.untaken = self.untaken.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(changes: &mut Changes, now: u64) -> Option<(u64, String, u64)> {
        changes.take(now).map(|(change, earlier)| (change.at, change.text, earlier))
    }

    #[test]
    fn last_change_is_taken_once_with_the_number_of_others() {
        let mut changes = Changes::default();
        assert_eq!(take(&mut changes, 1), None);
        for (at, text) in [(1, "a"), (1, "b"), (2, "c")] {
            changes.note(at, text.to_owned());
        }
        assert_eq!(take(&mut changes, 2), Some((2, "c".to_owned(), 2)));
        assert_eq!(take(&mut changes, 3), None);
        assert_eq!(changes.last(3).unwrap().text, "c");
    }

    #[test]
    fn end_of_an_ejection_is_a_change_unless_another_came_before() {
        let mut changes = Changes::default();
        changes.eject(10, 20, "is ejected".to_owned());
        assert_eq!(take(&mut changes, 19).unwrap().1, "is ejected");
        let (at, text, earlier) = take(&mut changes, 25).unwrap();
        assert!((at, earlier) == (20, 0) && text.starts_with("returns"), "{at} {text} {earlier}");
        changes.eject(30, 40, "is ejected".to_owned());
        changes.note(35, "is drained".to_owned());
        assert_eq!(take(&mut changes, 50), Some((35, "is drained".to_owned(), 1)));
        changes.eject(60, 70, "is ejected".to_owned());
        changes.eject(80, 90, "is ejected again".to_owned());
        assert_eq!(take(&mut changes, 80), Some((80, "is ejected again".to_owned(), 2)));
    }
}
