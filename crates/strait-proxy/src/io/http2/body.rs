//! Body of a message on its way into frames, from its text in HTTP/1.1.

use std::io;
use std::task::{Context, Poll, ready};

use strait_http::framing::BodyFraming;

use crate::io::framing::{Framed, Piece};
use crate::io::http2::link::State;
use crate::io::http2::records::RECORD_BYTES;
use crate::io::http2::translate::Fields;
use crate::io::moved::Moved;

/// Body that is being sent on a stream.
#[derive(Debug)]
pub(super) struct OutgoingBody {
    pub(super) framed: Framed,
    /// Lines of the trailers so far.
    trailers: Vec<u8>,
    is_over: bool,
}

/// Stream that data is sent on, and the account of its frames.
pub(super) struct Sender<'a> {
    pub(super) id: u32,
    pub(super) is_encrypted_here: bool,
    pub(super) moved: &'a mut Moved,
}

impl OutgoingBody {
    pub(super) fn new(body: BodyFraming) -> Self {
        Self { framed: Framed::new(body), trailers: Vec::new(), is_over: false }
    }

    /// Returns true once the stream was ended.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes some bytes of the text.
    pub(super) fn poll_take(
        &mut self,
        state: &mut State,
        context: &mut Context<'_>,
        sender: &mut Sender<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(match self.framed.next(bytes).map_err(invalid)? {
            Piece::Data(len) => {
                let data = &bytes[..len];
                let is_last = matches!(self.framed, Framed::Length(left) if left == len as u64);
                let taken = ready!(sender.poll_data(state, context, data, is_last))?;
                self.framed.advance(taken as u64);
                self.is_over = is_last && taken == len;
                taken
            }
            Piece::Framing(len) => len,
            Piece::Trailer(len) => {
                self.trailers.extend_from_slice(&bytes[..len]);
                len
            }
            Piece::End(len) => {
                self.finish(state, sender);
                len
            }
            // Chunk framing is written whole.
            Piece::More => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
        }))
    }

    /// Ends a chunked body.
    fn finish(&mut self, state: &mut State, sender: &mut Sender<'_>) {
        let overhead = if self.trailers.is_empty() {
            state.protocol.push_data(sender.id, &[], true)
        } else {
            state.protocol.end_with_trailers(sender.id, Fields::of_trailers(&self.trailers).iter())
        };
        self.is_over = true;
        sender.moved.add(0, overhead, sender.is_encrypted_here);
        state.wake_driver();
    }
}

impl Sender<'_> {
    /// Copies data into frames, as much as windows and output allow.
    pub(super) fn poll_data(
        &mut self,
        state: &mut State,
        context: &mut Context<'_>,
        data: &[u8],
        is_last: bool,
    ) -> Poll<io::Result<usize>> {
        let len = ready!(state.poll_turn(self.id, context))?.min(data.len());
        let (data, ends) = (&data[..len], is_last && len == data.len());
        let overhead = if self.is_encrypted_here && len >= RECORD_BYTES {
            state.push_records(self.id, data, ends)?
        } else {
            state.protocol.push_data(self.id, data, ends)
        };
        self.moved.add(len, overhead, self.is_encrypted_here);
        state.end_turn();
        Poll::Ready(Ok(len))
    }
}

pub(super) fn invalid(error: strait_http::Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
