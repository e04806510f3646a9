//! Size of the window, chosen by simulation: each candidate size runs in a small cache of its own,
//! which gets the requests for a sample of the objects (Waldspurger et al., "Cache Modeling and
//! Optimization using Miniature Simulations", 2017).

use super::{Simulation, WINDOW_SHARE};

/// Candidate shares of the window in the capacity. A small one is best for steady popularity, a
/// large one for popularity that shifts.
const SHARES: [f64; 4] = [0.02, WINDOW_SHARE, 0.3, 0.6];
/// Index of the share at the begin.
const FIRST: usize = 1;
/// Objects in each of the small caches, about.
const OBJECTS: u64 = 2048;
/// Segments of a small cache.
const SEGMENTS: u64 = 64;
/// The shares are compared each time that many requests were simulated.
const PERIOD_REQUESTS: u64 = 2 * OBJECTS;
/// Periods until the small caches are full.
const COLD_PERIODS: u64 = 3;
/// Weight of earlier periods.
const MEMORY: f64 = 0.9;
/// Another share is chosen if it has more hits by this factor.
const GAIN_MIN: f64 = 1.005;
/// Odd factor that makes the sample independent of the bits that tables use.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Sample of all objects: one in two to the power of the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample(u32);

impl Sample {
    /// The sample of no object.
    pub const NOTHING: Self = Self(u64::BITS);

    /// Returns true if an object is in the sample.
    pub fn has(self, hash: u64) -> bool {
        let bits = hash.wrapping_mul(MIX);
        self.0 < u64::BITS && bits.leading_zeros() >= self.0
    }

    /// Returns a number for [`Sample::from_code`].
    pub fn code(self) -> u32 {
        self.0
    }

    /// Returns the sample of a [`Sample::code`].
    pub fn from_code(code: u32) -> Self {
        Self(code)
    }
}

/// Chooses the window's share.
#[derive(Debug)]
pub struct WindowTuner {
    candidates: Vec<CandidateShare>,
    chosen: usize,
    sample: Sample,
    requests: u64,
}

#[derive(Debug)]
struct CandidateShare {
    share: f64,
    simulation: Simulation,
    /// Hits at the begin of the period.
    hits_before: u64,
    /// Hits, with those of earlier periods weighted down.
    hits: f64,
}

impl WindowTuner {
    /// Tuner for a cache of `capacity_bytes` that holds about `objects`.
    pub fn new(capacity_bytes: u64, objects: u64) -> Self {
        let sample = Sample((objects / OBJECTS).max(1).ilog2());
        let capacity_bytes = capacity_bytes >> sample.0;
        let candidate = |share| {
            let mut simulation = Simulation::new(capacity_bytes, capacity_bytes / SEGMENTS);
            simulation.set_window_share(share);
            CandidateShare { share, simulation, hits_before: 0, hits: 0.0 }
        };
        Self { candidates: SHARES.map(candidate).into(), chosen: FIRST, sample, requests: 0 }
    }

    /// Returns the chosen share.
    pub fn share(&self) -> f64 {
        self.candidates[self.chosen].share
    }

    /// Returns the sample of the simulated objects.
    pub fn sample(&self) -> Sample {
        self.sample
    }

    /// Simulates a request for an object of the sample. Returns the share if it has changed.
    pub fn request(&mut self, hash: u64, bytes: u64) -> Option<f64> {
        for candidate in &mut self.candidates {
            candidate.simulation.request(hash, bytes);
        }
        self.requests += 1;
        self.requests.is_multiple_of(PERIOD_REQUESTS).then(|| self.compare())?
    }

    fn compare(&mut self) -> Option<f64> {
        let is_cold = self.requests <= COLD_PERIODS * PERIOD_REQUESTS;
        for candidate in &mut self.candidates {
            let hits = candidate.simulation.totals().hits;
            let in_period = (hits - candidate.hits_before) as f64;
            candidate.hits = if is_cold { 0.0 } else { MEMORY * candidate.hits + in_period };
            candidate.hits_before = hits;
        }
        let by_hits =
            |one: &usize, other: &usize| self.candidates[*one].hits.total_cmp(&self.candidates[*other].hits);
        let best = (0..self.candidates.len()).max_by(by_hits)?;
        let is_better = self.candidates[best].hits > GAIN_MIN * self.candidates[self.chosen].hits;
        is_better.then(|| {
            self.chosen = best;
            self.candidates[best].share
        })
    }
}
