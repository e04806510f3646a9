//! The thread that reads the lanes and counts.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use strait_capture::owners::Owners;
use strait_capture::{FilterCompiler, Lane, Session};
use strait_ledger::Report;
use strait_os::clock;

use super::tally::Tally;
use crate::Error;

/// Time to wait for packets: of a single lane, or of each of several lanes.
const WAIT_OF_ONE: Duration = Duration::from_millis(50);
const WAIT_OF_SEVERAL: Duration = Duration::from_millis(1);
/// Interval at which the kernel's counters are read.
const ACCOUNT_PERIOD: Duration = Duration::from_millis(200);

/// Message for a filter that needs a dropped privilege. It fits in a line of 80 columns.
const NO_PRIVILEGE: &str = "xdp needs privilege to change its filter: give it at the start, or --path v3";

/// Counts since the previous sample, and the account of the whole session.
pub(super) struct Sample {
    pub(super) tally: Tally,
    pub(super) report: Report,
    pub(super) elapsed: Duration,
    /// True if the interface is down or has no carrier: no packet can arrive.
    pub(super) is_down: bool,
}

/// An open capture before its reading thread starts. The caller drops capabilities between the two.
pub(super) struct Source {
    session: Session,
    lanes: Vec<Lane>,
    compiler: Result<FilterCompiler, String>,
    owners: Option<Owners>,
}

/// The reading thread.
pub(super) struct Reader {
    shared: Arc<Shared>,
    filters: Sender<(String, SyncSender<Result<(), Error>>)>,
    thread: JoinHandle<Result<(), Error>>,
}

/// State shared by both threads.
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
    /// Takes the lanes of `session`, which is open on `interface`.
    pub(super) fn new(mut session: Session, interface: &str) -> Self {
        let lanes = session.take_lanes();
        // Opened while the privilege exists, to compile later filters.
        let compiler = FilterCompiler::open(interface).map_err(|error| error.to_string());
        Self { owners: session.owners(), session, lanes, compiler }
    }
}

impl Reader {
    /// Starts a thread that reads `source`. It has the capabilities of the calling thread.
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

    /// Returns the counts since the last call.
    ///
    /// # Errors
    /// The reading has ended; [`Reader::finish`] returns the cause.
    pub(super) fn take(&self) -> Result<Sample, Error> {
        if self.has_ended() {
            return Err(Error::Failed("the capture has ended".into()));
        }
        Ok(self.shared.take())
    }

    /// Returns true if the reading has ended, which without [`Reader::finish`] means a failure.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Changes the filter of the capture.
    pub(super) fn set_filter(&self, text: &str) -> Result<(), Error> {
        let ended = || Error::Failed("the capture has ended".into());
        let (reply, answer) = sync_channel(1);
        self.filters.send((text.to_owned(), reply)).map_err(|_| ended())?;
        answer.recv().map_err(|_| ended())?
    }

    /// Ends the capture. Returns the counts since the last call of [`Reader::take`] with the final
    /// account, and the failure of the reading if there was one.
    pub(super) fn finish(self) -> (Sample, Result<(), Error>) {
        self.shared.stopping.store(true, Ordering::Release);
        let panicked =
            || Err(Error::Failed("the reading thread panicked: this is a defect of strait".into()));
        let ended = self.thread.join().unwrap_or_else(|_| panicked());
        (self.shared.take(), ended)
    }
}

/// State of the reading thread.
struct Work {
    source: Source,
    orders: Receiver<(String, SyncSender<Result<(), Error>>)>,
    shared: Arc<Shared>,
}

impl Work {
    fn run(mut self) -> Result<(), Error> {
        if let Err(error) = self.read_until_stopped() {
            // Best effort: the account of a lane on a removed interface may fail too.
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
                // Cannot fail: `Reader::set_filter` waits for the reply.
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

    /// Reads each lane once. Returns false when all lanes have ended.
    fn read(&mut self) -> Result<bool, Error> {
        let timeout = if self.source.lanes.len() == 1 { WAIT_OF_ONE } else { WAIT_OF_SEVERAL };
        // Link types of live captures fit in 16 bits.
        let link_type = self.source.session.link_type() as u16;
        let mut more = false;
        let Source { session, lanes, owners, .. } = &mut self.source;
        for lane in lanes {
            let mut batch = match lane.next_batch(Instant::now() + timeout) {
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
                let owner = owners.as_mut().map(|owners| owners.of(frame)).transpose()?.flatten();
                counts.tally.add(frame, link_type, now_ns, owner.map(|found| found.owner));
                Ok::<_, Error>(())
            })?;
        }
        let link = session.link();
        self.shared.counts().is_down = link.is_down || link.has_no_carrier;
        Ok(more)
    }

    fn set_filter(&mut self, text: &str) -> Result<(), Error> {
        let Source { session, lanes, compiler, .. } = &mut self.source;
        let compiler = compiler.as_ref().map_err(|reason| Error::Failed(reason.clone()))?;
        let program = compiler.compile(text)?;
        session.set_filter(lanes, &program).map_err(|error| match error.errno() {
            // AF_XDP loads a program, which needs a privilege that was dropped.
            Some(errno) if errno == Errno::PERM.raw_os_error() => Error::Refused(NO_PRIVILEGE.into()),
            _ => error.into(),
        })
    }
}
