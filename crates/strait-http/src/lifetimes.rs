//! Lifetimes that the operator of a cache sets.

use crate::cache_control::{OfResponse, Scope};
use crate::fields::Fields;
use crate::freshness::{Times, is_explicit, is_heuristically_cacheable};

/// Policy of the operator for lifetimes, all in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifetimePolicy {
    /// Freshness lifetime of a response without an explicit one, except for errors; `None`: the
    /// heuristic.
    pub fresh: Option<u64>,
    /// Freshness lifetime of a 404 or 410 without an explicit one: negative caching; `None`: the
    /// heuristic.
    pub negative: Option<u64>,
    /// Maximum of the heuristic lifetime (RFC 9111, section 4.2.2).
    pub heuristic_max: u64,
    /// `stale-while-revalidate` of a response without it (RFC 5861, section 3).
    pub stale_while_revalidate: Option<u64>,
    /// `stale-if-error` of a response without it (RFC 5861, section 4).
    pub stale_if_error: Option<u64>,
    /// True if these lifetimes replace those of the origin, also where it demands validation.
    pub is_overriding: bool,
}

impl Default for LifetimePolicy {
    fn default() -> Self {
        Self {
            fresh: None,
            negative: None,
            heuristic_max: u64::MAX,
            stale_while_revalidate: None,
            stale_if_error: None,
            is_overriding: false,
        }
    }
}

/// Lifetimes of one response, in seconds, in place of those of its origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetimes {
    /// Freshness lifetime.
    pub fresh: Option<u64>,
    /// Value of `stale-while-revalidate`.
    pub stale_while_revalidate: Option<u64>,
    /// Value of `stale-if-error`.
    pub stale_if_error: Option<u64>,
    /// True if the response needs no validation though its origin demands it.
    pub is_overriding: bool,
}

impl LifetimePolicy {
    /// Returns the policy for a response that may be for one client, as its request has credentials
    /// or a cookie outside the key: the lifetimes of the origin hold. One that wants each reuse to
    /// be validated has not agreed to others.
    #[must_use]
    pub fn for_one(self) -> Self {
        Self { heuristic_max: self.heuristic_max, ..Self::default() }
    }

    /// Returns the lifetimes of a response.
    pub fn lifetimes(
        &self,
        status: u16,
        fields: &Fields<'_>,
        directives: &OfResponse,
        received: u64,
    ) -> Lifetimes {
        let of_status = match status {
            404 | 410 => self.negative,
            400.. => None,
            _ if is_heuristically_cacheable(status) => self.fresh,
            _ => None,
        };
        let heuristic = || {
            let times = Times::of(status, fields, directives, received, received);
            (times.lifetime > self.heuristic_max).then_some(self.heuristic_max)
        };
        // `no-cache` with names of fields protects these, which are for one client.
        let is_overriding = self.is_overriding && !matches!(directives.no_cache, Scope::Fields(_));
        let fresh = if is_explicit(fields, directives) {
            of_status.filter(|_| is_overriding)
        } else {
            of_status.or_else(heuristic)
        };
        let stale = |own: Option<u64>, given: Option<u64>| own.filter(|_| is_overriding || given.is_none());
        Lifetimes {
            fresh,
            stale_while_revalidate: stale(self.stale_while_revalidate, directives.stale_while_revalidate),
            stale_if_error: stale(self.stale_if_error, directives.stale_if_error),
            is_overriding: is_overriding && fresh.is_some(),
        }
    }
}

impl Lifetimes {
    /// Returns true if the response keeps all lifetimes of its origin.
    pub fn are_none(&self) -> bool {
        *self == Self::default()
    }

