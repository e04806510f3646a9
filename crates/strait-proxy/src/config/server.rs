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
/// Beginnings of the text of a service without and with TLS.
const SERVICES: [(&str, bool); 3] = [("srv://", false), ("srv+http://", false), ("srv+https://", true)];
/// Maximum length in bytes of a name, and of one of its labels (RFC 1035, section 2.3.4).
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// Server that the proxy connects to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Server {
    Tcp {
        host: Arc<str>,
        port: u16,
        /// True if connections to it use TLS.
        is_tls: bool,
        /// Address of the host; `None` if it is looked up for each connection.
        address: Option<IpAddr>,
    },
    /// Unix socket at a path, without TLS.
    Unix(Arc<Path>),
    /// Service without known servers: its SRV records name them.
    Service(Arc<Service>),
}

/// Service with SRV records (RFC 2782).
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Service {
    /// Name of the records, as `_http._tcp.example.org`.
    pub(crate) name: Arc<str>,
    /// Domain of the service, `example.org`. The records are not authenticated, so certificates are
    /// compared with this name and not with theirs (RFC 6125, section 6.2.1).
    domain: Arc<str>,
    is_tls: bool,
}

/// Writes host and port, as in a URI, with the address after `@` if the host is a name with a known
/// address; or the path of a Unix socket, as in the file.
impl fmt::Display for Server {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { port, address, .. } => {
                write!(out, "{}:{port}", self.authority().host)?;
                address.map_or(Ok(()), |address| write!(out, "@{address}"))
            }
            Self::Unix(path) => write!(out, "{UNIX}{}", path.display()),
            Self::Service(service) => out.write_str(&service.name),
        }
    }
}

impl Server {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let wrong = |why: String| {
            Error::Config(format!(
                "origin = \"{text}\": {why}; expected http://HOST:PORT, https://HOST:PORT, srv://NAME or unix:/PATH"
            ))
        };
        if let Some(server) = Self::unix(text).or_else(|| Self::service(text)) {
            return server.map_err(|why| wrong(why.to_owned()));
        }
        let uri = Uri::parse(text).map_err(|error| wrong(error.to_string()))?;
        if !matches!(uri.path, "" | "/") {
            return Err(wrong("it has a path".to_owned()));
        }
        let server = Self::of(&uri);
        server.why_no_host().map_or(Ok(server), |why| Err(wrong(why.to_owned())))
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

    /// Parses `srv://_SERVICE._PROTO.DOMAIN`, or with `srv+http` or `srv+https`; `None` for any
    /// other text.
    pub(crate) fn service(text: &str) -> Option<Result<Self, &'static str>> {
        let name = |(begin, is_tls): &(&str, bool)| Some((text.strip_prefix(begin)?, *is_tls));
        let (name, is_tls) = SERVICES.iter().find_map(name)?;
        let mut labels = name.splitn(3, '.');
        let mut is_marked = || labels.next().is_some_and(|label| label.len() > 1 && label.starts_with('_'));
        let (has_marks, domain) = (is_marked() && is_marked(), labels.next().unwrap_or_default());
        Some(if !has_marks || !is_name(name) || Authority::parse(domain).is_err() {
            Err("expected the name of SRV records, for example srv://_http._tcp.example.org")
        } else if let Some(why) = why_no_name(name) {
            Err(why)
        } else {
            let domain = domain.strip_suffix('.').unwrap_or(domain).into();
            Ok(Self::Service(Arc::new(Service { name: name.into(), domain, is_tls })))
        })
    }

    /// Returns the reason why its host can have no address.
    pub(crate) fn why_no_host(&self) -> Option<&'static str> {
        why_no_name(self.name()?.0)
    }

    /// Returns true if connections to it use TLS.
    pub(crate) fn is_tls(&self) -> bool {
        match self {
            Self::Tcp { is_tls, .. } => *is_tls,
            Self::Service(service) => service.is_tls,
            Self::Unix(_) => false,
        }
    }

    /// Returns the authority of its URIs, without the scheme's default port; that of a Unix socket
    /// is `localhost`, and that of a service is its domain.
    pub(crate) fn authority(&self) -> Authority<'_> {
        let (host, port) = match self {
            Self::Tcp { host, port, .. } => (host, port),
            Self::Unix(_) => return Authority { host: Host::Name("localhost"), port: None },
            Self::Service(service) => {
                return Authority { host: Host::Name(&service.domain), port: None };
            }
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
        let host = host.trim_matches(['[', ']']);
        let port = uri.authority.port_or_default(uri.scheme);
        Self::tcp(host, port, uri.scheme == Scheme::Https)
    }

    /// Returns a service without servers: a connection to it is an error.
    pub(crate) fn none() -> Self {
        let name: Arc<str> = "invalid".into();
        Self::Service(Arc::new(Service { domain: name.clone(), name, is_tls: false }))
    }

    /// Returns a host and port. A name is looked up for each connection.
    pub(crate) fn tcp(host: &str, port: u16, is_tls: bool) -> Self {
        Self::Tcp { host: host.into(), port, is_tls, address: None }
    }

    /// Returns the server at one address of its host.
    pub(crate) fn at(&self, address: IpAddr, port: u16) -> Self {
        match self {
            Self::Tcp { host, is_tls, .. } => {
                Self::Tcp { host: host.clone(), port, is_tls: *is_tls, address: Some(address) }
            }
            Self::Service(service) => {
                let (host, is_tls) = (service.domain.clone(), service.is_tls);
                Self::Tcp { host, port, is_tls, address: Some(address) }
            }
            Self::Unix(_) => self.clone(),
        }
    }

    /// Returns true if its host is a name with one known address, and maybe others.
    pub(crate) fn is_at_address(&self) -> bool {
        matches!(self, Self::Tcp { address: Some(_), .. })
    }

    /// Returns the name to look up, with the port, if its addresses can change. `localhost` is this
    /// machine (RFC 6761, section 6.3): one server.
    pub(crate) fn name(&self) -> Option<(&Arc<str>, u16)> {
        let Self::Tcp { host, port, address: None, .. } = self else { return None };
        let is_fixed = host.parse::<IpAddr>().is_ok() || is_localhost(host);
        (!is_fixed).then_some((host, *port))
    }
}

