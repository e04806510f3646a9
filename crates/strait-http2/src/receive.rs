//! Input of a connection: frames become events (RFC 9113, sections 5 and 6).

use std::time::Instant;

use crate::connection::{Block, Connection, Event};
use crate::error::{ConnectionError, ErrorCode};
use crate::frame::{FRAME_BYTES, FRAME_HEAD_BYTES, Head, PREFACE, flag, kind, number, push_go_away};
use crate::hpack::HpackError;
use crate::limits::Abuse;
use crate::priority::{Parameters, Priority};
use crate::request::{Request, check_trailers};
use crate::settings::{Side, increment, widened};
use crate::stream::{Sending, Stream};

/// DATA frames with fewer bytes than this, and without the end of a request, are counted.
const SMALL_DATA_BYTES: usize = 256;
/// CONTINUATION frames of one header block. Clients need one for each 16 KiB.
const CONTINUATIONS_MAX: usize = 8;

/// Position in the input.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reading {
    Preface,
    Head,
    /// Payload of a frame other than DATA.
    Payload(Head),
    /// Length of the padding of a DATA frame.
    Padding(Head),
    /// Payload of a DATA frame.
    Data(Data),
}

/// Rest of a DATA frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Data {
    /// Stream; 0 if the data is discarded.
    stream: u32,
    left: usize,
    padding: usize,
    ends: bool,
}

type Step<'b> = Result<(usize, Option<Event<'b>>), ConnectionError>;

