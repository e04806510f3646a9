//! Limits of the requests of a route, in place of those of `[timeouts]`, of `[limits]` and of its
//! pool.
//!
//! `rules_check` makes them; [`crate::serve`] and [`crate::upstream`] apply them to each request.

use std::time::Duration;

use crate::config::edge::Route;

/// Limits of the requests of a route; `None` for those without a value of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteLimits {
    /// `timeouts.connect` for the servers of the pool.
    pub(crate) connect: Option<Duration>,
    /// `timeouts.origin`.
    pub(crate) origin: Option<Duration>,
    /// `timeouts.body`.
    pub(crate) body: Option<Duration>,
    /// `timeouts.tunnel`.
    pub(crate) tunnel: Option<Duration>,
    /// Further servers that a request is sent to.
    pub(crate) retries: Option<u32>,
    /// Maximum of bytes of a request body.
    pub(crate) request_body: Option<u64>,
}

impl RouteLimits {
    /// Returns the limits of a route, or the key that is wrong with the reason.
    pub(crate) fn new(route: &Route) -> Result<Self, (&'static str, &'static str)> {
        let timeouts = route.timeouts.as_deref().copied().unwrap_or_default();
        let seconds = |seconds: Option<u64>| seconds.map(Duration::from_secs);
        let limits = Self {
            connect: seconds(timeouts.connect),
            origin: seconds(timeouts.origin),
            body: seconds(timeouts.body),
            tunnel: seconds(timeouts.tunnel),
            retries: route.retries,
            request_body: route.request_body.map(|size| size.as_u64()),
        };
        let set = [
            (route.timeouts.is_some(), "timeouts"),
            (route.retries.is_some(), "retries"),
            (route.request_body.is_some(), "request_body"),
        ];
        match set.into_iter().find(|(is_set, _)| *is_set) {
            Some((_, key)) if route.pool.is_none() => {
                Err((key, "only a route with a pool sends requests; remove it"))
            }
            Some((_, "timeouts")) if Self { retries: None, request_body: None, ..limits }.are_none() => {
                Err(("timeouts", "it has no limit; write connect, origin, body or tunnel, or leave it out"))
            }
            _ => Ok(limits),
        }
    }

    /// Returns true if the route has none of its own.
    pub(crate) fn are_none(&self) -> bool {
        *self == Self::default()
    }
}
