//! Checks of `[pool.NAME]` and `[[site]]`, and the table of sites made from them. All problems are
//! reported at once; each text begins with the key, with sites and routes numbered from 1.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use strait_http::target::{Authority, Uri};

use crate::config::auth::UserFiles;
use crate::config::check::refused;
use crate::config::edge::{self, Balance, Check, Redirect, Respond};
use crate::config::entry::Entry;
use crate::config::error::Result;
use crate::config::file::Config;
use crate::config::keys::KeyFields;
use crate::config::member::MemberOptions;
use crate::config::pool::{SERVERS_MAX, ServerPool};
use crate::config::prefixes::{PATH_BYTES_MAX, Prefixes};
use crate::config::route_name::RouteName;
use crate::config::rules::{AuthRequest, Guards};
use crate::config::rules_check::{Policies, rules, why_no_fields, why_no_value};
use crate::config::schema::hint;
use crate::config::server::Server;
use crate::config::sites::{Directory, FixedResponse, SiteRoute, SiteRoutes, Sites, Target};
use crate::config::sticky;

const WEIGHT_MAX: u32 = 1000;
/// Maximum of routes with the same path: their conditions are compared one after the other.
const ROUTES_OF_PATH_MAX: usize = 64;
/// Maximum of fields in the conditions of routes with the same path: each stored response has them
/// all in its key.
const CONDITION_FIELDS_MAX: usize = 32;
/// Maximum length in bytes of the body of a fixed response.
const BODY_BYTES_MAX: usize = 64 << 10;

/// Makes the sites of a reverse proxy, with the state of the servers in `before`; `None` for a
/// forward proxy.
pub(crate) fn sites(
    config: &Config,
    policies: Policies,
    key_fields: &KeyFields,
    before: Option<&Sites>,
) -> Result<Option<Sites>> {
    let origin = config.origin.as_deref().map(Server::parse).transpose()?;
    let has_sites = !config.pool.is_empty() || !config.site.is_empty();
    match origin {
        Some(_) if has_sites => {
            let text = "origin: [[site]] and [pool.NAME] name the origins already; remove it";
            refused(&[text.to_owned()]).map(|()| None)
        }
        Some(origin) => Ok(Some(Sites::of_origin(origin, before))),
        None if !has_sites => Ok(None),
        None => {
            let earlier = before.map(Sites::guards).unwrap_or_default();
            let mut table = Table { policies, earlier, ..Table::default() };
            table.pools(&config.pool, before);
            table.sites(&config.site);
            table.key_fields(key_fields);
            table.https(config);
            table.finish(&config.hosts).map(Some)
        }
    }
}

/// Sites that are being made, and the problems found so far.
#[derive(Default)]
struct Table {
    sites: Sites,
    pools: BTreeMap<String, Arc<ServerPool>>,
    /// Pools that a route names.
    used: BTreeSet<String>,
    problems: Vec<String>,
    policies: Policies,
    /// Limits and users before a reload.
    earlier: Guards,
    user_files: UserFiles,
}

impl Table {
    fn finish(mut self, hosts: &[String]) -> Result<Sites> {
        if !hosts.is_empty() {
            self.problem("hosts", "write the hosts of each site in its [[site]]");
        }
        let unused: Vec<_> = self.pools.keys().filter(|name| !self.used.contains(*name)).cloned().collect();
        for name in unused {
            self.problem(
                &format!("pool.{name}.servers"),
                "no route uses this pool; remove it, or name it in a [[site.route]]",
            );
        }
        refused(&self.problems)?;
        self.sites.targets.shrink_to_fit();
        self.sites.routes.shrink_to_fit();
        Ok(Sites { pools: self.pools.into_values().collect(), ..self.sites })
    }

    fn problem(&mut self, key: &str, why: &str) {
        self.problems.push(format!("{key}: {why}"));
    }

