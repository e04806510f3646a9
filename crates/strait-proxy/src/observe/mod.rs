//! Observation: the record of each exchange, counters, the report and the access log.

pub(crate) mod access;
pub(crate) mod counters;
pub(crate) mod log;
pub(crate) mod report;
