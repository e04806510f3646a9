//! Time limits of the phases of a connection, with one timer.
//!
//! Setting a timer for each phase of each request costs more than many requests do. A connection
//! has one timer, which is polled only when the connection waits, and moved only when it fires too
//! early or would fire too late.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// The phase took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedOut;

/// The timer of a connection.
#[derive(Debug)]
pub(crate) struct Deadline {
    timer: Pin<Box<Sleep>>,
}

/// Initial time of a timer without a deadline.
const LONG: Duration = Duration::from_hours(24);

impl Default for Deadline {
    fn default() -> Self {
        Self { timer: Box::pin(sleep_until(Instant::now() + LONG)) }
    }
}

impl Deadline {
    /// Returns the result of `work` unless it waits for longer than `limit`.
    pub(crate) async fn within<F: Future>(
        &mut self,
        limit: Duration,
        work: F,
    ) -> Result<F::Output, TimedOut> {
        self.run(limit, &mut None, work).await
    }

    /// Like [`Deadline::within`]; also returns the time waited.
    pub(crate) async fn timed<F: Future>(
        &mut self,
        limit: Duration,
        work: F,
    ) -> (Result<F::Output, TimedOut>, Duration) {
        let mut begun = None;
        let done = self.run(limit, &mut begun, work).await;
        (done, begun.map_or(Duration::ZERO, |begun| begun.elapsed()))
    }

    /// Sets `begun` if the work waits. Work that is ready at once does not read the clock.
    async fn run<F: Future>(
        &mut self,
        limit: Duration,
        begun: &mut Option<Instant>,
        work: F,
    ) -> Result<F::Output, TimedOut> {
        let mut work = pin!(work);
        poll_fn(|context| {
            if let Poll::Ready(output) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            let begun = *begun.get_or_insert_with(Instant::now);
            self.poll_until(begun + limit, context).map(Err)
        })
        .await
    }

    fn poll_until(&mut self, end: Instant, context: &mut Context<'_>) -> Poll<TimedOut> {
        if end < self.timer.deadline() {
            self.timer.as_mut().reset(end);
        }
        while self.timer.as_mut().poll(context).is_ready() {
            if Instant::now() >= end {
                return Poll::Ready(TimedOut);
            }
            self.timer.as_mut().reset(end);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn phase_ends_at_its_own_limit_whatever_the_timer_was_set_to() {
        let mut deadline = Deadline::default();
        for seconds in [30, 3, 60] {
            let (begun, limit) = (Instant::now(), Duration::from_secs(seconds));
            assert_eq!(deadline.within(limit, std::future::pending::<()>()).await, Err(TimedOut));
            assert_eq!(begun.elapsed().as_secs(), seconds);
        }
        assert_eq!(deadline.within(Duration::ZERO, async { 7 }).await, Ok(7));
    }
}
