//! When to sleep and how long: D2's question, answered by measuring instead of by a timer the user
//! must know.
//!
//! [`Pacer`] is a pure state machine: a lane tells it how many frames each look at the ring found
//! and at what time, and asks it what to do when the ring is empty. It reads no clock and makes no
//! call.

use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Spins between two checks of the link by a lane that never sleeps: every few milliseconds.
pub(crate) const LINK_CHECK_SPINS: u32 = 1 << 16;

/// Descriptors that end a wait for frames: the interrupter's, and the link's news.
pub(crate) type Wakers<'a> = [Option<BorrowedFd<'a>>; 2];

/// How a lane waits for packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Wake for the first packet, always.
    Latency,
    /// Wake for the first packet while the line is quiet; under load let packets gather, so that
    /// waking costs little.
    #[default]
    Balanced,
    /// Never sleep.
    Busy,
}

impl Wait {
    /// As users spell it: `latency`, `balanced`, `busy`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Balanced => "balanced",
            Self::Busy => "busy",
        }
    }
}

/// What to do when the ring is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait to be woken by the next packet.
    Wake,
    /// Under load: let packets gather for about this long.
    Gather(Duration),
    /// Look again at once.
    Spin,
}

/// Above this rate, packets are left to gather: a wake-up costs some 5 us, so here they would cost
/// a tenth of a CPU.
const BUSY_PPS: u64 = 20_000;
/// The rate is measured over at least this long.
const WINDOW_NS: u64 = 500_000;
/// The longest that packets gather at first: what looks like load may be a burst, and the next one
/// should not wait.
const GATHER_MAX: Duration = Duration::from_millis(1);
/// The longest that they gather once the load has lasted for [`SUSTAINED_NS`]; the delay that
/// `Balanced` adds then.
const GATHER_SUSTAINED_MAX: Duration = Duration::from_millis(4);
const SUSTAINED_NS: u64 = 50_000_000;
/// A sleep lasts some 50 us longer than it was meant to; a pause below this would be all delay.
const GATHER_MIN: Duration = Duration::from_micros(50);
/// Gathering may fill this share of the ring, so that a burst of four times the measured rate still
/// fits.
pub(crate) const RING_SHARE: u32 = 4;

/// How late a reader can wake on a busy machine: a time slice of another task, two ticks at 250 Hz.
/// The ring must hold the frames of that time beyond those of the pause.
const LATE_MAX: Duration = Duration::from_millis(8);

/// Decides between waking per packet and gathering, from the measured rate.
#[derive(Debug)]
pub(crate) struct Pacer {
    wait: Wait,
    /// Frames that the ring holds.
    capacity: u64,
    window_start_ns: u64,
    window_frames: u64,
    rate_pps: u64,
    /// Whether the last look after gathering found anything.
    found: bool,
    /// Since when packets have been left to gather; `None` on a quiet line.
    loaded_since_ns: Option<u64>,
}

impl Pacer {
    pub(crate) fn new(wait: Wait, capacity: usize) -> Self {
        Self {
            wait,
            capacity: capacity as u64,
            window_start_ns: 0,
            window_frames: 0,
            rate_pps: 0,
            found: false,
            loaded_since_ns: None,
        }
    }

    /// A look at the ring found `frames` frames.
    pub(crate) fn found(&mut self, frames: usize) {
        self.window_frames += frames as u64;
        self.found |= frames > 0;
    }

    /// The ring is empty at `now_ns`.
    pub(crate) fn empty(&mut self, now_ns: u64) -> Step {
        match self.wait {
            Wait::Latency => Step::Wake,
            Wait::Busy => Step::Spin,
            Wait::Balanced => self.balance(now_ns),
        }
    }

    fn balance(&mut self, now_ns: u64) -> Step {
        let elapsed = now_ns.saturating_sub(self.window_start_ns);
        if elapsed >= WINDOW_NS {
            self.rate_pps = self.window_frames.saturating_mul(1_000_000_000) / elapsed;
            self.window_start_ns = now_ns;
            self.window_frames = 0;
        }
        // Nothing came while packets were to gather: the burst is over.
        let over = !std::mem::take(&mut self.found);
        if over || self.rate_pps < BUSY_PPS {
            self.loaded_since_ns = None;
            return Step::Wake;
        }
        let since_ns = *self.loaded_since_ns.get_or_insert(now_ns);
        let lasts = now_ns.saturating_sub(since_ns) >= SUSTAINED_NS;
        let longest = if lasts { GATHER_SUSTAINED_MAX } else { GATHER_MAX };
        let pause = pause_within(held_for(self.capacity, self.rate_pps));
        // The ring is too small for this rate: it would overflow while its reader sleeps.
        if pause < GATHER_MIN { Step::Wake } else { Step::Gather(pause.min(longest)) }
    }
}

