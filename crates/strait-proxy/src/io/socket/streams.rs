//! Sockets that are streams of HTTP/2 connections.

use crate::io::carrier::Carrier;
use crate::io::http2::link::Link;
use crate::io::http2::origin_stream::OriginStream;
use crate::io::http2::stream::StreamEnd;
use crate::io::socket::Socket;

impl Socket {
    /// Returns true for a request to an origin by HTTP/2.
    pub(crate) fn is_origin_stream(&self) -> bool {
        matches!(self.stream, Carrier::Origin(_))
    }

    /// Returns the connection of a request to an origin by HTTP/2.
    pub(crate) fn link_to_origin(&self) -> Option<Link> {
        match &self.stream {
            Carrier::Origin(stream) => Some(stream.link()),
            Carrier::Connection(_) | Carrier::Http2(_) => None,
        }
    }

    /// Returns a socket that reads the request of a client's stream, while this one sends the
    /// response; `None` for a connection.
    pub(crate) fn split_request(&self) -> Option<Self> {
        let reader = self.stream.http2()?.reader();
        Some(Self::of_http2(reader, self.idle_timeout))
    }

    /// Returns a socket that sends the rest of a request to an origin, while this one reads the
    /// response; `None` for a connection.
    pub(crate) fn split_to_origin(&mut self) -> Option<Self> {
        let sender = self.stream.origin_stream()?.split();
        Some(Self::of_origin(sender, self.idle_timeout))
    }

    /// Returns the end of a client's stream; `None` for a connection.
    pub(crate) fn stream_end(&self) -> Option<StreamEnd> {
        Some(self.stream.http2()?.end())
    }

    /// Resets a client's stream with that code.
    pub(crate) fn reset_stream(&self, code: u32) {
        if let Some(stream) = self.stream.http2() {
            stream.reset(code);
        }
    }

    /// Returns the carrier, for requests to origins by HTTP/2.
    pub(crate) fn origin_stream(&mut self) -> Option<&mut OriginStream> {
        self.stream.origin_stream()
    }
}
