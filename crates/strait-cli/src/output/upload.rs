//! `--to s3://BUCKET`: files are written to a spool directory, and the program `strait-upload`
//! sends them from there.
//!
//! So the network is never in the way of the capture, and files that were not sent are sent by the
//! next capture. The program ends when this one closes its standard input, also by its death. A
//! thread starts it again if it ends before: lanes are pinned to CPUs, which it would inherit, and
//! they wait while the spool is full.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use strait_os::output;
use strait_program::bucket::Bucket;
use strait_program::output::print_stderr;

use super::program::{Output, Program};
use crate::Error;
use crate::{external, trust};

/// Parent of the spool directories.
pub(super) const SPOOL: &str = "/var/spool/strait";
/// Default limit of a spool directory.
pub(super) const SPOOL_BYTES: u64 = 1 << 30;

/// Interval at which the thread looks if the program has ended.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Running upload.
#[derive(Debug)]
pub(super) struct Upload {
    bucket: Bucket,
    directory: PathBuf,
    program: Shared,
    watched: Once,
}

/// The program; none after the end of the capture.
#[derive(Clone, Debug)]
struct Shared(Arc<Mutex<Option<Program>>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Program>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Upload {
    /// Creates the spool directory of a bucket below `spool`, and starts the program.
    ///
    /// # Errors
    /// Another user may write to the directory or to one above it.
    pub(super) fn start(bucket: &Bucket, spool: &Path) -> Result<Self, Error> {
        let program = external::upload_program()?;
        let directory = spool.join(&bucket.name).join(&bucket.prefix);
        output::create_directory(&directory).map_err(|error| {
            let directory = directory.display();
            Error::Failed(format!("create {directory}: {error}: give a spool directory of yours by --spool"))
        })?;
        check_spool(&directory)?;
        let arguments = [directory.clone().into(), bucket.to_string().into(), "--follow".into()];
        let program = Program::start(program, arguments.into(), Output::None)?;
        let program = Shared(Arc::new(Mutex::new(Some(program))));
        Ok(Self { bucket: bucket.clone(), directory, program, watched: Once::new() })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
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
        let Some(mut program) = self.program.lock().take() else { return Ok(()) };
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
        let looked = program.lock().as_mut().map(|program| program.has_ended(Instant::now()));
        let Some(has_ended) = looked else { return };
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
    fn drop(&mut self) {
        if let Some(mut program) = self.program.lock().take() {
            // The failure that has ended the capture is reported.
            let _ = wait(program.child());
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
