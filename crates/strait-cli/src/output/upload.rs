//! `--to s3://BUCKET`: files are written to a spool directory, and the program `strait-upload`
//! sends them from there.
//!
//! So the network is never in the way of the capture, and files that were not sent are sent by the
//! next capture. The program ends when this one closes its standard input, also by its death. A
//! thread starts it again if it ends before: lanes are pinned to CPUs, which it would inherit, and
//! they wait while the spool is full.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use strait_program::bucket::{Bucket, PROGRESS_LEN_MAX, Progress};
use strait_program::output::print_stderr;
use strait_table::Spool;

use super::program::{Program, set_nonblocking};
use crate::Error;
use crate::{external, trust};

/// Parent of the spool directories.
pub(super) const SPOOL: &str = "/var/spool/strait";
/// Default limit of a spool directory.
pub(super) const SPOOL_BYTES: u64 = 1 << 30;

/// Interval at which the thread looks if the program has ended.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Maximum number of reads of the program's output at a time.
const READS_MAX: usize = 16;

/// Returns the spool directory of a bucket below `spool`.
pub(super) fn directory(bucket: &Bucket, spool: &Path) -> PathBuf {
    spool.join(&bucket.name).join(&bucket.prefix)
}

/// Running upload.
#[derive(Debug)]
pub(super) struct Upload {
    bucket: Bucket,
    spool: Arc<Spool>,
    directory: PathBuf,
    program: Shared,
    watched: Once,
}

/// The program, and what it has sent.
#[derive(Clone, Debug)]
struct Shared(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// None after the end of the capture.
    program: Option<Program>,
    /// Counts of the programs before this one.
    earlier: Progress,
    /// Counts of this one.
    progress: Progress,
    /// Beginning of the next line.
    line: Vec<u8>,
}

