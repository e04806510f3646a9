//! Report of a proxy, printed at its end and shown on the admin page.

use std::fmt;

use serde::{Serialize, Serializer};
use strait_store::Stats;

use crate::observe::access::Outcome;
use crate::observe::counters::{CLASSES, Durations, Sum, quantile_us};

/// Names of the classes of statuses.
const STATUSES: [&str; CLASSES] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// Numbers of a proxy since its start.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Connections that were accepted.
    pub connections: u64,
    /// Connections that are open.
    pub open: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Requests of all outcomes.
    pub requests: u64,
    /// Requests by outcome.
    #[serde(serialize_with = "by_name")]
    pub outcomes: Vec<(&'static str, u64)>,
    /// Responses by class of status; first those without a status.
    #[serde(serialize_with = "by_name")]
    pub statuses: Vec<(&'static str, u64)>,
    /// Responses that ended early.
    pub cut: u64,
    /// Bytes copied to clients from memory.
    pub copied: u64,
    /// Bytes to clients by sendfile.
    pub sendfile: u64,
    /// Bytes to clients by splice.
    pub spliced: u64,
    /// Bytes copied into the cache.
    pub filled_copied: u64,
    /// Bytes into the cache by splice.
    pub filled_spliced: u64,
    /// Fills under way.
    pub fills: usize,
    /// Connections to origins that were opened.
    pub origin_opened: u64,
    /// Requests to origins on idle connections.
    pub origin_reused: u64,
    /// Lines of the access log that were dropped.
    pub log_dropped: u64,
    /// Durations of hits.
    pub hit_times: Quantiles,
    /// Durations of other responses except tunnels.
    pub other_times: Quantiles,
    /// Numbers of the store, if there is one.
    pub store: Option<Stats>,
}

/// Quantiles of durations in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Quantiles {
    /// Number of durations.
    pub count: u64,
    /// Median.
    pub p50_us: u64,
    /// 90th percentile.
    pub p90_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
}

/// Serializes an object with its fields in the order of the list.
fn by_name<S: Serializer>(counts: &[(&'static str, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counts.iter().copied())
}

impl Report {
    pub(crate) fn of(sum: &Sum, fills: usize, store: Option<Stats>) -> Self {
        Self {
            connections: sum.accepted,
            open: sum.open,
            refused: sum.refused.iter().sum(),
            requests: sum.exchanges(),
            outcomes: Outcome::ALL.map(|outcome| (outcome.name(), sum.outcome(outcome))).to_vec(),
            statuses: STATUSES.into_iter().zip(sum.classes).collect(),
            cut: sum.cut,
            copied: sum.copied,
            sendfile: sum.sendfile,
            spliced: sum.spliced,
            filled_copied: sum.filled_copied,
            filled_spliced: sum.filled_spliced,
            fills,
            origin_opened: sum.opened,
            origin_reused: sum.reused,
            log_dropped: sum.log_dropped,
            hit_times: Quantiles::of(&sum.hits),
            other_times: Quantiles::of(&sum.others),
            store,
        }
    }

    /// Returns the number of requests with the outcome of that name.
    pub fn outcome(&self, name: &str) -> u64 {
        self.outcomes.iter().find(|(own, _)| *own == name).map_or(0, |(_, count)| *count)
    }
}

impl Quantiles {
    fn of(times: &Durations) -> Self {
        let us = |fraction| quantile_us(times, fraction);
        Self { count: times.count(), p50_us: us(0.5), p90_us: us(0.9), p99_us: us(0.99) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, connections, cut, copied, sendfile, spliced, .. } = self;
        let answered: Vec<_> = self.outcomes.iter().filter(|(_, count)| *count > 0).collect();
        write!(out, "answered {requests} requests of {connections} connections, {cut} incomplete")?;
        for (name, count) in answered {
            write!(out, ", {name} {count}")?;
        }
        write!(out, ": {sendfile} bytes by sendfile, {spliced} spliced, {copied} copied")?;
        let Some(store) = &self.store else { return Ok(()) };
        write!(out, "; {} records of {} bytes stored", store.records, store.used_bytes)
    }
}
