//! Memory of a tap: the rings of the CPUs and the doorbells of the lanes.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;
use std::sync::Arc;

use strait_filter::tap::layout::{self, Sizes};
use strait_sys::bpf::{Doorbell, Map, RingLayout};

use crate::error::Error;
use crate::frame::FRAME_BYTES_MAX;

/// Maximum number of lanes. A program can use 64 maps (`MAX_USED_MAPS`): the rings, and a doorbell
/// for each lane.
pub(super) const LANES_MAX: usize = 63;

/// Default size in bytes of all spill rings together.
const SPILLS_BYTES: u32 = 64 << 20;
/// Default size of a CPU's spill ring: at most 22 ms of full frames at one million a second, and at
/// least one burst of them.
const SPILL_BYTES_MAX: u32 = 32 << 20;
const SPILL_BYTES_MIN: u32 = 1 << 20;
/// Largest spill ring. The verifier refuses variable offsets from 2^29 on (`BPF_MAX_VAR_OFF`), and
/// the copy adds up to 256.
const SPILL_BYTES_LIMIT: usize = 1 << 28;
/// The first ring has one part in this many of the spill ring's size: 4 MiB by default on two CPUs,
/// which a last-level cache holds.
const FIRST_RING_DIVISOR: u32 = 8;
/// Smallest ring, a page.
const RING_BYTES_MIN: u32 = 4 << 10;

/// Sizes of a CPU's rings and pauses of the reader in place of the defaults, for measurements. As
/// text: the sizes in KiB and the divisor, `512:32768:2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapRings {
    /// Bytes of the first ring.
    pub first_bytes: u32,
    /// Bytes of the spill ring.
    pub spill_bytes: u32,
    /// A pause may fill one part in this many of the first ring.
    pub pause_divisor: u32,
}

impl fmt::Display for TapRings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first_bytes, spill_bytes, pause_divisor } = self;
        write!(f, "{}:{}:{pause_divisor}", first_bytes >> 10, spill_bytes >> 10)
    }
}

impl FromStr for TapRings {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const KIB: std::ops::RangeInclusive<u32> = RING_BYTES_MIN >> 10..=SPILL_BYTES_LIMIT as u32 >> 10;
        let numbers: Option<Vec<u32>> = text.split(':').map(|number| number.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[first, spill, pause_divisor])
                if [first, spill].iter().all(|kib| KIB.contains(kib) && kib.is_power_of_two())
                    && first <= spill
                    && pause_divisor > 0 =>
            {
                Ok(Self { first_bytes: first << 10, spill_bytes: spill << 10, pause_divisor })
            }
            _ => Err(format!(
                "'{text}': give FIRST:SPILL:DIVISOR, sizes in KiB as powers of two, from {} to {}, the first not \
                 larger, and a divisor of at least 1",
                KIB.start(),
                KIB.end()
            )),
        }
    }
}

/// Maps of a tap, which the programs fill and the lanes map.
pub(super) struct Memory {
    pub(super) rings: Map,
    /// One for each lane.
    pub(super) doorbells: Vec<Arc<Doorbell>>,
}

impl Memory {
    /// Makes the maps.
    pub(super) fn new(sizes: &Sizes, cpus: u32, lanes: u32) -> Result<Self, Error> {
        let rings = Map::mappable_array("strait_tap", sizes.value_bytes() as u32, cpus)?;
        let bell = |_| Doorbell::new("strait_tap_bell").map(Arc::new);
        Ok(Self { rings, doorbells: (0..lanes).map(bell).collect::<Result<_, _>>()? })
    }

    /// Returns the descriptors of the rings and of the doorbells, in this order.
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let bells = self.doorbells.iter().map(|bell| bell.as_fd());
        [self.rings.as_fd()].into_iter().chain(bells).collect()
    }
}

/// Returns the sizes of a CPU's rings, which are powers of two. They hold the longest frame,
/// whatever the MTU and the snaplen: the MTU and the filter may change, and a filter in this
/// process must see the bytes that it would see in the kernel.
pub(super) fn sizes(requested: Option<usize>, cpus: u32) -> Sizes {
    let spill_bytes = match requested {
        Some(bytes) => bytes.min(SPILL_BYTES_LIMIT) as u32,
        None => (SPILLS_BYTES / cpus).clamp(SPILL_BYTES_MIN, SPILL_BYTES_MAX),
    };
    let spill_bytes = 1 << spill_bytes.max(RING_BYTES_MIN).ilog2();
    let ring_bytes = (spill_bytes / FIRST_RING_DIVISOR).max(RING_BYTES_MIN);
    Sizes { ring_bytes, spill_bytes, frame_bytes_max: FRAME_BYTES_MAX }
}

/// Returns a note if the rings are smaller than requested.
pub(super) fn note(requested: Option<usize>) -> Option<String> {
    requested.filter(|bytes| *bytes > SPILL_BYTES_LIMIT).map(|_| {
        format!(
            "the tap has a ring of {} MiB for each CPU, the largest that it can have",
            SPILL_BYTES_LIMIT >> 20
        )
    })
}

pub(super) fn describe(sizes: &Sizes, cpus: u32) -> String {
    let (ring, spill) = (sizes.ring_bytes >> 10, sizes.spill_bytes >> 10);
    format!("{cpus} rings of {ring} KiB with {spill} KiB to spill, one for each CPU")
}

/// Returns the layouts of a CPU's first ring and of its spill ring.
pub(super) fn layouts(sizes: &Sizes) -> [RingLayout; 2] {
    let wakeup = layout::WAKEUP;
    let first = RingLayout {
        producer: layout::PRODUCER,
        consumer: layout::CONSUMER,
        wakeup,
        data: layout::DATA,
        ring_bytes: sizes.ring_bytes as usize,
        end: sizes.spill(),
    };
    let spill = RingLayout {
        producer: layout::SPILL_PRODUCER,
        consumer: layout::SPILL_CONSUMER,
        wakeup,
        data: sizes.spill(),
        ring_bytes: sizes.spill_bytes as usize,
        end: sizes.value_bytes(),
    };
    [first, spill]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_larger_than_the_limit_is_noted() {
        for (mib, spill, noted) in [(256, 256, false), (512, 256, true), (2048, 256, true)] {
            let requested = Some(mib << 20);
            assert_eq!(sizes(requested, 2).spill_bytes >> 20, spill, "{mib} MiB");
            assert_eq!(note(requested).is_some_and(|note| note.contains("256 MiB")), noted, "{mib} MiB");
        }
        assert_eq!(note(None), None);
    }

    #[test]
    fn tuned_rings_are_read_as_they_are_printed() {
        let rings = TapRings { first_bytes: 512 << 10, spill_bytes: 32 << 20, pause_divisor: 4 };
        assert_eq!(rings.to_string(), "512:32768:4");
        assert_eq!("512:32768:4".parse(), Ok(rings));
        for wrong in
            ["", "512", "512:32768", "512:32768:0", "3:4:1", "8:4:1", "4:5:1", "4:2097152:1", "4:8:1:1"]
        {
            assert!(wrong.parse::<TapRings>().unwrap_err().contains("FIRST:SPILL:DIVISOR"), "{wrong}");
        }
    }
}