    fn pools(&mut self, pools: &BTreeMap<String, edge::Pool>, before: Option<&Sites>) {
        for (name, config) in pools {
            let key = format!("pool.{name}.servers");
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
            if name.is_empty() || !name.bytes().all(is_part) {
                self.problem(&key, "the name of a pool consists of letters, digits, '-' and '_'");
            }
            if !(1..=SERVERS_MAX).contains(&config.servers.len()) {
                let why = format!(
                    "{} servers; a pool has 1 to {SERVERS_MAX}, for example [\"127.0.0.1:8080\"]",
                    config.servers.len()
                );
                self.problem(&key, &why);
            }
            if let Some(why) = config.check.as_ref().and_then(why_no_check) {
                self.problem(&format!("pool.{name}.check"), why);
            }
            if let Balance::Header(field) = &config.balance
                && self.policies.forwarded.drops(field)
            {
                let why = "this field is dropped from every request (forwarded)";
                self.problem(&format!("pool.{name}.balance"), why);
            }
            if config.outlier.is_some() && config.balance.is_by_hash() {
                let why = "by a hash, clients choose their server and could make it slow; remove it, \
                           or set balance = \"round-robin\"";
                self.problem(&format!("pool.{name}.outlier"), why);
            }
            if let Some((key, why)) = sticky::why_not(config) {
                self.problem(&format!("pool.{name}.{key}"), why);
            }
            let mut entries: Vec<Entry> = Vec::new();
            for text in &config.servers {
                match entry(text) {
                    Ok(entry) if entries.iter().any(|other| other.server == entry.server) => {
                        self.problem(&key, &format!("\"{text}\" occurs twice; give it a weight instead"));
                    }
                    Ok(entry) => entries.push(entry),
                    Err(why) => self.problem(&key, &format!("\"{text}\": {why}")),
                }
            }
            if !entries.is_empty() && entries.iter().all(|entry| entry.options.is_backup) {
                self.problem(&key, "all servers are backups; write at least one without backup");
            }
            let mut pool = ServerPool::new(Some(name), config, entries);
            let is_same = |other: &&Arc<ServerPool>| other.name == pool.name;
            if let Some(same) = before.and_then(|before| before.pools.iter().find(is_same)) {
                pool.take_over(same);
            }
            self.pools.insert(name.clone(), Arc::new(pool));
        }
    }

    fn sites(&mut self, sites: &[edge::Site]) {
        if sites.is_empty() {
            self.problem("pool", "there is no [[site]] that uses the pools; a site has hosts and routes");
        }
        for (index, site) in sites.iter().enumerate() {
            let key = format!("site[{}]", index + 1);
            self.hosts(&key, &site.hosts, index);
            if site.route.is_empty() {
                self.problem(&key, "no route: add [[site.route]] with pool, files, redirect or respond");
            }
            let mut routes = Prefixes::default();
            for (index, route) in site.route.iter().enumerate() {
                let name = RouteName::new(&format!("{key}.route[{}]", index + 1), &site.hosts, route);
                self.route(&name, route, &mut routes);
            }
            self.sites.routes.push(SiteRoutes { routes, is_https_only: site.https });
        }
    }

    /// Makes the redirection to https, which needs an address with TLS.
    fn https(&mut self, config: &Config) {
        let Some(address) = config.tls.listen.first() else {
            let with_https = config.site.iter().position(|site| site.https);
            if let Some(index) = with_https {
                let key = format!("site[{}].https", index + 1);
                self.problem(&key, "no address has TLS; set tls.listen, for example [\"0.0.0.0:443\"]");
            }
            return;
        };
        let port = config.tls.https_port.unwrap_or(address.port());
        let port = if port == 443 { String::new() } else { format!(":{port}") };
        self.sites.to_https =
            Redirect { location: format!("https://{{host}}{port}{{uri}}"), ..Redirect::default() };
    }

    fn hosts(&mut self, key: &str, hosts: &[String], index: usize) {
        if hosts.is_empty() && self.sites.hosts.default.replace(index).is_some() {
            self.problem(key, "two sites have no hosts, and only one can have all other hosts");
        }
        let key = format!("{key}.hosts");
        for text in hosts {
            if let Err(why) = self.sites.hosts.add(text, index) {
                self.problem(&key, &format!("\"{text}\" {why}"));
            }
        }
    }

    fn route(&mut self, name: &RouteName, route: &edge::Route, routes: &mut Prefixes<usize>) {
        let key = &*name.position;
        let rules = rules(route, name, &self.policies, &self.earlier, &mut self.user_files);
        let mut rules = rules.unwrap_or_else(|problems| {
            self.problems.extend(problems);
            None
        });
        if let Some(asked) = &route.auth_request {
            let asked = self.auth_request(&format!("{key}.auth_request"), asked, route);
            // It has rules, because of this one, unless others are wrong.
            if let Some(rules) = &mut rules {
                rules.auth_request = asked;
            }
        }
        let Some(target) = self.target(key, route) else { return };
        let index = self.sites.targets.len();
        self.sites.targets.push(SiteRoute { target, rules, next: None, key_fields: None });
        let (name, path) = match (&route.path, &route.path_exact) {
            (Some(_), Some(_)) => {
                return self
                    .problem(&format!("{key}.path_exact"), "the route has a path as well; use two routes");
            }
            (None, Some(path)) => ("path_exact", path.as_str()),
            (path, None) => ("path", path.as_deref().unwrap_or("/")),
        };
        if let Some(why) = why_no_path(path) {
            return self.problem(&format!("{key}.{name}"), &format!("\"{path}\": {why}"));
        }
        let is_new = if name == "path" { routes.add(path, index) } else { routes.add_exact(path, index) };
        let first = routes.of(path, name == "path_exact").filter(|_| !is_new);
        if let Some(why) = first.and_then(|first| self.chain(first, index)) {
            self.problem(&format!("{key}.{name}"), &format!("\"{path}\": {why}"));
        }
    }

