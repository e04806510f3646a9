//! One file being written: made as `NAME.part`, written in whole blocks, renamed to `NAME`.
//!
//! [`FileSink`](super::FileSink) opens one for each file. Standard output, devices and FIFOs are written in place. An
//! advisory lock keeps two captures from sharing one `.part`. It knows nothing of rotation.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use strait_sys::output;

use super::blocks::Blocks;
use super::{SinkError, Target};

/// What an unfinished file's name ends with.
const UNFINISHED: &str = ".part";

/// Files of killed captures that are kept for one name.
const SET_ASIDE_MAX: u32 = 99;
/// How often a `.part` may be renamed away between opening and locking it before that is an error.
const LOCK_TRIES: usize = 8;

/// An open file.
#[derive(Debug)]
pub(super) struct Output {
    file: File,
    place: Place,
    bytes: u64,
    /// A regular file, which can be cut back.
    regular: bool,
    /// The name that the file of a killed capture was given.
    set_aside: Option<PathBuf>,
}

#[derive(Debug)]
enum Place {
    /// Written under `part`, to be renamed to `name`.
    Renamed { part: PathBuf, name: PathBuf },
    /// Standard output, a device or a FIFO.
    InPlace(PathBuf),
}

/// A write that failed, after it was cut back to whole blocks.
#[derive(Debug)]
pub(super) struct Partial {
    /// Packets of this write that are in the file.
    pub(super) packets: u64,
    pub(super) cause: io::Error,
}

impl Output {
    /// Makes the file and writes `header` to it.
    pub(super) fn create(target: &Target, header: &[u8]) -> Result<Self, SinkError> {
        let opened = match target {
            Target::Stdout => Self::stdout(),
            Target::Path(path) => match output::find(path) {
                Ok(output::Place::Stream(file)) => Ok(Self::in_place(path, file)),
                Ok(output::Place::File(entry)) => return Self::unfinished(entry.path)?.begin(header),
                Err(error) => Err(error),
            },
        };
        opened.map_err(|source| SinkError::create(describe(target), source))?.begin(header)
    }

    /// Bytes in the file, whole blocks all of them.
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The name that the file will have.
    pub(super) fn name(&self) -> String {
        match &self.place {
            Place::Renamed { name, .. } | Place::InPlace(name) => name.display().to_string(),
        }
    }

    /// The name that the file of a killed capture was given to keep it, once.
    pub(super) fn take_set_aside(&mut self) -> Option<PathBuf> {
        self.set_aside.take()
    }

    /// Writes a run of whole blocks. If that fails halfway, cuts the file back to the last whole one.
    pub(super) fn write(&mut self, blocks: &[u8], format: &Blocks) -> Result<(), Partial> {
        let (written, result) = write_all(&mut self.file, blocks);
        let Err(cause) = result else {
            self.bytes += written as u64;
            return Ok(());
        };
        let (whole, packets) = format.whole(&blocks[..written]);
        self.bytes += whole as u64;
        self.cut((written - whole) as u64);
        Err(Partial { packets, cause })
    }

    /// Gives a regular file its name and says it.
    pub(super) fn finish(self) -> Result<PathBuf, SinkError> {
        match self.place {
            Place::InPlace(name) => Ok(name),
            Place::Renamed { part, name } => match fs::rename(&part, &name) {
                Ok(()) => Ok(name),
                Err(source) => {
                    let (from, to) = (part.display().to_string(), name.display().to_string());
                    Err(SinkError::Rename { from, to, source: Arc::new(source) })
                }
            },
        }
    }

    fn stdout() -> io::Result<Self> {
        let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
        Ok(Self { file, place: Place::InPlace("standard output".into()), bytes: 0, regular, set_aside: None })
    }

    fn in_place(path: &Path, file: File) -> Self {
        let regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
        Self { file, place: Place::InPlace(path.to_owned()), bytes: 0, regular, set_aside: None }
    }

    /// `NAME.part` for a regular file, locked and new.
    fn unfinished(name: PathBuf) -> Result<Self, SinkError> {
        let mut part = name.clone().into_os_string();
        part.push(UNFINISHED);
        let part = PathBuf::from(part);
        let shown = part.display().to_string();
        let (file, set_aside) = match lock(&part) {
            Ok(locked) => locked,
            Err(source) if source.kind() == io::ErrorKind::WouldBlock => {
                return Err(SinkError::Busy { file: shown });
            }
            Err(source) => return Err(SinkError::create(shown, source)),
        };
        Ok(Self { file, place: Place::Renamed { part, name }, bytes: 0, regular: true, set_aside })
    }

    /// Writes the header. A file that cannot hold even that is removed again.
    fn begin(mut self, header: &[u8]) -> Result<Self, SinkError> {
        let (written, result) = write_all(&mut self.file, header);
        self.bytes = written as u64;
        let Err(cause) = result else { return Ok(self) };
        if let Place::Renamed { part, .. } = &self.place {
            let _ = fs::remove_file(part);
        }
        Err(SinkError::begin(self.name(), cause))
    }

    /// Takes the last `bytes` off a regular file that ends where we stopped to write.
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

/// Opens and locks `part`, a regular file that is new or empty and this user's own. `WouldBlock`:
/// another process has the lock. A file system without locks is no reason not to capture. Returns
/// the name of a file that was set aside, too.
fn lock(part: &Path) -> io::Result<(File, Option<PathBuf>)> {
    let mut aside = None;
    for _ in 0..LOCK_TRIES {
        let created = OpenOptions::new().write(true).create_new(true).open(part);
        let is_new = created.is_ok();
        let file = match created {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match open_left(part) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            },
            created => created?,
        };
        // Not truncated here: it may be another capture's until the lock says otherwise.
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // Its owner may have renamed it after we opened it: then it is a complete capture.
        if !is_at(&file, part) {
            continue;
        }
        if is_new || is_ours_and_empty(&file)? {
            return Ok((file, aside));
        }
        aside = Some(set_aside(part)?);
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Opens a part that is there already. Another user may have planted a link or a named pipe under that name: neither is
/// followed, written to or waited for.
fn open_left(part: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = OpenOptions::new().write(true).custom_flags(flags.bits().cast_signed()).open(part);
    let is_file = |file: &File| file.metadata().is_ok_and(|found| found.is_file());
    match opened {
        Ok(file) if is_file(&file) => Ok(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
        Err(error) if fs::symlink_metadata(part).is_ok_and(|found| found.is_file()) => Err(error),
        _ => Err(io::Error::other("there is something else than a file under that name: remove it")),
    }
}

/// Returns true for an empty file of this user with one name. Any other could be read or changed by its owner.
fn is_ours_and_empty(file: &File) -> io::Result<bool> {
    let found = file.metadata()?;
    Ok(found.len() == 0 && found.nlink() == 1 && found.uid() == rustix::process::geteuid().as_raw())
}

/// Keeps what a killed capture left, its last packets, under the first free name of `NAME.part.1` and on.
fn set_aside(part: &Path) -> io::Result<PathBuf> {
    for number in 1..=SET_ASIDE_MAX {
        let mut name = part.as_os_str().to_owned();
        name.push(format!(".{number}"));
        match renameat_with(CWD, part, CWD, &name, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(name.into()),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(io::Error::other(format!(
        "{SET_ASIDE_MAX} files that killed captures left are there: move them away"
    )))
}

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

/// Writes all of `bytes`, waiting where a pipe is full, and says how many were written.
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

/// Waits until a pipe that its other users made non-blocking has room.
fn wait_writable(file: &File) -> io::Result<()> {
    match poll(&mut [PollFd::new(file, PollFlags::OUT)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
