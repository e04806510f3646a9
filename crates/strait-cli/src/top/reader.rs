//! The thread that reads the lanes and counts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use strait_capture::{FilterCompiler, Lane, Session};
use strait_ledger::Report;
use strait_sys::clock;

use super::tally::Tally;
use crate::Error;

/// How long a lane is waited for: one alone, or each of several.
const PATIENCE: Duration = Duration::from_millis(50);
const PATIENCE_OF_EACH: Duration = Duration::from_millis(1);
/// How often the kernel's counters are read.
const ACCOUNT_PERIOD: Duration = Duration::from_millis(200);

/// What to do about a filter for which there is no privilege any more; it fits in a line of 80.
const FILTER_STAYS: &str = "xdp needs privilege to change its filter: give it at the start, or --path v3";

/// What came since it was last asked, and the account of the whole session.
pub(super) struct Sample {
    pub(super) tally: Tally,
    pub(super) report: Report,
    pub(super) elapsed: Duration,
    /// Whether the interface is down or has no carrier, and nothing can come.
    pub(super) is_down: bool,
}

/// An open capture with all that reading it takes, while nobody reads it yet: between the two,
/// capabilities are dropped.
pub(super) struct Source {
    session: Session,
    lanes: Vec<Lane>,
    compiler: Result<FilterCompiler, String>,
}

/// The reading thread.
pub(super) struct Reader {
    shared: Arc<Shared>,
    filters: Sender<(String, SyncSender<Result<(), Error>>)>,
    thread: JoinHandle<Result<(), Error>>,
}

/// What both threads see.
struct Shared {
    counts: Mutex<Counts>,
    stopping: AtomicBool,
}

struct Counts {
    tally: Tally,
    report: Report,
    since: Instant,
    is_down: bool,
}

impl Shared {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Sample {
        let mut counts = self.counts();
        let now = Instant::now();
        let elapsed = now - std::mem::replace(&mut counts.since, now);
        let (report, is_down) = (counts.report.clone(), counts.is_down);
        Sample { tally: std::mem::take(&mut counts.tally), report, elapsed, is_down }
    }
}

impl Source {
    /// Of `session`, which is on `interface`.
    pub(super) fn new(mut session: Session, interface: &str) -> Self {
        let lanes = session.take_lanes();
        // Filters that come later are compiled on a handle that is opened while there is the privilege.
        let compiler = FilterCompiler::open(interface).map_err(|error| error.to_string());
        Self { session, lanes, compiler }
    }
}

impl Reader {
    /// Reads `source` on a thread of its own, which has the capabilities of the one that calls
    /// this.
    pub(super) fn start(source: Source) -> Result<Self, Error> {
        let (tally, report) = (Tally::default(), Report::default());
        let counts = Counts { tally, report, since: Instant::now(), is_down: false };
        let shared = Arc::new(Shared { counts: Mutex::new(counts), stopping: AtomicBool::new(false) });
        let (filters, orders) = channel();
        let work = Work { source, orders, shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new().name("reader".into()).spawn(move || work.run());
        let thread = thread.map_err(|error| Error::Failed(format!("start a thread: {error}")))?;
        Ok(Self { shared, filters, thread })
    }

    /// What came since the last call.
    ///
    /// # Errors
    /// The reading has ended; [`Reader::finish`] says why.
    pub(super) fn take(&self) -> Result<Sample, Error> {
        if self.has_ended() {
            return Err(Error::Failed("the capture has ended".into()));
        }
        Ok(self.shared.take())
    }

    /// Whether the reading has ended, which it does by itself only where it failed.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Captures by another filter from now on.
    pub(super) fn set_filter(&self, text: &str) -> Result<(), Error> {
        let ended = || Error::Failed("the capture has ended".into());
        let (reply, answer) = sync_channel(1);
        self.filters.send((text.to_owned(), reply)).map_err(|_| ended())?;
        answer.recv().map_err(|_| ended())?
    }

    /// Ends the capture. Returns what came since the last call of [`Reader::take`] with the whole
    /// account, also where the reading had failed, and that failure.
    pub(super) fn finish(self) -> (Sample, Result<(), Error>) {
        self.shared.stopping.store(true, Ordering::Release);
        let died = || Err(Error::Failed("the reading thread died: a defect of strait".into()));
        let ended = self.thread.join().unwrap_or_else(|_| died());
        (self.shared.take(), ended)
    }
}

/// What the thread owns.
struct Work {
    source: Source,
    orders: Receiver<(String, SyncSender<Result<(), Error>>)>,
    shared: Arc<Shared>,
}

impl Work {
    fn run(mut self) -> Result<(), Error> {
        if let Err(error) = self.read_until_stopped() {
            // The account as it is: that of a lane whose interface is gone may fail too.
            let _ = self.account();
            return Err(error);
        }
        self.source.session.stop()?;
        while self.read()? {}
        let accounts = self.source.lanes.into_iter().map(Lane::finish).collect::<Result<_, _>>()?;
        self.shared.counts().report = self.source.session.report(accounts);
        Ok(())
    }

    fn read_until_stopped(&mut self) -> Result<(), Error> {
        let mut accounted = Instant::now();
        while !self.shared.stopping.load(Ordering::Acquire) {
            while let Ok((text, reply)) = self.orders.try_recv() {
                // Whoever asked waits for the answer, so that it can be sent.
                let _ = reply.send(self.set_filter(&text));
            }
            self.read()?;
            if accounted.elapsed() >= ACCOUNT_PERIOD {
                accounted = Instant::now();
                self.account()?;
            }
        }
        Ok(())
    }

    fn account(&mut self) -> Result<(), Error> {
        let accounts = self.source.lanes.iter_mut().map(Lane::account).collect::<Result<_, _>>()?;
        self.shared.counts().report = self.source.session.report(accounts);
        Ok(())
    }

    /// Reads each lane once; false when none has more to come.
    fn read(&mut self) -> Result<bool, Error> {
        let patience = if self.source.lanes.len() == 1 { PATIENCE } else { PATIENCE_OF_EACH };
        // Those of live captures are small numbers.
        let link_type = self.source.session.link_type() as u16;
        let mut more = false;
        for lane in &mut self.source.lanes {
            let mut batch = match lane.next_batch(Instant::now() + patience) {
                Ok(Some(batch)) => batch,
                Ok(None) => continue,
                Err(error) => return Err(error.into()),
            };
            more = true;
            if batch.is_empty() {
                continue;
            }
            let now_ns = clock::realtime_ns();
            let mut counts = self.shared.counts();
            batch.try_each(usize::MAX, |frame| {
                counts.tally.add(frame, link_type, now_ns);
                Ok::<_, Error>(())
            })?;
        }
        let link = self.source.session.link();
        self.shared.counts().is_down = link.is_down || link.has_no_carrier;
        Ok(more)
    }

    fn set_filter(&mut self, text: &str) -> Result<(), Error> {
        let Source { session, lanes, compiler, .. } = &mut self.source;
        let compiler = compiler.as_ref().map_err(|reason| Error::Failed(reason.clone()))?;
        let program = compiler.compile(text)?;
        session.set_filter(lanes, &program).map_err(|error| match error.errno() {
            // AF_XDP loads a program, and the privilege for that is gone.
            Some(errno) if errno == Errno::PERM.raw_os_error() => Error::Refused(FILTER_STAYS.into()),
            _ => error.into(),
        })
    }
}
