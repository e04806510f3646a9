//! Errors of requests to origins.

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use rustix::io::Errno;
use strait_http::Malformed;

use crate::io::http2::slot::StreamFailure;
use crate::io::socket::SocketError;

/// Beginning of the text of [`OriginError::NoServer`]. Clients see only this.
pub(crate) const NO_SERVER: &str = "no server of the pool can be reached";

/// Error of a connection or a request to an origin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OriginError {
    /// The DNS lookup failed.
    #[error("the name {host} cannot be looked up: {error}")]
    Name { host: Arc<str>, error: io::Error },
    /// The proxy must not connect to the address.
    #[error("{address} is not public, and access.reach does not name it")]
    Forbidden { address: IpAddr },
    /// The connection failed.
    #[error("connect to {address}: {error}")]
    Connect { address: Box<str>, error: io::Error },
    /// This host cannot open a connection: it lacks a descriptor, memory or an address.
    #[error("the proxy cannot open another connection: {0}")]
    Exhausted(io::Error),
    /// The TLS handshake failed, or the certificate is not the origin's.
    #[error("TLS with {host}: {error}")]
    Tls { host: Arc<str>, error: io::Error },
    /// No server of the pool can be reached, with the states of its servers for the log.
    #[error("{NO_SERVER}: {0}")]
    NoServer(String),
    /// All connections to the origin are in use.
    #[error("as many connections to the origin are in use as limits.origin_connections allows")]
    Full,
    /// All connections that one client may have to the origin are in use.
    #[error(
        "this client uses as many connections to the origin as limits.origin_connections_per_client allows"
    )]
    FullForClient,
    /// All connections of the server's own maximum are in use.
    #[error("as many connections to the server are in use as it allows, and its queue is full or too slow")]
    Busy,
    /// The origin closed or reset the connection.
    #[error("the origin closed the connection")]
    Closed,
    /// The origin has not processed the request.
    #[error("the origin refused the request (HTTP/2: REFUSED_STREAM or GOAWAY)")]
    Refused,
    /// The origin has reset the stream, or an error on it has.
    #[error("the stream was reset (HTTP/2, code {0})")]
    Reset(u32),
    /// The request has no valid form in HTTP/2.
    #[error("the request has a field or a target that HTTP/2 does not allow")]
    Unsendable,
    /// The origin violates HTTP/2.
    #[error("the origin violates HTTP/2: {0}")]
    Http2(&'static str),
    /// There was no connection to the origin in time.
    #[error("no connection to the origin was established in time")]
    ConnectTimedOut,
    /// The origin sent nothing for too long.
    #[error("the origin did not answer in time")]
    TimedOut,
    /// The origin sent 304 to a request without conditions.
    #[error("the origin answered 304 (Not Modified) to a request without conditions")]
    NotModified,
    /// The response is not valid HTTP.
    #[error("the origin answered with {0}")]
    Malformed(Malformed),
}

impl OriginError {
    /// Returns the error of a connection that failed.
    pub(crate) fn of_connect(address: &dyn Display, error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL) => {
                Self::Exhausted(error)
            }
            _ => Self::Connect { address: address.to_string().into(), error },
        }
    }

    /// Returns true if a request of another client would fail as well: the origin is unreachable or
    /// has no connection left. An origin may be slow for the fields of one request alone.
    pub(crate) fn is_for_all(&self) -> bool {
        !matches!(
            self,
            Self::Closed
                | Self::Refused
                | Self::Unsendable
                | Self::Reset(_)
                | Self::Http2(_)
                | Self::TimedOut
                | Self::NotModified
                | Self::Malformed(_)
                | Self::FullForClient
        )
    }

    /// Returns true if no connection is free.
    pub(crate) fn is_of_limit(&self) -> bool {
        matches!(self, Self::Full | Self::FullForClient | Self::Busy)
    }

    /// Returns true if another server may answer.
    pub(crate) fn may_fail_over(&self) -> bool {
        // All ports to one server can be in use, and its address may be of a missing protocol.
        self.is_of_server() || matches!(self, Self::Exhausted(_))
    }

    /// Returns true if the server is the reason.
    pub(crate) fn is_of_server(&self) -> bool {
        self.is_unreachable()
            || matches!(
                self,
                Self::ConnectTimedOut
                    | Self::Closed
                    | Self::Refused
                    | Self::Reset(_)
                    | Self::Http2(_)
                    | Self::TimedOut
                    | Self::Malformed(_)
            )
    }

    /// Returns true if there is no connection to the server.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Name { .. } | Self::Connect { .. } | Self::Tls { .. })
    }

    /// Returns the status for the client (RFC 9110, section 15.6).
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::Unsendable => 400,
            Self::Forbidden { .. } => 403,
            Self::NoServer(_)
            | Self::Exhausted(_)
            | Self::Full
            | Self::FullForClient
            | Self::Busy
            | Self::Refused => 503,
            Self::ConnectTimedOut | Self::TimedOut => 504,
            Self::Name { .. }
            | Self::Connect { .. }
            | Self::Tls { .. }
            | Self::Closed
            | Self::Reset(_)
            | Self::Http2(_)
            | Self::NotModified
            | Self::Malformed(_) => 502,
        }
    }
}

/// Failed attempt at a server.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: OriginError,
    /// True if the request was sent, which can be the reason then.
    pub(crate) was_sent: bool,
    /// True if the request may be sent to another server.
    pub(crate) may_repeat: bool,
}

/// Error of a fetch, on either side.
#[derive(Debug)]
pub(crate) enum FetchError {
    Client(SocketError),
    Origin(OriginError),
    /// The client's body was too slow.
    Slow,
    /// There is no memory for the client's body.
    NoMemory,
    /// The client's body is longer than `limits.request_body`.
    TooLong(u64),
    /// The client's body is malformed.
    Request(Malformed),
}

impl From<StreamFailure> for OriginError {
    fn from(failure: StreamFailure) -> Self {
        match failure {
            StreamFailure::Refused => Self::Refused,
            StreamFailure::Unsendable => Self::Unsendable,
            StreamFailure::Reset(code) => Self::Reset(code),
            StreamFailure::Ended => Self::Closed,
            StreamFailure::Violation(why) => Self::Http2(why),
        }
    }
}

impl From<OriginError> for FetchError {
    fn from(failure: OriginError) -> Self {
        Self::Origin(failure)
    }
}

/// Returns the error for an origin's connection that has ended.
pub(crate) fn of_connection(error: SocketError) -> FetchError {
    FetchError::Origin(match error {
        SocketError::Closed | SocketError::Answered => OriginError::Closed,
        SocketError::TimedOut => OriginError::TimedOut,
    })
}
