//! Pipes, and the settings that decide when bytes go through them.

use std::cell::RefCell;

use strait_transfer::pipe::Pipes;

use crate::config::file::Transfer;

/// Pipes of a worker, with the settings for their use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Splicing<'a> {
    pub(crate) pipes: &'a RefCell<Pipes>,
    pub(crate) transfer: &'a Transfer,
}

impl Splicing<'_> {
    /// Returns true if splicing costs less than copying, with `ahead` bytes of data to come
    /// (`transfer.splice_from`).
    pub(crate) fn pays(&self, ahead: u64) -> bool {
        self.transfer.splice && ahead >= self.transfer.splice_from.as_u64().max(1)
    }
}