impl Connection {
    /// Processes received bytes. Returns the number of used ones, and an event if there is one; 0
    /// and no event if more bytes are needed.
    ///
    /// # Errors
    /// The connection must end, after the output was sent.
    pub fn next<'b>(&mut self, now: Instant, bytes: &'b [u8]) -> Step<'b> {
        let step = self.step(now, bytes);
        if let Err(error) = &step {
            let last_stream = self.last_of_peer();
            push_go_away(&mut self.output, last_stream, error.code, error.why);
        }
        step
    }

    fn step<'b>(&mut self, now: Instant, bytes: &'b [u8]) -> Step<'b> {
        let mut used = 0;
        loop {
            if self.output.len() > self.limits.output_bytes {
                return Err(Abuse::Output.into());
            }
            let rest = bytes.get(used..).unwrap_or_default();
            let (more, event) = match self.reading {
                Reading::Preface => (self.preface(rest)?, None),
                Reading::Head => (self.head(rest)?, None),
                Reading::Payload(head) => self.payload(head, rest, now)?,
                Reading::Padding(head) => self.padding(head, rest, now)?,
                Reading::Data(data) => self.data(data, rest),
            };
            used += more;
            if event.is_some() || more == 0 {
                return Ok((used, event));
            }
        }
    }

    fn preface(&mut self, bytes: &[u8]) -> Result<usize, ConnectionError> {
        if !PREFACE.starts_with(bytes.get(..PREFACE.len()).unwrap_or(bytes)) {
            return Err(ConnectionError::protocol("not the preface of HTTP/2"));
        }
        if bytes.len() < PREFACE.len() {
            return Ok(0);
        }
        self.reading = Reading::Head;
        Ok(PREFACE.len())
    }

    fn head(&mut self, bytes: &[u8]) -> Result<usize, ConnectionError> {
        let Some(bytes) = bytes.first_chunk() else { return Ok(0) };
        let head = Head::parse(*bytes);
        if head.len > FRAME_BYTES {
            return Err(ConnectionError::new(ErrorCode::FrameSize, "a frame of more than 16384 bytes"));
        }
        if !self.has_settings && (head.kind != kind::SETTINGS || head.has(flag::ACK)) {
            return Err(ConnectionError::protocol("a first frame other than SETTINGS"));
        }
        if self.block.stream != 0 && (head.kind, head.stream) != (kind::CONTINUATION, self.block.stream) {
            return Err(ConnectionError::protocol("a frame between HEADERS and CONTINUATION"));
        }
        self.payload.clear();
        self.reading = match head.kind {
            kind::DATA => Reading::Padding(head),
            _ => Reading::Payload(head),
        };
        Ok(FRAME_HEAD_BYTES)
    }

    fn payload<'b>(&mut self, head: Head, bytes: &[u8], now: Instant) -> Step<'b> {
        let missing = head.len - self.payload.len();
        let part = bytes.get(..missing).unwrap_or(bytes);
        self.payload.extend_from_slice(part);
        if part.len() < missing {
            return Ok((part.len(), None));
        }
        self.reading = Reading::Head;
        let payload = std::mem::take(&mut self.payload);
        let event = self.frame(head, &payload, now);
        self.payload = payload;
        Ok((part.len(), event?))
    }

    fn frame<'b>(
        &mut self,
        head: Head,
        payload: &[u8],
        now: Instant,
    ) -> Result<Option<Event<'b>>, ConnectionError> {
        match head.kind {
            kind::HEADERS => self.headers(head, payload, now),
            kind::CONTINUATION => self.continuation(head, payload, now),
            kind::PRIORITY => self.priority(head, payload, now),
            kind::RST_STREAM => self.reset_by_peer(head, payload, now),
            kind::SETTINGS => self.settings(head, payload, now).map(|()| None),
            kind::PING => self.ping(head, payload, now).map(|()| None),
            kind::GOAWAY if head.stream != 0 => Err(ConnectionError::protocol("GOAWAY on a stream")),
            kind::GOAWAY if head.len < 8 => Err(size("GOAWAY of a wrong length")),
            kind::GOAWAY => Ok(self.left_by_peer(payload)),
            kind::WINDOW_UPDATE => self.window_update(head, payload, now),
            kind::PRIORITY_UPDATE => self.priority_update(head, payload, now).map(|()| None),
            // Servers were told not to push (RFC 9113, section 8.4).
            kind::PUSH_PROMISE => Err(ConnectionError::protocol("PUSH_PROMISE, which is not accepted")),
            _ => {
                self.meters.count(Abuse::Unknown, now)?;
                Ok(None)
            }
        }
    }

    /// Checks a DATA frame, and reads the length of its padding.
    fn padding<'b>(&mut self, head: Head, bytes: &'b [u8], now: Instant) -> Step<'b> {
        let (used, padding) = match bytes.first() {
            _ if !head.has(flag::PADDED) => (0, 0),
            // The byte that is missing is the one for the length itself.
            _ if head.len == 0 => return Err(size("padding in an empty frame")),
            None => return Ok((0, None)),
            Some(padding) => (1, usize::from(*padding)),
        };
        let left = head.len - used;
        if head.stream == 0 || padding > left {
            return Err(ConnectionError::protocol("DATA on stream 0, or with too much padding"));
        }
        let ends = head.has(flag::END_STREAM);
        if left - padding < SMALL_DATA_BYTES && !ends {
            self.meters.count(Abuse::SmallData, now)?;
        }
        self.meters.received(head.len);
        self.receive_window -= head.len as i64;
        if self.receive_window < 0 {
            return Err(ConnectionError::new(ErrorCode::FlowControl, "DATA beyond the connection's window"));
        }
        let (stream, event) = self.accept_data(head, left - padding, now)?;
        self.note_data(head.len);
        // Padding and discarded data have no user.
        self.consumed(stream, head.len - if stream == 0 { 0 } else { left - padding });
        self.reading = Reading::Data(Data { stream, left: left - padding, padding, ends });
        if event.is_some() {
            if left == 0 {
                self.reading = Reading::Head;
            }
            return Ok((used, event));
        }
        let (more, event) = match self.reading {
            Reading::Data(data) => self.data(data, bytes.get(used..).unwrap_or_default()),
            _ => (0, None),
        };
        Ok((used + more, event))
    }

    /// Checks a DATA frame against the state of its stream. Returns the stream, or 0 if the data is
    /// discarded.
    fn accept_data<'b>(
        &mut self,
        head: Head,
        len: usize,
        now: Instant,
    ) -> Result<(u32, Option<Event<'b>>), ConnectionError> {
        let id = head.stream;
        let Some(stream) = self.streams.get_mut(&id) else {
            if self.is_idle(id) {
                return Err(ConnectionError::protocol("DATA on an idle stream"));
            }
            // At the client's side the stream was released here, and its server may not know yet.
            if self.side == Side::Server && !self.reset_here.contains(&id) {
                self.refuse(id, ErrorCode::StreamClosed, now)?;
            }
            return Ok((0, None));
        };
        if stream.is_reset && self.reset_here.contains(&id) {
            return Ok((0, None));
        }
        stream.receive_window -= head.len as i64;
        let is_over = stream
            .content_left
            .is_some_and(|left| len as u64 > left || (head.has(flag::END_STREAM) && (len as u64) < left));
        let code = if stream.is_reset || !stream.receives {
            ErrorCode::StreamClosed
        } else if stream.response.is_some_and(|response| !response.has_head) {
            ErrorCode::Protocol
        } else if stream.receive_window < 0 {
            ErrorCode::FlowControl
        } else if is_over {
            ErrorCode::Protocol
        } else {
            stream.content_left = stream.content_left.map(|left| left - len as u64);
            stream.receives = !head.has(flag::END_STREAM);
            if stream.is_released && !stream.receives {
                self.forget(id);
                return Ok((0, None));
            }
            return Ok((if stream.is_released { 0 } else { id }, None));
        };
        Ok((0, self.refuse(id, code, now)?))
    }

    /// Passes data on.
    fn data<'b>(&mut self, data: Data, bytes: &'b [u8]) -> (usize, Option<Event<'b>>) {
        let part = bytes.get(..data.left).unwrap_or(bytes);
        let left = data.left - part.len();
        if left > 0 {
            self.reading = Reading::Data(Data { left, ..data });
        } else if data.padding > 0 {
            let padding = Data { stream: 0, left: data.padding, padding: 0, ends: false };
            self.reading = Reading::Data(padding);
        } else {
            self.reading = Reading::Head;
        }
        let is_last = data.ends && left == 0;
        let is_event = data.stream != 0 && (!part.is_empty() || is_last);
        (part.len(), is_event.then_some(Event::Body { stream: data.stream, bytes: part, is_last }))
    }

    fn headers<'b>(
        &mut self,
        head: Head,
        payload: &[u8],
        now: Instant,
    ) -> Result<Option<Event<'b>>, ConnectionError> {
        if head.stream == 0 {
            return Err(ConnectionError::protocol("HEADERS on stream 0"));
        }
        let mut block = payload;
        if head.has(flag::PADDED) {
            let (padding, rest) = block.split_first().ok_or(size("HEADERS of a wrong length"))?;
            let len = rest.len().checked_sub(usize::from(*padding));
            let len = len.ok_or(ConnectionError::protocol("HEADERS with too much padding"))?;
            block = rest.get(..len).unwrap_or_default();
        }
        if head.has(flag::PRIORITY) {
            let (dependency, rest) = block.split_at_checked(5).ok_or(size("HEADERS of a wrong length"))?;
            check_dependency(head.stream, dependency)?;
            block = rest;
        }
        let is_last = head.has(flag::END_STREAM);
        self.block.bytes.clear();
        self.block.bytes.extend_from_slice(block);
        (self.block.stream, self.block.is_last, self.block.frames) = (head.stream, is_last, 0);
        self.end_of_block(head, now)
    }

    fn continuation<'b>(
        &mut self,
        head: Head,
        payload: &[u8],
        now: Instant,
    ) -> Result<Option<Event<'b>>, ConnectionError> {
        if self.block.stream == 0 {
            return Err(ConnectionError::protocol("CONTINUATION without HEADERS"));
        }
        self.block.frames += 1;
        // A valid block may be longer than its list, but not by much: 32 bytes of each field count
        // for the list alone.
        let is_over = self.block.bytes.len() + payload.len() > self.limits.head_bytes.saturating_mul(2);
        if self.block.frames > CONTINUATIONS_MAX || is_over {
            return Err(Abuse::Continuation.into());
        }
        self.block.bytes.extend_from_slice(payload);
        self.end_of_block(head, now)
    }

    /// Decodes a complete block.
    fn end_of_block<'b>(&mut self, head: Head, now: Instant) -> Result<Option<Event<'b>>, ConnectionError> {
        if !head.has(flag::END_HEADERS) {
            return Ok(None);
        }
        let id = std::mem::take(&mut self.block.stream);
        self.is_checked = false;
        let Block { bytes, is_last, .. } = &self.block;
        let (decoded, is_last) = (self.decoder.decode(bytes, &mut self.list), *is_last);
        // A long block must not keep its memory for the life of the connection.
        self.block.bytes.shrink_to(1024);
        decoded.map_err(|error| match error {
            HpackError::Bomb => Abuse::Hpack.into(),
            _ => ConnectionError::new(ErrorCode::Compression, "a header block cannot be decoded"),
        })?;
        match (self.side, self.is_idle(id)) {
            (Side::Server, true) => self.open(id, is_last, now),
            (Side::Server, false) => self.end_by_trailers(id, is_last, now),
            (Side::Client, _) => self.head_of_response(id, is_last, now),
        }
    }

    /// Begins a stream.
    fn open<'b>(
        &mut self,
        id: u32,
        is_last: bool,
        now: Instant,
    ) -> Result<Option<Event<'b>>, ConnectionError> {
        if id.is_multiple_of(2) {
            return Err(ConnectionError::protocol("a stream of a client with an even number"));
        }
        self.last_stream = id;
        let limit = self.limits.streams as usize;
        // Counted only if there can be as many.
        let active = || self.streams.values().filter(|stream| !stream.is_closed()).count();
        let is_full = self.streams.len() >= limit && active() >= limit;
        // A stream that the client has reset counts until its user releases it: otherwise a client
        // could cause any number of requests at once (CVE-2023-44487). Twice the limit admits the
        // next requests of a client that are sent before its last ones are released.
        if self.is_closing || is_full || self.streams.len() >= 2 * limit {
            self.refuse(id, ErrorCode::RefusedStream, now)?;
            return Ok(None);
        }
        let (priority, content_length) = match Request::parse(&self.list) {
            _ if self.list.is_over() => (Priority::default(), None),
            Ok(request) if request.protocol.is_some() && !self.limits.takes_websockets => {
                self.refuse(id, ErrorCode::Protocol, now)?;
                return Ok(None);
            }
            Ok(request) if is_last && request.content_length.is_some_and(|length| length > 0) => {
                self.refuse(id, ErrorCode::Protocol, now)?;
                return Ok(None);
            }
            Ok(request) => (request.priority(), request.content_length),
            Err(_) => {
                self.refuse(id, ErrorCode::Protocol, now)?;
                return Ok(None);
            }
        };
        self.meters.opened();
        self.has_priorities |= priority != Priority::default();
        let stream = Stream {
            receives: !is_last,
            content_left: content_length,
            priority,
            ..self.new_stream(Sending::Head)
        };
        self.streams.insert(id, stream);
        let is_over = self.list.is_over();
        self.is_checked = !is_over;
        let request = Event::Request { stream: id, is_last };
        Ok(Some(if is_over { Event::TooLarge { stream: id } } else { request }))
    }

    pub(crate) fn new_stream(&self, sending: Sending) -> Stream {
        Stream {
            receives: true,
            response: None,
            is_released: false,
            sending,
            is_reset: false,
            send_window: i64::from(self.peer.window),
            receive_window: i64::from(self.limits.stream_window),
            consumed: 0,
            content_left: None,
            priority: Priority::default(),
            of_response: Parameters::default(),
            wants_turn: false,
            turn: self.turns,
        }
    }

    /// Handles a second header block of a stream.
    pub(crate) fn end_by_trailers<'b>(
        &mut self,
        id: u32,
        is_last: bool,
        now: Instant,
    ) -> Result<Option<Event<'b>>, ConnectionError> {
        let is_valid = is_last && check_trailers(&self.list).is_ok() && !self.list.is_over();
        let code = match self.streams.get_mut(&id) {
            _ if self.reset_here.contains(&id) => return Ok(None),
            None => return Err(ConnectionError::new(ErrorCode::StreamClosed, "HEADERS on a closed stream")),
            Some(stream) if stream.is_reset || !stream.receives => ErrorCode::StreamClosed,
            Some(stream) if is_valid && stream.content_left.is_none_or(|left| left == 0) => {
                stream.receives = false;
                let is_released = stream.is_released;
                if is_released {
                    self.forget(id);
                }
                return Ok((!is_released).then_some(Event::Trailers { stream: id }));
            }
            Some(_) => ErrorCode::Protocol,
        };
        self.refuse(id, code, now)
    }

    /// PRIORITY is deprecated: checked and ignored.
    fn priority<'b>(
        &mut self,
        head: Head,
        payload: &[u8],
        now: Instant,
    ) -> Result<Option<Event<'b>>, ConnectionError> {
        self.meters.count(Abuse::Priority, now)?;
        if head.stream == 0 {
            return Err(ConnectionError::protocol("PRIORITY on stream 0"));
        }
        if payload.len() != 5 {
            return self.refuse(head.stream, ErrorCode::FrameSize, now);
        }
        check_dependency(head.stream, payload)?;
        Ok(None)
    }

    /// RFC 9218 s7.1.
    fn priority_update(&mut self, head: Head, payload: &[u8], now: Instant) -> Result<(), ConnectionError> {
        self.meters.count(Abuse::Priority, now)?;
        if self.side == Side::Client {
            return Err(ConnectionError::protocol("PRIORITY_UPDATE from a server"));
        }
        let (id, value) = payload.split_at_checked(4).ok_or(size("PRIORITY_UPDATE of a wrong length"))?;
        let id = number(id).unwrap_or(0) & crate::frame::STREAM_MAX;
        if head.stream != 0 || id == 0 {
            return Err(ConnectionError::protocol("PRIORITY_UPDATE on a stream, or for none"));
        }
        self.has_priorities = true;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.priority = stream.of_response.over(Priority::parse(value));
        }
        Ok(())
    }

    fn reset_by_peer<'b>(
        &mut self,
        head: Head,
        payload: &[u8],
        now: Instant,
    ) -> Result<Option<Event<'b>>, ConnectionError> {
        if payload.len() != 4 {
            return Err(size("RST_STREAM of a wrong length"));
        }
        if self.is_idle(head.stream) || head.stream == 0 {
            return Err(ConnectionError::protocol("RST_STREAM on an idle stream"));
        }
        let code = number(payload).unwrap_or(0);
        let stream = self.streams.get_mut(&head.stream);
        let had_user = stream.is_some_and(|stream| !std::mem::replace(&mut stream.is_reset, true));
        // A server cancels only what a client has begun.
        if self.side == Side::Server || !had_user {
            self.meters.count(Abuse::RapidReset, now)?;
        }
        // A response that is not sent yet must not pay for its own reset.
        if self.side == Side::Server && !had_user && head.stream >= self.first_unsent {
            self.meters.count(Abuse::RapidReset, now)?;
        }
        self.note_waiting(head.stream);
        self.forget_released(head.stream);
        Ok(had_user.then_some(Event::Reset { stream: head.stream, code }))
    }

    fn settings(&mut self, head: Head, payload: &[u8], now: Instant) -> Result<(), ConnectionError> {
        self.meters.count(Abuse::Settings, now)?;
        if head.stream != 0 {
            return Err(ConnectionError::protocol("SETTINGS on a stream"));
        }
        if head.has(flag::ACK) {
            return if payload.is_empty() { Ok(()) } else { Err(size("SETTINGS with ACK and a payload")) };
        }
        let before = self.peer.window;
        self.peer.apply(payload, self.side)?;
        let more = i64::from(self.peer.window) - i64::from(before);
        for stream in self.streams.values_mut() {
            stream.send_window = widened(stream.send_window, more)
                .ok_or(ConnectionError::new(ErrorCode::FlowControl, "a window of more than 2^31 - 1"))?;
        }
        self.note_all_waiting();
        self.has_settings = true;
        self.output.extend_from_slice(&Head::new(0, kind::SETTINGS, flag::ACK, 0).bytes());
        Ok(())
    }

    fn ping(&mut self, head: Head, payload: &[u8], now: Instant) -> Result<(), ConnectionError> {
        self.meters.count(Abuse::Ping, now)?;
        if head.stream != 0 {
            return Err(ConnectionError::protocol("PING on a stream"));
        }
        if payload.len() != 8 {
            return Err(size("PING of a wrong length"));
        }
        if !head.has(flag::ACK) {
            self.output.extend_from_slice(&Head::new(8, kind::PING, flag::ACK, 0).bytes());
            self.output.extend_from_slice(payload);
        }
        Ok(())
    }

    fn window_update<'b>(
        &mut self,
        head: Head,
        payload: &[u8],
        now: Instant,
    ) -> Result<Option<Event<'b>>, ConnectionError> {
        self.meters.count(Abuse::WindowUpdate, now)?;
        let more = increment(payload).ok_or(size("WINDOW_UPDATE of a wrong length"))?;
        if head.stream == 0 {
            if more == 0 {
                return Err(ConnectionError::protocol("WINDOW_UPDATE by 0"));
            }
            self.send_window = widened(self.send_window, i64::from(more))
                .ok_or(ConnectionError::new(ErrorCode::FlowControl, "a window of more than 2^31 - 1"))?;
            return Ok(None);
        }
        if self.is_idle(head.stream) {
            return Err(ConnectionError::protocol("WINDOW_UPDATE on an idle stream"));
        }
        let Some(stream) = self.streams.get_mut(&head.stream).filter(|stream| !stream.is_reset) else {
            return Ok(None);
        };
        let wider = widened(stream.send_window, i64::from(more)).filter(|_| more > 0);
        if let Some(wider) = wider {
            stream.send_window = wider;
            self.note_waiting(head.stream);
            return Ok(None);
        }
        let code = if more == 0 { ErrorCode::Protocol } else { ErrorCode::FlowControl };
        self.refuse(head.stream, code, now)
    }

    pub(crate) fn is_idle(&self, stream: u32) -> bool {
        // Servers open no streams: push is disabled.
        stream > self.last_stream || (self.side == Side::Client && stream.is_multiple_of(2))
    }
}

fn size(why: &'static str) -> ConnectionError {
    ConnectionError::new(ErrorCode::FrameSize, why)
}

/// RFC 9113 s5.3.2 keeps the format of RFC 7540, section 5.3.1, where a stream cannot depend on
/// itself.
fn check_dependency(stream: u32, payload: &[u8]) -> Result<(), ConnectionError> {
    match number(payload).map(|dependency| dependency & crate::frame::STREAM_MAX) {
        Some(dependency) if dependency != stream => Ok(()),
        _ => Err(ConnectionError::protocol("a stream that depends on itself")),
    }
}
