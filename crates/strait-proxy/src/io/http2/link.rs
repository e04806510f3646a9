//! Connection that streams share. `accept` is its side towards clients, `origin_link` towards
//! origins.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use strait_http2::{Abuse, Connection, ErrorCode, Event, RequestHead};
use strait_transfer::pipe::Pipe;

use crate::io::buffer::{BUFFER_BYTES, Buffer};
use crate::io::http2::slot::{Slot, StreamFailure};
use crate::io::http2::translate::{Method, TargetForm};
use crate::io::stream::Stream;
use crate::io::tcp::poll_io;
use tokio::io::Interest;

/// Bytes of output, and of records of TLS, beyond which streams add no data. Frames of the protocol
/// itself may exceed it, and so does the data of one turn with TLS in user space.
pub(super) const OUTPUT_BYTES: usize = 64 << 10;
/// Reads in a row, so that other connections of the thread are not delayed.
const READS_MAX: usize = 16;
/// Bytes of a head, so that its text fits into a buffer.
pub(super) const HEAD_BYTES: usize = 24 << 10;

/// Connection that streams share. It can move to another thread with a stream, because fills do.
#[derive(Clone, Debug)]
pub(crate) struct Link(pub(super) Arc<Mutex<State>>);

/// State of the connection.
#[derive(Debug)]
pub(super) struct State {
    pub(super) transport: Stream,
    pub(super) protocol: Connection,
    pub(super) buffer: Buffer,
    /// Time of the last read.
    pub(super) received: Instant,
    /// Form of the targets of requests from a client.
    pub(super) form: TargetForm,
    pub(super) slots: BTreeMap<u32, Slot>,
    /// Waker of the connection's task.
    pub(super) driver: Option<Waker>,
    /// Stream that is to send next.
    turn: Option<u32>,
    /// Pipe for data of files. Its bytes come before the output.
    pub(super) pipe: Lent,
    /// True if streams wait for room for their heads, and were not woken.
    waits_for_room: bool,
    /// Number of streams that wait for room, also of woken ones.
    roomless: usize,
    /// Requests to the origin that are about to open streams.
    pub(super) promised: usize,
    /// Waker of the task that waits for the peer's SETTINGS.
    pub(super) begun: Option<Waker>,
    /// Wakers of requests that wait for room for their heads, before they have streams.
    pub(super) openers: Vec<Waker>,
    /// True once the origin has not ended a complete response in time: requests wait for that no
    /// more.
    pub(super) ends_late: bool,
    /// True once nothing can be received or sent any more.
    pub(super) is_over: bool,
    /// Reason of its end, if the peer has violated the protocol.
    pub(super) violation: Option<&'static str>,
    /// True if a frame was sent in part and its rest is lost: nothing may follow it.
    is_torn: bool,
    /// Bytes given to the transport.
    pub(super) sent_bytes: u64,
}

/// Pipe that the worker lends to the connection while it has streams.
#[derive(Debug)]
pub(super) enum Lent {
    /// Not needed so far.
    Unused,
    /// A stream waits for it.
    Wanted,
    /// All pipes are in use: data is copied until the connection is idle.
    Refused,
    Pipe(Pipe),
}

/// New request.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) id: u32,
    pub(super) method: Method,
    /// True if it has no body.
    pub(super) is_last: bool,
    pub(super) head: RequestHead,
}

/// New request, if there is one; an error with the exceeded limit after a violation.
pub(super) type Step = Result<Option<Opening>, Option<Abuse>>;

