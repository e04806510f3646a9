//! Structure of the file `strait.toml`, with its defaults.
//!
//! `read` fills it from the file's text, `settings` checks it. Every key has a default: an empty
//! file configures a forward cache for clients on this machine. Nothing here is checked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

use crate::config::edge::{Pool, Site};

/// The file `strait.toml`. Times are in seconds; sizes are bytes, or as `512MiB`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Addresses that clients connect to; for port 0 the kernel chooses a free port.
    pub listen: Vec<SocketAddr>,
    /// Worker threads; 0 for one per processor.
    pub workers: usize,
    /// Origin of a reverse proxy, as `http://HOST[:PORT]`, `https://HOST[:PORT]`, `srv://NAME` or
    /// `unix:/PATH`. Unset: a forward proxy, to which clients name the server.
    pub origin: Option<String>,
    /// Name of this proxy in Via (RFC 9110, section 7.6.3) and Cache-Status. No other proxy on the
    /// way to the origin may have it. Default: `strait` in Cache-Status, and in Via `strait-` with
    /// a random number that is chosen at the start.
    pub name: Option<String>,
    /// Hosts that a reverse proxy serves, as `www.example.org`; requests for other hosts are
    /// refused (421). Empty: all hosts.
    pub hosts: Vec<String>,
    /// Forwarded fields in requests to origins. Default: `off` for a forward proxy, `replace` for a
    /// reverse proxy.
    pub forwarded: Option<Forwarded>,
    /// Cache and store.
    pub cache: Cache,
    /// Clients that may use the proxy, and addresses that it may connect to.
    pub access: Access,
    /// Time limits of each phase.
    pub timeouts: Timeouts,
    /// Limits of numbers and sizes.
    pub limits: Limits,
    /// Use of sendfile and splice.
    pub transfer: Transfer,
    /// TLS with clients and origins.
    pub tls: Tls,
    /// HTTP/2 with clients.
    pub http2: Http2,
    /// Lookups of the names of origins.
    pub dns: Dns,
    /// Access log.
    pub log: Log,
    /// Identification of requests.
    pub trace: Trace,
    /// Admin page and metrics.
    pub admin: Admin,
    /// PROXY protocol.
    pub proxy_protocol: ProxyProtocol,
    /// Pools of servers of a reverse proxy, by name, in place of `origin`.
    pub pool: BTreeMap<String, Pool>,
    /// Sites of a reverse proxy.
    pub site: Vec<Site>,
}

/// Treatment of Forwarded (RFC 7239) and X-Forwarded-For, -Proto and -Host in requests to origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forwarded {
    /// Forward the client's fields unchanged.
    Off,
    /// Add the client to the fields that it sent.
    Append,
    /// Replace the fields that the client sent.
    Replace,
}

/// Admin address: metrics, status page and stored objects.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Address to listen on. Default: none, no admin page.
    pub listen: Option<SocketAddr>,
    /// Networks that may read metrics and the admin page. Empty: this machine.
    pub allow: Vec<String>,
    /// Networks that may purge and ban. Empty: this machine.
    pub change: Vec<String>,
    /// Host names that requests may use in addition to `localhost` and addresses.
    pub hosts: Vec<String>,
}

/// PROXY protocol, versions 1 and 2: a load balancer names the client at the start of a connection.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxyProtocol {
    /// Addresses of `listen` on which every connection begins with a PROXY header.
    pub on: Vec<SocketAddr>,
    /// Networks of the load balancers that may connect there. Empty: this machine.
    pub from: Vec<String>,
}

/// Access log.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// File of the access log, one line per request; `-` is standard output. Default: no log.
    pub access: Option<PathBuf>,
    /// Format of its lines.
    pub format: Format,
    /// Share of the requests that are logged, from 0 to 1. Responses with an error are always
    /// logged.
    pub sample: f64,
}

/// Identification of requests in the access log and at origins.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Trace {
    /// Treatment of traceparent and tracestate (W3C Trace Context).
    pub context: Context,
    /// Share of the traces that begin here whose spans are to be recorded, from 0 to 1.
    pub sample: f64,
    /// Field with the number of the trace in requests to origins. Unset: none.
    pub request_id: Option<String>,
    /// Collector of spans, as `http://HOST:PORT/v1/traces` or `https://...` (OTLP). Unset: none.
    pub export: Option<String>,
}

