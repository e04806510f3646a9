//! State of a connection. `receive.rs` parses its input, `send.rs` makes its output, `schedule.rs`
//! orders its streams.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use crate::error::{ConnectionError, ErrorCode};
use crate::frame::{STREAM_MAX, push_go_away, push_reset};
use crate::hpack::{Decoder, FieldList};
use crate::limits::{Abuse, Limits, Meters};
use crate::receive::Reading;
use crate::request::Request;
use crate::schedule::GroupTurns;
use crate::settings::{Peer, TABLE_BYTES, WINDOW_DEFAULT, push_own};
use crate::stream::{Sending, Stream};

/// Streams that were reset here, and late frames of which are ignored.
const RESET_MAX: usize = 128;

/// Received event. Until the next call of [`Connection::next`], [`Connection::request`] returns the
/// head of a request.
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
    /// Part of a body. Call [`Connection::consumed`] when its bytes need no more memory.
    Body {
        /// Stream.
        stream: u32,
        /// Part, maybe empty.
        bytes: &'b [u8],
        /// True at the end of the request.
        is_last: bool,
    },
    /// A stream was reset, by either side: its request is given up.
    Reset {
        /// Stream.
        stream: u32,
    },
}

/// Server's side of a connection.
#[derive(Debug)]
pub struct Connection {
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
    pub(crate) streams: BTreeMap<u32, Stream>,
    /// Latest stream that the client has opened.
    pub(crate) last_stream: u32,
    /// Streams that were reset here, the latest one last.
    pub(crate) reset_here: VecDeque<u32>,
    pub(crate) send_window: i64,
    pub(crate) receive_window: i64,
    pub(crate) consumed: u32,
    pub(crate) output: Vec<u8>,
    pub(crate) has_encoded: bool,
    pub(crate) is_closing: bool,
    pub(crate) has_announced_end: bool,
    pub(crate) turns: u64,
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
    /// Begins a connection; its output has the server's preface.
    pub fn new(limits: Limits, now: Instant) -> Self {
        let mut output = Vec::new();
        push_own(&limits, &mut output);
        let mut connection = Self {
            limits,
            meters: Meters::new(now),
            peer: Peer::default(),
            reading: Reading::Preface,
            payload: Vec::new(),
            has_settings: false,
            block: Block::default(),
            decoder: Decoder::new(TABLE_BYTES),
            list: FieldList::new(limits.head_bytes, limits.fields),
            streams: BTreeMap::new(),
            last_stream: 0,
            reset_here: VecDeque::new(),
            send_window: i64::from(WINDOW_DEFAULT),
            receive_window: i64::from(WINDOW_DEFAULT),
            consumed: 0,
            output,
            has_encoded: false,
            is_closing: false,
            has_announced_end: false,
            turns: 0,
            group_turns: GroupTurns::default(),
        };
        connection.widen_own(limits.connection_window.saturating_sub(WINDOW_DEFAULT));
        connection
    }

    /// Returns the head of the request of the last event.
    ///
    /// # Errors
    /// There was no such event.
    pub fn request(&self) -> Result<Request<'_>, ConnectionError> {
        Request::parse(&self.list).map_err(ConnectionError::protocol)
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
            push_go_away(&mut self.output, self.last_stream, ErrorCode::NoError, "");
        }
    }

    /// Returns true after [`Connection::go_away`].
    pub fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// Gives up a stream: its client gets RST_STREAM with the code.
    pub fn reset(&mut self, stream: u32, code: ErrorCode) {
        if let Some(state) = self.streams.get_mut(&stream)
            && !state.is_closed()
        {
            state.is_reset = true;
            self.push_reset(stream, code);
        }
    }

    /// Ends the use of a stream. A response without its end is cut off by RST_STREAM, and so is the
    /// rest of a request after its response (RFC 9113, section 8.1).
    pub fn release(&mut self, stream: u32) {
        let is_whole = self.streams.get(&stream).is_some_and(|it| it.sending == Sending::Done);
        self.reset(stream, if is_whole { ErrorCode::NoError } else { ErrorCode::Internal });
        self.streams.remove(&stream);
    }

    pub(crate) fn push_reset(&mut self, stream: u32, code: ErrorCode) {
        push_reset(&mut self.output, stream, code);
        if self.reset_here.len() == RESET_MAX {
            self.reset_here.pop_front();
        }
        self.reset_here.push_back(stream);
    }

    /// Refuses a frame or a request, and counts it. Returns true if the stream had a user.
    pub(crate) fn refuse(
        &mut self,
        stream: u32,
        code: ErrorCode,
        now: Instant,
    ) -> Result<bool, ConnectionError> {
        self.meters.count(Abuse::StreamErrors, now)?;
        self.push_reset(stream, code);
        let state = self.streams.get_mut(&stream);
        Ok(state.is_some_and(|state| !std::mem::replace(&mut state.is_reset, true)))
    }
}
