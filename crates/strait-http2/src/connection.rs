//! State of a connection. `receive.rs` parses its input, `send.rs` makes its output, `schedule.rs`
//! orders its streams.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use crate::error::{ConnectionError, ErrorCode};
use crate::frame::{PREFACE, STREAM_MAX, push_go_away, push_reset};
use crate::hpack::{Decoder, FieldList};
use crate::limits::{Abuse, Limits, Meters};
use crate::receive::Reading;
use crate::request::{Request, RequestHead, fields};
use crate::response::Response;
use crate::schedule::GroupTurns;
use crate::settings::{Peer, Side, TABLE_BYTES, WINDOW_DEFAULT, push_own};
use crate::stream::{Sending, Stream};

/// Streams that were reset here, and late frames of which are ignored.
const RESET_MAX: usize = 128;

/// Streams of a client that wait for their end, without a user.
const AWAITED_ENDS_MAX: usize = 16;

/// Received event. Until the next call of [`Connection::next`], [`Connection::request`] or
/// [`Connection::response`] returns a head, and [`Connection::trailers`] the trailers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'b> {
    /// New request. Call [`Connection::release`] when it is answered or given up.
    Request {
        /// Stream.
        stream: u32,
        /// True if it has no body.
        is_last: bool,
    },
    /// New request with a head beyond the limits: answer with 431 and release the stream.
    TooLarge {
        /// Stream.
        stream: u32,
    },
    /// Head of a response, at the client's side: interim ones, then the final one.
    Response {
        /// Stream.
        stream: u32,
        /// True if nothing follows it.
        is_last: bool,
    },
    /// Trailers, which end a message.
    Trailers {
        /// Stream.
        stream: u32,
    },
    /// Part of a body. Call [`Connection::consumed`] when its bytes need no more memory.
    Body {
        /// Stream.
        stream: u32,
        /// Part, maybe empty.
        bytes: &'b [u8],
        /// True at the end of the message.
        is_last: bool,
    },
    /// A stream was reset, by either side: its request is given up.
    Reset {
        /// Stream.
        stream: u32,
        /// Code on the wire.
        code: u32,
    },
    /// The server accepts no more streams, and has not processed those above the last one. At the
    /// client's side.
    GoAway {
        /// Last stream that it may have processed.
        last_stream: u32,
    },
}

/// One side of a connection.
#[derive(Debug)]
pub struct Connection {
    pub(crate) side: Side,
    pub(crate) limits: Limits,
    pub(crate) meters: Meters,
    pub(crate) peer: Peer,
    pub(crate) reading: Reading,
    /// Payload of the current frame, unless it is DATA.
    pub(crate) payload: Vec<u8>,
    pub(crate) has_settings: bool,
    pub(crate) block: Block,
    pub(crate) decoder: Decoder,
    pub(crate) list: FieldList,
    /// True if the list is that of a valid request.
    pub(crate) is_checked: bool,
    pub(crate) streams: BTreeMap<u32, Stream>,
    /// Streams for which [`Stream::is_waiting`] is true.
    pub(crate) waiting: BTreeSet<u32>,
    /// Latest stream that the client, either side, has opened.
    pub(crate) last_stream: u32,
    /// Streams that were reset here, the latest one last.
    pub(crate) reset_here: VecDeque<u32>,
    pub(crate) send_window: i64,
    pub(crate) receive_window: i64,
    pub(crate) consumed: u32,
    pub(crate) output: Vec<u8>,
    /// First stream with the end of a response in the output.
    pub(crate) first_unsent: u32,
    pub(crate) has_encoded: bool,
    pub(crate) is_closing: bool,
    pub(crate) has_announced_end: bool,
    /// True once the peer accepts no more streams.
    pub(crate) is_left: bool,
    /// Blocks that may still come for requests that were given up.
    pub(crate) late_blocks: usize,
    pub(crate) turns: u64,
    pub(crate) has_priorities: bool,
    pub(crate) group_turns: GroupTurns,
}

