//! Settings: the checked configuration, in the form that workers use.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime};

use strait_http::forwarded::Policy;
use strait_http::lifetimes::LifetimePolicy;
use strait_http::storing;
use strait_http::target::{Host, Scheme, Uri};

use crate::config::access::{Access, Admin};
use crate::config::check;
use crate::config::dns::Dns;
use crate::config::error::{Error, Result};
use crate::config::file::{
    Abandoned, Cache, CheckHits, Config, Format, Forwarded, Http2, Timeouts, Transfer,
};
use crate::config::keys::{self, KeyFields};
use crate::config::limits::{
    self, BUFFER_BYTES, BackgroundLimits, GateLimits, ServerLimits, connections_max,
};
use crate::config::rules_check::Policies;
use crate::config::server::Server;
use crate::config::site_check;
use crate::config::sites::Sites;
use crate::config::tls::Tls;
use crate::config::trace::{Share, Tracing};
use crate::config::via::ViaName;

/// Address that the proxy listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) address: SocketAddr,
    /// True if connections begin with a PROXY header.
    pub(crate) has_proxy_header: bool,
    /// True if connections use TLS.
    pub(crate) is_tls: bool,
}

/// Settings of all workers. A reload makes new ones; requests under way keep theirs.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) ports: Vec<Port>,
    pub(crate) workers: usize,
    /// Sites of a reverse proxy; `None` for a forward proxy.
    pub(crate) sites: Option<Sites>,
    /// Ends of keys, after `#`, of the present pools and rules, and then of those before reloads,
    /// newest first: their keys may still have stored responses.
    key_ends: Vec<Box<str>>,
    /// Name in Cache-Status and in the proxy's own responses.
    pub(crate) name: String,
    /// Name in Via.
    pub(crate) via: ViaName,
    /// Served hosts, in lower case; empty: all.
    hosts: Vec<String>,
    pub(crate) forwarded: Policy,
    /// Size of the memory cache in bytes, which all workers share.
    pub(crate) memory: usize,
    pub(crate) memory_object: usize,
    /// Largest body in bytes that is kept in memory when it is requested again.
    pub(crate) memory_body_max: usize,
    pub(crate) object_max: u64,
    pub(crate) check_hits: CheckHits,
    /// Policy for lifetimes of responses, except for routes with one of their own.
    pub(crate) lifetimes: LifetimePolicy,
    /// Rules for storing responses.
    pub(crate) storing: storing::Policy,
    /// Request fields that are part of every key. Those of a request are `Worker::key_fields`.
    pub(crate) common_key_fields: KeyFields,
    /// Request fields that make a request bypass the cache; in lower case, sorted.
    pub(crate) bypass_fields: Vec<String>,
    pub(crate) abandoned: Abandoned,
    pub(crate) access: Access,
    pub(crate) timeouts: Limits,
    pub(crate) connections_max: usize,
    /// Maximum of connections of one client; 0: no limit except `connections_max`.
    pub(crate) connections_per_client_max: u32,
    /// Limits of connections in use to one origin, and of request bodies that are read ahead.
    pub(crate) gates: GateLimits,
    /// Limits of fetches without a waiting client.
    pub(crate) background: BackgroundLimits,
    pub(crate) request_body_max: u64,
    /// Minimum in bytes per second; 0: none.
    pub(crate) request_body_rate: u64,
    /// Minimum in bytes per second at which clients take responses; 0: none.
    pub(crate) response_rate: u64,
    /// Bytes of a request body that are read before the origin is contacted.
    pub(crate) ahead_bytes: usize,
    pub(crate) origin_idle_max: usize,
    pub(crate) transfer: Transfer,
    pub(crate) tls: Tls,
    /// HTTP/2 with clients.
    pub(crate) http2: Http2,
    /// Format of the access log.
    pub(crate) log_format: Format,
    /// Share of the requests in the access log.
    pub(crate) log_sample: Share,
    /// Identification of requests.
    pub(crate) tracing: Tracing,
    pub(crate) admin: Admin,
    /// Lookups of names.
    pub(crate) dns: Arc<Dns>,
    /// Once the proxy shuts down, connections end with their current response.
    pub(crate) closing: Arc<Closing>,
}

/// End of the proxy, as its connections see it.
#[derive(Debug, Default)]
pub(crate) struct Closing(AtomicU8);

