//! `--to s3://BUCKET`: files are written to a spool directory, and the program `strait-upload`
//! sends them from there.
//!
//! So the network is never in the way of the capture, and files that were not sent are sent by the
//! next capture. The program ends when this one closes its standard input, also by its death.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use strait_os::output;
use strait_program::bucket::Bucket;

use super::program::{Output, Program};
use crate::Error;
use crate::{external, trust};

/// Parent of the spool directories.
pub(super) const SPOOL: &str = "/var/spool/strait";
/// Default limit of a spool directory.
pub(super) const SPOOL_BYTES: u64 = 1 << 30;

/// Running upload.
#[derive(Debug)]
pub(super) struct Upload {
    bucket: Bucket,
    directory: PathBuf,
    /// None after its end.
    program: Mutex<Option<Program>>,
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
