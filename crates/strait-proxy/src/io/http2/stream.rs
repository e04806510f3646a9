//! One stream, as a connection of HTTP/1.1: its user reads the text of a request, and writes the
//! text of a response, which becomes frames.

use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};

use strait_http::framing::{self, BodyFraming};
use strait_http::head;

use crate::io::buffer::Buffer;
use crate::io::framing::{Framed, Piece};
use crate::io::http2::gather::Part;
use crate::io::http2::link::{Link, State};
use crate::io::http2::translate::{Fields, Method};
use crate::io::moved::Moved;

/// Stream of an HTTP/2 connection.
#[derive(Debug)]
pub(crate) struct Http2Stream {
    link: Link,
    id: u32,
    method: Method,
    is_encrypted: bool,
    is_encrypted_here: bool,
    sink: Sink,
    /// Bytes of its frames.
    moved: Moved,
}

/// Part of the response that is expected next.
#[derive(Debug)]
enum Sink {
    /// Head, of which these bytes were written.
    Head(Vec<u8>),
    /// Body, with the trailers so far.
    Body(Framed, Vec<u8>),
    /// Bytes of a tunnel.
    Tunnel,
    /// Nothing: the tunnel was ended in this direction.
    TunnelEnd,
    Done,
}

impl Http2Stream {
    pub(super) fn new(
        link: Link,
        id: u32,
        method: Method,
        (is_encrypted, is_encrypted_here): (bool, bool),
    ) -> Self {
        let sink = Sink::Head(Vec::new());
        Self { link, id, method, is_encrypted, is_encrypted_here, sink, moved: Moved::default() }
    }

    /// Gives the request back: its client may send it again.
    pub(crate) fn refuse(self) {
        self.link.state().refuse_unprocessed(self.id);
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Returns true if its connection uses TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Returns the bytes of its frames.
    pub(crate) fn moved(&self) -> Moved {
        self.moved
    }

    /// Returns the bytes that the client took from other streams instead.
    pub(crate) fn taken_by_others(&self) -> u64 {
        self.link.state().taken_by_others(self.id)
    }

    /// Reads the text of the request, then its body; 0 at the end, and after the response.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut Buffer,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_readable(context))?;
        if matches!(self.sink, Sink::Done) {
            return Poll::Ready(Ok(0));
        }
        let mut state = self.link.state();
        let room = buffer.room();
        let most = most.min(room.len());
        let read = state.take(self.id, &mut room[..most]);
        drop(state);
        buffer.grew(read);
        Poll::Ready(Ok(read))
    }

    /// Ready once there are bytes to read, or the end.
    pub(crate) fn poll_readable(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(self.sink, Sink::Done) {
            return Poll::Ready(Ok(()));
        }
        let mut state = self.link.state();
        let slot = state.slot(self.id)?;
        if !slot.received.is_empty() || slot.is_ended {
            return Poll::Ready(Ok(()));
        }
        slot.reader = Some(context.waker().clone());
        Poll::Pending
    }

    /// Takes some bytes of the response's text.
    pub(crate) fn poll_write(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let link = self.link.clone();
        let state = &mut *link.state();
        state.slot(self.id)?;
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if matches!(self.sink, Sink::Head(_)) {
            ready!(state.poll_room(self.id, context))?;
        }
        match std::mem::replace(&mut self.sink, Sink::Done) {
            Sink::Head(before) => Poll::Ready(self.write_head(state, before, bytes)),
            Sink::Body(framed, trailers) => self.poll_body(state, context, (framed, trailers), bytes),
            Sink::Tunnel => {
                self.sink = Sink::Tunnel;
                self.poll_data(state, context, bytes, false)
            }
            // The proxy writes no more than its head has announced.
            Sink::TunnelEnd | Sink::Done => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        }
    }

    /// Returns true if files can be sent without a copy.
    pub(crate) fn can_send_file(&self) -> bool {
        !self.is_encrypted_here
    }

    /// Sends up to `len` bytes of a file from `offset` on without a copy; returns their number.
    /// Returns 0 if no pipe is free: copy them.
    pub(crate) fn poll_send_file(
        &mut self,
        context: &mut Context<'_>,
        file: &impl AsFd,
        offset: u64,
        len: u64,
    ) -> Poll<io::Result<usize>> {
        let link = self.link.clone();
        let state = &mut *link.state();
        let Sink::Body(framed, _) = &mut self.sink else {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        };
        let ahead = framed.data_ahead();
        let Some((mut pipe, window)) = ready!(state.poll_pipe(self.id, context))? else {
            return Poll::Ready(Ok(0));
        };
        let len = len.min(ahead).min(window as u64) as usize;
        let is_last = matches!(framed, Framed::Length(left) if *left == len as u64);
        let part = Part { file, offset, len, is_last };
        // The rest of an incomplete frame can never be sent.
        let gathered = state.gather(&mut pipe, self.id, &part);
        let sent = gathered.and_then(|gathered| state.end_pipe(pipe).map(|()| gathered));
        let gathered = sent.inspect_err(|_| state.tear())?;
        framed.advance(gathered.data as u64);
        if is_last && gathered.data == len {
            self.sink = Sink::Done;
        }
        self.moved.spliced += gathered.data as u64;
        self.moved.add(0, gathered.heads, false);
        Poll::Ready(Ok(gathered.data))
    }

