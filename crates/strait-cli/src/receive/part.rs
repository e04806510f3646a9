//! The output of `strait receive`: a file with the name `NAME.part` until it is complete, or a
//! stream that is written directly.
//!
//! The part is a separate directory entry. It is not a symbolic link, belongs to this user, has one
//! name, and only this user can read it. It gets the mode of the source when it is complete. No
//! other file of the directory is written.

use std::ffi::OsString;
use std::fs::{File, FileTimes, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, openat, unlinkat};
use rustix::io::Errno;
use strait_os::output::{Entry, RenameError, SafeOutput, find, is_entry, may_keep_owner, rename};
use strait_os::process::umask;
use strait_transfer::offer::Attributes;

use crate::Error;
use crate::output::print_stderr;

/// Maximum attempts to open a part that other processes create and remove at the same time.
const ATTEMPTS_MAX: usize = 8;
/// The mode of a part.
const PRIVATE: Mode = Mode::from_bits_retain(0o600);
/// The mode of a file without a mode from the sender, before the umask.
const DEFAULT: u32 = 0o666;
const PERMISSIONS: u32 = 0o777;
const GROUP: u32 = 0o070;

/// Output of a transfer.
pub(super) struct Output {
    /// For messages.
    pub(super) name: String,
    pub(super) file: File,
    /// Offset of the next byte, in a file.
    pub(super) offset: Option<u64>,
    part: Option<Part>,
}

/// An incomplete file.
struct Part {
    directory: OwnedFd,
    /// Its names in the directory: when it is complete, and until then.
    whole: OsString,
    entry: OsString,
    /// For messages.
    path: PathBuf,
    /// Metadata of the file that it replaces.
    before: Option<Metadata>,
}

/// Bytes that are present before a transfer.
pub(super) struct Found {
    pub(super) file: File,
    /// For messages.
    path: PathBuf,
    pub(super) bytes: u64,
    /// True for the bytes of the complete file, false for those of a part.
    pub(super) is_complete: bool,
}

impl Found {
    /// Returns the error of a failed read of the bytes.
    pub(super) fn failed(&self, error: &io::Error) -> Error {
        Error::Failed(format!("{}: {error}", self.path.display()))
    }

    #[cfg(test)]
    pub(super) fn of(file: &File, bytes: u64) -> Self {
        Self { file: file.try_clone().unwrap(), path: PathBuf::new(), bytes, is_complete: false }
    }
}

impl Output {
    pub(super) fn open(name: Option<&Path>) -> Result<Self, Error> {
        let Some(name) = name.filter(|name| *name != Path::new("-")) else {
            let duplicate = io::stdout().as_fd().try_clone_to_owned();
            let file = File::from(duplicate.map_err(Error::Output)?);
            return Ok(Self { name: "standard output".into(), file, offset: None, part: None });
        };
        match find(name) {
            Ok(SafeOutput::File(entry)) => Self::of_file(*entry),
            Ok(SafeOutput::Stream(file)) => {
                Ok(Self { name: name.display().to_string(), file, offset: None, part: None })
            }
            Err(error) if error.kind() == ErrorKind::IsADirectory => {
                Err(Error::Failed(format!("{} is a directory: give a file", name.display())))
            }
            Err(error) => Err(Error::Failed(format!("{}: {error}", name.display()))),
        }
    }

    fn of_file(place: Entry) -> Result<Self, Error> {
        let Entry { directory, name: whole, path, found: before, .. } = place;
        let name = path.display().to_string();
        // Opened again, as fsync does not work on an O_PATH descriptor.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(directory, ".", flags, Mode::empty());
        let directory = directory.map_err(|error| Error::Failed(format!("{name}: {}", text(error))))?;
        let (mut entry, mut path) = (whole.clone(), path.into_os_string());
        entry.push(".part");
        path.push(".part");
        let part = Part { directory, whole, entry, path: path.into(), before };
        Ok(Self { name, file: part.open()?, offset: Some(0), part: Some(part) })
    }

