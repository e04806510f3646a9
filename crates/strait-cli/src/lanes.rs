//! Runs each lane of a session on its own thread until the capture ends. Then returns the ledger.
//!
//! The first lane that ends stops the session, so that all lanes drain and their counts are
//! consistent. A lane ends after the requested count, on an error, or when the session is stopped.

use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use strait_capture::{Batch, Interrupter, Lane, LinkStatus, Session};
use strait_ledger::prometheus::{Text, write_capture, write_targets};
use strait_ledger::{self as ledger, Report};

use crate::Error;
use crate::capture::filter_file::FilterFile;
use crate::live::{self, LiveLine};
use crate::metrics::Metrics;
use crate::output::print_stderr;
use crate::sink::{CountTargets, Sink};

/// Interval at which a waiting lane checks for the end of the capture.
const TICK: Duration = Duration::from_millis(100);
/// Interval at which a sink that stores the ledger gets it.
const RECORD_EVERY: Duration = Duration::from_secs(10);

/// Conditions for the end of a capture.
pub(crate) struct Limits<'a> {
    /// Maximum number of packets.
    pub(crate) count: Option<u64>,
    /// Maximum duration.
    pub(crate) duration: Option<Duration>,
    /// Flag of a termination signal.
    pub(crate) terminated: &'a AtomicBool,
    /// File with a filter that replaces that of the session on request.
    pub(crate) filter_file: Option<&'a FilterFile>,
}

/// Runs the session to its end. Returns the ledger, and the error if one ended the session early.
pub(crate) fn run<T: Sink>(
    mut session: Session,
    sink: &mut T,
    limits: &Limits<'_>,
    live: Option<LiveLine>,
    metrics: Option<&Metrics>,
) -> (Report, Option<Error>) {
    let lanes = session.take_lanes();
    let started = sink.start().and_then(|()| Ok(Interrupter::new()?));
    let lane_ended = match started {
        Ok(interrupter) => interrupter,
        Err(error) => return (session.report(Vec::new()), Some(error)),
    };
    let written_bytes = sink.written_bytes().map(AtomicU64::new);
    let (records, count_targets) = (sink.records(), sink.target_metrics());
    let state = CaptureState {
        snapshots: Mutex::new(vec![ledger::LaneCounts::default(); lanes.len()]),
        session: Mutex::new(session),
        sink: Mutex::new(sink),
        written_bytes,
        records,
        count_targets,
        remaining_packets: AtomicU64::new(limits.count.unwrap_or(u64::MAX)),
        running: AtomicU64::new(lanes.len() as u64),
        lane_ended,
        started: Instant::now(),
        limits,
    };
    let capture = &state;
    let ended = std::thread::scope(|scope| {
        let threads: Vec<_> = lanes
            .into_iter()
            .enumerate()
            .map(|(i, lane)| scope.spawn(move || capture.run_lane(i, lane)))
            .collect();
        let serving = metrics.map(|metrics| metrics.serve_in(scope, || capture.exposition()));
        capture.watch(live);
        drop(serving);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| panicked_lane()))
            .collect::<Vec<_>>()
    });
    let mut counts = Vec::new();
    let mut failure = None;
    for (lane_counts, error) in ended {
        counts.push(lane_counts);
        failure = failure.or(error);
    }
    let completed = lock(&state.sink).complete();
    let session = state.session.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut report = session.report(counts);
    state.sink.into_inner().unwrap_or_else(PoisonError::into_inner).charge(&mut report);
    (report, failure.or(completed.err()))
}

/// Returns the result of a lane that panicked. Its counts are lost.
fn panicked_lane() -> (ledger::LaneCounts, Option<Error>) {
    let cause = "a lane's thread panicked: this is a defect of strait, please report it";
    (ledger::LaneCounts::default(), Some(Error::Failed(cause.to_owned())))
}

/// State of a running capture.
struct CaptureState<'a, T> {
    session: Mutex<Session>,
    sink: Mutex<&'a mut T>,
    /// Written bytes at the last snapshot, if the sink writes files. The live line reads this copy,
    /// as a lane that blocks in write(2) holds the sink's lock.
    written_bytes: Option<AtomicU64>,
    /// True if the sink stores the ledger.
    records: bool,
    /// Counts the targets of the sink.
    count_targets: Option<CountTargets>,
    snapshots: Mutex<Vec<ledger::LaneCounts>>,
    /// Remaining number of packets. It changes only under the sink's lock.
    remaining_packets: AtomicU64,
    /// Number of running lanes.
    running: AtomicU64,
    /// Ends a wait of the watching thread.
    lane_ended: Interrupter,
    started: Instant,
    limits: &'a Limits<'a>,
}

