//! Wait policies: they decide if a lane sleeps, and for how long, from the measured rate of frames.
//! The user need not set a timer, unlike in libpcap (D2 in docs/sources.md).
//!
//! [`Pacer`] is a pure state machine. A lane reports the number of frames that it found in the
//! ring; for an empty ring the pacer returns the next [`Step`]. It reads no clock and makes no
//! system call.

use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Number of spins between two checks of the link by a lane that never sleeps: a few milliseconds.
pub(crate) const LINK_CHECK_SPINS: u32 = 1 << 16;

/// Descriptors that end a wait for frames: the interrupter's, and the link monitor's.
pub(crate) type Wakers<'a> = [Option<BorrowedFd<'a>>; 2];

/// Wait policy of a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Wake for each packet.
    Latency,
    /// Wake for each packet while the link is quiet. Under load let packets gather, so that one
    /// wake-up is for many packets.
    #[default]
    Balanced,
    /// Never sleep.
    Busy,
}

impl Wait {
    /// Every policy.
    pub const ALL: &'static [Self] = &[Self::Latency, Self::Balanced, Self::Busy];

    /// Returns the name as users write it: `latency`, `balanced` or `busy`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Balanced => "balanced",
            Self::Busy => "busy",
        }
    }

    /// Returns the description in one line, without a full stop.
    pub fn description(self) -> &'static str {
        match self {
            Self::Latency => "Wake for each packet",
            Self::Balanced => "Wake for each packet at low rates, and for batches under load",
            Self::Busy => "Never sleep",
        }
    }

    /// Returns the policy with the name `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|wait| wait.name() == name)
    }
}

/// Next action of a lane with an empty ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Sleep until the next packet.
    Wake,
    /// Let packets gather for about this time.
    Gather(Duration),
    /// Poll the ring again at once.
    Spin,
}

/// Rate above which packets gather. A wake-up costs some 5 us, so wake-ups for each packet would
/// cost a tenth of a CPU here.
const BUSY_PPS: u64 = 20_000;
/// Minimum time over which the rate is measured.
const WINDOW_NS: u64 = 500_000;
/// Maximum pause at the start of a load, which may be a burst: the packet after a burst must not
/// wait long.
const GATHER_MAX: Duration = Duration::from_millis(1);
/// Maximum pause once the load has lasted for [`SUSTAINED_NS`]. `Balanced` adds this delay then. V3
/// waits up to twice this time for a full block.
const GATHER_SUSTAINED_MAX: Duration = Duration::from_millis(4);
const SUSTAINED_NS: u64 = 50_000_000;
/// Maximum time since the lane began to wait for a packet, after which packets gather. If the
/// packets came later they may be a burst: the next packet would wait, and the lane would wake
/// twice for each burst.
const LOAD_GAP_NS: u64 = 2_000_000;
/// Minimum pause. A sleep lasts some 50 us longer than requested, so a shorter one would be all
/// delay.
const GATHER_MIN: Duration = Duration::from_micros(50);
/// A pause may fill one part in this many of the ring, so that a burst of four times the measured
/// rate fits.
pub(crate) const RING_DIVISOR: u32 = 4;

/// Maximum delay of a wake-up on a busy machine: a time slice of another task, two ticks at 250 Hz.
/// The ring must hold the frames of this time in addition to those of the pause.
const LATE_MAX: Duration = Duration::from_millis(8);