    /// Returns the request that asks a pool for a route.
    fn auth_request(
        &mut self,
        key: &str,
        asked: &edge::AuthRequest,
        route: &edge::Route,
    ) -> Option<AuthRequest> {
        let path = asked.path.as_str();
        let is_path =
            path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
        if route.pool.is_none() {
            self.problem(key, "only requests of a route with a pool are asked for; remove it");
        } else if !is_path || path.len() > PATH_BYTES_MAX {
            self.problem(
                &format!("{key}.path"),
                "expected a path of at most 1024 bytes, for example \"/check\"",
            );
        }
        let Some(pool) = self.pools.get(&asked.pool).cloned() else {
            let known: Vec<_> = self.pools.keys().map(String::as_str).collect();
            let hint = hint(&asked.pool, known.into_iter());
            self.problem(
                &format!("{key}.pool"),
                &format!("there is no [pool.{}]{hint}", asked.pool.escape_default()),
            );
            return None;
        };
        self.used.insert(asked.pool.clone());
        Some(AuthRequest { pool, path: path.into() })
    }

    /// Makes the fields in the conditions of a path's routes key fields of all these routes: the
    /// values have selected the route, or have not selected one before it. The keys of a route's
    /// cache policy are those of this route alone.
    fn key_fields(&mut self, of_all: &KeyFields) {
        let targets = &mut self.sites.targets;
        let later: BTreeSet<_> = targets.iter().filter_map(|route| route.next).collect();
        for first in (0..targets.len()).filter(|index| !later.contains(index)) {
            let next = |at: &usize| targets.get(*at)?.next;
            let chain: Vec<_> = std::iter::successors(Some(first), next).collect();
            let rules = chain.iter().filter_map(|at| targets.get(*at)?.rules.as_ref());
            let mut names: BTreeSet<_> = rules.flat_map(|rules| rules.conditions.key_fields()).collect();
            let is_chosen = !names.is_empty();
            names.extend(of_all.iter().cloned());
            let of_path: KeyFields = names.iter().cloned().collect();
            for at in chain {
                let Some(route) = targets.get_mut(at) else { continue };
                let cache = route.rules.as_ref().and_then(|rules| rules.cache.as_ref());
                let own = cache.map(|cache| &*cache.keys).filter(|own| !own.is_empty());
                route.key_fields = match own {
                    Some(own) => {
                        let all: BTreeSet<_> = names.iter().chain(own).cloned().collect();
                        Some(all.into_iter().collect())
                    }
                    None => is_chosen.then(|| of_path.clone()),
                };
            }
        }
    }