impl Link {
    /// Begins HTTP/2 on a connection, of which `buffer` was read already.
    pub(super) fn over(transport: Stream, protocol: Connection, buffer: Buffer, form: TargetForm) -> Self {
        Self(Arc::new(Mutex::new(State {
            transport,
            protocol,
            buffer,
            received: Instant::now(),
            form,
            slots: BTreeMap::new(),
            driver: None,
            turn: None,
            pipe: Lent::Unused,
            waits_for_room: false,
            roomless: 0,
            promised: 0,
            begun: None,
            openers: Vec::new(),
            ends_late: false,
            is_over: false,
            violation: None,
            is_torn: false,
            sent_bytes: 0,
        })))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the client to open no more streams.
    pub(crate) fn announce_end(&self) {
        self.state().protocol.announce_end();
    }

    /// Accepts no more streams.
    pub(crate) fn go_away(&self) {
        self.state().protocol.go_away();
    }

    /// Returns the progress of sending if some bytes are left to send.
    pub(crate) fn blocked_at(&self) -> Option<(u64, usize)> {
        let state = self.state();
        (!state.is_flushed()).then_some((state.sent_bytes, state.transport.held()))
    }

    /// Lends a pipe for data of files, if one is free.
    pub(crate) fn lend(&self, pipe: Option<Pipe>) {
        let mut state = self.state();
        state.pipe = pipe.map_or(Lent::Refused, Lent::Pipe);
        state.pass_turn();
    }

    /// Returns the pipe.
    pub(crate) fn take_pipe(&self) -> Option<Pipe> {
        match std::mem::replace(&mut self.state().pipe, Lent::Unused) {
            Lent::Pipe(pipe) => Some(pipe),
            Lent::Unused | Lent::Wanted | Lent::Refused => None,
        }
    }

    /// Ends the connection: all streams fail.
    pub(crate) fn end(&self) {
        self.state().end();
    }

    /// Sends the last bytes, and reads until the client closes: unread bytes would make the kernel
    /// reset the connection, and the client might miss GOAWAY.
    pub(crate) fn poll_close(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = &mut *self.state();
        if state.is_torn {
            return Poll::Ready(Ok(()));
        }
        ready!(state.poll_flush(context))?;
        ready!(state.transport.poll_finish(context))?;
        loop {
            state.buffer.clear();
            if ready!(state.transport.poll_read(context, &mut state.buffer, BUFFER_BYTES))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl State {
    pub(super) fn is_idle(&self) -> bool {
        self.slots.is_empty() && self.is_flushed()
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.held() == 0 && self.queued() == 0
    }

    /// Returns the bytes in the pipe.
    fn held(&self) -> usize {
        if let Lent::Pipe(pipe) = &self.pipe { pipe.held() } else { 0 }
    }

    /// Returns the bytes that wait to be sent, except for those in the pipe.
    pub(super) fn queued(&self) -> usize {
        self.protocol.output().len() + self.transport.held()
    }

    /// Returns a new request; `None` at the end of the connection; an error with the exceeded limit
    /// after a violation.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Step> {
        for _ in 0..READS_MAX {
            if self.is_over {
                return Poll::Ready(Ok(None));
            }
            match self.process() {
                Ok(Some(request)) => return Poll::Ready(Ok(Some(request))),
                Ok(None) => {}
                Err(abuse) => return Poll::Ready(Err(abuse)),
            }
            if let Poll::Ready(Err(_)) = self.poll_flush(context) {
                return Poll::Ready(Ok(None));
            }
            let read = self.transport.poll_read(context, &mut self.buffer, BUFFER_BYTES);
            if ready!(read).unwrap_or(0) == 0 {
                return Poll::Ready(Ok(None));
            }
            self.received = Instant::now();
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Processes the buffered bytes up to the next request.
    fn process(&mut self) -> Step {
        loop {
            let step = self.protocol.next(self.received, self.buffer.filled());
            let (used, event) = step.map_err(|error| {
                let is_http_1 = self.buffer.filled().starts_with(b"HTTP/1.");
                self.violation = Some(if is_http_1 { "an answer in HTTP/1.1" } else { error.why });
                error.abuse
            })?;
            let mut request = None;
            match event {
                None if used == 0 => break,
                None => {}
                Some(Event::Request { stream, is_last }) => request = self.open(stream, is_last),
                Some(Event::TooLarge { stream }) => self.refuse(stream, b"431"),
                Some(Event::Body { stream, bytes, is_last }) => {
                    match self.slots.get_mut(&stream) {
                        Some(slot) => slot.receive(bytes, is_last),
                        // Answered early: the rest of its body still counts in the window.
                        None => self.protocol.consumed(stream, bytes.len()),
                    }
                }
                Some(Event::Trailers { stream }) => {
                    if let Some(slot) = self.slots.get_mut(&stream) {
                        slot.end_with(self.protocol.trailers());
                    }
                }
                Some(Event::Reset { stream, code }) => {
                    if let Some(slot) = self.slots.get_mut(&stream) {
                        slot.failure.get_or_insert(StreamFailure::of_reset(code));
                        slot.wake();
                    }
                    self.give_up_turn(stream);
                }
                Some(Event::Response { stream, is_last }) => self.receive_response(stream, is_last),
                Some(Event::GoAway { last_stream }) => self.refuse_above(last_stream),
            }
            self.buffer.consume(used);
            if request.is_some() {
                return Ok(request);
            }
        }
        if self.protocol.has_settings()
            && let Some(waker) = self.begun.take()
        {
            waker.wake();
        }
        // Windows may be wider now.
        self.pass_turn();
        Ok(None)
    }

    /// Sends the contents of the pipe, then the output.
    pub(super) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Lent::Pipe(pipe) = &mut self.pipe
            && pipe.held() > 0
        {
            let tcp = &self.transport.tcp;
            let sent = ready!(poll_io(tcp, context, Interest::WRITABLE, || Ok(pipe.empty(tcp, None)?)))?;
            self.sent_bytes += sent as u64;
            if pipe.held() == 0 {
                self.pass_turn();
            }
        }
        while !self.protocol.output().is_empty() {
            let parts = [IoSlice::new(self.protocol.output()), IoSlice::new(&[])];
            let sent = ready!(self.transport.poll_write(context, &parts))?;
            self.protocol.sent(sent);
            self.sent_bytes += sent as u64;
            self.pass_turn();
        }
        while ready!(self.transport.poll_send(context))? {
            self.pass_turn();
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn end(&mut self) {
        self.is_over = true;
        self.begun.take().into_iter().for_each(Waker::wake);
        self.wake_openers();
        self.wake_driver();
        self.slots.values_mut().for_each(Slot::wake);
    }

    /// Ends the connection after an incomplete frame: its remaining bytes are lost.
    pub(super) fn tear(&mut self) {
        self.is_torn = true;
        self.end();
    }

    /// Returns the slot of a stream that is neither reset nor cut off by the end of the connection.
    pub(super) fn slot(&mut self, id: u32) -> io::Result<&mut Slot> {
        if self.is_over || !self.protocol.is_open(id) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        self.slots.get_mut(&id).ok_or_else(|| io::ErrorKind::ConnectionReset.into())
    }

    /// Takes up to `room.len()` received bytes of a stream.
    pub(super) fn take(&mut self, id: u32, room: &mut [u8]) -> usize {
        let Some(slot) = self.slots.get_mut(&id) else { return 0 };
        let len = slot.received.take(room);
        let announced = slot.announce(len);
        self.protocol.consumed(id, announced);
        // Windows may have been announced.
        self.wake_driver();
        len
    }

    /// Returns the number of DATA bytes that the stream may send now, at least one: those that fit
    /// into the output. With TLS in user space one turn may exceed it, so that heads in the output
    /// do not leave the end of a body to another turn.
    pub(super) fn poll_turn(&mut self, id: u32, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let window = ready!(self.poll_window(id, context))?;
        let is_encrypted_here = self.transport.is_encrypted_here();
        let most = if is_encrypted_here { OUTPUT_BYTES } else { OUTPUT_BYTES.saturating_sub(self.queued()) };
        Poll::Ready(Ok(window.min(most)))
    }

    /// Waits for the stream's turn, and for the pipe to be empty. Returns the pipe and the number
    /// of DATA bytes that the stream may put into it, at least one; no pipe if all are in use.
    pub(super) fn poll_pipe(
        &mut self,
        id: u32,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Option<(Pipe, usize)>>> {
        let window = ready!(self.poll_window(id, context))?;
        match std::mem::replace(&mut self.pipe, Lent::Wanted) {
            Lent::Pipe(pipe) if pipe.held() == 0 => Poll::Ready(Ok(Some((pipe, window)))),
            Lent::Refused => {
                self.pipe = Lent::Refused;
                Poll::Ready(Ok(None))
            }
            Lent::Pipe(pipe) => {
                self.pipe = Lent::Pipe(pipe);
                Poll::Pending
            }
            Lent::Unused | Lent::Wanted => {
                self.wake_driver();
                Poll::Pending
            }
        }
    }

    /// Waits for room in the output for a head.
    pub(super) fn poll_room(&mut self, id: u32, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let has_room = self.queued() < OUTPUT_BYTES;
        let slot = self.slot(id)?;
        let was_roomless = std::mem::replace(&mut slot.is_roomless, !has_room);
        if !has_room {
            slot.writer = Some(context.waker().clone());
        }
        self.roomless = self.roomless + usize::from(!has_room) - usize::from(was_roomless);
        self.waits_for_room |= !has_room;
        if has_room { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Puts the pipe back, sends what the socket takes at once, and ends the turn.
    pub(super) fn end_pipe(&mut self, mut pipe: Pipe) -> io::Result<()> {
        let tcp = &self.transport.tcp;
        while pipe.held() > 0 {
            match tcp.try_io(Interest::WRITABLE, || Ok(pipe.empty(tcp, None)?)) {
                Ok(sent) => self.sent_bytes += sent as u64,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.pipe = Lent::Pipe(pipe);
        self.end_turn();
        Ok(())
    }

    /// Waits for the stream's turn, for room, and for windows; returns their bytes.
    fn poll_window(&mut self, id: u32, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.slot(id)?.writer = Some(context.waker().clone());
        if self.turn.is_none() {
            self.protocol.want(id, true);
            self.pass_turn();
        }
        let (sent_bytes, has_turn) = (self.sent_bytes, self.turn == Some(id));
        self.slot(id)?.note_turn(has_turn, sent_bytes);
        if !has_turn {
            self.protocol.want(id, true);
            return Poll::Pending;
        }
        match self.protocol.window(id) {
            _ if self.queued() >= OUTPUT_BYTES => Poll::Pending,
            0 => {
                // The window was reduced since the turn was granted.
                self.turn = None;
                self.protocol.want(id, true);
                self.pass_turn();
                Poll::Pending
            }
            window => Poll::Ready(Ok(window)),
        }
    }

    /// Ends the turn of the stream that has it. The driver gives the next turn: before it runs, the
    /// stream asks again if it has more data at hand, and the most urgent stream gets the turn.
    pub(super) fn end_turn(&mut self) {
        self.turn = None;
        self.wake_driver();
    }

    /// Ends the wait of a stream for its turn, and the turn: its user sends no more.
    pub(super) fn give_up_turn(&mut self, id: u32) {
        self.protocol.want(id, false);
        if self.turn == Some(id) {
            self.turn = None;
            self.pass_turn();
        }
    }

    /// Returns true if a stream waits for its turn, or for room for its head.
    pub(super) fn has_waiting(&self) -> bool {
        self.turn.is_some() || self.roomless > 0 || self.protocol.has_waiting()
    }

    /// Returns the bytes that the client took from other streams while this one waited for its turn
    /// and had a window: its client is not slow.
    pub(super) fn taken_by_others(&self, id: u32) -> u64 {
        let Some(slot) = self.slots.get(&id) else { return 0 };
        let since = slot.waits_since.filter(|_| self.protocol.window(id) > 0);
        slot.taken_by_others + since.map_or(0, |since| self.sent_bytes - since)
    }

    /// Gives the turn to the next stream, and wakes the stream that has it if there is room.
    fn pass_turn(&mut self) {
        if self.queued() >= OUTPUT_BYTES {
            return;
        }
        self.wake_openers();
        if std::mem::take(&mut self.waits_for_room) {
            self.slots.values_mut().filter_map(|slot| slot.writer.take()).for_each(Waker::wake);
        }
        if self.turn.is_none() {
            self.turn = self.protocol.grant();
        }
        let writer = self.turn.and_then(|id| self.slots.get_mut(&id)?.writer.take());
        if let Some(waker) = writer {
            waker.wake();
        }
    }

    pub(super) fn wake_driver(&mut self) {
        if let Some(waker) = self.driver.take() {
            waker.wake();
        }
    }

    pub(super) fn refuse_unprocessed(&mut self, id: u32) {
        self.protocol.reset(id, ErrorCode::RefusedStream);
    }

    /// Ends the use of a stream.
    pub(super) fn release(&mut self, id: u32) {
        // Its client may send no more than the window allows, so unread bytes must not keep it.
        if let Some(slot) = self.slots.remove(&id) {
            self.roomless -= usize::from(slot.is_roomless);
            self.protocol.consumed(id, slot.unannounced);
        }
        self.protocol.release(id);
        if self.turn == Some(id) {
            self.turn = None;
        }
        self.pass_turn();
        self.wake_driver();
    }
}
