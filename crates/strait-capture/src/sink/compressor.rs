//! Compressor of a file, for [`Output`](super::output::Output).
//!
//! Each call completes a block of the format, so that a reader of the file sees all packets of the
//! calls before. The file has one frame or member, with a checksum of its content.

use std::fmt;
use std::io::{self, Write as _};

use flate2::write::GzEncoder;
use lz4_flex::frame::{BlockSize, FrameEncoder, FrameInfo};
use zstd::stream::write::Encoder;

use crate::compression::Compression;

/// Level of zstd: the fastest one of the usual levels. One thread compresses for all threads that
/// receive packets, and they wait for it if it is slower.
const ZSTD_LEVEL: i32 = 1;

/// Compressor of one file. Its output is taken with each call.
pub(super) struct Compressor(Coder);

enum Coder {
    Zstd(Encoder<'static, Vec<u8>>),
    Gzip(GzEncoder<Vec<u8>>),
    Lz4(Box<FrameEncoder<Vec<u8>>>),
}

impl Compressor {
    /// Maximum number of bytes by which the end of a file, and the headers of blocks that cannot be
    /// compressed, exceed `content_bytes` that are not compressed yet. Deflate has the largest
    /// overhead: its coder of level 1 adds up to 0.3 % to noise.
    pub(super) fn overhead_max(content_bytes: u64) -> u64 {
        64 + content_bytes / 128
    }

    pub(super) fn new(compression: Compression) -> io::Result<Self> {
        Ok(Self(match compression {
            Compression::Zstd => {
                let mut encoder = Encoder::new(Vec::new(), ZSTD_LEVEL)?;
                encoder.include_checksum(true)?;
                Coder::Zstd(encoder)
            }
            Compression::Gzip => Coder::Gzip(GzEncoder::new(Vec::new(), flate2::Compression::fast())),
            Compression::Lz4 => {
                let info = FrameInfo::new().block_size(BlockSize::Max256KB).content_checksum(true);
                Coder::Lz4(Box::new(FrameEncoder::with_frame_info(info, Vec::new())))
            }
        }))
    }

    /// Compresses `content`, which is not empty, to complete blocks.
    ///
    /// # Errors
    /// Memory is missing.
    pub(super) fn compress(&mut self, content: &[u8]) -> io::Result<&[u8]> {
        self.output().clear();
        match &mut self.0 {
            Coder::Zstd(encoder) => encoder.write_all(content).and_then(|()| encoder.flush()),
            Coder::Gzip(encoder) => encoder.write_all(content).and_then(|()| encoder.flush()),
            Coder::Lz4(encoder) => encoder.write_all(content).and_then(|()| encoder.flush()),
        }?;
        Ok(self.output())
    }

    /// Returns the end of the frame or member.
    ///
    /// # Errors
    /// Memory is missing.
    pub(super) fn finish(mut self) -> io::Result<Vec<u8>> {
        self.output().clear();
        match self.0 {
            Coder::Zstd(encoder) => encoder.finish(),
            Coder::Gzip(encoder) => encoder.finish(),
            Coder::Lz4(encoder) => encoder.finish().map_err(io::Error::from),
        }
    }

    fn output(&mut self) -> &mut Vec<u8> {
        match &mut self.0 {
            Coder::Zstd(encoder) => encoder.get_mut(),
            Coder::Gzip(encoder) => encoder.get_mut(),
            Coder::Lz4(encoder) => encoder.get_mut(),
        }
    }
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Coder::Zstd(_) => "zstd",
            Coder::Gzip(_) => "gzip",
            Coder::Lz4(_) => "LZ4",
        })
    }
}
