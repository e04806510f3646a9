//! Conversion of the kernel's counters to the ledger.
//!
//! The XDP program counts the frames that it passes because the filter rejected them. All others
//! are redirected to the socket, which counts those that it drops. The rest reaches the RX ring:
//! the engine took them, or they are still in it.

use strait_ledger::Capture;
use strait_sys::xdp::Statistics;

/// Counts of the program and state of the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// Number of frames that the XDP program passed to the host.
    pub(super) passed: u64,
    /// Number of whole frames taken from the RX ring.
    pub(super) taken: u64,
    /// Taken frames that were not delivered, because a later filter was set.
    pub(super) discarded: u64,
    /// Number of whole frames in the RX ring.
    pub(super) waiting: u64,
    /// Number of invalid descriptors in the RX ring.
    pub(super) invalid: u64,
    /// Frames longer than a chunk arrive in fragments, so none is dropped for its length.
    pub(super) multi_buffer: bool,
    /// The driver takes chunks from the fill ring before frames arrive, so no frame of the socket
    /// is dropped because the ring is empty.
    pub(super) zero_copy: bool,
}

/// Sets received, filtered, lost and events. Taken frames that were not delivered are unread, as
/// are those in the RX ring.
pub(super) fn update_account(socket: &Statistics, known: Known, account: &mut Capture) {
    let no_chunk = match known {
        Known { zero_copy: true, .. } => 0,
        Known { multi_buffer: true, .. } => socket.rx_dropped,
        // A drop for lack of a chunk counts one empty fill ring; the other frames exceeded a chunk.
        _ => socket.rx_dropped.min(socket.fill_ring_empty),
    };
    let dropped = socket.rx_dropped + socket.rx_ring_full;
    let redirected = dropped + known.invalid + known.taken + known.waiting;
    let lent = account.delivered + account.lost.sink + known.discarded;
    account.received = known.passed + redirected;
    account.filtered = known.passed + known.discarded;
    account.lost.ring_full = socket.rx_ring_full;
    account.lost.fill_empty = no_chunk;
    account.lost.unread = known.taken.saturating_sub(lent) + known.waiting;
    account.lost.other = (socket.rx_dropped - no_chunk) + known.invalid;
    account.events.fill_ring_empty = socket.fill_ring_empty;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(rx_dropped: u64, rx_ring_full: u64, fill_ring_empty: u64) -> Statistics {
        Statistics { rx_dropped, rx_ring_full, fill_ring_empty, ..Statistics::default() }
    }

    #[test]
    fn every_frame_is_counted_once() {
        let mut account = Capture { delivered: 60, ..Capture::default() };
        account.lost.sink = 5;
        let known = Known { passed: 10, taken: 72, discarded: 2, waiting: 4, invalid: 3, ..Known::default() };
        update_account(&socket(8, 7, 6), known, &mut account);
        assert_eq!((account.received, account.filtered), (10 + 72 + 4 + 3 + 8 + 7, 12));
        let lost = &account.lost;
        assert_eq!((lost.ring_full, lost.fill_empty), (7, 6));
        assert_eq!(lost.unread, 5 + 4, "taken but not delivered, and in the ring");
        assert_eq!(lost.other, 2 + 3, "too long and invalid");
        assert_eq!(account.check_balance(), Ok(()));
    }

    #[test]
    fn frames_on_the_ring_are_unread_while_the_capture_runs() {
        let mut account = Capture { delivered: 60, ..Capture::default() };
        let known = Known { passed: 10, taken: 60, waiting: 40, ..Known::default() };
        update_account(&socket(0, 0, 3), known, &mut account);
        assert_eq!((account.lost.unread, account.lost.other), (40, 0));
        assert_eq!(account.events.fill_ring_empty, 3, "an event, because no frame was dropped");
        assert_eq!(account.check_balance(), Ok(()));
    }

    #[test]
    fn with_fragments_every_drop_is_for_lack_of_chunks() {
        let mut account = Capture { delivered: 90, ..Capture::default() };
        let known = Known { passed: 10, taken: 90, multi_buffer: true, ..Known::default() };
        update_account(&socket(10, 0, 0), known, &mut account);
        assert_eq!(account.lost.fill_empty, 10);
        assert_eq!(account.check_balance(), Ok(()));
    }

    #[test]
    fn with_zero_copy_drops_are_for_length_and_invalid_descriptors_are_lost() {
        let mut account = Capture { delivered: 90, ..Capture::default() };
        let known = Known { passed: 10, taken: 90, invalid: 3, zero_copy: true, ..Known::default() };
        update_account(&socket(7, 0, 50), known, &mut account);
        assert_eq!((account.lost.fill_empty, account.lost.other), (0, 7 + 3));
        assert_eq!(account.check_balance(), Ok(()));
    }
}
