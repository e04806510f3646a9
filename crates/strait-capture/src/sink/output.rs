//! Output file: created as `NAME.part`, written in whole blocks, renamed to `NAME`.
//!
//! [`FileSink`](super::FileSink) opens one for each file. Standard output, devices and FIFOs are
//! written in place. An advisory lock prevents two captures from sharing one `.part`.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, fchmod, fstat, openat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use strait_os::output::{self, RenameError};
use strait_os::process::umask;

use super::blocks::Blocks;
use super::compressor::Compressor;
use super::error::SinkError;
use super::options::{Form, Target};
use super::series::with_random;

/// Suffix of an unfinished file.
const UNFINISHED: &str = ".part";

/// Mode of a new file, before the umask.
const NEW: Mode = Mode::from_bits_retain(0o666);
/// Mode of a file with secrets: programs write key logs for their own user.
const PRIVATE: Mode = Mode::from_bits_retain(0o600);
/// Maximum number of files of killed captures for one name.
const SET_ASIDE_MAX: u32 = 99;
/// Maximum number of attempts to lock a `.part` that another process renames between opening and
/// locking.
const LOCK_ATTEMPTS_MAX: usize = 8;

/// Open file.
#[derive(Debug)]
pub(super) struct Output {
    file: File,
    place: Place,
    bytes: u64,
    /// Bytes before compression; `bytes` without it.
    content_bytes: u64,
    coding: Coding,
    /// True for a regular file, which can be truncated.
    regular: bool,
    /// New name of the `.part` that a killed capture left.
    set_aside: Option<PathBuf>,
}

#[derive(Debug)]
enum Coding {
    /// The file holds the blocks as they are.
    Plain,
    Compressed(Compressor),
    /// A write of compressed blocks failed, or the frame has ended: nothing can follow.
    Ended,
}

#[derive(Debug)]
enum Place {
    /// Regular file under the name of the part, renamed when it is complete.
    Renamed(Part),
    /// Standard output, a device or a FIFO.
    InPlace(PathBuf),
}

/// Entry of the unfinished file.
#[derive(Debug)]
struct Part {
    /// Directory. It stays the same if another user replaces a directory in the path.
    directory: OwnedFd,
    /// Name of the unfinished file in the directory.
    entry: OsString,
    /// Name of the complete file in the directory.
    whole: OsString,
    /// Path of the complete file, for messages.
    name: PathBuf,
}

/// Failed write, after the file was truncated to whole blocks.
#[derive(Debug)]
pub(super) struct Partial {
    /// Packets of this write that are in the file.
    pub(super) packets: u64,
    /// Blocks of secrets and names of this write that are in the file.
    pub(super) extra_blocks: u64,
    pub(super) cause: io::Error,
}

impl Output {
    /// Creates the file and writes `header` to it.
    pub(super) fn create(target: &Target, header: &[u8], form: Form) -> Result<Self, SinkError> {
        let opened = match target {
            Target::Stdout => Self::stdout(),
            Target::Path(path) => match output::find(path) {
                Ok(output::SafeOutput::Stream(file)) => Ok(Self::in_place(path, file)),
                Ok(output::SafeOutput::File(entry)) => {
                    return Self::unfinished(*entry, form.is_private)?.begin(header, form);
                }
                Err(error) => Err(error),
            },
        };
        opened.map_err(|source| SinkError::create(describe(target), source))?.begin(header, form)
    }

    /// Returns the size of the file, which has only whole blocks.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the size of the content before compression; that of the file if it is not
    /// compressed.
    pub(super) fn content_bytes(&self) -> u64 {
        self.content_bytes
    }

    /// Returns true for a regular file that is renamed when it is complete.
    pub(super) fn is_renamed(&self) -> bool {
        matches!(self.place, Place::Renamed(_))
    }

    /// Returns the final name of the file.
    pub(super) fn name(&self) -> String {
        match &self.place {
            Place::Renamed(Part { name, .. }) | Place::InPlace(name) => name.display().to_string(),
        }
    }

