//! A file of the store: open, accounted, and knowing whose hashes it holds. Lanes, writers and records share it; readers keep it
//! through an [`Extent`], so that what they read stays there however it is evicted.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::budget::Share;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::format::{FileHeader, FileKind};

/// Locks, whatever happened to a thread that held it: what is under these locks is whole at every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file with one record or many. To be read with sendfile(2) and written with splice(2) through its descriptor.
#[derive(Debug)]
pub struct SegmentFile {
    // The descriptor goes before the share: room is given back when the blocks are.
    file: File,
    pub(crate) share: Share,
    pub(crate) header: FileHeader,
    dir: Arc<Path>,
    disk: Disk,
    /// Hashes of the records that have their head or their body here; `None` once it is being evicted.
    members: Mutex<Option<Vec<u64>>>,
    /// Extents of it that are being filled.
    pub(crate) writers: AtomicU32,
    /// Extents of it that are kept, to be read or filled.
    pub(crate) readers: AtomicU32,
    /// Whether it was written to since it was synced.
    pub(crate) is_dirty: AtomicBool,
    /// Whether it was let go.
    pub(crate) is_leaving: AtomicBool,
    /// Whether its name was taken away.
    pub(crate) has_left: AtomicBool,
    /// Its place in the queue of those to be evicted.
    pub(crate) turn: AtomicU64,
}

impl AsFd for SegmentFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The name of a file.
pub(crate) fn name_of(header: &FileHeader) -> String {
    let ending = if header.kind == FileKind::Segment { "segment" } else { "object" };
    format!("{:016x}.{ending}", header.number)
}

/// What the name of a file says.
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
    /// Makes a file of the length of `share`, with its header.
    pub(crate) fn create(
        dir: &Arc<Path>,
        disk: &Disk,
        header: FileHeader,
        share: Share,
    ) -> Result<Arc<Self>> {
        let path = dir.join(name_of(&header));
        let file = disk.create(&path, share.bytes()).map_err(|error| Error::io("create", &path, &error))?;
        let made = Self::of(dir, disk, header, share, file);
        made.write_bytes(&header.encode(), 0).inspect_err(|_| made.unlink())?;
        Ok(made)
    }

    /// A file that is there.
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
            writers: AtomicU32::new(0),
            readers: AtomicU32::new(0),
            is_dirty: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            turn: AtomicU64::new(0),
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

    /// Notes that a record has a part here; false if the file is on its way out.
    pub(crate) fn admit(&self, hash: u64) -> bool {
        lock(&self.members).as_mut().map(|members| members.push(hash)).is_some()
    }

    /// Whether any record has a part here.
    pub(crate) fn has_members(&self) -> bool {
        lock(&self.members).as_ref().is_some_and(|members| !members.is_empty())
    }

    /// Hashes of the records with a part here.
    pub(crate) fn members(&self) -> Vec<u64> {
        lock(&self.members).clone().unwrap_or_default()
    }

    /// Hashes of the records with a part here; from now on it admits none.
    pub(crate) fn dismiss(&self) -> Vec<u64> {
        lock(&self.members).take().unwrap_or_default()
    }

    /// Up to `bytes` bytes at `offset`; fewer only at the end of the file.
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

    /// Copies bytes of another file into this one.
    pub(crate) fn copy_from(&self, from: &Extent, bytes: u64, offset: u64) -> Result<()> {
        let copied = self.disk.copy((&from.file.file, from.offset), (&self.file, offset), bytes);
        copied.map_err(|error| Error::io("copy into", &self.path(), &error))
    }

    /// Takes blocks for it up to `bytes`, which its share has already.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<()> {
        let allocated = self.disk.allocate(&self.file, bytes);
        allocated.map_err(|error| Error::io("allocate", &self.path(), &error))
    }

    /// Cuts it to `bytes` and gives the rest back. One that cannot be cut keeps its share.
    pub(crate) fn cut(&self, bytes: u64) {
        if self.disk.truncate(&self.file, bytes).is_ok() {
            self.share.shrink_to(bytes);
        }
    }

    /// Where data begins at or behind `offset`; `None` if nothing follows.
    pub(crate) fn next_data(&self, offset: u64) -> Option<u64> {
        Disk::next_data(&self.file, offset)
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.disk.sync(&self.file).map_err(|error| Error::io("sync", &self.path(), &error))
    }

    /// Takes its name away. If that fails the next start finds the file and tries again.
    pub(crate) fn unlink(&self) {
        let _ = self.disk.unlink(&self.path());
    }

    /// Marks it as written to; true if it was not.
    pub(crate) fn dirty(&self) -> bool {
        !self.is_dirty.load(Ordering::Relaxed) && !self.is_dirty.swap(true, Ordering::AcqRel)
    }
}

/// A place in a file, from where on bytes are read or written. As long as it is kept the bytes stay.
#[derive(Clone, Debug)]
pub struct Extent {
    /// The file.
    pub file: Arc<SegmentFile>,
    /// Bytes from its begin.
    pub offset: u64,
    _reading: Reading,
}

impl Extent {
    pub(crate) fn new(file: &Arc<SegmentFile>, offset: u64) -> Self {
        Self { file: file.clone(), offset, _reading: Reading::new(file.clone()) }
    }

    /// The place `bytes` further on.
    #[must_use]
    pub fn after(&self, bytes: u64) -> Self {
        Self { offset: self.offset + bytes, ..self.clone() }
    }
}

/// A count in [`SegmentFile::readers`], by which eviction knows which files it frees at once.
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
