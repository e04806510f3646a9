//! The capture ledger: packets received, delivered, filtered, and lost by place.
//!
//! A lane of the capture engine owns one [`Capture`]; a session adds those of its lanes. The engine
//! classifies losses; [`Capture::check_balance`] only checks the sum.

use serde::Serialize;

/// Counts of one lane or of a whole session, since the session opened. They count packets, unless
/// the name contains `bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Capture {
    /// Packets that reached the capture path, before the filter.
    pub received: u64,
    /// Packets delivered to the program.
    pub delivered: u64,
    /// Packets that the filter did not match.
    pub filtered: u64,
    /// Packets that matched and did not reach the program, by place.
    pub lost: Losses,
    /// Captured bytes of delivered packets: of a packet cut to the snaplen, the remaining bytes.
    pub bytes: u64,
    /// Bytes that the delivered packets had on the wire, without the frame check sequence.
    pub wire_bytes: u64,
    /// Bytes of delivered packets that were copied after the device had written them to memory: by
    /// the kernel into a ring or a buffer, or by the engine to join fragments. 0 with zero-copy.
    pub copied_bytes: u64,
    /// Events, which are not part of the sum.
    pub events: Events,
}

/// Lost packets, by the place of the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Losses {
    /// The NIC had no receive descriptor free, or its FIFO was full (`rx_missed_errors`).
    pub nic_missed: u64,
    /// The socket's ring or queue was full (`tp_drops`, `rx_ring_full`).
    pub ring_full: u64,
    /// `AF_XDP` found no free chunk in the fill ring (`rx_dropped` for want of a descriptor).
    pub fill_empty: u64,
    /// The output of the program could not store the packet.
    pub sink: u64,
    /// Still in the ring when the session closed, because of an earlier failure.
    pub unread: u64,
    /// Received by the kernel and lost at a place without a counter.
    pub other: u64,
}

/// Counted events. They are not part of the sum of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Events {
    /// Freezes of a `TPACKET_V3` ring by the kernel, because no block was free
    /// (`tp_freeze_q_cnt`).
    pub queue_freezes: u64,
    /// Delivered packets that were cut to the snaplen.
    pub snaplen_cuts: u64,
    /// Failed attempts of the kernel to take a chunk from the empty fill ring
    /// (`rx_fill_ring_empty_descs`).
    pub fill_ring_empty: u64,
    /// Fallbacks from a requested feature to a slower one: zero-copy, native mode, huge
    /// pages, busy polling, ring size.
    pub fallbacks: u64,
    /// Times that the interface went down while the session was open.
    pub link_downs: u64,
    /// Times that the interface lost its carrier while it was set up.
    pub carrier_losses: u64,
}

/// Counts of one lane, which reads a receive queue or is a fanout member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LaneCounts {
    /// Receive queue of the NIC, or number of the fanout member. Unique within a session.
    pub queue: u32,
    /// CPU to which the lane is pinned, if any.
    pub cpu: Option<u32>,
    /// Counts of the lane.
    #[serde(flatten)]
    pub capture: Capture,
}

/// Difference between the two sides of the sum, if a ledger does not balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Imbalance {
    /// Some received packets are counted neither as delivered nor as filtered or lost.
    #[error("{missing} of {received} received packets are not accounted for")]
    Missing {
        /// Packets received.
        received: u64,
        /// Received minus accounted for.
        missing: u64,
    },
    /// More packets are accounted for than were received.
    #[error("{surplus} more packets are accounted for than the {received} received")]
    Surplus {
        /// Packets received.
        received: u64,
        /// Accounted for minus received.
        surplus: u64,
    },
}

impl Capture {
    /// Adds the counts of another lane or session, field by field.
    pub fn add(&mut self, other: &Self) {
        self.received += other.received;
        self.delivered += other.delivered;
        self.filtered += other.filtered;
        self.lost.add(&other.lost);
        self.bytes += other.bytes;
        self.wire_bytes += other.wire_bytes;
        self.copied_bytes += other.copied_bytes;
        self.events.add(&other.events);
    }

    /// Subtracts earlier counts, field by field. No field falls below 0.
    pub(crate) fn subtract(&mut self, other: &Self) {
        self.received = self.received.saturating_sub(other.received);
        self.delivered = self.delivered.saturating_sub(other.delivered);
        self.filtered = self.filtered.saturating_sub(other.filtered);
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.wire_bytes = self.wire_bytes.saturating_sub(other.wire_bytes);
        self.copied_bytes = self.copied_bytes.saturating_sub(other.copied_bytes);
        self.lost.subtract(&other.lost);
        self.events.subtract(&other.events);
    }

    /// Counts delivered packets as lost in the sink, at most all of them.
    pub(crate) fn lose_in_sink(&mut self, packets: u64) {
        let packets = packets.min(self.delivered);
        self.delivered -= packets;
        self.lost.sink += packets;
    }

    /// Returns the sum of delivered, filtered and lost, which must equal `received`.
    pub fn accounted(&self) -> u64 {
        self.delivered + self.filtered + self.lost.total()
    }

