//! Source of a transfer: a file, a pipe or another stream.

use std::fs::{File, Metadata};
use std::io::Seek as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use strait_transfer::hash::Hasher;
use strait_transfer::offer::Attributes;

use super::Mode;
use crate::Error;

/// Source of the bytes.
pub(super) struct Source {
    pub(super) name: String,
    pub(super) file: Arc<File>,
    /// Length of a regular file, unless it is read from an offset.
    pub(super) length: Option<u64>,
    /// System call that moves the bytes in the kernel; `None` if they are read into buffers.
    pub(super) mechanism: Option<Mechanism>,
    /// Metadata before the transfer.
    metadata: Metadata,
}

/// System call that moves bytes in the kernel.
#[derive(Clone, Copy)]
pub(super) enum Mechanism {
    Sendfile,
    Splice,
}

impl Source {
    pub(super) fn open(name: &str, mode: Mode) -> Result<Self, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Failed(format!("{name}: {error}"));
        let file = if name == "-" {
            let duplicate = std::io::stdin().as_fd().try_clone_to_owned();
            File::from(duplicate.map_err(|error| failed(&error))?)
        } else {
            File::open(name).map_err(|error| failed(&error))?
        };
        let metadata = file.metadata().map_err(|error| failed(&error))?;
        if metadata.is_dir() {
            return Err(Error::Failed(format!(
                "{name} is a directory: tar c {name} | strait send - HOST:PORT"
            )));
        }
        // Files of procfs and sysfs report a length of 0, and standard input may be a file that is
        // partly read: both are streams.
        let is_stream = metadata.len() == 0 || (&file).stream_position().is_ok_and(|at| at > 0);
        let length = (metadata.is_file() && !is_stream).then_some(metadata.len());
        let is_pipe = std::os::unix::fs::FileTypeExt::is_fifo(&metadata.file_type());
        let mechanism = match mode {
            Mode::Auto | Mode::Sendfile if length.is_some() => Some(Mechanism::Sendfile),
            Mode::Auto if is_pipe => Some(Mechanism::Splice),
            Mode::Sendfile if !metadata.is_file() => {
                return Err(Error::Usage(format!("{name} is not a file: sendfile cannot send it")));
            }
            _ => None,
        };
        Ok(Self { name: name.to_owned(), file: Arc::new(file), length, mechanism, metadata })
    }

    /// Hashes the first `bytes` bytes, which the receiver has.
    pub(super) fn hash_prefix(&self, bytes: u64, stop: &AtomicBool) -> Result<Hasher, Error> {
        if self.length.is_none_or(|length| bytes > length) {
            return Err(Error::Failed(format!("the other end has {bytes} bytes, more than were offered")));
        }
        let mut hasher = Hasher::default();
        hasher.read_up_to(bytes, &self.file, stop).map_err(|error| self.failed(&error))?;
        Ok(hasher)
    }

    pub(super) fn failed(&self, error: &std::io::Error) -> Error {
        Error::Failed(format!("{}: {error}", self.name))
    }

    /// Returns mode and modification time of a regular file, which the received file gets.
    pub(super) fn attributes(&self) -> Option<Attributes> {
        let modified = (self.metadata.mtime(), u32::try_from(self.metadata.mtime_nsec()).unwrap_or(0));
        self.length.map(|_| Attributes { mode: self.metadata.mode() & 0o777, modified })
    }

    /// Returns true if size and times of a file have not changed since before the transfer.
    pub(super) fn is_unchanged(&self) -> Result<bool, Error> {
        let now = self.file.metadata().map_err(|error| self.failed(&error))?;
        let stamp = |of: &Metadata| (of.len(), of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec());
        Ok(self.length.is_none() || stamp(&now) == stamp(&self.metadata))
    }

    /// Returns true if a read would not block.
    pub(super) fn is_ready(&self) -> Result<bool, Error> {
        let mut fds = [PollFd::new(&*self.file, PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(self.failed(&error.into())),
        }
    }
}
