//! Networks that may use the proxy, its admin page or PURGE, and addresses that it may connect to.
//!
//! `settings` parses them at each start and reload. Addresses are compared in their canonical form:
//! an IPv4 address in IPv6 counts as the IPv4 address.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use strait_http::target::Host;

use crate::config::error::{Error, Result};
use crate::config::file::Config;

/// Access to the admin page.
#[derive(Clone, Debug)]
pub(crate) struct Admin {
    pub(crate) listen: Option<SocketAddr>,
    allow: Vec<IpNet>,
    change: Vec<IpNet>,
    /// In lower case.
    hosts: Vec<String>,
}

/// Clients that may use the proxy, and addresses that it may connect to.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// `None`: all clients.
    allow: Option<Vec<IpNet>>,
    reach: Vec<IpNet>,
    pub(crate) connect_ports: Vec<u16>,
    purge: Vec<IpNet>,
    /// `None`: all clients.
    refresh: Option<Vec<IpNet>>,
    /// Load balancers that may name the client (PROXY protocol).
    proxied: Vec<IpNet>,
}

impl Admin {
    pub(crate) fn new(config: &Config) -> Result<Self> {
        let admin = &config.admin;
        let or_here = |networks: Vec<IpNet>| if networks.is_empty() { here() } else { networks };
        let allow = networks("admin.allow", &admin.allow)?;
        if let Some(address) = admin.listen
            && !address.ip().is_loopback()
            && allow.is_empty()
        {
            return Err(Error::Config(format!(
                "admin.listen = \"{address}\": other machines can connect to it; list the allowed networks, for example admin.allow = [\"10.0.0.0/8\"]"
            )));
        }
        Ok(Self {
            listen: admin.listen,
            allow: or_here(allow),
            change: or_here(networks("admin.change", &admin.change)?),
            hosts: admin.hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
        })
    }

    /// Returns true if a client may read.
    pub(crate) fn allows(&self, client: IpAddr) -> bool {
        contains(&self.allow, client)
    }

    /// Returns true if a client may purge and ban.
    pub(crate) fn allows_change(&self, client: IpAddr) -> bool {
        contains(&self.change, client)
    }

    /// Returns true if a request may use this host name. Other names are refused: their owners
    /// could point them at this address and read the admin page through a browser (DNS rebinding).
    pub(crate) fn answers_for(&self, host: &Host<'_>) -> bool {
        match host {
            Host::Name(name) => {
                name.eq_ignore_ascii_case("localhost")
                    || self.hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
            }
            Host::V4(_) | Host::V6(_) => true,
        }
    }
}

impl Access {
    pub(crate) fn new(config: &Config, is_reverse: bool) -> Result<Self> {
        let access = &config.access;
        let allow = networks("access.allow", &access.allow)?;
        let mut listen = config.listen.iter().chain(&config.tls.listen);
        let is_local = listen.all(|address| address.ip().is_loopback());
        if allow.is_empty() && !is_reverse && !is_local {
            return Err(Error::Config(
                "access.allow: a forward proxy on an address for other machines would be open to all of them; list the allowed networks, for example access.allow = [\"10.0.0.0/8\"]".to_owned(),
            ));
        }
        let allow = match (allow.is_empty(), is_reverse) {
            (false, _) => Some(allow),
            (true, true) => None,
            (true, false) => Some(here()),
        };
        Ok(Self {
            allow,
            reach: networks("access.reach", &access.reach)?,
            connect_ports: access.connect_ports.clone(),
            purge: networks("access.purge", &access.purge)?,
            refresh: match &access.refresh {
                Some(texts) => Some(networks("access.refresh", texts)?),
                None => is_reverse.then(Vec::new),
            },
            proxied: networks("proxy_protocol.from", &config.proxy_protocol.from)?,
        })
    }

    /// Returns true if a client may use the proxy.
    pub(crate) fn allows(&self, client: IpAddr) -> bool {
        self.allow.as_ref().is_none_or(|allowed| contains(allowed, client))
    }

    /// Returns true if a peer may name the client (PROXY protocol).
    pub(crate) fn allows_proxied(&self, peer: IpAddr) -> bool {
        if self.proxied.is_empty() {
            peer.to_canonical().is_loopback()
        } else {
            contains(&self.proxied, peer)
        }
    }

