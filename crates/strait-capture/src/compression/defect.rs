//! Result of a step of decompression, for all formats: progress, or the defect of the input.

/// Reason for which compressed bytes cannot be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// The window of a zstd frame is too large.
    #[error(
        "the zstd window is larger than 128 MiB: decompress it first (`zstd -dc --long=31 FILE | ... -`)"
    )]
    Window,
    /// A frame needs a dictionary, which the file does not have.
    #[error("it needs a dictionary: decompress it first (`zstd -D` or `lz4 -D`)")]
    Dictionary,
    /// The obsolete format of `lz4 -l`.
    #[error("the legacy format of LZ4 is not read: decompress it first (`lz4 -dc FILE | ... -`)")]
    Legacy,
    /// No memory.
    #[error("no memory to decompress it")]
    Memory,
    /// Anything else, in the words of the format.
    #[error("damaged: {0}")]
    Damaged(&'static str),
}

/// Result of one step of a [`Decompressor`](super::Decompressor).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes to drop from the start of the input.
    pub(crate) consumed: usize,
    /// Bytes written to the start of the output.
    pub(crate) produced: usize,
}
