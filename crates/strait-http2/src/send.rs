//! Output of a connection: heads and data of messages, and windows for those of the peer.

use crate::connection::Connection;
use crate::frame::{FRAME_BYTES, FRAME_HEAD_BYTES, Head, flag, kind, push_window_update};
use crate::hpack;
use crate::settings::Side;
use crate::stream::Sending;

impl Connection {
    /// Returns the frames to send.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Removes the first `len` bytes of the output, which were sent.
    pub fn sent(&mut self, len: usize) {
        self.output.drain(..len.min(self.output.len()));
        if self.output.is_empty() {
            self.first_unsent = u32::MAX;
        }
    }

    /// Sends a head with these fields, `:status` first. Trailers are sent by
    /// [`Connection::end_with_trailers`]. Returns the length of the frames; 0 if the stream is
    /// closed.
    pub fn respond<'f>(
        &mut self,
        stream: u32,
        fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
        ends: bool,
    ) -> usize {
        self.push_head(stream, &[], fields, ends, if ends { Sending::Done } else { Sending::Body })
    }

    /// Like [`Connection::respond`], with a block of encoded fields before the others. It has
    /// `:status` and no `priority`. No encoder here uses a dynamic table, so a block of
    /// [`hpack::encode_lower`] is the same on every connection.
    pub fn respond_known<'f>(
        &mut self,
        stream: u32,
        block: &[u8],
        fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
        ends: bool,
    ) -> usize {
        self.push_head(stream, block, fields, ends, if ends { Sending::Done } else { Sending::Body })
    }

    /// Sends an interim response. Returns the length of the frames.
    pub fn respond_interim<'f>(
        &mut self,
        stream: u32,
        fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
    ) -> usize {
        self.push_head(stream, &[], fields, false, Sending::Head)
    }

    /// Ends a message with these trailers. Returns the length of the frames.
    pub fn end_with_trailers<'f>(
        &mut self,
        stream: u32,
        fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
    ) -> usize {
        self.push_head(stream, &[], fields, true, Sending::Done)
    }

    pub(crate) fn push_head<'f>(
        &mut self,
        stream: u32,
        block: &[u8],
        fields: impl Iterator<Item = (&'f [u8], &'f [u8])>,
        ends: bool,
        next: Sending,
    ) -> usize {
        let Some(state) = self.streams.get_mut(&stream) else { return 0 };
        if state.is_reset || state.sending == Sending::Done {
            return 0;
        }
        let is_response =
            self.side == Side::Server && state.sending == Sending::Head && next != Sending::Head;
        state.sending = next;
        let wants_turn = state.wants_turn;
        let before = self.output.len();
        self.output.resize(before + FRAME_HEAD_BYTES, 0);
        if !std::mem::replace(&mut self.has_encoded, true) {
            hpack::forget_table(&mut self.output);
        }
        self.output.extend_from_slice(block);
        for (name, value) in fields {
            // RFC 9218 s8: the origin may know better than the client.
            if is_response && name.eq_ignore_ascii_case(b"priority") {
                state.of_response.add(value);
                state.priority = state.of_response.over(state.priority);
                self.has_priorities = true;
            }
            hpack::encode_lower(name, value, &mut self.output);
        }
        self.finish_block(before, stream, ends);
        if wants_turn {
            self.note_waiting(stream);
        }
        self.note_end(stream, ends);
        self.output.len() - before
    }

    /// Writes the head of a HEADERS frame at `start`, and splits a long block.
    fn finish_block(&mut self, start: usize, stream: u32, ends: bool) {
        let block_len = self.output.len() - start - FRAME_HEAD_BYTES;
        let end_stream = if ends { flag::END_STREAM } else { 0 };
        let is_whole = block_len <= FRAME_BYTES;
        let flags = end_stream | if is_whole { flag::END_HEADERS } else { 0 };
        let head = Head::new(block_len.min(FRAME_BYTES), kind::HEADERS, flags, stream);
        self.output[start..start + FRAME_HEAD_BYTES].copy_from_slice(&head.bytes());
        if is_whole {
            return;
        }
        let rest = self.output.split_off(start + FRAME_HEAD_BYTES + FRAME_BYTES);
        let mut pieces = rest.chunks(FRAME_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            let flags = if pieces.peek().is_none() { flag::END_HEADERS } else { 0 };
            let head = Head::new(piece.len(), kind::CONTINUATION, flags, stream);
            self.output.extend_from_slice(&head.bytes());
            self.output.extend_from_slice(piece);
        }
    }

    /// Returns the number of DATA bytes that the windows allow now.
    pub fn window(&self, stream: u32) -> usize {
        self.window_in(stream, Sending::Body)
    }

    /// Returns the number of DATA bytes that the windows allow after a head that is sent now.
    pub fn window_after_head(&self, stream: u32) -> usize {
        self.window_in(stream, Sending::Head)
    }

    fn window_in(&self, stream: u32, state: Sending) -> usize {
        let of_stream = self.streams.get(&stream).filter(|it| !it.is_reset && it.sending == state);
        of_stream.map_or(0, |stream| stream.send_window.min(self.send_window).max(0)) as usize
    }

    /// Returns the largest payload of a frame that the peer accepts.
    pub fn frame_bytes(&self) -> usize {
        self.peer.frame_bytes as usize
    }

    /// Returns the head of a DATA frame. The caller sends the payload of `len` bytes after it; it
    /// must fit into [`Connection::window`] and [`Connection::frame_bytes`]. The output must be
    /// sent before.
    pub fn data_head(&mut self, stream: u32, len: usize, ends: bool) -> [u8; FRAME_HEAD_BYTES] {
        debug_assert!(len <= self.window(stream) && len <= self.frame_bytes());
        if let Some(state) = self.streams.get_mut(&stream) {
            state.send_window -= len as i64;
            if ends {
                state.sending = Sending::Done;
            }
            if state.wants_turn {
                self.note_waiting(stream);
            }
        }
        self.send_window -= len as i64;
        self.meters.sent(len);
        self.note_end(stream, ends);
        Head::new(len, kind::DATA, if ends { flag::END_STREAM } else { 0 }, stream).bytes()
    }

    /// Copies data into the output, in frames as large as the peer accepts; as
    /// [`Connection::data_head`]. Returns the length of the frames' heads.
    pub fn push_data(&mut self, stream: u32, data: &[u8], ends: bool) -> usize {
        let frame_bytes = self.frame_bytes();
        let before = self.output.len();
        let mut pieces = data.chunks(frame_bytes).peekable();
        if data.is_empty() && ends {
            let head = self.data_head(stream, 0, true);
            self.output.extend_from_slice(&head);
        }
        while let Some(piece) = pieces.next() {
            let head = self.data_head(stream, piece.len(), ends && pieces.peek().is_none());
            self.output.extend_from_slice(&head);
            self.output.extend_from_slice(piece);
        }
        self.output.len() - before - data.len()
    }

    fn note_end(&mut self, stream: u32, ends: bool) {
        if ends {
            self.first_unsent = self.first_unsent.min(stream);
            self.meters.answered();
        }
    }

    /// Notes that `len` bytes of a body need no more memory. Windows are announced when half of one
    /// is used up.
    pub fn consumed(&mut self, stream: u32, len: usize) {
        if self.side == Side::Server {
            self.widen_own(len as u32);
        }
        let half = self.limits.stream_window / 2;
        let Some(state) = self.streams.get_mut(&stream) else { return };
        state.consumed += len as u32;
        if state.receives && !state.is_reset && state.consumed >= half {
            let more = std::mem::take(&mut state.consumed);
            state.receive_window += i64::from(more);
            push_window_update(&mut self.output, stream, more);
        }
    }

    /// Notes a received DATA frame. The streams of a client have users that do not depend on each
    /// other: a slow one must not use up the window of all. The windows of the streams limit the
    /// memory.
    pub(crate) fn note_data(&mut self, len: usize) {
        if self.side == Side::Client {
            self.widen_own(len as u32);
        }
    }

    /// Widens the connection's own window.
    pub(crate) fn widen_own(&mut self, len: u32) {
        self.consumed += len;
        if self.consumed >= self.limits.connection_window / 2 {
            let more = std::mem::take(&mut self.consumed);
            self.receive_window += i64::from(more);
            push_window_update(&mut self.output, 0, more);
        }
    }
}