/// Treatment of the trace context of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Context {
    /// Forwarded unchanged.
    #[default]
    Pass,
    /// The request to the origin follows in the same trace, or begins one.
    Join,
    /// Each request begins a trace.
    Begin,
}

/// Format of a line in the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Common Log Format, followed by cache result, mechanism and bytes copied.
    Common,
    /// Common Log Format, followed by Referer, User-Agent, cache result, mechanism and bytes
    /// copied.
    #[default]
    Combined,
    /// Squid's native format, followed by mechanism and bytes copied.
    Squid,
    /// One JSON object per line.
    Json,
}

/// Cache: where objects are stored, and which.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cache {
    /// Directory of the store. Without it only small objects are cached, in memory.
    pub dir: Option<PathBuf>,
    /// Further directories, on other disks.
    pub further_dirs: Vec<PathBuf>,
    /// Size limit of the store in each directory.
    pub size: ByteSize,
    /// Size limit of the memory cache, which all workers share.
    pub memory: ByteSize,
    /// Largest object that is read and stored in one piece, and kept in memory.
    pub memory_object: ByteSize,
    /// Largest object that is stored.
    pub object: ByteSize,
    /// Seconds between syncs of the store, after which its objects survive a power loss; 0: sync
    /// only at exit.
    pub sync: u64,
    /// Bytes per second that the scrub reads: it adds checksums to bodies that were stored by
    /// splice, and compares all stored responses with their checksums; 0: no scrub.
    pub scrub: ByteSize,
    /// Seconds between the starts of two passes of the scrub over all stored responses.
    pub scrub_every: u64,
    /// Hits that compare a long body with its checksum before it is sent.
    pub check_hits: CheckHits,
    /// Maximum in seconds of the lifetime of a response without an explicit one, which is a tenth
    /// of its age. Default: two minutes for a reverse proxy, a day for a forward proxy.
    pub heuristic_max: Option<u64>,
    /// Freshness lifetime in seconds of a 404 or 410 without an explicit one; 0: the heuristic of
    /// other responses.
    pub negative: u64,
    /// Error statuses that are stored if the response allows it. Statuses that the fields of one
    /// request can cause (400, 416, 431 and others) are refused here.
    pub store_errors: Vec<u16>,
    /// Store responses with Set-Cookie, and send the cookie to every client that gets a hit.
    pub store_set_cookie: bool,
    /// Request fields that are part of every cache key, in addition to the URI and the fields in
    /// Vary.
    pub key_fields: Vec<String>,
    /// Request fields that make a request bypass the cache.
    pub bypass_fields: Vec<String>,
    /// Treatment of a fill after its last client has disconnected.
    pub abandoned: Abandoned,
}

/// Hits that compare a body longer than `memory_object` with its checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckHits {
    /// None.
    Off,
    /// The first hit after each start.
    #[default]
    First,
    /// All.
    Always,
}

/// Treatment of a fill after its last client has disconnected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Abandoned {
    /// Fetch the response to the end.
    #[default]
    Finish,
    /// Give it up.
    Drop,
    /// Fetch it to its end if at least this percentage was received.
    Past(u8),
}

/// Clients that may use the proxy, and addresses that it may connect to.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Access {
    /// Client networks that may use the proxy, as `10.0.0.0/8`. Empty: this machine for a forward
    /// proxy, all clients for a reverse proxy.
    pub allow: Vec<String>,
    /// Ports that CONNECT may open.
    pub connect_ports: Vec<u16>,
    /// Loopback, link-local or private networks that a forward proxy may connect to.
    pub reach: Vec<String>,
    /// Client networks that may use PURGE.
    pub purge: Vec<String>,
    /// Client networks that may demand a new response (`Cache-Control: no-cache`, `max-age`,
    /// `min-fresh`; `Pragma: no-cache`). Unset: all clients of a forward proxy, none of a reverse
    /// proxy.
    pub refresh: Option<Vec<String>>,
}

