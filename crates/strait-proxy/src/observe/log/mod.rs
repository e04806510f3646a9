//! Access log: one line per exchange, gathered by each worker and written by a thread.
//!
//! A worker never waits for the log. If the thread's queue is full, or a write fails, lines are
//! lost and counted. A line that is cut by a failed write is completed by the next write.

mod line;

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
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
use crate::observe::OnNote;
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
}

/// Whole lines and their number.
#[derive(Debug, Default)]
struct Lines {
    text: Vec<u8>,
    count: u64,
}

impl Log {
    /// Opens the log; `-` is standard output. Lines that cannot be written are counted in `lost`.
    /// Starts no thread: each thread has its own capabilities, and the caller can drop them first.
    pub(crate) fn open(path: &Path, lost: &Arc<AtomicU64>) -> Result<(Self, Writer)> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let log = Self { path: path.to_owned(), sender, next: Arc::default() };
        let writer = Writer {
            path: path.to_owned(),
            out: open(path)?,
            receiver,
            next: log.next.clone(),
            rest: Vec::new(),
            lost: lost.clone(),
            lost_now: 0,
        };
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
    path: PathBuf,
    out: File,
    receiver: Receiver<Lines>,
    next: Arc<Mutex<Option<File>>>,
    /// Rest of a line whose beginning is in the file.
    rest: Vec<u8>,
    lost: Arc<AtomicU64>,
    /// Lines lost since the last successful write.
    lost_now: u64,
}

impl Writer {
    /// Starts the thread. It ends with the last copy of the [`Log`]. `on_note` gets a line when
    /// the first line is lost, and when lines can be written again.
    pub(crate) fn start(self, on_note: OnNote) -> Result<JoinHandle<()>> {
        let thread = std::thread::Builder::new().name("log".to_owned()).spawn(move || self.run(&*on_note));
        thread.map_err(|error| Error::os("start", &"a thread", error))
    }

    fn run(mut self, on_note: &(dyn Fn(&str) + Send + Sync)) {
        while let Ok(lines) = self.receiver.recv() {
            let next = self.next.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(next) = next {
                self.out = next;
                self.lose_rest();
            }
            match self.write(&lines.text) {
                Ok(()) if self.lost_now > 0 && lines.count > 0 => {
                    let path = self.path.display();
                    on_note(&format!("access log {path}: written again; lost lines: {}", self.lost_now));
                    self.lost_now = 0;
                }
                Ok(()) => {}
                Err((error, lost)) => {
                    if self.lost_now == 0 && lost > 0 {
                        let path = self.path.display();
                        on_note(&format!(
                            "access log {path}: {error}: lines are lost until it can be written"
                        ));
                    }
                    self.lose(lost);
                }
            }
        }
        self.lose_rest();
    }

    /// Gives up a line that is cut.
    fn lose_rest(&mut self) {
        if !std::mem::take(&mut self.rest).is_empty() {
            self.lose(1);
        }
    }

    fn lose(&mut self, lines: u64) {
        self.lost.fetch_add(lines, Ordering::Relaxed);
        self.lost_now += lines;
    }

    /// Writes the rest of a cut line, and whole lines. A failure returns the number of lines that
    /// are lost: those of which no byte was written.
    fn write(&mut self, text: &[u8]) -> std::result::Result<(), (io::Error, u64)> {
        let rest = std::mem::take(&mut self.rest);
        let lines = |text: &[u8]| text.split(|byte| *byte == b'\n').count() as u64 - 1;
        match write_most(&mut self.out, &rest) {
            (_, None) => {}
            (written, Some(error)) => {
                rest[written..].clone_into(&mut self.rest);
                return Err((error, lines(text)));
            }
        }
        let (written, error) = write_most(&mut self.out, text);
        let Some(error) = error else { return Ok(()) };
        let unwritten = &text[written..];
        let is_cut = written > 0 && text[written - 1] != b'\n';
        let end = unwritten.iter().position(|byte| *byte == b'\n').map_or(unwritten.len(), |at| at + 1);
        let (rest, lost) = unwritten.split_at(if is_cut { end } else { 0 });
        rest.clone_into(&mut self.rest);
        Err((error, lines(lost)))
    }
}

/// Writes as many bytes as possible. Returns their number, and the error if they are not all.
fn write_most(out: &mut File, bytes: &[u8]) -> (usize, Option<io::Error>) {
    let mut written = 0;
    while written < bytes.len() {
        match out.write(&bytes[written..]) {
            Ok(0) => return (written, Some(ErrorKind::WriteZero.into())),
            Ok(now) => written += now,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (written, Some(error)),
        }
    }
    (written, None)
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
        let log = Log { path: "-".into(), sender, next: Arc::default() };
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
        let (log, writer) = Log::open(&path, &Arc::default()).unwrap();
        let thread = writer.start(Arc::new(|_| {})).unwrap();
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

    /// Pipe whose reader is slow: a write takes what fits, as on a full disk.
    fn full_pipe() -> (File, File) {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        (reader.into(), writer.into())
    }

    #[test]
    fn lost_lines_are_counted_and_a_cut_line_is_completed() {
        let (mut reader, out) = full_pipe();
        let (sender, receiver) = sync_channel(8);
        let (lost, notes) = (Arc::<AtomicU64>::default(), Arc::<Mutex<Vec<String>>>::default());
        let writer = Writer {
            path: "log".into(),
            out,
            receiver,
            next: Arc::default(),
            rest: Vec::new(),
            lost: lost.clone(),
            lost_now: 0,
        };
        let told = notes.clone();
        let thread = writer.start(Arc::new(move |note| told.lock().unwrap().push(note.to_owned()))).unwrap();
        let wait_until = |is_done: &dyn Fn() -> bool| {
            while !is_done() {
                std::thread::yield_now();
            }
        };
        let line = |byte: u8| [vec![byte; 40_000], b"\n".to_vec()].concat();
        // 64 KiB fit into the pipe: one line, the beginning of the second, none of the third.
        sender.send(Lines { text: [line(b'a'), line(b'b'), line(b'c')].concat(), count: 3 }).unwrap();
        wait_until(&|| lost.load(Ordering::Relaxed) == 1);
        let mut read = vec![0; 65_536];
        std::io::Read::read_exact(&mut reader, &mut read).unwrap();
        sender.send(Lines { text: b"d\n".to_vec(), count: 1 }).unwrap();
        wait_until(&|| notes.lock().unwrap().len() == 2);
        drop(sender);
        thread.join().unwrap();
        std::io::Read::read_to_end(&mut reader, &mut read).unwrap();
        assert!(read == [line(b'a'), line(b'b'), b"d\n".to_vec()].concat());
        assert_eq!(lost.load(Ordering::Relaxed), 1);
        let notes = notes.lock().unwrap();
        assert!(notes[0].contains("lines are lost"), "{notes:?}");
        assert_eq!(notes[1], "access log log: written again; lost lines: 1");
    }
}
