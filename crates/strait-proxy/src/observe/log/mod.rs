//! Access log: one line per exchange, gathered by each worker and written by a thread.
//!
//! A worker never waits for the log. If the thread's queue is full, lines are dropped and counted.

mod line;

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use strait_ledger::SingleWriterCounter;
use strait_os::output;
use tokio::sync::Notify;

use crate::config::error::{Error, Result};
use crate::config::file::Format;
use crate::observe::access::Account;

/// Bytes of lines that a worker gathers before it hands them over.
const GATHERED_BYTES: usize = 16 << 10;
/// Maximum time that lines wait for more.
const GATHERED_FOR: Duration = Duration::from_millis(200);
/// Maximum of batches in the thread's queue: 4 MiB.
const WAITING_MAX: usize = 256;

/// Log file, which can be reopened after it was renamed.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) path: PathBuf,
    sender: SyncSender<Lines>,
    /// File for the next lines, if it was reopened.
    next: Arc<Mutex<Option<File>>>,
    /// Lines that could not be written.
    pub(crate) failed: Arc<AtomicU64>,
}

/// Whole lines and their number.
#[derive(Debug, Default)]
struct Lines {
    text: Vec<u8>,
    count: u64,
}

impl Log {
    /// Opens the log; `-` is standard output. Starts no thread: each thread has its own
    /// capabilities, and the caller can drop them first.
    pub(crate) fn open(path: &Path) -> Result<(Self, Writer)> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let log = Self { path: path.to_owned(), sender, next: Arc::default(), failed: Arc::default() };
        let writer =
            Writer { out: open(path)?, receiver, next: log.next.clone(), failed: log.failed.clone() };
        Ok((log, writer))
    }

    /// Reopens the file; keeps the old one if that fails.
    pub(crate) fn reopen(&self) -> Result<()> {
        let out = open(&self.path)?;
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(out);
        // With a full queue the thread is awake anyway.
        let _ = self.sender.try_send(Lines::default());
        Ok(())
    }
}

fn open(path: &Path) -> Result<File> {
    let file = if path == Path::new("-") {
        std::io::stdout().as_fd().try_clone_to_owned().map(File::from)
    } else {
        output::append(path)
    };
    file.map_err(|error| Error::os("open the access log", &path.display(), error))
}

/// State of the thread that writes the lines.
#[derive(Debug)]
pub(crate) struct Writer {
    out: File,
    receiver: Receiver<Lines>,
    next: Arc<Mutex<Option<File>>>,
    failed: Arc<AtomicU64>,
}

impl Writer {
    /// Starts the thread. It ends with the last copy of the [`Log`].
    pub(crate) fn start(self) -> Result<JoinHandle<()>> {
        let thread = std::thread::Builder::new().name("log".to_owned()).spawn(move || self.run());
        thread.map_err(|error| Error::os("start", &"a thread", error))
    }

    fn run(mut self) {
        while let Ok(lines) = self.receiver.recv() {
            if let Some(next) = self.next.lock().unwrap_or_else(PoisonError::into_inner).take() {
                self.out = next;
            }
            if self.out.write_all(&lines.text).and_then(|()| self.out.flush()).is_err() {
                self.failed.fetch_add(lines.count, Ordering::Relaxed);
            }
        }
    }
}

/// Lines that a worker gathers.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    lines: RefCell<Lines>,
    /// Log of the gathered lines, and true if a timer for them runs.
    log: RefCell<Option<Log>>,
    is_watched: Cell<bool>,
    begun: Rc<Notify>,
}

impl Gathered {
    /// Adds the line of an exchange.
    pub(crate) fn add(
        &self,
        log: &Log,
        format: Format,
        account: &Account<'_, '_>,
        dropped: &SingleWriterCounter,
    ) {
        let is_new = self.log.borrow().as_ref().is_none_or(|own| !Arc::ptr_eq(&own.next, &log.next));
        if is_new {
            self.hand_over(dropped);
            *self.log.borrow_mut() = Some(log.clone());
        }
        let len = {
            let mut lines = self.lines.borrow_mut();
            line::write(&mut lines.text, format, account, SystemTime::now());
            lines.count += 1;
            lines.text.len()
        };
        if len >= GATHERED_BYTES {
            self.hand_over(dropped);
        } else if !self.is_watched.replace(true) {
            self.begun.notify_one();
        }
    }

    /// Hands the gathered lines over; drops and counts them if the queue is full.
    pub(crate) fn hand_over(&self, dropped: &SingleWriterCounter) {
        let lines = std::mem::take(&mut *self.lines.borrow_mut());
        let log = self.log.borrow();
        let (Some(log), 1..) = (&*log, lines.count) else { return };
        if let Err(TrySendError::Full(lines) | TrySendError::Disconnected(lines)) = log.sender.try_send(lines)
        {
            dropped.add(lines.count);
        }
    }

    /// Hands the gathered lines over, and closes the log.
    pub(crate) fn close(&self, dropped: &SingleWriterCounter) {
        self.hand_over(dropped);
        *self.log.borrow_mut() = None;
    }

    /// Hands gathered lines over after at most [`GATHERED_FOR`].
    pub(crate) async fn watch(&self, dropped: &SingleWriterCounter) {
        loop {
            self.begun.notified().await;
            tokio::time::sleep(GATHERED_FOR).await;
            self.is_watched.set(false);
            self.hand_over(dropped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_queue_are_dropped_and_counted() {
        let (sender, receiver) = sync_channel(1);
        let log = Log { path: "-".into(), sender, next: Arc::default(), failed: Arc::default() };
        let gathered = Gathered { log: RefCell::new(Some(log)), ..Gathered::default() };
        let dropped = SingleWriterCounter::default();
        for text in [&b"a\nb\n"[..], b"c\nd\ne\n"] {
            *gathered.lines.borrow_mut() = Lines { text: text.to_vec(), count: text.len() as u64 / 2 };
            gathered.hand_over(&dropped);
        }
        assert_eq!((receiver.recv().unwrap().text, dropped.get()), (b"a\nb\n".to_vec(), 3));
    }

    #[test]
    fn a_file_that_was_renamed_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("log"), dir.path().join("log.1"));
        let (log, writer) = Log::open(&path).unwrap();
        let thread = writer.start().unwrap();
        let say = |text: &str| log.sender.send(Lines { text: text.into(), count: 1 }).unwrap();
        say("one\n");
        while std::fs::read(&path).unwrap().is_empty() {
            std::thread::yield_now();
        }
        std::fs::rename(&path, &old).unwrap();
        log.reopen().unwrap();
        say("two\n");
        drop(log);
        thread.join().unwrap();
        let read = |path| std::fs::read_to_string(path).unwrap();
        assert_eq!((read(&old), read(&path)), ("one\n".to_owned(), "two\n".to_owned()));
    }
}
