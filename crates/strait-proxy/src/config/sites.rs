//! Sites of a reverse proxy: finds the target of a request by its host and path.
//!
//! Host and path are in the cache key, so they alone select the target: responses of one target
//! never answer requests for another. [`crate::config::site_check`] makes the table from the file.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use strait_http::head::Request;
use strait_http::path::select_by_all;
use strait_http::target::{Authority, Uri};

use crate::config::edge::{OriginHttp2, Redirect};
use crate::config::hosts::Hosts;
use crate::config::keys::KeyFields;
use crate::config::limits::{GateLimits, ServerLimits};
use crate::config::pool::ServerPool;
use crate::config::prefixes::Prefixes;
use crate::config::route_limits::RouteLimits;
use crate::config::rules::{Guards, ResponseRules, Rules};
use crate::config::server::Server;

/// Sites of a reverse proxy. The one-line form is a site for all hosts with one route.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sites {
    pub(crate) pools: Vec<Arc<ServerPool>>,
    pub(crate) targets: Vec<SiteRoute>,
    /// Positions in `routes`, by host.
    pub(crate) hosts: Hosts<usize>,
    /// Routes of each site.
    pub(crate) routes: Vec<SiteRoutes>,
    /// Redirection of requests without TLS to sites that need it.
    pub(crate) to_https: Redirect,
}

/// Routes of a site.
#[derive(Clone, Debug, Default)]
pub(crate) struct SiteRoutes {
    /// Positions in `targets`, by path.
    pub(crate) routes: Prefixes<usize>,
    /// True if requests need TLS.
    pub(crate) is_https_only: bool,
}

/// Route of a site.
#[derive(Clone, Debug)]
pub(crate) struct SiteRoute {
    pub(crate) target: Target,
    /// `None` if it has none, as most routes.
    pub(crate) rules: Option<Box<Rules>>,
    /// Position of the route with the same path that applies if the conditions do not hold.
    pub(crate) next: Option<usize>,
    /// Key fields of its requests, if routes with the same path have conditions for fields: the
    /// origin gets these fields, and may answer by their values as the proxy does.
    pub(crate) key_fields: Option<KeyFields>,
}

/// Target of a request, found by its host and path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a> {
    pub(crate) target: &'a Target,
    pub(crate) manner: Manner<'a>,
}

/// How the requests of a route are treated, whatever its target.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner<'a> {
    /// True if the site's requests need TLS, and clients are told to use https only (HSTS).
    pub(crate) is_https_only: bool,
    pub(crate) rules: Option<&'a Rules>,
    /// Request fields that are part of its keys; `None`: those of all routes.
    pub(crate) key_fields: Option<&'a KeyFields>,
}

impl<'a> Manner<'a> {
    /// Returns the rules for heads of responses.
    pub(crate) fn response(self) -> Option<&'a Arc<ResponseRules>> {
        self.rules?.response.as_ref()
    }

    /// Returns the limits of the route's requests.
    pub(crate) fn limits(self) -> RouteLimits {
        self.rules.map(|rules| rules.limits).unwrap_or_default()
    }

    /// Returns true if the cookie `name` may select the server, and may be set: rules that drop it
    /// make requests independent of clients, and without the proxy's own Cache-Control another
    /// cache could give the cookie to other clients.
    pub(crate) fn may_be_sticky(self, name: &str) -> bool {
        let request = self.rules.and_then(|rules| rules.request.as_ref());
        !request.is_some_and(|rules| rules.drops_cookie(name.as_bytes()))
            && !self.response().is_some_and(|rules| rules.drops("cache-control"))
    }
}

/// Target of a route.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Pool(Arc<ServerPool>),
    Files(Directory),
    Redirect(Redirect),
    Fixed(FixedResponse),
}

/// Directory of static files.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    /// True if compressed files beside the named one are sent in its place.
    pub(crate) is_precompressed: bool,
    /// True if the route has one path alone, and no paths below it.
    pub(crate) is_exact: bool,
}

/// Response that needs no origin.
#[derive(Clone, Debug)]
pub(crate) struct FixedResponse {
    pub(crate) status: u16,
    /// Lines of its fields.
    pub(crate) field_lines: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

/// Reason why a request has no target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoTarget {
    /// No site has the host.
    Host,
    /// No route of the site has the path.
    Path,
    /// The conditions of no route of the path hold.
    Conditions,
    /// Connection names a field that selects a route of the path.
    Evasion,
    /// Programs read the path differently, and the routes of these readings differ.
    Ambiguous,
}

