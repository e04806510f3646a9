//! File with the filter of a capture. SIGHUP reads it again and replaces the filter, without a gap.
//!
//! The thread that watches the lanes polls it. Another thread compiles, as libpcap's compiler can
//! need seconds. A defective file changes nothing.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use strait_capture::FilterCompiler;
use strait_filter::cbpf::Program;

use crate::Error;

/// Maximum bytes of a filter file. The time of libpcap's compiler grows faster than the text, about
/// with its cube: it has no limit.
const FILTER_BYTES_MAX: u64 = 1 << 20;
/// Time after the loss of a terminal in which SIGHUP means its hang-up. The kernel sends it at the
/// loss; a shell passes it on to its background jobs.
const HANGUP_DELAY_MAX: Duration = Duration::from_secs(2);

/// Reads a filter from a file.
pub(crate) fn read(file: &Path) -> Result<String, Error> {
    File::open(file).map_err(|error| error.to_string()).and_then(text).map_err(|reason| failed(file, &reason))
}

/// Reads a filter again. A pipe has no text a second time, and could block.
fn read_again(path: &Path) -> Result<String, Error> {
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let regular = |file: File| match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(file),
        Ok(_) => Err("it is not a regular file, and cannot be read again".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    let opened = options.open(path).map_err(|error| error.to_string());
    opened.and_then(regular).and_then(text).map_err(|reason| failed(path, &reason))
}

fn failed(file: &Path, reason: &str) -> Error {
    Error::Failed(format!("read the filter from {}: {reason}", file.display()))
}

/// Reads at most [`FILTER_BYTES_MAX`] bytes.
fn text(file: File) -> Result<String, String> {
    let mut text = String::new();
    file.take(FILTER_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > FILTER_BYTES_MAX {
        return Err(format!("it has more than {FILTER_BYTES_MAX} bytes"));
    }
    Ok(text)
}

/// SIGHUP of a capture with a filter file.
pub(crate) struct Reloads {
    /// Set by each SIGHUP.
    flag: &'static AtomicBool,
    terminal: Terminal,
}

impl Reloads {
    /// Handles SIGHUP from now on.
    pub(crate) fn on_hangup() -> Result<Self, Error> {
        // Under nohup(1) a capture outlives its terminal.
        let ends_with_terminal = !strait_os::process::ignores_hangup()? && has_terminal();
        let terminal = Terminal { ends: ends_with_terminal, lost: None };
        Ok(Self { flag: strait_os::process::on_reload()?, terminal })
    }
}

/// Terminal at which the program was started.
struct Terminal {
    /// True if its hang-up ends the capture.
    ends: bool,
    /// Time at which its loss was seen, while a SIGHUP can still be that of the hang-up.
    lost: Option<Instant>,
}

impl Terminal {
    /// Returns true if SIGHUP means a hang-up. A terminal can also be lost without a signal, as by
    /// the end of a login shell; a later SIGHUP is then a request.
    fn is_hung_up(&mut self, is_present: bool, has_signal: bool, now: Instant) -> bool {
        if !self.ends || is_present {
            return false;
        }
        let lost = *self.lost.get_or_insert(now);
        self.ends = now.saturating_duration_since(lost) < HANGUP_DELAY_MAX;
        self.ends && has_signal
    }
}

/// Filter for each interface, or the error of the file.
pub(crate) type Compiled = Result<Vec<Program>, Error>;

/// Result of a SIGHUP.
pub(crate) enum Reload {
    /// The terminal was closed: the capture ends.
    HungUp,
    /// The file was read.
    Compiled(Compiled),
}

/// Filter file of a running capture.
pub(crate) struct FilterFile {
    path: PathBuf,
    /// For each interface in order. A handle of libpcap is for one thread at a time.
    compilers: Arc<Mutex<Vec<FilterCompiler>>>,
    reloads: &'static AtomicBool,
    terminal: Mutex<Terminal>,
    /// Result of the running thread that compiles; at most one runs.
    compiling: Mutex<Option<Receiver<Compiled>>>,
}

impl FilterFile {
    /// Opens the compilers. Call it before privileges are dropped.
    pub(crate) fn open(path: &Path, interfaces: &[String], reloads: Reloads) -> Result<Self, Error> {
        let compilers: Result<_, _> = interfaces.iter().map(|name| FilterCompiler::open(name)).collect();
        Ok(Self {
            path: path.to_owned(),
            compilers: Arc::new(Mutex::new(compilers?)),
            reloads: reloads.flag,
            terminal: Mutex::new(reloads.terminal),
            compiling: Mutex::new(None),
        })
    }

    /// After SIGHUP, starts to read and compile the file. Returns the result of a call once, some
    /// time later. A SIGHUP meanwhile reads the file once more afterwards.
    pub(crate) fn poll(&self, now: Instant) -> Option<Reload> {
        let mut terminal = self.terminal.lock().unwrap_or_else(PoisonError::into_inner);
        if terminal.ends {
            // The kernel takes the terminal away before it sends the signal.
            let has_signal = self.reloads.load(Ordering::Acquire);
            if terminal.is_hung_up(has_terminal(), has_signal, now) {
                return Some(Reload::HungUp);
            }
        }
        let mut compiling = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        if compiling.is_none() && self.reloads.swap(false, Ordering::AcqRel) {
            match self.compile() {
                Ok(started) => *compiling = Some(started),
                Err(error) => return Some(Reload::Compiled(Err(error))),
            }
        }
        let compiled = match compiling.as_ref()?.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Ok(compiled) => compiled,
            Err(TryRecvError::Disconnected) => {
                Err(Error::Failed("the thread that compiles it panicked".to_owned()))
            }
        };
        *compiling = None;
        Some(Reload::Compiled(compiled))
    }

    /// Starts a thread that reads and compiles the file. The end of the capture does not wait for
    /// it.
    fn compile(&self) -> Result<Receiver<Compiled>, Error> {
        let (path, compilers) = (self.path.clone(), Arc::clone(&self.compilers));
        let (sender, receiver) = sync_channel(1);
        let compile = move || {
            let compilers = compilers.lock().unwrap_or_else(PoisonError::into_inner);
            let compiled = read_again(&path)
                .and_then(|text| compilers.iter().map(|compiler| Ok(compiler.compile(&text)?)).collect());
            // Nothing waits after the end of the capture.
            let _ = sender.send(compiled);
        };
        let started = thread::Builder::new().name("filter".into()).spawn(compile);
        started.map_err(|error| Error::Failed(format!("start a thread that compiles it: {error}")))?;
        Ok(receiver)
    }

    /// Returns the note for the user about a replacement.
    pub(crate) fn note(&self, replaced: &Result<(), Error>) -> String {
        match replaced {
            Ok(()) => format!("the filter is that of {} now", self.path.display()),
            Err(error) => format!("the filter stays as it was: {error}"),
        }
    }
}

/// Returns true if the process has a controlling terminal.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_signal_soon_after_the_loss_of_the_terminal_is_its_hangup() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let terminal = || Terminal { ends: true, lost: None };
        assert!(!terminal().is_hung_up(true, true, start), "a request at a terminal");
        assert!(terminal().is_hung_up(false, true, start));

        let mut late = terminal();
        assert!(!late.is_hung_up(false, false, at(0)));
        assert!(late.is_hung_up(false, true, at(1)));

        let mut without_signal = terminal();
        assert!(!without_signal.is_hung_up(false, false, at(0)));
        assert!(!without_signal.is_hung_up(false, false, at(2)));
        assert!(!without_signal.is_hung_up(false, true, at(2)));
    }
}
