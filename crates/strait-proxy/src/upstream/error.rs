//! Errors of requests to origins.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use strait_http::Malformed;

use crate::io::socket::SocketError;

/// Why an origin could not be asked, or did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OriginError {
    /// Its name is not known.
    #[error("the name {host} cannot be looked up: {error}")]
    Name { host: Arc<str>, error: io::Error },
    /// The proxy may not go there.
    #[error("{address} is not public, and access.reach does not name it")]
    Forbidden { address: IpAddr },
    /// No connection.
    #[error("connect to {address}: {error}")]
    Connect { address: SocketAddr, error: io::Error },
    /// No TLS, or none with whom was meant.
    #[error("TLS with {host}: {error}")]
    Tls { host: Arc<str>, error: io::Error },
    /// All connections that it may have are in use.
    #[error("as many connections to the origin are in use as limits.origin_connections allows")]
    Full,
    /// All that one client may have of them are in use by it.
    #[error(
        "this client uses as many connections to the origin as limits.origin_connections_per_client allows"
    )]
    FullForClient,
    /// It closed the connection, or broke it.
    #[error("the origin closed the connection")]
    Closed,
    /// It said nothing for too long.
    #[error("the origin did not answer in time")]
    TimedOut,
    /// Nothing in the request asked for a 304.
    #[error("the origin answered 304 (Not Modified) to a request without conditions")]
    NotModified,
    /// What it said is no HTTP.
    #[error("the origin answered with {0}")]
    Malformed(Malformed),
}

impl OriginError {
    /// Returns true if a request of another client would fail too: there is no origin, or it has no
    /// connection left. An origin may be slow to answer the fields of one request alone.
    pub(crate) fn is_lasting(&self) -> bool {
        !matches!(
            self,
            Self::Closed | Self::TimedOut | Self::NotModified | Self::Malformed(_) | Self::FullForClient
        )
    }

    /// The status that a client is told (RFC 9110, section 15.6).
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::Forbidden { .. } => 403,
            Self::Full | Self::FullForClient => 503,
            Self::TimedOut => 504,
            Self::Name { .. }
            | Self::Connect { .. }
            | Self::Tls { .. }
            | Self::Closed
            | Self::NotModified
            | Self::Malformed(_) => 502,
        }
    }
}

/// What went wrong, and on which side.
#[derive(Debug)]
pub(crate) enum FetchError {
    Client(SocketError),
    Origin(OriginError),
    /// The client's body came too slowly.
    Slow,
    /// There is no memory for the client's body.
    NoMemory,
    /// The client's body is longer than it may be.
    TooLong(u64),
    /// The client's body is none.
    Request(Malformed),
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