impl Sites {
    /// Returns the sites of the one-line form.
    pub(crate) fn of_origin(origin: Server, before: Option<&Self>) -> Self {
        let mut pool = ServerPool::of_origin(origin);
        if let Some([same]) = before.map(|before| &*before.pools)
            && same.name.is_none()
        {
            pool.take_over(same);
        }
        let pool = Arc::new(pool);
        let mut routes = Prefixes::default();
        routes.add("/", 0);
        Self {
            pools: vec![pool.clone()],
            targets: vec![SiteRoute {
                target: Target::Pool(pool),
                rules: None,
                next: None,
                key_fields: None,
            }],
            hosts: Hosts::new(Some(0)),
            routes: vec![SiteRoutes { routes, is_https_only: false }],
            to_https: Redirect::default(),
        }
    }

    /// Returns true if a server uses TLS.
    pub(crate) fn use_tls(&self) -> bool {
        self.pools.iter().flat_map(|pool| &pool.entries).any(|entry| entry.server.is_tls())
    }

    /// Returns true if servers may speak HTTP/2.
    pub(crate) fn use_http2(&self) -> bool {
        self.pools.iter().any(|pool| pool.http2 != OriginHttp2::Off)
    }

    /// Returns the limits of the servers with a maximum of connections. A server in several pools
    /// has the least one.
    pub(crate) fn server_limits(&self, gates: &GateLimits) -> HashMap<Server, ServerLimits> {
        let mut limits: HashMap<Server, ServerLimits> = HashMap::new();
        for (server, connections, queue) in self.pools.iter().flat_map(|pool| pool.limited()) {
            let new = gates.of_server(connections, queue);
            let own = limits.entry(server).or_insert(new);
            if new.connections < own.connections {
                *own = new;
            }
        }
        limits
    }

    /// Forgets the failed checks of pools without a check, when the configuration is applied.
    pub(crate) fn forget_checks(&self, now: u64) {
        self.pools.iter().for_each(|pool| pool.forget_checks(now));
    }

    /// Takes a server, or all servers of a name, out of the pools that have it, or back in from
    /// `now` on; out of the pool of that name alone if one is given. Returns the number of pools.
    pub(crate) fn drain(&self, server: &str, pool: Option<&str>, is_drained: bool, now: u64) -> usize {
        // The server of the one-line form is the only one.
        let named = self.pools.iter().filter(|own| own.name.is_some());
        let wanted = named.filter(|own| pool.is_none() || own.name.as_deref() == pool);
        wanted.filter(|own| own.drain(server, is_drained, now)).count()
    }

    /// Returns the ends of all keys: the name of each pool, alone and with each set of rules of its
    /// routes.
    pub(crate) fn key_ends(&self) -> Vec<Box<str>> {
        let of_rules = |route: &SiteRoute| match (&route.target, &route.rules) {
            (Target::Pool(pool), Some(rules)) => {
                Some(format!("{}~{}", pool.name.as_ref()?, rules.key.as_ref()?).into())
            }
            _ => None,
        };
        let names = self.pools.iter().filter_map(|pool| pool.name.clone());
        let with_rules: BTreeSet<_> = self.targets.iter().filter_map(of_rules).collect();
        names.chain(with_rules).collect()
    }

    /// Returns the networks, the limits and the users of all routes.
    pub(crate) fn guards(&self) -> Guards {
        let rules = || self.targets.iter().filter_map(|route| route.rules.as_ref());
        Guards {
            accesses: rules().filter_map(|rules| rules.access.clone()).collect(),
            limits: rules().filter_map(|rules| rules.rate.clone()).collect(),
            auths: rules().filter_map(|rules| rules.auth.clone()).collect(),
        }
    }

