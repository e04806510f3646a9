//! Destination of a run, and the result of one call.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use crate::engine::Tally;
use crate::routes::{Ends, SharedRoute};

/// Result of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The run is complete.
    Done,
    /// A part was moved, and there may be space for more.
    Moved,
    /// The socket buffer is full.
    NoRoom,
    /// The source has no more bytes now.
    NoInput,
}

/// Destination of a run: connection, route and counters.
pub(crate) struct Destination<'a> {
    pub(crate) socket: &'a Arc<OwnedFd>,
    pub(crate) peer: &'a str,
    pub(crate) ends: Ends,
    pub(crate) route: &'a SharedRoute,
    pub(crate) tally: &'a Rc<RefCell<Tally>>,
    /// True if another run follows at once (`MSG_MORE`).
    pub(crate) more: bool,
}
