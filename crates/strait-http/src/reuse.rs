//! Reuse of stored responses (RFC 9111, section 4; RFC 5861).

use crate::cache_control::{OfRequest, OfResponse, Scope};
use crate::freshness::Times;

/// Decision about a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Answer the request with it.
    Serve,
    /// Answer the request with it and validate it in the background (RFC 5861, section 3).
    ServeAndValidate,
    /// Validate it first.
    Validate,
    /// It needs validation and the client does not allow that: 504 (RFC 9111, section 5.2.1.7).
    Refuse,
}

/// Decides whether a stored response answers a request. `now` is in seconds since 1970.
pub fn reuse(now: u64, times: &Times, stored: &OfResponse, request: &OfRequest) -> Reuse {
    match decide_without_only_if_cached(now, times, stored, request) {
        Reuse::Validate if request.only_if_cached => Reuse::Refuse,
        decision => decision,
    }
}

fn decide_without_only_if_cached(now: u64, times: &Times, stored: &OfResponse, request: &OfRequest) -> Reuse {
    // `no-cache` with field names applies to the whole response here, which is stricter.
    if request.no_cache || stored.no_cache != Scope::None {
        return Reuse::Validate;
    }
    let is_too_old = request.max_age.is_some_and(|most| times.age_at(now) > most);
    let is_soon_stale = request.min_fresh.is_some_and(|least| times.fresh_for(now) < least);
    if is_too_old || is_soon_stale {
        return Reuse::Validate;
    }
    if times.is_fresh(now) {
        return Reuse::Serve;
    }
    let stale_s = times.stale_by(now);
    if forbids_stale(stored) {
        Reuse::Validate
    } else if request.max_stale.is_some_and(|most| stale_s <= most) {
        Reuse::Serve
    } else if stored.stale_while_revalidate.is_some_and(|most| stale_s <= most) {
        Reuse::ServeAndValidate
    } else {
        Reuse::Validate
    }
}

/// Returns true if a stale response may replace the answer of a failed origin (RFC 5861, section
/// 4): the response or the request allows it, and neither demands validation (RFC 9111, section
/// 5.2.1.4).
pub fn may_replace_error(now: u64, times: &Times, stored: &OfResponse, request: &OfRequest) -> bool {
    let stale_s = times.stale_by(now);
    let allows = |most: Option<u64>| most.is_some_and(|most| stale_s <= most);
    !forbids_stale(stored)
        && !request.no_cache
        && stored.no_cache == Scope::None
        && (allows(stored.stale_if_error) || allows(request.stale_if_error))
}

/// Returns true if a shared cache must not use the stale response (RFC 9111 s4.2.4); s-maxage
/// implies proxy-revalidate (s5.2.2.10).
pub(crate) fn forbids_stale(stored: &OfResponse) -> bool {
    stored.must_revalidate || stored.proxy_revalidate || stored.s_maxage.is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fields::Fields;
    use crate::fields::tests::fields;

    fn directives(value: &str) -> Fields<'_> {
        fields(&[("cache-control", value)])
    }

    /// Decides for a response received at 1000 with Cache-Control `stored`, requested `later`
    /// seconds after that with Cache-Control `request_directives`.
    fn decide(stored: &'static str, request_directives: &'static str, later: u64) -> (Reuse, bool) {
        let response = OfResponse::of(&directives(stored));
        let request = OfRequest::of(&directives(request_directives));
        let times = Times::of(200, &directives(stored), &response, 1000, 1000);
        let now = 1000 + later;
        (reuse(now, &times, &response, &request), may_replace_error(now, &times, &response, &request))
    }

    #[test]
    fn rules_of_section_4() {
        for (stored, request_directives, later, expected) in [
            ("max-age=10", "", 9, Reuse::Serve),
            ("max-age=10", "", 10, Reuse::Validate),
            ("max-age=10", "no-cache", 1, Reuse::Validate),
            ("max-age=10, no-cache", "", 1, Reuse::Validate),
            ("max-age=10, no-cache=\"x\"", "", 1, Reuse::Validate),
            ("max-age=10", "max-age=3", 3, Reuse::Serve),
            ("max-age=10", "max-age=3", 4, Reuse::Validate),
            ("max-age=10", "min-fresh=5", 5, Reuse::Serve),
            ("max-age=10", "min-fresh=5", 6, Reuse::Validate),
            ("max-age=10", "max-stale", 9999, Reuse::Serve),
            ("max-age=10", "max-stale=5", 15, Reuse::Serve),
            ("max-age=10", "max-stale=5", 16, Reuse::Validate),
            ("max-age=10, must-revalidate", "max-stale", 11, Reuse::Validate),
            ("max-age=10, proxy-revalidate", "max-stale", 11, Reuse::Validate),
            ("s-maxage=10", "max-stale", 11, Reuse::Validate),
            ("max-age=10, stale-while-revalidate=5", "", 15, Reuse::ServeAndValidate),
            ("max-age=10, stale-while-revalidate=5", "", 16, Reuse::Validate),
            ("max-age=10", "only-if-cached", 9, Reuse::Serve),
            ("max-age=10", "only-if-cached", 10, Reuse::Refuse),
        ] {
            let decision = decide(stored, request_directives, later).0;
            assert_eq!(decision, expected, "{stored}; {request_directives}; {later}");
        }
    }

    #[test]
    fn stale_response_replaces_an_error_if_allowed() {
        assert!(decide("max-age=10, stale-if-error=5", "", 15).1);
        assert!(!decide("max-age=10, stale-if-error=5", "", 16).1);
        assert!(decide("max-age=10", "stale-if-error=5", 15).1);
        assert!(!decide("max-age=10", "", 11).1);
        assert!(!decide("max-age=10, stale-if-error=5", "no-cache", 11).1);
        assert!(!decide("max-age=10, must-revalidate, stale-if-error=5", "", 11).1);
    }

    proptest! {
        /// A response served without validation is fresh or allowed to be stale. A client with
        /// only-if-cached never waits for validation.
        #[test]
        fn stale_response_is_served_only_if_allowed(
            max_age: Option<u8>, s_maxage: Option<u8>, must_revalidate: bool, later: u8, swr: Option<u8>,
            request_max_age: Option<u8>, max_stale: Option<u8>, only_if_cached: bool,
        ) {
            let stored = OfResponse {
                max_age: max_age.map(u64::from),
                s_maxage: s_maxage.map(u64::from),
                must_revalidate,
                stale_while_revalidate: swr.map(u64::from),
                ..OfResponse::default()
            };
            let request = OfRequest {
                max_age: request_max_age.map(u64::from), max_stale: max_stale.map(u64::from), only_if_cached, ..OfRequest::default()
            };
            let times = Times::of(200, &Fields::default(), &stored, 0, 0);
            let now = u64::from(later);
            let decision = reuse(now, &times, &stored, &request);
            if matches!(decision, Reuse::Serve | Reuse::ServeAndValidate) && !times.is_fresh(now) {
                prop_assert!(!must_revalidate && s_maxage.is_none());
                prop_assert!(max_stale.is_some() || swr.is_some());
            }
            prop_assert!(!(only_if_cached && decision == Reuse::Validate));
        }
    }
}
