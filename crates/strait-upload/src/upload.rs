//! Sends files until there are none left, or for as long as a capture writes further ones.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::Errno;
use strait_os::retry::Attempts;
use strait_program::Error;
use strait_program::bucket::Progress;
use strait_program::output::print_stderr;

use crate::spool::{Listing, Spool};
use crate::store::{Sent, Store};

/// Interval between two listings of a capture's directory.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// First and longest pause after a failure.
const BACKOFF: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Longest pause after the end of the capture.
const BACKOFF_AFTER_END: Duration = Duration::from_secs(1);
/// Time for which failures are repeated after the end of the capture.
const GIVE_UP: Duration = Duration::from_secs(10);
/// Maximum time for a request after the end of the capture: a store may take a request and never
/// answer.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// Sends the files of a spool directory. With `follow`, waits for further files until standard
/// input is closed, and repeats failures.
///
/// # Errors
/// A file remains in the directory.
pub(crate) fn run(spool: &Spool, store: &Store, follow: bool, terminated: &AtomicBool) -> Result<(), Error> {
    let terminated = (!follow).then_some(terminated);
    let end = End { ended: (!follow).then(Instant::now), terminated };
    let output = if follow { ProgressOutput::open() } else { None };
    let mut sender = Sender { spool, store, progress: Progress::default(), output, is_failing: false, end };
    let mut attempts = Attempts::new(BACKOFF, BACKOFF_MAX);
    loop {
        // Files may have been completed before the end, and after the listing.
        let had_ended = sender.end.ended.is_some();
        let wait = match sender.send_all() {
            Ok(Listing::Whole) if had_ended => {
                if !follow {
                    let Progress { files, bytes, .. } = sender.progress;
                    print_stderr(format_args!(
                        "uploaded {files} files, {bytes} bytes, to {}\n",
                        store.bucket()
                    ));
                }
                return Ok(());
            }
            Ok(Listing::Whole) => {
                attempts.succeed();
                LOOK_EVERY
            }
            Ok(Listing::Truncated) => {
                attempts.succeed();
                Duration::ZERO
            }
            Err(error) if sender.end.ended.is_some_and(|ended| !follow || ended.elapsed() >= GIVE_UP) => {
                return Err(error);
            }
            Err(error) => {
                sender.report(&error);
                sender.count(Progress { retried: 1, ..Progress::default() });
                let now = Instant::now();
                attempts.fail(now);
                let pause = attempts.until_next(now);
                if sender.end.ended.is_some() { pause.min(BACKOFF_AFTER_END) } else { pause }
            }
        };
        if sender.end.ended.is_some() {
            strait_os::wait::sleep(wait);
        } else {
            sender.end.look(wait)?;
        }
        sender.end.check_interrupt()?;
    }
}

/// End of the capture, after which no further files come.
struct End<'a> {
    ended: Option<Instant>,
    /// Without a capture: set by a signal.
    terminated: Option<&'a AtomicBool>,
}

impl End<'_> {
    /// Waits for the end.
    fn look(&mut self, wait: Duration) -> Result<(), Error> {
        if self.ended.is_none() && is_closed(wait)? {
            self.ended = Some(Instant::now());
        }
        Ok(())
    }

    /// Returns an error if a request since `started` has had its time, or after a signal.
    fn check(&mut self, started: Instant) -> Result<(), Error> {
        self.check_interrupt()?;
        self.look(Duration::ZERO)?;
        match self.ended.filter(|_| self.terminated.is_none()) {
            Some(ended) if ended.max(started).elapsed() >= REQUEST_LIMIT => {
                let seconds = REQUEST_LIMIT.as_secs();
                Err(Error::failed(format!("the store has not answered {seconds} s after the end")))
            }
            _ => Ok(()),
        }
    }

    fn check_interrupt(&self) -> Result<(), Error> {
        match self.terminated {
            Some(terminated) if terminated.load(Ordering::Relaxed) => Err(Error::failed("interrupted")),
            _ => Ok(()),
        }
    }
}

/// Waits for the end of standard input. Returns true if it is closed.
fn is_closed(wait: Duration) -> Result<bool, Error> {
    let stdin = io::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    let failed = |errno: Errno| Error::failed(format!("read standard input: {errno}"));
    match poll(&mut polled, Timespec::try_from(wait).ok().as_ref()) {
        Ok(0) | Err(Errno::INTR) => return Ok(false),
        Ok(_) => {}
        Err(errno) => return Err(failed(errno)),
    }
    let mut bytes = [0; 64];
    match rustix::io::read(&stdin, &mut bytes) {
        Ok(read) => Ok(read == 0),
        Err(Errno::INTR | Errno::AGAIN) => Ok(false),
        Err(errno) => Err(failed(errno)),
    }
}

struct Sender<'a> {
    spool: &'a Spool,
    store: &'a Store,
    progress: Progress,
    output: Option<ProgressOutput>,
    /// True if a failure was reported.
    is_failing: bool,
    end: End<'a>,
}

impl Sender<'_> {
    /// Sends complete files, and removes each one after that.
    fn send_all(&mut self) -> Result<Listing, Error> {
        let (files, listing) = self.spool.complete()?;
        for file in files {
            let end = &mut self.end;
            end.check_interrupt()?;
            if let Sent::Bytes(bytes) = self.store.send(&file, |started| end.check(started))? {
                self.count(Progress { files: 1, bytes, retried: 0 });
            }
            self.spool.remove(&file)?;
            if std::mem::take(&mut self.is_failing) {
                print_stderr(format_args!(
                    "strait: note: the upload to {} works again\n",
                    self.store.bucket()
                ));
            }
        }
        Ok(listing)
    }

    /// Counts what has been done, and reports the counts to the capture.
    fn count(&mut self, more: Progress) {
        self.progress = more.plus(self.progress);
        if let Some(output) = &self.output {
            output.write(self.progress);
        }
    }

    /// Reports the first failure after a success.
    fn report(&mut self, error: &Error) {
        if !std::mem::replace(&mut self.is_failing, true) {
            let (bucket, directory) = (self.store.bucket(), self.spool.directory.display());
            print_stderr(format_args!(
                "strait: note: the upload to {bucket} fails: {error}; files wait in {directory}\n"
            ));
        }
    }
}

/// Standard output, from which a capture reads the progress. It does not block: a capture that does
/// not read must not stop the upload, and a later line has all counts again.
struct ProgressOutput(io::Stdout);

impl ProgressOutput {
    /// Returns none if standard output is no pipe, or can block.
    fn open() -> Option<Self> {
        let output = io::stdout();
        let kind = FileType::from_raw_mode(fstat(&output).ok()?.st_mode);
        if kind != FileType::Fifo {
            return None;
        }
        let flags = fcntl_getfl(&output).ok()?;
        fcntl_setfl(&output, flags | OFlags::NONBLOCK).ok()?;
        Some(Self(output))
    }

    fn write(&self, progress: Progress) {
        // The pipe is full, or the capture has ended.
        let _ = rustix::io::write(&self.0, progress.to_string().as_bytes());
    }
}