    /// Sets the lifetimes in the times and directives of a response.
    pub fn apply(&self, times: &mut Times, directives: &mut OfResponse) {
        times.lifetime = self.fresh.unwrap_or(times.lifetime);
        directives.stale_while_revalidate = self.stale_while_revalidate.or(directives.stale_while_revalidate);
        directives.stale_if_error = self.stale_if_error.or(directives.stale_if_error);
        if self.is_overriding {
            directives.no_cache = Scope::None;
            directives.must_revalidate = false;
            directives.proxy_revalidate = false;
            // It implies proxy-revalidate (RFC 9111, section 5.2.2.10).
            directives.s_maxage = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache_control::OfRequest;
    use crate::fields::tests::fields;
    use crate::reuse::{Reuse, reuse};

    const DATE: (&str, &str) = ("Date", "Thu, 01 Jan 1970 00:00:00 GMT");

    fn lifetimes(policy: &LifetimePolicy, status: u16, lines: &[(&str, &str)]) -> Lifetimes {
        let fields = fields(lines);
        policy.lifetimes(status, &fields, &OfResponse::of(&fields), 0)
    }

    #[test]
    fn lifetime_applies_to_responses_without_an_explicit_one() {
        let policy = LifetimePolicy { fresh: Some(60), negative: Some(5), ..LifetimePolicy::default() };
        for (status, line, expected) in [
            (200, ("X", "y"), Some(60)),
            (301, ("X", "y"), Some(60)),
            (200, ("Cache-Control", "public"), Some(60)),
            (200, ("Cache-Control", "max-age=9"), None),
            (200, ("Cache-Control", "s-maxage=0"), None),
            (200, ("Expires", "0"), None),
            (404, ("X", "y"), Some(5)),
            (410, ("Cache-Control", "max-age=9"), None),
            (302, ("X", "y"), None),
            (405, ("X", "y"), None),
            (503, ("X", "y"), None),
        ] {
            assert_eq!(lifetimes(&policy, status, &[line]).fresh, expected, "{status} {line:?}");
        }
    }

    #[test]
    fn overriding_lifetime_replaces_that_of_the_origin_and_its_demand_of_validation() {
        let policy = LifetimePolicy {
            fresh: Some(60),
            stale_if_error: Some(30),
            is_overriding: true,
            ..LifetimePolicy::default()
        };
        for value in ["max-age=0, must-revalidate", "no-cache", "s-maxage=1, stale-if-error=0"] {
            let fields = fields(&[("Cache-Control", value), DATE]);
            let mut directives = OfResponse::of(&fields);
            let mut times = Times::of(200, &fields, &directives, 0, 0);
            policy.lifetimes(200, &fields, &directives, 0).apply(&mut times, &mut directives);
            assert_eq!(reuse(59, &times, &directives, &OfRequest::default()), Reuse::Serve, "{value}");
            assert_eq!(reuse(60, &times, &directives, &OfRequest::default()), Reuse::Validate, "{value}");
            assert_eq!(directives.stale_if_error, Some(30), "{value}");
        }
        assert!(!lifetimes(&policy, 200, &[("Cache-Control", "no-cache=\"a\"")]).is_overriding);
        assert!(lifetimes(&policy.for_one(), 200, &[("Cache-Control", "max-age=0")]).are_none());
        // Without a lifetime for the status, the origin's demand holds.
        assert!(lifetimes(&policy, 404, &[("Cache-Control", "no-cache")]).fresh.is_none());
        assert!(!lifetimes(&policy, 404, &[("Cache-Control", "no-cache")]).is_overriding);
    }

    #[test]
    fn heuristic_lifetime_has_a_maximum() {
        // A tenth of 10,000 s.
        let modified =
            [("Last-Modified", "Thu, 01 Jan 1970 00:00:00 GMT"), ("Date", "Thu, 01 Jan 1970 02:46:40 GMT")];
        for (most, expected) in [(u64::MAX, None), (1000, None), (120, Some(120)), (0, Some(0))] {
            let policy = LifetimePolicy { heuristic_max: most, ..LifetimePolicy::default() };
            assert_eq!(lifetimes(&policy, 200, &modified).fresh, expected, "{most}");
        }
        let policy = LifetimePolicy { fresh: Some(9), heuristic_max: 0, ..LifetimePolicy::default() };
        assert_eq!(lifetimes(&policy, 200, &modified).fresh, Some(9));
    }

    #[test]
    fn stale_times_complete_those_of_the_origin() {
        let policy = LifetimePolicy {
            stale_while_revalidate: Some(5),
            stale_if_error: Some(6),
            ..LifetimePolicy::default()
        };
        let own = lifetimes(&policy, 200, &[("Cache-Control", "max-age=1, stale-if-error=0")]);
        assert_eq!((own.stale_while_revalidate, own.stale_if_error), (Some(5), None));
        assert!(!own.are_none() && !own.is_overriding && Lifetimes::default().are_none());
    }
}
