//! Lanes of a session, read by one thread, and their counts. It knows nothing of Python.
//!
//! [`crate::reader`] calls it. No frame leaves [`Lanes::lend`].

use std::time::{Duration, Instant};

use strait_capture::{Batch, Lane, Session};
use strait_ledger::{LaneCounts, Report};

use crate::error::Failure;

/// Maximum time of a wait for one of several lanes, as the others are not read meanwhile.
const LANE_WAIT: Duration = Duration::from_millis(5);

/// Open session.
pub(crate) struct Lanes {
    session: Session,
    /// Lanes that have not ended.
    open: Vec<Lane>,
    /// Index of the lane to read next.
    next: usize,
    ended: Vec<LaneCounts>,
    /// Remaining number of packets.
    remaining: u64,
    /// Time at which reception stops.
    deadline: Option<Instant>,
}

impl Lanes {
    /// Takes the lanes of a session, which ends after `count` packets or after `duration`.
    pub(crate) fn new(mut session: Session, count: Option<u64>, duration: Option<Duration>) -> Self {
        Self {
            open: session.take_lanes(),
            session,
            next: 0,
            ended: Vec::new(),
            remaining: count.unwrap_or(u64::MAX),
            deadline: duration.and_then(|duration| Instant::now().checked_add(duration)),
        }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Returns true after the last packet.
    pub(crate) fn have_ended(&self) -> bool {
        self.open.is_empty()
    }

    /// Stops reception. The frames in the rings can still be read.
    pub(crate) fn stop(&mut self) -> Result<(), Failure> {
        Ok(self.session.stop()?)
    }

    /// Waits for packets from `now` until `until`, and lends at most `limit` of them to `take`,
    /// which returns the number of frames that it took. It is not called if there are none.
    ///
    /// # Errors
    /// The interface was removed, or the file is damaged: all lanes have ended.
    pub(crate) fn lend(
        &mut self,
        limit: usize,
        now: Instant,
        until: Instant,
        mut take: impl FnMut(&mut Batch<'_>) -> usize,
    ) -> Result<(), Failure> {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.stop()?;
        }
        let until = self.deadline.map_or(until, |deadline| until.min(deadline));
        let lanes = self.open.len();
        if lanes > 1 {
            for _ in 0..lanes {
                if self.lend_of_next(limit, now, &mut take)? {
                    return Ok(());
                }
            }
            return self.lend_of_next(limit, until.min(now + LANE_WAIT), &mut take).map(drop);
        }
        self.lend_of_next(limit, until, &mut take).map(drop)
    }

    /// Lends the packets of one lane. Returns true if there were some.
    fn lend_of_next(
        &mut self,
        limit: usize,
        until: Instant,
        take: &mut impl FnMut(&mut Batch<'_>) -> usize,
    ) -> Result<bool, Failure> {
        let at = if self.next < self.open.len() { self.next } else { 0 };
        self.next = at + 1;
        let Some(lane) = self.open.get_mut(at) else { return Ok(false) };
        let limit = limit.min(usize::try_from(self.remaining).unwrap_or(usize::MAX));
        let lent = lane.next_batch_of(limit, until);
        let taken =
            lent.map(|batch| batch.map(|mut batch| if batch.is_empty() { 0 } else { take(&mut batch) }));
        match taken {
            Ok(Some(taken)) => {
                self.remaining -= (taken as u64).min(self.remaining);
                if self.remaining == 0 {
                    self.end(Lane::finish_at_last_frame)?;
                }
                Ok(taken > 0)
            }
            Ok(None) => {
                let lane = self.open.swap_remove(at);
                let ended = self.end_lane(lane, Lane::finish).and_then(|()| self.session.stop());
                ended.map_err(|error| self.fail(error))?;
                Ok(false)
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Ends all lanes after the failure of one, which is the cause of any that follows.
    fn fail(&mut self, error: strait_capture::Error) -> Failure {
        let _ = self.close();
        error.into()
    }

    /// Stops reception, and ends the lanes without reading the frames in their rings.
    pub(crate) fn close(&mut self) -> Result<(), Failure> {
        self.end(Lane::finish)
    }

    fn end(&mut self, finish: fn(Lane) -> Result<LaneCounts, strait_capture::Error>) -> Result<(), Failure> {
        let mut result = self.session.stop();
        for lane in std::mem::take(&mut self.open) {
            result = result.and(self.end_lane(lane, finish));
        }
        Ok(result?)
    }

    /// Ends a lane, which has counts also after an error.
    fn end_lane(
        &mut self,
        lane: Lane,
        finish: fn(Lane) -> Result<LaneCounts, strait_capture::Error>,
    ) -> Result<(), strait_capture::Error> {
        let queue = lane.queue();
        let finished = finish(lane);
        self.ended.push(*finished.as_ref().unwrap_or(&LaneCounts { queue, ..LaneCounts::default() }));
        finished.map(drop)
    }

    /// Returns the ledger. `pending` packets were lent and have not reached the program yet: they
    /// count as unread.
    pub(crate) fn report(&mut self, mut pending: u64) -> Result<Report, Failure> {
        let mut counts = self.ended.clone();
        for lane in &mut self.open {
            counts.push(lane.account()?);
        }
        for lane in &mut counts {
            let share = pending.min(lane.capture.delivered);
            lane.capture.delivered -= share;
            lane.capture.lost.unread += share;
            pending -= share;
        }
        counts.sort_by_key(|lane| lane.queue);
        Ok(self.session.report(counts))
    }
}