    /// Returns the target of a request for `uri`. The path selects the routes; of these, the first
    /// one applies whose conditions hold.
    pub(crate) fn find(&self, uri: &Uri<'_>, request: &Request<'_>) -> Result<Found<'_>, NoTarget> {
        let (mut at, is_https_only) = self.first(uri)?;
        loop {
            let route = self.targets.get(at).ok_or(NoTarget::Path)?;
            let key_fields = route.key_fields.as_ref();
            let found =
                |rules| Found { target: &route.target, manner: Manner { is_https_only, rules, key_fields } };
            let Some(rules) = route.rules.as_deref() else { return Ok(found(None)) };
            if rules.conditions.are_evaded_by(request) {
                return Err(NoTarget::Evasion);
            }
            if rules.conditions.hold(uri.path, request).ok_or(NoTarget::Ambiguous)? {
                return Ok(found(Some(rules)));
            }
            at = route.next.ok_or(NoTarget::Conditions)?;
        }
    }

    /// Returns the position of the first route of a path, and true if the site needs TLS.
    fn first(&self, uri: &Uri<'_>) -> Result<(usize, bool), NoTarget> {
        let site = self.hosts.find(&uri.authority.host).ok_or(NoTarget::Host)?;
        let SiteRoutes { routes, is_https_only } = self.routes.get(*site).ok_or(NoTarget::Host)?;
        let first = match routes.only() {
            Some(only) => Some(only),
            None if matches!(uri.path.as_bytes().first(), None | Some(b'?')) => routes.find(b"/"),
            None => select_by_all(uri.path, |path| routes.find(path)).ok_or(NoTarget::Ambiguous)?,
        };
        Ok((first.ok_or(NoTarget::Path)?, *is_https_only))
    }

    /// Returns the paths, with their queries, to which the routes of a URI change its path,
    /// whatever their conditions.
    pub(crate) fn rewritten(&self, uri: &Uri<'_>) -> Vec<String> {
        let mut next = self.first(uri).ok().map(|(first, _)| first);
        let mut paths = Vec::new();
        while let Some(route) = next.and_then(|at| self.targets.get(at)) {
            if let Some(rules) = &route.rules {
                let path = rules.rewrite.as_ref().and_then(|rewrite| rewrite.apply(uri.path));
                let query = rules.cache.as_ref().and_then(|cache| cache.query.as_ref());
                paths.extend(query.and_then(|query| query.apply(path.as_deref().unwrap_or(uri.path))));
                paths.extend(path);
            }
            next = route.next;
        }
        paths
    }

    /// Returns the authority for requests without Host, which HTTP/1.0 allows: that of the first
    /// server for `/` of the site for all hosts.
    pub(crate) fn authority(&self) -> Option<Authority<'_>> {
        let target = self.routes.get(self.hosts.default?)?.routes.find(b"/")?;
        match &self.targets.get(target)?.target {
            Target::Pool(pool) => pool.entries.first().map(|entry| entry.server.authority()),
            _ => None,
        }
    }
}

/// URI of a request with the pool that its origin is in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resource<'b> {
    pub(crate) uri: Uri<'b>,
    /// `None` for a forward proxy: the URI names the origin.
    pub(crate) pool: Option<&'b Arc<ServerPool>>,
    pub(crate) manner: Manner<'b>,
}

