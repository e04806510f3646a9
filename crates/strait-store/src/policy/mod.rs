//! Eviction policy: which objects stay when space is needed. Pure decisions without I/O: eviction
//! carries them out, and [`Simulation`] runs the same code on traces.
//!
//! ```text
//!               score above the cut?
//!   new ──► window ───── yes ─────► main ──┐ score above the cut?
//!              │                     ▲ │   │ best part of a file
//!              no                    └─┼───┘
//!              ▼                       ▼
//!           dropped; its number of requests is remembered
//! ```
//!
//! It is TinyLFU's admission (Einziger, Friedman, Manes, 2017) on files instead of objects. Both
//! areas are queues of files, and the first file of one of them is evicted as a whole. The cut is a
//! moving average of the scores of the best objects that main dropped. An object moves to main, or
//! stays in it, only if its score is higher, so main seldom has to be evicted, and few bytes are
//! written twice. Until main has dropped its first object it is empty or grows: then whole files
//! move to it, without a choice and without a copy. Numbers of requests are halved each time that a
//! part of the capacity was written. The [`Tuner`] chooses that part and the size of the window,
//! which together are a [`Balance`].

mod dropped;
mod popularity;
mod simulation;
mod tuner;

use std::cmp::Reverse;

pub use self::dropped::Dropped;
pub use self::popularity::Popularity;
pub use self::simulation::{Simulation, Totals};
pub use self::tuner::{Sample, Tuner};

/// One request in the numbers of requests. They count quarters, so that halved numbers keep their
/// order.
pub const REQUEST: u8 = 4;
/// Weight of a new value in the cut's moving average.
const CUT_WEIGHT: f64 = 0.05;
/// An object moves to main if its score exceeds the cut by this factor. It stays there down to the
/// cut. Without the difference, objects of about equal popularity would replace each other.
const ADMISSION_FACTOR: f64 = 1.25;
/// Weight of the score of an object that stays in main in a file of its own.
const STAYED_WEIGHT: f64 = 0.02;
/// The search for a victim ends when that many files of their own stayed in main: then the one with
/// the lowest score goes.
pub const STAYED_MAX: usize = 16;
/// Eviction of a segment keeps at most this part of its size, so that it frees some space.
const KEPT_SHARE: f64 = 0.85;
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

/// Balance of recency and frequency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// Share of the window in the capacity, from 0 to 1.
    pub window_share: f64,
    /// Numbers of requests are halved each time that this multiple of the capacity was written.
    pub half_life: f64,
}

impl Default for Balance {
    /// For popularity that neither shifts nor is steady.
    fn default() -> Self {
        Self { window_share: 0.1, half_life: 8.0 }
    }
}

/// Object that is considered for eviction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate<T> {
    /// The object.
    pub object: T,
    /// Number of its requests, aged, in units of [`REQUEST`].
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
    balance: Balance,
    /// Score that an object must exceed to be admitted to main; `None` before main has dropped any.
    cut: Option<f64>,
    /// Bytes written since the last aging.
    written_bytes: u64,
}

/// Returns the bytes of a segment with `used_bytes` for [`Policy::select`]. Long objects leave up
/// to a quarter of a full one unused: by its whole size they could all stay, and nothing would be
/// freed. Of a segment that was ended less than half full, as by a restart, all may stay: they
/// fill another one.
pub fn weighed_bytes(used_bytes: u64, segment_bytes: u64) -> u64 {
    if used_bytes < segment_bytes / 2 { segment_bytes } else { used_bytes.min(segment_bytes) }
}

impl Policy {
    /// Policy of a cache of `capacity_bytes`.
    pub fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, balance: Balance::default(), cut: None, written_bytes: 0 }
    }

    /// Returns the capacity of the cache in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Sets the capacity of the cache. Main grows with it.
    pub fn set_capacity(&mut self, capacity_bytes: u64) {
        if capacity_bytes > self.capacity_bytes {
            self.cut = None;
        }
        self.capacity_bytes = capacity_bytes;
    }

    /// Sets the balance of recency and frequency.
    pub fn set_balance(&mut self, balance: Balance) {
        self.balance = balance;
    }

    /// Returns the area to evict from, with that many bytes in the window.
    pub fn area(&self, window_bytes: u64) -> Area {
        let window_bytes_max = self.balance.window_share * self.capacity_bytes as f64;
        if window_bytes as f64 > window_bytes_max { Area::Window } else { Area::Main }
    }

    /// Returns true if an object of an area may move to main, or stay in it.
    pub fn admits<T>(&self, area: Area, candidate: &Candidate<T>) -> bool {
        let factor = if area == Area::Window { ADMISSION_FACTOR } else { 1.0 };
        self.cut.is_none_or(|cut| candidate.score() > cut * factor)
    }

    /// Returns true while main grows: a file of the window then moves to main as a whole.
    pub fn grows_main(&self) -> bool {
        self.cut.is_none()
    }

    /// Adds the score of an object that main has dropped or compared to the cut.
    fn learn(&mut self, score: f64, weight: f64) {
        self.cut = Some(self.cut.map_or(score, |cut| cut + weight * (score - cut)));
    }

    /// Selects the objects of a segment that stay, at most [`KEPT_SHARE`] of `weighed_bytes`: those
    /// that [`weighed_bytes`] returns for its used bytes.
    pub fn select<T>(
        &mut self,
        area: Area,
        mut candidates: Vec<Candidate<T>>,
        weighed_bytes: u64,
    ) -> Selection<T> {
        // Scores are not negative, so their bits have their order.
        candidates.sort_by_cached_key(|candidate| Reverse(candidate.score().to_bits()));
        let mut left = (weighed_bytes as f64 * KEPT_SHARE) as u64;
        let mut selection = Selection { kept: Vec::new(), dropped: Vec::new() };
        for candidate in candidates {
            if candidate.bytes <= left && self.admits(area, &candidate) {
                left -= candidate.bytes;
                selection.kept.push(candidate);
            } else {
                selection.dropped.push(candidate);
            }
        }
        if area == Area::Main
            && let Some(best) = selection.dropped.first()
        {
            self.learn(best.score(), CUT_WEIGHT);
        }
        selection
    }

    /// Returns true if an object with a file of its own stays: its file then moves to the end of
    /// main's queue.
    pub fn keeps<T>(&mut self, area: Area, candidate: &Candidate<T>) -> bool {
        let stays = self.admits(area, candidate);
        if area == Area::Main {
            let weight = if stays { STAYED_WEIGHT } else { CUT_WEIGHT };
            self.learn(candidate.score(), weight);
        }
        stays
    }

    /// Counts bytes that left the window. Returns true if all numbers of requests are to be halved.
    pub fn count_written(&mut self, bytes: u64) -> bool {
        self.written_bytes += bytes;
        let is_due = self.written_bytes as f64 >= self.balance.half_life * self.capacity_bytes as f64;
        if is_due {
            self.written_bytes = 0;
            self.cut = self.cut.map(|cut| cut / 2.0);
        }
        is_due
    }
}
