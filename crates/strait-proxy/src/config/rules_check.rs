//! Checks of the rules of a route, and the rules made from the file. Each text begins with the key.

use std::collections::BTreeMap;
use std::sync::Arc;

use strait_http::chunked::is_token;
use strait_http::forwarded::Policy;
use strait_http::lifetimes::LifetimePolicy;
use strait_http::rules::{Change, why_no_request_rule, why_no_response_rule};
use strait_http::target::Authority;

use crate::config::auth::{BasicAuth, UserFiles};
use crate::config::cache_rules::{CacheRules, CookieRules};
use crate::config::compress::Compression;
use crate::config::edge::{AuthRequest, Compress, Headers, Rate, Route, RouteCache};
use crate::config::path_regex::PathRegex;
use crate::config::rate::RateLimit;
use crate::config::rewrite::Rewrite;
use crate::config::route_access::RouteAccess;
use crate::config::route_limits::RouteLimits;
use crate::config::route_name::RouteName;
use crate::config::rules::{Conditions, FieldChanges, Guards, RequestRules, ResponseRules, Rules};
use crate::config::variables::{self, VALUE_BYTES_MAX};

/// Maximum of fields that a route changes: each is compared with each field of a message. With the
/// next two limits it bounds the heads that the proxy writes
/// (`strait_http::head::OWN_HEAD_BYTES_MAX`).
pub(crate) const FIELDS_MAX: usize = 32;
/// Maximum length in bytes of the name of a field.
pub(crate) const NAME_BYTES_MAX: usize = 256;

/// Policies of all routes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Policies {
    /// For the forwarding fields.
    pub(crate) forwarded: Policy,
    /// For lifetimes.
    pub(crate) lifetimes: LifetimePolicy,
}

