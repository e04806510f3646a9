//! How old a stored response is and until when it is fresh (RFC 9111, section 4.2).
//!
//! Times are seconds since 1970, by the clock of the caller.

use crate::cache_control::{OfResponse, SECONDS_MAX};
use crate::fields::Fields;

/// Without an explicit lifetime a response is fresh for this part of the time since it was last changed (RFC 9111, section 4.2.2)...
const HEURISTIC_PART: u64 = 10;
/// ...and for a day at most.
const HEURISTIC_MAX: u64 = 24 * 60 * 60;

/// What of a response its age and freshness follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// When its request was sent.
    pub requested: u64,
    /// When it came.
    pub received: u64,
    /// Its Date; where it has none, when it came (RFC 9110, section 6.6.1).
    pub date: u64,
    /// Its Age.
    pub age: u64,
    /// Seconds for which it is fresh.
    pub lifetime: u64,
}

impl Times {
    /// Of a response that was requested and received then.
    pub fn of(
        status: u16,
        fields: &Fields<'_>,
        directives: &OfResponse,
        requested: u64,
        received: u64,
    ) -> Self {
        let date = date_of(fields, "date").unwrap_or(received);
        let age = age_of(fields);
        Self { requested, received, date, age, lifetime: lifetime(status, fields, directives, date) }
    }

    /// The same, where a 404 or 410 that tells no lifetime of its own is fresh for so many seconds: negative caching, which is for whoever
    /// runs the cache to choose, as any heuristic is (RFC 9111, section 4.2.2).
    #[must_use]
    pub fn with_negative(
        self,
        status: u16,
        fields: &Fields<'_>,
        directives: &OfResponse,
        seconds: u64,
    ) -> Self {
        let is_told =
            directives.s_maxage.or(directives.max_age).is_some() || tells_expiry(fields, directives);
        let is_negative = matches!(status, 404 | 410) && !is_told;
        Self { lifetime: if is_negative { seconds } else { self.lifetime }, ..self }
    }

    /// Its age (RFC 9111, section 4.2.3).
    pub fn age_at(&self, now: u64) -> u64 {
        let apparent = self.received.saturating_sub(self.date);
        let delay = self.received.saturating_sub(self.requested);
        let corrected = self.age.saturating_add(delay);
        apparent.max(corrected).saturating_add(now.saturating_sub(self.received))
    }

    /// Seconds that it stays fresh; 0 once it is stale.
    pub fn fresh_for(&self, now: u64) -> u64 {
        self.lifetime.saturating_sub(self.age_at(now))
    }

    /// Seconds by which it is stale; 0 while it is fresh.
    pub fn stale_by(&self, now: u64) -> u64 {
        self.age_at(now).saturating_sub(self.lifetime)
    }

    /// Seconds until it is stale, negative once it is: the `ttl` of Cache-Status (RFC 9211, section 2.4).
    pub fn ttl(&self, now: u64) -> i64 {
        let signed = |seconds| i64::try_from(seconds).unwrap_or(i64::MAX);
        signed(self.fresh_for(now)) - signed(self.stale_by(now))
    }

    /// What the most recent of several responses has the most of (RFC 9111, section 4): its Date, then when it came. A Date after its
    /// receipt is that of a fast clock, and counts as the receipt: no response can stand before all later ones for longer than that.
    pub fn recency(&self) -> (u64, u64) {
        (self.date.min(self.received), self.received)
    }

    /// Returns true if a response takes the place of another to the same requests: it was asked for after the other had come, or is not
    /// less recent. An origin whose clock was set back, or one of several, is believed so; of two that were on their way together the
    /// Date decides.
    pub fn supersedes(&self, other: &Self) -> bool {
        other.received <= self.requested || self.recency() >= other.recency()
    }

    /// Whether it is fresh (RFC 9111, section 4.2): its lifetime is greater than its age.
    pub fn is_fresh(&self, now: u64) -> bool {
        self.lifetime > self.age_at(now)
    }
}

/// RFC 9111 s4.2.1, of a shared cache: s-maxage, max-age, Expires; else a guess.
fn lifetime(status: u16, fields: &Fields<'_>, directives: &OfResponse, date: u64) -> u64 {
    if let Some(seconds) = directives.s_maxage.or(directives.max_age) {
        return seconds;
    }
    // RFC 9111 s5.3: what is no date is in the past.
    if tells_expiry(fields, directives) {
        return date_of(fields, "expires").map_or(0, |expires| expires.saturating_sub(date));
    }
    let may_guess = directives.public || is_heuristically_cacheable(status);
    match date_of(fields, "last-modified") {
        Some(modified) if may_guess => (date.saturating_sub(modified) / HEURISTIC_PART).min(HEURISTIC_MAX),
        _ => 0,
    }
}

