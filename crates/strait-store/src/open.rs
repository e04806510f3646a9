//! Opening: the directory, its lock, the last checkpoint and the list of files.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::budget::{Budget, Share};
use crate::config::Config;
use crate::disk::Disk;
use crate::durability::{CHECKPOINT, Durability, write_checkpoint};
use crate::error::{Error, Result};
use crate::file::{NEW, kind_and_number};
use crate::format::FileKind;
use crate::format::checkpoint::Checkpoint;
use crate::journal::INDEX;
use crate::segments::Segments;
use crate::shared::Shared;
use crate::unread::Found;

/// Divisor of the process's descriptor limit for files of the store, and minimum number of files.
const FILES_PARTS: u64 = 4;
const FILES_MIN: usize = 64;
/// Longest wait for processes that read the store, and interval of checks.
pub(crate) const READERS_WAIT_MAX: Duration = Duration::from_secs(5);
const READERS_EVERY: Duration = Duration::from_millis(50);
/// Only the owner may use the directory.
const DIR_MODE: u32 = 0o700;
const LOCK: &str = "lock";

/// Files of earlier sessions.
#[derive(Debug)]
pub(crate) struct Earlier {
    /// Ordered by age.
    pub(crate) files: Vec<Found>,
    /// Share of the journal of the index, if it exists.
    pub(crate) index: Option<Share>,
}

/// An opened store, the files to load, and the lock.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) shared: Shared,
    pub(crate) earlier: Earlier,
    pub(crate) lock: Option<OwnedFd>,
}

/// Opens a directory for reading and writing.
pub(crate) fn open(disk: Disk, config: Config) -> Result<Opened> {
    let segment_bytes = config.segment_bytes()?;
    let files_max = files_max(&config, segment_bytes);
    let dir: Arc<Path> = config.dir.into();
    let created = DirBuilder::new().recursive(true).mode(DIR_MODE).create(&dir);
    created.map_err(|error| Error::io("make", &dir, &error))?;
    let lock = Some(lock_dir(&dir)?);
    let budget = Budget::new(config.capacity_bytes, files_max);
    if config.is_emptied {
        // First, so that a start after a kill finds none of the records.
        disk.unlink(&dir.join(CHECKPOINT))
            .map_err(|error| Error::io("unlink", &dir.join(CHECKPOINT), &error))?;
        disk.sync_dir(&dir).map_err(|error| Error::io("sync", &dir, &error))?;
    }
    let last = read_checkpoint(&disk, &dir)?;
    if last.is_none() {
        // Without a checkpoint, complete and incomplete records look alike.
        remove_all(&disk, &dir)?;
        remove(&disk, &dir.join(INDEX))?;
    }
    // A journal that a killed process has not completed.
    remove(&disk, &dir.join(INDEX).with_extension(NEW))?;
    let boot_id = config.boot_id.map_or_else(boot_id, Ok)?;
    let first = Checkpoint { boot_id, session: 0, boot_session: 0, durable: 0, held: Vec::new() };
    let checkpoint = last.unwrap_or(first).next(boot_id);
    let earlier = list(&dir, &budget)?;
    write_checkpoint(&disk, &dir, &checkpoint)?;
    let segments = Segments::new(dir, disk, budget, segment_bytes, checkpoint.session);
    let shared = Shared::new(segments, Durability::new(checkpoint), config.lanes);
    Ok(Opened { shared, earlier, lock })
}

/// Opens a directory read-only: creates, changes and removes nothing in it. The store has no size
/// limit.
pub(crate) fn open_to_read(dir: &Path) -> Result<Opened> {
    let (disk, dir) = (Disk::to_read(), Arc::<Path>::from(dir));
    let lock = lock_to_read(&dir)?;
    let last = read_checkpoint(&disk, &dir)?.ok_or_else(|| Error::NoStore(dir.to_path_buf()))?;
    // As in a session that writes.
    let checkpoint = last.next(boot_id()?);
    let budget = Budget::new(0, 0);
    let earlier = list(&dir, &budget)?;
    let segments = Segments::new(dir, disk, budget, 0, checkpoint.session);
    let shared = Shared::new(segments, Durability::new(checkpoint), 1);
    Ok(Opened { shared, earlier, lock })
}

