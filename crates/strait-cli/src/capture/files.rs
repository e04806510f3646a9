//! `-r` with `--to`: writes tables of capture files, several files at a time.
//!
//! Each worker reads one file after the other into tables of its own, so that workers share nothing
//! for a packet. The rows do not depend on the number of workers: the flows of a file end with it.
//! In the ledger each file is a lane, whose number is the position of the file.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use strait_capture::{Lane, Session};
use strait_ledger::{LaneCounts, Report, TargetReport};

use super::{Args, JsonReport, print_report};
use crate::Error;
use crate::bulk::Bar;
use crate::lanes::take_one;
use crate::output::{ClosedTarget, Targets, finish, print_stderr};
use crate::sink::Sink;

/// Maximum number of workers. Each has row groups and flows in memory.
const WORKERS_MAX: usize = 16;
/// Interval at which progress is drawn.
const TICK: Duration = Duration::from_millis(100);
/// Maximum number of printed failures.
const FAILURES_MAX: usize = 10;

/// Returns true if the files are read here: several, or one of a known size. Standard input and
/// pipes are read like an interface.
pub(super) fn are_for_workers(files: &[String]) -> bool {
    match files {
        [file] => file != "-" && fs::metadata(file).is_ok_and(|metadata| metadata.is_file()),
        files => !files.is_empty(),
    }
}

/// Reads all files and writes their tables.
pub(super) fn run(args: &Args, files: &[String]) -> Result<(), Error> {
    let filter = args.filter()?;
    let terminated = strait_os::process::on_termination()?;
    // With a maximum number of packets, those are the first ones.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = if args.count.is_some() { 1 } else { cpus.min(WORKERS_MAX).min(files.len()) };
    let tables = args.output.open_tables(workers)?;
    args.drop_privileges()?;
    let name = match files {
        [file] => file.clone(),
        files => format!("{} files", files.len()),
    };
    if !args.json {
        let several = if workers > 1 { format!(", {workers} at a time") } else { String::new() };
        print_stderr(format_args!("reading from {name}{several}\n"));
    }
    let reading = Reading {
        args,
        files,
        filter: &filter,
        next: AtomicUsize::new(0),
        read_bytes: AtomicU64::new(0),
        failed: AtomicBool::new(false),
        terminated,
        end: args.time_limit().and_then(|limit| Instant::now().checked_add(limit)),
    };
    let started = Instant::now();
    let mut done = reading.run(tables);
    let mut report = Report {
        path: "file".into(),
        mode: "read".into(),
        interface: name,
        seconds: started.elapsed().as_secs_f64(),
        ..Report::default()
    };
    for target in &mut done.targets {
        target.lanes = vec![LaneCounts { queue: 0, cpu: None, capture: target.capture }];
    }
    report.set_targets(std::mem::take(&mut done.targets));
    let closed = finish(std::mem::take(&mut done.closed), Vec::new());
    print_report(&JsonReport::new(&report, None, &closed.exported), args.json)?;
    closed.end(done.result(files), args.json)
}

/// Files to read, and the state that the workers share.
struct Reading<'a> {
    args: &'a Args,
    files: &'a [String],
    filter: &'a str,
    /// Position of the file that the next worker takes.
    next: AtomicUsize,
    read_bytes: AtomicU64,
    /// True after a failure that ends all workers.
    failed: AtomicBool,
    terminated: &'a AtomicBool,
    end: Option<Instant>,
}

/// Result of one worker or of all.
#[derive(Default)]
struct Done {
    /// Ledger of each target, the sum of the files.
    targets: Vec<TargetReport>,
    /// Tables of each target.
    closed: Vec<ClosedTarget>,
    /// Failures to read a file, which do not end the others.
    unread: Vec<Error>,
    /// Failure that has ended the reading.
    failure: Option<Error>,
}

impl Done {
    fn add(&mut self, other: Self) {
        if self.targets.is_empty() {
            (self.targets, self.closed) = (other.targets, other.closed);
        } else {
            for (target, other) in self.targets.iter_mut().zip(&other.targets) {
                target.capture.add(&other.capture);
            }
            for (target, other) in self.closed.iter_mut().zip(other.closed) {
                target.add(other);
            }
        }
        self.unread.extend(other.unread);
        self.failure = self.failure.take().or(other.failure);
    }

    /// Returns the failure to report last, and prints those before it.
    fn result(mut self, files: &[String]) -> Option<Error> {
        if self.failure.is_some() {
            return self.failure;
        }
        let count = self.unread.len();
        if files.len() == 1 || count == 0 {
            return self.unread.pop();
        }
        for error in self.unread.iter().take(FAILURES_MAX) {
            print_stderr(format_args!("strait: {error}\n"));
        }
        let more = count.saturating_sub(FAILURES_MAX);
        let hidden = if more > 0 { format!(", {more} of which are not listed") } else { String::new() };
        Some(Error::Failed(format!(
            "{count} of {} files could not be read to their end{hidden}; the tables have all other packets",
            files.len()
        )))
    }
}

