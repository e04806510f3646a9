//! Source of the bytes of a capture file: the file itself, or its decompressed content.
//!
//! [`FileReader`](super::FileReader) reads from it. A pipe is read only when it has bytes, also if
//! it is compressed: the decompressor takes pieces of any size.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::AsFd as _;
use std::time::Duration;

use strait_os::wait;

use crate::compression::{Compression, Decompressor, Defect};

/// Bytes of a compressed file that are read at once.
const PACKED_BYTES: usize = 64 << 10;
/// Bytes of a compressed file without content, after which a non-blocking call returns. A file can
/// have any number of empty blocks, and its reader has to look for signals.
const EMPTY_BYTES_MAX: usize = 4 << 20;

/// Reaction to a pipe without bytes to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pipe {
    Block,
    NonBlocking,
}

/// Result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// There are more bytes.
    More,
    /// A pipe has no bytes yet, or the last reads of a compressed file gave no content.
    Pending,
    /// The end of the file.
    End,
}

/// Error of a read.
#[derive(Debug)]
pub(super) enum SourceError {
    Io(io::Error),
    /// The compressed file ends at this byte within a frame.
    Cut {
        compression: Compression,
        end: u64,
    },
    /// Defect at or before this byte of the compressed file.
    Defect {
        compression: Compression,
        offset: u64,
        defect: Defect,
    },
}

/// Open file, and its decompressor.
#[derive(Debug)]
pub(super) struct Source {
    file: File,
    packed: Option<Packed>,
}

/// Compressed bytes, and the state of their decompression.
#[derive(Debug)]
struct Packed {
    compression: Compression,
    decompressor: Decompressor,
    buffer: Vec<u8>,
    /// Start and end in `buffer` of the bytes that are not decompressed.
    start: usize,
    end: usize,
    /// Number of bytes decompressed so far.
    offset: u64,
    /// True after the end of the file.
    ended: bool,
}

impl Source {
    pub(super) fn new(file: File) -> Self {
        Self { file, packed: None }
    }

    /// Decompresses the file from now on. `start` are its first bytes, which have been read.
    pub(super) fn decompress(&mut self, compression: Compression, start: &[u8]) -> Result<(), SourceError> {
        let decompressor = Decompressor::new(compression).map_err(|defect| SourceError::Defect {
            compression,
            offset: 0,
            defect,
        })?;
        let mut buffer = start.to_vec();
        buffer.resize(PACKED_BYTES.max(start.len()), 0);
        let end = start.len();
        self.packed =
            Some(Packed { compression, decompressor, buffer, start: 0, end, offset: 0, ended: false });
        Ok(())
    }

    pub(super) fn compression(&self) -> Option<Compression> {
        self.packed.as_ref().map(|packed| packed.compression)
    }

    /// Returns the number of bytes that were decompressed, if the file is compressed.
    pub(super) fn packed_offset(&self) -> Option<u64> {
        self.packed.as_ref().map(|packed| packed.offset)
    }

    /// Reads bytes to the start of `output`, which is not empty. Returns their number. A
    /// non-blocking call also returns after [`EMPTY_BYTES_MAX`] without content.
    pub(super) fn fill(&mut self, output: &mut [u8], pipe: Pipe) -> Result<(Filled, usize), SourceError> {
        let mut empty_bytes = 0_usize;
        loop {
            if let Some(packed) = &mut self.packed
                && let Some(filled) = packed.take(output)?
            {
                return Ok(filled);
            }
            let is_over = empty_bytes >= EMPTY_BYTES_MAX;
            if pipe == Pipe::NonBlocking && (is_over || !self.is_readable(Duration::ZERO)?) {
                return Ok((Filled::Pending, 0));
            }
            let Some(packed) = &mut self.packed else {
                let bytes = read(&mut self.file, output)?;
                return Ok((if bytes > 0 { Filled::More } else { Filled::End }, bytes));
            };
            debug_assert_eq!(packed.start, packed.end, "without output all input is consumed");
            let bytes = read(&mut self.file, &mut packed.buffer)?;
            (packed.start, packed.end, packed.ended) = (0, bytes, bytes == 0);
            empty_bytes = empty_bytes.saturating_add(bytes);
        }
    }

    /// Continues at a byte of the file.
    ///
    /// # Errors
    /// The file cannot seek, as a pipe or a compressed file.
    pub(super) fn seek(&mut self, offset: u64) -> Result<(), SourceError> {
        if self.packed.is_some() {
            return Err(SourceError::Io(io::ErrorKind::NotSeekable.into()));
        }
        self.file.seek(SeekFrom::Start(offset)).map(drop).map_err(SourceError::Io)
    }

    /// Returns true if a read returns at once, with bytes or with an error.
    pub(super) fn is_readable(&self, timeout: Duration) -> Result<bool, SourceError> {
        match wait::readable([Some(self.file.as_fd())], timeout) {
            Ok([source]) => Ok(source.readable || source.failed),
            Err(error) => {
                Err(SourceError::Io(io::Error::from_raw_os_error(error.errno().unwrap_or_default())))
            }
        }
    }
}

impl Packed {
    /// Decompresses bytes to `output`. Returns `None` if more bytes of the file are needed.
    fn take(&mut self, output: &mut [u8]) -> Result<Option<(Filled, usize)>, SourceError> {
        let (compression, offset) = (self.compression, self.offset + (self.end - self.start) as u64);
        let progress = self
            .decompressor
            .run(&self.buffer[self.start..self.end], output)
            .map_err(|defect| SourceError::Defect { compression, offset, defect })?;
        self.start += progress.consumed;
        self.offset += progress.consumed as u64;
        if progress.produced > 0 {
            return Ok(Some((Filled::More, progress.produced)));
        }
        match (self.ended, self.decompressor.may_end()) {
            (false, _) => Ok(None),
            (true, true) => Ok(Some((Filled::End, 0))),
            (true, false) => Err(SourceError::Cut { compression, end: self.offset }),
        }
    }
}

/// Reads once, again after a signal.
fn read(file: &mut File, buffer: &mut [u8]) -> Result<usize, SourceError> {
    loop {
        match file.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map_err(SourceError::Io),
        }
    }
}
