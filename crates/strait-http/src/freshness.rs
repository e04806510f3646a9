//! Age and freshness of a stored response (RFC 9111, section 4.2).
//!
//! Times are seconds since 1970, by the clock of the caller.

use crate::cache_control::{OfResponse, SECONDS_MAX};
use crate::fields::Fields;

/// Divisor of the heuristic lifetime: a tenth of the time since the last change (RFC 9111, section
/// 4.2.2).
const HEURISTIC_PART: u64 = 10;
/// Limit of the heuristic lifetime: one day.
const HEURISTIC_MAX: u64 = 24 * 60 * 60;

/// Times that determine the age and the freshness of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Time at which the request was sent.
    pub requested: u64,
    /// Time at which the response was received.
    pub received: u64,
    /// Date of the response; the time of receipt if it is absent (RFC 9110, section 6.6.1).
    pub date: u64,
    /// Age field of the response in seconds.
    pub age: u64,
    /// Freshness lifetime in seconds.
    pub lifetime: u64,
    /// Time from which on it is stale, whatever its lifetime: the operator has decided so.
    pub expired: Option<u64>,
}

impl Times {
    /// Times of a response that was requested and received at the given times.
    pub fn of(
        status: u16,
        fields: &Fields<'_>,
        directives: &OfResponse,
        requested: u64,
        received: u64,
    ) -> Self {
        let date = date_of(fields, "date").unwrap_or(received);
        let age = age_of(fields);
        let lifetime = lifetime(status, fields, directives, date);
        Self { requested, received, date, age, lifetime, expired: None }
    }

    /// Age at `now` in seconds (RFC 9111, section 4.2.3).
    pub fn age_at(&self, now: u64) -> u64 {
        let apparent = self.received.saturating_sub(self.date);
        let delay = self.received.saturating_sub(self.requested);
        let corrected = self.age.saturating_add(delay);
        apparent.max(corrected).saturating_add(now.saturating_sub(self.received))
    }

    /// Seconds until the response is stale; 0 if it is stale.
    pub fn fresh_for(&self, now: u64) -> u64 {
        if self.expired.is_some() { 0 } else { self.lifetime.saturating_sub(self.age_at(now)) }
    }

    /// Seconds since the response became stale; 0 if it is fresh.
    pub fn stale_by(&self, now: u64) -> u64 {
        let expired = self.expired.map_or(u64::MAX, |at| self.age_at(at));
        self.age_at(now).saturating_sub(self.lifetime.min(expired))
    }

    /// Returns the time of the decision that the response is stale, if it holds for a response that
    /// was requested at `requested` as well: that may be as old, also in the same second.
    pub fn expired_for(&self, requested: u64) -> Option<u64> {
        self.expired.filter(|at| requested <= *at)
    }

    /// Seconds until the response is stale, negative if it is: the `ttl` of Cache-Status (RFC 9211,
    /// section 2.4).
    pub fn ttl(&self, now: u64) -> i64 {
        let signed = |seconds| i64::try_from(seconds).unwrap_or(i64::MAX);
        signed(self.fresh_for(now)) - signed(self.stale_by(now))
    }

    /// Sort key for the most recent response (RFC 9111, section 4): Date, then time of receipt. A
    /// Date later than the time of receipt comes from a fast clock; the time of receipt is used
    /// instead, so that no response ranks before all later ones for long.
    pub fn recency(&self) -> (u64, u64) {
        (self.date.min(self.received), self.received)
    }

    /// Returns true if this response replaces `other` for the same requests: it was requested after
    /// `other` was received, or is not less recent. So an origin with a clock that was set back, or
    /// one of several clocks, is trusted. Date decides between two concurrent responses.
    pub fn supersedes(&self, other: &Self) -> bool {
        other.received <= self.requested || self.recency() >= other.recency()
    }

    /// Returns true if the response is fresh (RFC 9111, section 4.2): its lifetime is greater than
    /// its age.
    pub fn is_fresh(&self, now: u64) -> bool {
        self.expired.is_none() && self.lifetime > self.age_at(now)
    }
}