impl<T: Sink> CaptureState<'_, T> {
    /// Runs a lane from its first packet to its end. Returns its counts, and the error if there was
    /// one.
    fn run_lane(&self, i: usize, mut lane: Lane) -> (ledger::LaneCounts, Option<Error>) {
        let _guard = LaneGuard(self);
        let queue = lane.queue();
        let result = lane.enter_thread().map_err(Error::from).and_then(|()| self.read_lane(i, &mut lane));
        let stopped = lock(&self.session).stop().map_err(Error::from);
        let flushed = lock(&self.sink).flush();
        // After the requested count the capture is over, even if the rings hold more packets.
        let over = result.is_ok() && self.remaining_packets.load(Ordering::Acquire) == 0;
        let ended = result.and(stopped).and(flushed);
        match if over { lane.finish_at_last_frame() } else { lane.finish() } {
            Ok(counts) => (counts, ended.err()),
            Err(error) => {
                (ledger::LaneCounts { queue, ..Default::default() }, ended.and::<()>(Err(error.into())).err())
            }
        }
    }

    fn read_lane(&self, i: usize, lane: &mut Lane) -> Result<(), Error> {
        let mut now = Instant::now();
        let mut published = now;
        loop {
            let Some(batch) = lane.next_batch(now + TICK)? else { return Ok(()) };
            // The only reading of the clock for a batch.
            now = Instant::now();
            if batch.is_empty() {
                drop(batch);
                lock(&self.sink).idle(now)?;
            } else {
                self.take(batch)?;
            }
            if self.remaining_packets.load(Ordering::Acquire) == 0 {
                return Ok(());
            }
            // A signal that arrives just before the watching thread waits does not end its wait.
            if self.limits.terminated.load(Ordering::Relaxed) {
                lock(&self.session).stop()?;
            }
            if now - published >= live::PERIOD {
                published = now;
                self.flush_due(now)?;
                lock(&self.snapshots)[i] = lane.account()?;
            }
        }
    }

    /// Lets the sink flush, and stores the number of its written bytes.
    fn flush_due(&self, now: Instant) -> Result<(), Error> {
        let mut sink = lock(&self.sink);
        sink.idle(now)?;
        if let (Some(stored), Some(bytes)) = (&self.written_bytes, sink.written_bytes()) {
            stored.store(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Passes the frames of a batch to the sink, up to the remaining count.
    fn take(&self, mut batch: Batch<'_>) -> Result<(), Error> {
        let mut sink = lock(&self.sink);
        let mut remaining = self.remaining_packets.load(Ordering::Acquire);
        if remaining == 0 {
            return Ok(());
        }
        // The limit is applied here, as the batch's length includes frames that its filter will
        // reject.
        let taken = if sink.only_counts() {
            remaining -= batch.count(remaining);
            Ok(())
        } else {
            batch.try_each(usize::MAX, |frame| {
                sink.take(frame).map_err(Some)?;
                take_one(&mut remaining)
            })
        };
        self.remaining_packets.store(remaining, Ordering::Release);
        match taken {
            Err(Some(error)) => Err(error),
            Err(None) | Ok(()) => sink.end_batch(),
        }
    }

    /// Reports each change of the link state and of the carrier once.
    fn report_link(&self, reported: &mut LinkStatus, mut live: Option<&mut LiveLine>) {
        let (link, name) = {
            let session = lock(&self.session);
            (session.link(), session.interface().to_owned())
        };
        let before = std::mem::replace(reported, link);
        let notices = [state_notice(before, link), carrier_notice(before, link), mtu_notice(before, link)];
        for notice in notices.into_iter().flatten() {
            if let Some(live) = live.as_deref_mut() {
                live.clear();
            }
            print_stderr(format_args!("strait: note: {name} {notice}\n"));
        }
    }

    /// Returns the ledger as of the last snapshots.
    fn report(&self) -> Report {
        let lanes = lock(&self.snapshots).clone();
        lock(&self.session).report(lanes)
    }

    /// Passes the ledger to a sink that stores it.
    fn record(&self) {
        let mut report = self.report();
        let mut sink = lock(&self.sink);
        sink.charge(&mut report);
        sink.record(&report);
    }

    /// Returns this ledger as Prometheus text.
    fn exposition(&self) -> String {
        let mut text = Text::default();
        let report = self.report();
        write_capture(&mut text, &report);
        if let Some(count) = &self.count_targets {
            write_targets(&mut text, &report, &count());
        }
        text.into_string()
    }

    /// Stops the session at its time limit or on a signal, and draws the live line, until all lanes
    /// have ended.
    fn watch(&self, mut live: Option<LiveLine>) {
        let mut drawn = Instant::now();
        let mut recorded = drawn;
        let mut reported = LinkStatus::default();
        while self.running.load(Ordering::Acquire) > 0 {
            self.wait_for_event(drawn + live::PERIOD);
            self.reload_filter(live.as_mut());
            if self.is_over() {
                // A failure is reported by the lane, which stops the session again.
                let _ = lock(&self.session).stop();
            }
            if drawn.elapsed() < live::PERIOD {
                continue;
            }
            drawn = Instant::now();
            self.report_link(&mut reported, live.as_mut());
            if self.records && recorded.elapsed() >= RECORD_EVERY {
                recorded = drawn;
                self.record();
            }
            if let Some(live) = live.as_mut() {
                let report = self.report();
                let written_bytes = self.written_bytes.as_ref().map(|bytes| bytes.load(Ordering::Relaxed));
                live.draw(&report, written_bytes);
            }
        }
        self.report_link(&mut reported, live.as_mut());
        if let Some(live) = &mut live {
            live.clear();
        }
    }

    /// Replaces the filter by that of its file after a signal.
    fn reload_filter(&self, live: Option<&mut LiveLine>) {
        let Some(file) = self.limits.filter_file else { return };
        let note = file.reload_if_requested(|program| lock(&self.session).replace_filter(program));
        if let Some(note) = note {
            live.into_iter().for_each(LiveLine::clear);
            print_stderr(format_args!("strait: note: {note}\n"));
        }
    }

    /// Waits until a lane has ended, a signal has arrived, the time limit is reached, or `until`.
    fn wait_for_event(&self, until: Instant) {
        let limit = self.limits.duration.filter(|_| !self.is_over());
        let end = limit.and_then(|limit| self.started.checked_add(limit)).map_or(until, |end| end.min(until));
        let left = end.saturating_duration_since(Instant::now());
        if strait_os::wait::readable([Some(self.lane_ended.as_fd())], left).is_err() {
            strait_os::wait::sleep(left.min(TICK));
        }
        self.lane_ended.clear();
    }

    /// Returns true if the time limit is reached or a signal has arrived.
    fn is_over(&self) -> bool {
        let Limits { duration, terminated, .. } = self.limits;
        terminated.load(Ordering::Relaxed) || duration.is_some_and(|limit| self.started.elapsed() >= limit)
    }
}

/// Subtracts a packet from the remaining ones. `Err(None)` after the last.
#[inline]
pub(crate) fn take_one(remaining: &mut u64) -> Result<(), Option<Error>> {
    *remaining -= 1;
    if *remaining == 0 { Err(None) } else { Ok(()) }
}

/// Returns the notice for a link that was set down or up.
fn state_notice(before: LinkStatus, now: LinkStatus) -> Option<String> {
    match (before.is_down, now.is_down) {
        (false, true) => Some("is down: the capture goes on when it is up again".into()),
        (true, false) => Some(up_again(now)),
        // Down and up since the last check.
        (false, false) if now.downs > before.downs => Some(up_again(now)),
        _ => None,
    }
}

fn up_again(link: LinkStatus) -> String {
    format!("is up again; it was down for {:.3} s in total", link.down_for.as_secs_f64())
}

/// Returns the notice for a change of the carrier. A link that is down has no carrier, which is not
/// reported.
fn carrier_notice(before: LinkStatus, now: LinkStatus) -> Option<String> {
    if now.is_down {
        return None;
    }
    let lost = now.carrier_losses > before.carrier_losses;
    match (before.has_no_carrier, now.has_no_carrier) {
        (false, true) => Some("has no carrier: no packets arrive until it has one".into()),
        (true, false) => Some(carrier_again(now)),
        (false, false) if lost => Some(carrier_again(now)),
        _ => None,
    }
}

/// Returns the notice for an MTU that has grown, if the capture cuts longer frames.
fn mtu_notice(before: LinkStatus, now: LinkStatus) -> Option<String> {
    now.mtu_beyond_slots.filter(|_| before.mtu_beyond_slots.is_none()).map(|mtu| {
        format!(
            "has an MTU of {mtu} now: the slots of this capture cut its longest packets; restart it, or give another \
             --path"
        )
    })
}

fn carrier_again(link: LinkStatus) -> String {
    format!("has a carrier again; it had none for {:.3} s in total", link.no_carrier_for.as_secs_f64())
}

/// Guard of a running lane. After a panic it also stops the session, as the other lanes would never
/// end otherwise.
struct LaneGuard<'r, 'a, T>(&'r CaptureState<'a, T>);

impl<T> Drop for LaneGuard<'_, '_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The panic is the reported failure.
            let _ = lock(&self.0.session).stop();
        }
        self.0.running.fetch_sub(1, Ordering::AcqRel);
        self.0.lane_ended.interrupt();
    }
}

/// Locks a mutex, also after a panic of another lane: the state stays usable for the final ledger.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
