//! Latency outliers: finds a server with responses that begin far later than those of the others.
//! Without I/O and without a clock.
//!
//! A window is a fixed number of responses of one server. A server is an outlier if the median of
//! its time to a head, in a number of consecutive windows, is above a floor and a multiple of the
//! median of the other servers. [`crate::config::pool`] notes times and ejects.

use std::net::IpAddr;
use std::time::Duration;

use crate::config::edge;

/// Parts of a window of which one client has at most one: it can choose slow requests for a server.
const CLIENTS_MIN: usize = 4;

/// Rules for outliers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutlierRules {
    /// Multiple of the others' median.
    times: u32,
    /// Median in microseconds up to which no server is an outlier.
    floor_us: u32,
    /// Consecutive windows.
    windows: u32,
    /// Responses of a window.
    responses: usize,
}

/// Times of the responses of a server.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    /// Times of the present window in microseconds, with their clients.
    times_us: Vec<(IpAddr, u32)>,
    /// Median of the last complete window.
    median_us: Option<u32>,
    /// Consecutive windows in which the server was too slow.
    slow: u32,
}

/// Judgement of a complete window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// No window is complete, or the others have none.
    None,
    Usual,
    Slow,
    /// So many windows were slow that the server is an outlier.
    Outlier,
}

impl OutlierRules {
    pub(crate) fn new(config: &edge::Outlier) -> Self {
        Self {
            times: config.times,
            floor_us: config.floor_ms.saturating_mul(1000),
            windows: config.windows,
            responses: config.responses as usize,
        }
    }
}

impl Latency {
    /// Adds the time of a request of `client`, unless the window has its share of those already.
    /// Returns the median of the window that it completes.
    pub(crate) fn add(&mut self, rules: OutlierRules, client: IpAddr, time: Duration) -> Option<u32> {
        let share = (rules.responses / CLIENTS_MIN).max(1);
        if self.times_us.iter().filter(|(other, _)| *other == client).count() >= share {
            return None;
        }
        self.times_us.push((client, u32::try_from(time.as_micros()).unwrap_or(u32::MAX)));
        if self.times_us.len() < rules.responses {
            return None;
        }
        let mut times_us: Vec<_> = self.times_us.drain(..).map(|(_, time_us)| time_us).collect();
        self.median_us = median(&mut times_us);
        self.median_us
    }

    /// Returns the median of the last complete window.
    pub(crate) fn median_us(&self) -> Option<u32> {
        self.median_us
    }

    /// Judges a window by its median and those of the other servers.
    pub(crate) fn judge(&mut self, rules: OutlierRules, own_us: u32, others_us: &mut [u32]) -> Judgement {
        let Some(usual_us) = median(others_us) else { return Judgement::None };
        if own_us <= rules.floor_us || u64::from(own_us) <= u64::from(usual_us) * u64::from(rules.times) {
            self.slow = 0;
            return Judgement::Usual;
        }
        self.slow = self.slow.saturating_add(1);
        if self.slow < rules.windows { Judgement::Slow } else { Judgement::Outlier }
    }

    /// Forgets the times of the present window, but not the slow windows: after its return, the
    /// next slow window makes the server an outlier again. The median stays in the comparison with
    /// the others: without it, the next slowest server would be an outlier.
    pub(crate) fn forget_times(&mut self) {
        self.times_us.clear();
    }
}

/// Returns the upper median, so that of two other servers the slower one counts.
fn median(times_us: &mut [u32]) -> Option<u32> {
    let middle = times_us.len() / 2;
    if times_us.is_empty() {
        return None;
    }
    Some(*times_us.select_nth_unstable(middle).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: OutlierRules = OutlierRules { times: 5, floor_us: 1000, windows: 3, responses: 5 };

    fn client(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    /// Adds a window with these times in milliseconds, and judges it.
    fn window(latency: &mut Latency, times_ms: [u64; 5], others_us: &[u32]) -> Judgement {
        let medians: Vec<_> = (0..)
            .zip(times_ms)
            .filter_map(|(last, ms)| latency.add(RULES, client(last), Duration::from_millis(ms)))
            .collect();
        assert_eq!(medians.len(), 1);
        latency.judge(RULES, medians[0], &mut others_us.to_vec())
    }

    #[test]
    fn outlier_is_slow_in_consecutive_windows() {
        use Judgement::{Outlier, Slow, Usual};
        let mut latency = Latency::default();
        let (slow, usual) = ([51; 5], [9, 9, 10, 500, 500]);
        let mut judged = Vec::new();
        for times in [slow, slow, usual, slow, slow, slow, slow, usual, slow] {
            judged.push(window(&mut latency, times, &[10_000, 10_000]));
        }
        assert_eq!(judged, [Slow, Slow, Usual, Slow, Slow, Outlier, Outlier, Usual, Slow]);
        assert_eq!(latency.median_us(), Some(51_000));
    }

    #[test]
    fn window_is_compared_with_the_median_of_the_others() {
        for (time_ms, others_us, is_slow) in [
            (50, &[10_000][..], false),
            (51, &[10_000], true),
            // Of two others the slower one counts, so that at most half of the servers are slow.
            (60, &[1_000, 50_000], false),
            (60, &[1_000, 1_000, 50_000], true),
            // Not above the floor.
            (1, &[10, 10], false),
            (2, &[10, 10], true),
            (2, &[0, 0], true),
        ] {
            let judged = window(&mut Latency::default(), [time_ms; 5], others_us);
            assert_eq!(judged == Judgement::Slow, is_slow, "{time_ms} {others_us:?}");
        }
        assert_eq!(window(&mut Latency::default(), [99; 5], &[]), Judgement::None);
        let mut latency = Latency::default();
        assert!(latency.add(RULES, client(0), Duration::MAX).is_none() && latency.median_us().is_none());
    }

    #[test]
    fn client_has_at_most_a_quarter_of_a_window() {
        let rules = OutlierRules { responses: 32, ..RULES };
        let mut latency = Latency::default();
        let mut add = |last, ms| latency.add(rules, client(last), Duration::from_millis(ms));
        assert!((0..1000).all(|_| add(1, 900).is_none()));
        assert!((0..23).all(|at| add(2 + at % 3, 20).is_none()));
        assert_eq!(add(4, 20), Some(20_000));
    }

    #[test]
    fn outlier_that_is_slow_again_after_its_return_needs_one_window() {
        let mut latency = Latency::default();
        (0..3).for_each(|_| _ = window(&mut latency, [99; 5], &[1000]));
        latency.add(RULES, client(0), Duration::from_millis(99));
        latency.forget_times();
        assert_eq!(latency.median_us(), Some(99_000));
        assert_eq!(window(&mut latency, [99; 5], &[1000]), Judgement::Outlier);
    }
}
