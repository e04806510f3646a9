//! Parcels: flows of a batch, sorted by partition.

use std::collections::BTreeMap;

use super::records;
use crate::batch::Batch;
use crate::client::Work;

/// Flows of a partition, which are stored together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parcel {
    pub(super) partition: usize,
    /// Positions in the batch, in rising order.
    pub(super) flows: Vec<usize>,
    /// True if the broker may have stored it under the identity that the producer has: it was sent,
    /// or is about to be.
    pub(super) is_unknown: bool,
    /// True if the broker may have stored it under an earlier identity, and it was not sent since.
    pub(super) may_repeat: bool,
}

/// Parcel in a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) partition: usize,
    /// True if the broker may have stored the parcel before.
    pub(super) was_unknown: bool,
    /// Number of its records, each a message, and of the bytes in them.
    pub(super) records: usize,
    pub(super) bytes: usize,
}

impl Parcel {
    /// Marks the parcel before it is sent: the attempt can be cancelled at any time after that.
    pub(super) fn send(&mut self, records: usize, bytes: usize) -> Sent {
        let was_unknown = std::mem::replace(&mut self.is_unknown, true);
        Sent { partition: self.partition, was_unknown, records, bytes }
    }

    /// Splits a parcel of two flows or more.
    pub(super) fn halve(mut self) -> [Self; 2] {
        let flows = self.flows.split_off(self.flows.len() / 2);
        let second = Self { flows, ..self };
        [self, second]
    }
}

/// Sorts the open flows of a batch by partition.
pub(super) fn sort(batch: &Batch, work: &Work, partitions: usize) -> Vec<Parcel> {
    let mut parcels = BTreeMap::<usize, Vec<usize>>::new();
    for &at in work.open() {
        parcels.entry(records::partition(&batch.key(at), partitions)).or_default().push(at);
    }
    let parcel = |(partition, flows)| Parcel { partition, flows, ..Parcel::default() };
    parcels.into_iter().map(parcel).collect()
}
