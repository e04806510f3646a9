//! What a proxy has done and holds, for people and for programs: the account when it ends, and the
//! numbers of the admin page.

use std::fmt;

use serde::{Serialize, Serializer};
use strait_store::Stats;

use crate::observe::access::Outcome;
use crate::observe::counters::{CLASSES, Sum, Times};

/// What classes of statuses are called.
const STATUSES: [&str; CLASSES] = ["none", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// What a proxy has done since it was started.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Connections that were accepted, that are open, and that were turned away.
    pub connections: u64,
    /// Of these, those that are open.
    pub open: u64,
    /// Connections that were turned away.
    pub refused: u64,
    /// Requests, however they were answered.
    pub requests: u64,
    /// Requests by where their answer came from.
    #[serde(serialize_with = "by_name")]
    pub outcomes: Vec<(&'static str, u64)>,
    /// Answers by the class of their status; first those without one.
    #[serde(serialize_with = "by_name")]
    pub statuses: Vec<(&'static str, u64)>,
    /// Answers that did not come to their end.
    pub cut: u64,
    /// Bytes to clients that were copied from memory.
    pub copied: u64,
    /// Bytes to clients that went by sendfile.
    pub sendfile: u64,
    /// Bytes to clients that went by splice.
    pub spliced: u64,
    /// Bytes into the cache that were copied.
    pub filled_copied: u64,
    /// Bytes into the cache that went by splice.
    pub filled_spliced: u64,
    /// Fetches that are under way.
    pub fills: usize,
    /// Connections to origins that were opened.
    pub origin_opened: u64,
    /// Requests to origins over connections that were there.
    pub origin_reused: u64,
    /// Lines of the access log that were dropped.
    pub log_dropped: u64,
    /// How long answers from the cache took.
    pub hit_times: Quantiles,
    /// How long the others took, but tunnels.
    pub other_times: Quantiles,
    /// What the store holds, where there is one.
    pub store: Option<Stats>,
}

/// How long something took, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Quantiles {
    /// How often it was.
    pub count: u64,
    /// Half of them took less.
    pub p50_us: u64,
    /// Nine of ten took less.
    pub p90_us: u64,
    /// All but one in a hundred took less.
    pub p99_us: u64,
}

/// An object whose fields stand in the order of the list.
fn by_name<S: Serializer>(counts: &[(&'static str, u64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counts.iter().copied())
}

impl Report {
    pub(crate) fn of(sum: &Sum, fills: usize, store: Option<Stats>) -> Self {
        Self {
            connections: sum.accepted,
            open: sum.open,
            refused: sum.refused,
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

    /// How many were answered so.
    pub fn outcome(&self, name: &str) -> u64 {
        self.outcomes.iter().find(|(own, _)| *own == name).map_or(0, |(_, count)| *count)
    }
}

impl Quantiles {
    fn of(times: &Times) -> Self {
        let us = |part| times.quantile_us(part);
        Self { count: times.count(), p50_us: us(0.5), p90_us: us(0.9), p99_us: us(0.99) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, connections, cut, copied, sendfile, spliced, .. } = self;
        let answered: Vec<_> = self.outcomes.iter().filter(|(_, count)| *count > 0).collect();
        write!(out, "answered {requests} requests of {connections} connections, {cut} not to their end")?;
        for (name, count) in answered {
            write!(out, ", {name} {count}")?;
        }
        write!(out, ": {sendfile} bytes by sendfile, {spliced} spliced, {copied} copied")?;
        let Some(store) = &self.store else { return Ok(()) };
        write!(out, "; {} records of {} bytes stored", store.records, store.used_bytes)
    }
}
