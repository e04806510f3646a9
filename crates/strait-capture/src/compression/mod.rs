//! Compression of capture files: zstd (RFC 8878), gzip (RFC 1952) and LZ4 frames.
//!
//! [`FileReader`](crate::file::FileReader) decompresses with a [`Decompressor`], which takes input
//! in pieces of any size, so that a pipe is read without waiting. [`FileSink`](crate::sink) selects
//! the compression by the name of the file. The code here reads and writes no file. Its memory is
//! limited, whatever the input is.

mod defect;
mod gzip;
mod lz4;
#[cfg(test)]
mod tests;
mod zstandard;

use std::path::Path;

pub use defect::Defect;

use defect::Progress;
use gzip::Gzip;
use lz4::Lz4;
use zstandard::Zstandard;

/// Compressions, and the endings of their files.
const ALL: [(Compression, &str); 3] =
    [(Compression::Zstd, "zst"), (Compression::Gzip, "gz"), (Compression::Lz4, "lz4")];

/// Bytes of the magic number and the length of a skippable frame.
pub(crate) const SKIPPABLE_HEADER_BYTES: usize = 8;

/// Compression of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// zstd, RFC 8878.
    Zstd,
    /// gzip, RFC 1952.
    Gzip,
    /// Frames of LZ4, version 1.6 of their format.
    Lz4,
}

impl Compression {
    /// Returns the compression that the name of a file selects: `.zst`, `.gz` or `.lz4`, in upper
    /// or lower case.
    pub fn of_name(name: &Path) -> Option<Self> {
        let extension = name.extension()?;
        ALL.iter().find(|(_, ending)| extension.eq_ignore_ascii_case(ending)).map(|(found, _)| *found)
    }

    /// Returns the name without an ending that selects a compression; without the directory,
    /// too, if it has such an ending.
    pub fn strip(name: &Path) -> &Path {
        let stem = Self::of_name(name).and_then(|_| name.file_stem());
        stem.map_or(name, Path::new)
    }

    /// Returns the compression of a file that starts with these bytes.
    pub(crate) fn of_magic(start: &[u8]) -> Option<Self> {
        match start {
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            [0x1f, 0x8b, 0x08, ..] => Some(Self::Gzip),
            // The second is that of the legacy format, which the decompressor refuses by its name.
            [0x04, 0x22, 0x4d, 0x18, ..] | [0x02, 0x21, 0x4c, 0x18, ..] => Some(Self::Lz4),
            _ => None,
        }
    }

    /// Returns the bytes of a skippable frame of zstd or LZ4 at the start of `start`, with its
    /// header of [`SKIPPABLE_HEADER_BYTES`]. `None` for another frame, or an incomplete header.
    pub(crate) fn skippable_bytes(start: &[u8]) -> Option<usize> {
        match start {
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, a, b, c, d, ..] => {
                let content = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
                Some(content.saturating_add(SKIPPABLE_HEADER_BYTES))
            }
            _ => None,
        }
    }

    /// Returns the name for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
            Self::Lz4 => "LZ4",
        }
    }
}

/// Decompressor of one file, with any number of frames or members.
#[derive(Debug)]
pub(crate) struct Decompressor {
    format: FormatState,
    defect: Option<Defect>,
}

#[derive(Debug)]
enum FormatState {
    Zstd(Zstandard),
    Gzip(Box<Gzip>),
    Lz4(Box<Lz4>),
}

impl Decompressor {
    pub(crate) fn new(compression: Compression) -> Result<Self, Defect> {
        let format = match compression {
            Compression::Zstd => FormatState::Zstd(Zstandard::new()?),
            Compression::Gzip => FormatState::Gzip(Box::default()),
            Compression::Lz4 => FormatState::Lz4(Box::default()),
        };
        Ok(Self { format, defect: None })
    }

    /// Decompresses bytes from the start of `input` until there is output, or all input is
    /// consumed. `output` is not empty. Without output more input is needed.
    ///
    /// # Errors
    /// All output before the defect was returned. The next call returns it again.
    pub(crate) fn run(&mut self, input: &[u8], output: &mut [u8]) -> Result<Progress, Defect> {
        let mut progress = Progress::default();
        while progress.produced == 0 {
            if let Some(defect) = self.defect {
                return Err(defect);
            }
            let (step, defect) = self.step(&input[progress.consumed..], output);
            self.defect = defect;
            progress.consumed += step.consumed;
            progress.produced += step.produced;
            if step == Progress::default() && defect.is_none() {
                break;
            }
        }
        Ok(progress)
    }

    /// Returns true if the input may end here.
    pub(crate) fn may_end(&self) -> bool {
        match &self.format {
            FormatState::Zstd(zstd) => zstd.may_end(),
            FormatState::Gzip(gzip) => gzip.may_end(),
            FormatState::Lz4(lz4) => lz4.may_end(),
        }
    }

    fn step(&mut self, input: &[u8], output: &mut [u8]) -> (Progress, Option<Defect>) {
        let stepped = match &mut self.format {
            FormatState::Zstd(zstd) => zstd.step(input, output),
            FormatState::Gzip(gzip) => return gzip.step(input, output),
            FormatState::Lz4(lz4) => lz4.step(input, output),
        };
        stepped.map_or_else(|defect| (Progress::default(), Some(defect)), |step| (step, None))
    }
}