/// Returns the rules of a route with the limits that it had in `before`; `None` if it has none.
/// `files` has the files of users that were read for other routes.
pub(crate) fn rules(
    route: &Route,
    name: &RouteName,
    policies: &Policies,
    before: &Guards,
    files: &mut UserFiles,
) -> Result<Option<Box<Rules>>, Vec<String>> {
    let (key, policy, mut problems) = (&name.position, policies.forwarded, Vec::new());
    let conditions = conditions(route, policy).unwrap_or_else(|why| {
        problems.push(format!("{key}.{why}"));
        Conditions::default()
    });
    let rewrite = rewrite(route, &conditions).unwrap_or_else(|why| {
        problems.push(format!("{key}.rewrite: {why}"));
        None
    });
    let mut rules = Rules { conditions, rewrite, ..Rules::default() };
    if let Some(headers) = &route.request_headers {
        if route.pool.is_none() {
            problems.push(format!(
                "{key}.request_headers: only a route with a pool sends requests; remove it, or use response_headers"
            ));
        }
        let why = |name: &str, change| match why_no_request_rule(name, change) {
            None if policy.rewrites(name) => Some("the setting `forwarded` governs this field"),
            why => why,
        };
        problems.extend(changes(&format!("{key}.request_headers"), headers, why));
        let mut values = headers.set.values().chain(headers.add.values());
        if policy == Policy::Off && values.any(|value| variables::names_scheme(value)) {
            problems.push(format!("{key}.request_headers: {NO_SCHEME}"));
        }
        rules.request = Some(Arc::new(request(headers)));
    }
    if let Some(headers) = &route.response_headers {
        problems.extend(changes(&format!("{key}.response_headers"), headers, why_no_response_rule));
        rules.response = Some(Arc::new(response(headers)));
    }
    problems.extend(add_limits(&mut rules, route, name, before));
    if let Some(rate) = &route.rate {
        problems.extend(why_no_rate(rate, policy).map(|why| format!("{key}.rate{why}")));
        rules.rate = Some(Arc::new(RateLimit::new(name, rate, &before.limits)));
    }
    if let Some(auth) = &route.auth {
        match BasicAuth::new(name, auth, &before.auths, files) {
            Ok(users) => rules.auth = Some(Arc::new(users)),
            Err(why) => problems.push(format!("{key}.auth{why}")),
        }
        if !auth.keep && route.pool.is_some() {
            let mut request = rules.request.as_deref().cloned().unwrap_or_default();
            request.dropped.push("authorization".into());
            rules.request = Some(Arc::new(request));
        }
    }
    if let Some(cache) = &route.cache {
        let added = add_cache(&mut rules, cache, route, &policies.lifetimes);
        problems.extend(added.err().map(|why| format!("{key}.cache{why}")));
    }
    if let Some(compress) = &route.compress {
        problems
            .extend(add_compression(&mut rules, compress, route).map(|why| format!("{key}.compress{why}")));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let text = key_text(&rules, route);
    rules.key = (!text.is_empty()).then(|| hash(&text));
    let are_needed = rules.are_any() || route.auth_request.is_some();
    Ok(are_needed.then(|| Box::new(rules)))
}

/// Adds the cache policy of a route to its rules, or returns the reason why it is wrong, after its
/// key.
fn add_cache(
    rules: &mut Rules,
    cache: &RouteCache,
    route: &Route,
    base: &LifetimePolicy,
) -> Result<(), String> {
    if route.pool.is_none() {
        return Err(": only responses of a pool are stored; remove it".to_owned());
    }
    rules.cache = Some(Arc::new(CacheRules::new(cache, base)?));
    let dropped_cookies = CookieRules::new(cache)?;
    if !dropped_cookies.are_none() {
        let request = rules.request.as_deref().cloned().unwrap_or_default();
        rules.request = Some(Arc::new(RequestRules { dropped_cookies, ..request }));
    }
    Ok(())
}

/// Adds the limits and the networks of a route to its rules, or returns the reasons why they are
/// wrong.
fn add_limits(rules: &mut Rules, route: &Route, name: &RouteName, before: &Guards) -> Vec<String> {
    let (key, mut problems) = (&name.position, Vec::new());
    match RouteLimits::new(route) {
        Ok(limits) => rules.limits = limits,
        Err((own, why)) => problems.push(format!("{key}.{own}: {why}")),
    }
    match route.access.as_ref().map(|access| RouteAccess::new(name, access, &before.accesses)) {
        Some(Ok(access)) => rules.access = Some(Arc::new(access)),
        Some(Err(why)) => problems.push(format!("{key}.access{why}")),
        None => {}
    }
    problems
}

/// Adds the compression of a route to its rules for responses, or returns the reason why it is
/// wrong, after its key.
fn add_compression(rules: &mut Rules, compress: &Compress, route: &Route) -> Option<String> {
    if route.pool.is_none() {
        return Some(": only responses of a pool are stored and compressed; remove it".to_owned());
    }
    let mut response = rules.response.as_deref().cloned().unwrap_or_default();
    match Compression::new(compress, rules.request.as_deref(), rules.response.as_deref()) {
        Ok(compression) => response.compression = Some(compression),
        Err(why) => return Some(why),
    }
    rules.response = Some(Arc::new(response));
    None
}

/// Returns the reason why the conditions of a route are wrong, after its key.
fn why_no_conditions(route: &Route, policy: Policy) -> Option<String> {
    let Route { methods, has_headers, .. } = route;
    if methods.len() + has_headers.len() > FIELDS_MAX {
        return Some(format!("has_headers: the maximum of conditions is {FIELDS_MAX}"));
    }
    let is_method = |method: &&String| is_token(method.as_bytes()) && method.to_ascii_uppercase() == **method;
    if let Some(method) = methods.iter().find(|method| !is_method(method)) {
        let method = method.escape_default();
        return Some(format!(
            "methods: \"{method}\" is no method; methods are in upper case, for example \"GET\""
        ));
    }
    has_headers.iter().find_map(|(name, value)| {
        let why = match why_no_request_rule(name, Change::Remove).or_else(|| why_no_value(value)) {
            _ if name.eq_ignore_ascii_case("host") => "the hosts of the site select by it",
            None if name.eq_ignore_ascii_case("forwarded") => {
                "the cache key has its hosts and schemes alone; use another field"
            }
            None if policy.drops(name) => "this field is dropped from every request (forwarded)",
            why => why?,
        };
        Some(format!("has_headers: \"{}\": {why}", name.escape_default()))
    })
}

/// Returns the conditions of a route, or the reason why they are wrong, after its key.
fn conditions(route: &Route, policy: Policy) -> Result<Conditions, String> {
    if let Some(why) = why_no_conditions(route, policy) {
        return Err(why);
    }
    let path = match &route.path_regex {
        Some(_) if route.path_exact.is_some() => {
            return Err(
                "path_regex: the route has one path alone (path_exact); remove one of them".to_owned()
            );
        }
        Some(text) => Some(PathRegex::new(text).map_err(|why| format!("path_regex = {text:?}: {why}"))?),
        None => None,
    };
    let value = |value: &str| (value != "*").then(|| value.into());
    let field = |(name, text): (&String, &String)| (name.to_ascii_lowercase().into(), value(text));
    Ok(Conditions {
        path,
        methods: route.methods.iter().map(|method| method.as_str().into()).collect(),
        fields: route.has_headers.iter().map(field).collect(),
    })
}

/// Returns the replacement of the path, or the reason why it is wrong.
fn rewrite(route: &Route, conditions: &Conditions) -> Result<Option<Rewrite>, &'static str> {
    let Some(to) = &route.rewrite else { return Ok(None) };
    if route.pool.is_none() && route.files.is_none() {
        return Err("only a route with a pool or with files uses the path; remove it");
    }
    let from = route.path.as_deref().or(route.path_exact.as_deref()).unwrap_or("/");
    Rewrite::new(from, conditions.path.as_ref(), to).map(Some)
}

