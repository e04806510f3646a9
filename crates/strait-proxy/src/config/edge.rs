//! Structure of `[pool.NAME]`, `[[site]]` and `[[site.route]]` in the file `strait.toml`.
//!
//! `sites` checks them. Nothing here is checked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

/// Servers that answer the same requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pool {
    /// Servers, as `HOST:PORT`, `http://HOST:PORT`, `https://HOST:PORT`, `srv://NAME`,
    /// `srv+https://NAME` or `unix:/PATH`, each optionally followed by ` weight=N`, ` backup` and
    /// ` connections=N`.
    pub servers: Vec<String>,
    /// How a server is chosen.
    pub balance: Balance,
    /// Consecutive failures after which a server gets no requests for a while; 0: never.
    pub failures: u32,
    /// Seconds without requests after the first ejection; each further one doubles them, up to 30
    /// times this value.
    pub eject: u64,
    /// Seconds in which the weight of a server grows after it has returned; 0: no time.
    pub slow_start: u64,
    /// Requests that may wait for one of the connections of a server with a maximum.
    pub queue: u32,
    /// Seconds that such a request waits.
    pub queue_timeout: u64,
    /// Servers that a request is sent to in addition to the first one, if that fails.
    pub retries: u32,
    /// Name of the cookie by which the requests of a client go to one server. Default: none.
    pub sticky: Option<String>,
    /// Secret from which the values of the cookie are made. Default: a random one at the start.
    pub sticky_key: Option<String>,
    /// HTTP/2 to the servers.
    pub http2: OriginHttp2,
    /// Active check of each server. Default: none.
    pub check: Option<Check>,
    /// Ejection of servers that are far slower than the others. Default: none.
    pub outlier: Option<Outlier>,
    /// Requests that are also sent to another server if one is slow. Default: none.
    pub hedge: Option<Hedge>,
}

/// Requests that are also sent to another server of the pool.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hedge {
    /// Milliseconds without a response head.
    pub after_ms: u64,
    /// Maximum of such requests, as a percentage of all.
    pub percent: u64,
}

/// Rules by which a server is far slower than the others.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Outlier {
    /// Multiple of the others' median time to a response.
    pub times: u32,
    /// Milliseconds up to which no median is too long.
    pub floor_ms: u32,
    /// Consecutive windows in which the server is too slow.
    pub windows: u32,
    /// Responses of a window.
    pub responses: u32,
}

/// HTTP/2 to the servers of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OriginHttp2 {
    /// HTTP/1.1, which moves bodies without a copy.
    #[default]
    Off,
    /// HTTP/2 to servers with TLS that choose it (ALPN, RFC 7301), HTTP/1.1 to all others.
    Auto,
    /// HTTP/2 alone: by ALPN with TLS, without negotiation else (RFC 9113, section 3.3).
    On,
}

/// Active check of a server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Check {
    /// Path that is requested by GET. Default: none, the check is a connection.
    pub path: Option<String>,
    /// Host of the request. Default: the server's own.
    pub host: Option<String>,
    /// Expected status. Default: 200 to 399.
    pub status: Option<u16>,
    /// Seconds between two checks.
    pub interval: u64,
    /// Seconds that a check may take.
    pub timeout: u64,
    /// Consecutive checks that a server must pass to get requests again.
    pub rise: u32,
    /// Consecutive checks that a server must fail to get no requests.
    pub fall: u32,
}

/// How a server of a pool is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum Balance {
    /// In turn.
    #[default]
    RoundRobin,
    /// The server with the fewest requests in progress.
    LeastConnections,
    /// Of two random servers, the one with fewer requests in progress.
    PowerOfTwo,
    /// By a hash of the URI, so that each URI has its server.
    Uri,
    /// By a hash of the field with this name, in the file `header:NAME`. Requests without it go to
    /// the better of two random servers.
    Header(Box<str>),
    /// By a hash of the cookie with this name, in the file `cookie:NAME`.
    Cookie(Box<str>),
}

/// Hosts, and the routes of their requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Site {
    /// Hosts, as `www.example.org`, or `*.example.org` for all names below a domain. Empty: all
    /// hosts that no other site has.
    pub hosts: Vec<String>,
    /// File of the certificate for clients that name one of the hosts (SNI), followed by
    /// intermediate certificates, in PEM. Default: `tls.certificate`.
    pub certificate: Option<PathBuf>,
    /// File of its private key, in PEM.
    pub key: Option<PathBuf>,
    /// File of an OCSP response for the certificate, in DER.
    pub ocsp: Option<PathBuf>,
    /// Redirect requests without TLS to https, and tell clients to use https only (HSTS, RFC 6797).
    pub https: bool,
    /// Routes; the one with the longest matching path applies.
    pub route: Vec<Route>,
}

