//! Lookups of the names of pools' servers.

use std::sync::atomic::Ordering;

use serde::Serialize;
use strait_ledger::prometheus::Text;

use super::servers::ORIGIN;
use crate::config::settings::Settings;

/// Name that is followed: a line of a pool's `servers`.
#[derive(Debug, Serialize)]
pub(super) struct NameStatus {
    pool: String,
    name: String,
    /// Addresses of its servers.
    addresses: Vec<String>,
    /// Lookups that have ended.
    lookups: u64,
    /// Lookups without an answer.
    failures: u64,
    /// Error of the last lookup, if it had no answer or no record.
    error: Option<String>,
}

/// Returns the names of all pools; none for a forward proxy.
pub(super) fn names(settings: &Settings) -> Vec<NameStatus> {
    let pools = settings.sites.iter().flat_map(|sites| &sites.pools);
    let entries = pools.flat_map(|pool| pool.entries.iter().map(move |entry| (pool, entry)));
    entries
        .filter(|(_, entry)| entry.is_followed())
        .map(|(pool, entry)| NameStatus {
            pool: pool.name.as_deref().unwrap_or(ORIGIN).to_owned(),
            name: entry.server.to_string(),
            addresses: entry.state.addresses().iter().map(ToString::to_string).collect(),
            lookups: entry.state.lookups.load(Ordering::Relaxed),
            failures: entry.state.failures.load(Ordering::Relaxed),
            error: entry.state.error(),
        })
        .collect()
}

/// Function that returns one number of a name.
type Number = fn(&NameStatus) -> u64;

/// Writes the metrics of names.
pub(super) fn metrics(out: &mut Text, names: &[NameStatus]) {
    let families: [(&str, &str, &str, Number); 3] = [
        ("lookups_total", "counter", "Lookups that have ended, by pool and name.", |name| name.lookups),
        ("lookup_failures_total", "counter", "Lookups without an answer, by pool and name.", |name| {
            name.failures
        }),
        ("addresses", "gauge", "Addresses in use, by pool and name.", |name| name.addresses.len() as u64),
    ];
    for (name, kind, help, number) in families {
        out.family(&format!("strait_proxy_name_{name}"), kind, help);
        for status in names {
            out.sample("", &[("pool", &*status.pool), ("name", &*status.name)], number(status));
        }
    }
}
