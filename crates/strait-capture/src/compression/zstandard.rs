//! Decompresses zstd frames, one block at a time.
//!
//! [`Decompressor`](super::Decompressor) uses it. libzstd forgets the output of a call that ends in
//! an error. Therefore it gets the input of one block at a time, and only the damaged block is
//! lost.

use zstd::zstd_safe::zstd_sys::ZSTD_ErrorCode;
use zstd::zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer, get_error_name, is_error_kind};

use super::defect::{Defect, Progress};

/// Binary logarithm of the largest zstd window that is read: 128 MiB. `zstd` writes larger ones
/// only with `--long=28` and more, or `--ultra -22` of a large file.
pub(super) const WINDOW_LOG_MAX: u32 = 27;

/// Bytes of the input for the first step of a frame: its magic number and the first byte of its
/// header.
const FRAME_START_BYTES: usize = 5;

/// State of a file.
pub(super) struct Zstandard {
    context: DCtx<'static>,
    /// Bytes that libzstd expects: the rest of a header or a block, and the next header. 0 at the
    /// end of a frame.
    expected: usize,
    /// True if the last output was full: libzstd may have more.
    may_have_output: bool,
    has_begun: bool,
}

impl Zstandard {
    pub(super) fn new() -> Result<Self, Defect> {
        let mut context = DCtx::try_create().ok_or(Defect::Memory)?;
        context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(defect)?;
        Ok(Self { context, expected: 0, may_have_output: false, has_begun: false })
    }

    pub(super) fn step(&mut self, input: &[u8], output: &mut [u8]) -> Result<Progress, Defect> {
        // libzstd returns an error after several calls that can make no progress.
        if input.is_empty() && !self.may_have_output {
            return Ok(Progress::default());
        }
        let wanted = if self.expected == 0 { FRAME_START_BYTES } else { self.expected };
        let mut from = InBuffer::around(&input[..wanted.min(input.len())]);
        let capacity = output.len();
        let mut to = OutBuffer::around(output);
        self.expected = self.context.decompress_stream(&mut to, &mut from).map_err(defect)?;
        self.has_begun = true;
        self.may_have_output = to.pos() == capacity;
        Ok(Progress { consumed: from.pos(), produced: to.pos() })
    }

    pub(super) fn may_end(&self) -> bool {
        self.has_begun && self.expected == 0
    }
}

impl std::fmt::Debug for Zstandard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Zstandard").field("expected", &self.expected).finish_non_exhaustive()
    }
}

fn defect(code: usize) -> Defect {
    let is = |kind| is_error_kind(code, kind);
    if is(ZSTD_ErrorCode::ZSTD_error_frameParameter_windowTooLarge) {
        Defect::Window
    } else if is(ZSTD_ErrorCode::ZSTD_error_dictionary_wrong) {
        Defect::Dictionary
    } else if is(ZSTD_ErrorCode::ZSTD_error_memory_allocation) {
        Defect::Memory
    } else {
        Defect::Damaged(get_error_name(code))
    }
}
