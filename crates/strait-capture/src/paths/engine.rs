//! Contract of a capture path's engine: one queue's ring, as a lane drives it.
//!
//! [`Engine`] has the calls that a lane makes once per wait, report or change of the filter; a lane
//! makes them through a trait object. [`Lend`] and [`Lent`] have the calls of the hot path: the
//! table in `paths/mod.rs` selects the path once per batch, and the loop over frames is compiled
//! for each path.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use strait_filter::cbpf::Program;
use strait_ledger::Capture;
use strait_sys::LinkState;
use strait_sys::packet::Cooked;

use crate::booking::{Booking, Copies};
use crate::error::Error;
use crate::frame::Frame;
use crate::live_counters::KernelCounters;
use crate::wait::{Step, Wakers};

/// Ring of one queue.
pub(crate) trait Engine {
    /// Returns the approximate number of frames of minimum size that the ring holds.
    fn capacity(&self) -> usize;

    /// Returns the number of frames that the ring holds if all of them have the maximum size.
    fn capacity_min(&self) -> usize;

    /// Returns the part of each frame that the kernel copies.
    fn copies(&self) -> Copies;

    /// Returns the kernel's counters, for readers on other threads; none for a file.
    fn counters(&self) -> Option<Arc<dyn KernelCounters>> {
        None
    }

    /// Returns the descriptors that become readable when a frame arrives.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Makes the next frame signal a descriptor.
    fn prepare_to_wait(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Waits according to `step`, at most for `timeout` or until one of `wakers` is readable.
    /// Frames need not be ready then.
    ///
    /// # Errors
    /// The interface went down or was removed.
    fn wait(&mut self, step: Step, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error>;

    /// Reads the kernel's counters into `account`: all but delivered frames and bytes. `discarded`
    /// received frames were not delivered because a filter in this process rejected them.
    fn account(&mut self, account: &mut Capture, discarded: u64) -> Result<(), Error>;

    /// Waits for frames that the kernel counted and has not handed over, after reception has
    /// stopped. Returns false if there are none left, or if they did not come in time.
    fn drain(&mut self, _account: &mut Capture, _discarded: u64, _since: Instant) -> Result<bool, Error> {
        Ok(false)
    }

    /// Returns the state of the link; none for a file.
    fn link_state(&self) -> Result<Option<LinkState>, Error> {
        Ok(None)
    }

    /// Reports an error of the socket, once.
    fn check_link(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns true at the end of a file.
    fn ended(&self) -> bool {
        false
    }

    /// Rejects every frame until [`Engine::accept_matching`], if the kernel filters for this path.
    fn reject_all(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Receives the frames that `program` matches, if the kernel filters for this path.
    fn accept_matching(&self, _program: &Program) -> Result<(), Error> {
        Ok(())
    }

    /// Returns the frames in the ring to the kernel unread and counts them in `discarded`. An
    /// earlier filter matched them, and `program`, the next filter, may reject them.
    fn discard_waiting(
        &mut self,
        program: &Program,
        account: &mut Capture,
        discarded: &AtomicU64,
    ) -> Result<(), Error>;

    /// Selects whether frames sent by this host are left out, from the next filter on.
    fn ignore_outgoing(&mut self, _ignore: bool) -> Result<(), Error> {
        Ok(())
    }

    /// Sets the header of cooked packets.
    fn set_cooked(&mut self, _cooked: Cooked) {}
}

/// Takes the `waiting` frames that are in a ring now, at most `batch_max` at a time, and counts
/// them in `discarded`. A new filter has already matched the frames that arrive meanwhile. `take`
/// returns the number of frames that it took, or `None` if the ring has no frame.
pub(crate) fn discard(
    mut waiting: usize,
    batch_max: usize,
    discarded: &AtomicU64,
    mut take: impl FnMut(usize) -> Option<usize>,
) {
    while waiting > 0
        && let Some(count) = take(waiting.min(batch_max))
    {
        discarded.fetch_add(count as u64, Ordering::Relaxed);
        // At least one, so that takes of 0 frames do not loop for ever.
        waiting -= count.max(1);
    }
}

/// Hot path of an engine.
pub(crate) trait Lend: Engine {
    /// Frames lent by [`Lend::take`].
    type Batch<'a>: Lent
    where
        Self: 'a;

    /// Returns true if frames can be taken. A file reads ahead for it, unless `stopping` is set.
    fn ready(&mut self, stopping: &AtomicBool) -> Result<bool, Error>;

    /// Lends frames that are ready, at most `limit`.
    fn take(&mut self, limit: usize) -> Self::Batch<'_>;
}

/// Frames lent by one path. Dropping them returns their slots to the kernel.
pub(crate) trait Lent {
    /// Iterator of [`Lent::frames`].
    type Frames<'b>: Iterator<Item = Frame<'b>>
    where
        Self: 'b;

    /// Returns the number of frames left, or of a file an upper bound, which is 0 after the last
    /// one.
    fn len(&self) -> usize;

    /// Iterates over the frames, oldest first.
    fn frames(&mut self) -> Self::Frames<'_>;

    /// Counts the frames, at most `limit`, as delivered without passing them on, and returns their
    /// number. There must be no userspace filter.
    #[inline]
    fn count(&mut self, limit: usize, booking: &mut Booking<'_>) -> u64 {
        booking.count_all(self.frames().take(limit))
    }

    /// Counts the frames, at most `limit`, and passes them to `take`.
    #[inline]
    fn try_each<E>(
        &mut self,
        limit: usize,
        booking: &mut Booking<'_>,
        take: &mut impl FnMut(&Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.frames().take(limit).try_for_each(|mut frame| booking.count_and_pass(&mut frame, take))
    }
}
