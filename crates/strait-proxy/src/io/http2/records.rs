//! Data in frames for TLS in user space, without a copy into the output.
//!
//! ```text
//! output ─┐
//! head   ─┼─▶ records of TLS ──write──▶ TCP
//! data   ─┘
//! ```
//!
//! A file is read in the turn of its stream, and its bytes are encrypted and sent at once: they are
//! still in the processor's cache. Streams that wait for their turns hold no memory for bodies.

use std::io::{self, IoSlice};

use smallvec::SmallVec;
use strait_http2::FRAME_HEAD_BYTES;

use crate::io::http2::link::{OUTPUT_BYTES, State};

/// Fewer bytes are copied into the output, where they share a record with those of other streams.
/// It is the largest plaintext of a record (RFC 8446, section 5.1).
pub(super) const RECORD_BYTES: usize = 16 << 10;
/// Frames of a turn if the peer accepts no larger ones than it must.
const FRAMES: usize = OUTPUT_BYTES / RECORD_BYTES;

impl State {
    /// Encrypts the output and data of a stream in frames. The caller has checked the windows.
    /// Returns the length of the frames' heads. Sends the records if there are many, as far as the
    /// socket takes them; fewer wait for those of other streams.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn push_records(&mut self, id: u32, data: &[u8], ends: bool) -> io::Result<usize> {
        let pieces = data.chunks(self.protocol.frame_bytes());
        let (mut heads, mut left) = (SmallVec::<[[u8; FRAME_HEAD_BYTES]; FRAMES]>::new(), data.len());
        for piece in pieces.clone() {
            left -= piece.len();
            heads.push(self.protocol.data_head(id, piece.len(), ends && left == 0));
        }
        let mut parts = SmallVec::<[IoSlice<'_>; 1 + 2 * FRAMES]>::new();
        parts.push(IoSlice::new(self.protocol.output()));
        for (head, piece) in heads.iter().zip(pieces) {
            parts.extend([IoSlice::new(head), IoSlice::new(piece)]);
        }
        let held = self.transport.hold(&parts);
        drop(parts);
        let heads_len = heads.len() * FRAME_HEAD_BYTES;
        let output_len = self.protocol.output().len();
        self.protocol.sent(output_len);
        self.sent_bytes += (output_len + heads_len + data.len()) as u64;
        let sent = held
            .and_then(|()| if self.queued() < OUTPUT_BYTES { Ok(()) } else { self.transport.send_at_once() });
        // The rest of an incomplete frame can never be sent.
        sent.inspect_err(|_| self.tear())?;
        Ok(heads_len)
    }
}
