//! Observation: the record of each exchange, counters, the report and the access log.

use std::sync::Arc;

pub(crate) mod access;
pub(crate) mod counters;
pub(crate) mod log;
pub(crate) mod report;

/// Function that gets lines for the operator.
pub(crate) type OnNote = Arc<dyn Fn(&str) + Send + Sync>;
