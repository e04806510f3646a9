//! TLS on connections: rustls shakes hands, then rustls or the kernel encrypts.
//!
//! rustls works with the cryptography of ring. Only [`crate::io::stream`] uses sessions.

pub(crate) mod kernel;
pub(crate) mod session;

use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::{ClientConnection, ServerConnection};

use crate::config::tls::Tls;
use crate::io::tls::session::Session;

/// Begins the server's side of a session; `None` without a certificate.
pub(crate) fn accept(tls: &Tls) -> Option<Session> {
    let connection = ServerConnection::new(tls.server.clone()?).ok()?;
    Some(Session::new(connection.into(), tls.kernel))
}

/// Begins the client's side of a session with the origin `host`.
pub(crate) fn connect(tls: &Tls, host: &str) -> Result<Session, InvalidDnsNameError> {
    let name = ServerName::try_from(host)?.to_owned();
    let config = tls.client.clone().ok_or(InvalidDnsNameError)?;
    let connection = ClientConnection::new(config, name).map_err(|_| InvalidDnsNameError)?;
    Ok(Session::new(connection.into(), tls.kernel))
}