    /// Checks `received = delivered + filtered + lost`.
    ///
    /// # Errors
    /// The sides differ.
    pub fn check_balance(&self) -> Result<(), Imbalance> {
        let (received, accounted) = (self.received, self.accounted());
        match received.cmp(&accounted) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => {
                Err(Imbalance::Missing { received, missing: received - accounted })
            }
            std::cmp::Ordering::Less => Err(Imbalance::Surplus { received, surplus: accounted - received }),
        }
    }

    /// Counts a delivered packet with `captured` of `wire` bytes. It was cut if they differ.
    #[inline]
    pub fn deliver(&mut self, captured: u32, wire: u32) {
        self.delivered += 1;
        self.bytes += u64::from(captured);
        self.wire_bytes += u64::from(wire);
        self.events.snaplen_cuts += u64::from(captured < wire);
    }
}

impl Losses {
    /// Returns the sum of all losses.
    pub fn total(&self) -> u64 {
        self.named().iter().map(|(_, count)| count).sum()
    }

    /// Returns each loss with its name in JSON and in metric labels, nearest to the wire first.
    pub fn named(&self) -> [(&'static str, u64); 6] {
        [
            ("nic_missed", self.nic_missed),
            ("ring_full", self.ring_full),
            ("fill_empty", self.fill_empty),
            ("sink", self.sink),
            ("unread", self.unread),
            ("other", self.other),
        ]
    }

    /// Adds the losses of another lane or session.
    pub fn add(&mut self, other: &Self) {
        self.nic_missed += other.nic_missed;
        self.ring_full += other.ring_full;
        self.fill_empty += other.fill_empty;
        self.sink += other.sink;
        self.unread += other.unread;
        self.other += other.other;
    }

    fn subtract(&mut self, other: &Self) {
        self.nic_missed = self.nic_missed.saturating_sub(other.nic_missed);
        self.ring_full = self.ring_full.saturating_sub(other.ring_full);
        self.fill_empty = self.fill_empty.saturating_sub(other.fill_empty);
        self.sink = self.sink.saturating_sub(other.sink);
        self.unread = self.unread.saturating_sub(other.unread);
        self.other = self.other.saturating_sub(other.other);
    }
}

impl Events {
    /// Returns each event with its name in JSON and in metric labels.
    pub fn named(&self) -> [(&'static str, u64); 6] {
        [
            ("queue_freezes", self.queue_freezes),
            ("snaplen_cuts", self.snaplen_cuts),
            ("fill_ring_empty", self.fill_ring_empty),
            ("fallbacks", self.fallbacks),
            ("link_downs", self.link_downs),
            ("carrier_losses", self.carrier_losses),
        ]
    }

    /// Adds the events of another lane or session.
    pub fn add(&mut self, other: &Self) {
        self.queue_freezes += other.queue_freezes;
        self.snaplen_cuts += other.snaplen_cuts;
        self.fill_ring_empty += other.fill_ring_empty;
        self.fallbacks += other.fallbacks;
        self.link_downs += other.link_downs;
        self.carrier_losses += other.carrier_losses;
    }

    fn subtract(&mut self, other: &Self) {
        self.queue_freezes = self.queue_freezes.saturating_sub(other.queue_freezes);
        self.snaplen_cuts = self.snaplen_cuts.saturating_sub(other.snaplen_cuts);
        self.fill_ring_empty = self.fill_ring_empty.saturating_sub(other.fill_ring_empty);
        self.fallbacks = self.fallbacks.saturating_sub(other.fallbacks);
        self.link_downs = self.link_downs.saturating_sub(other.link_downs);
        self.carrier_losses = self.carrier_losses.saturating_sub(other.carrier_losses);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Capture {
        Capture {
            received: 100,
            delivered: 60,
            filtered: 30,
            lost: Losses { nic_missed: 1, ring_full: 2, fill_empty: 3, sink: 1, unread: 2, other: 1 },
            bytes: 6000,
            wire_bytes: 7000,
            copied_bytes: 6500,
            events: Events {
                queue_freezes: 1,
                snaplen_cuts: 2,
                fill_ring_empty: 3,
                fallbacks: 4,
                link_downs: 5,
                carrier_losses: 6,
            },
        }
    }

    #[test]
    fn complete_ledger_balances() {
        assert_eq!(sample().check_balance(), Ok(()));
        assert_eq!(Capture::default().check_balance(), Ok(()));
    }

    #[test]
    fn missing_and_surplus_packets_are_reported() {
        let missing = Capture { received: 103, ..sample() };
        assert_eq!(missing.check_balance(), Err(Imbalance::Missing { received: 103, missing: 3 }));
        let surplus = Capture { delivered: 65, ..sample() };
        assert_eq!(surplus.check_balance(), Err(Imbalance::Surplus { received: 100, surplus: 5 }));
    }

    #[test]
    fn adding_doubles_every_field() {
        let mut sum = sample();
        sum.add(&sample());
        assert_eq!(sum.check_balance(), Ok(()));
        assert_eq!((sum.received, sum.bytes), (200, 12000));
        assert_eq!((sum.wire_bytes, sum.copied_bytes), (14000, 13000));
        let doubled = |(name, count): (&'static str, u64)| (name, count * 2);
        assert_eq!(sum.lost.named(), sample().lost.named().map(doubled));
        assert_eq!(sum.events.named(), sample().events.named().map(doubled));
    }

    #[test]
    fn shortened_packet_counts_as_cut() {
        let mut capture = Capture { received: 2, ..Capture::default() };
        capture.deliver(60, 60);
        capture.deliver(96, 1514);
        assert_eq!((capture.bytes, capture.wire_bytes, capture.events.snaplen_cuts), (156, 1574, 1));
        assert_eq!(capture.check_balance(), Ok(()));
    }
}
