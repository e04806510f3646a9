//! Balance of recency and frequency, chosen by simulation: each candidate runs in a small cache of
//! its own, which gets the requests for a sample of the objects (Waldspurger et al., "Cache
//! Modeling and Optimization using Miniature Simulations", 2017).

use super::{Balance, Simulation};

/// Candidates: window's share and half-life. The first is best for loops, the last for popularity
/// that shifts fast.
const BALANCES: [(f64, f64); 4] = [(0.02, 8.0), (0.1, 8.0), (0.1, 2.0), (0.6, 0.125)];
/// Index of the candidate at the begin: [`Balance::default`].
const FIRST: usize = 1;
/// Objects in each of the small caches, about.
const OBJECTS: u64 = 2048;
/// Segments of a small cache.
const SEGMENTS: u64 = 64;
/// The candidates are compared each time that many requests were simulated.
const PERIOD_REQUESTS: u64 = OBJECTS / 2;
/// Weight of earlier periods.
const MEMORY: f64 = 0.9;
/// Another candidate is chosen if it has more hits by this factor.
const GAIN_MIN: f64 = 1.01;
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

/// Chooses the balance.
#[derive(Debug)]
pub struct Tuner {
    candidates: Vec<Candidate>,
    chosen: usize,
    sample: Sample,
    requests: u64,
}

#[derive(Debug)]
struct Candidate {
    balance: Balance,
    simulation: Simulation,
    /// Hits at the begin of the period.
    hits_before: u64,
    /// Hits, with those of earlier periods weighted down.
    hits: f64,
}

impl Tuner {
    /// Tuner for a cache of `capacity_bytes` that holds about `objects`.
    pub fn new(capacity_bytes: u64, objects: u64) -> Self {
        let sample = Sample((objects / OBJECTS).max(1).ilog2());
        let capacity_bytes = capacity_bytes >> sample.0;
        let candidate = |(window_share, half_life)| {
            let balance = Balance { window_share, half_life };
            let simulation = Simulation::with_balance(capacity_bytes, capacity_bytes / SEGMENTS, balance);
            Candidate { balance, simulation, hits_before: 0, hits: 0.0 }
        };
        Self { candidates: BALANCES.map(candidate).into(), chosen: FIRST, sample, requests: 0 }
    }

    /// Returns the chosen balance.
    pub fn balance(&self) -> Balance {
        self.candidates[self.chosen].balance
    }

    /// Returns the sample of the simulated objects.
    pub fn sample(&self) -> Sample {
        self.sample
    }

    /// Simulates a request for an object of the sample. Returns the balance if it has changed.
    pub fn request(&mut self, hash: u64, bytes: u64) -> Option<Balance> {
        for candidate in &mut self.candidates {
            candidate.simulation.request(hash, bytes);
        }
        self.requests += 1;
        self.requests.is_multiple_of(PERIOD_REQUESTS).then(|| self.compare())?
    }

    fn compare(&mut self) -> Option<Balance> {
        for candidate in &mut self.candidates {
            let hits = candidate.simulation.totals().hits;
            let in_period = (hits - candidate.hits_before) as f64;
            candidate.hits = MEMORY * candidate.hits + in_period;
            candidate.hits_before = hits;
        }
        let by_hits =
            |one: &usize, other: &usize| self.candidates[*one].hits.total_cmp(&self.candidates[*other].hits);
        let best = (0..self.candidates.len()).max_by(by_hits)?;
        let is_better = self.candidates[best].hits > GAIN_MIN * self.candidates[self.chosen].hits;
        is_better.then(|| {
            self.chosen = best;
            self.candidates[best].balance
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT_BYTES: u64 = 1000;

    /// Returns the balance after these requests, for a cache of so many objects that all are in the
    /// sample.
    fn balance_after(requests: impl Iterator<Item = u64>) -> Balance {
        let mut tuner = Tuner::new(OBJECTS * OBJECT_BYTES, OBJECTS);
        assert_eq!(tuner.sample(), Sample(0));
        for object in requests {
            tuner.request(object.wrapping_mul(MIX), OBJECT_BYTES);
        }
        tuner.balance()
    }

    #[test]
    fn loop_over_more_objects_than_fit_makes_the_window_small() {
        let balance = balance_after((0..40 * OBJECTS).map(|number| number % (OBJECTS * 5 / 4)));
        assert_eq!(balance, Balance { window_share: 0.02, half_life: 8.0 });
    }

    #[test]
    fn objects_that_are_requested_for_a_short_time_make_the_half_life_short() {
        // Each object is requested once in a while, until as many others were new as fill half the
        // cache.
        let requests = (0..40 * OBJECTS).map(|number| number / 4 + (number * 7919) % (OBJECTS / 2));
        assert_eq!(balance_after(requests), Balance { window_share: 0.6, half_life: 0.125 });
    }

    #[test]
    fn requests_without_hits_change_nothing() {
        assert_eq!(balance_after(0..10 * OBJECTS), Balance::default());
    }
}