/// Whether Expires counts: where nothing that is meant for this cache stands in its place.
pub(crate) fn tells_expiry(fields: &Fields<'_>, directives: &OfResponse) -> bool {
    fields.has("expires") && !directives.targeted
}

/// Statuses that may be stored without being told so (RFC 9110, section 15.1).
pub fn is_heuristically_cacheable(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// RFC 9111 s5.1: the first of several; what is no number is none.
fn age_of(fields: &Fields<'_>) -> u64 {
    let first = fields.elements("age").next();
    first
        .filter(|age| age.bytes().all(|byte| byte.is_ascii_digit()))
        .map_or(0, |age| age.parse().unwrap_or(SECONDS_MAX).min(SECONDS_MAX))
}

/// The date in a field, in any of the three forms (RFC 9110, section 5.6.7).
pub fn date_of(fields: &Fields<'_>, name: &str) -> Option<u64> {
    let text = fields.one(name)?;
    // Nearly all dates have the right case already.
    let parsed = httpdate::parse_http_date(text).or_else(|_| httpdate::parse_http_date(&in_case(text)));
    Some(parsed.ok()?.duration_since(std::time::UNIX_EPOCH).ok()?.as_secs())
}

/// The text with the case that dates are defined to have, for RFC 9111 s4.2 wants them compared without regard to case.
fn in_case(date: &str) -> String {
    let mut is_inside = false;
    let cased = date.chars().map(|char| {
        let first = !std::mem::replace(&mut is_inside, char.is_ascii_alphabetic());
        if first { char.to_ascii_uppercase() } else { char.to_ascii_lowercase() }
    });
    let cased: String = cased.collect();
    cased.strip_suffix("Gmt").map_or_else(|| cased.clone(), |rest| format!("{rest}GMT"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fields::tests::fields;

    const DATE: u64 = 784_111_777;

    fn times(status: u16, lines: &[(&'static str, &'static str)], requested: u64, received: u64) -> Times {
        let fields = fields(lines);
        Times::of(status, &fields, &OfResponse::of(&fields), requested, received)
    }

    #[test]
    fn the_age_counts_what_passed_before_it_came() {
        let dated = [("Date", "Sun, 06 Nov 1994 08:49:37 GMT"), ("Age", "10")];
        let times = times(200, &dated, DATE + 3, DATE + 5);
        // 10 s told and 2 s on the way are more than the 5 s by the clocks.
        assert_eq!((times.date, times.age_at(DATE + 5), times.age_at(DATE + 8)), (DATE, 12, 15));
        let late = super::tests::times(200, &dated, DATE + 99, DATE + 100);
        assert_eq!(late.age_at(DATE + 100), 100);
    }

    #[test]
    fn a_date_counts_in_any_case_and_in_gmt_alone() {
        let read = |date: &str| date_of(&fields(&[("Expires", date)]), "expires");
        for date in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "sun, 06 nov 1994 08:49:37 gmt",
            "SUN, 06 NOV 1994 08:49:37 Gmt",
            "SUNDAY, 06-nov-94 08:49:37 gmt",
            "sun nOV  6 08:49:37 1994",
        ] {
            assert_eq!(read(date), Some(DATE), "{date}");
        }
        for zone in ["UTC", "EST", "+0000", "Z", ""] {
            assert_eq!(read(&format!("Sun, 06 Nov 1994 08:49:37 {zone}")), None, "{zone}");
        }
    }

    #[test]
    fn a_lifetime_is_what_is_told_first_in_order() {
        let date = ("Date", "Sun, 06 Nov 1994 08:49:37 GMT");
        let expires = ("Expires", "Sunday, 06-Nov-94 08:50:37 GMT");
        let of = |status, lines: &[(&'static str, &'static str)]| times(status, lines, DATE, DATE).lifetime;
        assert_eq!(of(200, &[date, expires]), 60);
        assert_eq!(of(200, &[date, expires, ("Cache-Control", "max-age=5")]), 5);
        assert_eq!(of(200, &[date, expires, ("Cache-Control", "max-age=5, s-maxage=7")]), 7);
        assert_eq!(of(200, &[date, ("Expires", "0"), ("Last-Modified", "Sun, 06 Nov 1994 08:00:00 GMT")]), 0);
        // An hour ago: six minutes; a year ago: a day.
        let modified = ("Last-Modified", "Sun, 06 Nov 1994 07:49:37 GMT");
        assert_eq!(of(200, &[date, modified]), 360);
        assert_eq!(of(200, &[date, ("Last-Modified", "Sat, 06 Nov 1993 08:49:37 GMT")]), HEURISTIC_MAX);
        assert_eq!(of(302, &[date, modified]), 0);
        assert_eq!(of(302, &[date, modified, ("Cache-Control", "public")]), 360);
    }

    #[test]
    fn an_age_is_the_first_number_that_is_told() {
        for (age, expected) in
            [("7", 7), ("7, 9", 7), ("x", 0), ("-1", 0), ("x, 9", 0), ("99999999999999999999", SECONDS_MAX)]
        {
            assert_eq!(times(200, &[("Age", age)], 5, 5).age_at(5), expected, "{age}");
        }
    }

    #[test]
    fn what_is_not_there_is_fresh_for_as_long_as_was_chosen() {
        let of = |status, lines: &[(&'static str, &'static str)]| {
            let (fields, all) = (fields(lines), times(status, lines, DATE, DATE));
            all.with_negative(status, &fields, &OfResponse::of(&fields), 9).lifetime
        };
        assert_eq!((of(404, &[]), of(410, &[]), of(200, &[]), of(500, &[])), (9, 9, 0, 0));
        assert_eq!((of(404, &[("Cache-Control", "max-age=2")]), of(404, &[("Expires", "0")])), (2, 0));
    }

    #[test]
    fn a_lifetime_meant_for_this_cache_leaves_expires_out() {
        let expires = ("Expires", "Sun, 06 Nov 1994 08:50:37 GMT");
        let date = ("Date", "Sun, 06 Nov 1994 08:49:37 GMT");
        let of = |value| times(200, &[date, expires, ("CDN-Cache-Control", value)], DATE, DATE).lifetime;
        assert_eq!((of("public"), of(""), of("max-age=3")), (0, 60, 3));
    }

    #[test]
    fn the_most_recent_is_found_by_date_and_a_fast_clock_wins_nothing() {
        let of = |date, requested, received| Times { requested, received, date, age: 0, lifetime: 0 };
        // Date, then receipt.
        assert!(of(50, 90, 100).recency() > of(49, 91, 101).recency());
        assert!(of(50, 90, 101).recency() > of(50, 90, 100).recency());
        assert!(of(9999, 90, 100).recency() < of(101, 100, 101).recency());
    }

    #[test]
    fn a_later_request_supersedes_whatever_the_dates_say() {
        let of = |date, requested, received| Times { requested, received, date, age: 0, lifetime: 0 };
        let stored = of(90, 90, 100);
        for (new, expected) in [
            (of(50, 100, 101), true),
            // They were on their way together.
            (of(89, 99, 101), false),
            (of(90, 99, 101), true),
            (of(90, 89, 99), false),
            (of(91, 89, 99), true),
        ] {
            assert_eq!(new.supersedes(&stored), expected, "{new:?}");
        }
    }

    #[test]
    fn the_time_to_live_is_negative_in_what_is_stale() {
        let times = times(200, &[("Cache-Control", "max-age=10")], DATE, DATE);
        assert_eq!((times.ttl(DATE + 3), times.ttl(DATE + 10), times.ttl(DATE + 12)), (7, 0, -2));
    }

    proptest! {
        /// It is fresh or stale, by as much, and never gets younger.
        #[test]
        fn time_goes_one_way(requested: u32, delay: u16, date: u32, age: u32, lifetime: u32, later: u32, more: u16) {
            let (requested, received) = (u64::from(requested), u64::from(requested) + u64::from(delay));
            let times = Times { requested, received, date: date.into(), age: age.into(), lifetime: lifetime.into() };
            let now = received + u64::from(later);
            prop_assert_eq!(times.is_fresh(now), times.fresh_for(now) > 0);
            prop_assert!(times.fresh_for(now) == 0 || times.stale_by(now) == 0);
            prop_assert_eq!(times.age_at(now + u64::from(more)), times.age_at(now) + u64::from(more));
            prop_assert!(times.age_at(now) >= u64::from(delay));
        }
    }
}
