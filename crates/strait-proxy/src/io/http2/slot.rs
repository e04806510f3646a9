//! Received bytes of one stream, as text of HTTP/1.1.

use std::task::Waker;

use strait_http::chunked::TRAILERS_BYTES_MAX;
use strait_http2::ErrorCode;

use crate::io::framing::LAST_CHUNK;
use crate::io::head::push_field;

/// Bytes at the start that were taken, at most, before the others are moved there.
const TAKEN_MAX: usize = 64 << 10;

/// Received bytes of a stream, and the wakers of its task.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Head of the message as text, then its body.
    pub(super) received: Received,
    /// Bytes of the body in it for which no window was announced.
    pub(super) unannounced: usize,
    /// Bytes of heads and chunk framing among the received ones, which take no window.
    pub(super) framing: usize,
    pub(super) is_chunked: bool,
    pub(super) is_ended: bool,
    /// True if the stream has the request HEAD.
    pub(super) is_to_head: bool,
    /// True if the stream waits for room for its head.
    pub(super) is_roomless: bool,
    /// Reason for which a response will not be complete.
    pub(super) failure: Option<StreamFailure>,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
    /// Waker of a task that waits for the end of the stream.
    pub(super) watcher: Option<Waker>,
    /// Bytes that the transport had when the stream began to wait for its turn.
    pub(super) waits_since: Option<u64>,
    /// Bytes of other streams that were sent during earlier waits.
    pub(super) taken_by_others: u64,
}

/// Reason for which a response will not be complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamFailure {
    /// The origin has not processed the request: it may be sent again.
    Refused,
    /// The head of the request has no valid form in HTTP/2.
    Unsendable,
    /// RST_STREAM with a code, from either side.
    Reset(u32),
    /// The connection ended.
    Ended,
    /// The connection ended, because the origin violated the protocol by this.
    Violation(&'static str),
}

impl StreamFailure {
    pub(super) fn of_reset(code: u32) -> Self {
        if code == ErrorCode::RefusedStream as u32 { Self::Refused } else { Self::Reset(code) }
    }
}

/// Bytes that wait to be taken. The window of the stream limits them.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub(super) bytes: Vec<u8>,
    /// Number of the first ones that were taken.
    taken: usize,
}

impl Received {
    pub(super) fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }

    /// Takes bytes, as many as there is room for; returns their number.
    pub(super) fn take(&mut self, room: &mut [u8]) -> usize {
        let left = self.bytes.get(self.taken..).unwrap_or_default();
        let len = room.len().min(left.len());
        room[..len].copy_from_slice(&left[..len]);
        self.taken += len;
        if self.is_empty() {
            self.bytes.clear();
            self.bytes.shrink_to(TAKEN_MAX);
            self.taken = 0;
        } else if self.taken > TAKEN_MAX {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        len
    }
}

impl Slot {
    /// Notes that `len` bytes were taken; returns the number of those for which a window may be
    /// announced. Those of framing come first, so that the window bounds the memory.
    pub(super) fn announce(&mut self, len: usize) -> usize {
        let of_framing = self.framing.min(len);
        self.framing -= of_framing;
        let announced = self.unannounced.min(len - of_framing);
        self.unannounced -= announced;
        announced
    }

    /// Notes the bytes of a head, which were received before others.
    pub(super) fn note_head(&mut self, before: usize) {
        self.framing += self.received.bytes.len() - before;
    }

    /// Adds a part of the body.
    pub(super) fn receive(&mut self, bytes: &[u8], is_last: bool) {
        let before = self.received.bytes.len();
        if self.is_chunked && !bytes.is_empty() {
            self.received.bytes.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
        }
        self.received.bytes.extend_from_slice(bytes);
        if self.is_chunked && !bytes.is_empty() {
            self.received.bytes.extend_from_slice(b"\r\n");
        }
        if self.is_chunked && is_last {
            self.received.bytes.extend_from_slice(LAST_CHUNK);
        }
        self.framing += self.received.bytes.len() - before - bytes.len();
        self.unannounced += bytes.len();
        self.is_ended |= is_last;
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    /// Ends the body with trailers. A body of a known length has no place for them in HTTP/1.1.
    pub(super) fn end_with<'f>(&mut self, trailers: impl Iterator<Item = (&'f [u8], &'f [u8])>) {
        let before = self.received.bytes.len();
        if self.is_chunked {
            let text = &mut self.received.bytes;
            text.extend_from_slice(b"0\r\n");
            let begin = text.len();
            trailers.for_each(|(name, value)| push_field(text, name, value));
            if text.len() - begin > TRAILERS_BYTES_MAX {
                // Trailers may be dropped (RFC 9110, section 6.5.1).
                text.truncate(begin);
            }
            text.extend_from_slice(b"\r\n");
        }
        self.note_head(before);
        self.is_ended = true;
        if let Some(waker) = self.reader.take() {
            waker.wake();
        }
    }

    /// Notes if the stream has its turn, or waits for it.
    pub(super) fn note_turn(&mut self, has_turn: bool, sent_bytes: u64) {
        if !has_turn {
            self.waits_since.get_or_insert(sent_bytes);
        } else if let Some(since) = self.waits_since.take() {
            self.taken_by_others += sent_bytes - since;
        }
    }

    pub(super) fn wake(&mut self) {
        let all = [self.reader.take(), self.writer.take(), self.watcher.take()];
        for waker in all.into_iter().flatten() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_taken_in_their_order() {
        let whole: Vec<_> = (0..500_000).map(|at: usize| (at * 7 + (at >> 8)) as u8).collect();
        let (mut received, mut taken, mut room) = (Received::default(), Vec::new(), vec![0; 30_000]);
        for piece in whole.chunks(100_000) {
            received.bytes.extend_from_slice(piece);
            for _ in 0..2 {
                let len = received.take(&mut room);
                taken.extend_from_slice(&room[..len]);
            }
        }
        while !received.is_empty() {
            let len = received.take(&mut room);
            taken.extend_from_slice(&room[..len]);
        }
        assert!(taken == whole && received.take(&mut room) == 0);
    }

    #[test]
    fn framing_opens_no_window() {
        let (mut slot, mut room) = (Slot { is_chunked: true, ..Slot::default() }, vec![0; 30_000]);
        let (mut sent, mut announced) = (0, 0);
        for _ in 0..40_000 {
            slot.receive(&[0; 256], false);
            sent += 256;
            // The sender has a window of 256 KiB.
            while sent - announced > (256 << 10) - 256 {
                let len = slot.received.take(&mut room);
                announced += slot.announce(len);
            }
        }
        assert!(sent - announced <= 256 << 10);
        // Each frame has 7 bytes of framing.
        assert!(slot.received.bytes.len() < (2 * (256 + 7)) << 10, "{}", slot.received.bytes.len());
        while !slot.received.is_empty() {
            let len = slot.received.take(&mut room);
            announced += slot.announce(len);
        }
        assert_eq!(announced, sent);
    }
}
