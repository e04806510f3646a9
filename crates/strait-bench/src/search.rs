//! The highest rate without loss, by bisection: the figure by which capture systems are compared (RFC 2544 section 26.1,
//! D1, D3). Pure: whoever calls it makes the tries.

use crate::error::Result;

/// Where a search looks, and how closely.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// No lower rate is tried: a receiver that loses here has no loss-free rate.
    pub rate_pps_min: f64,
    /// Two rates that differ by less than this share are one.
    pub resolution: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { rate_pps_min: 10_000.0, resolution: 0.03 }
    }
}

/// The share of packets that may be lost at the second rate that is looked for.
pub const TOLERATED_LOSS: f64 = 0.001;

/// One try at a rate.
#[derive(Clone, Copy, Debug)]
pub struct Try {
    /// What the generator achieved, in packets/s.
    pub offered_pps: f64,
    /// The share of packets that was lost, 0 to 1.
    pub loss: f64,
}

/// What a search found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The highest rate at which nothing was lost, in packets/s; 0 if there was none.
    pub lossfree_pps: f64,
    /// The highest rate at which no more than [`TOLERATED_LOSS`] was lost.
    pub tolerated_pps: f64,
    /// Whether the generator was the limit: the receiver could take more than `lossfree_pps`.
    pub generator_bound: bool,
    /// Tries that it took.
    pub tries: u32,
}

/// Looks for both rates. `attempt` tries a rate in packets/s, or as fast as the generator goes. A rate that lost is tried
/// once more: the machine's own hiccups are not the receiver's. It is for the caller to confirm what was found.
///
/// # Errors
/// Those of `attempt`.
pub fn search(limits: &Limits, attempt: impl FnMut(Option<f64>) -> Result<Try>) -> Result<Found> {
    let mut search = Search { limits, attempt, tries: 0 };
    let full = search.attempt(None, 0.0)?;
    let generator_bound = full.loss <= 0.0;
    let (mut lossfree_pps, mut tolerated_pps) = (full.offered_pps, full.offered_pps);
    if !generator_bound {
        lossfree_pps = search.bisect(0.0, full.offered_pps, 0.0)?;
        if full.loss > TOLERATED_LOSS {
            tolerated_pps = search.bisect(lossfree_pps, full.offered_pps, TOLERATED_LOSS)?;
        }
    }
    Ok(Found { lossfree_pps, tolerated_pps, generator_bound, tries: search.tries })
}

struct Search<'a, F> {
    limits: &'a Limits,
    attempt: F,
    tries: u32,
}

impl<F: FnMut(Option<f64>) -> Result<Try>> Search<'_, F> {
    /// Tries a rate, and once more where more than `loss` was lost.
    fn attempt(&mut self, rate: Option<f64>, loss: f64) -> Result<Try> {
        self.tries += 1;
        let tried = (self.attempt)(rate)?;
        if tried.loss <= loss {
            return Ok(tried);
        }
        self.tries += 1;
        (self.attempt)(rate)
    }

    /// Halves, on a logarithmic scale, the gap between `best`, a rate that lost no more than `loss`, and `high`, one that
    /// lost more, until it is as narrow as the resolution; so the number of steps is bounded. Returns the best rate.
    fn bisect(&mut self, mut best: f64, mut high: f64, loss: f64) -> Result<f64> {
        let mut low = best.max(self.limits.rate_pps_min);
        while high > low * (1.0 + self.limits.resolution) {
            let rate = (low * high).sqrt();
            let tried = self.attempt(Some(rate), loss)?;
            if tried.loss > loss {
                high = rate;
            } else if tried.offered_pps > low {
                // Never past what was seen to lose, should the generator have been faster than it was told.
                low = tried.offered_pps.min(high);
                best = low;
            } else {
                // The generator does not reach any rate between the two.
                break;
            }
        }
        Ok(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator that reaches `full`, and a receiver that takes `limit` packets a second and loses the rest.
    fn found(full: f64, limit: f64) -> Found {
        search(&Limits::default(), |rate| {
            let offered_pps = rate.unwrap_or(full).min(full);
            Ok(Try { offered_pps, loss: (1.0 - limit / offered_pps).max(0.0) })
        })
        .unwrap()
    }

    #[test]
    fn it_comes_close_from_below() {
        let found = found(4_000_000.0, 1_300_000.0);
        assert!((1_260_000.0..=1_300_000.0).contains(&found.lossfree_pps), "{found:?}");
        assert!(found.tolerated_pps >= found.lossfree_pps && found.tolerated_pps <= 1_301_400.0, "{found:?}");
        // Some eight halvings for each of the two rates, half of them tried twice.
        assert!(!found.generator_bound && found.tries <= 32, "{found:?}");
    }

    #[test]
    fn a_receiver_that_takes_all_needs_one_try_and_is_said_to() {
        let found = found(4e6, 5e6);
        assert_eq!(found, Found { lossfree_pps: 4e6, tolerated_pps: 4e6, generator_bound: true, tries: 1 });
    }

    #[test]
    fn a_receiver_that_always_loses_has_no_such_rate() {
        assert!(found(4e6, 10.0).lossfree_pps.abs() < f64::EPSILON);
    }

    #[test]
    fn a_generator_that_stays_behind_ends_the_search() {
        // It reaches its full rate once and no more than half of it after that.
        let mut first = true;
        let found = search(&Limits::default(), |rate| {
            let reached = if std::mem::take(&mut first) { 4e6 } else { 2e6 };
            let offered_pps = rate.unwrap_or(reached).min(reached);
            Ok(Try { offered_pps, loss: if offered_pps > 3e6 { 0.1 } else { 0.0 } })
        });
        assert!((found.unwrap().lossfree_pps - 2e6).abs() < 1.0);
    }

    #[test]
    fn one_hiccup_is_forgiven() {
        let mut tries = 0;
        let found = search(&Limits::default(), |_| {
            tries += 1;
            Ok(Try { offered_pps: 1e6, loss: if tries == 1 { 0.5 } else { 0.0 } })
        });
        assert!((found.unwrap().lossfree_pps - 1e6).abs() < 1.0);
    }

    proptest::proptest! {
        #[test]
        fn no_rate_that_lost_is_ever_found(full in 1e5..1e7_f64, limit in 1e3..2e7_f64) {
            let found = found(full, limit);
            proptest::prop_assert!(found.lossfree_pps <= limit.min(full));
            proptest::prop_assert!(found.lossfree_pps <= found.tolerated_pps);
            proptest::prop_assert!(found.tolerated_pps * (1.0 - TOLERATED_LOSS) <= limit);
        }
    }
}