/// Time limits in seconds; 0 is a day.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// Idle connection of a client.
    pub idle: u64,
    /// Head of a request, from its first byte to its last.
    pub head: u64,
    /// Client that neither reads its response nor sends its request body.
    pub client: u64,
    /// Waiting for a request body beyond `limits.request_body_rate`.
    pub body_grace: u64,
    /// Whole request body.
    pub body: u64,
    /// Waiting for a client to read a response beyond `limits.response_rate`.
    pub response_grace: u64,
    /// Connecting to an origin, DNS lookup included; also waiting for a free connection.
    pub connect: u64,
    /// Origin that sends no byte.
    pub origin: u64,
    /// Idle connection to an origin.
    pub origin_idle: u64,
    /// Tunnel without traffic.
    pub tunnel: u64,
    /// Open connections after SIGTERM.
    pub drain: u64,
}

/// Limits of numbers and sizes.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Concurrent connections of clients.
    pub connections: u32,
    /// Concurrent connections of one client address; 0: no limit except `connections`.
    pub connections_per_client: u32,
    /// Connections in use to one origin, of all workers. A request waits up to `timeouts.connect`
    /// for a free one, then gets 503.
    pub origin_connections: usize,
    /// Share of `origin_connections` that one client may use. Unset: a quarter; 0: all.
    pub origin_connections_per_client: Option<usize>,
    /// Share of `origin_connections` for fetches without a waiting client. Unset: a fifth; 0: none.
    /// Beyond it abandoned fills are given up, and stale responses are not validated in the
    /// background.
    pub background_fetches: Option<usize>,
    /// Share of `background_fetches` that one client may cause. Unset: a tenth; 0: all.
    pub background_fetches_per_client: Option<usize>,
    /// Size limit of a request body.
    pub request_body: ByteSize,
    /// Minimum rate of a request body, in bytes per second, after `timeouts.body_grace`; 0: no
    /// minimum.
    pub request_body_rate: ByteSize,
    /// Bytes of a request body that are read before the origin is contacted; 0: none.
    pub request_ahead: ByteSize,
    /// Memory of all workers for bodies that are read ahead; 0: read none ahead. A request waits up
    /// to `timeouts.connect` for memory, then gets 503.
    pub request_ahead_memory: ByteSize,
    /// Share of `request_ahead_memory` that one client may use. Unset: a quarter; 0: all.
    pub request_ahead_memory_per_client: Option<ByteSize>,
    /// Minimum rate at which a client reads a response, in bytes per second, after
    /// `timeouts.response_grace`; 0: no minimum.
    pub response_rate: ByteSize,
    /// Idle connections to one origin that a worker keeps.
    pub origin_idle: usize,
}

/// Use of sendfile and splice. The defaults were measured; `bench/results` has the figures.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Transfer {
    /// Send stored bodies by sendfile.
    pub sendfile: bool,
    /// Shortest body that is sent by sendfile; shorter ones are kept in memory after their second
    /// request.
    pub sendfile_from: ByteSize,
    /// Move bodies from origins by splice.
    pub splice: bool,
    /// Minimum number of bytes left to receive for splice; fewer are copied.
    pub splice_from: ByteSize,
    /// How bodies move from an origin into the store.
    pub fill: FillMethod,
}

/// How bodies move from an origin into the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FillMethod {
    /// The one that takes less CPU time, which each worker measures.
    #[default]
    Auto,
    /// Through a pipe: one copy, in the kernel.
    Splice,
    /// Through memory, in pieces of 256 KiB: two copies.
    Copy,
}

/// TLS with clients and origins.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// Addresses for clients with TLS, in addition to `listen`.
    pub listen: Vec<SocketAddr>,
    /// Port of https by which clients reach `listen`, for redirections. Default: that of the first
    /// address.
    pub https_port: Option<u16>,
    /// File of the server's certificate followed by intermediate certificates, in PEM.
    pub certificate: Option<PathBuf>,
    /// File of its private key, in PEM.
    pub key: Option<PathBuf>,
    /// File of an OCSP response for the certificate, in DER.
    pub ocsp: Option<PathBuf>,
    /// File of certificate authorities for the origin, in PEM, in addition to those of the system.
    pub origin_ca: Option<PathBuf>,
    /// Let the kernel encrypt if it can (kTLS), so that sendfile and splice work with TLS.
    pub kernel: bool,
}