/// Freshness lifetime for a shared cache (RFC 9111 s4.2.1): s-maxage, max-age, Expires, or a
/// heuristic.
fn lifetime(status: u16, fields: &Fields<'_>, directives: &OfResponse, date: u64) -> u64 {
    if let Some(seconds) = directives.s_maxage.or(directives.max_age) {
        return seconds;
    }
    // RFC 9111 s5.3: an invalid date is in the past.
    if expires_applies(fields, directives) {
        return date_of(fields, "expires").map_or(0, |expires| expires.saturating_sub(date));
    }
    let may_guess = directives.public || is_heuristically_cacheable(status);
    match date_of(fields, "last-modified") {
        Some(modified) if may_guess => (date.saturating_sub(modified) / HEURISTIC_PART).min(HEURISTIC_MAX),
        _ => 0,
    }
}

/// Returns true if a response has an explicit lifetime.
pub(crate) fn is_explicit(fields: &Fields<'_>, directives: &OfResponse) -> bool {
    directives.s_maxage.or(directives.max_age).is_some() || expires_applies(fields, directives)
}

/// Returns true if Expires applies: it is present, and no targeted field replaces it.
pub(crate) fn expires_applies(fields: &Fields<'_>, directives: &OfResponse) -> bool {
    fields.has("expires") && !directives.targeted
}

