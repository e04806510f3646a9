//! Account of an injector: frames sent, refused, dropped and unfinished.
//!
//! The injectors fill it in, `generate` and `replay` print it. It does not count received frames.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::number::{Grouped, bits_per_second};

/// Account of one injector.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Send {
    /// Frames that the kernel accepted and, on paths with completions, has completed.
    pub frames: u64,
    /// Bytes of those frames, without the frame check sequence.
    pub bytes: u64,
    /// Frames that the kernel refused (too long for the MTU, interface down).
    pub refused: u64,
    /// Frames that the kernel accepted and dropped before the driver (`ENOBUFS` from the queueing
    /// discipline).
    pub dropped: u64,
    /// Frames without a completion when the injector closed.
    pub unfinished: u64,
    /// Waits of a batch for space in the ring or in the socket's buffer.
    pub waits: u64,
    /// Time from the first frame to the last completion, in seconds.
    pub seconds: f64,
    /// `frames / seconds`, in frames per second; 0 if no time has passed.
    pub achieved_pps: f64,
}

impl Send {
    /// Returns the number of offered frames: sent, refused, dropped and unfinished.
    pub fn offered(&self) -> u64 {
        self.frames + self.refused + self.dropped + self.unfinished
    }

    /// Sets the duration and the achieved rate that follows from it.
    pub fn set_elapsed(&mut self, elapsed: Duration) {
        self.seconds = elapsed.as_secs_f64();
        self.achieved_pps = if self.seconds > 0.0 { self.frames as f64 / self.seconds } else { 0.0 };
    }

    /// Adds the counts of an injector that ran at the same time: the longer time is that of both.
    pub fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.refused += other.refused;
        self.dropped += other.dropped;
        self.unfinished += other.unfinished;
        self.waits += other.waits;
        self.set_elapsed(Duration::from_secs_f64(self.seconds.max(other.seconds)));
    }
}

impl fmt::Display for Send {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = Grouped(self.achieved_pps.round() as u64);
        let bits = bits_per_second(self.bytes, self.seconds);
        writeln!(
            f,
            "sent {} frames in {:.3} s: {rate} frames/s, {bits}",
            Grouped(self.frames),
            self.seconds
        )?;
        let rows = [
            ("offered", self.offered()),
            ("sent", self.frames),
            ("refused", self.refused),
            ("dropped", self.dropped),
            ("unfinished", self.unfinished),
            ("bytes", self.bytes),
            ("waits for room", self.waits),
        ];
        rows.iter().try_for_each(|(name, count)| writeln!(f, "  {name:<22}{:>20}", Grouped(*count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_computed_from_frames_and_time() {
        let mut send = Send { frames: 500, bytes: 30_000, dropped: 2, ..Send::default() };
        send.set_elapsed(Duration::from_millis(250));
        assert!((send.achieved_pps - 2000.0).abs() < 1e-9);
        assert_eq!(send.offered(), 502);
        send.set_elapsed(Duration::ZERO);
        assert!(send.achieved_pps.abs() < f64::EPSILON);
    }

    #[test]
    fn rates_of_concurrent_injectors_add_up() {
        let mut one = Send { frames: 1000, ..Send::default() };
        one.set_elapsed(Duration::from_secs(1));
        let other = one.clone();
        one.add(&other);
        assert_eq!(one.frames, 2000);
        assert!((one.achieved_pps - 2000.0).abs() < 1e-6);
    }

    #[test]
    fn text_is_aligned_ascii() {
        let text = Send { frames: 1_234_567, bytes: 74_074_020, ..Send::default() }.to_string();
        assert!(text.is_ascii());
        assert!(text.contains("1,234,567"));
        let widths: Vec<usize> = text.lines().skip(1).map(str::len).collect();
        assert!(widths.iter().all(|width| *width == 44), "{text}");
    }
}