impl Closing {
    const STOPS: u8 = 1;
    const HANDED_OVER: u8 = 2;

    /// Begins a shutdown, which ends idle connections. Without effect after [`Self::hand_over`].
    pub(crate) fn stop(&self) {
        self.0.fetch_max(Self::STOPS, Ordering::Relaxed);
    }

    /// Begins a shutdown in which another process accepts connections. Idle connections of HTTP/1.1
    /// end after their next response: a client may be sending a request on one now, and would get
    /// none.
    pub(crate) fn hand_over(&self) {
        self.0.store(Self::HANDED_OVER, Ordering::Relaxed);
    }

    fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Returns true if another process accepts connections.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Self::HANDED_OVER
    }

    /// Returns true if connections without a request end soon.
    pub(crate) fn ends_idle(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Self::STOPS
    }
}

/// Time limits of each phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) idle: Duration,
    pub(crate) head: Duration,
    pub(crate) client: Duration,
    pub(crate) body_grace: Duration,
    pub(crate) response_grace: Duration,
    pub(crate) body: Duration,
    pub(crate) connect: Duration,
    pub(crate) origin: Duration,
    pub(crate) origin_idle: Duration,
    pub(crate) tunnel: Duration,
    pub(crate) drain: Duration,
}

impl Settings {
    /// Checks a configuration.
    pub(crate) fn new(config: &Config) -> Result<Self> {
        Self::with(config, None, None)
    }

    /// Checks the configuration of a reload; servers keep the state that they have in `before`.
    pub(crate) fn after(config: &Config, before: &Self) -> Result<Self> {
        Self::with(config, Some(before), Some(&before.tls))
    }

    /// Checks a configuration that is not applied. Certificates of unchanged files are not parsed
    /// again.
    pub(crate) fn check_again(&self, config: &Config) -> Result<()> {
        Self::with(config, None, Some(&self.tls)).map(drop)
    }

    fn with(config: &Config, before: Option<&Self>, tls_before: Option<&Tls>) -> Result<Self> {
        check::refused(&check::bounds(config))?;
        let key_fields = keys::key_fields(&config.cache)?;
        let before_sites = before.and_then(|before| before.sites.as_ref());
        let lifetimes = lifetimes(config);
        let policies = Policies { forwarded: forwarded(config), lifetimes };
        let sites = site_check::sites(config, policies, &key_fields, before_sites);
        let sites = sites.map_err(|error| error.and(|| Tls::new(config, false, tls_before).err()))?;
        let workers = match config.workers {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            workers => workers,
        };
        let (name, via) = names(config)?;
        if config.listen.is_empty() && config.tls.listen.is_empty() {
            return Err(Error::Config("listen: no address to listen on".to_owned()));
        }
        let access = Access::new(config, sites.is_some())?;
        let tracing = Tracing::new(config, forwarded(config))?;
        let is_tls_client = sites.as_ref().is_some_and(Sites::use_tls) || tracing.exports_by_tls();
        let tls = Tls::new(config, is_tls_client, tls_before)?;
        Ok(Self {
            ports: ports(config)?,
            workers,
            key_ends: key_ends(sites.as_ref(), before),
            sites,
            name,
            via,
            hosts: hosts(config)?,
            forwarded: forwarded(config),
            memory: memory(config),
            memory_object: memory_object(config),
            memory_body_max: memory_body_max(config),
            object_max: config.cache.object.as_u64(),
            check_hits: config.cache.check_hits,
            lifetimes,
            storing: storing(config)?,
            common_key_fields: key_fields,
            bypass_fields: keys::bypass_fields(&config.cache, forwarded(config))?,
            abandoned: config.cache.abandoned,
            access,
            timeouts: Limits::new(&config.timeouts),
            connections_max: (config.limits.connections as usize).min(connections_max()),
            // One client must not take all descriptors.
            connections_per_client_max: config
                .limits
                .connections_per_client
                .min(u32::try_from(connections_max() / 2).unwrap_or(u32::MAX)),
            gates: limits::gates(&config.limits),
            background: limits::background(&config.limits),
            request_body_max: config.limits.request_body.as_u64(),
            request_body_rate: config.limits.request_body_rate.as_u64(),
            response_rate: config.limits.response_rate.as_u64(),
            ahead_bytes: config.limits.request_ahead.as_u64().min(BUFFER_BYTES as u64) as usize,
            origin_idle_max: config.limits.origin_idle,
            transfer: config.transfer.clone(),
            tls,
            http2: config.http2.clone(),
            log_format: config.log.format,
            log_sample: Share::new("log.sample", config.log.sample)?,
            tracing,
            admin: Admin::new(config)?,
            dns: Arc::new(Dns::new(&config.dns)?),
            closing: Arc::default(),
        })
    }
}

