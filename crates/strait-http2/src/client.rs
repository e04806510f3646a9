//! Client's side of a connection: requests that are sent, and the heads of their responses.

use std::time::Instant;

use crate::connection::{Connection, Event};
use crate::error::{ConnectionError, ErrorCode};
use crate::frame::{STREAM_MAX, number};
use crate::limits::Abuse;
use crate::request::{check_field, check_visible};
use crate::response::Response;
use crate::settings::Side;
use crate::stream::{Awaited, Sending, Stream};

/// Interim responses to one request.
const INTERIM_MAX: usize = 15;
/// Maximum of blocks that a response has: interim heads, the final one, and trailers.
const BLOCKS_MAX: usize = INTERIM_MAX + 2;

impl Connection {
    /// Returns true if another request may be sent now: the server accepts streams, and fewer are
    /// open than both sides allow.
    pub fn can_open(&self) -> bool {
        self.room() > 0
    }

    /// Returns the number of requests that may be sent now.
    pub fn room(&self) -> usize {
        let in_use = |it: &&Stream| !it.is_released;
        let open = self.streams.values().filter(in_use).filter(|it| !it.is_closed()).count();
        // Responses that their users still read take memory as well.
        let of_memory = self.streams.values().filter(in_use).count();
        let of_memory = (self.limits.streams as usize).saturating_sub(of_memory);
        if self.is_leaving() { 0 } else { self.most_streams().saturating_sub(open).min(of_memory) }
    }

    /// Returns the maximum of open streams.
    fn most_streams(&self) -> usize {
        self.limits.streams.min(self.peer.streams) as usize
    }

    /// Returns true if no more requests may ever be sent: one side has ended the connection, or all
    /// numbers of streams are used up.
    pub fn is_leaving(&self) -> bool {
        self.is_closing || self.is_left || self.last_stream >= STREAM_MAX - 2
    }

    /// Resets streams that only wait for their end until another stream may be opened: at the
    /// server they count as open (RFC 9113, section 5.1.2), and it may never end them.
    fn make_room(&mut self) {
        while self.is_full() && self.cut_oldest_released() {}
    }

    /// Returns true if the next request will reset a stream that only waits for its end. The server
    /// counts that as a cancelled request, so a user had better wait for the end a little.
    pub fn opens_by_reset(&self) -> bool {
        self.is_full() && self.streams.values().any(|it| it.is_released)
    }

    /// Returns true if no stream may be opened, those that wait for their end included.
    fn is_full(&self) -> bool {
        let is_open = |it: &&Stream| !it.is_closed();
        self.streams.len() >= self.limits.streams as usize
            || self.streams.values().filter(is_open).count() >= self.most_streams()
    }

