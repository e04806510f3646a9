//! TLS on connections: rustls shakes hands, then rustls or the kernel encrypts.
//!
//! rustls works with the cryptography of ring. Only [`crate::io::stream`] uses sessions.

pub(crate) mod kernel;
pub(crate) mod session;

use std::io;

use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::{ClientConnection, InvalidMessage, ServerConnection};

use crate::config::edge::OriginHttp2;
use crate::config::tls::Tls;
use crate::io::tls::session::Session;

/// Reason why a client's handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The client closed or reset the connection.
    Ended,
    /// The client was too slow.
    Late,
    /// The first bytes were not those of TLS, but of HTTP for example.
    NotTls,
    /// One side refused: the version, the certificate or the name, for example.
    Refused,
}

impl Failure {
    pub(crate) const ALL: [Self; 4] = [Self::Ended, Self::Late, Self::NotTls, Self::Refused];

    pub(crate) fn of(error: &io::Error) -> Self {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match (tls, error.kind()) {
            (Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)), _) => Self::NotTls,
            (Some(_), _) => Self::Refused,
            (None, io::ErrorKind::TimedOut) => Self::Late,
            (None, _) => Self::Ended,
        }
    }

    /// Name, for counters.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ended => "ended",
            Self::Late => "late",
            Self::NotTls => "not_tls",
            Self::Refused => "refused",
        }
    }
}

/// Begins the server's side of a session; `None` without a certificate.
pub(crate) fn accept(tls: &Tls) -> Option<Session> {
    let connection = ServerConnection::new(tls.server.clone()?).ok()?;
    Some(Session::new(connection.into(), tls.kernel))
}

/// Begins the client's side of a session with the origin `host`.
pub(crate) fn connect(tls: &Tls, host: &str, http2: OriginHttp2) -> Result<Session, InvalidDnsNameError> {
    let name = ServerName::try_from(host)?.to_owned();
    let config = tls.client.as_ref().ok_or(InvalidDnsNameError)?.announcing(http2).clone();
    let connection = ClientConnection::new(config, name).map_err(|_| InvalidDnsNameError)?;
    Ok(Session::new(connection.into(), tls.kernel))
}
