//! Response of an origin with its head read, and the connection that brings its body.

use strait_http::framing::Body;
use strait_http::head::{Kept, Response};

use crate::io::framing::Framed;
use crate::upstream::pool::{Connection, Upstream};

/// A response of which the head is there.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) connection: Box<Connection>,
    pub(crate) head: Kept,
    pub(crate) status: u16,
    pub(crate) body: Body,
    pub(crate) framed: Framed,
    /// When it was asked for and when it came.
    pub(crate) requested: u64,
    pub(crate) received: u64,
    /// The connection may carry another request behind it.
    pub(crate) keeps_alive: bool,
}

impl Incoming {
    /// Its head.
    pub(crate) fn response(&self) -> Response<'_> {
        self.head.response()
    }

    /// Whether another response follows. 101 is the last of its connection.
    pub(crate) fn is_interim(&self) -> bool {
        matches!(self.status, 100 | 102..=199)
    }

    /// Keeps the connection, all of the body being read.
    pub(crate) fn finish(self, upstream: &Upstream<'_>) {
        if self.keeps_alive {
            self.connection.keep(upstream);
        }
    }
}