impl Shared {
    fn new(program: Program) -> Self {
        let (earlier, progress) = (Progress::default(), Progress::default());
        Self(Arc::new(Mutex::new(State { program: Some(program), earlier, progress, line: Vec::new() })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Reads the counts of the program. Returns true if it has ended, which starts it again after a
    /// pause; none after the end of the capture.
    fn look(&mut self) -> Option<bool> {
        let program = self.program.as_mut()?;
        let child = program.child().id();
        read_progress(program.child(), &mut self.line, &mut self.progress);
        let has_ended = program.has_ended(Instant::now());
        if program.child().id() != child {
            self.earlier = std::mem::take(&mut self.progress).plus(self.earlier);
            self.line.clear();
        }
        Some(has_ended)
    }
}

/// Reads the lines that a program has written. The last one has all counts.
fn read_progress(child: &mut Child, line: &mut Vec<u8>, progress: &mut Progress) {
    let Some(output) = child.stdout.as_mut().filter(|output| set_nonblocking(output).is_ok()) else { return };
    let mut part = [0; 4096];
    for _ in 0..READS_MAX {
        let Ok(length) = output.read(&mut part) else { return };
        if length == 0 {
            return;
        }
        for byte in part.iter().take(length) {
            match byte {
                b'\n' => {
                    let text = String::from_utf8_lossy(line).into_owned();
                    *progress = text.parse().unwrap_or(*progress);
                    line.clear();
                }
                byte if line.len() < PROGRESS_LEN_MAX => line.push(*byte),
                _ => {}
            }
        }
    }
}

impl Upload {
    /// Starts the program for a spool directory that exists.
    ///
    /// # Errors
    /// Another user may write to the directory or to one above it.
    pub(super) fn start(bucket: &Bucket, directory: PathBuf, bytes_max: u64) -> Result<Self, Error> {
        let program = external::upload_program()?;
        check_spool(&directory)?;
        let arguments = [directory.clone().into(), bucket.to_string().into(), "--follow".into()];
        let program = Shared::new(Program::start(program, arguments.into())?);
        let spool = Arc::new(Spool::new(&directory, bytes_max, Spool::PATIENCE));
        Ok(Self { bucket: bucket.clone(), spool, directory, program, watched: Once::new() })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn spool(&self) -> &Arc<Spool> {
        &self.spool
    }

    /// Returns the counts of the upload, which are read twice a second.
    pub(super) fn progress(&self) -> Progress {
        let state = self.program.lock();
        state.progress.plus(state.earlier)
    }

    pub(super) fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// Starts the thread that starts the program again when it has ended, after a pause. The thread
    /// gets the capabilities and the CPUs of this one.
    ///
    /// # Errors
    /// The system has too many threads.
    pub(super) fn watch(&self) -> Result<(), Error> {
        let mut spawned = Ok(());
        self.watched.call_once(|| {
            let (program, bucket) = (self.program.clone(), self.bucket.clone());
            let directory = self.directory.clone();
            let thread = std::thread::Builder::new().name("upload".into());
            spawned = thread.spawn(move || watch(&program, &bucket, &directory)).map(drop);
        });
        spawned.map_err(|error| Error::Failed(format!("start a thread: {error}")))
    }

    /// Lets the program send the last files, and waits for its end.
    ///
    /// # Errors
    /// Files remain in the spool directory.
    pub(super) fn finish(&self) -> Result<(), Error> {
        let Some(mut program) = self.program.lock().program.take() else { return Ok(()) };
        match wait(program.child()) {
            Ok(true) => Ok(()),
            Ok(false) => {
                let (directory, bucket) = (self.directory.display(), &self.bucket);
                Err(Error::Failed(format!(
                    "files remain in {directory}: the next capture to {bucket} sends them, and so does strait upload \
                     {directory} {bucket}"
                )))
            }
            Err(error) => Err(Error::Failed(format!("wait for strait-upload: {error}"))),
        }
    }
}

/// The thread: reports the end of the program, and its next start.
fn watch(program: &Shared, bucket: &Bucket, directory: &Path) {
    let mut had_ended = false;
    loop {
        let Some(has_ended) = program.lock().look() else { return };
        match (had_ended, has_ended) {
            (false, true) => print_stderr(format_args!(
                "strait: note: strait-upload has ended: files for {bucket} wait in {} until it is started again\n",
                directory.display()
            )),
            (true, false) => print_stderr(format_args!("strait: note: strait-upload was started again\n")),
            _ => {}
        }
        had_ended = has_ended;
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Refuses a spool directory that another user could exchange for one with other files, which would
/// be sent and removed with the rights of this process.
fn check_spool(directory: &Path) -> Result<(), Error> {
    let running = std::env::current_exe()
        .map_err(|error| Error::Failed(format!("find this program's own path: {error}")))?;
    match trust::untrusted_directory(directory, &running) {
        Some(path) => Err(Error::Usage(format!(
            "the spool directory {} is not used: another user owns {path} or may write to it; give another one by \
             --spool",
            directory.display(),
            path = path.display()
        ))),
        None => Ok(()),
    }
}

/// Closes the standard input of the program, and waits for its end. Returns true after a success.
fn wait(child: &mut Child) -> io::Result<bool> {
    drop(child.stdin.take());
    loop {
        match child.wait() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            status => return status.map(|status| status.success()),
        }
    }
}

impl Drop for Upload {
    /// Ends the program. That of a capture which has not started ends at once: files that wait are
    /// sent by the next one.
    fn drop(&mut self) {
        let Some(mut program) = self.program.lock().program.take() else { return };
        if self.watched.is_completed() {
            // The failure that has ended the capture is reported.
            let _ = wait(program.child());
        } else {
            program.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn spool_to_which_other_users_write_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let spool = directory.path().join("shared/lake");
        std::fs::create_dir_all(&spool).unwrap();
        check_spool(&spool).unwrap();
        for shared in [&*spool, &directory.path().join("shared")] {
            set_permissions(shared, Permissions::from_mode(0o777)).unwrap();
            let error = check_spool(&spool).unwrap_err().to_string();
            assert!(error.contains(&format!("another user owns {} or", shared.display())), "{error}");
            set_permissions(shared, Permissions::from_mode(0o755)).unwrap();
        }
    }
}
