//! State of one stream.

use crate::priority::{Parameters, Priority};

/// State of the message that is sent on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// No final head was sent.
    Head,
    Body,
    /// END_STREAM was sent.
    Done,
}

/// Stream from its request's head until its user releases it.
#[derive(Debug)]
pub(crate) struct Stream {
    /// True until the peer ends its message.
    pub(crate) receives: bool,
    /// Response to a request that was sent on the stream; `None` at the server's side.
    pub(crate) response: Option<Awaited>,
    /// True if its user has the whole content, and only the end of the stream is missing.
    pub(crate) is_released: bool,
    pub(crate) sending: Sending,
    /// True after RST_STREAM in either direction.
    pub(crate) is_reset: bool,
    /// Bytes that may be sent. Negative if the peer has reduced the window.
    pub(crate) send_window: i64,
    /// Bytes that the peer may send.
    pub(crate) receive_window: i64,
    /// Bytes that were consumed, and are not announced yet.
    pub(crate) consumed: u32,
    /// Bytes of the body left by Content-Length.
    pub(crate) content_left: Option<u64>,
    pub(crate) priority: Priority,
    /// Parameters of the response, which replace those of the client.
    pub(crate) of_response: Parameters,
    /// True while its user waits for its turn to send DATA.
    pub(crate) wants_turn: bool,
    /// Number of its last turn.
    pub(crate) turn: u64,
}

/// Response that a client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Awaited {
    /// True if it answers HEAD: it has no content.
    pub(crate) is_to_head: bool,
    /// True once its final head was received.
    pub(crate) has_head: bool,
    /// Interim responses so far.
    pub(crate) interim: usize,
}

impl Stream {
    /// Returns true if the protocol allows no more frames but WINDOW_UPDATE and PRIORITY.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_reset || (!self.receives && self.sending == Sending::Done)
    }

    /// Returns true if its user waits for its turn, and it may send.
    pub(crate) fn is_waiting(&self) -> bool {
        self.wants_turn && self.sending == Sending::Body && !self.is_reset && self.send_window > 0
    }
}