/// Maximum of remembered ends of keys that a reload has removed.
const EARLIER_ENDS_MAX: usize = 256;

/// Returns the ends of the keys that the sites give, and of those that there were before.
fn key_ends(sites: Option<&Sites>, before: Option<&Settings>) -> Vec<Box<str>> {
    let mut ends: Vec<_> = sites.map(Sites::key_ends).unwrap_or_default();
    let most = ends.len() + EARLIER_ENDS_MAX;
    let mut known: HashSet<_> = ends.iter().cloned().collect();
    for end in before.iter().flat_map(|before| &before.key_ends) {
        if ends.len() < most && known.insert(end.clone()) {
            ends.push(end.clone());
        }
    }
    ends
}

/// Default name.
const NAME: &str = "strait";
/// Default of the maximum of heuristic lifetimes of a reverse proxy, in seconds: its operator
/// changes files and expects clients to see that.
const HEURISTIC_MAX_REVERSE: u64 = 120;

/// Returns the proxy's name, and its name in Via.
fn names(config: &Config) -> Result<(String, ViaName)> {
    let Some(name) = &config.name else { return Ok((NAME.to_owned(), ViaName::random(NAME))) };
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_part) {
        return Err(Error::Config(format!(
            "name = \"{name}\": a name consists of letters, digits, '-', '.' and '_'"
        )));
    }
    Ok((name.clone(), ViaName::configured(name)))
}

/// Returns the addresses to listen on.
fn ports(config: &Config) -> Result<Vec<Port>> {
    let on = &config.proxy_protocol.on;
    if let Some(other) = on.iter().find(|address| !config.listen.contains(address)) {
        return Err(Error::Config(format!(
            "proxy_protocol.on: {other} is not an address in listen; addresses in tls.listen cannot be used"
        )));
    }
    let port = |address: &SocketAddr, is_tls| {
        let has_proxy_header = on.contains(address);
        Port { address: *address, has_proxy_header, is_tls }
    };
    let plain = config.listen.iter().map(|address| port(address, false));
    let ports: Vec<_> = plain.chain(config.tls.listen.iter().map(|address| port(address, true))).collect();
    let is_double = |(index, port): (usize, &Port)| port.address.port() != 0 && ports[..index].contains(port);
    if ports.iter().enumerate().any(is_double) {
        return Err(Error::Config("listen: an address occurs twice".to_owned()));
    }
    Ok(ports)
}

fn hosts(config: &Config) -> Result<Vec<String>> {
    if !config.hosts.is_empty() && config.origin.is_none() {
        return Err(Error::Config(
            "hosts: a forward proxy serves all hosts; access.reach allows connections to private networks"
                .to_owned(),
        ));
    }
    Ok(config.hosts.iter().map(|host| host.to_ascii_lowercase()).collect())
}

fn forwarded(config: &Config) -> Policy {
    match config.forwarded {
        Some(Forwarded::Append) => Policy::Append,
        Some(Forwarded::Replace) => Policy::Replace,
        None if config.is_reverse() => Policy::Replace,
        Some(Forwarded::Off) | None => Policy::Off,
    }
}

fn lifetimes(config: &Config) -> LifetimePolicy {
    let Cache { negative, heuristic_max, .. } = config.cache;
    let default = if config.is_reverse() { HEURISTIC_MAX_REVERSE } else { u64::MAX };
    LifetimePolicy {
        negative: (negative > 0).then_some(negative),
        heuristic_max: heuristic_max.unwrap_or(default),
        ..LifetimePolicy::default()
    }
}

fn storing(config: &Config) -> Result<storing::Policy> {
    let errors = &config.cache.store_errors;
    let is_wrong = |status: &&u16| !(400..600).contains(*status) || storing::depends_on_request(**status);
    if let Some(status) = errors.iter().find(is_wrong) {
        return Err(Error::Config(format!(
            "cache.store_errors: {status} is not an error status, or the fields of one request can cause it; remove it"
        )));
    }
    Ok(storing::Policy {
        errors: errors.clone(),
        set_cookie: config.cache.store_set_cookie,
        sends_client: forwarded(config) != Policy::Off,
    })
}

