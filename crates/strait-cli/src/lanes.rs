//! Runs each lane of all sessions on its own thread until the capture ends. Then returns the
//! ledger.
//!
//! The first lane that ends stops its session, so that all lanes of it drain and their counts are
//! consistent. A lane ends after the requested count, on an error, or when the session is stopped.
//! After the count, and on an error of the sink, all sessions are stopped. If an interface fails,
//! the sessions of the others go on.

mod inputs;

use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use strait_capture::{Batch, Interrupter, Lane, LinkStatus};
use strait_ledger::prometheus::{Text, write_capture, write_targets};
use strait_ledger::{self as ledger, Report};

pub(crate) use self::inputs::{Inputs, Lanes};
use crate::Error;
use crate::capture::reload::{Reload, Reloading};
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
    /// Files that are read again on request.
    pub(crate) reloading: Option<&'a Reloading>,
}

/// Runs the sessions to their end. Returns the ledger, and the error if one ended a session early.
pub(crate) fn run<T: Sink>(
    (inputs, lanes): (Inputs, Lanes),
    sink: &mut T,
    limits: &Limits<'_>,
    live: Option<LiveLine>,
    metrics: Option<&Metrics>,
) -> (Report, Option<Error>) {
    let started = sink.start().and_then(|()| Ok(Interrupter::new()?));
    let lane_ended = match started {
        Ok(interrupter) => interrupter,
        Err(error) => return (inputs.report(Vec::new()), Some(error)),
    };
    let written_bytes = sink.written_bytes().map(AtomicU64::new);
    let (records, count_targets) = (sink.records(), sink.target_metrics());
    let state = CaptureState {
        snapshots: Mutex::new(lanes.iter().map(|(_, lane)| nothing(lane)).collect()),
        inputs,
        sink: Mutex::new(sink),
        written_bytes,
        records,
        count_targets,
        remaining_packets: AtomicU64::new(limits.count.unwrap_or(u64::MAX)),
        running: AtomicU64::new(lanes.len() as u64),
        lane_ended,
        notices: Mutex::new(Vec::new()),
        started: Instant::now(),
        limits,
    };
    let (counts, failure) = state.run_lanes(lanes, live, metrics);
    let completed = lock(&state.sink).complete();
    let mut report = state.inputs.report(counts);
    state.sink.into_inner().unwrap_or_else(PoisonError::into_inner).charge(&mut report);
    (report, failure.or(completed.err()))
}

/// Returns the counts of a lane that has read nothing yet.
fn nothing(lane: &Lane) -> ledger::LaneCounts {
    ledger::LaneCounts { queue: lane.queue(), ..Default::default() }
}

/// Counts of a lane that has ended, and its failure if there was one.
type LaneResult = (ledger::LaneCounts, Option<LaneError>);

/// Failure of a lane.
enum LaneError {
    /// Failure of the interface at a position, which does not end the others.
    Interface(usize, Error),
    /// Failure that ends the whole capture.
    Whole(Error),
}

/// Returns the result of a lane that panicked. Its counts are lost.
fn panicked_lane(queue: u32) -> LaneResult {
    let cause = "a lane's thread panicked: this is a defect of strait, please report it";
    let counts = ledger::LaneCounts { queue, ..Default::default() };
    (counts, Some(LaneError::Whole(Error::Failed(cause.to_owned()))))
}

/// State of a running capture.
struct CaptureState<'a, T> {
    inputs: Inputs,
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
    /// Failures of interfaces that the watching thread has not reported yet, at most one for each.
    notices: Mutex<Vec<String>>,
    started: Instant,
    limits: &'a Limits<'a>,
}

