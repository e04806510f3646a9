//! The configuration once it is checked: what the workers go by.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use strait_http::target::{Scheme, Uri};

use crate::config::{Abandoned, Config, Timeouts, Transfer};
use crate::error::{Error, Result};
use crate::tls::Tls;

/// A server that connections are opened to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Connections to it begin with TLS.
    pub(crate) is_tls: bool,
}

/// What the workers go by.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) listen: Vec<SocketAddr>,
    pub(crate) workers: usize,
    /// The one server behind a reverse proxy.
    pub(crate) behind: Option<Server>,
    pub(crate) name: String,
    /// `Via: 1.1 name`, with its line's end.
    pub(crate) via_line: Vec<u8>,
    /// Of each worker.
    pub(crate) memory: usize,
    pub(crate) memory_object: usize,
    pub(crate) object_max: u64,
    pub(crate) abandoned: Abandoned,
    pub(crate) access: Access,
    pub(crate) timeouts: Limits,
    pub(crate) connections_max: usize,
    pub(crate) request_body_max: u64,
    pub(crate) origin_idle_max: usize,
    pub(crate) transfer: Transfer,
    pub(crate) tls: Tls,
}

/// Who may use the proxy, and for what.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// `None`: everybody.
    allow: Option<Vec<IpNet>>,
    reach: Vec<IpNet>,
    pub(crate) connect_ports: Vec<u16>,
    purge: Vec<IpNet>,
}

/// How long each phase may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) idle: Duration,
    pub(crate) head: Duration,
    pub(crate) client: Duration,
    pub(crate) connect: Duration,
    pub(crate) origin: Duration,
    pub(crate) origin_idle: Duration,
    pub(crate) tunnel: Duration,
    pub(crate) drain: Duration,
}

impl Settings {
    /// Checks a configuration.
    pub(crate) fn new(config: &Config) -> Result<Self> {
        let behind = config.origin.as_deref().map(Server::parse).transpose()?;
        let workers = match config.workers {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            workers => workers.min(WORKERS_MAX),
        };
        let is_name = !config.name.is_empty()
            && config.name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
        if !is_name {
            return Err(Error::Config(format!(
                "name = \"{}\": letters, digits, '-', '.' and '_' make a name",
                config.name
            )));
        }
        if config.listen.is_empty() && config.tls.listen.is_empty() {
            return Err(Error::Config("listen: there is no address to listen on".to_owned()));
        }
        let access = Access::new(config, behind.is_some())?;
        let tls = Tls::new(&config.tls, behind.as_ref().is_some_and(|server| server.is_tls))?;
        Ok(Self {
            listen: config.listen.clone(),
            workers,
            behind,
            via_line: format!("Via: 1.1 {}\r\n", config.name).into_bytes(),
            name: config.name.clone(),
            memory: usize::try_from(config.cache.memory.as_u64() / workers as u64).unwrap_or(usize::MAX),
            memory_object: usize::try_from(config.cache.memory_object.as_u64().min(MEMORY_OBJECT_MAX))
                .unwrap_or(0),
            object_max: config.cache.object.as_u64(),
            abandoned: config.cache.abandoned,
            access,
            timeouts: Limits::new(&config.timeouts),
            connections_max: config.limits.connections as usize,
            request_body_max: config.limits.request_body.as_u64(),
            origin_idle_max: config.limits.origin_idle,
            transfer: config.transfer.clone(),
            tls,
        })
    }
}

/// Workers at most.
const WORKERS_MAX: usize = 256;
/// Bytes of an object in memory at most: it is read in one piece.
const MEMORY_OBJECT_MAX: u64 = 16 << 20;

impl Server {
    fn parse(text: &str) -> Result<Self> {
        let wrong = |why: String| {
            Error::Config(format!(
                "origin = \"{text}\": {why}; it is written as http://HOST:PORT or https://HOST:PORT"
            ))
        };
        let uri = Uri::parse(text).map_err(|error| wrong(error.to_string()))?;
        if !matches!(uri.path, "" | "/") {
            return Err(wrong("it has a path".to_owned()));
        }
        Ok(Self::of(&uri))
    }

    pub(crate) fn of(uri: &Uri<'_>) -> Self {
        let host = uri.authority.host.to_string();
        let host = host.trim_matches(['[', ']']).to_owned();
        Self { host, port: uri.authority.port_or_default(uri.scheme), is_tls: uri.scheme == Scheme::Https }
    }
}

impl Access {
    fn new(config: &Config, is_reverse: bool) -> Result<Self> {
        let access = &config.access;
        let allow = networks("access.allow", &access.allow)?;
        let mut listen = config.listen.iter().chain(&config.tls.listen);
        let is_local = listen.all(|address| address.ip().is_loopback());
        if allow.is_empty() && !is_reverse && !is_local {
            return Err(Error::Refused(
                "a forward proxy on an address that others reach would be open to all: say who may use it with access.allow = [\"10.0.0.0/8\"]".to_owned(),
            ));
        }
        let loopback =
            || ["127.0.0.0/8", "::1/128"].iter().filter_map(|network| network.parse().ok()).collect();
        let allow = match (allow.is_empty(), is_reverse) {
            (false, _) => Some(allow),
            (true, true) => None,
            (true, false) => Some(loopback()),
        };
        Ok(Self {
            allow,
            reach: networks("access.reach", &access.reach)?,
            connect_ports: access.connect_ports.clone(),
            purge: networks("access.purge", &access.purge)?,
        })
    }

