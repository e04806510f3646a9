//! Eviction policy: which objects stay when space is needed. Pure decisions without I/O: eviction
//! carries them out, and [`Simulation`] runs the same code on traces.
//!
//! ```text
//!               requested more often than the cut?
//!   new ──► window ──────────── yes ──────────► main ──┐ best part of a file,
//!              │                                 ▲ │    │ if it reaches half the cut
//!              no                                └─┼────┘
//!              ▼                                   ▼
//!           dropped; its number of requests is remembered
//! ```
//!
//! It is TinyLFU's admission (Einziger, Friedman, Manes, 2017) on files instead of objects. Both
//! areas are queues of files, and the first file of one of them is evicted as a whole. The cut is a
//! moving average of the scores of the best objects that main dropped. An object leaves the window
//! for main only if its score is higher, so main seldom has to be evicted, and few bytes are
//! written twice. Numbers of requests are halved once the cache has been written some times over.

mod dropped;
mod popularity;
mod simulation;
mod window;

use std::cmp::Reverse;

pub use self::dropped::Dropped;
pub use self::popularity::Popularity;
pub use self::simulation::{Simulation, Totals};
pub use self::window::{Sample, WindowTuner};

/// Share of the window in the capacity, until requests show a better one.
const WINDOW_SHARE: f64 = 0.1;
/// Weight of a new value in the cut's moving average.
const CUT_WEIGHT: f64 = 0.05;
/// An object moves to main if its score exceeds the cut by this factor. Without it, objects of
/// equal popularity would replace each other.
const ADMISSION_FACTOR: f64 = 1.1;
/// Objects of main stay in it down to this part of the cut.
const STAY_FACTOR: f64 = 0.5;
/// Weight of the score of an object that stays in main in a file of its own.
const STAYED_WEIGHT: f64 = 0.02;
/// The search for a victim ends when that many files of their own stayed in main: then the one with
/// the lowest score goes.
pub const STAYED_MAX: usize = 16;
/// Eviction of a segment keeps at most this part of its size, so that it frees some space.
const KEPT_SHARE: f64 = 0.75;
/// Numbers of requests are halved after this many capacities were written.
const AGING_CAPACITIES: u64 = 8;
/// Objects below this size have about the same score.
const SCORE_BYTES: f64 = 4096.0;

/// Area of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Area {
    /// New objects.
    #[default]
    Window,
    /// Objects that were admitted by their number of requests.
    Main,
}

impl Area {
    /// Returns the other area.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Window => Self::Main,
            Self::Main => Self::Window,
        }
    }
}

/// Object that is considered for eviction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate<T> {
    /// The object.
    pub object: T,
    /// Number of its requests, aged.
    pub requests: u8,
    /// Bytes that it uses.
    pub bytes: u64,
}

impl<T> Candidate<T> {
    /// Returns the value of keeping the object: its requests, less for a larger object. The fourth
    /// root is a compromise: without it more bytes are hits, with a square root more requests are.
    pub fn score(&self) -> f64 {
        f64::from(self.requests) / (1.0 + self.bytes as f64 / SCORE_BYTES).sqrt().sqrt()
    }
}

/// Outcome of the eviction of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection<T> {
    /// Objects to move to main, best first.
    pub kept: Vec<Candidate<T>>,
    /// The others.
    pub dropped: Vec<Candidate<T>>,
}

/// Policy of a cache.
#[derive(Clone, Debug)]
pub struct Policy {
    capacity_bytes: u64,
    window_share: f64,
    /// Score that an object must exceed to be admitted to main.
    cut: f64,
    /// Bytes written since the last aging.
    written_bytes: u64,
}

impl Policy {
    /// Policy of a cache of `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, window_share: WINDOW_SHARE, cut: 0.0, written_bytes: 0 }
    }

    /// Returns the capacity of the cache in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Sets the capacity of the cache.
    pub fn set_capacity(&mut self, capacity_bytes: u64) {
        self.capacity_bytes = capacity_bytes;
    }

    /// Sets the share of the window in the capacity, from 0 to 1.
    pub fn set_window_share(&mut self, share: f64) {
        self.window_share = share;
    }

    /// Returns the area to evict from, with that many bytes in the window.
    pub fn area(&self, window_bytes: u64) -> Area {
        let window_bytes_max = self.window_share * self.capacity_bytes as f64;
        if window_bytes as f64 > window_bytes_max { Area::Window } else { Area::Main }
    }

    /// Returns true if an object may move from the window to main.
    pub fn admits<T>(&self, candidate: &Candidate<T>) -> bool {
        candidate.score() > self.cut * ADMISSION_FACTOR
    }

    /// Selects the objects of a segment of `segment_bytes` that stay.
    pub fn select<T>(
        &mut self,
        area: Area,
        mut candidates: Vec<Candidate<T>>,
        segment_bytes: u64,
    ) -> Selection<T> {
        // Scores are not negative, so their bits have their order.
        candidates.sort_by_cached_key(|candidate| Reverse(candidate.score().to_bits()));
        let least = self.cut * if area == Area::Window { ADMISSION_FACTOR } else { STAY_FACTOR };
        let mut left = (segment_bytes as f64 * KEPT_SHARE) as u64;
        let mut selection = Selection { kept: Vec::new(), dropped: Vec::new() };
        for candidate in candidates {
            if candidate.score() > least && candidate.bytes <= left {
                left -= candidate.bytes;
                selection.kept.push(candidate);
            } else {
                selection.dropped.push(candidate);
            }
        }
        if area == Area::Main
            && let Some(best) = selection.dropped.first()
        {
            self.cut += CUT_WEIGHT * (best.score() - self.cut);
        }
        selection
    }

    /// Returns true if an object with a file of its own stays: its file then moves to the end of
    /// main's queue.
    pub fn keeps<T>(&mut self, area: Area, candidate: &Candidate<T>) -> bool {
        let score = candidate.score();
        match area {
            Area::Window => self.admits(candidate),
            Area::Main if score > self.cut => {
                self.cut += STAYED_WEIGHT * (score - self.cut);
                true
            }
            Area::Main => {
                self.cut += CUT_WEIGHT * (score - self.cut);
                false
            }
        }
    }

    /// Counts bytes of new objects. Returns true if all numbers of requests must be halved now.
    pub fn count_written(&mut self, bytes: u64) -> bool {
        self.written_bytes += bytes;
        let is_due = self.written_bytes >= AGING_CAPACITIES * self.capacity_bytes;
        if is_due {
            self.written_bytes = 0;
            self.cut /= 2.0;
        }
        is_due
    }
}
