//! Probes: payloads with a sequence number and a time. The generator writes one into every frame,
//! and the receiver reads it.
//!
//! ```text
//!  0     2                        10                       18
//!  |magic|sequence number, 64 bit |time sent, 64 bit ns|  big endian; zeros to the end
//! ```
//!
//! 18 bytes is the UDP payload of the shortest Ethernet frame over IPv4, so one layout fits all
//! sizes. It does not contain the flow, which is known from the ports. [`Tracker`] counts lost,
//! duplicated and reordered frames in a stream of probes. It reads no clock: the caller passes the
//! time of arrival.

use crate::link::network;
use crate::protocol::ip;
use crate::tcp::Tcp;
use crate::udp::Udp;

/// Magic number, the first two bytes of a probe: `ST`.
pub const MAGIC: u16 = 0x5354;

/// Bytes of a probe.
pub const LEN: usize = 18;

/// Offset of the sequence number in a probe.
pub const SEQUENCE_AT: usize = 2;

/// Offset of the time in a probe.
pub const SENT_AT: usize = 10;

/// A probe read from a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Number of the frame in its stream, counted from the start of the generator.
    pub sequence: u64,
    /// Time at which it was sent, in nanoseconds of the generator's clock (the realtime clock since
    /// 1970).
    pub sent_ns: u64,
}

impl Probe {
    /// Returns the probe's bytes.
    pub fn to_bytes(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..SEQUENCE_AT].copy_from_slice(&MAGIC.to_be_bytes());
        bytes[SEQUENCE_AT..SENT_AT].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[SENT_AT..].copy_from_slice(&self.sent_ns.to_be_bytes());
        bytes
    }

    /// Reads a probe from the start of a payload; `None` if it is short or has another magic.
    pub fn from_payload(payload: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = payload.first_chunk()?;
        let (magic, rest) = bytes.split_first_chunk()?;
        let (sequence, rest) = rest.split_first_chunk()?;
        let sent = rest.first_chunk()?;
        (u16::from_be_bytes(*magic) == MAGIC)
            .then_some(Self { sequence: u64::from_be_bytes(*sequence), sent_ns: u64::from_be_bytes(*sent) })
    }
}

/// Reads the probe of an Ethernet frame: the payload of UDP or TCP over IPv4 or IPv6, after any
/// VLAN tags. Returns `None` for any other frame, for a fragment, and for a frame that is cut
/// before the end of the probe.
pub fn read(frame: &[u8]) -> Option<Probe> {
    let (_, network) = network(frame).ok()?;
    let carried = network.carried()?;
    match carried.protocol {
        _ if carried.is_fragment => None,
        ip::UDP => Probe::from_payload(Udp::parse(carried.payload).ok()?.payload()),
        ip::TCP => Probe::from_payload(Tcp::parse(carried.payload).ok()?.payload()),
        _ => None,
    }
}

/// Number of sequence numbers below the highest one for which a late probe can be distinguished
/// from a duplicate.
pub const WINDOW: u64 = 1 << 16;

const WORDS: usize = (WINDOW / 64) as usize;

/// Counts over one stream of probes. Allocates 8 KiB when it is created, and nothing afterwards.
#[derive(Clone, Debug)]
pub struct Tracker {
    /// Bit `sequence % WINDOW` for each of the last [`WINDOW`] sequence numbers that has arrived.
    seen: Box<[u64; WORDS]>,
    first: u64,
    highest: Option<u64>,
    distinct: u64,
    duplicated: u64,
    reordered: u64,
}

impl Tracker {
    /// Returns a tracker without probes.
    pub fn new() -> Self {
        Self {
            seen: Box::new([0; WORDS]),
            first: u64::MAX,
            highest: None,
            distinct: 0,
            duplicated: 0,
            reordered: 0,
        }
    }

    /// Counts a probe that arrived at `now_ns` of the clock that stamped it. Returns its delay in
    /// nanoseconds, or `None` for a duplicate and for a probe with a later time than `now_ns`.
    pub fn record(&mut self, probe: Probe, now_ns: u64) -> Option<u64> {
        let is_new = match self.highest {
            Some(highest) if probe.sequence <= highest => self.record_late(highest, probe.sequence),
            highest => {
                self.ahead(highest, probe.sequence);
                true
            }
        };
        self.first = self.first.min(probe.sequence);
        self.distinct += u64::from(is_new);
        self.duplicated += u64::from(!is_new);
        if is_new { now_ns.checked_sub(probe.sent_ns) } else { None }
    }

    /// Returns the number of probes that arrived, without duplicates.
    pub fn received(&self) -> u64 {
        self.distinct
    }

