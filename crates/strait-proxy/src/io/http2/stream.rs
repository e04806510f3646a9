//! One stream, as a connection of HTTP/1.1: its user reads the text of a request, and writes the
//! text of a response, which becomes frames.

use std::future::poll_fn;
use std::io;
use std::iter::once;
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};

use strait_http::framing::{self, BodyFraming};
use strait_http::head::{self, Response};

use crate::io::buffer::Buffer;
use crate::io::copy_buffer::CopyBuffer;
use crate::io::framing::Framed;
use crate::io::http2::body::{OutgoingBody, Sender, invalid};
use crate::io::http2::gather::Part;
use crate::io::http2::link::{Link, State};
use crate::io::http2::translate::{EncodedLines, Method, allowed};
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
    /// True if another user has the stream, and this one only reads.
    is_reader: bool,
}

/// End of a stream, for a task that waits for it.
#[derive(Debug)]
pub(crate) struct StreamEnd {
    link: Link,
    id: u32,
}

impl StreamEnd {
    /// Waits until the client has cancelled the request, or its connection has ended.
    pub(crate) async fn cancelled(&self) {
        poll_fn(|context| {
            let mut state = self.link.state();
            let Ok(slot) = state.slot(self.id) else { return Poll::Ready(()) };
            slot.watcher = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Part of the response that is expected next.
#[derive(Debug)]
enum Sink {
    /// Head, of which these bytes were written.
    Head(Vec<u8>),
    Body(OutgoingBody),
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
        let moved = Moved::default();
        Self { link, id, method, is_encrypted, is_encrypted_here, sink, moved, is_reader: false }
    }

    /// Returns another user of the stream, which only reads.
    pub(crate) fn reader(&self) -> Self {
        let (link, sink, moved) = (self.link.clone(), Sink::Head(Vec::new()), Moved::default());
        Self { link, sink, moved, is_reader: true, ..*self }
    }

    /// Returns its end.
    pub(crate) fn end(&self) -> StreamEnd {
        StreamEnd { link: self.link.clone(), id: self.id }
    }

    /// Resets the stream with that code.
    pub(crate) fn reset(&self, code: u32) {
        let state = &mut *self.link.state();
        state.protocol.reset(self.id, code);
        state.wake_driver();
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Returns true if its connection uses TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Returns the version of TLS, if its connection uses it.
    pub(crate) fn tls_version(&self) -> Option<&'static str> {
        self.link.state().transport.tls_version()
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
            Sink::Head(before) => Poll::Ready(self.write_head(state, before, bytes, None)),
            sink => {
                self.sink = sink;
                self.poll_body(state, context, bytes)
            }
        }
    }

    /// Takes the head of a response, and of its body as much as there is room for. The head begins
    /// with `lines`, if they are given.
    pub(crate) fn poll_respond(
        &mut self,
        context: &mut Context<'_>,
        head: &[u8],
        lines: Option<&EncodedLines>,
        body: &[u8],
    ) -> Poll<io::Result<usize>> {
        let link = self.link.clone();
        let state = &mut *link.state();
        ready!(state.poll_room(self.id, context))?;
        let before = match std::mem::replace(&mut self.sink, Sink::Done) {
            Sink::Head(before) => before,
            other => {
                self.sink = other;
                return Poll::Ready(Err(io::ErrorKind::InvalidInput.into()));
            }
        };
        let taken = self.write_head(state, before, head, lines)?;
        if taken < head.len() || body.is_empty() {
            return Poll::Ready(Ok(taken));
        }
        Poll::Ready(match self.poll_body(state, context, body) {
            Poll::Ready(of_body) => of_body.map(|of_body| taken + of_body),
            Poll::Pending => Ok(taken),
        })
    }

    /// Takes some bytes after the head.
    fn poll_body(
        &mut self,
        state: &mut State,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match std::mem::replace(&mut self.sink, Sink::Done) {
            Sink::Body(mut body) => {
                let taken = body.poll_take(state, context, &mut self.sender(), bytes);
                if !body.is_over() {
                    self.sink = Sink::Body(body);
                }
                taken
            }
            Sink::Tunnel => {
                self.sink = Sink::Tunnel;
                self.sender().poll_data(state, context, bytes, false)
            }
            // The proxy writes no more than its head has announced.
            Sink::Head(_) | Sink::TunnelEnd | Sink::Done => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
        }
    }

    /// Sends up to `len` bytes of a file from `offset` on; returns their number. They are not
    /// copied, except with TLS in user space. Returns 0 if no pipe is free: copy them.
    pub(crate) fn poll_send_file(
        &mut self,
        context: &mut Context<'_>,
        file: &impl AsFd,
        offset: u64,
        len: u64,
    ) -> Poll<io::Result<usize>> {
        let link = self.link.clone();
        let state = &mut *link.state();
        let Sink::Body(OutgoingBody { framed, .. }) = &mut self.sink else {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        };
        let len = len.min(framed.data_ahead());
        if self.is_encrypted_here {
            return self.poll_encrypt_file(state, context, file, offset, len);
        }
        let Some((mut pipe, window)) = ready!(state.poll_pipe(self.id, context))? else {
            return Poll::Ready(Ok(0));
        };
        let len = len.min(window as u64) as usize;
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

    /// Reads bytes of a file and encrypts them, when the stream may send them.
    fn poll_encrypt_file(
        &mut self,
        state: &mut State,
        context: &mut Context<'_>,
        file: &impl AsFd,
        offset: u64,
        len: u64,
    ) -> Poll<io::Result<usize>> {
        let window = ready!(state.poll_turn(self.id, context))?;
        if len == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut bytes = CopyBuffer::take();
        bytes.read_at(file, offset, len.min(window as u64))?;
        self.poll_body(state, context, &bytes)
    }

    /// Ends the response of unknown length, or the tunnel.
    pub(crate) fn poll_finish(&mut self) -> Poll<io::Result<()>> {
        let ends = match &self.sink {
            Sink::Tunnel => true,
            Sink::Body(body) => matches!(body.framed, Framed::ToClose),
            _ => false,
        };
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

    fn sender(&mut self) -> Sender<'_> {
        Sender { id: self.id, is_encrypted_here: self.is_encrypted_here, moved: &mut self.moved }
    }

    /// Takes bytes of a head, and sends it once it is complete. A whole head begins with `lines`,
    /// if they are given.
    fn write_head(
        &mut self,
        state: &mut State,
        mut before: Vec<u8>,
        bytes: &[u8],
        lines: Option<&EncodedLines>,
    ) -> io::Result<usize> {
        let known = before.len();
        // The head of a tunnel has another status.
        let lines = lines.filter(|_| known == 0 && !self.method.is_tunnel());
        if let Some((lines, (rest, len))) = lines.and_then(|lines| Some((lines, lines.rest(bytes)?))) {
            self.send_head(state, &rest, Some(lines))?;
            return Ok(len);
        }
        // Most heads are written as a whole.
        let text = if known == 0 {
            bytes
        } else {
            before.extend_from_slice(bytes);
            &before
        };
        let Some((response, len)) = head::own_response(text).map_err(invalid)? else {
            self.sink = Sink::Head(text.to_vec());
            return Ok(bytes.len());
        };
        self.send_head(state, &response, None)?;
        Ok(len.saturating_sub(known))
    }

    /// Sends a head; `lines` are fields before those of `response`, with its status.
    fn send_head(
        &mut self,
        state: &mut State,
        response: &Response<'_>,
        lines: Option<&EncodedLines>,
    ) -> io::Result<()> {
        let body = framing::of_response(response, self.method.name()).map_err(invalid)?;
        let is_interim = response.status < 200 && body != BodyFraming::Tunnel;
        let (status, sink) = match body {
            _ if is_interim => (response.status, Sink::Head(Vec::new())),
            // RFC 8441 s5.
            BodyFraming::Tunnel => (200, Sink::Tunnel),
            BodyFraming::None => (response.status, Sink::Done),
            body => (response.status, Sink::Body(OutgoingBody::new(body))),
        };
        let ends = matches!(sink, Sink::Done);
        let mut digits = itoa::Buffer::new();
        let status = (&b":status"[..], digits.format(status).as_bytes());
        let fields = allowed(&response.fields);
        let protocol = &mut state.protocol;
        let sent = match lines {
            Some(lines) => protocol.respond_known(self.id, lines.block(), fields, ends),
            None if is_interim => protocol.respond_interim(self.id, once(status).chain(fields)),
            None => protocol.respond(self.id, once(status).chain(fields), ends),
        };
        self.sink = sink;
        self.moved.add(0, sent, self.is_encrypted_here);
        state.wake_driver();
        Ok(())
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        if !self.is_reader {
            self.link.state().release(self.id);
        }
    }
}