/// Returns the size of the memory cache in bytes.
fn memory(config: &Config) -> usize {
    usize::try_from(config.cache.memory.as_u64()).unwrap_or(usize::MAX)
}

impl Settings {
    /// Returns notes for the operator: missing kernel features and their cost, and OCSP responses
    /// that clients do not get.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.tls.notes(SystemTime::now())
    }

    /// Returns true once the proxy shuts down.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.has_begun()
    }

    /// Returns the limits of the servers with a maximum of connections.
    pub(crate) fn server_limits(&self) -> HashMap<Server, ServerLimits> {
        self.sites.as_ref().map(|sites| sites.server_limits(&self.gates)).unwrap_or_default()
    }

    /// Returns true if spans are exported as with other settings. Over TLS they are not, as a
    /// reload reads the authorities again.
    pub(crate) fn exports_like(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.tracing.export.clone(), it.name.clone(), it.dns.clone());
        of(self) == of(other) && !self.tracing.exports_by_tls()
    }

    /// Returns true for a reverse proxy.
    pub(crate) fn is_reverse(&self) -> bool {
        self.sites.is_some()
    }

    /// Returns the cache keys of a URI, from its key without a pool: that one, and one for each
    /// pool and for each set of rules since the start. An invalidation concerns all of them,
    /// because a reload can give the URI back to an earlier pool. A key with `#` and the name of
    /// a pool has those of that pool alone, and one with rules only itself.
    pub(crate) fn keys_of(&self, key: String) -> Vec<String> {
        let (uri, pool) = match key.split_once('#') {
            Some((_, pool)) if pool.contains('~') => return vec![key],
            Some((uri, pool)) => (uri, Some(pool)),
            None => (&*key, None),
        };
        let is_of_pool = |end: &str| pool.is_none_or(|pool| end.split('~').next() == Some(pool));
        let ends = self.key_ends.iter().filter(|end| is_of_pool(end) && pool != Some(end));
        let mut keys: Vec<_> = ends.map(|end| format!("{uri}#{end}")).collect();
        keys.push(key);
        keys
    }

    /// Returns the cache keys of a client's URI, from its key: those of the URI, and those of the
    /// URIs to which routes rewrite it; of both schemes, if responses for them are stored apart. An
    /// operator, or a form that is sent by one scheme, means the page.
    pub(crate) fn keys_for_client(&self, key: String) -> Vec<String> {
        let (text, end) = key.split_at(key.find('#').unwrap_or(key.len()));
        let Some((uri, sites)) = Uri::parse(text).ok().zip(self.sites.as_ref()) else {
            return self.keys_of(key);
        };
        let rewritten = sites.rewritten(&uri);
        let paths = rewritten.iter().map(String::as_str).chain([uri.path]);
        let other = [self.scheme(false), self.scheme(true)].into_iter().find(|it| *it != uri.scheme);
        let schemes = [Some(uri.scheme), other].into_iter().flatten();
        let uris = paths.flat_map(|path| schemes.clone().map(move |scheme| Uri { scheme, path, ..uri }));
        let of = |uri: Uri<'_>| {
            let mut key = String::new();
            uri.write_key(&mut key);
            self.keys_of(key + end)
        };
        uris.flat_map(of).collect()
    }

    /// Returns the scheme in the keys of requests. An origin that learns the client's scheme
    /// (Forwarded) may respond to each differently, for example with a redirection to https, so
    /// their responses are stored apart.
    pub(crate) fn scheme(&self, is_encrypted: bool) -> Scheme {
        if is_encrypted && self.forwarded != Policy::Off { Scheme::Https } else { Scheme::Http }
    }

    /// Returns true if the proxy serves a host.
    pub(crate) fn answers_for(&self, host: &Host<'_>) -> bool {
        let is_host = |own: &String| match host {
            Host::Name(name) => own.eq_ignore_ascii_case(name),
            address => *own == address.to_string(),
        };
        self.hosts.is_empty() || self.hosts.iter().any(is_host)
    }
}

fn memory_object(config: &Config) -> usize {
    usize::try_from(config.cache.memory_object.as_u64()).unwrap_or(0)
}