    /// Returns the number of duplicates within the last [`WINDOW`] sequence numbers.
    pub fn duplicated(&self) -> u64 {
        self.duplicated
    }

    /// Returns the number of probes with a lower sequence number than an earlier one (RFC 4737
    /// s3.3).
    pub fn reordered(&self) -> u64 {
        self.reordered
    }

    /// Returns the number of sequence numbers between the lowest and the highest one that did not
    /// arrive. Losses before the first and after the last probe are not included.
    pub fn lost(&self) -> u64 {
        let span = self.highest.map_or(0, |highest| (highest - self.first).saturating_add(1));
        span.saturating_sub(self.distinct)
    }

    /// Records a sequence number that is not above the highest. Returns true if it is new. Below
    /// the window this is unknown, and it counts as new.
    fn record_late(&mut self, highest: u64, sequence: u64) -> bool {
        let is_new = highest - sequence >= WINDOW || !self.mark(sequence);
        self.reordered += u64::from(is_new);
        is_new
    }

    /// Records a new highest sequence number, and clears the bits of those that leave the window.
    fn ahead(&mut self, highest: Option<u64>, sequence: u64) {
        let skipped = highest.map_or(0, |highest| sequence - highest - 1);
        if skipped >= WINDOW {
            self.seen.fill(0);
        } else {
            (sequence - skipped..sequence).for_each(|passed| self.clear(passed));
            self.clear(sequence);
        }
        self.mark(sequence);
        self.highest = Some(sequence);
    }

    /// Sets a bit; returns true if it was set before.
    fn mark(&mut self, sequence: u64) -> bool {
        let (word, bit) = place(sequence);
        let was_set = self.seen[word] & bit != 0;
        self.seen[word] |= bit;
        was_set
    }

    fn clear(&mut self, sequence: u64) {
        let (word, bit) = place(sequence);
        self.seen[word] &= !bit;
    }
}

fn place(sequence: u64) -> (usize, u64) {
    ((sequence % WINDOW / 64) as usize, 1 << (sequence % 64))
}

impl Default for Tracker {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn probe(sequence: u64) -> Probe {
        Probe { sequence, sent_ns: 100 }
    }

    proptest! {
        #[test]
        fn counts_agree_with_a_set_of_all_numbers(start: u32, steps in prop::collection::vec(0u64..300, 1..400)) {
            let mut tracker = Tracker::new();
            let (mut seen, mut highest) = (HashSet::new(), None);
            let (mut duplicated, mut reordered) = (0, 0);
            for step in steps {
                let sequence = u64::from(start) + step;
                let is_new = seen.insert(sequence);
                duplicated += u64::from(!is_new);
                reordered += u64::from(is_new && highest.is_some_and(|highest| sequence < highest));
                highest = highest.max(Some(sequence));
                prop_assert_eq!(tracker.record(probe(sequence), 150), is_new.then_some(50));
            }
            let span = highest.unwrap() - seen.iter().min().unwrap() + 1;
            prop_assert_eq!(tracker.received(), seen.len() as u64);
            prop_assert_eq!(tracker.duplicated(), duplicated);
            prop_assert_eq!(tracker.reordered(), reordered);
            prop_assert_eq!(tracker.lost(), span - seen.len() as u64);
        }

        #[test]
        fn any_sequence_of_numbers_is_counted_without_overflow(numbers in prop::collection::vec(any::<u64>(), 0..50)) {
            let mut tracker = Tracker::new();
            for number in &numbers {
                tracker.record(probe(*number), 0);
            }
            prop_assert_eq!(tracker.received() + tracker.duplicated(), numbers.len() as u64);
        }

        #[test]
        fn bytes_read_back(sequence: u64, sent_ns: u64) {
            let probe = Probe { sequence, sent_ns };
            prop_assert_eq!(Probe::from_payload(&probe.to_bytes()), Some(probe));
        }
    }

    #[test]
    fn a_gap_wider_than_the_window_is_lost_and_old_numbers_are_forgotten() {
        let mut tracker = Tracker::new();
        tracker.record(probe(5), 100);
        tracker.record(probe(5 + 3 * WINDOW), 100);
        tracker.record(probe(5 + 2 * WINDOW + 1), 100);
        assert_eq!((tracker.received(), tracker.reordered(), tracker.duplicated()), (3, 1, 0));
        assert_eq!(tracker.lost(), 3 * WINDOW + 1 - 3);
    }

    #[test]
    fn a_clock_that_runs_behind_gives_no_delay() {
        assert_eq!(Tracker::new().record(probe(1), 99), None);
    }
}
