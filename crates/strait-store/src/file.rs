//! An open file of the store, with its share of the budget and the hashes of its records. Lanes,
//! writers and records share it. Readers keep it through an [`Extent`], so that its bytes stay
//! readable after eviction.

use std::fs::File;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::budget::Share;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::format::{FileHeader, FileKind};

/// Ending of files that replace others.
pub(crate) const NEW: &str = "new";

/// Locks `mutex` even if it is poisoned: the data under these locks is consistent at every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// File with one or many records. Its descriptor is for sendfile(2) and splice(2).
#[derive(Debug)]
pub struct SegmentFile {
    // Declared, and so dropped, before the share: the budget gets the bytes back once the blocks
    // are free.
    file: File,
    pub(crate) share: Share,
    pub(crate) header: FileHeader,
    dir: Arc<Path>,
    disk: Disk,
    /// Hashes of the records with their head or their body in this file; `None` once eviction of
    /// the file has begun.
    members: Mutex<Option<Vec<u64>>>,
    /// Offsets of the records of open writers.
    open_extents: Mutex<Vec<u64>>,
    /// Number of extents being read or filled.
    pub(crate) readers: AtomicU32,
    /// True if the file was written to since its last sync.
    pub(crate) is_dirty: AtomicBool,
    /// True if the file was released: it is unlinked and closed once its readers close it.
    pub(crate) is_released: AtomicBool,
    /// True if the file was unlinked.
    pub(crate) is_unlinked: AtomicBool,
    /// Position in the eviction queue; 0 if it is not queued.
    pub(crate) position: AtomicU64,
}

impl AsFd for SegmentFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns the name of a file.
pub(crate) fn name_of(header: &FileHeader) -> String {
    let ending = if header.kind == FileKind::Segment { "segment" } else { "object" };
    format!("{:016x}.{ending}", header.number)
}

/// Parses the name of a file.
pub(crate) fn kind_and_number(name: &str) -> Option<(FileKind, u64)> {
    let (number, ending) = name.split_once('.')?;
    let kind = match ending {
        "segment" => FileKind::Segment,
        "object" => FileKind::Own,
        _ => return None,
    };
    let number = u64::from_str_radix(number, 16).ok()?;
    (name == name_of(&FileHeader { kind, number, tag: 0 })).then_some((kind, number))
}

impl SegmentFile {
    /// Creates an empty file, which [`begin`](Self::begin) completes.
    pub(crate) fn create(
        dir: &Arc<Path>,
        disk: &Disk,
        header: FileHeader,
        share: Share,
    ) -> Result<Arc<Self>> {
        let path = dir.join(name_of(&header));
        let file = disk.create(&path).map_err(|error| Error::io("create", &path, &error))?;
        Ok(Self::of(dir, disk, header, share, file))
    }

    /// Gives an empty file the length of its share, and writes its header.
    pub(crate) fn begin(&self) -> Result<()> {
        let allocated = self.disk.allocate(&self.file, self.share.bytes());
        allocated.map_err(|error| Error::io("create", &self.path(), &error))?;
        self.write_bytes(&self.header.encode(), 0)
    }

    /// Wraps an open file.
    pub(crate) fn of(
        dir: &Arc<Path>,
        disk: &Disk,
        header: FileHeader,
        share: Share,
        file: File,
    ) -> Arc<Self> {
        Arc::new(Self {
            file,
            share,
            header,
            dir: dir.clone(),
            disk: disk.clone(),
            members: Mutex::new(Some(Vec::new())),
            open_extents: Mutex::default(),
            readers: AtomicU32::new(0),
            is_dirty: AtomicBool::new(false),
            is_released: AtomicBool::new(false),
            is_unlinked: AtomicBool::new(false),
            position: AtomicU64::new(0),
        })
    }

    pub(crate) fn number(&self) -> u64 {
        self.header.number
    }

    pub(crate) fn is_own(&self) -> bool {
        self.header.kind == FileKind::Own
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.join(name_of(&self.header))
    }

    /// Adds the hash of a record that has a part in this file. Returns false if eviction of the
    /// file has begun.
    pub(crate) fn admit(&self, hash: u64) -> bool {
        lock(&self.members).as_mut().map(|members| members.push(hash)).is_some()
    }

    /// Returns true if eviction of the file has begun.
    pub(crate) fn is_dismissed(&self) -> bool {
        lock(&self.members).is_none()
    }

    /// Returns true if a record has a part in this file.
    pub(crate) fn has_members(&self) -> bool {
        lock(&self.members).as_ref().is_some_and(|members| !members.is_empty())
    }

    /// Hashes of the records with a part in this file.
    pub(crate) fn members(&self) -> Vec<u64> {
        lock(&self.members).clone().unwrap_or_default()
    }

    /// Hashes of the records with a part in this file. Later calls of [`Self::admit`] return false.
    pub(crate) fn dismiss(&self) -> Vec<u64> {
        lock(&self.members).take().unwrap_or_default()
    }