/// Header block of a HEADERS frame and its CONTINUATION frames.
#[derive(Debug, Default)]
pub(crate) struct Block {
    pub(crate) bytes: Vec<u8>,
    /// Stream; 0 while there is no block.
    pub(crate) stream: u32,
    pub(crate) is_last: bool,
    /// CONTINUATION frames.
    pub(crate) frames: usize,
}

impl Connection {
    /// Begins the server's side of a connection; its output has the server's preface.
    pub fn new(limits: Limits, now: Instant) -> Self {
        Self::of(Side::Server, limits, now)
    }

    /// Begins the client's side of a connection; its output has the client's preface. Requests may
    /// be sent at once ([`Connection::open_request`]).
    pub fn client(limits: Limits, now: Instant) -> Self {
        Self::of(Side::Client, limits, now)
    }

    fn of(side: Side, limits: Limits, now: Instant) -> Self {
        let mut output = if side == Side::Client { PREFACE.to_vec() } else { Vec::new() };
        push_own(&limits, side, &mut output);
        let mut connection = Self {
            side,
            limits,
            meters: Meters::new(&limits, now),
            peer: Peer::default(),
            reading: if side == Side::Server { Reading::Preface } else { Reading::Head },
            payload: Vec::new(),
            has_settings: false,
            block: Block::default(),
            decoder: Decoder::new(TABLE_BYTES),
            list: FieldList::new(limits.head_bytes, limits.fields),
            is_checked: false,
            streams: BTreeMap::new(),
            waiting: BTreeSet::new(),
            last_stream: 0,
            reset_here: VecDeque::new(),
            send_window: i64::from(WINDOW_DEFAULT),
            receive_window: i64::from(WINDOW_DEFAULT),
            consumed: 0,
            output,
            first_unsent: u32::MAX,
            has_encoded: false,
            is_closing: false,
            has_announced_end: false,
            is_left: false,
            late_blocks: 0,
            turns: 0,
            has_priorities: false,
            group_turns: GroupTurns::default(),
        };
        connection.widen_own(limits.connection_window.saturating_sub(WINDOW_DEFAULT));
        connection
    }

