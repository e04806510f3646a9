//! Server that the proxy connects to.

use std::fmt;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use strait_http::target::{Authority, Host, Scheme, Uri};

use crate::config::error::{Error, Result};

/// Beginning of the text of a Unix socket.
const UNIX: &str = "unix:";
/// Maximum length in bytes of the path of a Unix socket (`sun_path` in unix(7), without the final
/// zero).
const PATH_BYTES_MAX: usize = 107;

/// Server that the proxy connects to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Server {
    Tcp {
        host: Arc<str>,
        port: u16,
        /// True if connections to it use TLS.
        is_tls: bool,
    },
    /// Unix socket at a path, without TLS.
    Unix(Arc<Path>),
}

/// Writes host and port, as in a URI, or the path of a Unix socket, as in the file.
impl fmt::Display for Server {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { port, .. } => write!(out, "{}:{port}", self.authority().host),
            Self::Unix(path) => write!(out, "{UNIX}{}", path.display()),
        }
    }
}

impl Server {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let wrong = |why: String| {
            Error::Config(format!(
                "origin = \"{text}\": {why}; expected http://HOST:PORT, https://HOST:PORT or unix:/PATH"
            ))
        };
        if let Some(server) = Self::unix(text) {
            return server.map_err(|why| wrong(why.to_owned()));
        }
        let uri = Uri::parse(text).map_err(|error| wrong(error.to_string()))?;
        if !matches!(uri.path, "" | "/") {
            return Err(wrong("it has a path".to_owned()));
        }
        Ok(Self::of(&uri))
    }

    /// Parses `unix:/PATH`; `None` for any other text. Names in the abstract namespace
    /// (`unix:@NAME`) are refused: they have no permissions, so any user can take one.
    pub(crate) fn unix(text: &str) -> Option<Result<Self, &'static str>> {
        let path = Path::new(text.strip_prefix(UNIX)?);
        let bytes = path.as_os_str().as_bytes();
        Some(if !path.is_absolute() || bytes.ends_with(b"/") {
            Err("expected the whole path of a socket, for example unix:/run/app/http.sock")
        } else if bytes.len() > PATH_BYTES_MAX {
            Err("the path is too long; the maximum is 107 bytes")
        } else if bytes.contains(&0) {
            Err("the path has a zero byte; remove it")
        } else {
            Ok(Self::Unix(path.into()))
        })
    }

    /// Returns true if connections to it use TLS.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Self::Tcp { is_tls: true, .. })
    }

    /// Returns the authority of its URIs, without the scheme's default port; that of a Unix socket
    /// is `localhost`.
    pub(crate) fn authority(&self) -> Authority<'_> {
        let Self::Tcp { host, port, .. } = self else {
            return Authority { host: Host::Name("localhost"), port: None };
        };
        let scheme = if self.is_tls() { Scheme::Https } else { Scheme::Http };
        let host = match host.parse() {
            Ok(IpAddr::V4(address)) => Host::V4(address),
            Ok(IpAddr::V6(address)) => Host::V6(address),
            Err(_) => Host::Name(host),
        };
        Authority { host, port: Some(*port).filter(|port| *port != scheme.port()) }
    }

    pub(crate) fn of(uri: &Uri<'_>) -> Self {
        let host = uri.authority.host.to_string();
        let host = host.trim_matches(['[', ']']).into();
        let port = uri.authority.port_or_default(uri.scheme);
        Self::Tcp { host, port, is_tls: uri.scheme == Scheme::Https }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_socket_has_an_absolute_path() {
        let server = Server::unix("unix:/run/app.sock").unwrap().unwrap();
        assert_eq!((server.to_string().as_str(), server.is_tls()), ("unix:/run/app.sock", false));
        assert_eq!(server.authority().to_string(), "localhost");
        assert!(Server::unix("127.0.0.1:80").is_none() && Server::unix("unix.example:80").is_none());
        let long = |bytes: usize| Server::unix(&format!("unix:/{}", "x".repeat(bytes - 1)));
        assert!(long(PATH_BYTES_MAX).unwrap().is_ok() && long(PATH_BYTES_MAX + 1).unwrap().is_err());
        for text in ["unix:", "unix:app.sock", "unix:@app", "unix:/run/", "unix:/a\0b"] {
            assert!(Server::unix(text).unwrap().is_err(), "{text}");
        }
    }
}