fn is_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Returns the reason why a name cannot be looked up.
fn why_no_name(name: &str) -> Option<&'static str> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.len() > NAME_BYTES_MAX {
        Some("the name is too long; the maximum is 253 bytes")
    } else if name.split('.').any(str::is_empty) {
        Some("a label of the name is empty; remove a dot")
    } else if name.split('.').any(|label| label.len() > LABEL_BYTES_MAX) {
        Some("a label of the name is too long; the maximum is 63 bytes between two dots")
    } else {
        None
    }
}

/// Returns true for `localhost` and names below it.
pub(crate) fn is_localhost(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host.rsplit('.').next().unwrap_or(host);
    last.eq_ignore_ascii_case("localhost")
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

    #[test]
    fn service_has_two_marked_labels_and_a_domain() {
        for (text, is_tls) in [
            ("srv://_http._tcp.example.org", false),
            ("srv+http://_http._tcp.example.org.", false),
            ("srv+https://_https._tcp.a_b.example.org", true),
        ] {
            let service = Server::service(text).unwrap().unwrap();
            assert_eq!(service.is_tls(), is_tls, "{text}");
            assert!(service.authority().to_string().ends_with("example.org"), "{text}");
        }
        let service = Server::service("srv+https://_https._tcp.example.org").unwrap().unwrap();
        assert_eq!(service.to_string(), "_https._tcp.example.org");
        let server = service.at([192, 0, 2, 1].into(), 8443);
        assert_eq!(server.to_string(), "example.org:8443@192.0.2.1");
        assert!(server.is_tls() && server.is_at_address());
        assert!(Server::service("http://_http._tcp.example.org").is_none());
        let long = format!("_http._tcp.{}.org", "x".repeat(64));
        for name in [
            "",
            "example.org",
            "_http.example.org",
            "_http._tcp",
            "_http._tcp.",
            "_._tcp.a",
            "_http._tcp..a",
            "_http._tcp.a:80",
            "_http._tcp.a/",
            "_http._tcp.a b",
            &long,
        ] {
            assert!(Server::service(&format!("srv://{name}")).unwrap().is_err(), "{name}");
        }
    }

    #[test]
    fn name_is_followed_unless_it_is_this_machine() {
        for (host, is_followed) in [
            ("a.example", true),
            ("localhosts", true),
            ("localhost", false),
            ("a.LocalHost.", false),
            ("192.0.2.1", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(Server::tcp(host, 80, false).name().is_some(), is_followed, "{host}");
        }
        let at = |address: &str| Server::tcp("a.example", 80, true).at(address.parse().unwrap(), 8080);
        assert_eq!(at("2001:db8::1").to_string(), "a.example:8080@2001:db8::1");
        assert!(at("192.0.2.1") != at("192.0.2.2") && at("192.0.2.1").name().is_none());
        for host in ["a..b", "a.b..", &"x.".repeat(128), &"x".repeat(64)] {
            assert!(Server::tcp(host, 80, false).why_no_host().is_some(), "{host}");
        }
    }
}
