//! Server that the proxy connects to.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use strait_http::target::{Authority, Host, Scheme, Uri};

use crate::config::error::{Error, Result};

/// Server that the proxy connects to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
    /// True if connections to it use TLS.
    pub(crate) is_tls: bool,
}

/// Writes host and port, as in a URI.
impl fmt::Display for Server {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.authority().host, self.port)
    }
}

impl Server {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let wrong = |why: String| {
            Error::Config(format!(
                "origin = \"{text}\": {why}; expected http://HOST:PORT or https://HOST:PORT"
            ))
        };
        let uri = Uri::parse(text).map_err(|error| wrong(error.to_string()))?;
        if !matches!(uri.path, "" | "/") {
            return Err(wrong("it has a path".to_owned()));
        }
        Ok(Self::of(&uri))
    }

    /// Returns the authority of its URIs, without the scheme's default port.
    pub(crate) fn authority(&self) -> Authority<'_> {
        let scheme = if self.is_tls { Scheme::Https } else { Scheme::Http };
        let host = match self.host.parse() {
            Ok(IpAddr::V4(address)) => Host::V4(address),
            Ok(IpAddr::V6(address)) => Host::V6(address),
            Err(_) => Host::Name(&self.host),
        };
        Authority { host, port: Some(self.port).filter(|port| *port != scheme.port()) }
    }

    pub(crate) fn of(uri: &Uri<'_>) -> Self {
        let host = uri.authority.host.to_string();
        let host = host.trim_matches(['[', ']']).into();
        Self { host, port: uri.authority.port_or_default(uri.scheme), is_tls: uri.scheme == Scheme::Https }
    }
}
