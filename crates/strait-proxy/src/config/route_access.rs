//! Networks of the clients that a route answers.
//!
//! `rules_check` makes them, [`crate::serve`] asks them before everything else: hits, files and
//! redirections are for allowed clients alone as well.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ipnet::IpNet;

use crate::config::access::{contains, network};
use crate::config::edge;
use crate::config::route_name::RouteName;

/// Maximum of networks in a list: each is compared with the client of each request.
const NETWORKS_MAX: usize = 256;

/// Networks of the clients of a route.
#[derive(Debug)]
pub(crate) struct RouteAccess {
    pub(crate) name: RouteName,
    /// `None`: all clients.
    allow: Option<Vec<IpNet>>,
    deny: Vec<IpNet>,
    /// Number of refused requests. A reload keeps it.
    refused: Arc<AtomicU64>,
}

impl RouteAccess {
    /// Makes the networks of a route, with the counter of the same route in `before`, or returns
    /// the reason why they are wrong, after their key.
    pub(crate) fn new(
        name: &RouteName,
        config: &edge::RouteAccess,
        before: &[Arc<Self>],
    ) -> Result<Self, String> {
        let allow = config.allow.as_ref().map(|texts| networks("allow", texts)).transpose()?;
        let deny = config.deny.as_ref().map(|texts| networks("deny", texts)).transpose()?;
        if allow.is_none() && deny.is_none() {
            return Err(": it restricts nothing; write allow or deny, or leave it out".to_owned());
        }
        let same = before.iter().find(|access| access.name.is_of_same(name));
        let refused = same.map(|same| same.refused.clone()).unwrap_or_default();
        Ok(Self { name: name.clone(), allow, deny: deny.unwrap_or_default(), refused })
    }

    /// Returns true if a client may send requests to the route. Counts the refused ones.
    pub(crate) fn admits(&self, client: IpAddr) -> bool {
        let is_admitted = self.allow.as_ref().is_none_or(|allowed| contains(allowed, client))
            && !contains(&self.deny, client);
        if !is_admitted {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        is_admitted
    }

    /// Returns the number of refused requests, which counts on.
    pub(crate) fn refused(&self) -> &AtomicU64 {
        &self.refused
    }

    /// Returns the allowed networks as text; empty if all clients are allowed but the denied ones.
    pub(crate) fn key_text(&self) -> String {
        let mut allowed: Vec<_> = self.allow.iter().flatten().map(IpNet::trunc).collect();
        allowed.sort_unstable();
        let mut text = String::new();
        for network in allowed {
            text.extend(["allow ", &network.to_string(), "\n"]);
        }
        text
    }
}

fn networks(key: &str, texts: &[String]) -> Result<Vec<IpNet>, String> {
    if texts.is_empty() {
        return Err(format!(
            ".{key}: the list is empty; write for example [\"10.0.0.0/8\"], or leave it out"
        ));
    }
    if texts.len() > NETWORKS_MAX {
        return Err(format!(".{key}: {} networks; the maximum is {NETWORKS_MAX}", texts.len()));
    }
    let parse = |text: &String| network(text).map_err(|why| format!(".{key}: {why}"));
    texts.iter().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::edge::Route;

    fn access(allow: &[&str], deny: &[&str]) -> Result<RouteAccess, String> {
        let list = |texts: &[&str]| {
            let texts: Vec<_> = texts.iter().map(|text| (*text).to_owned()).collect();
            (!texts.is_empty()).then_some(texts)
        };
        let config = edge::RouteAccess { allow: list(allow), deny: list(deny) };
        RouteAccess::new(&RouteName::new("a", &[], &Route::default()), &config, &[])
    }

    #[test]
    fn denied_client_is_refused_also_in_an_allowed_network() {
        for (allow, deny, client, expected) in [
            (&["10.0.0.0/8"][..], &[][..], "10.1.2.3", true),
            (&["10.0.0.0/8"], &[], "11.1.2.3", false),
            (&["10.0.0.0/8"], &[], "::ffff:10.1.2.3", true),
            (&["::ffff:10.0.0.0/104"], &[], "10.1.2.3", true),
            (&["10.0.0.0/8"], &["10.1.0.0/16"], "10.1.2.3", false),
            (&["10.1.2.3"], &["10.0.0.0/8"], "10.1.2.3", false),
            (&[], &["10.1.0.0/16", "2001:db8::/32"], "10.2.2.3", true),
            (&[], &["10.1.0.0/16", "2001:db8::/32"], "::ffff:10.1.0.1", false),
            (&[], &["::ffff:10.1.2.3"], "10.1.2.3", false),
            (&[], &["10.1.0.0/16", "2001:db8::/32"], "2001:db8:1::1", false),
            // A network of IPv6 has no IPv4 address.
            (&["::/0"], &[], "10.1.2.3", false),
        ] {
            let access = access(allow, deny).unwrap();
            let (is_admitted, refused) = (access.admits(client.parse().unwrap()), u64::from(!expected));
            assert_eq!(is_admitted, expected, "{allow:?} {deny:?} {client}");
            assert_eq!(access.refused().load(Ordering::Relaxed), refused);
        }
    }

    #[test]
    fn key_has_the_allowed_networks_in_any_order() {
        let text = |allow: &[&str], deny: &[&str]| access(allow, deny).unwrap().key_text();
        let own = text(&["10.0.0.0/8", "::1"], &[]);
        assert_eq!(own, text(&["::1", "10.2.3.4/8"], &["10.1.0.0/16"]));
        assert_ne!(own, text(&["10.0.0.0/8"], &[]));
        assert_eq!(text(&[], &["10.1.0.0/16"]), "");
    }
}
