//! Packets of each interface that an output has lost.

use std::collections::VecDeque;

use strait_ledger::Report;

use super::source::Input;

/// Number of the latest packets to keep in account: more than an output buffers.
const RECENT_PACKETS_MAX: u64 = 1 << 16;

/// Account of an output that loses the latest packets that it has accepted.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Interfaces of the latest packets, in order, each with a number of packets.
    recent: VecDeque<(usize, u64)>,
    /// Sum of `recent`.
    packets: u64,
    inputs: Vec<Lost>,
}

/// Losses of an interface.
#[derive(Debug)]
struct Lost {
    /// Number of its first lane.
    first_lane: u32,
    packets: u64,
}

impl Losses {
    pub(super) fn of(inputs: &[Input]) -> Self {
        let inputs = inputs.iter().map(|input| Lost { first_lane: input.first_lane, packets: 0 });
        Self { inputs: inputs.collect(), ..Self::default() }
    }

    /// Notes the interface of the next packets.
    pub(super) fn begin_batch(&mut self, input: usize) {
        if self.recent.back().is_none_or(|(last, _)| *last != input) {
            self.recent.push_back((input, 0));
        }
        while let Some((_, oldest)) = self.recent.front() {
            if self.packets - oldest < RECENT_PACKETS_MAX {
                break;
            }
            self.packets -= oldest;
            self.recent.pop_front();
        }
    }

    /// Counts a packet that the output accepts or loses.
    #[inline]
    pub(super) fn take(&mut self) {
        if let Some((_, packets)) = self.recent.back_mut() {
            *packets += 1;
            self.packets += 1;
        }
    }

    /// Returns the number of lost packets.
    pub(super) fn total(&self) -> u64 {
        self.inputs.iter().map(|input| input.packets).sum()
    }

    /// Charges the latest packets to their interfaces until `total` are lost.
    pub(super) fn lose_until(&mut self, total: u64) {
        let mut lost = total.saturating_sub(self.total());
        for (input, packets) in self.recent.iter_mut().rev() {
            let share = lost.min(*packets);
            *packets -= share;
            self.packets -= share;
            lost -= share;
            if let Some(input) = self.inputs.get_mut(*input) {
                input.packets += share;
            }
        }
    }

    /// Charges one packet to the interface at a position.
    pub(super) fn lose_one_of(&mut self, input: usize) {
        if let Some(input) = self.inputs.get_mut(input) {
            input.packets += 1;
        }
    }

    /// Moves `total` packets from delivered to lost, first those of each interface.
    pub(super) fn charge(&self, report: &mut Report, total: u64) {
        let mut left = total;
        for (at, input) in self.inputs.iter().enumerate() {
            let end = self.inputs.get(at + 1).map_or(u32::MAX, |next| next.first_lane);
            left -= report.charge_lanes(input.packets.min(left), input.first_lane..end);
        }
        report.charge_sink(left, |_| 0);
    }
}

#[cfg(test)]
mod tests {
    use strait_ledger::{Capture, LaneCounts};

    use super::*;

    fn losses() -> Losses {
        let input = |first_lane| Input { first_lane, ..Input::default() };
        Losses::of(&[input(0), input(2)])
    }

    fn take(losses: &mut Losses, input: usize, packets: u64) {
        losses.begin_batch(input);
        (0..packets).for_each(|_| losses.take());
    }

    fn lost(losses: &Losses) -> Vec<u64> {
        losses.inputs.iter().map(|input| input.packets).collect()
    }

    #[test]
    fn latest_packets_are_lost_by_their_interfaces() {
        let mut losses = losses();
        for (input, packets) in [(0, 100), (1, 5), (0, 2), (1, 3)] {
            take(&mut losses, input, packets);
        }
        losses.lose_until(9);
        assert_eq!(lost(&losses), [2, 7]);
        take(&mut losses, 0, 1);
        losses.lose_until(10);
        losses.lose_until(10);
        assert_eq!(lost(&losses), [3, 7]);
    }

    #[test]
    fn account_of_many_short_batches_stays_small() {
        let mut losses = losses();
        for batch in 0..200_000 {
            take(&mut losses, batch % 2, 1);
        }
        assert!(losses.recent.len() as u64 <= RECENT_PACKETS_MAX + 1);
        losses.lose_until(10);
        assert_eq!(lost(&losses), [5, 5]);
    }

    #[test]
    fn losses_are_charged_to_the_lanes_of_their_interface() {
        let lane = |queue| LaneCounts {
            queue,
            cpu: None,
            capture: Capture { received: 4, delivered: 4, ..Capture::default() },
        };
        let mut report = Report::from_lanes((0..4).map(lane).collect(), &Capture::default());
        let mut losses = losses();
        take(&mut losses, 1, 6);
        losses.lose_until(6);
        losses.charge(&mut report, 6);
        let delivered: Vec<u64> = report.lanes.iter().map(|lane| lane.capture.delivered).collect();
        assert_eq!((delivered, report.capture.lost.sink), (vec![4, 4, 0, 2], 6));
    }
}
