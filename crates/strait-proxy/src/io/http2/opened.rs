//! Request of a client that has no user yet: it is answered at once, or gets a stream.
//!
//! A response at once takes no task and no memory of its own. It must not overtake: no stream waits
//! for its turn or for room, and the whole response goes into the output.

use std::sync::MutexGuard;
use std::task::{Context, Waker};
use std::time::Instant;

use strait_http::head;

use crate::io::http2::link::{Link, OUTPUT_BYTES, Opening, State};
use crate::io::http2::records::RECORD_BYTES;
use crate::io::http2::slot::Slot;
use crate::io::http2::stream::Http2Stream;
use crate::io::http2::translate::{TargetForm, as_parsed, write_request};
use crate::io::moved::Moved;

/// Request of a client.
#[derive(Debug)]
pub(crate) struct Opened {
    link: Link,
    opening: Opening,
    form: TargetForm,
    is_encrypted: bool,
    is_encrypted_here: bool,
    /// Time at which its head was received.
    pub(crate) received: Instant,
}

impl Opened {
    pub(super) fn new(link: Link, opening: Opening, state: &State) -> Self {
        let (is_encrypted, is_encrypted_here) =
            (state.transport.is_encrypted(), state.transport.is_encrypted_here());
        let State { form, received, .. } = *state;
        Self { link, opening, form, is_encrypted, is_encrypted_here, received }
    }

    pub(crate) fn id(&self) -> u32 {
        self.opening.id
    }

    /// Returns true if its connection uses TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Returns the version of TLS, if its connection uses it.
    pub(crate) fn tls_version(&self) -> Option<&'static str> {
        self.link.state().transport.tls_version()
    }

    /// Returns true if it has no body, and no stream waits.
    pub(crate) fn may_be_answered(&self) -> bool {
        self.opening.is_last && !self.link.state().has_waiting()
    }

    /// Returns its head, as a stream's user would read it; `None` if the request begins a tunnel,
    /// or if only its text has that form.
    pub(crate) fn request(&self) -> Option<head::Request<'_>> {
        as_parsed(&self.opening.head.request(), self.opening.method, self.form)
    }

    /// Returns room for a whole response with a body of `len` bytes; `None` if it would have to
    /// wait.
    pub(crate) fn room(&self, len: usize) -> Option<Room<'_>> {
        let mut state = self.link.state();
        let has_room = state.has_room_at_once(self.opening.id, len);
        has_room.then_some(Room { state, id: self.opening.id, is_encrypted_here: self.is_encrypted_here })
    }

    /// Ends the use of a request that was answered.
    pub(crate) fn end(self) {
        self.link.state().protocol.give_back(self.opening.head);
    }

    /// Gives the request back: its client may send it again.
    pub(crate) fn refuse(self) {
        let state = &mut *self.link.state();
        state.refuse_unprocessed(self.opening.id);
        state.protocol.release(self.opening.id);
        state.protocol.give_back(self.opening.head);
    }

    /// Returns a stream for its user, who reads the text of the request.
    pub(crate) fn into_stream(self) -> Http2Stream {
        let Opening { id, method, is_last, head } = self.opening;
        let state = &mut *self.link.state();
        let mut slot = Slot { is_ended: is_last, ..Slot::default() };
        let text = &mut slot.received.bytes;
        slot.is_chunked = write_request(text, &head.request(), method, self.form, !is_last);
        slot.note_head(0);
        state.slots.insert(id, slot);
        state.protocol.give_back(head);
        Http2Stream::new(self.link.clone(), id, method, (self.is_encrypted, self.is_encrypted_here))
    }
}

/// Room for a whole response on a stream. The connection is locked, so that nothing takes it.
pub(crate) struct Room<'o> {
    state: MutexGuard<'o, State>,
    id: u32,
    is_encrypted_here: bool,
}

impl Room<'_> {
    /// Sends a response with a head that is encoded in `block`, and a body of the length for which
    /// there is room. Returns the bytes of its frames.
    pub(crate) fn send(mut self, block: &[u8], body: &[u8]) -> Moved {
        let (id, ends, protocol) = (self.id, body.is_empty(), &mut self.state.protocol);
        let mut overhead = protocol.respond_known(id, block, std::iter::empty(), ends);
        if !ends {
            overhead += protocol.push_data(id, body, true);
        }
        protocol.release(id);
        let mut moved = Moved::default();
        moved.add(body.len(), overhead, self.is_encrypted_here);
        moved
    }
}

impl State {
    /// Returns true if a whole response with a body of `len` bytes may be sent on a stream now.
    /// Sends the output first if it is too full.
    fn has_room_at_once(&mut self, id: u32, len: usize) -> bool {
        let is_open = !self.is_over && self.protocol.is_open(id);
        let has_window = self.protocol.window_after_head(id) >= len;
        // Long data becomes records without a copy into the output.
        let is_for_records = self.transport.is_encrypted_here() && len >= RECORD_BYTES;
        if !is_open || !has_window || is_for_records || self.has_waiting() {
            return false;
        }
        // The rest of the received bytes may have requests that are more urgent.
        if self.queued() + len > OUTPUT_BYTES && !self.protocol.has_priorities() {
            // The connection's task sends again before it waits, and gets the error then.
            let _ = self.poll_flush(&mut Context::from_waker(Waker::noop()));
        }
        self.queued() + len <= OUTPUT_BYTES
    }
}
