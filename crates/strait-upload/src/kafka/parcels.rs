//! Parcels: flows of a batch, sorted by partition.

use std::collections::BTreeMap;

use super::records;
use crate::client::{Batch, Work};

/// Flows of a partition, which are stored together.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parcel {
    pub(super) partition: usize,
    /// Positions in the batch, in rising order.
    pub(super) flows: Vec<usize>,
    /// True if it was sent, and the broker may have stored it.
    pub(super) is_unknown: bool,
}

/// Sorts the open flows of a batch by partition.
pub(super) fn sort(batch: &Batch, work: &Work, partitions: usize) -> Vec<Parcel> {
    let mut parcels = BTreeMap::<usize, Vec<usize>>::new();
    for (at, line) in batch.open(work) {
        parcels.entry(records::partition(records::key(line), partitions)).or_default().push(at);
    }
    let parcel = |(partition, flows)| Parcel { partition, flows, is_unknown: false };
    parcels.into_iter().map(parcel).collect()
}
