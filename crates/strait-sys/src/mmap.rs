//! Memory shared with the kernel, and files in memory: mappings that unmap themselves.
//!
//! The ring modules (`packet`, `xdp`) build on [`Mapping`]. It returns raw pointers only, because
//! the kernel writes to the memory concurrently: a reference to it would be unsound.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::error::{Error, Result};

const READ_WRITE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Pages mapped into this process, unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned by this value alone and stays valid on any thread until it is
// dropped.
unsafe impl Send for Mapping {}
// SAFETY: a shared `Mapping` returns the address and length only; code that reads through the
// address is responsible for synchronisation.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `mmap(len, PROT_READ|PROT_WRITE, MAP_SHARED|MAP_POPULATE, fd, offset)`: a ring of a socket
    /// or map.
    pub fn shared(fd: BorrowedFd<'_>, len: usize, offset: i64) -> Result<Self> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        Self::map(len, READ_WRITE, flags, fd.as_raw_fd(), offset)
    }

    /// `mmap(len, PROT_READ, MAP_SHARED, fd, offset)`: memory that only the kernel writes.
    pub(crate) fn shared_read_only(fd: BorrowedFd<'_>, len: usize, offset: i64) -> Result<Self> {
        Self::map(len, libc::PROT_READ, libc::MAP_SHARED, fd.as_raw_fd(), offset)
    }

    /// `mmap(len, PROT_READ, MAP_PRIVATE, fd, 0)`: the first `len` bytes of a file, on its own
    /// pages. A write through the mapping faults. The caller must ensure that the file never
    /// shrinks.
    ///
    /// The mapping is private because older kernels refuse a shared mapping of a file that is
    /// sealed against writing. Without a write no page is copied.
    pub(crate) fn read_only(fd: BorrowedFd<'_>, len: usize) -> Result<Self> {
        Self::map(len, libc::PROT_READ, libc::MAP_PRIVATE, fd.as_raw_fd(), 0)
    }

    /// `mmap(len, PROT_READ|PROT_WRITE, MAP_SHARED|MAP_ANONYMOUS|MAP_POPULATE)`: zeroed memory.
    /// It is shared, because after fork(2) a child would get a copy of a private mapping, to which
    /// the kernel does not write. With `huge` it requests `MAP_HUGETLB`, which fails with ENOMEM if
    /// no huge pages are reserved.
    pub fn anonymous(len: usize, huge: bool) -> Result<Self> {
        let huge = if huge { libc::MAP_HUGETLB } else { 0 };
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE | huge;
        Self::map(len, READ_WRITE, flags, -1, 0)
    }

    /// `mmap(len, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS)`, on small pages: zeroed memory
    /// of this process alone.
    pub fn private(len: usize) -> Result<Self> {
        let mapping = Self::map(len, READ_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)?;
        // SAFETY: the range is that of the new mapping; the advice changes no content.
        let advised = unsafe { libc::madvise(mapping.start.as_ptr().cast(), len, libc::MADV_NOHUGEPAGE) };
        // EINVAL: a kernel without huge pages, which uses small ones anyway.
        match advised {
            0 => Ok(mapping),
            _ => match Error::last_os("madvise", format!("{len} bytes")) {
                error if error.errno() == Some(libc::EINVAL) => Ok(mapping),
                error => Err(error),
            },
        }
    }

    fn map(
        len: usize,
        protection: libc::c_int,
        flags: libc::c_int,
        fd: libc::c_int,
        offset: i64,
    ) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice does not alias other memory of
        // this process.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os("mmap", format!("{len} bytes")));
        }
        let start = NonNull::new(start.cast()).expect("mmap without MAP_FIXED never returns page 0");
        Ok(Self { start, len })
    }

    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty: mmap refuses length 0")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and len are those of one live mapping, and it is unreachable after this
        // drop.
        let returned = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert_eq!(returned, 0, "munmap of a whole mapping cannot fail");
    }
}