/// Paths of a site, and the target of their requests: one of `pool`, `files`,
/// `redirect` and `respond`. A file can have many, so keys that most of them lack are in boxes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Route {
    /// Path with all paths below it: `/a` has `/a` and `/a/b`, but not `/ab`; `/a/` has `/a/b`, but
    /// not `/a`. Default: `/`.
    pub path: Option<String>,
    /// Path alone.
    pub path_exact: Option<String>,
    /// Regular expression that a part of the decoded path of requests matches. Default: none.
    pub path_regex: Option<String>,
    /// Methods of the requests. Empty: all.
    pub methods: Vec<String>,
    /// Fields that requests have with this value; `*` stands for any.
    pub has_headers: BTreeMap<String, String>,
    /// Path that replaces that of the route in requests to the pool, and in the names of files.
    pub rewrite: Option<String>,
    /// Name of the pool that answers.
    pub pool: Option<String>,
    /// Directory of static files, below which the path of the request names a file.
    pub files: Option<PathBuf>,
    /// Send a compressed file beside the named one to clients that accept its coding.
    pub precompressed: bool,
    /// Redirection.
    pub redirect: Option<Box<Redirect>>,
    /// Fixed response.
    pub respond: Option<Box<Respond>>,
    /// Changes of the fields of requests to the pool.
    pub request_headers: Option<Box<Headers>>,
    /// Changes of the fields of responses to clients.
    pub response_headers: Option<Box<Headers>>,
    /// Timeouts of its requests. Default: those of `[timeouts]`.
    pub timeouts: Option<Box<RouteTimeouts>>,
    /// Servers that a request is sent to in addition to the first one. Default: that of the pool.
    pub retries: Option<u32>,
    /// Maximum size of a request body. Default: `limits.request_body`.
    pub request_body: Option<ByteSize>,
    /// Networks of the clients. Default: all.
    pub access: Option<Box<RouteAccess>>,
    /// Limit of requests. Default: none.
    pub rate: Option<Box<Rate>>,
    /// Basic authentication. Default: none.
    pub auth: Option<Box<Auth>>,
    /// Request that asks a server if a client's request is allowed. Default: none.
    pub auth_request: Option<Box<AuthRequest>>,
    /// Compression of stored responses. Default: none.
    pub compress: Option<Box<Compress>>,
    /// Cache policy. Default: that of all routes.
    pub cache: Option<Box<RouteCache>>,
}

/// Cache policy of a route.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouteCache {
    /// Use the cache.
    pub enabled: bool,
    /// Freshness lifetime in seconds of a response without an explicit one.
    pub ttl: Option<u64>,
    /// Freshness lifetime in seconds of a 404 or 410 without an explicit one.
    pub negative: Option<u64>,
    /// `stale-while-revalidate` in seconds of a response without it.
    pub stale_while_revalidate: Option<u64>,
    /// `stale-if-error` in seconds of a response without it.
    pub stale_if_error: Option<u64>,
    /// Use these lifetimes in place of those of the origin.
    pub r#override: bool,
    /// Parameters of the query that are removed from requests.
    pub ignore_query: Vec<String>,
    /// Parameters of the query that alone are kept. Default: all.
    pub keep_query: Option<Vec<String>>,
    /// Sort the parameters of the query by their names.
    pub sort_query: bool,
    /// Cookies that are removed from requests.
    pub ignore_cookies: Vec<String>,
    /// Cookies that alone are kept. Default: all.
    pub keep_cookies: Option<Vec<String>>,
    /// Cookies with which a request bypasses the cache.
    pub bypass_cookies: Vec<String>,
    /// Cookies that are part of the key.
    pub key_cookies: Vec<String>,
    /// Request fields that are part of the key.
    pub key_fields: Vec<String>,
}

/// Timeouts of the requests of a route in seconds, in place of those of `[timeouts]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouteTimeouts {
    /// Connecting to a server, including the wait for a free connection.
    pub connect: Option<u64>,
    /// Server that sends nothing.
    pub origin: Option<u64>,
    /// Whole request body.
    pub body: Option<u64>,
    /// WebSocket, or stream of messages, without traffic.
    pub tunnel: Option<u64>,
}

/// Networks of the clients that a route answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouteAccess {
    /// Networks of the allowed clients. Default: all.
    pub allow: Option<Vec<String>>,
    /// Networks of refused clients, also in allowed networks. Default: none.
    pub deny: Option<Vec<String>>,
}