/// Locks the directory for this process with flock(2), which the kernel releases when the process
/// ends. Waits for read-only processes, which hold the lock only while they load.
pub(crate) fn lock_dir(dir: &Path) -> Result<OwnedFd> {
    let path = dir.join(LOCK);
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
    let file = file.map_err(|error| Error::io("open", &path, &error.into()))?;
    let begin = Instant::now();
    while begin.elapsed() < READERS_WAIT_MAX && is_read(&file) {
        thread::sleep(READERS_EVERY);
    }
    take_lock(dir, file, FlockOperation::NonBlockingLockExclusive)
}

/// Returns true if only readers hold the lock. The lock is not held by this process when this
/// returns.
fn is_read(file: &OwnedFd) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
        && flock(file, FlockOperation::NonBlockingLockShared).is_ok()
        && flock(file, FlockOperation::Unlock).is_ok()
}

/// Locks the directory against writers. Without a lock file, as in a copy of a store, there is no
/// writer.
fn lock_to_read(dir: &Path) -> Result<Option<OwnedFd>> {
    let path = dir.join(LOCK);
    match rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(Error::io("open", &path, &error.into())),
        Ok(file) => take_lock(dir, file, FlockOperation::NonBlockingLockShared).map(Some),
    }
}

fn take_lock(dir: &Path, file: OwnedFd, operation: FlockOperation) -> Result<OwnedFd> {
    match flock(&file, operation) {
        Err(Errno::WOULDBLOCK) => Err(Error::InUse(dir.to_path_buf())),
        Err(error) => Err(Error::io("lock", &dir.join(LOCK), &error.into())),
        Ok(()) => Ok(file),
    }
}

/// Open files that all stores of a process may have, if none are configured.
pub(crate) fn files_allowed() -> usize {
    (getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / FILES_PARTS) as usize
}

/// Limit of open files: at least the number of segments in the capacity.
fn files_max(config: &Config, segment_bytes: u64) -> usize {
    let share = config.files_max.unwrap_or_else(files_allowed);
    share.max(FILES_MIN).max((config.capacity_bytes / segment_bytes) as usize)
}

fn read_checkpoint(disk: &Disk, dir: &Path) -> Result<Option<Checkpoint>> {
    let path = dir.join(CHECKPOINT);
    let mut bytes = Vec::new();
    let read = match disk.open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.and_then(|file| disk.read(&file, &mut bytes, crate::format::PAGE_BYTES as usize, 0)),
    };
    read.map_err(|error| Error::io("read", &path, &error))?;
    Ok(Checkpoint::decode(&bytes))
}

/// Identifier of the current run of the machine (random(4)).
fn boot_id() -> Result<[u8; 16]> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(|error| Error::io("read", path, &error))?;
    let digits = text.trim().replace('-', "");
    let number = u128::from_str_radix(&digits, 16);
    number.map(u128::to_le_bytes).map_err(|error| Error::io("read", path, &io::Error::other(error)))
}

/// Lists the store's files and counts them in `budget`. Other files are ignored.
fn list(dir: &Path, budget: &Arc<Budget>) -> Result<Earlier> {
    let mut files = Vec::new();
    for_each(dir, |kind, number, path| {
        let bytes = fs::symlink_metadata(path)?.len();
        files.push(Found { kind, number, share: Share::of_existing(budget, bytes) });
        Ok(())
    })?;
    files.sort_unstable_by_key(|file| file.number);
    let index = fs::symlink_metadata(dir.join(INDEX)).ok().map(|data| Share::of_existing(budget, data.len()));
    Ok(Earlier { files, index })
}

fn remove(disk: &Disk, path: &Path) -> Result<()> {
    disk.unlink(path).map_err(|error| Error::io("unlink", path, &error))
}

fn remove_all(disk: &Disk, dir: &Path) -> Result<()> {
    for_each(dir, |_, _, path| disk.unlink(path))
}

fn for_each(dir: &Path, mut look: impl FnMut(FileKind, u64, &Path) -> io::Result<()>) -> Result<()> {
    let entries = fs::read_dir(dir).map_err(|error| Error::io("list", dir, &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("list", dir, &error))?;
        // The store creates no links and no pipes: such an entry belongs to another program.
        if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        if let Some((kind, number)) = entry.file_name().to_str().and_then(kind_and_number) {
            look(kind, number, &entry.path()).map_err(|error| Error::io("list", &entry.path(), &error))?;
        }
    }
    Ok(())
}
