//! State of one stream.

use crate::priority::Priority;

/// State of the response.
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
    /// True until the client ends its request.
    pub(crate) receives: bool,
    pub(crate) sending: Sending,
    /// True after RST_STREAM in either direction.
    pub(crate) is_reset: bool,
    /// Bytes that may be sent. Negative if the client has reduced the window.
    pub(crate) send_window: i64,
    /// Bytes that the client may send.
    pub(crate) receive_window: i64,
    /// Bytes that were consumed, and are not announced yet.
    pub(crate) consumed: u32,
    /// Bytes of the body left by Content-Length.
    pub(crate) content_left: Option<u64>,
    pub(crate) priority: Priority,
    /// True if its user waits for its turn to send.
    pub(crate) wants: bool,
    /// Number of its last turn.
    pub(crate) turn: u64,
}

impl Stream {
    /// Returns true if the protocol allows no more frames but WINDOW_UPDATE and PRIORITY.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_reset || (!self.receives && self.sending == Sending::Done)
    }
}
