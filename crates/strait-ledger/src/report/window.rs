//! Ledger of a part of the time of a capture, for a target that was added or removed meanwhile.
//!
//! A cut has the packets that the lanes had delivered exactly, and the other counts of the last
//! snapshot. The ledgers before and after a cut add up to that of the whole.

use super::Report;
use crate::capture::Capture;

/// Packets that a lane has delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Number of packets.
    pub packets: u64,
    /// Their captured bytes.
    pub bytes: u64,
    /// Their bytes on the wire.
    pub wire_bytes: u64,
}

impl Report {
    /// Returns the ledger at a moment at which the lane `queue` had delivered `delivered(queue)`.
    /// It balances. Packets that are unread in a snapshot belong to the time after.
    #[must_use]
    pub fn cut(&self, delivered: impl Fn(u32) -> Delivered) -> Self {
        let mut whole = self.capture;
        let mut cut = self.clone();
        for lane in &mut cut.lanes {
            whole.subtract(&lane.capture);
            let Delivered { packets, bytes, wire_bytes } = delivered(lane.queue);
            lane.capture = settled(Capture { delivered: packets, bytes, wire_bytes, ..lane.capture });
        }
        for part in &mut cut.parts {
            part.alone.capture = settled(part.alone.capture);
        }
        cut.capture = settled(whole);
        for lane in &cut.lanes {
            cut.capture.add(&lane.capture);
        }
        cut
    }

    /// Returns the ledger of the time since a cut. No count falls below 0.
    #[must_use]
    pub fn since(&self, cut: &Self) -> Self {
        let mut later = self.clone();
        later.capture.subtract(&cut.capture);
        for (lane, earlier) in later.lanes.iter_mut().zip(&cut.lanes) {
            lane.capture.subtract(&earlier.capture);
        }
        for (part, earlier) in later.parts.iter_mut().zip(&cut.parts) {
            part.alone.capture.subtract(&earlier.alone.capture);
        }
        later
    }
}

/// Returns counts without packets that can still be delivered.
fn settled(mut capture: Capture) -> Capture {
    capture.lost.unread = 0;
    Capture { received: capture.accounted(), ..capture }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::{LaneCounts, Losses};

    /// Returns the ledger of two lanes; the second has lost packets, and the NIC has missed some.
    fn report(delivered: [u64; 2], unread: u64, nic_missed: u64) -> Report {
        let lane = |(queue, delivered): (usize, u64)| {
            let lost = Losses { ring_full: queue as u64 * 3, unread, ..Losses::default() };
            let received = delivered + lost.total();
            let capture = Capture { received, delivered, lost, bytes: delivered * 60, ..Capture::default() };
            LaneCounts { queue: queue as u32, cpu: None, capture }
        };
        let lost = Losses { nic_missed, ..Losses::default() };
        let nic = Capture { received: nic_missed, lost, ..Capture::default() };
        Report {
            interface: "eth0".into(),
            ..Report::from_lanes(delivered.into_iter().enumerate().map(lane).collect(), &nic)
        }
    }

    fn delivered(packets: [u64; 2]) -> impl Fn(u32) -> Delivered {
        move |queue| {
            let packets = packets[queue as usize];
            Delivered { packets, bytes: packets * 60, wire_bytes: 0 }
        }
    }

    #[test]
    fn ledgers_before_and_after_a_cut_balance_and_add_up() {
        // The snapshot is older than the cut, and the rings had packets then.
        let cut = report([10, 20], 7, 1).cut(delivered([15, 22]));
        let end = report([40, 50], 0, 2);
        let after = end.since(&cut);
        for part in [&cut, &after] {
            assert_eq!(part.capture.check_balance(), Ok(()));
            assert!(part.lanes.iter().all(|lane| lane.capture.check_balance().is_ok()));
        }
        assert_eq!((cut.capture.delivered, cut.capture.received), (37, 37 + 3 + 1));
        let mut sum = cut.capture;
        sum.add(&after.capture);
        assert_eq!(sum, end.capture);
    }

    #[test]
    fn each_interface_has_its_counts_before_and_after() {
        let joined = |delivered, missed| {
            Report::join(vec![(0, report(delivered, 0, missed)), (2, report([1, 1], 0, missed))])
        };
        let cut = joined([10, 20], 1).cut(|queue| match queue {
            0 | 1 => delivered([10, 20])(queue),
            _ => delivered([1, 1])(queue - 2),
        });
        let after = joined([40, 50], 4).since(&cut);
        assert_eq!((cut.capture.check_balance(), after.capture.check_balance()), (Ok(()), Ok(())));
        let counts = |report: &Report| -> Vec<[u64; 2]> {
            let count = |of: Report| [of.capture.delivered, of.capture.lost.nic_missed];
            report.interfaces().into_iter().map(count).collect()
        };
        assert_eq!(counts(&cut), [[30, 1], [2, 1]]);
        assert_eq!(counts(&after), [[60, 3], [0, 3]]);
    }
}