    /// Returns true if it is a file, which can be read again.
    pub(super) fn is_file(&self) -> bool {
        self.part.is_some()
    }

    /// Returns the bytes that may be the first ones of `length` bytes: those of the part or,
    /// without one, a complete file of that length.
    pub(super) fn find(&self, length: u64) -> Result<Option<Found>, Error> {
        let Some(part) = &self.part else { return Ok(None) };
        let failed = |error: io::Error| Error::Failed(format!("{}: {error}", part.path.display()));
        let bytes = self.file.metadata().map_err(failed)?.len();
        if bytes > 0 {
            let file = self.file.try_clone().map_err(failed)?;
            return Ok(Some(Found { file, path: part.path.clone(), bytes, is_complete: false }));
        }
        let whole = part.open_whole();
        let whole = whole.filter(|file| file.metadata().is_ok_and(|whole| whole.len() == length));
        let path = || part.path.with_file_name(&part.whole);
        let found = whole.map(|file| Found { file, path: path(), bytes: length, is_complete: true });
        Ok(found.filter(|found| found.bytes > 0))
    }

    /// Truncates a part to `offset` bytes.
    pub(super) fn begin_at(&mut self, offset: u64) -> Result<(), Error> {
        if let Some(part) = &self.part {
            let cut = self.file.set_len(offset);
            cut.map_err(|error| Error::Failed(format!("{}: {error}", part.path.display())))?;
            self.offset = Some(offset);
        }
        Ok(())
    }

    /// Gives the complete file its mode, its time and its name.
    pub(super) fn finish(&mut self, attributes: Option<Attributes>) -> Result<(), Error> {
        let Some(part) = &self.part else { return Ok(()) };
        let done = part.complete(&self.file, attributes);
        done.map_err(|error| Error::Failed(format!("{}: {error}", self.name)))?;
        self.part = None;
        Ok(())
    }

    /// Removes a part that must not be resumed. Returns a message about it.
    pub(super) fn discard(&mut self) -> String {
        match self.part.take() {
            Some(part) if part.is_entry_of(&self.file) => {
                match unlinkat(&part.directory, &part.entry, AtFlags::empty()) {
                    Ok(()) => format!("{} is removed", part.path.display()),
                    Err(error) => format!("remove {}: {}", part.path.display(), text(error)),
                }
            }
            _ => "do not use the written bytes".into(),
        }
    }

    /// Reports how many bytes are kept and how to resume. `first` is a step before that.
    pub(super) fn report_part(&self, first: &str) {
        let Some(part) = &self.part else { return };
        let bytes = self.file.metadata().map_or(0, |metadata| metadata.len());
        if bytes > 0 {
            let path = part.path.display();
            print_stderr(format_args!(
                "{bytes} bytes are kept in {path}: {first}repeat both commands to resume the transfer of a file\n"
            ));
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // An empty part is useless. One that cannot be removed does no harm.
        let is_empty = self.file.metadata().is_ok_and(|metadata| metadata.len() == 0);
        if let Some(part) = self.part.take().filter(|part| is_empty && part.is_entry_of(&self.file)) {
            let _ = unlinkat(&part.directory, &part.entry, AtFlags::empty());
        }
    }
}

impl Part {
    /// Opens or creates the part, and locks it.
    fn open(&self) -> Result<File, Error> {
        let failed = |error: Errno| Error::Failed(format!("{}: {}", self.path.display(), text(error)));
        for _ in 0..ATTEMPTS_MAX {
            // O_NONBLOCK and O_NOCTTY: opening must not wait for the writer of a named pipe or
            // acquire a terminal.
            let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let file = match openat(&self.directory, &self.entry, flags, Mode::empty()) {
                Ok(file) => File::from(file),
                Err(Errno::NOENT) => {
                    let flags = flags | OFlags::CREATE | OFlags::EXCL;
                    match openat(&self.directory, &self.entry, flags, PRIVATE) {
                        Ok(file) => File::from(file),
                        Err(Errno::EXIST) => continue,
                        Err(error) => return Err(failed(error)),
                    }
                }
                Err(Errno::LOOP) => return Err(self.not_a_part("a symbolic link")),
                Err(error) => return Err(failed(error)),
            };
            self.check(&file)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => {
                    let path = self.path.display();
                    return Err(Error::Failed(format!("{path}: another process is writing to it")));
                }
                locked => locked.map_err(failed)?,
            }
            // Another process may have completed the part before the lock.
            if self.is_entry_of(&file) {
                return Ok(file);
            }
        }
        Err(failed(Errno::BUSY))
    }

