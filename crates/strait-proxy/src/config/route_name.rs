//! Name of a route: its position in the file, and the requests that it is for.

use crate::config::edge::Route;

/// Name of a route.
#[derive(Clone, Debug)]
pub(crate) struct RouteName {
    /// Position in the file, for messages and metrics.
    pub(crate) position: Box<str>,
    /// Hosts, path and conditions. Other routes may come before it or go, and it is the same.
    requests: Box<str>,
}

impl RouteName {
    pub(crate) fn new(position: &str, hosts: &[String], route: &Route) -> Self {
        let mut hosts: Vec<_> = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        hosts.sort_unstable();
        let Route { path, path_exact, path_regex, methods, has_headers, .. } = route;
        let path = path.as_deref().or(if path_exact.is_none() { Some("/") } else { None });
        let requests = format!("{:?}", (hosts, path, path_exact, path_regex, methods, has_headers));
        Self { position: position.into(), requests: requests.into() }
    }

    /// Returns true for a name of the same route, also at another position.
    pub(crate) fn is_of_same(&self, other: &Self) -> bool {
        self.requests == other.requests
    }
}
