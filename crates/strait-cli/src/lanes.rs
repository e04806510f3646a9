//! Runs the lanes of a session, each on a thread of its own, until the capture ends; then closes
//! the ledger.
//!
//! Whichever lane ends first, by the count, by an error or because the session was stopped, stops
//! the session, so that all lanes drain and their accounts belong to one moment.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use strait_capture::{Batch, Frame, Lane, LinkStatus, Session};
use strait_ledger::{self as ledger, Report};

use crate::Error;
use crate::live::{self, LiveLine};
use crate::output::tell;

/// How long a lane waits before it looks whether the capture is to end.
const TICK: Duration = Duration::from_millis(100);

/// When to end.
pub(crate) struct Until<'a> {
    /// After this many packets.
    pub(crate) count: Option<u64>,
    /// After this long.
    pub(crate) duration: Option<Duration>,
    /// When this is set.
    pub(crate) terminated: &'a AtomicBool,
}

/// What takes the frames of all lanes.
pub(crate) trait Taker: Send {
    /// Takes one frame. An error ends the capture; the frame counts as lost in the sink.
    fn take(&mut self, frame: &Frame<'_>) -> Result<(), Error>;
    /// All frames of a batch were taken.
    fn batch_taken(&mut self) -> Result<(), Error>;
    /// Nothing is waiting, or `now` has moved on: time to flush.
    fn idle(&mut self, now: Instant) -> Result<(), Error>;
    /// Writes out everything taken.
    fn flush(&mut self) -> Result<(), Error>;
    /// Frames taken that errors have lost since the start.
    fn lost(&self) -> u64;
    /// Bytes of files written so far, if files are written.
    fn written_bytes(&self) -> Option<u64> {
        None
    }
}

/// Runs the session to its end and returns the ledger, with the error that ended it early, if one
/// did.
pub(crate) fn run<T: Taker>(
    mut session: Session,
    taker: &mut T,
    until: &Until<'_>,
    live: Option<LiveLine>,
) -> (Report, Option<Error>) {
    let lanes = session.take_lanes();
    let written_bytes = taker.written_bytes().map(AtomicU64::new);
    let state = Run {
        snapshots: Mutex::new(vec![ledger::Lane::default(); lanes.len()]),
        session: Mutex::new(session),
        taker: Mutex::new(taker),
        written_bytes,
        left: AtomicU64::new(until.count.unwrap_or(u64::MAX)),
        running: AtomicU64::new(lanes.len() as u64),
        started: Instant::now(),
        until,
    };
    let run = &state;
    let ended = std::thread::scope(|scope| {
        let threads: Vec<_> =
            lanes.into_iter().enumerate().map(|(i, lane)| scope.spawn(move || run.lane(i, lane))).collect();
        run.watch(live);
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| lane_died())).collect::<Vec<_>>()
    });
    let mut accounts = Vec::new();
    let mut failure = None;
    for (account, error) in ended {
        accounts.push(account);
        failure = failure.or(error);
    }
    book_sink_loss(&mut accounts, lock(&state.taker).lost());
    let session = state.session.into_inner().unwrap_or_else(PoisonError::into_inner);
    (session.report(accounts), failure)
}

/// Moves the frames that the sink has lost from delivered to lost. The sink does not know which
/// lane a frame came from: no lane is charged with more than it delivered.
fn book_sink_loss(accounts: &mut [ledger::Lane], mut lost: u64) {
    for ledger::Lane { capture, .. } in accounts {
        let share = lost.min(capture.delivered);
        capture.delivered -= share;
        capture.lost.sink += share;
        lost -= share;
    }
}

/// What is left of a lane that panicked: its account is lost.
fn lane_died() -> (ledger::Lane, Option<Error>) {
    let cause = "a lane's thread died: this is a defect of strait, please report it";
    (ledger::Lane::default(), Some(Error::Failed(cause.to_owned())))
}

struct Run<'a, T> {
    session: Mutex<Session>,
    taker: Mutex<&'a mut T>,
    /// The taker's number as of the last snapshot, if files are written. A lane that is blocked in
    /// write(2) holds the taker's lock, for which the watch must not wait.
    written_bytes: Option<AtomicU64>,
    snapshots: Mutex<Vec<ledger::Lane>>,
    /// Packets that may still be delivered; it changes under the taker's lock alone.
    left: AtomicU64,
    /// Lanes that have not ended.
    running: AtomicU64,
    started: Instant,
    until: &'a Until<'a>,
}