    /// Returns the name of the file until it is complete.
    pub(super) fn present_name(&self) -> String {
        match &self.place {
            Place::Renamed(part) => part.path().display().to_string(),
            Place::InPlace(name) => name.display().to_string(),
        }
    }

    /// Removes the permissions of other users from a file that this user has created. A file system
    /// without modes keeps those of its mount.
    pub(super) fn make_private(&self) -> io::Result<()> {
        if !self.is_renamed() {
            return Ok(());
        }
        restrict(&self.file, PRIVATE)
    }

    /// Returns the new name of a killed capture's file, once.
    pub(super) fn take_set_aside(&mut self) -> Option<PathBuf> {
        self.set_aside.take()
    }

    /// Writes a run of whole blocks. After a failure in the middle it truncates the file to the
    /// last whole block, or a compressed file to its state before.
    pub(super) fn write(&mut self, blocks: &[u8], format: &Blocks) -> Result<(), Partial> {
        if !matches!(self.coding, Coding::Plain) {
            return self.compress(blocks).map_err(|cause| Partial { packets: 0, extra_blocks: 0, cause });
        }
        let (written, result) = write_all(&mut self.file, blocks);
        let Err(cause) = result else {
            self.bytes += written as u64;
            self.content_bytes += written as u64;
            return Ok(());
        };
        let (whole, packets) = format.whole(&blocks[..written]);
        self.bytes += whole as u64;
        self.content_bytes += whole as u64;
        self.cut((written - whole) as u64);
        let extra_blocks = format.extra_blocks(&blocks[..whole]);
        Err(Partial { packets, extra_blocks, cause })
    }

    /// Compresses blocks, and writes all or nothing of them.
    pub(super) fn compress(&mut self, blocks: &[u8]) -> io::Result<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        // It is kept only after success: the state of the frame is not that of the file otherwise.
        let Coding::Compressed(mut compressor) = std::mem::replace(&mut self.coding, Coding::Ended) else {
            return Err(io::Error::other("a write of compressed blocks failed before"));
        };
        let packed = compressor.compress(blocks)?;
        let (written, result) = write_all(&mut self.file, packed);
        if result.is_err() {
            self.cut(written as u64);
            return result;
        }
        self.bytes += written as u64;
        self.content_bytes += blocks.len() as u64;
        self.coding = Coding::Compressed(compressor);
        Ok(())
    }

    /// Writes the end of a compressed file. After a failed write it has no end: readers report that
    /// after its last packet.
    pub(super) fn end(&mut self) -> io::Result<()> {
        let Coding::Compressed(compressor) = std::mem::replace(&mut self.coding, Coding::Ended) else {
            return Ok(());
        };
        let end = compressor.finish()?;
        let (written, result) = write_all(&mut self.file, &end);
        match &result {
            Ok(()) => self.bytes += written as u64,
            Err(_) => self.cut(written as u64),
        }
        result
    }

    /// Renames a regular file to its final name and replaces a file of that name; with `can_rename`
    /// it gets another name if its own is in use.
    pub(super) fn finish(self, can_rename: bool) -> Result<Complete, SinkError> {
        match self.place {
            Place::InPlace(name) => Ok(Complete { name, taken: None, place: None }),
            Place::Renamed(part) => part.complete(&self.file, can_rename),
        }
    }

    /// Returns a device that has no space.
    #[cfg(test)]
    pub(super) fn failing() -> Self {
        let full = File::options().write(true).open("/dev/full").expect("a device");
        Self::in_place(Path::new("/dev/full"), full)
    }

    fn stdout() -> io::Result<Self> {
        let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
        Ok(Self::empty(file, Place::InPlace("standard output".into()), regular))
    }

    fn in_place(path: &Path, file: File) -> Self {
        let regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
        Self::empty(file, Place::InPlace(path.to_owned()), regular)
    }

    fn empty(file: File, place: Place, regular: bool) -> Self {
        let coding = Coding::Plain;
        Self { file, place, bytes: 0, content_bytes: 0, coding, regular, set_aside: None }
    }

    /// Creates and locks `NAME.part` for a regular file.
    fn unfinished(found: output::Entry, is_private: bool) -> Result<Self, SinkError> {
        let mut entry = found.name.clone();
        entry.push(UNFINISHED);
        let part = Part { directory: found.directory, entry, whole: found.name, name: found.path };
        let path = part.path().display().to_string();
        let (file, set_aside) = match part.lock(is_private) {
            Ok(locked) => locked,
            Err(source) if source.kind() == io::ErrorKind::WouldBlock => {
                return Err(SinkError::Busy { file: path });
            }
            Err(source) => return Err(SinkError::create(path, source)),
        };
        Ok(Self { set_aside, ..Self::empty(file, Place::Renamed(part), true) })
    }

    /// Writes the header. If this fails the file is removed.
    fn begin(mut self, header: &[u8], form: Form) -> Result<Self, SinkError> {
        let result = match form.compression.map(Compressor::new).transpose() {
            Ok(Some(compressor)) => {
                self.coding = Coding::Compressed(compressor);
                self.compress(header)
            }
            Ok(None) => {
                let (written, result) = write_all(&mut self.file, header);
                (self.bytes, self.content_bytes) = (written as u64, written as u64);
                result
            }
            Err(error) => Err(error),
        };
        let Err(cause) = result else { return Ok(self) };
        if let Place::Renamed(part) = &self.place
            && part.is_entry_of(&self.file)
        {
            let _ = unlinkat(&part.directory, &part.entry, AtFlags::empty());
        }
        Err(SinkError::begin(self.name(), cause))
    }

    /// Removes the last `bytes` of a regular file that ends at the end of the last write.
    fn cut(&mut self, bytes: u64) {
        if bytes == 0 || !self.regular {
            return;
        }
        let (Ok(position), Ok(metadata)) = (self.file.stream_position(), self.file.metadata()) else {
            return;
        };
        let Some(end) = position.checked_sub(bytes) else { return };
        if metadata.len() == position && self.file.set_len(end).is_ok() {
            let _ = self.file.seek(SeekFrom::Start(end));
        }
    }
}

