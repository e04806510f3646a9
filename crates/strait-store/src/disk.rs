//! File-system calls of the store, each in one place, so that tests can make any of them fail and a
//! read-only store refuses all that write. Otherwise they are the bare system calls.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom, copy_file_range, fallocate, fdatasync, seek, statvfs};
use rustix::io::{Errno, pwritev};

#[cfg(test)]
pub(crate) use crate::tests::faults::Faults;

/// Only the owner may read and write files.
const FILE_MODE: u32 = 0o600;

/// Limit of the parts of a file between holes. Further holes are read.
const PARTS_MAX: usize = 4096;

/// Limit of pieces in one call (`UIO_MAXIOV`, linux/uio.h).
const PIECES_MAX: usize = 1024;

/// A call that a test can make fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Create,
    Open,
    Allocate,
    Read,
    Write,
    Copy,
    Truncate,
    Sync,
    Rename,
    Unlink,
    Space,
}

/// The file system.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    is_read_only: bool,
    #[cfg(test)]
    pub(crate) faults: std::sync::Arc<Faults>,
}

impl Disk {
    /// The file system, read-only: every call that writes fails with EROFS before it is made.
    pub(crate) fn to_read() -> Self {
        Self {
            is_read_only: true,
            #[cfg(test)]
            faults: std::sync::Arc::default(),
        }
    }

    /// Returns true if writing calls are refused.
    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Creates an empty file.
    pub(crate) fn create(&self, path: &Path) -> io::Result<File> {
        self.fails(Call::Create)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(FILE_MODE).open(path)
    }

    /// Allocates blocks for the file up to `bytes` if the file system supports that, and extends
    /// its length to that.
    pub(crate) fn allocate(&self, file: &File, bytes: u64) -> io::Result<()> {
        self.fails(Call::Allocate)?;
        #[cfg(test)]
        self.faults.allocates(file, bytes)?;
        match fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::OPNOTSUPP) => file.set_len(bytes),
            other => Ok(other?),
        }
    }

    /// Bytes available to this user in the file system of `dir`.
    pub(crate) fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.fails(Call::Space)?;
        #[cfg(test)]
        if let Some(bytes) = self.faults.free_bytes() {
            return Ok(bytes);
        }
        let data = statvfs(dir)?;
        Ok(data.f_bavail.saturating_mul(data.f_frsize))
    }

    /// Opens a file for reading, and for writing unless the store is read-only. Refuses a symbolic
    /// link (ELOOP): the store makes none, so another program has put it there.
    pub(crate) fn open(&self, path: &Path) -> io::Result<File> {
        self.fails(Call::Open)?;
        let mut options = OpenOptions::new();
        options.read(true).write(!self.is_read_only);
        options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path)
    }

    /// pread(2) of up to `bytes` bytes at `offset`, appended to `into`; fewer only at the end of
    /// the file.
    pub(crate) fn read(&self, file: &File, into: &mut Vec<u8>, bytes: usize, offset: u64) -> io::Result<()> {
        self.fails(Call::Read)?;
        let end = into.len() + bytes;
        into.reserve_exact(bytes);
        while into.len() < end {
            let at = offset + (bytes - (end - into.len())) as u64;
            match rustix::io::pread(file, rustix::buffer::spare_capacity(into), at) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        into.truncate(end);
        Ok(())
    }

    /// pwritev(2) of all of `pieces` at `offset`. After an error any part of them may be written.
    pub(crate) fn write(&self, file: &File, pieces: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let failed = self.fails(Call::Write);
        #[cfg(test)]
        if failed.is_err() {
            cut_short(file, pieces, offset);
        }
        failed?;
        let (mut pieces, mut offset) = (pieces, offset);
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            let some = &pieces[..pieces.len().min(PIECES_MAX)];
            match pwritev(file, some, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    IoSlice::advance_slices(&mut pieces, written);
                    offset += written as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes `bytes` at `offset`.
    pub(crate) fn write_bytes(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.fails(Call::Write)?;
        file.write_all_at(bytes, offset)
    }

    /// copy_file_range(2) of `bytes` bytes.
    pub(crate) fn copy(&self, from: (&File, u64), to: (&File, u64), bytes: u64) -> io::Result<()> {
        self.fails(Call::Copy)?;
        let (mut source, mut target, mut left) = (from.1, to.1, bytes);
        while left > 0 {
            let step = left.min(1 << 30) as usize;
            match copy_file_range(from.0, Some(&mut source), to.0, Some(&mut target), step) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(copied) => left -= copied as u64,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Parts of the file with data at or after `offset`: all of it if the file system does not
    /// support SEEK_DATA. Find them before the file is read: allocated blocks count as a hole until
    /// the kernel reads them ahead.
    pub(crate) fn data_after(file: &File, offset: u64) -> Vec<Range<u64>> {
        let (mut parts, mut offset) = (Vec::new(), offset);
        while parts.len() < PARTS_MAX {
            match seek(file, SeekFrom::Data(offset)) {
                Ok(begin) => {
                    offset = seek(file, SeekFrom::Hole(begin)).unwrap_or(u64::MAX);
                    parts.push(begin..offset);
                }
                Err(Errno::NXIO) => return parts,
                Err(_) => break,
            }
        }
        parts.push(offset..u64::MAX);
        parts
    }

    /// Truncates the file to `bytes`.
    pub(crate) fn truncate(&self, file: &File, bytes: u64) -> io::Result<()> {
        self.fails(Call::Truncate)?;
        file.set_len(bytes)
    }

    /// fdatasync(2).
    pub(crate) fn sync(&self, file: &File) -> io::Result<()> {
        self.fails(Call::Sync)?;
        Ok(fdatasync(file)?)
    }

    /// Syncs the directory, so that its names survive a power loss.
    pub(crate) fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.fails(Call::Sync)?;
        File::open(dir)?.sync_all()
    }

    /// Replaces `path` by the new file `temporary`. That survives a power loss once the directory
    /// is synced.
    pub(crate) fn rename(&self, temporary: &Path, path: &Path) -> io::Result<()> {
        self.fails(Call::Rename)?;
        std::fs::rename(temporary, path)
    }

    /// Removes the name of a file. Succeeds if there is no such name.
    pub(crate) fn unlink(&self, path: &Path) -> io::Result<()> {
        self.fails(Call::Unlink)?;
        match std::fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Returns the error of a refused call.
    fn fails(&self, call: Call) -> io::Result<()> {
        if self.is_read_only && !matches!(call, Call::Open | Call::Read) {
            return Err(Errno::ROFS.into());
        }
        #[cfg(test)]
        self.faults.take(call).map_or(Ok(()), Err)?;
        Ok(())
    }
}

/// Writes half of `pieces`, as a failing disk may.
#[cfg(test)]
fn cut_short(file: &File, pieces: &[IoSlice<'_>], offset: u64) {
    let whole: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
    let _ = file.write_all_at(&whole[..whole.len() / 2], offset);
}
