//! Losses of a capture before the last change of its targets.
//!
//! A window is the time between two changes. It counts the losses of the target that lost most, as
//! a sum over targets would count a packet twice. A removed target can lose packets of its last
//! window later, so this window stays open until all its losses are known.

use strait_table::Tally;

/// Losses of all windows before the last change.
#[derive(Default)]
pub(super) struct Windows {
    /// Sum over the windows of which all losses are known.
    known: Tally,
    /// Windows with a removed target that can lose more.
    open: Vec<Window>,
    /// Number of the next window.
    next: u64,
}

/// Window with removed targets.
struct Window {
    number: u64,
    /// Losses of the target that lost most, of those that stayed.
    stayed: Tally,
    removed: Vec<Removed>,
}

/// Target that was removed at the end of a window.
struct Removed {
    url: String,
    /// Losses in this window.
    lost: Tally,
    is_complete: bool,
}

impl Windows {
    /// Adds a window with the losses of its targets. Returns its number.
    pub(super) fn end(
        &mut self,
        stayed: impl DoubleEndedIterator<Item = Tally>,
        removed: impl Iterator<Item = (String, Tally)>,
    ) -> u64 {
        let removed = removed.map(|(url, lost)| Removed { url, lost, is_complete: false }).collect();
        let number = self.next;
        self.next += 1;
        self.open.push(Window { number, stayed: worst(stayed), removed });
        self.close_known();
        number
    }

    /// Adds the last losses of a target that was removed at the end of a window.
    pub(super) fn complete(&mut self, window: u64, url: &str, late: &Tally) {
        let window = self.open.iter_mut().find(|open| open.number == window);
        let removed = window.and_then(|window| window.removed.iter_mut().find(|removed| removed.url == url));
        if let Some(removed) = removed {
            removed.lost.add_all(late);
            removed.is_complete = true;
        }
        self.close_known();
    }

    /// Returns the losses of all windows.
    pub(super) fn lost(&self) -> Tally {
        let mut lost = self.known.clone();
        self.open.iter().for_each(|window| lost.add_all(&window.worst()));
        lost
    }

    /// Closes the windows of which all losses are known.
    fn close_known(&mut self) {
        let known = &mut self.known;
        self.open.retain(|window| {
            let is_open = window.removed.iter().any(|removed| !removed.is_complete);
            if !is_open {
                known.add_all(&window.worst());
            }
            is_open
        });
    }
}

impl Window {
    fn worst(&self) -> Tally {
        let removed = self.removed.iter().map(|removed| removed.lost.clone());
        worst(std::iter::once(self.stayed.clone()).chain(removed))
    }
}

/// Returns the losses of the target that lost most, the first one of several.
pub(super) fn worst(all: impl DoubleEndedIterator<Item = Tally>) -> Tally {
    all.rev().max_by_key(Tally::total).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(rows: u64) -> Tally {
        let mut tally = Tally::default();
        tally.add(0, rows);
        tally
    }

    fn end(windows: &mut Windows, stayed: u64, removed: &[(&str, u64)]) -> u64 {
        let removed = removed.iter().map(|(url, rows)| ((*url).to_owned(), lost(*rows)));
        windows.end([lost(stayed)].into_iter(), removed)
    }

    #[test]
    fn window_counts_the_target_that_lost_most() {
        let mut windows = Windows::default();
        let first = end(&mut windows, 3, &[("a", 0), ("b", 1)]);
        let second = end(&mut windows, 2, &[("c", 0)]);
        assert_eq!(windows.lost().total(), 5);
        windows.complete(first, "a", &lost(50));
        assert_eq!(windows.lost().total(), 52);
        windows.complete(first, "b", &lost(50));
        assert_eq!(windows.lost().total(), 53, "the larger one of both, and the second window");
        windows.complete(second, "c", &lost(1));
        assert_eq!((windows.lost().total(), windows.open.len()), (53, 0));
    }

    #[test]
    fn window_without_removed_targets_is_closed() {
        let mut windows = Windows::default();
        for _ in 0..3 {
            let _ = end(&mut windows, 4, &[]);
        }
        assert_eq!((windows.lost().total(), windows.open.len()), (12, 0));
    }

    #[test]
    fn target_can_be_removed_from_several_windows() {
        let mut windows = Windows::default();
        let numbers = [(); 2].map(|()| end(&mut windows, 0, &[("a", 1)]));
        for number in numbers {
            windows.complete(number, "a", &lost(2));
        }
        assert_eq!((windows.lost().total(), windows.open.len()), (6, 0));
    }
}