impl<T: Sink> CaptureState<'_, T> {
    /// Runs all lanes. Returns their counts, and the failure to report.
    fn run_lanes(
        &self,
        lanes: Lanes,
        live: Option<LiveLine>,
        metrics: Option<&Metrics>,
    ) -> (Vec<ledger::LaneCounts>, Option<Error>) {
        let ended = std::thread::scope(|scope| {
            let start = |(i, (input, lane)): (usize, (usize, Lane))| {
                (lane.queue(), scope.spawn(move || self.run_lane(i, input, lane)))
            };
            let threads: Vec<_> = lanes.into_iter().enumerate().map(start).collect();
            let serving = metrics.map(|metrics| metrics.serve_in(scope, || self.exposition()));
            self.watch(live);
            drop(serving);
            threads
                .into_iter()
                .map(|(queue, thread)| thread.join().unwrap_or_else(|_| panicked_lane(queue)))
                .collect::<Vec<_>>()
        });
        let (counts, errors): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
        (counts, self.failure(errors.into_iter().flatten()))
    }

    /// Returns the failure to report at the end: the first that was not reported yet, else the
    /// first one.
    fn failure(&self, errors: impl Iterator<Item = LaneError>) -> Option<Error> {
        let (mut noted, mut first) = (None, None);
        for error in errors {
            match error {
                LaneError::Interface(at, error) if self.inputs.is_noted(at) => noted = noted.or(Some(error)),
                LaneError::Interface(_, error) | LaneError::Whole(error) => first = first.or(Some(error)),
            }
        }
        first.or(noted)
    }

    /// Runs a lane from its first packet to its end.
    fn run_lane(&self, i: usize, input: usize, mut lane: Lane) -> LaneResult {
        let _guard = LaneGuard(self);
        let none = nothing(&lane);
        let entered = lane.enter_thread().map_err(|error| LaneError::Whole(error.into()));
        let result = entered.and_then(|()| self.read_lane(i, input, &mut lane));
        // After the requested count the capture is over, even if the rings hold more packets.
        let over = result.is_ok() && self.remaining_packets.load(Ordering::Acquire) == 0;
        let stopped = self.stop_after(input, &result, over).map_err(LaneError::Whole);
        let flushed = lock(&self.sink).flush().map_err(LaneError::Whole);
        if flushed.is_err() {
            // The failure of the stop is reported by the lanes that it is of.
            let _ = self.inputs.stop_all();
        }
        let ended = result.and(stopped).and(flushed);
        match if over { lane.finish_at_last_frame() } else { lane.finish() } {
            Ok(counts) => {
                // Other interfaces may go on, and the metrics with them.
                lock(&self.snapshots)[i] = counts;
                (counts, ended.err())
            }
            Err(error) => (none, Some(ended.err().unwrap_or(LaneError::Interface(input, error.into())))),
        }
    }

    /// Stops the session of a lane that has ended, or all sessions if the capture is over.
    fn stop_after(&self, input: usize, result: &Result<(), LaneError>, over: bool) -> Result<(), Error> {
        match result {
            Err(LaneError::Whole(_)) => return self.inputs.stop_all(),
            Err(LaneError::Interface(_, error)) if self.inputs.fail(input) => {
                lock(&self.notices).push(error.to_string());
            }
            Ok(()) if over => return self.inputs.stop_all(),
            Err(LaneError::Interface(..)) | Ok(()) => {}
        }
        self.inputs.stop(input)
    }

    fn read_lane(&self, i: usize, input: usize, lane: &mut Lane) -> Result<(), LaneError> {
        let of_interface = |error: strait_capture::Error| LaneError::Interface(input, error.into());
        let mut now = Instant::now();
        let mut published = now;
        loop {
            let Some(batch) = lane.next_batch(now + TICK).map_err(of_interface)? else { return Ok(()) };
            // The only reading of the clock for a batch.
            now = Instant::now();
            if batch.is_empty() {
                drop(batch);
                lock(&self.sink).idle(now).map_err(LaneError::Whole)?;
            } else {
                self.take(input, batch).map_err(LaneError::Whole)?;
            }
            if self.remaining_packets.load(Ordering::Acquire) == 0 {
                return Ok(());
            }
            // A signal that arrives just before the watching thread waits does not end its wait.
            if self.limits.terminated.load(Ordering::Relaxed) {
                self.inputs.stop(input).map_err(LaneError::Whole)?;
            }
            if now - published >= live::PERIOD {
                published = now;
                self.flush_due(now).map_err(LaneError::Whole)?;
                lock(&self.snapshots)[i] = lane.account().map_err(of_interface)?;
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
    fn take(&self, input: usize, mut batch: Batch<'_>) -> Result<(), Error> {
        let mut sink = lock(&self.sink);
        let mut remaining = self.remaining_packets.load(Ordering::Acquire);
        if remaining == 0 {
            return Ok(());
        }
        sink.begin_batch(input);
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

    /// Reports each change of the link state and of the carrier once, and interfaces that failed.
    fn report_links(&self, reported: &mut [LinkStatus], live: Option<&mut LiveLine>) {
        let failures = std::mem::take(&mut *lock(&self.notices));
        let mut notices: Vec<String> =
            failures.into_iter().map(|failure| failure + "; the other interfaces go on").collect();
        for ((name, link), reported) in self.inputs.links().into_iter().zip(reported) {
            let before = std::mem::replace(reported, link);
            let changes =
                [state_notice(before, link), carrier_notice(before, link), mtu_notice(before, link)];
            notices.extend(changes.into_iter().flatten().map(|notice| format!("{name} {notice}")));
        }
        let mut live = live;
        for notice in notices {
            if let Some(live) = &mut live {
                live.clear_for(&notice);
            }
            print_stderr(format_args!("strait: note: {notice}\n"));
        }
    }

    /// Returns the ledger as of the last snapshots.
    fn report(&self) -> Report {
        let lanes = lock(&self.snapshots).clone();
        self.inputs.report(lanes)
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

    /// Stops the sessions at the time limit or on a signal, and draws the live line, until all
    /// lanes have ended.
    fn watch(&self, mut live: Option<LiveLine>) {
        let mut drawn = Instant::now();
        let mut recorded = drawn;
        let mut reported = vec![LinkStatus::default(); self.inputs.links().len()];
        while self.running.load(Ordering::Acquire) > 0 {
            self.wait_for_event(drawn + live::PERIOD);
            self.reload(live.as_mut());
            if self.is_over() {
                // A failure is reported by the lane, which stops its session again.
                let _ = self.inputs.stop_all();
            }
            if drawn.elapsed() < live::PERIOD {
                continue;
            }
            drawn = Instant::now();
            self.report_links(&mut reported, live.as_mut());
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
        self.report_links(&mut reported, live.as_mut());
        if let Some(note) = self.limits.reloading.and_then(|reloading| reloading.end_note(Instant::now())) {
            live.as_mut().into_iter().for_each(LiveLine::clear);
            print_stderr(format_args!("strait: note: {note}\n"));
        }
        if let Some(live) = &mut live {
            live.end(|| self.report());
        }
    }

    /// Reads files again after a signal, and replaces the filter and the targets by theirs.
    fn reload(&self, mut live: Option<&mut LiveLine>) {
        let Some(reloading) = self.limits.reloading else { return };
        while let Some(reload) = reloading.poll(Instant::now()) {
            let note = match reload {
                Reload::HungUp => {
                    self.limits.terminated.store(true, Ordering::Release);
                    return;
                }
                Reload::Filter(programs) => {
                    let replaced = programs.and_then(|programs| self.inputs.replace_filters(&programs));
                    reloading.filter_note(&replaced)
                }
                Reload::Targets(opened) => {
                    let changed = opened.map(|()| {
                        let report = self.report();
                        lock(&self.sink).change_targets(&report)
                    });
                    reloading.targets_note(&changed)
                }
            };
            live.as_mut().into_iter().for_each(|live| live.clear());
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

/// Guard of a running lane. After a panic it also stops all sessions, as the other lanes would
/// never end otherwise.
struct LaneGuard<'r, 'a, T>(&'r CaptureState<'a, T>);

impl<T> Drop for LaneGuard<'_, '_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The panic is the reported failure.
            let _ = self.0.inputs.stop_all();
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