/// Request that asks a server if a client's request is allowed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthRequest {
    /// Name of the pool that is asked.
    pub pool: String,
    /// Path of the request.
    pub path: String,
}

/// Compression of stored responses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Compress {
    /// Content codings, in the order of preference: `zstd`, `br` and `gzip`.
    pub codings: Vec<String>,
    /// Media types that are compressed, as `application/json` or `text/*`.
    pub types: Vec<String>,
    /// Length in bytes of the shortest body that is compressed.
    pub min_bytes: u64,
    /// Effort.
    pub level: Level,
}

/// Effort of compression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Least CPU time.
    Fast,
    /// Between the others.
    #[default]
    Balanced,
    /// Shortest results.
    Best,
}

/// Basic authentication of clients (RFC 7617).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    /// File of users, with lines `USER:HASH`.
    pub users: Option<PathBuf>,
    /// Name of the protected area.
    pub realm: String,
    /// Forward Authorization to the pool.
    pub keep: bool,
}

/// Limit of the requests of each client.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rate {
    /// Requests in `per` seconds.
    pub requests: u64,
    /// Seconds.
    pub per: u64,
    /// Requests that may come at once. Default: `requests`.
    pub burst: Option<u64>,
    /// Field whose value stands for the client. Default: none, its address does.
    pub field: Option<String>,
    /// Clients that are remembered at the same time.
    pub clients: u64,
}

/// Changes of header fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Headers {
    /// Fields with their only value: other lines of the field are removed.
    pub set: BTreeMap<String, String>,
    /// Fields with a value that is added to others.
    pub add: BTreeMap<String, String>,
    /// Fields that are removed.
    pub remove: Vec<String>,
}

/// Redirection to another URI.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Redirect {
    /// Status: 301, 302, 303, 307 or 308.
    pub status: u16,
    /// Location, in which `{host}` stands for the host of the request, and `{uri}` for its path and
    /// query.
    pub location: String,
}

/// Fixed response.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Respond {
    /// Status.
    pub status: u16,
    /// Body.
    pub body: String,
    /// Fields.
    pub headers: BTreeMap<String, String>,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            balance: Balance::default(),
            failures: 3,
            eject: 10,
            slow_start: 0,
            queue: 100,
            queue_timeout: 10,
            retries: 2,
            sticky: None,
            sticky_key: None,
            http2: OriginHttp2::Off,
            check: None,
            outlier: None,
            hedge: None,
        }
    }
}

impl Default for Hedge {
    fn default() -> Self {
        Self { after_ms: 500, percent: 5 }
    }
}

impl Default for Outlier {
    fn default() -> Self {
        Self { times: 5, floor_ms: 100, windows: 3, responses: 32 }
    }
}

impl Default for Check {
    fn default() -> Self {
        Self { path: None, host: None, status: None, interval: 5, timeout: 2, rise: 2, fall: 3 }
    }
}

impl Default for Rate {
    fn default() -> Self {
        Self { requests: 0, per: 1, burst: None, field: None, clients: 16_384 }
    }
}

impl Default for Auth {
    fn default() -> Self {
        Self { users: None, realm: "restricted".to_owned(), keep: false }
    }
}

impl Default for Compress {
    fn default() -> Self {
        let texts = |all: &[&str]| all.iter().map(|text| (*text).to_owned()).collect();
        Self {
            codings: texts(&["zstd", "br", "gzip"]),
            types: texts(&[
                "text/*",
                "application/javascript",
                "application/json",
                "application/ld+json",
                "application/manifest+json",
                "application/rss+xml",
                "application/atom+xml",
                "application/xhtml+xml",
                "application/xml",
                "application/wasm",
                "font/otf",
                "font/ttf",
                "image/svg+xml",
            ]),
            min_bytes: 1024,
            level: Level::default(),
        }
    }
}

impl Default for RouteCache {
    fn default() -> Self {
        Self {
            enabled: true,
            ttl: None,
            negative: None,
            stale_while_revalidate: None,
            stale_if_error: None,
            r#override: false,
            ignore_query: Vec::new(),
            keep_query: None,
            sort_query: false,
            ignore_cookies: Vec::new(),
            keep_cookies: None,
            bypass_cookies: Vec::new(),
            key_cookies: Vec::new(),
            key_fields: Vec::new(),
        }
    }
}

impl Default for Redirect {
    fn default() -> Self {
        Self { status: 308, location: String::new() }
    }
}

impl Default for Respond {
    fn default() -> Self {
        Self { status: 200, body: String::new(), headers: BTreeMap::new() }
    }
}
