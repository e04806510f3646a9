//! `--to s3://BUCKET`: files are written to a spool directory, and the program `strait-upload`
//! sends them from there.
//!
//! So the network is never in the way of the capture, and files that were not sent are sent by the
//! next capture. The program ends when this one closes its standard input, also by its death.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use strait_program::bucket::Bucket;

use crate::Error;
use crate::external;

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
    program: Mutex<Option<Child>>,
}

impl Upload {
    /// Creates the spool directory of a bucket below `spool`, and starts the program.
    pub(super) fn start(bucket: &Bucket, spool: &Path) -> Result<Self, Error> {
        let program = external::upload_program()?;
        let directory = spool.join(&bucket.name).join(&bucket.prefix);
        std::fs::create_dir_all(&directory).map_err(|error| {
            let directory = directory.display();
            Error::Failed(format!("create {directory}: {error}: give a spool directory of yours by --spool"))
        })?;
        let mut command = Command::new(&program);
        command.arg(&directory).arg(bucket.to_string()).arg("--follow");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let child = command.spawn();
        let child = child.map_err(|error| Error::Failed(format!("run {}: {error}", program.display())))?;
        Ok(Self { bucket: bucket.clone(), directory, program: Mutex::new(Some(child)) })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// Returns true if the program has ended, although further files may come.
    pub(super) fn has_ended(&self) -> bool {
        let mut program = self.program.lock().unwrap_or_else(PoisonError::into_inner);
        program.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    /// Lets the program send the last files, and waits for its end.
    ///
    /// # Errors
    /// Files remain in the spool directory.
    pub(super) fn finish(&self) -> Result<(), Error> {
        let Some(mut child) = self.program.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Ok(());
        };
        match wait(&mut child) {
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
        if let Some(child) = self.program.get_mut().unwrap_or_else(PoisonError::into_inner) {
            // The failure that has ended the capture is reported.
            let _ = wait(child);
        }
    }
}
