//! Conversion of the kernel's counters to the ledger.
//!
//! The XDP program counts each frame as passed, redirected, or unbound: matched, but passed because
//! its queue has no socket. The socket counts the redirected frames that it dropped. The other
//! redirected frames reached the RX ring: the engine took them, or they are still in it.

use strait_filter::xdp::Counter;
use strait_ledger::Capture;
use strait_sys::bpf::MappedArray;
use strait_sys::xdp::Statistics;

/// Counts of the XDP program on one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) passed: u64,
    pub(super) redirected: u64,
    pub(super) unbound: u64,
}

impl Seen {
    /// Reads the counters of `queue` without a system call.
    pub(super) fn read(counters: &MappedArray, queue: u32) -> Self {
        let load = |counter: Counter| counters.load(0, counter.slot(queue));
        Self {
            passed: load(Counter::Passed),
            redirected: load(Counter::Redirected),
            unbound: load(Counter::Unbound),
        }
    }
}

/// Counts and state of the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// Number of whole frames taken from the RX ring.
    pub(super) taken: u64,
    /// Taken frames that were not delivered, because a later filter was set.
    pub(super) discarded: u64,
    /// Number of descriptors in the RX ring.
    pub(super) waiting: u64,
    /// No frame can enter the ring any more.
    pub(super) ended: bool,
    /// Number of invalid descriptors in the RX ring.
    pub(super) invalid: u64,
    /// Frames longer than a chunk arrive in fragments, so none is dropped for its length.
    pub(super) multi_buffer: bool,
    /// The driver takes chunks from the fill ring before frames arrive, so no frame of the socket
    /// is dropped because the ring is empty.
    pub(super) zero_copy: bool,
}

/// Sets received, filtered, lost and events. Redirected frames that were neither dropped nor taken
/// are unread. After reception has stopped only those in the ring are unread; the rest is lost for
/// an unknown reason.
///
/// Returns the number of redirected frames that were neither dropped nor taken.
pub(super) fn update_account(seen: Seen, socket: &Statistics, known: Known, account: &mut Capture) -> u64 {
    let no_chunk = match known {
        Known { zero_copy: true, .. } => 0,
        Known { multi_buffer: true, .. } => socket.rx_dropped,
        // A drop for lack of a chunk counts one empty fill ring; the other frames exceeded a chunk.
        _ => socket.rx_dropped.min(socket.fill_ring_empty),
    };
    let dropped = socket.rx_dropped + socket.rx_ring_full;
    let on_ring = seen.redirected.saturating_sub(dropped + known.invalid).saturating_sub(known.taken);
    let waiting = if known.ended { on_ring.min(known.waiting) } else { on_ring };
    let lent = account.delivered + account.lost.sink + known.discarded;
    account.received = seen.passed + seen.redirected + seen.unbound;
    account.filtered = seen.passed + known.discarded;
    account.lost.ring_full = socket.rx_ring_full;
    account.lost.fill_empty = no_chunk;
    account.lost.unread = known.taken.saturating_sub(lent) + waiting;
    account.lost.other = seen.unbound + (socket.rx_dropped - no_chunk) + known.invalid + (on_ring - waiting);
    account.events.fill_ring_empty = socket.fill_ring_empty;
    on_ring
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Seen = Seen { passed: 10, redirected: 100, unbound: 1 };

    fn socket(rx_dropped: u64, rx_ring_full: u64, fill_ring_empty: u64) -> Statistics {
        Statistics { rx_dropped, rx_ring_full, fill_ring_empty, ..Statistics::default() }
    }

    #[test]
    fn every_frame_is_counted_once() {
        let mut account = Capture { delivered: 60, ..Capture::default() };
        account.lost.sink = 5;
        let known = Known { taken: 72, discarded: 2, ended: true, waiting: 4, ..Known::default() };
        update_account(SEEN, &socket(8, 7, 6), known, &mut account);
        assert_eq!((account.received, account.filtered), (111, 12));
        let lost = &account.lost;
        assert_eq!((lost.ring_full, lost.fill_empty), (7, 6));
        assert_eq!(lost.unread, 5 + 4, "taken but not delivered, and in the ring");
        assert_eq!(lost.other, 1 + 2 + 9, "unbound, too long, and missing");
        assert_eq!(account.check_balance(), Ok(()));
    }

    #[test]
    fn frames_on_the_ring_are_unread_while_the_capture_runs() {
        let mut account = Capture { delivered: 60, ..Capture::default() };
        let on_ring =
            update_account(SEEN, &socket(0, 0, 3), Known { taken: 60, ..Known::default() }, &mut account);
        assert_eq!((on_ring, account.lost.unread, account.lost.other), (40, 40, 1));
        assert_eq!(account.events.fill_ring_empty, 3, "an event, because no frame was dropped");
        assert_eq!(account.check_balance(), Ok(()));
    }

    #[test]
    fn with_fragments_every_drop_is_for_lack_of_chunks() {
        let mut account = Capture { delivered: 90, ..Capture::default() };
        let known = Known { taken: 90, multi_buffer: true, ..Known::default() };
        update_account(SEEN, &socket(10, 0, 0), known, &mut account);
        assert_eq!(account.lost.fill_empty, 10);
        assert_eq!(account.check_balance(), Ok(()));
    }

    #[test]
    fn with_zero_copy_drops_are_for_length_and_invalid_descriptors_are_lost() {
        let mut account = Capture { delivered: 90, ..Capture::default() };
        let known = Known { taken: 90, invalid: 3, zero_copy: true, ended: true, ..Known::default() };
        assert_eq!(update_account(SEEN, &socket(7, 0, 50), known, &mut account), 0);
        assert_eq!((account.lost.fill_empty, account.lost.other), (0, 1 + 7 + 3));
        assert_eq!(account.check_balance(), Ok(()));
    }

    #[test]
    fn counters_read_at_different_moments_do_not_underflow() {
        let mut account = Capture { delivered: 100, ..Capture::default() };
        let known = Known { taken: 103, waiting: 2, ..Known::default() };
        assert_eq!(update_account(SEEN, &socket(0, 2, 0), known, &mut account), 0);
    }
}
