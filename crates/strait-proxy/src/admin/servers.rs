//! State and counters of the servers of all pools.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use strait_ledger::prometheus::Text;

use crate::config::changes::Change;
use crate::config::settings::Settings;
use crate::io::gate::Gates;

/// Pool of the one-line form, which has no name.
pub(super) const ORIGIN: &str = "origin";

/// Server of a pool.
#[derive(Debug, Serialize)]
pub(super) struct ServerStatus {
    pool: String,
    server: String,
    /// Requests in progress.
    load: u64,
    requests: u64,
    failures: u64,
    /// Ejections after failures.
    ejections: u64,
    /// Ejections because it was far slower than the others.
    slow_ejections: u64,
    /// True while it gets no requests after one of them.
    is_ejected: bool,
    /// True while it fails active checks.
    is_down: bool,
    /// True while the operator has taken it out.
    is_drained: bool,
    /// Requests that wait for one of its connections.
    waiting: u64,
    /// Requests that got none of its connections.
    refused: u64,
    /// Requests that were also sent to it because another server was slow.
    hedged: u64,
    /// Number of these requests that it answered first.
    hedges_won: u64,
    /// Requests that waited for it, and were sent to no other server because of the budget.
    hedges_refused: u64,
    /// True if it gets requests only while no other server is available.
    is_backup: bool,
    /// Last change of its state.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<Change>,
}

/// Returns the servers of all pools at a time in seconds; none for a forward proxy.
pub(super) fn servers(settings: &Settings, gates: &Gates, now: u64) -> Vec<ServerStatus> {
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let pools = settings.sites.iter().flat_map(|sites| &sites.pools);
    let members = pools.flat_map(|pool| {
        let members = pool.members().to_vec();
        members.into_iter().map(move |member| (pool, member))
    });
    members
        .map(|(pool, member)| ServerStatus {
            pool: pool.name.as_deref().unwrap_or(ORIGIN).to_owned(),
            server: member.server.to_string(),
            load: read(&member.state.load),
            requests: read(&member.state.requests),
            failures: read(&member.state.failures),
            ejections: read(&member.state.ejections),
            slow_ejections: read(&member.state.slow_ejections),
            is_ejected: member.is_ejected(now),
            is_down: member.is_down(),
            is_drained: member.is_drained(),
            is_backup: member.tier > 0,
            waiting: gates.waiting(&member.server) as u64,
            refused: read(&member.state.refused),
            hedged: read(&member.state.hedged),
            hedges_won: read(&member.state.hedges_won),
            hedges_refused: read(&member.state.hedges_refused),
            change: member.last_change(now),
        })
        .collect()
}

/// Function that returns one number of a server.
type Number = fn(&ServerStatus) -> u64;

/// Writes the metrics of servers.
pub(super) fn metrics(out: &mut Text, servers: &[ServerStatus]) {
    let families: [(&str, &str, &str, Number); 12] = [
        ("requests_total", "counter", "Requests that were sent to a server.", |server| server.requests),
        ("failures_total", "counter", "Requests that failed at a server.", |server| server.failures),
        ("load", "gauge", "Requests in progress at a server.", |server| server.load),
        (
            "ejected",
            "gauge",
            "1 while a server gets no requests after failures or slow responses.",
            |server| server.is_ejected.into(),
        ),
        ("down", "gauge", "1 while a server fails active checks.", |server| server.is_down.into()),
        ("drained", "gauge", "1 while the operator has taken a server out.", |server| {
            server.is_drained.into()
        }),
        ("waiting", "gauge", "Requests that wait for one of the connections of a server.", |server| {
            server.waiting
        }),
        (
            "refused_total",
            "counter",
            "Requests that got none of the connections that a server or a client of it may use.",
            |server| server.refused,
        ),
        (
            "hedged_total",
            "counter",
            "Requests that were also sent to a server because another one was slow.",
            |server| server.hedged,
        ),
        ("hedges_won_total", "counter", "Such requests that the server has answered first.", |server| {
            server.hedges_won
        }),
        (
            "hedges_refused_total",
            "counter",
            "Requests that waited for a slow server, and were sent to no other one because of the budget.",
            |server| server.hedges_refused,
        ),
        ("backup", "gauge", "1 for a server that is used only while no other is available.", |server| {
            server.is_backup.into()
        }),
    ];
    for (name, kind, help, number) in families {
        out.family(&format!("strait_proxy_server_{name}"), kind, help);
        for server in servers {
            let labels = [("pool", &*server.pool), ("server", &*server.server)];
            out.sample("", &labels, number(server));
        }
    }
    out.family("strait_proxy_server_ejections_total", "counter", "Ejections of a server, by reason.");
    for server in servers {
        for (reason, number) in [("failures", server.ejections), ("latency", server.slow_ejections)] {
            let labels = [("pool", &*server.pool), ("server", &*server.server), ("reason", reason)];
            out.sample("", &labels, number);
        }
    }
}