fn describe(target: &Target) -> String {
    match target {
        Target::Stdout => "standard output".into(),
        Target::Path(path) => path.display().to_string(),
    }
}

/// Returns the path of the unfinished file of `path`.
pub(super) fn unfinished(path: &Path) -> PathBuf {
    let mut part = path.as_os_str().to_owned();
    part.push(UNFINISHED);
    part.into()
}

impl Part {
    fn path(&self) -> PathBuf {
        self.name.with_file_name(&self.entry)
    }

    /// Opens and locks the part, a regular file of this user that is new or empty. Returns it with
    /// the new name of a killed capture's file. A file system without locks is no error.
    ///
    /// # Errors
    /// `WouldBlock`: another process has the lock.
    fn lock(&self, is_private: bool) -> io::Result<(File, Option<PathBuf>)> {
        let mode = if is_private { PRIVATE } else { NEW };
        let mut aside = None;
        for _ in 0..LOCK_ATTEMPTS_MAX {
            let created = self.open(OFlags::CREATE | OFlags::EXCL, mode);
            let is_new = created.is_ok();
            let file = match created {
                Err(Errno::EXIST) => match self.open_existing() {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    opened => opened?,
                },
                created => created?,
            };
            // Lock first and truncate later: another capture may be writing it.
            if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            // The other capture may have completed and renamed it since it was opened.
            if !self.is_entry_of(&file) {
                continue;
            }
            if is_new || is_ours_and_empty(&file)? {
                if !is_new {
                    // The empty file may be that of a capture with another umask.
                    restrict(&file, mode - Mode::from_raw_mode(umask()))?;
                }
                return Ok((file, aside));
            }
            aside = Some(self.set_aside()?);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn open(&self, flags: OFlags, mode: Mode) -> rustix::io::Result<File> {
        let flags = flags | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        Ok(openat(&self.directory, &self.entry, flags, mode)?.into())
    }

    /// Opens an existing part. Another user may have created a link or a named pipe with this name:
    /// links are not followed, and a pipe is neither written to nor waited for.
    fn open_existing(&self) -> io::Result<File> {
        let is_file = |file: &File| file.metadata().is_ok_and(|found| found.is_file());
        match self.open(OFlags::NOFOLLOW | OFlags::NONBLOCK, Mode::empty()) {
            Ok(file) if is_file(&file) => Ok(file),
            Err(Errno::NOENT) => Err(Errno::NOENT.into()),
            Err(error) if self.is_file() => Err(error.into()),
            _ => Err(io::Error::other("another kind of file has that name: remove it")),
        }
    }

    fn is_file(&self) -> bool {
        let found = statat(&self.directory, &self.entry, AtFlags::SYMLINK_NOFOLLOW);
        found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile)
    }

    /// Renames the `.part` of a killed capture to the first free name of `NAME.part.1`,
    /// `NAME.part.2` and so on, so that its packets are not lost.
    fn set_aside(&self) -> io::Result<PathBuf> {
        for number in 1..=SET_ASIDE_MAX {
            let mut name = self.entry.clone();
            name.push(format!(".{number}"));
            let (directory, flags) = (&self.directory, RenameFlags::NOREPLACE);
            match renameat_with(directory, &self.entry, directory, &name, flags) {
                Ok(()) => return Ok(self.name.with_file_name(name)),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::Error::other(format!(
            "{SET_ASIDE_MAX} files of killed captures have this name with a number: move them away"
        )))
    }

    /// Returns true if the part is still `file`.
    fn is_entry_of(&self, file: &File) -> bool {
        output::is_entry(&self.directory, &self.entry, file)
    }

    /// Renames `file` to its final name, or with `can_rename` to a random one if its own is in use
    /// or refused. In a directory that others can write to, another user may have replaced the
    /// part; the other user's file is not renamed.
    fn complete(self, file: &File, can_rename: bool) -> Result<Complete, SinkError> {
        let result = self.rename(file, &self.whole, can_rename);
        let mut complete = Complete { name: self.name.clone(), taken: None, place: None };
        if can_rename && matches!(result, Err(RenameError::Os(_))) {
            let other = with_random(&self.name);
            let renamed = other.file_name().map(|entry| (self.rename(file, entry, true), entry.to_owned()));
            if let Some((Ok(()), entry)) = renamed {
                complete.taken = Some(std::mem::replace(&mut complete.name, other));
                complete.place = CompleteFile::of(self.directory, entry, file);
                return Ok(complete);
            }
        }
        let (from, to) = (self.path().display().to_string(), self.name.display().to_string());
        match result {
            Ok(()) => complete.place = CompleteFile::of(self.directory, self.whole, file),
            Err(RenameError::Replaced) => {
                return Err(SinkError::Replaced { file: from, location: location(file) });
            }
            Err(RenameError::Os(source)) => {
                return Err(SinkError::Rename { from, to, source: Arc::new(source) });
            }
        }
        Ok(complete)
    }

    /// Renames the part; with `is_new` it replaces no file.
    fn rename(&self, file: &File, to: &OsStr, is_new: bool) -> Result<(), RenameError> {
        let names = (self.entry.as_os_str(), to);
        if is_new {
            output::rename_new(&self.directory, names, file)
        } else {
            output::rename(&self.directory, names, file)
        }
    }
}

/// Regular file with its final name, or a stream.
#[derive(Debug)]
pub(super) struct Complete {
    pub(super) name: PathBuf,
    /// Name that it should have had, if that was already in use.
    pub(super) taken: Option<PathBuf>,
    /// Its entry; `None` for standard output, a device or a FIFO.
    pub(super) place: Option<CompleteFile>,
}

/// Entry of a complete file, to delete it later.
#[derive(Debug)]
pub(super) struct CompleteFile {
    directory: Arc<OwnedFd>,
    entry: OsString,
    file: Identity,
}

/// Device, inode, length and time of the last change. Device and inode are not enough, because the
/// inode number of a deleted file can be used again.
type Identity = (u64, u64, u64, (i64, i64));

fn identity(found: &fs::Metadata) -> Identity {
    (found.dev(), found.ino(), found.len(), (found.mtime(), found.mtime_nsec()))
}

impl CompleteFile {
    fn of(directory: OwnedFd, entry: OsString, file: &File) -> Option<Self> {
        let found = file.metadata().ok()?;
        Some(Self { directory: Arc::new(directory), entry, file: identity(&found) })
    }

    /// Shares the descriptor of `other` if both files are in the same directory, so that a ring of
    /// many files needs only one.
    pub(super) fn share_directory(&mut self, other: &Self) {
        let place = |fd: &OwnedFd| fstat(fd).map(|found| (found.st_dev, found.st_ino));
        if matches!((place(&self.directory), place(&other.directory)), (Ok(own), Ok(other)) if own == other) {
            self.directory = Arc::clone(&other.directory);
        }
    }

    /// Returns the length, and the time of the last change in nanoseconds since the epoch.
    pub(super) fn length_and_change(&self) -> (u64, i64) {
        let (.., bytes, (seconds, nanoseconds)) = self.file;
        (bytes, seconds.wrapping_mul(1_000_000_000).wrapping_add(nanoseconds))
    }

    /// Deletes the file; returns true on success. Does not delete another file that has the name
    /// now: the user may have moved the capture away.
    pub(super) fn delete(&self) -> bool {
        let named = openat(
            &self.directory,
            &self.entry,
            OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let found = named.ok().and_then(|named| File::from(named).metadata().ok());
        found.is_some_and(|found| identity(&found) == self.file)
            && unlinkat(&self.directory, &self.entry, AtFlags::empty()).is_ok()
    }
}

/// Returns the present location of a capture after another process replaced its file.
fn location(file: &File) -> String {
    let is_deleted = file.metadata().is_ok_and(|found| found.nlink() == 0);
    match fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())) {
        Ok(path) if !is_deleted => format!("the capture is in {}", path.display()),
        _ if is_deleted => "the capture is deleted".into(),
        _ => "the capture has another name".into(),
    }
}

/// Removes the permissions of a file of this user that `most` does not have.
fn restrict(file: &File, most: Mode) -> io::Result<()> {
    let found = fstat(file)?;
    let mode = Mode::from_raw_mode(found.st_mode);
    if most.contains(mode) {
        return Ok(());
    }
    match fchmod(file, mode & most) {
        // An owner may change the mode, so the file system has none. An example is vfat.
        Err(Errno::PERM) if found.st_uid == rustix::process::geteuid().as_raw() => Ok(()),
        changed => Ok(changed?),
    }
}

/// Returns true for an empty file of this user with a single hard link. Another owner, or a user
/// with another link, could read or change the capture.
fn is_ours_and_empty(file: &File) -> io::Result<bool> {
    let found = file.metadata()?;
    Ok(found.len() == 0 && found.nlink() == 1 && found.uid() == rustix::process::geteuid().as_raw())
}

/// Writes all of `bytes`, and returns the number of bytes written. It waits for a full pipe.
fn write_all(file: &mut File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        let result = match file.write(&bytes[written..]) {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            Ok(more) => {
                written += more;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_writable(file),
            Err(error) => Err(error),
        };
        if result.is_err() {
            return (written, result);
        }
    }
    (written, Ok(()))
}

/// Waits until a non-blocking pipe has room. Another process may have made a shared pipe
/// non-blocking.
fn wait_writable(file: &File) -> io::Result<()> {
    match poll(&mut [PollFd::new(file, PollFlags::OUT)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
