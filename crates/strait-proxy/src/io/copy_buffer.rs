//! Buffer for bytes of files on their way to a socket that encrypts them, or cannot take them from
//! the page cache.

use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;

use crate::io::kept::Kept;

/// Bytes of a buffer.
pub(crate) const COPY_BYTES: usize = 64 << 10;
/// Buffers that a thread keeps.
const KEPT_MAX: usize = 16;

thread_local! {
    static KEPT: Kept<COPY_BYTES, KEPT_MAX> = const { Kept::new() };
}

/// Buffer with the bytes that were read last.
#[derive(Debug)]
pub(crate) struct CopyBuffer {
    memory: Box<[u8]>,
    len: usize,
}

impl CopyBuffer {
    /// Returns an empty buffer.
    pub(crate) fn take() -> Self {
        Self { memory: Kept::take(&KEPT), len: 0 }
    }

    /// Replaces its bytes by those of a file from `offset` on: at most `most`, at least one.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file has been truncated, or the error of pread(2).
    pub(crate) fn read_at(&mut self, file: impl AsFd, offset: u64, most: u64) -> io::Result<()> {
        self.read_by(most, |room| rustix::io::pread(file, room, offset).map_err(io::Error::from))
    }

    /// Replaces its bytes by those that `read` returns: at most `most`, at least one.
    ///
    /// # Errors
    /// `UnexpectedEof` if there are none, or the error of `read`.
    pub(crate) fn read_by(
        &mut self,
        most: u64,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        self.len = 0;
        let most = most.min(COPY_BYTES as u64) as usize;
        let read = read(&mut self.memory[..most])?;
        self.len = read.min(most);
        if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

impl Deref for CopyBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl Drop for CopyBuffer {
    fn drop(&mut self) {
        Kept::give(&KEPT, std::mem::take(&mut self.memory));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn bytes_of_a_file_replace_earlier_ones_and_memory_is_used_again() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abcdef").unwrap();
        let mut buffer = CopyBuffer::take();
        buffer.read_at(&file, 1, 3).unwrap();
        assert_eq!(&*buffer, b"bcd");
        buffer.read_at(&file, 4, u64::MAX).unwrap();
        assert_eq!(&*buffer, b"ef");
        let truncated = buffer.read_at(&file, 6, 1).unwrap_err();
        assert_eq!((truncated.kind(), &*buffer), (io::ErrorKind::UnexpectedEof, &b""[..]));
        let memory = buffer.memory.as_ptr();
        drop(buffer);
        assert_eq!(CopyBuffer::take().memory.as_ptr(), memory);
    }
}
