//! Contract of a capture path's engine: one queue's ring, as a lane drives it.
//!
//! [`Engine`] holds the calls that a lane makes once a wait, a report or a change of the filter; a
//! lane makes them by a trait object. [`Lend`] and [`Lent`] hold the calls of the hot path: the
//! table in `paths/mod.rs` selects the path once a batch, and the loop over frames is compiled for
//! each path.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
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
    /// Returns about how many frames of minimum size the ring holds.
    fn capacity(&self) -> usize;

    /// Returns how many frames the ring holds if all of them have the maximum size.
    fn holds_at_least(&self) -> usize;

    /// Returns the part of each frame that the kernel copies.
    fn copies(&self) -> Copies;

    /// Returns the kernel's counters, for readers on other threads; none for a file.
    fn counters(&self) -> Option<Arc<dyn KernelCounters>> {
        None
    }

    /// Returns the descriptors that become readable when a frame arrives.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Arranges that the next frame makes a descriptor readable.
    fn prepare_to_wait(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Waits as `step` says, at most for `timeout` or until one of `wakers` is readable. Frames
    /// need not be ready then.
    ///
    /// # Errors
    /// The interface went down or vanished.
    fn wait(&mut self, step: Step, timeout: Duration, wakers: Wakers<'_>) -> Result<(), Error>;

    /// Reads the kernel's counters into `account`: all but delivered frames and bytes. `discarded`
    /// received frames were not delivered because a filter in this process rejected them.
    fn account(&mut self, account: &mut Capture, discarded: u64) -> Result<(), Error>;

    /// Waits for frames that the kernel counted and has not handed over, after the intake has
    /// ended. Returns false if there are none left, or if they did not come in time.
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

    /// Rejects every frame until [`Engine::admit`], if the kernel filters for this path.
    fn reject_all(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Receives the frames that `program` matches, if the kernel filters for this path.
    fn admit(&self, _program: &Program) -> Result<(), Error> {
        Ok(())
    }

    /// Returns the frames in the ring unread and counts them in `discarded`: an earlier filter
    /// matched them, and `program`, which follows, may reject them.
    fn discard_waiting(
        &mut self,
        program: &Program,
        account: &mut Capture,
        discarded: &AtomicU64,
    ) -> Result<(), Error>;

    /// Leaves out frames that this host sends, or no longer, from the next filter on.
    fn ignore_outgoing(&mut self, _ignore: bool) -> Result<(), Error> {
        Ok(())
    }

    /// Sets the header of cooked packets.
    fn set_cooked(&mut self, _cooked: Cooked) {}
}

/// Hot path of an engine.
pub(crate) trait Lend: Engine {
    /// Frames lent by [`Lend::take`].
    type Batch<'a>: Lent
    where
        Self: 'a;

    /// Returns true if frames can be taken. A file reads ahead for it until `stopping` is set.
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

    /// Returns the number of frames left.
    fn len(&self) -> usize;

    /// Iterates over the frames, oldest first.
    fn frames(&mut self) -> Self::Frames<'_>;

    /// Books the frames, at most `limit`, and passes them to `take`.
    #[inline]
    fn try_each<E>(
        &mut self,
        limit: usize,
        booking: &mut Booking<'_>,
        take: &mut impl FnMut(&Frame<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.frames().take(limit).try_for_each(|mut frame| booking.hand(&mut frame, take))
    }
}