    /// Whether a client may use the proxy.
    pub(crate) fn allows(&self, client: IpAddr) -> bool {
        self.allow.as_ref().is_none_or(|allowed| contains(allowed, client))
    }

    /// Whether a client may use PURGE.
    pub(crate) fn allows_purge(&self, client: IpAddr) -> bool {
        contains(&self.purge, client)
    }

    /// Whether the forward proxy may connect to an address: one of the open Internet, or one that is named.
    pub(crate) fn reaches(&self, address: IpAddr) -> bool {
        is_public(address.to_canonical()) || contains(&self.reach, address)
    }
}

fn networks(key: &str, texts: &[String]) -> Result<Vec<IpNet>> {
    let parse = |text: &String| {
        let address = || text.parse().ok().map(|address: IpAddr| IpNet::from(address));
        let network = text.parse().ok().or_else(address);
        network.ok_or_else(|| {
            Error::Config(format!("{key}: \"{text}\" is no network; it is written as 10.0.0.0/8 or ::1"))
        })
    };
    texts.iter().map(parse).collect()
}

fn contains(networks: &[IpNet], address: IpAddr) -> bool {
    let address = address.to_canonical();
    networks.iter().any(|network| network.contains(&address))
}

/// Not loopback, link-local, private, shared, or of no use at all (RFC 6890).
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let [first, second, third, _] = address.octets();
            let is_special = address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_broadcast()
                || address.is_documentation()
                || address.is_multicast()
                || first == 0
                || first >= 240
                // RFC 6598, RFC 6890 and RFC 2544.
                || (first == 100 && second & 0xc0 == 64)
                || (first, second, third) == (192, 0, 0)
                || (first == 198 && second & 0xfe == 18);
            !is_special
        }
        // Of IPv6 what is handed out (RFC 4291, section 2.4), without what embeds an IPv4 address or is for examples: 2001::/23
        // (RFC 2928), 2001:db8::/32 (RFC 3849), 2002::/16 (RFC 3056).
        IpAddr::V6(address) => {
            let [first, second, ..] = address.segments();
            let is_special = (first == 0x2001 && (second < 0x200 || second == 0xdb8)) || first == 0x2002;
            first & 0xe000 == 0x2000 && !is_special
        }
    }
}

impl Limits {
    fn new(timeouts: &Timeouts) -> Self {
        let limit = Timeouts::limit;
        Self {
            idle: limit(timeouts.idle),
            head: limit(timeouts.head),
            client: limit(timeouts.client),
            connect: limit(timeouts.connect),
            origin: limit(timeouts.origin),
            origin_idle: limit(timeouts.origin_idle),
            tunnel: limit(timeouts.tunnel),
            drain: Duration::from_secs(timeouts.drain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(toml: &str) -> Result<Settings> {
        Settings::new(&Config::from_toml(toml)?)
    }

    #[test]
    fn nobody_opens_a_proxy_to_all_by_accident() {
        assert!(matches!(settings("listen = [\"0.0.0.0:3128\"]"), Err(Error::Refused(_))));
        let here = settings("").unwrap();
        assert!(here.access.allows([127, 0, 0, 1].into()) && !here.access.allows([10, 0, 0, 1].into()));
        let named = settings("listen = [\"0.0.0.0:3128\"]\naccess.allow = [\"10.0.0.0/8\"]").unwrap();
        assert!(named.access.allows([10, 0, 0, 1].into()) && !named.access.allows([127, 0, 0, 1].into()));
        let reverse = settings("listen = [\"0.0.0.0:80\"]\norigin = \"http://10.0.0.1\"").unwrap();
        assert!(reverse.access.allows([8, 8, 8, 8].into()));
        assert!(matches!(settings("tls.listen = [\"0.0.0.0:3129\"]"), Err(Error::Refused(_))));
    }

    #[test]
    fn the_forward_proxy_reaches_the_open_internet_and_what_is_named() {
        let access = settings("access.reach = [\"10.1.0.0/16\"]").unwrap().access;
        for near in [
            "127.0.0.1",
            "10.0.0.1",
            "169.254.169.254",
            "::1",
            "fe80::1",
            "fd00::1",
            "::ffff:127.0.0.1",
            "0.0.0.0",
            "100.64.0.1",
            "2002:7f00:1::",
            "64:ff9b::7f00:1",
        ] {
            assert!(!access.reaches(near.parse().unwrap()), "{near}");
        }
        for far in ["8.8.8.8", "2606:4700::1", "10.1.2.3"] {
            assert!(access.reaches(far.parse().unwrap()), "{far}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (toml, expected) in [
            ("origin = \"ftp://a\"", "origin"),
            ("origin = \"http://a/b\"", "a path"),
            ("name = \"a b\"", "name"),
            ("listen = []", "listen"),
            ("access.allow = [\"x\"]", "access.allow"),
            ("cache.sise = 3", "sise"),
        ] {
            let error = settings(toml).unwrap_err().to_string();
            assert!(error.contains(expected), "{toml}: {error}");
        }
    }
}
