//! Observation: the record of each exchange, counters, the report, the access log and spans.

use std::sync::Arc;

use crate::observe::log::Log;
#[cfg(feature = "otlp")]
pub(crate) use crate::observe::spans::Spans;

pub(crate) mod access;
pub(crate) mod counters;
pub(crate) mod log;
pub(crate) mod refusals;
pub(crate) mod report;
#[cfg(feature = "otlp")]
pub(crate) mod spans;

/// Function that gets lines for the operator.
pub(crate) type OnNote = Arc<dyn Fn(&str) + Send + Sync>;

/// Outputs of finished exchanges.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outputs {
    /// The access log, if there is one; its thread ends with the last copy.
    pub(crate) log: Option<Log>,
    /// Queue of spans for a collector, if there is one; its thread ends with the last copy.
    pub(crate) spans: Option<Spans>,
}

/// Queue of spans, which does not exist without the feature `otlp`.
#[cfg(not(feature = "otlp"))]
#[derive(Clone, Debug)]
pub(crate) enum Spans {}

#[cfg(not(feature = "otlp"))]
impl Spans {
    /// Adds nothing.
    pub(crate) fn add(&self, _: &access::Account<'_, '_>, _has_query: bool) {
        match *self {}
    }
}