    /// Ends the response of unknown length, or the tunnel.
    pub(crate) fn poll_finish(&mut self) -> Poll<io::Result<()>> {
        let ends = matches!(self.sink, Sink::Tunnel | Sink::Body(Framed::ToClose, _));
        let state = &mut *self.link.state();
        if ends && state.slot(self.id).is_ok() {
            let overhead = state.protocol.push_data(self.id, &[], true);
            self.moved.add(0, overhead, self.is_encrypted_here);
            let is_tunnel = matches!(self.sink, Sink::Tunnel);
            self.sink = if is_tunnel { Sink::TunnelEnd } else { Sink::Done };
            state.wake_driver();
        }
        Poll::Ready(Ok(()))
    }

    /// Takes bytes of a head, and sends it once it is complete.
    fn write_head(&mut self, state: &mut State, mut before: Vec<u8>, bytes: &[u8]) -> io::Result<usize> {
        let known = before.len();
        before.extend_from_slice(bytes);
        let Some((response, len)) = head::own_response(&before).map_err(invalid)? else {
            self.sink = Sink::Head(before);
            return Ok(bytes.len());
        };
        let body = framing::of_response(&response, self.method.name()).map_err(invalid)?;
        let is_interim = response.status < 200 && body != BodyFraming::Tunnel;
        let (status, sink) = match body {
            _ if is_interim => (response.status, Sink::Head(Vec::new())),
            // RFC 8441 s5.
            BodyFraming::Tunnel => (200, Sink::Tunnel),
            BodyFraming::None => (response.status, Sink::Done),
            body => (response.status, Sink::Body(Framed::new(body), Vec::new())),
        };
        let ends = matches!(sink, Sink::Done);
        let fields = Fields::of(&response, status);
        let sent = if is_interim {
            state.protocol.respond_interim(self.id, fields.iter())
        } else {
            state.protocol.respond(self.id, fields.iter(), ends)
        };
        self.sink = sink;
        self.moved.add(0, sent, self.is_encrypted_here);
        state.wake_driver();
        Ok(len.saturating_sub(known))
    }

    /// Takes bytes of a body.
    fn poll_body(
        &mut self,
        state: &mut State,
        context: &mut Context<'_>,
        (mut framed, mut trailers): (Framed, Vec<u8>),
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let piece = framed.next(bytes).map_err(invalid)?;
        let taken = match piece {
            Piece::Data(len) => {
                let data = &bytes[..len];
                let is_last = matches!(framed, Framed::Length(left) if left == len as u64);
                let taken = self.poll_data(state, context, data, is_last);
                if let Poll::Ready(Ok(taken)) = taken {
                    framed.advance(taken as u64);
                    if is_last && taken == len {
                        self.sink = Sink::Done;
                        return Poll::Ready(Ok(taken));
                    }
                }
                taken
            }
            Piece::Framing(len) => Poll::Ready(Ok(len)),
            Piece::Trailer(len) => {
                trailers.extend_from_slice(&bytes[..len]);
                Poll::Ready(Ok(len))
            }
            Piece::End(len) => {
                self.finish(state, &trailers);
                return Poll::Ready(Ok(len));
            }
            // Chunk framing is written whole.
            Piece::More => Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
        };
        self.sink = Sink::Body(framed, trailers);
        taken
    }

    /// Ends a chunked body.
    fn finish(&mut self, state: &mut State, trailers: &[u8]) {
        let overhead = if trailers.is_empty() {
            state.protocol.push_data(self.id, &[], true)
        } else {
            state.protocol.respond(self.id, Fields::of_trailers(trailers).iter(), true)
        };
        self.moved.add(0, overhead, self.is_encrypted_here);
        state.wake_driver();
    }

    /// Copies data into frames, as much as windows and output allow.
    fn poll_data(
        &mut self,
        state: &mut State,
        context: &mut Context<'_>,
        data: &[u8],
        is_last: bool,
    ) -> Poll<io::Result<usize>> {
        let len = ready!(state.poll_turn(self.id, context))?.min(data.len());
        let overhead = state.protocol.push_data(self.id, &data[..len], is_last && len == data.len());
        self.moved.add(len, overhead, self.is_encrypted_here);
        state.end_turn();
        Poll::Ready(Ok(len))
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        self.link.state().release(self.id);
    }
}

fn invalid(error: strait_http::Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
