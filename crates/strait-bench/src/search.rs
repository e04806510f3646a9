//! Finds the highest rate without loss by bisection: the figure that compares capture systems
//! (RFC 2544 section 26.1, D1, D3). Pure: the caller makes the attempts.

use crate::error::Result;

/// Range and resolution of a search.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Lowest rate that is tried: a receiver that loses packets here has no loss-free rate.
    pub rate_pps_min: f64,
    /// Relative difference below which two rates are considered equal.
    pub resolution: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { rate_pps_min: 10_000.0, resolution: 0.03 }
    }
}

/// Tolerated share of lost packets for [`Found::tolerated_pps`].
pub const TOLERATED_LOSS: f64 = 0.001;

/// Outcome of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// Achieved rate of the generator, in packets/s.
    pub offered_pps: f64,
    /// Share of lost packets, 0 to 1.
    pub loss: f64,
}

/// Result of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Highest rate without loss, in packets/s; 0 if there is none.
    pub lossfree_pps: f64,
    /// Highest rate with a loss of at most [`TOLERATED_LOSS`].
    pub tolerated_pps: f64,
    /// True if the generator was the limit: the receiver may take more than `lossfree_pps`.
    pub generator_bound: bool,
    /// Number of attempts.
    pub tries: u32,
}

/// Finds both rates. `attempt` measures at a rate in packets/s, or at the generator's highest if
/// None. A rate that lost packets is measured once more, because the machine may have been
/// disturbed. The caller should confirm the result.
///
/// # Errors
/// Errors of `attempt`.
pub fn search(limits: &Limits, attempt: impl FnMut(Option<f64>) -> Result<Attempt>) -> Result<Found> {
    let mut search = Search { limits, attempt, tries: 0 };
    let (full, mut found) = search.lossfree()?;
    found.tolerated_pps = full.offered_pps;
    if full.loss > TOLERATED_LOSS {
        found.tolerated_pps = search.bisect(found.lossfree_pps, full.offered_pps, TOLERATED_LOSS)?;
    }
    Ok(Found { tries: search.tries, ..found })
}

/// Like [`search`], but finds only the rate without loss, which is also the tolerated rate of
/// the result.
///
/// # Errors
/// Errors of `attempt`.
pub fn search_lossfree(
    limits: &Limits,
    attempt: impl FnMut(Option<f64>) -> Result<Attempt>,
) -> Result<Found> {
    Ok(Search { limits, attempt, tries: 0 }.lossfree()?.1)
}

struct Search<'a, F> {
    limits: &'a Limits,
    attempt: F,
    tries: u32,
}

impl<F: FnMut(Option<f64>) -> Result<Attempt>> Search<'_, F> {
    /// Finds the rate without loss; returns the attempt at the highest rate too.
    fn lossfree(&mut self) -> Result<(Attempt, Found)> {
        let full = self.attempt(None, 0.0)?;
        let generator_bound = full.loss <= 0.0;
        let mut rate = full.offered_pps;
        if !generator_bound {
            rate = self.bisect(0.0, rate, 0.0)?;
        }
        let found = Found { lossfree_pps: rate, tolerated_pps: rate, generator_bound, tries: self.tries };
        Ok((full, found))
    }

    /// Tries a rate, and once more if more than `loss` was lost.
    fn attempt(&mut self, rate: Option<f64>, loss: f64) -> Result<Attempt> {
        self.tries += 1;
        let tried = (self.attempt)(rate)?;
        if tried.loss <= loss {
            return Ok(tried);
        }
        self.tries += 1;
        (self.attempt)(rate)
    }

    /// Bisects, on a logarithmic scale, between `best`, a rate with a loss of at most `loss`, and
    /// `high`, a rate with more, down to the resolution. The number of steps is therefore bounded.
    /// Returns the best rate.
    fn bisect(&mut self, mut best: f64, mut high: f64, loss: f64) -> Result<f64> {
        let mut low = best.max(self.limits.rate_pps_min);
        while high > low * (1.0 + self.limits.resolution) {
            let rate = (low * high).sqrt();
            let tried = self.attempt(Some(rate), loss)?;
            if tried.loss > loss {
                high = rate;
            } else if tried.offered_pps > low {
                // The generator may exceed the requested rate: stay below the rate that lost
                // packets.
                low = tried.offered_pps.min(high);
                best = low;
            } else {
                // The generator reaches no rate between the two.
                break;
            }
        }
        Ok(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Result with a generator that reaches `full` and a receiver that takes `limit` packets a
    /// second.
    fn found(full: f64, limit: f64) -> Found {
        search(&Limits::default(), |rate| {
            let offered_pps = rate.unwrap_or(full).min(full);
            Ok(Attempt { offered_pps, loss: (1.0 - limit / offered_pps).max(0.0) })
        })
        .unwrap()
    }

    #[test]
    fn search_approaches_the_limit_from_below() {
        let found = found(4_000_000.0, 1_300_000.0);
        assert!((1_260_000.0..=1_300_000.0).contains(&found.lossfree_pps), "{found:?}");
        assert!(found.tolerated_pps >= found.lossfree_pps && found.tolerated_pps <= 1_301_400.0, "{found:?}");
        // About eight steps for each of the two rates, half of them tried twice.
        assert!(!found.generator_bound && found.tries <= 32, "{found:?}");
    }

    #[test]
    fn receiver_without_loss_needs_one_try_and_is_generator_bound() {
        let found = found(4e6, 5e6);
        assert_eq!(found, Found { lossfree_pps: 4e6, tolerated_pps: 4e6, generator_bound: true, tries: 1 });
    }

    #[test]
    fn receiver_that_always_loses_has_no_lossfree_rate() {
        assert!(found(4e6, 10.0).lossfree_pps.abs() < f64::EPSILON);
    }

    #[test]
    fn slow_generator_ends_the_search() {
        // The generator reaches its full rate once, later only half of it.
        let mut first = true;
        let found = search(&Limits::default(), |rate| {
            let reached = if std::mem::take(&mut first) { 4e6 } else { 2e6 };
            let offered_pps = rate.unwrap_or(reached).min(reached);
            Ok(Attempt { offered_pps, loss: if offered_pps > 3e6 { 0.1 } else { 0.0 } })
        });
        assert!((found.unwrap().lossfree_pps - 2e6).abs() < 1.0);
    }

    #[test]
    fn single_loss_is_retried() {
        let mut tries = 0;
        let found = search(&Limits::default(), |_| {
            tries += 1;
            Ok(Attempt { offered_pps: 1e6, loss: if tries == 1 { 0.5 } else { 0.0 } })
        });
        assert!((found.unwrap().lossfree_pps - 1e6).abs() < 1.0);
    }

    proptest::proptest! {
        #[test]
        fn result_never_exceeds_the_receiver(full in 1e5..1e7_f64, limit in 1e3..2e7_f64) {
            let found = found(full, limit);
            proptest::prop_assert!(found.lossfree_pps <= limit.min(full));
            proptest::prop_assert!(found.lossfree_pps <= found.tolerated_pps);
            proptest::prop_assert!(found.tolerated_pps * (1.0 - TOLERATED_LOSS) <= limit);
        }
    }
}