impl Reading<'_> {
    /// Runs a worker for each of `tables`, and draws the progress until all have ended.
    fn run(&self, tables: Vec<Targets>) -> Done {
        let sizes = self.files.iter().map(|file| fs::metadata(file).map_or(0, |metadata| metadata.len()));
        let mut bar = Bar::new(Some(sizes.sum()), 0);
        let (ended, all_ended) = channel::<()>();
        std::thread::scope(|scope| {
            let start = |tables| {
                let ended = ended.clone();
                scope.spawn(move || {
                    let done = Worker::new(self, tables).run();
                    // The last sender that is dropped ends the wait below.
                    drop(ended);
                    done
                })
            };
            let workers: Vec<_> = tables.into_iter().map(start).collect();
            drop(ended);
            while all_ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                bar.update(self.read_bytes.load(Ordering::Relaxed));
            }
            let mut all = Done::default();
            for worker in workers {
                all.add(worker.join().unwrap_or_else(|_| panicked()));
            }
            all
        })
    }

    fn is_over(&self) -> bool {
        self.terminated.load(Ordering::Relaxed)
            || self.failed.load(Ordering::Relaxed)
            || self.end.is_some_and(|end| Instant::now() >= end)
    }
}

/// Returns the result of a worker that panicked. Its counts are lost.
fn panicked() -> Done {
    let cause = "a thread that reads files panicked: this is a defect of strait, please report it";
    Done { failure: Some(Error::Failed(cause.into())), ..Done::default() }
}

/// Reader of one file after the other.
struct Worker<'a> {
    reading: &'a Reading<'a>,
    tables: Targets,
    /// Remaining number of packets.
    remaining: u64,
    /// Ledger of each file.
    reports: Vec<Report>,
    unread: Vec<Error>,
}

impl<'a> Worker<'a> {
    fn new(reading: &'a Reading<'a>, tables: Targets) -> Self {
        let remaining = reading.args.count.unwrap_or(u64::MAX);
        Self { reading, tables, remaining, reports: Vec::new(), unread: Vec::new() }
    }

    fn run(mut self) -> Done {
        let read = self.tables.start().and_then(|()| self.read_files());
        if read.is_err() {
            self.reading.failed.store(true, Ordering::Relaxed);
        }
        let completed = self.tables.complete();
        let targets = self.tables.correct_files(&self.reports);
        let failure = read.and(completed).err();
        // The rows of the ledger are in the tables already.
        let closed = self.tables.close(&Report::default());
        Done { targets, closed, unread: self.unread, failure }
    }

    /// Reads files until there are none left. A file that cannot be read does not end it.
    fn read_files(&mut self) -> Result<(), Error> {
        while self.remaining > 0 && !self.reading.is_over() {
            let number = self.reading.next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = self.reading.files.get(number) else { return Ok(()) };
            match self.read_file(file, number as u32) {
                Err(Error::Capture(error @ strait_capture::Error::File(_))) => self.unread.push(error.into()),
                read => read?,
            }
        }
        Ok(())
    }

    fn read_file(&mut self, file: &str, number: u32) -> Result<(), Error> {
        let mut session = self.reading.args.open(file, self.reading.filter, 0)?;
        let Some(mut lane) = session.take_lanes().pop() else { return Ok(()) };
        self.tables.start_source(session.link_type(), number);
        let read = self.read_lane(&mut session, &mut lane);
        session.stop()?;
        // Packets after the last one of a maximum number do not belong to the capture.
        let finished = if self.remaining == 0 { lane.finish_at_last_frame() } else { lane.finish() };
        let report = session.report(vec![LaneCounts { queue: number, ..finished? }]);
        let ended = self.tables.end_file(&report);
        self.reports.push(report);
        read.and(ended)
    }

    fn read_lane(&mut self, session: &mut Session, lane: &mut Lane) -> Result<(), Error> {
        let Self { reading, tables, remaining, .. } = self;
        let mut before = 0;
        loop {
            let Some(mut batch) = lane.next_batch(Instant::now() + TICK)? else { break };
            let taken = batch.try_each(usize::MAX, |frame| {
                tables.take(frame).map_err(Some)?;
                take_one(remaining)
            });
            drop(batch);
            match taken {
                Ok(()) => {}
                Err(None) => break,
                Err(Some(error)) => return Err(error),
            }
            reading.advance(lane, &mut before);
            if reading.is_over() {
                session.stop()?;
            }
        }
        reading.advance(lane, &mut before);
        Ok(())
    }
}

impl Reading<'_> {
    /// Adds the bytes that the lane has read since `before`.
    fn advance(&self, lane: &Lane, before: &mut u64) {
        let now = lane.file_offset().unwrap_or(*before);
        self.read_bytes.fetch_add(now.saturating_sub(*before), Ordering::Relaxed);
        *before = now;
    }
}