/// How long a ring of `capacity` frames takes to fill at `rate_pps`, which is not 0.
fn held_for(capacity: u64, rate_pps: u64) -> Duration {
    Duration::from_nanos(capacity.saturating_mul(1_000_000_000) / rate_pps)
}

/// Longest pause of a reader; its ring holds the frames of `held`.
fn pause_within(held: Duration) -> Duration {
    (held / RING_SHARE).min(held.saturating_sub(LATE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds a steady rate for `windows` windows and returns the last step.
    fn steady(pacer: &mut Pacer, rate_pps: u64, windows: u64, start_ns: u64) -> Step {
        let mut step = Step::Wake;
        for i in 1..=windows {
            pacer.found((rate_pps * WINDOW_NS / 1_000_000_000) as usize);
            step = pacer.empty(start_ns + i * WINDOW_NS);
        }
        step
    }

    #[test]
    fn a_quiet_line_is_woken_by_each_packet() {
        let mut pacer = Pacer::new(Wait::Balanced, 4096);
        assert_eq!(steady(&mut pacer, 2000, 10, 0), Step::Wake);
    }

    #[test]
    fn a_loaded_line_gathers_within_a_share_of_the_ring() {
        let mut pacer = Pacer::new(Wait::Balanced, 1 << 16);
        let Step::Gather(pause) = steady(&mut pacer, 4_000_000, 10, 0) else { panic!("did not gather") };
        assert!(pause.as_nanos() * 4_000_000 / 1_000_000_000 <= (1 << 16) / 4);
        assert!(pause >= GATHER_MIN);
        let Step::Gather(pause) = steady(&mut pacer, 100_000, 10, 10 * WINDOW_NS) else {
            panic!("did not gather")
        };
        assert_eq!(pause, GATHER_MAX);
    }

    #[test]
    fn a_load_that_lasts_gathers_longer_until_it_ends() {
        let mut pacer = Pacer::new(Wait::Balanced, 1 << 16);
        let windows = SUSTAINED_NS / WINDOW_NS;
        assert_eq!(steady(&mut pacer, 300_000, windows, 0), Step::Gather(GATHER_MAX));
        let later = windows * WINDOW_NS;
        assert_eq!(steady(&mut pacer, 300_000, 2, later), Step::Gather(GATHER_SUSTAINED_MAX));
        assert_eq!(pacer.empty(later + 3 * WINDOW_NS), Step::Wake);
        assert_eq!(steady(&mut pacer, 300_000, 2, later + 4 * WINDOW_NS), Step::Gather(GATHER_MAX));
    }

    #[test]
    fn a_ring_too_small_for_the_rate_is_not_left_alone() {
        assert_eq!(steady(&mut Pacer::new(Wait::Balanced, 128), 2_000_000, 10, 0), Step::Wake);
        assert!(matches!(steady(&mut Pacer::new(Wait::Balanced, 4096), 100_000, 10, 0), Step::Gather(_)));
    }

    #[test]
    fn a_pause_leaves_room_for_a_late_wake() {
        let (ms, us) = (Duration::from_millis, Duration::from_micros);
        // Chunks of AF_XDP, slots of V2, minimum frames of V3's blocks.
        for (capacity, rate_pps, pause) in [
            (16_384, 3_000_000, Duration::ZERO),
            (32_768, 4_000_000, us(192)),
            (65_536, 3_000_000, us(5461)),
            (128, 20_000, Duration::ZERO),
            (1024, 20_000, us(12_800)),
            (58_254, 1_000_000, us(14_563)),
        ] {
            let held = held_for(capacity, rate_pps);
            let found = pause_within(held);
            assert!(found.abs_diff(pause) < us(1), "{capacity} frames, {rate_pps}/s: {found:?}");
            assert!(found == Duration::ZERO || held >= found + ms(8), "{capacity} frames, {rate_pps}/s");
        }
        assert_eq!(steady(&mut Pacer::new(Wait::Balanced, 16_384), 3_000_000, 200, 0), Step::Wake);
    }

    #[test]
    fn the_end_of_a_burst_is_noticed_at_the_first_empty_look() {
        let mut pacer = Pacer::new(Wait::Balanced, 1 << 16);
        assert!(matches!(steady(&mut pacer, 1_000_000, 10, 0), Step::Gather(_)));
        assert_eq!(pacer.empty(10 * WINDOW_NS + 1000), Step::Wake);
    }

    #[test]
    fn latency_always_wakes_and_busy_always_spins() {
        assert_eq!(steady(&mut Pacer::new(Wait::Latency, 64), 5_000_000, 9, 0), Step::Wake);
        assert_eq!(steady(&mut Pacer::new(Wait::Busy, 64), 10, 9, 0), Step::Spin);
    }
}
