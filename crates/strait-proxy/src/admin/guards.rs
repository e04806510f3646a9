//! Metrics of the networks, the limits and the users of routes.

use std::sync::atomic::{AtomicU64, Ordering};

use strait_ledger::prometheus::Text;

use crate::config::rules::Guards;

/// Counters of all routes that have them, with their names.
type Counters<'a> = Vec<(&'a str, &'a AtomicU64)>;

/// Writes the metrics. Without routes, there are only the names.
pub(super) fn metrics(out: &mut Text, guards: &Guards) {
    let Guards { accesses, limits, auths } = guards;
    let families: [(&str, &str, Counters<'_>); 5] = [
        (
            "route_refused_total",
            "Requests of clients outside the networks of a route, by route.",
            accesses.iter().map(|access| (&*access.name.position, access.refused())).collect(),
        ),
        (
            "rate_limited_total",
            "Requests that exceeded the rate of a route, by route.",
            limits.iter().map(|limit| (&*limit.name.position, limit.refused())).collect(),
        ),
        (
            "rate_evicted_total",
            "Clients that were forgotten because the table of a route's rate was full, by route.",
            limits.iter().map(|limit| (&*limit.name.position, limit.evicted())).collect(),
        ),
        (
            "auth_refused_total",
            "Requests without a right password for a route, by route.",
            auths.iter().map(|auth| (&*auth.name.position, &auth.counts.refused)).collect(),
        ),
        (
            "auth_hashed_total",
            "Passwords for a route that were hashed because they were not verified before, by route.",
            auths.iter().map(|auth| (&*auth.name.position, &auth.counts.hashed)).collect(),
        ),
    ];
    for (name, help, counters) in families {
        out.family(&format!("strait_proxy_{name}"), "counter", help);
        for (route, counter) in counters {
            out.sample("", &[("route", route)], counter.load(Ordering::Relaxed));
        }
    }
}