/// Returns the size of the largest body that is not sent by sendfile.
fn memory_body_max(config: &Config) -> usize {
    let max = memory_object(config);
    let Transfer { sendfile, sendfile_from, .. } = &config.transfer;
    let below = usize::try_from(sendfile_from.as_u64().saturating_sub(1)).unwrap_or(usize::MAX);
    if *sendfile { max.min(below) } else { max }
}

impl Limits {
    fn new(timeouts: &Timeouts) -> Self {
        let limit = Timeouts::limit;
        Self {
            idle: limit(timeouts.idle),
            head: limit(timeouts.head),
            client: limit(timeouts.client),
            body_grace: limit(timeouts.body_grace),
            body: limit(timeouts.body),
            response_grace: limit(timeouts.response_grace),
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
    fn keys_of_a_clients_uri_have_both_schemes_if_they_differ() {
        let site = "pool.a.servers = [\"h:1\"]\n[[site]]\nroute = [{ path = \"/x\", rewrite = \"/y\", pool = \"a\" }]";
        let keys = |toml: &str, key: &str| {
            let mut keys = settings(toml).unwrap().keys_for_client(key.to_owned());
            keys.sort_unstable();
            keys
        };
        let http = ["http://h/x", "http://h/x#a", "http://h/y", "http://h/y#a"];
        let https = http.map(|key| key.replacen("http", "https", 1));
        let all = [http.map(str::to_owned), https].concat();
        for key in ["http://h/x", "https://h/x"] {
            assert_eq!(keys(site, key), all, "{key}");
        }
        assert_eq!(keys(&format!("forwarded = \"off\"\n{site}"), "http://h/x"), http);
        assert_eq!(keys("", "http://h/x"), ["http://h/x"]);
        assert_eq!(keys(site, "http://h/x#a"), [http[1], http[3], "https://h/x#a", "https://h/y#a"]);
    }

    #[test]
    fn wrong_values_are_named() {
        for (toml, expected) in [
            ("origin = \"ftp://a\"", "origin"),
            ("origin = \"http://a/b\"", "a path"),
            ("name = \"a b\"", "name"),
            ("listen = []", "listen"),
            ("access.allow = [\"x\"]", "access.allow"),
            ("cache.sise = 3", "sise"),
            ("workers = 99999", "from 0 to 256"),
            ("cache.abandoned = { past = 200 }", "0 to 100 per cent"),
            ("cache.memory_object = \"17MiB\"", "the maximum is 16MiB"),
            ("cache.size = \"1MiB\"\ncache.dir = \"/tmp\"\nworkers = 1", "the minimum is 7MiB"),
            ("cache.store_errors = [503, 416]", "416"),
            ("cache.store_errors = [200]", "200"),
            ("access.refresh = [\"x\"]", "access.refresh"),
            ("cache.key_fields = [\"X-Tenant\", \"host\"]", "\"host\": the host is part of every key"),
            ("cache.key_fields = [\"Range\"]", "does not receive this field"),
            ("cache.key_fields = [\"X_Tenant\"]", "bypass the cache already"),
            ("cache.key_fields = [\"a b\"]", "not a field name"),
            ("cache.key_fields = \"X-Tenant\"", "expected a list of field names"),
            ("cache.key_fields = [\"X-A\"]\ncache.bypass_fields = [\"x-a\"]", "cache.bypass_fields"),
            ("cache.bypass_fields = [\"Host\"]", "every request has this field"),
            ("cache.bypass_fields = [\"\"]", "not a field name"),
            (
                "origin = \"http://a\"\ncache.bypass_fields = [\"X-Forwarded-Host\"]",
                "dropped from every request",
            ),
            ("limits.origin_connections_per_client = 2001", "more than limits.origin_connections = 2000"),
            ("limits.background_fetches = 2001", "more than limits.origin_connections = 2000"),
            ("limits.background_fetches_per_client = 401", "more than limits.background_fetches = 400"),
            ("limits.request_ahead_memory = \"31KiB\"", "the minimum is \"32KiB\""),
            ("limits.request_ahead_memory_per_client = 1", "the minimum is \"32KiB\""),
            ("limits.request_ahead_memory_per_client = \"65MiB\"", "more than limits.request_ahead_memory"),
            ("limits.origin_connections_per_client = -1", "from 0 to"),
        ] {
            let error = settings(toml).unwrap_err().to_string();
            assert!(error.contains(expected), "{toml}: {error}");
        }
    }
}