impl Resource<'_> {
    /// Appends the cache key: the URI, after `#` the name of the pool, and after `~` the hash of
    /// the rules that change requests. A reload can give a URI to another pool or other rules,
    /// and responses from before must not answer its requests. No URI of a request has a `#`.
    pub(crate) fn write_key(&self, key: &mut String) {
        self.uri.write_key(key);
        if let Some(name) = self.pool.and_then(|pool| pool.name.as_ref()) {
            key.push('#');
            key.push_str(name);
        }
        if let Some(hash) = self.manner.rules.and_then(|rules| rules.key.as_ref()) {
            key.push('~');
            key.push_str(hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use strait_http::head;

    use super::*;
    use crate::config::edge;
    use crate::config::file::Config;
    use crate::config::settings::Settings;

    const TOML: &str = r#"
        pool.a.servers = ["127.0.0.1:1"]
        pool.b.servers = ["127.0.0.1:2"]
        [[site]]
        hosts = ["www.example.org"]
        route = [{ pool = "a" }, { path = "/admin", pool = "b" }, { path_exact = "/up", pool = "b" }]
        [[site]]
        hosts = ["*.example.org"]
        route = [{ path = "/only", pool = "b" }]
    "#;

    fn request() -> Request<'static> {
        head::request(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap().unwrap().0
    }

    fn pool_of<'a>(sites: &'a Sites, uri: &Uri<'_>) -> Option<&'a Arc<ServerPool>> {
        match sites.find(uri, &request()) {
            Ok(Found { target: Target::Pool(pool), .. }) => Some(pool),
            _ => None,
        }
    }

    fn sites(toml: &str) -> Sites {
        Settings::new(&Config::from_toml(toml).unwrap()).unwrap().sites.unwrap()
    }

    /// A file can have ten thousand sites with a route each, so both are small: keys that most of
    /// them lack are in boxes.
    #[test]
    fn site_and_route_take_little_memory() {
        let of_file = size_of::<edge::Site>() + size_of::<edge::Route>();
        let of_table = size_of::<SiteRoutes>() + size_of::<SiteRoute>();
        assert!(of_file <= 512 && of_table <= 256, "{of_file} {of_table}");
    }

    /// Returns the name of the pool, or the reason why there is none.
    fn found(sites: &Sites, uri: &str) -> String {
        let uri = Uri::parse(uri).unwrap();
        match sites.find(&uri, &request()) {
            Ok(Found { target: Target::Pool(pool), .. }) => pool.name.clone().unwrap().into(),
            Ok(other) => format!("{other:?}"),
            Err(why) => format!("{why:?}"),
        }
    }

    #[test]
    fn host_and_path_select_the_pool() {
        let sites = sites(TOML);
        for (uri, expected) in [
            ("http://www.example.org/", "a"),
            ("http://WWW.Example.ORG.:8080/x", "a"),
            ("http://www.example.org/admin", "b"),
            ("http://www.example.org/admin?x", "b"),
            ("http://www.example.org/administrator", "a"),
            ("http://www.example.org/up", "b"),
            ("http://www.example.org/up/", "a"),
            ("http://a.b.example.org/only/x", "b"),
            ("http://a.example.org/", "Path"),
            ("http://www.example.com/", "Host"),
        ] {
            assert_eq!(found(&sites, uri), expected, "{uri}");
        }
    }

    #[test]
    fn hostile_path_passes_no_route() {
        let sites = sites(TOML);
        for path in [
            "//admin",
            "/./admin",
            "/x/../admin",
            "/x/%2e%2e/admin",
            "/x/%2E./admin",
            "/x%2f..%2fadmin",
            "/x\\..\\admin",
            "/x%5c..%5cadmin",
            "/x/..;/admin",
            "/;/admin",
            "/admin/../x",
            "/admin%2f../x",
            "/admin;x",
            "/admin%00",
            "/up;x",
            "/x%5cy/..%2fadmin",
            "/x%5cy%2f..%2fadmin",
            "/x\\y%2f..%2fadmin",
            "/a%2fb\\..\\admin",
            "/x/y%2fz/../..%2fadmin",
            "/z/..;/admin/..%3b/",
            "/z/../admin/%2e%2e/",
            "/x;a%2fb/admin%2fc",
            "/admin/%2e%2e%2fadmin/x",
        ] {
            assert_eq!(found(&sites, &format!("http://www.example.org{path}")), "Ambiguous", "{path}");
        }
        for (path, expected) in [
            ("/%61dmin", "b"),
            ("/a%2fb", "a"),
            ("/https%3A%2F%2fb%5Cc\\d", "a"),
            ("/a//b;c/d;e", "a"),
            ("/a/b/../c", "a"),
            ("/admin/./x", "b"),
            ("/up/.", "a"),
            ("/admin//x%2fy;z", "b"),
            ("/a%20b", "a"),
            ("/%2561dmin", "a"),
            ("/ADMIN", "a"),
        ] {
            assert_eq!(found(&sites, &format!("http://www.example.org{path}")), expected, "{path}");
        }
    }

    #[test]
    fn site_without_hosts_has_all_others() {
        let sites = sites(&format!("{TOML}\n[[site]]\nroute = [{{ pool = \"b\" }}]"));
        assert_eq!(found(&sites, "http://www.example.com/"), "b");
        assert_eq!(found(&sites, "http://www.example.org/"), "a");
        assert_eq!(sites.authority().unwrap().to_string(), "127.0.0.1:2");
    }

    #[test]
    fn one_line_form_follows_sites_without_pools() {
        let of_redirects = sites("[[site]]\nroute = [{ redirect = { location = \"https://{host}{uri}\" } }]");
        assert!(of_redirects.pools.is_empty());
        let origin = || Server::tcp("a", 1, false);
        for before in [of_redirects, sites(TOML), Sites::of_origin(origin(), None)] {
            assert_eq!(Sites::of_origin(origin(), Some(&before)).pools.len(), 1);
        }
    }

    #[test]
    fn key_has_the_pool() {
        let sites = sites(TOML);
        let uri = Uri::parse("http://www.example.org/admin?x").unwrap();
        let mut key = String::new();
        Resource { uri, pool: pool_of(&sites, &uri), manner: Manner::default() }.write_key(&mut key);
        assert_eq!(key, "http://www.example.org/admin?x#b");
        let one = Sites::of_origin(Server::tcp("a", 1, false), None);
        key.clear();
        Resource { uri, pool: pool_of(&one, &uri), manner: Manner::default() }.write_key(&mut key);
        assert_eq!(key, "http://www.example.org/admin?x");
    }
}