    /// Appends a route to those with the same path. Returns the reason why it never applies.
    fn chain(&mut self, first: usize, index: usize) -> Option<&'static str> {
        let conditions = |route: &SiteRoute| route.rules.as_ref().map(|rules| rules.conditions.clone());
        let own = self.sites.targets.get(index).and_then(conditions).unwrap_or_default();
        let mut fields: BTreeSet<_> = own.key_fields().collect();
        let mut at = first;
        for _ in 0..ROUTES_OF_PATH_MAX {
            let route = self.sites.targets.get_mut(at)?;
            let before = conditions(route).unwrap_or_default();
            if before.are_none() || before == own {
                return Some("the route never matches, because a route before it has the same path");
            }
            fields.extend(before.key_fields());
            if fields.len() > CONDITION_FIELDS_MAX {
                return Some(
                    "the routes with this path have too many fields in has_headers; the maximum is 32",
                );
            }
            let Some(next) = route.next else {
                route.next = Some(index);
                return None;
            };
            at = next;
        }
        Some("too many routes have this path; the maximum is 64")
    }

    fn target(&mut self, key: &str, route: &edge::Route) -> Option<Target> {
        if route.precompressed && route.files.is_none() {
            self.problem(&format!("{key}.precompressed"), "only a route with files has some; remove it");
        }
        match (&route.pool, &route.files, &route.redirect, &route.respond) {
            (None, Some(path), None, None) => Some(Target::Files(Directory {
                path: path.clone(),
                is_precompressed: route.precompressed,
                is_exact: route.path_exact.is_some(),
            })),
            (Some(name), None, None, None) => {
                let pool = self.pools.get(name).cloned();
                if pool.is_some() {
                    self.used.insert(name.clone());
                } else {
                    let hint = hint(name, self.pools.keys().map(String::as_str));
                    self.problem(&format!("{key}.pool"), &format!("there is no [pool.{name}]{hint}"));
                }
                pool.map(Target::Pool)
            }
            (None, None, Some(redirect), None) => match why_no_redirect(redirect) {
                None => Some(Target::Redirect((**redirect).clone())),
                Some(why) => {
                    self.problem(&format!("{key}.redirect"), &why);
                    None
                }
            },
            (None, None, None, Some(respond)) => match fixed(respond) {
                Ok(response) => Some(Target::Fixed(response)),
                Err(why) => {
                    self.problem(&format!("{key}.respond"), &why);
                    None
                }
            },
            _ => {
                self.problem(key, "a route has one target: pool, files, redirect or respond");
                None
            }
        }
    }
}

/// Parses a server of a pool with its options.
fn entry(text: &str) -> Result<Entry, String> {
    let mut words = text.split_ascii_whitespace();
    let address = words.next().unwrap_or_default();
    let mut options = MemberOptions::default();
    for word in words {
        let number = |name: &str, max: u32| {
            let number = word.strip_prefix(name)?.parse().ok()?;
            (1..=max).contains(&number).then_some(number)
        };
        if word == "backup" {
            options.is_backup = true;
        } else if let Some(weight) = number("weight=", WEIGHT_MAX) {
            options.weight = weight;
        } else if let Some(connections) = number("connections=", u32::MAX) {
            options.connections = Some(connections);
        } else {
            return Err(format!(
                "\"{word}\": expected weight=1 to weight={WEIGHT_MAX}, connections=1 or more, or backup"
            ));
        }
    }
    if let Some(service) = Server::service(address) {
        if options.weight != 1 {
            return Err("the SRV records have the weights; remove weight".to_owned());
        }
        return Ok(Entry::new(service?, options));
    }
    let server = Server::unix(address).map_or_else(|| server(address), |unix| Ok(unix?))?;
    server.why_no_host().map_or(Ok(Entry::new(server, options)), |why| Err(why.to_owned()))
}

/// Parses `HOST:PORT`, with `http://` or `https://` or without a scheme.
fn server(address: &str) -> Result<Server, String> {
    let expected =
        "expected HOST:PORT, http://HOST:PORT, https://HOST:PORT, srv://_SERVICE._PROTO.DOMAIN or unix:/PATH";
    if address.contains("://") {
        let uri = Uri::parse(address).map_err(|error| format!("{error}; {expected}"))?;
        if !matches!(uri.path, "" | "/") {
            return Err(format!("it has a path; {expected}"));
        }
        return Ok(Server::of(&uri));
    }
    let authority = Authority::parse(address).map_err(|_| expected.to_owned())?;
    let port = authority.port.ok_or_else(|| format!("it has no port; {expected}"))?;
    let host = authority.host.to_string();
    Ok(Server::tcp(host.trim_matches(['[', ']']), port, false))
}

/// Returns the reason why a check cannot be sent.
fn why_no_check(check: &Check) -> Option<&'static str> {
    let is_text = |text: &String| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    if check.path.as_ref().is_some_and(|path| !path.starts_with('/') || !is_text(path)) {
        Some("path: expected a path, for example \"/healthz\"")
    } else if check.host.as_ref().is_some_and(|host| Authority::parse(host).is_err()) {
        Some("host: expected a host, for example \"app.example.org\"")
    } else if check.path.is_none() && (check.host.is_some() || check.status.is_some()) {
        Some("host and status need a path: without one the check is a connection")
    } else {
        None
    }
}

