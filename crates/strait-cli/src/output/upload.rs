//! `--to s3://BUCKET`: files are written to a spool directory, and the program `strait-upload`
//! sends them from there.
//!
//! So the network is never in the way of the capture, and files that were not sent are sent by the
//! next capture. The program ends when this one closes its standard input, also by its death.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use strait_os::output;
use strait_program::bucket::Bucket;

use crate::Error;
use crate::{external, trust};

/// Parent of the spool directories.
pub(super) const SPOOL: &str = "/var/spool/strait";
/// Default limit of a spool directory.
pub(super) const SPOOL_BYTES: u64 = 1 << 30;

/// Pause before the program is started again, which doubles each time that the program has not run
/// for [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_mins(10);

/// Running upload.
#[derive(Debug)]
pub(super) struct Upload {
    bucket: Bucket,
    directory: PathBuf,
    /// None after its end.
    program: Mutex<Option<Program>>,
}

/// The program, which is started again when it has ended.
#[derive(Debug)]
struct Program {
    path: PathBuf,
    arguments: [PathBuf; 2],
    child: Child,
    started: Instant,
    /// Time of the first look after its end.
    ended: Option<Instant>,
    pause: Duration,
}

impl Program {
    fn start(path: PathBuf, arguments: [PathBuf; 2]) -> Result<Self, Error> {
        let child = spawn(&path, &arguments);
        let child = child.map_err(|error| Error::Failed(format!("run {}: {error}", path.display())))?;
        Ok(Self { path, arguments, child, started: Instant::now(), ended: None, pause: PAUSE })
    }

    /// Returns true if it has ended. Starts it again after a pause.
    fn has_ended(&mut self, now: Instant) -> bool {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            return false;
        }
        let ended = *self.ended.get_or_insert(now);
        if now.saturating_duration_since(ended) < self.pause {
            return true;
        }
        let ran = ended.saturating_duration_since(self.started);
        self.pause = if ran < PAUSE_MAX { (self.pause * 2).min(PAUSE_MAX) } else { PAUSE };
        (self.started, self.ended) = (now, None);
        // After a failure the ended child is found again, and the next attempt follows a pause.
        spawn(&self.path, &self.arguments).map(|child| self.child = child).is_err()
    }
}

/// Starts a program that ends when its standard input is closed.
fn spawn(program: &Path, arguments: &[PathBuf]) -> io::Result<Child> {
    let mut command = Command::new(program);
    command.args(arguments).arg("--follow").stdin(Stdio::piped()).stdout(Stdio::null());
    command.spawn()
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
        let program = Program::start(program, [directory.clone(), bucket.to_string().into()])?;
        Ok(Self { bucket: bucket.clone(), directory, program: Mutex::new(Some(program)) })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// Returns true if the program has ended, although further files may come. Starts it again
    /// after a pause.
    pub(super) fn has_ended(&self) -> bool {
        let mut program = self.program.lock().unwrap_or_else(PoisonError::into_inner);
        program.as_mut().is_some_and(|program| program.has_ended(Instant::now()))
    }

    /// Lets the program send the last files, and waits for its end.
    ///
    /// # Errors
    /// Files remain in the spool directory.
    pub(super) fn finish(&self) -> Result<(), Error> {
        let Some(mut program) = self.program.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Ok(());
        };
        match wait(&mut program.child) {
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
        if let Some(program) = self.program.get_mut().unwrap_or_else(PoisonError::into_inner) {
            // The failure that has ended the capture is reported.
            let _ = wait(&mut program.child);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn program_that_ends_is_started_again_after_growing_pauses() {
        let arguments = ["lake", "s3://lake"].map(PathBuf::from);
        let mut program = Program::start("/bin/true".into(), arguments).unwrap();
        let (mut pauses, mut now) = (Vec::new(), program.started);
        for _ in 0..8 {
            let child = program.child.id();
            program.child.wait().unwrap();
            assert!(program.has_ended(now), "the pause has not passed");
            pauses.push(program.pause.as_secs());
            now += program.pause;
            assert!(!program.has_ended(now) && program.child.id() != child);
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600]);
        program.child.wait().unwrap();
        now += PAUSE_MAX;
        assert!(program.has_ended(now));
        now += program.pause;
        assert!(!program.has_ended(now));
        assert_eq!(program.pause, PAUSE, "it has run for long");
        program.child.wait().unwrap();
    }

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
