//! Data of a file in frames, without a copy: heads of frames and pages of the file gather in one
//! pipe, which splice(2) moves into the socket.
//!
//! ```text
//! output ──write──▶ ┌───────────────────────────────────┐
//! head   ──write──▶ │ pipe: frames, head ▸ pages ▸ head… │ ──splice──▶ TCP or kTLS
//! file   ──splice─▶ └───────────────────────────────────┘
//! ```
//!
//! sendfile(2) for each frame would cost more than copying. The pipe is filled only when it is
//! empty, with whole frames, and belongs to the connection: a stream that ends early leaves no part
//! of a frame.

use std::io;
use std::os::fd::AsFd;

use strait_http2::FRAME_HEAD_BYTES;
use strait_transfer::pipe::Pipe;

use crate::io::http2::link::State;

/// Bytes of one stream in a row, so that other streams are not delayed.
const TURN_BYTES: usize = 256 << 10;
/// Bytes of a slot of a pipe.
const PAGE_BYTES: usize = 4096;
/// Slots of a frame in addition to those of its pages: its head, and a page that is not aligned.
const SLOTS_EXTRA: usize = 2;

/// Part of a file that is sent as DATA of a stream.
pub(super) struct Part<'a, F> {
    pub(super) file: &'a F,
    pub(super) offset: u64,
    pub(super) len: usize,
    /// True if the response ends with it.
    pub(super) is_last: bool,
}

/// Bytes that were gathered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gathered {
    pub(super) data: usize,
    pub(super) heads: usize,
}

impl State {
    /// Fills the empty pipe with the output and with frames of a stream. The caller has checked the
    /// windows. Gathers nothing if the pipe is too small: the kernel gives a user's pipes two pages
    /// each once they use much memory.
    ///
    /// # Errors
    /// The file was truncated, or the pipe failed: the connection ends, as a frame is incomplete.
    pub(super) fn gather<F: AsFd>(
        &mut self,
        pipe: &mut Pipe,
        id: u32,
        part: &Part<'_, F>,
    ) -> io::Result<Gathered> {
        let of_output = self.protocol.output().len().div_ceil(PAGE_BYTES) + 1;
        let left = pipe.slots().checked_sub(of_output).filter(|slots| *slots > SLOTS_EXTRA);
        let Some(mut slots) = left else { return Ok(Gathered::default()) };
        write_all(pipe, self.protocol.output())?;
        self.protocol.sent(self.protocol.output().len());
        let (mut gathered, mut offset) = (Gathered::default(), part.offset);
        let most = part.len.min(TURN_BYTES);
        while gathered.data < most && slots > SLOTS_EXTRA {
            let room = (slots - SLOTS_EXTRA) * PAGE_BYTES;
            let len = (most - gathered.data).min(self.protocol.frame_bytes()).min(room);
            let is_last = part.is_last && gathered.data + len == part.len;
            write_all(pipe, &self.protocol.data_head(id, len, is_last))?;
            let mut left = len;
            while left > 0 {
                match pipe.fill_at(part.file, &mut offset, left)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    moved => left -= moved,
                }
            }
            slots -= len.div_ceil(PAGE_BYTES) + SLOTS_EXTRA;
            gathered.data += len;
            gathered.heads += FRAME_HEAD_BYTES;
        }
        Ok(gathered)
    }
}

fn write_all(pipe: &mut Pipe, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = pipe.write(bytes)?;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}