impl<T: Taker> Run<'_, T> {
    /// One lane from its first packet to its account; with what went wrong, if something did.
    fn lane(&self, i: usize, mut lane: Lane) -> (ledger::Lane, Option<Error>) {
        let _leaving = Leaving(self);
        let queue = lane.queue();
        let pumped = lane.enter_thread().map_err(Error::from).and_then(|()| self.pump(i, &mut lane));
        let stopped = lock(&self.session).stop().map_err(Error::from);
        let flushed = lock(&self.taker).flush();
        // After the last packet that was asked for the capture is over, whatever the rings hold.
        let over = pumped.is_ok() && self.left.load(Ordering::Acquire) == 0;
        let ended = pumped.and(stopped).and(flushed);
        match if over { lane.finish_here() } else { lane.finish() } {
            Ok(account) => (account, ended.err()),
            Err(error) => {
                (ledger::Lane { queue, ..Default::default() }, ended.and::<()>(Err(error.into())).err())
            }
        }
    }

    fn pump(&self, i: usize, lane: &mut Lane) -> Result<(), Error> {
        let mut published = Instant::now();
        loop {
            let Some(batch) = lane.next_batch(Instant::now() + TICK)? else { return Ok(()) };
            let now = Instant::now();
            if batch.is_empty() {
                drop(batch);
                lock(&self.taker).idle(now)?;
            } else {
                self.take(batch)?;
            }
            if self.left.load(Ordering::Acquire) == 0 {
                return Ok(());
            }
            if now - published >= live::PERIOD {
                published = now;
                self.look_at_taker(now)?;
                lock(&self.snapshots)[i] = lane.account()?;
            }
        }
    }

    /// Lets the taker flush, and notes how much it has written.
    fn look_at_taker(&self, now: Instant) -> Result<(), Error> {
        let mut taker = lock(&self.taker);
        taker.idle(now)?;
        if let (Some(noted), Some(bytes)) = (&self.written_bytes, taker.written_bytes()) {
            noted.store(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Hands the frames of a batch to the taker, as many as the count allows.
    fn take(&self, mut batch: Batch<'_>) -> Result<(), Error> {
        let mut taker = lock(&self.taker);
        let mut left = self.left.load(Ordering::Acquire);
        if left == 0 {
            return Ok(());
        }
        // The batch counts frames that its filter has yet to reject, so that the limit is kept here.
        let taken = batch.try_each(usize::MAX, |frame| {
            taker.take(frame).map_err(Some)?;
            left -= 1;
            if left == 0 { Err(None) } else { Ok(()) }
        });
        self.left.store(left, Ordering::Release);
        match taken {
            Err(Some(error)) => Err(error),
            Err(None) | Ok(()) => taker.batch_taken(),
        }
    }

    /// Says that the link went down or came up, or lost its carrier or got it back, once each time.
    fn note_link(&self, noted: &mut LinkStatus, mut live: Option<&mut LiveLine>) {
        let (link, name) = {
            let session = lock(&self.session);
            (session.link(), session.interface().to_owned())
        };
        let before = std::mem::replace(noted, link);
        for news in [set_news(before, link), carrier_news(before, link)].into_iter().flatten() {
            if let Some(live) = live.as_deref_mut() {
                live.clear();
            }
            tell(format_args!("strait: note: {name} {news}\n"));
        }
    }

    /// Watches for the end from outside, and draws the line, until all lanes have ended.
    fn watch(&self, mut live: Option<LiveLine>) {
        let mut drawn = Instant::now();
        let mut noted = LinkStatus::default();
        while self.running.load(Ordering::Acquire) > 0 {
            strait_sys::wait::sleep(TICK / 4);
            self.note_link(&mut noted, live.as_mut());
            let over = self.until.duration.is_some_and(|duration| self.started.elapsed() >= duration);
            if over || self.until.terminated.load(Ordering::Relaxed) {
                // A failure to stop is told by the lane that stops the session again.
                let _ = lock(&self.session).stop();
            }
            if let Some(live) = live.as_mut().filter(|_| drawn.elapsed() >= live::PERIOD) {
                drawn = Instant::now();
                let lanes = lock(&self.snapshots).clone();
                let report = lock(&self.session).report(lanes);
                let written_bytes = self.written_bytes.as_ref().map(|bytes| bytes.load(Ordering::Relaxed));
                live.draw(&report, written_bytes);
            }
        }
        if let Some(live) = &mut live {
            live.clear();
        }
    }
}

/// What to say of a link that was set down or up.
fn set_news(before: LinkStatus, now: LinkStatus) -> Option<String> {
    match (before.is_down, now.is_down) {
        (false, true) => Some("is down: the capture goes on when it is up again".into()),
        (true, false) => Some(up_again(now)),
        // Down and up since the last look.
        (false, false) if now.downs > before.downs => Some(up_again(now)),
        _ => None,
    }
}

fn up_again(link: LinkStatus) -> String {
    format!("is up again; it was down for {:.3} s in all", link.down_for.as_secs_f64())
}

/// What to say of a carrier that went or came. Nothing while the link is down: it has none then.
fn carrier_news(before: LinkStatus, now: LinkStatus) -> Option<String> {
    if now.is_down {
        return None;
    }
    let lost = now.carrier_losses > before.carrier_losses;
    match (before.has_no_carrier, now.has_no_carrier) {
        (false, true) => Some("has no carrier: no packets come until it has one".into()),
        (true, false) => Some(carrier_again(now)),
        (false, false) if lost => Some(carrier_again(now)),
        _ => None,
    }
}

fn carrier_again(link: LinkStatus) -> String {
    format!("has a carrier again; it had none for {:.3} s in all", link.no_carrier_for.as_secs_f64())
}

/// Counts a lane out when it ends. One that panics stops the session as others do, or the rest
/// would never end.
struct Leaving<'r, 'a, T>(&'r Run<'a, T>);

impl<T> Drop for Leaving<'_, '_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // There is a failure to tell already.
            let _ = lock(&self.0.session).stop();
        }
        self.0.running.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A lane that panicked leaves its lock poisoned; what the lock protects stays usable for the final
/// account.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
