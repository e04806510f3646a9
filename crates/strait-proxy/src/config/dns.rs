//! `[dns]`: servers that are asked for the addresses of origins, and bounds of lifetimes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::config::check::refused;
use crate::config::error::Result;
use crate::config::file;

/// Port of DNS servers.
const PORT: u16 = 53;
/// Maximum of DNS servers.
const SERVERS_MAX: usize = 8;

/// Settings of lookups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dns {
    /// Servers in place of those in /etc/resolv.conf; empty: those.
    pub(crate) servers: Vec<SocketAddr>,
    /// Bounds of the time for which records are used.
    pub(crate) ttl_min: Duration,
    pub(crate) ttl_max: Duration,
}

impl Dns {
    /// Checks the section.
    pub(crate) fn new(config: &file::Dns) -> Result<Self> {
        let (mut servers, mut problems) = (Vec::new(), Vec::new());
        for text in &config.servers {
            match server(text) {
                Some(address) => servers.push(address),
                None => problems.push(format!(
                    "dns.servers: \"{text}\" is no address; expected an address with or without a port, for example \"127.0.0.53\" or \"[::1]:5353\""
                )),
            }
        }
        if config.servers.len() > SERVERS_MAX {
            let len = config.servers.len();
            problems.push(format!("dns.servers: {len} servers; the maximum is {SERVERS_MAX}"));
        }
        if config.ttl_min > config.ttl_max {
            let (min, max) = (config.ttl_min, config.ttl_max);
            problems.push(format!("dns.ttl_min = {min}: more than dns.ttl_max = {max}; lower it"));
        }
        refused(&problems)?;
        Ok(Self {
            servers,
            ttl_min: Duration::from_secs(config.ttl_min),
            ttl_max: Duration::from_secs(config.ttl_max),
        })
    }

    /// Returns the time for which records with a lifetime are used.
    pub(crate) fn bounded(&self, ttl: Duration) -> Duration {
        ttl.max(self.ttl_min).min(self.ttl_max)
    }
}

fn server(text: &str) -> Option<SocketAddr> {
    let address = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, PORT));
    address.or_else(|_| text.parse()).ok().filter(|address| address.port() != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(servers: &[&str], ttl_min: u64, ttl_max: u64) -> Result<Dns> {
        let servers = servers.iter().map(|text| (*text).to_owned()).collect();
        Dns::new(&file::Dns { servers, ttl_min, ttl_max })
    }

    #[test]
    fn server_has_the_port_of_dns_unless_it_has_another() {
        let dns =
            checked(&["192.0.2.1", "192.0.2.1:5353", "2001:db8::1", "[2001:db8::1]:5353"], 1, 2).unwrap();
        let servers: Vec<_> = dns.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["192.0.2.1:53", "192.0.2.1:5353", "[2001:db8::1]:53", "[2001:db8::1]:5353"]);
    }

    #[test]
    fn wrong_server_and_bounds_are_reported() {
        for text in ["dns.example", "192.0.2.1:0", "192.0.2.1:x", "", "udp://192.0.2.1"] {
            let error = checked(&[text], 1, 2).unwrap_err().to_string();
            assert!(error.contains("dns.servers") && error.contains(text), "{error}");
        }
        assert!(checked(&["192.0.2.1"; 9], 1, 2).is_err());
        assert!(checked(&[], 3, 2).unwrap_err().to_string().contains("dns.ttl_min"));
    }

    #[test]
    fn lifetime_is_bounded() {
        let dns = checked(&[], 2, 60).unwrap();
        let bounded = [0, 2, 30, 300].map(|ttl| dns.bounded(Duration::from_secs(ttl)).as_secs());
        assert_eq!(bounded, [2, 2, 30, 60]);
    }
}
