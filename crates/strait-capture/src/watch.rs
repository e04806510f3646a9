//! The link of a session: up or down, how often it went down and for how long.
//!
//! The lanes report what their sockets say; [`crate::Session::link`] reads it. A link that is down ends nothing: its
//! sockets receive again when it is up. No kernel call is made here.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Link state of a session's interface, as far as its lanes have seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStatus {
    /// The interface is set down; frames come again when it is up.
    pub is_down: bool,
    /// How often it went down since the session opened. Two flaps within a tenth of a second can count as one.
    pub downs: u64,
    /// How long it was down in all.
    pub down_for: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct LinkWatch(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    downs: u64,
    down_since: Option<Instant>,
    down_for: Duration,
}

impl LinkWatch {
    /// A lane has seen the link go down for the `nth` time. Lanes see it one after the other: the first one counts.
    pub(crate) fn went_down(&self, nth: u64, now: Instant) {
        let mut state = self.state();
        if nth > state.downs {
            state.downs = nth;
            state.down_since.get_or_insert(now);
        }
    }

    /// A lane has seen that the link is up again.
    pub(crate) fn came_up(&self, now: Instant) {
        let mut state = self.state();
        if let Some(since) = state.down_since.take() {
            state.down_for += now.saturating_duration_since(since);
        }
    }

    pub(crate) fn read(&self, now: Instant) -> LinkStatus {
        let state = self.state();
        let lasting = state.down_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        LinkStatus {
            is_down: state.down_since.is_some(),
            downs: state.downs,
            down_for: state.down_for + lasting,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flap_that_several_lanes_see_counts_once() {
        let (watch, start) = (LinkWatch::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        watch.went_down(1, at(1));
        watch.went_down(1, at(2));
        let down = LinkStatus { is_down: true, downs: 1, down_for: Duration::from_secs(2) };
        assert_eq!(watch.read(at(3)), down);
        watch.came_up(at(4));
        watch.came_up(at(5));
        // A slow lane.
        watch.went_down(1, at(6));
        let up = LinkStatus { is_down: false, downs: 1, down_for: Duration::from_secs(3) };
        assert_eq!(watch.read(at(7)), up);
        watch.went_down(2, at(8));
        watch.came_up(at(10));
        let again = LinkStatus { is_down: false, downs: 2, down_for: Duration::from_secs(5) };
        assert_eq!(watch.read(at(11)), again);
    }
}