/// Returns the reason why a limit is wrong, after its key.
fn why_no_rate(rate: &Rate, policy: Policy) -> Option<String> {
    match rate.field.as_deref() {
        _ if rate.requests == 0 => {
            Some(": it has no number of requests; write for example { requests = 10 }".to_owned())
        }
        Some(name) if !is_token(name.as_bytes()) => {
            Some(format!(".field = \"{}\": this is not a field name", name.escape_default()))
        }
        Some(name) if policy.drops(name) => {
            Some(format!(".field = \"{name}\": this field is dropped from every request (forwarded)"))
        }
        _ => None,
    }
}

/// Returns the rules that change, select or admit the requests to the origin, as text. The path
/// is in the key as the origin gets it, so that an expression for it need not be, and methods do
/// not matter, because only responses to GET are stored.
fn key_text(rules: &Rules, route: &Route) -> String {
    // A response to a client of an allowed network never answers on a route for others.
    let mut text = rules.access.as_ref().map(|access| access.key_text()).unwrap_or_default();
    // A response to an authenticated client never answers on a route with other users.
    if let Some(users) = route.auth.as_ref().and_then(|auth| auth.users.as_ref()) {
        text.extend(["users ", &users.display().to_string(), "\n"]);
    }
    // Nor does one to a client that another server has allowed.
    if let Some(AuthRequest { pool, path }) = route.auth_request.as_deref() {
        text.extend(["ask ", pool, " ", path, "\n"]);
    }
    for (name, value) in &rules.conditions.fields {
        let value = value.as_deref().unwrap_or("*");
        text.extend(["has ", name, ": ", value, "\n"]);
    }
    if let Some(RequestRules { dropped, dropped_cookies, lines, host, .. }) = rules.request.as_deref() {
        text.extend(dropped.iter().flat_map(|name| ["drop ", name, "\n"]));
        text.push_str(&dropped_cookies.text());
        text.extend(lines.iter().flat_map(|(name, value)| ["line ", name, ": ", value, "\n"]));
        text.extend(host.iter().flat_map(|host| ["host ", host, "\n"]));
    }
    text
}

/// Returns the hash of the text of rules, as it is in keys. Stored responses outlive the process,
/// so it is the hash of their format.
fn hash(text: &str) -> Box<str> {
    format!("{:016x}", strait_store::hash_of(text.as_bytes())).into()
}

/// Returns a text for each wrong change.
fn changes(key: &str, headers: &Headers, why: impl Fn(&str, Change) -> Option<&'static str>) -> Vec<String> {
    let Headers { set, add, remove } = headers;
    let set = set.iter().map(|(name, value)| ("set", Change::Set, name, value.as_str()));
    let add = add.iter().map(|(name, value)| ("add", Change::Add, name, value.as_str()));
    let remove = remove.iter().map(|name| ("remove", Change::Remove, name, ""));
    let all: Vec<_> = set.chain(add).chain(remove).collect();
    if all.is_empty() {
        return vec![format!("{key}: it changes nothing; write set, add or remove, or leave it out")];
    }
    if all.len() > FIELDS_MAX {
        return vec![format!("{key}: {} fields; the maximum is {FIELDS_MAX}", all.len())];
    }
    let is_response = key.ends_with("response_headers");
    let mut problems = Vec::new();
    for (index, (list, change, name, value)) in all.iter().enumerate() {
        let is_host = name.eq_ignore_ascii_case("host");
        let is_same = |(_, _, other, _): &(_, _, &String, _)| other.eq_ignore_ascii_case(name);
        let why = match why(name, *change).or_else(|| why_no_value(value)) {
            None if is_response && variables::are_in(value) => Some(VARIABLE),
            None if is_host && (value.is_empty() || Authority::parse(value).is_err()) => {
                Some("expected a host, or HOST:PORT")
            }
            None if name.len() > NAME_BYTES_MAX => Some(LONG_NAME),
            None if all.iter().take(index).any(is_same) => {
                Some("the field occurs twice; set replaces all its lines")
            }
            why => why,
        };
        problems.extend(why.map(|why| format!("{key}.{list}: \"{}\": {why}", name.escape_default())));
    }
    problems
}

