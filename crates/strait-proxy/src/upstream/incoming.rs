//! Response of an origin after its head was read, and the connection that its body comes from.

use std::time::Instant;

use strait_http::framing::BodyFraming;
use strait_http::head::{OwnedResponse, Response};

use crate::io::buffer::Buffer;
use crate::io::framing::Framed;
use crate::upstream::pool::{Connection, Upstream};
use crate::upstream::uploading::Uploading;

/// Response with a complete head.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) connection: Box<Connection>,
    pub(crate) head: OwnedResponse,
    pub(crate) status: u16,
    pub(crate) body: BodyFraming,
    pub(crate) framed: Framed,
    /// Times of request and receipt, in seconds since 1970.
    pub(crate) requested: u64,
    pub(crate) received: u64,
    /// Time at which the head of the request was written, if its pool compares the times of
    /// servers.
    pub(crate) asked: Option<Instant>,
    /// True if the connection can carry another request.
    pub(crate) keeps_alive: bool,
    /// Value of Set-Cookie for the client of this request: the cookie of a sticky pool. It is no
    /// field of the response, so that it is never stored.
    pub(crate) set_cookie: Option<String>,
    /// Body of the request, if it is still being sent.
    pub(crate) uploading: Option<Box<Uploading>>,
}

impl Incoming {
    /// Returns its head.
    pub(crate) fn response(&self) -> Response<'_> {
        self.head.response()
    }

    /// Returns true for an interim response. 101 is final.
    pub(crate) fn is_interim(&self) -> bool {
        matches!(self.status, 100 | 102..=199)
    }

    /// Returns a body of `len` bytes that are in the buffer, and keeps the connection for another
    /// request.
    pub(crate) fn finish_with_body(mut self, len: usize, upstream: &Upstream<'_>) -> Buffer {
        let mut body = std::mem::take(&mut self.connection.buffer);
        // Bytes after the response belong to no request.
        self.keeps_alive &= body.filled().len() == len;
        body.truncate(len);
        self.finish(upstream);
        body
    }

    /// Keeps the connection for another request, after the whole body was read.
    pub(crate) fn finish(self, upstream: &Upstream<'_>) {
        upstream.heads.give_back(self.head.into_memory());
        if self.keeps_alive {
            self.connection.keep(upstream);
        }
    }
}