/// Decides between waking per packet and gathering, from the measured rate.
#[derive(Debug)]
pub(crate) struct Pacer {
    wait: Wait,
    /// Number of frames that the ring holds.
    capacity: u64,
    window_start_ns: u64,
    window_frames: u64,
    rate_pps: u64,
    /// True if a frame was found since the last poll of an empty ring.
    found: bool,
    /// Start of the load; `None` on a quiet link.
    loaded_since_ns: Option<u64>,
    /// Time of the last [`Step::Wake`].
    slept_ns: u64,
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
            slept_ns: 0,
        }
    }

    /// Counts `frames` frames that a poll of the ring found.
    pub(crate) fn found(&mut self, frames: usize) {
        self.window_frames += frames as u64;
        self.found |= frames > 0;
    }

    /// Returns the next action for a ring that is empty at `now_ns`.
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
        let step = self.step(now_ns);
        if step == Step::Wake {
            self.slept_ns = now_ns;
        }
        step
    }

    fn step(&mut self, now_ns: u64) -> Step {
        // No packet came during the pause: the burst is over.
        let over = !std::mem::take(&mut self.found);
        let began = self.loaded_since_ns.is_some() || now_ns.saturating_sub(self.slept_ns) <= LOAD_GAP_NS;
        if over || self.rate_pps < BUSY_PPS || !began {
            self.loaded_since_ns = None;
            return Step::Wake;
        }
        let since_ns = *self.loaded_since_ns.get_or_insert(now_ns);
        let is_sustained = now_ns.saturating_sub(since_ns) >= SUSTAINED_NS;
        let longest = if is_sustained { GATHER_SUSTAINED_MAX } else { GATHER_MAX };
        let pause = pause_within(held_for(self.capacity, self.rate_pps));
        // A ring that is too small for the rate would overflow while its reader sleeps.
        if pause < GATHER_MIN { Step::Wake } else { Step::Gather(pause.min(longest)) }
    }
}

/// Returns the time in which a ring of `capacity` frames fills at `rate_pps`, which is not 0.
fn held_for(capacity: u64, rate_pps: u64) -> Duration {
    Duration::from_nanos(capacity.saturating_mul(1_000_000_000) / rate_pps)
}

/// Returns the maximum pause of a reader with a ring that holds the frames of `held`.
fn pause_within(held: Duration) -> Duration {
    (held / RING_DIVISOR).min(held.saturating_sub(LATE_MAX))
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
    fn quiet_link_wakes_for_each_packet() {
        let mut pacer = Pacer::new(Wait::Balanced, 4096);
        assert_eq!(steady(&mut pacer, 2000, 10, 0), Step::Wake);
    }

    #[test]
    fn load_gathers_within_a_share_of_the_ring() {
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
    fn sustained_load_gathers_longer_until_it_ends() {
        let mut pacer = Pacer::new(Wait::Balanced, 1 << 16);
        let windows = SUSTAINED_NS / WINDOW_NS;
        assert_eq!(steady(&mut pacer, 300_000, windows, 0), Step::Gather(GATHER_MAX));
        let later = windows * WINDOW_NS;
        assert_eq!(steady(&mut pacer, 300_000, 2, later), Step::Gather(GATHER_SUSTAINED_MAX));
        assert_eq!(pacer.empty(later + 3 * WINDOW_NS), Step::Wake);
        assert_eq!(steady(&mut pacer, 300_000, 2, later + 4 * WINDOW_NS), Step::Gather(GATHER_MAX));
    }

    #[test]
    fn packet_after_a_burst_does_not_wait() {
        const MS: u64 = 1_000_000;
        let mut pacer = Pacer::new(Wait::Balanced, 1 << 16);
        let mut read = |frames, at_ns| {
            pacer.found(frames);
            pacer.empty(at_ns)
        };
        assert!((1..10).all(|burst| read(1000, burst * 20 * MS) == Step::Wake));
        // The load lasts: packets follow at once.
        assert_eq!(read(1000, 200 * MS), Step::Wake);
        assert_eq!(read(1000, 201 * MS), Step::Gather(GATHER_MAX));
    }

    #[test]
    fn ring_too_small_for_the_rate_is_read_without_a_pause() {
        assert_eq!(steady(&mut Pacer::new(Wait::Balanced, 128), 2_000_000, 10, 0), Step::Wake);
        assert!(matches!(steady(&mut Pacer::new(Wait::Balanced, 4096), 100_000, 10, 0), Step::Gather(_)));
    }

    #[test]
    fn pause_leaves_room_for_a_late_wake_up() {
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
    fn first_empty_poll_ends_a_burst() {
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