/// Returns the reason why the fields of a fixed response cannot be sent.
pub(crate) fn why_no_fields(fields: &BTreeMap<String, String>) -> Option<&'static str> {
    if fields.len() > FIELDS_MAX {
        Some("too many fields; the maximum is 32")
    } else {
        fields.keys().any(|name| name.len() > NAME_BYTES_MAX).then_some(LONG_NAME)
    }
}

/// The key of requests over TLS has the same scheme as that of others then.
const NO_SCHEME: &str = "with forwarded = \"off\", {scheme} would be http over TLS as well; write forwarded = \"replace\", which sends the scheme in X-Forwarded-Proto too";

const VARIABLE: &str = "fields of responses have no variables: the value would be sent as it is";

const LONG_NAME: &str = "the name is too long; the maximum is 256 bytes";

/// Returns the reason why a text cannot be the value of a field: a line feed would end it, and
/// begin another field.
pub(crate) fn why_no_value(value: &str) -> Option<&'static str> {
    if value.len() > VALUE_BYTES_MAX {
        Some("the value is too long; the maximum is 4096 bytes")
    } else if !value.is_ascii() || http::HeaderValue::from_str(value).is_err() {
        Some("the value has a control character, or one outside ASCII")
    } else if value.trim() != value {
        Some("the value begins or ends with a space")
    } else {
        None
    }
}

fn request(headers: &Headers) -> RequestRules {
    let is_host = |name: &str| name.eq_ignore_ascii_case("host");
    let set = headers.set.iter().filter(|(name, _)| !is_host(name));
    let host = headers.set.iter().find(|(name, _)| is_host(name));
    let lines: Vec<(Box<str>, Box<str>)> =
        set.chain(&headers.add).map(|(name, value)| (name.as_str().into(), value.as_str().into())).collect();
    RequestRules {
        dropped: dropped(headers),
        dropped_cookies: CookieRules::default(),
        has_variables: lines.iter().any(|(_, value)| variables::are_in(value)),
        lines,
        host: host.map(|(_, value)| value.as_str().into()),
    }
}

fn response(headers: &Headers) -> ResponseRules {
    /// Fields by which clients and other caches keep a response.
    const LIFETIMES: [&str; 4] = ["cache-control", "cdn-cache-control", "expires", "surrogate-control"];
    let is_lifetime = |name: &str| LIFETIMES.iter().any(|own| own.eq_ignore_ascii_case(name));
    let part = |all: &BTreeMap<String, String>, are_lifetimes: bool| {
        let own = all.iter().filter(|(name, _)| is_lifetime(name) == are_lifetimes);
        own.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let changes = |are_lifetimes: bool| {
        let remove = if are_lifetimes { Vec::new() } else { headers.remove.clone() };
        field_changes(&Headers {
            set: part(&headers.set, are_lifetimes),
            add: part(&headers.add, are_lifetimes),
            remove,
        })
    };
    ResponseRules { changes: changes(false), lifetimes: changes(true), compression: None }
}

fn field_changes(headers: &Headers) -> FieldChanges {
    let lines = headers.set.iter().chain(&headers.add);
    let lines = lines.flat_map(|(name, value)| format!("{name}: {value}\r\n").into_bytes()).collect();
    FieldChanges { dropped: dropped(headers), lines }
}

/// Returns the names of the fields whose received lines are dropped, in lower case. Host stays: it
/// is part of the key.
fn dropped(headers: &Headers) -> Vec<Box<str>> {
    let names = headers.set.keys().chain(&headers.remove).map(|name| name.to_ascii_lowercase());
    names.filter(|name| name != "host").map(Into::into).collect()
}