    /// Sends the head of a request with these fields: pseudo-header fields first, names in lower
    /// case. `ends` is true if it has no body; `is_head` if the method is HEAD. Call only if
    /// [`Connection::can_open`]. Returns the stream and the length of the frames. Call
    /// [`Connection::release`] at the end of the response, or to cancel the request.
    ///
    /// # Errors
    /// A field is not valid in a request of HTTP/2 (RFC 9113, section 8.2): nothing was sent.
    pub fn open_request<'f>(
        &mut self,
        mut fields: impl Iterator<Item = (&'f [u8], &'f [u8])> + Clone,
        ends: bool,
        is_head: bool,
    ) -> Result<(u32, usize), ConnectionError> {
        fields.clone().try_for_each(|(name, value)| check_sent(name, value))?;
        self.make_room();
        let id = if self.last_stream == 0 { 1 } else { self.last_stream + 2 };
        self.last_stream = id;
        let response = Some(Awaited { is_to_head: is_head, has_head: false, interim: 0 });
        let stream = Stream { response, ..self.new_stream(Sending::Head) };
        self.streams.insert(id, stream);
        self.meters.opened();
        self.meters.asked();
        let next = if ends { Sending::Done } else { Sending::Body };
        let len = self.push_head(id, &[], fields.by_ref(), ends, next);
        Ok((id, len))
    }

    /// Handles a header block of a response.
    pub(crate) fn head_of_response<'b>(
        &mut self,
        id: u32,
        is_last: bool,
        now: Instant,
    ) -> Result<Option<Event<'b>>, ConnectionError> {
        if self.is_idle(id) {
            return Err(ConnectionError::protocol("HEADERS on an idle stream"));
        }
        let is_reset = self.reset_here.contains(&id);
        let Some(stream) = self.streams.get_mut(&id).filter(|_| !is_reset) else {
            // The server may not know yet that the stream is reset. A block costs work, so those
            // beyond the blocks of the given up requests are counted.
            match self.late_blocks.checked_sub(1) {
                Some(left) => self.late_blocks = left,
                None => self.meters.count(Abuse::StreamErrors, now)?,
            }
            return Ok(None);
        };
        let awaited = stream.response.filter(|it| !it.has_head && stream.receives && !stream.is_reset);
        let Some(awaited) = awaited else { return self.end_by_trailers(id, is_last, now) };
        let parsed = Response::parse(&self.list).ok().filter(|_| !self.list.is_over());
        match parsed.and_then(|response| after_head(&response, awaited, is_last)) {
            None => self.refuse(id, ErrorCode::Protocol, now),
            // A limit of one request must not end the others.
            Some(After::Interim(interim)) if interim > INTERIM_MAX => {
                self.refuse(id, ErrorCode::EnhanceYourCalm, now)
            }
            Some(After::Interim(interim)) => {
                stream.response = Some(Awaited { interim, ..awaited });
                Ok(Some(Event::Response { stream: id, is_last: false }))
            }
            Some(After::Content(content_left)) => {
                stream.response = Some(Awaited { has_head: true, ..awaited });
                (stream.content_left, stream.receives) = (content_left, !is_last);
                Ok(Some(Event::Response { stream: id, is_last }))
            }
        }
    }

    /// Notes a request that is given up before its response has ended: blocks of it may be under
    /// way.
    pub(crate) fn note_given_up(&mut self, stream: u32) {
        let is_open = |it: &Stream| it.response.is_some() && it.receives && !it.is_reset;
        if self.streams.get(&stream).is_some_and(is_open) {
            self.late_blocks = self.late_blocks.saturating_add(BLOCKS_MAX);
        }
    }

    /// Handles GOAWAY. That of a client ends no request.
    pub(crate) fn left_by_peer<'b>(&mut self, payload: &[u8]) -> Option<Event<'b>> {
        self.is_left = true;
        let last_stream = number(payload).unwrap_or(0) & STREAM_MAX;
        (self.side == Side::Client).then_some(Event::GoAway { last_stream })
    }
}

/// Checks a field of a request that is sent: an invalid one could become another request at a
/// server that speaks HTTP/1.1 behind the origin.
fn check_sent(name: &[u8], value: &[u8]) -> Result<(), ConnectionError> {
    let checked = match name {
        [b':', ..] => check_visible(value),
        _ => check_field(name, value),
    };
    checked.map_err(ConnectionError::protocol)
}

/// Expected part of a response after a head.
enum After {
    /// Another head, after that many interim responses.
    Interim(usize),
    /// Content, of that length if it is known.
    Content(Option<u64>),
}

/// Returns the part after a head; `None` if the head is malformed.
fn after_head(response: &Response<'_>, awaited: Awaited, is_last: bool) -> Option<After> {
    if response.is_interim() {
        return (!is_last).then_some(After::Interim(awaited.interim + 1));
    }
    // RFC 9110 s6.4.1: the length is that of another response.
    if awaited.is_to_head || matches!(response.status, 204 | 304) {
        return Some(After::Content(Some(0)));
    }
    let is_cut = is_last && response.content_length.is_some_and(|length| length > 0);
    (!is_cut).then_some(After::Content(response.content_length))
}