/// Lookups of the names of origins.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dns {
    /// DNS servers, as addresses with or without a port. Empty: those of /etc/resolv.conf.
    pub servers: Vec<String>,
    /// Minimum of the seconds for which records are used.
    pub ttl_min: u64,
    /// Maximum of the seconds for which records are used.
    pub ttl_max: u64,
}

/// HTTP/2 with clients (RFC 9113).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http2 {
    /// Accept HTTP/2: with TLS by ALPN, without TLS from clients that know of it. Default: with TLS
    /// alone.
    pub enabled: Option<bool>,
    /// Concurrent requests of one connection.
    pub streams: u32,
}

impl Http2 {
    /// Returns true if HTTP/2 is accepted on connections with or without TLS.
    pub(crate) fn is_on(&self, is_tls: bool) -> bool {
        self.enabled.unwrap_or(is_tls)
    }
}

impl Default for Http2 {
    fn default() -> Self {
        Self { enabled: None, streams: 100 }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { access: None, format: Format::default(), sample: 1.0 }
    }
}

impl Default for Dns {
    fn default() -> Self {
        Self { servers: Vec::new(), ttl_min: 1, ttl_max: 60 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 3128))],
            workers: 0,
            origin: None,
            name: None,
            hosts: Vec::new(),
            forwarded: None,
            cache: Cache::default(),
            access: Access::default(),
            timeouts: Timeouts::default(),
            limits: Limits::default(),
            transfer: Transfer::default(),
            tls: Tls::default(),
            http2: Http2::default(),
            dns: Dns::default(),
            log: Log::default(),
            trace: Trace::default(),
            admin: Admin::default(),
            proxy_protocol: ProxyProtocol::default(),
            pool: BTreeMap::new(),
            site: Vec::new(),
        }
    }
}

impl Config {
    /// Returns true for a reverse proxy: the file names the origins, not the clients.
    pub fn is_reverse(&self) -> bool {
        self.origin.is_some() || !self.pool.is_empty() || !self.site.is_empty()
    }
}

impl Cache {
    /// All directories of the store.
    pub fn dirs(&self) -> impl Iterator<Item = &Path> {
        self.dir.iter().chain(&self.further_dirs).map(PathBuf::as_path)
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            dir: None,
            further_dirs: Vec::new(),
            size: ByteSize::gib(1),
            memory: ByteSize::mib(64),
            memory_object: ByteSize::kib(32),
            object: ByteSize::tib(1),
            sync: 10,
            scrub: ByteSize::mib(32),
            scrub_every: 604_800,
            check_hits: CheckHits::First,
            heuristic_max: None,
            negative: 0,
            store_errors: vec![404, 410, 414],
            store_set_cookie: false,
            key_fields: Vec::new(),
            bypass_fields: Vec::new(),
            abandoned: Abandoned::Finish,
        }
    }
}

impl Default for Access {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            connect_ports: vec![443],
            reach: Vec::new(),
            purge: Vec::new(),
            refresh: None,
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            idle: 60,
            head: 10,
            client: 60,
            body_grace: 20,
            body: 21_600,
            response_grace: 60,
            connect: 10,
            origin: 60,
            origin_idle: 60,
            tunnel: 600,
            drain: 30,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            connections_per_client: 1000,
            origin_connections: 2000,
            origin_connections_per_client: None,
            background_fetches: None,
            background_fetches_per_client: None,
            request_body: ByteSize::tib(1),
            request_body_rate: ByteSize::b(500),
            request_ahead: ByteSize::kib(16),
            request_ahead_memory: ByteSize::mib(64),
            request_ahead_memory_per_client: None,
            response_rate: ByteSize::b(500),
            origin_idle: 64,
        }
    }
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            https_port: None,
            certificate: None,
            key: None,
            ocsp: None,
            origin_ca: None,
            kernel: true,
        }
    }
}

impl Default for Transfer {
    fn default() -> Self {
        Self {
            sendfile: true,
            sendfile_from: ByteSize::kib(8),
            splice: true,
            splice_from: ByteSize::kib(64),
            fill: FillMethod::default(),
        }
    }
}

impl Timeouts {
    /// Converts a number of seconds. At most a day, also for 0: no phase lasts forever.
    pub(crate) fn limit(seconds: u64) -> Duration {
        const DAY: Duration = Duration::from_hours(24);
        if seconds == 0 { DAY } else { Duration::from_secs(seconds).min(DAY) }
    }
}