    /// Returns true if a client may use PURGE.
    pub(crate) fn allows_purge(&self, client: IpAddr) -> bool {
        contains(&self.purge, client)
    }

    /// Returns true if a client may demand a new response although a stored one is fresh.
    pub(crate) fn allows_refresh(&self, client: IpAddr) -> bool {
        self.refresh.as_ref().is_none_or(|allowed| contains(allowed, client))
    }

    /// Returns true if the forward proxy may connect to an address: a public one, or one in
    /// `access.reach`.
    pub(crate) fn reaches(&self, address: IpAddr) -> bool {
        is_public(address.to_canonical()) || contains(&self.reach, address)
    }
}

/// Returns the networks of this machine.
fn here() -> Vec<IpNet> {
    ["127.0.0.0/8", "::1/128"].iter().filter_map(|network| network.parse().ok()).collect()
}

fn networks(key: &str, texts: &[String]) -> Result<Vec<IpNet>> {
    let parse = |text: &String| network(text).map_err(|why| Error::Config(format!("{key}: {why}")));
    texts.iter().map(parse).collect()
}

/// Parses a network or an address, or returns the reason why it is none.
pub(crate) fn network(text: &str) -> Result<IpNet, String> {
    let address = || text.parse().ok().map(|address: IpAddr| IpNet::from(address));
    let network = text.parse().ok().or_else(address);
    network
        .map(canonical)
        .ok_or_else(|| format!("\"{text}\" is not a network; expected a network such as 10.0.0.0/8 or ::1"))
}

/// Returns a network in the form in which addresses are compared.
fn canonical(network: IpNet) -> IpNet {
    /// Length in bits of the prefix of IPv4 addresses in IPv6.
    const MAPPED_BITS: u8 = 96;
    let IpNet::V6(own) = network else { return network };
    let bits = own.prefix_len().checked_sub(MAPPED_BITS);
    let mapped = own.addr().to_ipv4_mapped().zip(bits);
    mapped.and_then(|(address, bits)| IpNet::new(address.into(), bits).ok()).unwrap_or(network)
}

pub(crate) fn contains(networks: &[IpNet], address: IpAddr) -> bool {
    let address = address.to_canonical();
    networks.iter().any(|network| network.contains(&address))
}

/// Returns true for an address that is not loopback, link-local, private, shared or reserved (RFC
/// 6890).
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
        // Allocated IPv6 addresses (RFC 4291, section 2.4), except those that embed an IPv4 address
        // or are for documentation: 2001::/23 (RFC 2928), 2001:db8::/32 (RFC 3849), 2002::/16 (RFC
        // 3056).
        IpAddr::V6(address) => {
            let [first, second, ..] = address.segments();
            let is_special = (first == 0x2001 && (second < 0x200 || second == 0xdb8)) || first == 0x2002;
            first & 0xe000 == 0x2000 && !is_special
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Settings;

    fn settings(toml: &str) -> Result<Settings> {
        Settings::new(&Config::from_toml(toml)?)
    }

    #[test]
    fn open_forward_proxy_is_refused() {
        assert!(matches!(settings("listen = [\"0.0.0.0:3128\"]"), Err(Error::Config(_))));
        let here = settings("").unwrap();
        assert!(here.access.allows([127, 0, 0, 1].into()) && !here.access.allows([10, 0, 0, 1].into()));
        let named = settings("listen = [\"0.0.0.0:3128\"]\naccess.allow = [\"10.0.0.0/8\"]").unwrap();
        assert!(named.access.allows([10, 0, 0, 1].into()) && !named.access.allows([127, 0, 0, 1].into()));
        let reverse = settings("listen = [\"0.0.0.0:80\"]\norigin = \"http://10.0.0.1\"").unwrap();
        assert!(reverse.access.allows([8, 8, 8, 8].into()));
        assert!(matches!(settings("tls.listen = [\"0.0.0.0:3129\"]"), Err(Error::Config(_))));
    }

    #[test]
    fn forward_proxy_reaches_public_and_named_addresses() {
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
}