    /// Notes that the extent of the record at `offset` is being filled. Returns true if it is the
    /// only one of the file.
    pub(crate) fn open_extent(&self, offset: u64) -> bool {
        let mut extents = lock(&self.open_extents);
        extents.push(offset);
        extents.len() == 1
    }

    /// Notes that the extent is not being filled any more. Returns true if it was the last one of
    /// the file.
    pub(crate) fn close_extent(&self, offset: u64) -> bool {
        let mut extents = lock(&self.open_extents);
        let place = extents.iter().position(|open| *open == offset);
        place.is_some_and(|place| {
            extents.swap_remove(place);
            extents.is_empty()
        })
    }

    /// Lowest offset of the record of an open writer; `None` without a writer.
    pub(crate) fn first_open_extent(&self) -> Option<u64> {
        lock(&self.open_extents).iter().min().copied()
    }

    /// Returns true if an extent is being filled.
    pub(crate) fn has_writers(&self) -> bool {
        !lock(&self.open_extents).is_empty()
    }

    /// Reads up to `bytes` bytes at `offset`; fewer only at the end of the file.
    pub(crate) fn read(&self, bytes: usize, offset: u64) -> Result<Vec<u8>> {
        let mut buffer = Vec::new();
        let read = self.disk.read(&self.file, &mut buffer, bytes, offset);
        read.map_err(|error| Error::io("read", &self.path(), &error))?;
        Ok(buffer)
    }

    pub(crate) fn write(&self, pieces: &mut [IoSlice<'_>], offset: u64) -> Result<()> {
        self.disk.write(&self.file, pieces, offset).map_err(|error| Error::io("write", &self.path(), &error))
    }

    pub(crate) fn write_bytes(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let written = self.disk.write_bytes(&self.file, bytes, offset);
        written.map_err(|error| Error::io("write", &self.path(), &error))
    }

    /// Copies bytes of another file into this one by copy_file_range(2).
    pub(crate) fn copy_from(&self, from: &Extent, bytes: u64, offset: u64) -> Result<()> {
        let copied = self.disk.copy((&from.file.file, from.offset), (&self.file, offset), bytes);
        copied.map_err(|error| Error::io("copy into", &self.path(), &error))
    }

    /// Allocates blocks up to `bytes`, which the share includes already.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<()> {
        let allocated = self.disk.allocate(&self.file, bytes);
        allocated.map_err(|error| Error::io("allocate", &self.path(), &error))
    }

    /// Truncates the file to `bytes` and returns the rest to the budget. If truncation fails, the
    /// share stays.
    pub(crate) fn cut(&self, bytes: u64) {
        if self.truncate(bytes) {
            self.share.shrink_to(bytes);
        }
    }

    /// Truncates the file to `bytes`, and leaves its share. Returns false if that fails.
    pub(crate) fn truncate(&self, bytes: u64) -> bool {
        self.disk.truncate(&self.file, bytes).is_ok()
    }

    /// Removes all bytes at and after `offset`. If that fails as well as a write there, a later
    /// session may find the records that the write has completed.
    pub(crate) fn clear_from(&self, offset: u64) {
        self.truncate(offset);
    }

    /// Parts of the file with data at or after `offset`.
    pub(crate) fn data_after(&self, offset: u64) -> Vec<Range<u64>> {
        Disk::data_after(&self.file, offset)
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.disk.sync(&self.file).map_err(|error| Error::io("sync", &self.path(), &error))
    }

    /// Unlinks the file, and marks it only then: a sync skips marked files.
    pub(crate) fn unlink(&self) -> Result<()> {
        let path = self.path();
        self.disk.unlink(&path).map_err(|error| Error::io("unlink", &path, &error))?;
        self.is_unlinked.store(true, Ordering::Release);
        Ok(())
    }

    /// Marks the file as dirty. Returns true if it was clean.
    pub(crate) fn dirty(&self) -> bool {
        !self.is_dirty.load(Ordering::Relaxed) && !self.is_dirty.swap(true, Ordering::AcqRel)
    }
}

/// Position in a file at which bytes are read or written. The bytes stay readable while an extent
/// is held.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The file.
    pub file: Arc<SegmentFile>,
    /// Offset in bytes.
    pub offset: u64,
    _reading: Reading,
}

impl Extent {
    pub(crate) fn new(file: &Arc<SegmentFile>, offset: u64) -> Self {
        Self { file: file.clone(), offset, _reading: Reading::new(file.clone()) }
    }

    /// Returns the extent `bytes` further on.
    #[must_use]
    pub fn after(&self, bytes: u64) -> Self {
        Self { offset: self.offset + bytes, ..self.clone() }
    }
}

/// Counts in [`SegmentFile::readers`]. Eviction prefers files without readers, because it can free
/// them at once.
#[derive(Debug)]
struct Reading(Arc<SegmentFile>);

impl Reading {
    fn new(file: Arc<SegmentFile>) -> Self {
        file.readers.fetch_add(1, Ordering::AcqRel);
        Self(file)
    }
}

impl Clone for Reading {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::AcqRel);
    }
}
