//! The output of `strait receive`: a file that is `NAME.part` until it is whole, or something that
//! is written as it is.
//!
//! The part is a directory entry of its own: no symbolic link is followed to it, it belongs to this
//! user, has one name and can be read by no other user. It gets the mode of the source only when it
//! is whole. The other files of the directory are never written.

use std::ffi::OsString;
use std::fs::{File, FileTimes, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use strait_sys::output::{Entry, Place, find};
use strait_transfer::hash::Hasher;
use strait_transfer::offer::{Attributes, Have};

use crate::Error;
use crate::output::tell;

/// Attempts to open a part that others create and remove meanwhile.
const ATTEMPTS_MAX: usize = 8;
/// The mode of a part.
const PRIVATE: Mode = Mode::from_bits_retain(0o600);
/// The mode of a file whose sender names none, before the umask.
const USUAL: u32 = 0o666;
const PERMISSIONS: u32 = 0o777;
const GROUP: u32 = 0o070;

/// Where bytes go.
pub(super) struct Output {
    /// For messages.
    pub(super) name: String,
    pub(super) file: File,
    /// Where the next byte goes, of a file.
    pub(super) offset: Option<u64>,
    part: Option<Part>,
}

/// A file that is not whole yet.
struct Part {
    directory: OwnedFd,
    /// Its names in the directory: when it is whole, and until then.
    whole: OsString,
    entry: OsString,
    /// For messages.
    path: PathBuf,
    /// The file whose place it takes.
    before: Option<Metadata>,
}

/// Bytes that are here before a transfer.
pub(super) struct Found {
    pub(super) have: Have,
    pub(super) hasher: Hasher,
    /// They are those of the whole file, and not of a part.
    pub(super) is_whole: bool,
}

impl Found {
    pub(super) fn nothing() -> Self {
        Self { have: Have::NOTHING, hasher: Hasher::default(), is_whole: false }
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
            Ok(Place::File(entry)) => Self::of_file(*entry),
            Ok(Place::Stream(file)) => {
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
        // It is synced at the end, which its place alone (O_PATH) does not allow.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(directory, ".", flags, Mode::empty());
        let directory = directory.map_err(|error| Error::Failed(format!("{name}: {}", text(error))))?;
        let (mut entry, mut path) = (whole.clone(), path.into_os_string());
        entry.push(".part");
        path.push(".part");
        let part = Part { directory, whole, entry, path: path.into(), before };
        Ok(Self { name, file: part.open()?, offset: Some(0), part: Some(part) })
    }

    /// Whether it is a file, which can be read again.
    pub(super) fn is_file(&self) -> bool {
        self.part.is_some()
    }

    /// Hashes the part or, without one, a whole file of `length` bytes; ends with an error soon
    /// after `stop` is set.
    pub(super) fn find(&self, length: u64, stop: &AtomicBool) -> Result<Found, Error> {
        let Some(part) = &self.part else { return Ok(Found::nothing()) };
        let failed = |error: io::Error| Error::Failed(format!("{}: {error}", part.path.display()));
        let bytes = self.file.metadata().map_err(failed)?.len();
        if bytes > 0 {
            return found(&self.file, bytes, false, stop).map_err(failed);
        }
        match part.open_whole() {
            Some(file) if file.metadata().is_ok_and(|whole| whole.len() == length) => {
                found(&file, length, true, stop).map_err(failed)
            }
            _ => Ok(Found::nothing()),
        }
    }

    /// Keeps the first bytes of a part alone.
    pub(super) fn begin_at(&mut self, offset: u64) -> Result<(), Error> {
        if let Some(part) = &self.part {
            let cut = self.file.set_len(offset);
            cut.map_err(|error| Error::Failed(format!("{}: {error}", part.path.display())))?;
            self.offset = Some(offset);
        }
        Ok(())
    }

    /// Gives a whole file its mode, its time and its name.
    pub(super) fn finish(&mut self, attributes: Option<Attributes>) -> Result<(), Error> {
        let Some(part) = &self.part else { return Ok(()) };
        let done = part.complete(&self.file, attributes);
        done.map_err(|error| Error::Failed(format!("{}: {error}", self.name)))?;
        self.part = None;
        Ok(())
    }

    /// Removes a part that must not be gone on with; a message says so.
    pub(super) fn discard(&mut self) -> String {
        match self.part.take() {
            Some(part) if part.is_entry_of(&self.file) => {
                match unlinkat(&part.directory, &part.entry, AtFlags::empty()) {
                    Ok(()) => format!("{} is removed", part.path.display()),
                    Err(error) => format!("remove {}: {}", part.path.display(), text(error)),
                }
            }
            _ => "do not use what was written".into(),
        }
    }

    /// Says how many bytes are kept; `first` stands before what to do.
    pub(super) fn tell_of_part(&self, first: &str) {
        let Some(part) = &self.part else { return };
        let bytes = self.file.metadata().map_or(0, |metadata| metadata.len());
        if bytes > 0 {
            let path = part.path.display();
            tell(format_args!(
                "{bytes} bytes are in {path}: {first}of a file, the same two commands again go on there\n"
            ));
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // A part of no bytes is of no use; one that cannot be removed does no harm.
        let is_empty = self.file.metadata().is_ok_and(|metadata| metadata.len() == 0);
        if let Some(part) = self.part.take().filter(|part| is_empty && part.is_entry_of(&self.file)) {
            let _ = unlinkat(&part.directory, &part.entry, AtFlags::empty());
        }
    }
}

impl Part {
    /// Opens it, or creates it, and locks it.
    fn open(&self) -> Result<File, Error> {
        let failed = |error: Errno| Error::Failed(format!("{}: {}", self.path.display(), text(error)));
        for _ in 0..ATTEMPTS_MAX {
            // Not to wait for the writer of a named pipe, nor for a terminal.
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
                Err(Errno::LOOP) => return Err(self.alien("a symbolic link")),
                Err(error) => return Err(failed(error)),
            };
            self.check(&file)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) => {
                    let path = self.path.display();
                    return Err(Error::Failed(format!("{path}: another process is writing it")));
                }
                locked => locked.map_err(failed)?,
            }
            // Another process may have completed it before it was locked.
            if self.is_entry_of(&file) {
                return Ok(file);
            }
        }
        Err(failed(Errno::BUSY))
    }

    /// Refuses a file that others may write to, or that has another place.
    fn check(&self, file: &File) -> Result<(), Error> {
        let failed = |error: io::Error| Error::Failed(format!("{}: {error}", self.path.display()));
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(self.alien(if metadata.file_type().is_fifo() { "a named pipe" } else { "no file" }));
        }
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(self.alien("a file of another user"));
        }
        if metadata.nlink() != 1 {
            return Err(self.alien("a file with a second name"));
        }
        rustix::fs::fchmod(file, PRIVATE).map_err(|error| failed(error.into()))
    }

    fn alien(&self, what: &str) -> Error {
        Error::Failed(format!(
            "{} is {what}, and no part of a transfer: remove it, or give another -o",
            self.path.display()
        ))
    }

    /// The file whose place it takes, to be compared.
    fn open_whole(&self) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(openat(&self.directory, &self.whole, flags, Mode::empty()).ok()?);
        file.metadata().is_ok_and(|metadata| metadata.is_file()).then_some(file)
    }

    fn is_entry_of(&self, file: &File) -> bool {
        let entry = statat(&self.directory, &self.entry, AtFlags::SYMLINK_NOFOLLOW);
        let metadata = file.metadata();
        matches!((entry, metadata), (Ok(entry), Ok(own)) if (entry.st_dev, entry.st_ino) == (own.dev(), own.ino()))
    }

    fn complete(&self, file: &File, attributes: Option<Attributes>) -> io::Result<()> {
        let before = self.before.as_ref().map(|before| before.mode() & PERMISSIONS);
        let mut mode = match (attributes.map(|attributes| attributes.mode & PERMISSIONS), before) {
            // No user may gain access who could not read both files.
            (Some(mode), Some(before)) => mode & before,
            // The sender is not authenticated: the umask limits its choice, as with scp.
            (Some(mode), None) => mode & !umask(),
            (None, Some(before)) => before,
            (None, None) => USUAL & !umask(),
        };
        if let Some(before) = &self.before
            && fchown(file, Some(before.uid()), Some(before.gid())).is_err()
        {
            // The file keeps the group of this process, for which the bits were not meant.
            mode &= !GROUP;
        }
        rustix::fs::fchmod(file, Mode::from_bits_retain(mode))?;
        if let Some(modified) = attributes.and_then(|attributes| time(attributes.modified)) {
            file.set_times(FileTimes::new().set_modified(modified))?;
        }
        file.sync_all()?;
        if !self.is_entry_of(file) {
            return Err(io::Error::other(format!("{} was replaced meanwhile", self.path.display())));
        }
        renameat(&self.directory, &self.entry, &self.directory, &self.whole)?;
        match rustix::fs::fsync(&self.directory) {
            // Some file systems cannot sync a directory.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn found(file: &File, bytes: u64, is_whole: bool, stop: &AtomicBool) -> io::Result<Found> {
    let mut hasher = Hasher::default();
    hasher.read_up_to(bytes, file, stop)?;
    Ok(Found { have: Have { bytes: hasher.bytes(), hash: hasher.value() }, hasher, is_whole })
}

/// The error in the words of the standard library, which adds the number.
fn text(error: Errno) -> io::Error {
    error.into()
}

/// The time, if the clock of this machine has it.
fn time((seconds, nanoseconds): (i64, u32)) -> Option<SystemTime> {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let epoch = SystemTime::UNIX_EPOCH;
    let time = if seconds < 0 { epoch.checked_sub(whole) } else { epoch.checked_add(whole) };
    time?.checked_add(Duration::from_nanos(nanoseconds.into()))
}

fn umask() -> u32 {
    let mask = rustix::process::umask(Mode::from_bits_retain(PERMISSIONS));
    rustix::process::umask(mask);
    mask.bits()
}