    /// Refuses a file that other users may write to, or that has a second name.
    fn check(&self, file: &File) -> Result<(), Error> {
        let failed = |error: io::Error| Error::Failed(format!("{}: {error}", self.path.display()));
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(self.not_a_part(if metadata.file_type().is_fifo() {
                "a named pipe"
            } else {
                "no regular file"
            }));
        }
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(self.not_a_part("a file of another user"));
        }
        if metadata.nlink() != 1 {
            return Err(self.not_a_part("a file with a second name"));
        }
        rustix::fs::fchmod(file, PRIVATE).map_err(|error| failed(error.into()))
    }

    fn not_a_part(&self, what: &str) -> Error {
        Error::Failed(format!(
            "{} is {what}, not a part of a transfer: remove it, or give another -o",
            self.path.display()
        ))
    }

    /// Opens the file that the part will replace, to compare it.
    fn open_whole(&self) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(openat(&self.directory, &self.whole, flags, Mode::empty()).ok()?);
        file.metadata().is_ok_and(|metadata| metadata.is_file()).then_some(file)
    }

    fn is_entry_of(&self, file: &File) -> bool {
        is_entry(&self.directory, &self.entry, file)
    }

    fn complete(&self, file: &File, attributes: Option<Attributes>) -> io::Result<()> {
        let before = self.before.as_ref().map(|before| before.mode() & PERMISSIONS);
        let mut mode = match (attributes.map(|attributes| attributes.mode & PERMISSIONS), before) {
            // Both modes limit the result, so that no user gains access.
            (Some(mode), Some(before)) => mode & before,
            // The sender is not authenticated: the umask limits its choice, as with scp.
            (Some(mode), None) => mode & !umask(),
            (None, Some(before)) => before,
            (None, None) => DEFAULT & !umask(),
        };
        if let Some(before) = &self.before
            && !(may_keep_owner(&self.directory, before.uid())?
                && fchown(file, Some(before.uid()), Some(before.gid())).is_ok())
        {
            // The file keeps the owner and group of this process; the group bits are for another
            // group.
            mode &= !GROUP;
        }
        rustix::fs::fchmod(file, Mode::from_bits_retain(mode))?;
        if let Some(modified) = attributes.and_then(|attributes| time(attributes.modified)) {
            file.set_times(FileTimes::new().set_modified(modified))?;
        }
        file.sync_all()?;
        match rename(&self.directory, (&self.entry, &self.whole), file) {
            Ok(()) => {}
            Err(RenameError::Replaced) => {
                return Err(io::Error::other(format!(
                    "{} was replaced during the transfer",
                    self.path.display()
                )));
            }
            Err(RenameError::Os(error)) => return Err(error),
        }
        match rustix::fs::fsync(&self.directory) {
            // Some file systems cannot sync a directory.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Converts an error number, as the standard library's text includes the number.
fn text(error: Errno) -> io::Error {
    error.into()
}

/// Converts a time, if this machine's clock can represent it.
fn time((seconds, nanoseconds): (i64, u32)) -> Option<SystemTime> {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    let time = if seconds < 0 { epoch.checked_sub(whole) } else { epoch.checked_add(whole) };
    time?.checked_add(Duration::from_nanos(nanoseconds.into()))
}