    /// Returns the head of the request of the last event, and checks it again. The head of
    /// [`Connection::take_request`] is the same one, without the checks.
    ///
    /// # Errors
    /// There was no such event.
    pub fn request(&self) -> Result<Request<'_>, ConnectionError> {
        Request::parse(&self.list).map_err(ConnectionError::protocol)
    }

    /// Takes the head of the request of the last event, so that the connection may be used while
    /// the head is read; [`Connection::request`] returns it no more. [`Connection::give_back`]
    /// takes its memory for the next ones. `None` if there was no such event.
    pub fn take_request(&mut self) -> Option<RequestHead> {
        let empty = || FieldList::new(self.limits.head_bytes, self.limits.fields);
        if !std::mem::take(&mut self.is_checked) {
            return None;
        }
        Some(RequestHead::new(std::mem::replace(&mut self.list, empty())))
    }

    /// Keeps the memory of a head.
    pub fn give_back(&mut self, head: RequestHead) {
        if !self.is_checked {
            self.list = head.into_list();
        }
    }

    /// Returns the head of the response of the last event.
    ///
    /// # Errors
    /// There was no such event.
    pub fn response(&self) -> Result<Response<'_>, ConnectionError> {
        Response::parse(&self.list).map_err(ConnectionError::protocol)
    }

    /// Returns the fields of the trailers of the last event. Names are in lower case.
    pub fn trailers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        fields(&self.list)
    }

    /// Returns the number of streams that are not released yet.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Returns true while a stream may be used: it was neither reset nor released.
    pub fn is_open(&self, stream: u32) -> bool {
        self.streams.get(&stream).is_some_and(|stream| !stream.is_reset)
    }

    /// Asks the client to open no more streams, and still accepts those that it has opened by the
    /// time it learns that (RFC 9113, section 6.8). [`Self::go_away`] follows.
    pub fn announce_end(&mut self) {
        if !std::mem::replace(&mut self.has_announced_end, true) && !self.is_closing {
            push_go_away(&mut self.output, STREAM_MAX, ErrorCode::NoError, "");
        }
    }

    /// Accepts no more streams and announces that; the streams under way continue.
    pub fn go_away(&mut self) {
        if !std::mem::replace(&mut self.is_closing, true) {
            let last_stream = self.last_of_peer();
            push_go_away(&mut self.output, last_stream, ErrorCode::NoError, "");
        }
    }

    /// Returns true once the peer's SETTINGS were received.
    pub fn has_settings(&self) -> bool {
        self.has_settings
    }

    /// Returns true after [`Connection::go_away`].
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Returns the latest stream that the peer has opened, for GOAWAY.
    pub(crate) fn last_of_peer(&self) -> u32 {
        if self.side == Side::Server { self.last_stream } else { 0 }
    }

    /// Gives up a stream: its peer gets RST_STREAM with the code.
    pub fn reset(&mut self, stream: u32, code: impl Into<u32>) {
        if let Some(state) = self.streams.get_mut(&stream)
            && !state.is_closed()
        {
            state.is_reset = true;
            self.note_waiting(stream);
            self.push_reset(stream, code.into());
        }
    }

    /// Ends the use of a stream. A response without its end is cut off by RST_STREAM, and so is the
    /// rest of a request after its response (RFC 9113, section 8.1). A client cancels a request
    /// without a complete response.
    pub fn release(&mut self, stream: u32) {
        if self.awaits_end(stream) {
            return;
        }
        self.note_given_up(stream);
        let is_whole = self.streams.get(&stream).is_some_and(|it| it.sending == Sending::Done);
        let code = match self.side {
            Side::Client => ErrorCode::Cancel,
            Side::Server if is_whole => ErrorCode::NoError,
            Side::Server => ErrorCode::Internal,
        };
        self.reset(stream, code);
        self.forget(stream);
    }

    /// Removes a stream.
    pub(crate) fn forget(&mut self, stream: u32) {
        self.streams.remove(&stream);
        self.waiting.remove(&stream);
    }

    /// Lets a stream wait for its end if its user has all of a response of known length: a reset
    /// would count as a cancelled request at the server. Returns false if it is to be reset.
    fn awaits_end(&mut self, stream: u32) -> bool {
        let is_complete = |it: &Stream| {
            it.response.is_some()
                && it.receives
                && !it.is_reset
                && it.sending == Sending::Done
                && it.content_left == Some(0)
        };
        let Some(state) = self.streams.get_mut(&stream).filter(|it| is_complete(it)) else { return false };
        state.is_released = true;
        if self.streams.values().filter(|it| it.is_released).count() > AWAITED_ENDS_MAX {
            self.cut_oldest_released();
        }
        true
    }

    /// Resets the oldest stream that waits for its end without a user; returns false if there is
    /// none.
    pub(crate) fn cut_oldest_released(&mut self) -> bool {
        let oldest = self.streams.iter().find(|(_, it)| it.is_released).map(|(id, _)| *id);
        let Some(oldest) = oldest else { return false };
        self.note_given_up(oldest);
        self.reset(oldest, ErrorCode::Cancel);
        self.forget(oldest);
        true
    }

    /// Forgets a stream that has no user, after it was reset.
    pub(crate) fn forget_released(&mut self, stream: u32) {
        if self.streams.get(&stream).is_some_and(|it| it.is_released) {
            self.forget(stream);
        }
    }

    pub(crate) fn push_reset(&mut self, stream: u32, code: u32) {
        push_reset(&mut self.output, stream, code);
        if self.reset_here.len() == RESET_MAX {
            self.reset_here.pop_front();
        }
        self.reset_here.push_back(stream);
    }

    /// Refuses a frame or a message, and counts it. Returns an event if the stream had a user.
    pub(crate) fn refuse<'b>(
        &mut self,
        stream: u32,
        code: ErrorCode,
        now: Instant,
    ) -> Result<Option<Event<'b>>, ConnectionError> {
        self.meters.count(Abuse::StreamErrors, now)?;
        self.push_reset(stream, code.into());
        let state = self.streams.get_mut(&stream);
        let had_user = state.is_some_and(|state| !std::mem::replace(&mut state.is_reset, true));
        self.note_waiting(stream);
        self.forget_released(stream);
        Ok(had_user.then_some(Event::Reset { stream, code: code.into() }))
    }
}