/// Returns the reason why a path cannot be that of a route. Paths of requests are compared in all
/// their forms, decoded, and a path that no form can have never matches.
fn why_no_path(path: &str) -> Option<&'static str> {
    let has_part = |parts: &[&str]| path.split('/').skip(1).any(|part| parts.contains(&part));
    if !path.starts_with('/') {
        Some("a path begins with /")
    } else if path.len() > PATH_BYTES_MAX {
        Some("the path is too long; the maximum is 1024 bytes")
    } else if path.contains(['%', '\\', ';', '?', '#', '*'])
        || path.chars().any(|it| it.is_control() || it == ' ')
    {
        Some(
            "write the path decoded, without query, parameters, patterns and spaces: /a matches all paths below it",
        )
    } else if path.contains("//") || has_part(&[".", ".."]) {
        Some("the route never matches, because the path has empty or dot segments")
    } else {
        None
    }
}

fn why_no_redirect(redirect: &Redirect) -> Option<String> {
    let Redirect { status, location } = redirect;
    if ![301, 302, 303, 307, 308].contains(status) {
        return Some(format!("status {status} is no redirection; expected 301, 302, 303, 307 or 308"));
    }
    // After a lone slash, a path of the request could continue an authority: //evil.example.
    let path = |rest: &str| !rest.starts_with(['/', '\\', '{']);
    let is_whole = ["http://", "https://"]
        .iter()
        .any(|scheme| location.strip_prefix(scheme).is_some_and(begins_with_authority));
    let is_ascii = location.bytes().all(|byte| byte.is_ascii_graphic());
    let is_valid = is_ascii && (is_whole || location.strip_prefix('/').is_some_and(path));
    (!is_valid).then(|| format!("location = \"{location}\": expected a URI or a path, for example \"https://{{host}}{{uri}}\" or \"/new\""))
}

/// Returns true if a whole URI without its scheme has an authority before the path of the request,
/// which would be read as one otherwise: `https://{uri}` is `https:///evil.example`.
fn begins_with_authority(rest: &str) -> bool {
    let ends = ["/", "?", "#", "\\", "{uri}"].into_iter().filter_map(|end| rest.find(end));
    let authority = rest.get(..ends.min().unwrap_or(rest.len())).unwrap_or_default();
    let authority = authority.replace("{host}", "host");
    !authority.ends_with(['.', ':']) && Authority::parse(&authority).is_ok()
}

/// Returns the response of a route.
fn fixed(respond: &Respond) -> Result<FixedResponse, String> {
    let Respond { status, body, headers } = respond;
    if !(200..=599).contains(status) {
        return Err(format!("status {status}: expected 200 to 599"));
    }
    if matches!(status, 204 | 205 | 304) && !body.is_empty() {
        return Err(format!("a response with status {status} has no body; remove body"));
    }
    if body.len() > BODY_BYTES_MAX {
        return Err(format!("a body of {} bytes; the maximum is {BODY_BYTES_MAX}", body.len()));
    }
    if let Some(why) = why_no_fields(headers) {
        return Err(format!("headers: {why}"));
    }
    let mut field_lines = Vec::new();
    for (name, value) in headers {
        if let Some(why) = why_no_field(name, value) {
            return Err(format!("headers: \"{name}\": {why}"));
        }
        field_lines.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    let has_type = headers.keys().any(|name| name.eq_ignore_ascii_case("content-type"));
    if !has_type && !body.is_empty() {
        field_lines.extend_from_slice(b"Content-Type: text/plain; charset=utf-8\r\n");
    }
    Ok(FixedResponse { status: *status, field_lines, body: body.clone().into_bytes() })
}

/// Returns the reason why a response cannot have a field.
fn why_no_field(name: &str, value: &str) -> Option<&'static str> {
    const OF_THE_PROXY: [&str; 9] = [
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "via",
    ];
    if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
        Some("not a field name")
    } else if OF_THE_PROXY.iter().any(|own| own.eq_ignore_ascii_case(name)) {
        Some("the proxy writes this field itself; remove it")
    } else {
        why_no_value(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_has_an_authority_before_the_path_of_the_request() {
        let why = |location: &str| {
            why_no_redirect(&Redirect { location: location.to_owned(), ..Redirect::default() })
        };
        for location in [
            "https://{host}{uri}",
            "https://{host}:8443{uri}",
            "http://www.{host}/a{uri}",
            "https://www.example.org",
            "https://www.example.org?of={uri}",
            "https://[2001:db8::1]/",
            "/new{uri}",
        ] {
            assert_eq!(why(location), None, "{location}");
        }
        for location in [
            "https://",
            "https://{uri}",
            "https:///{uri}",
            "https://{host}.{uri}",
            "https://{host}:{uri}",
            "https://a@{host}{uri}",
            "https://\\{uri}",
            "https://{path}",
            "/{uri}",
        ] {
            assert!(why(location).is_some_and(|why| why.contains("expected a URI")), "{location}");
        }
    }
}