/// Returns true for statuses that may be stored without an explicit lifetime (RFC 9110, section
/// 15.1).
pub fn is_heuristically_cacheable(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 206 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// Returns the value of Age (RFC 9111, section 5.1): the first of several; 0 if it is invalid.
pub fn age_of(fields: &Fields<'_>) -> u64 {
    let first = fields.elements("age").next();
    first
        .filter(|age| age.bytes().all(|byte| byte.is_ascii_digit()))
        .map_or(0, |age| age.parse().unwrap_or(SECONDS_MAX).min(SECONDS_MAX))
}

/// Date in a field, in any of the three forms (RFC 9110, section 5.6.7).
pub fn date_of(fields: &Fields<'_>, name: &str) -> Option<u64> {
    let text = fields.one(name)?;
    // Nearly all dates have the right case already.
    let parsed = httpdate::parse_http_date(text).or_else(|_| httpdate::parse_http_date(&in_case(text)));
    Some(parsed.ok()?.duration_since(std::time::UNIX_EPOCH).ok()?.as_secs())
}

/// Converts a date to the defined case, because RFC 9111 s4.2 asks for a comparison that ignores
/// case.
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
    fn age_includes_the_time_before_receipt() {
        let dated = [("Date", "Sun, 06 Nov 1994 08:49:37 GMT"), ("Age", "10")];
        let times = times(200, &dated, DATE + 3, DATE + 5);
        // Age and delay are 10 s + 2 s, more than the 5 s between the clocks.
        assert_eq!((times.date, times.age_at(DATE + 5), times.age_at(DATE + 8)), (DATE, 12, 15));
        let late = super::tests::times(200, &dated, DATE + 99, DATE + 100);
        assert_eq!(late.age_at(DATE + 100), 100);
    }

    #[test]
    fn expired_response_is_stale_from_that_time_on_whatever_the_clock() {
        let fresh =
            Times { requested: 1000, received: 1000, date: 1000, age: 5, lifetime: 60, expired: None };
        let expired = Times { expired: Some(1020), ..fresh };
        assert!(fresh.is_fresh(1020) && fresh.stale_by(1020) == 0);
        for now in [0, 1000, 1019, 1020, 1030, 5000] {
            assert!(!expired.is_fresh(now) && expired.fresh_for(now) == 0, "{now}");
        }
        assert_eq!([1010, 1020, 1030].map(|now| expired.stale_by(now)), [0, 0, 10]);
        // Its lifetime had ended before.
        assert_eq!(Times { expired: Some(1100), ..fresh }.stale_by(1100), 45);
        assert_eq!([1019, 1020, 1021].map(|at| expired.expired_for(at)), [Some(1020), Some(1020), None]);
    }

    #[test]
    fn dates_are_read_in_any_case_and_in_gmt_only() {
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
    fn lifetime_follows_the_order_of_precedence() {
        let date = ("Date", "Sun, 06 Nov 1994 08:49:37 GMT");
        let expires = ("Expires", "Sunday, 06-Nov-94 08:50:37 GMT");
        let of = |status, lines: &[(&'static str, &'static str)]| times(status, lines, DATE, DATE).lifetime;
        assert_eq!(of(200, &[date, expires]), 60);
        assert_eq!(of(200, &[date, expires, ("Cache-Control", "max-age=5")]), 5);
        assert_eq!(of(200, &[date, expires, ("Cache-Control", "max-age=5, s-maxage=7")]), 7);
        assert_eq!(of(200, &[date, ("Expires", "0"), ("Last-Modified", "Sun, 06 Nov 1994 08:00:00 GMT")]), 0);
        // Changed an hour ago: six minutes. Changed a year ago: a day.
        let modified = ("Last-Modified", "Sun, 06 Nov 1994 07:49:37 GMT");
        assert_eq!(of(200, &[date, modified]), 360);
        assert_eq!(of(200, &[date, ("Last-Modified", "Sat, 06 Nov 1993 08:49:37 GMT")]), HEURISTIC_MAX);
        assert_eq!(of(302, &[date, modified]), 0);
        assert_eq!(of(302, &[date, modified, ("Cache-Control", "public")]), 360);
    }

    #[test]
    fn age_is_the_first_value_of_the_field() {
        for (age, expected) in
            [("7", 7), ("7, 9", 7), ("x", 0), ("-1", 0), ("x, 9", 0), ("99999999999999999999", SECONDS_MAX)]
        {
            assert_eq!(times(200, &[("Age", age)], 5, 5).age_at(5), expected, "{age}");
        }
    }

    #[test]
    fn targeted_lifetime_overrides_expires() {
        let expires = ("Expires", "Sun, 06 Nov 1994 08:50:37 GMT");
        let date = ("Date", "Sun, 06 Nov 1994 08:49:37 GMT");
        let of = |value| times(200, &[date, expires, ("CDN-Cache-Control", value)], DATE, DATE).lifetime;
        assert_eq!((of("public"), of(""), of("max-age=3")), (0, 60, 3));
    }

    /// Returns the times of a response without a lifetime.
    fn of(date: u64, requested: u64, received: u64) -> Times {
        Times { requested, received, date, age: 0, lifetime: 0, expired: None }
    }

    #[test]
    fn recency_is_by_date_and_limited_for_fast_clocks() {
        // Date first, then time of receipt.
        assert!(of(50, 90, 100).recency() > of(49, 91, 101).recency());
        assert!(of(50, 90, 101).recency() > of(50, 90, 100).recency());
        assert!(of(9999, 90, 100).recency() < of(101, 100, 101).recency());
    }

    #[test]
    fn later_request_supersedes_despite_its_date() {
        let stored = of(90, 90, 100);
        for (new, expected) in [
            (of(50, 100, 101), true),
            // Concurrent requests.
            (of(89, 99, 101), false),
            (of(90, 99, 101), true),
            (of(90, 89, 99), false),
            (of(91, 89, 99), true),
        ] {
            assert_eq!(new.supersedes(&stored), expected, "{new:?}");
        }
    }

    #[test]
    fn ttl_of_a_stale_response_is_negative() {
        let times = times(200, &[("Cache-Control", "max-age=10")], DATE, DATE);
        assert_eq!((times.ttl(DATE + 3), times.ttl(DATE + 10), times.ttl(DATE + 12)), (7, 0, -2));
    }

    proptest! {
        /// A response is either fresh or stale, and ages with the clock.
        #[test]
        fn age_grows_with_the_clock(requested: u32, delay: u16, date: u32, age: u32, lifetime: u32, later: u32, more: u16) {
            let (requested, received) = (u64::from(requested), u64::from(requested) + u64::from(delay));
            let times = Times { requested, received, date: date.into(), age: age.into(), lifetime: lifetime.into(), expired: None };
            let now = received + u64::from(later);
            prop_assert_eq!(times.is_fresh(now), times.fresh_for(now) > 0);
            prop_assert!(times.fresh_for(now) == 0 || times.stale_by(now) == 0);
            prop_assert_eq!(times.age_at(now + u64::from(more)), times.age_at(now) + u64::from(more));
            prop_assert!(times.age_at(now) >= u64::from(delay));
        }
    }
}
