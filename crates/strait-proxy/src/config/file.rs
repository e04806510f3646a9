//! What the proxy is told: the file `strait.toml`, and what it is checked into.
//!
//! Every key has a default; an empty file is a forward cache for the clients of this machine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

/// The file `strait.toml`. Times are in seconds; sizes are bytes, or as `512MiB`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Addresses that clients connect to; port 0 takes a free one.
    pub listen: Vec<SocketAddr>,
    /// Threads that serve, each on a processor of its own; 0 for one a processor.
    pub workers: usize,
    /// The server that this one stands before (a reverse proxy), as `http://HOST[:PORT]` or `https://HOST[:PORT]`; without it clients
    /// name the server themselves (a forward proxy).
    pub origin: Option<String>,
    /// The name that this proxy gives itself in Via (RFC 9110, section 7.6.3) and Cache-Status, and
    /// that no other on the way to the origin has. Without one it is `strait` in Cache-Status,
    /// and in Via `strait-` with a number that it draws when it starts.
    pub name: Option<String>,
    /// Hosts that a reverse proxy answers for, as `www.example.org`; requests for others are
    /// refused (421). Without any it answers for all.
    pub hosts: Vec<String>,
    /// What origins are told of clients; nothing by a forward proxy, and by a reverse one
    /// `replace`, unless it is said.
    pub forwarded: Option<Forwarded>,
    /// What is kept.
    pub cache: Cache,
    /// Who may use it, and for what.
    pub access: Access,
    /// How long each phase may take.
    pub timeouts: Timeouts,
    /// How much there may be of anything.
    pub limits: Limits,
    /// When bytes are left to the kernel.
    pub transfer: Transfer,
    /// TLS with clients and origins.
    pub tls: Tls,
    /// What is written down.
    pub log: Log,
    /// Where the proxy tells of itself.
    pub admin: Admin,
    /// Whom the proxy believes who its clients are.
    pub proxy_protocol: ProxyProtocol,
}

/// What origins are told of clients, in Forwarded (RFC 7239) and X-Forwarded-For, -Proto and -Host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forwarded {
    /// Nothing; what came is passed on.
    Off,
    /// The client is added to what came.
    Append,
    /// The client stands in place of what came.
    Replace,
}

/// Where the proxy tells of itself: metrics, an admin page, and what is stored.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// The address; without it there is none.
    pub listen: Option<SocketAddr>,
    /// Networks that may look; without any this machine.
    pub allow: Vec<String>,
    /// Networks that may purge and ban; without any this machine.
    pub change: Vec<String>,
    /// Names by which it may be asked for, beside `localhost` and addresses.
    pub hosts: Vec<String>,
}

/// Connections that begin with who the client is: the PROXY protocol, versions 1 and 2.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProxyProtocol {
    /// Which of the addresses that are listened on have it; no others are connected to there.
    pub on: Vec<SocketAddr>,
    /// Networks of those who may connect there: load balancers; without any this machine.
    pub from: Vec<String>,
}

/// What is written down.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// The file of the access log, a line a request; `-` is standard output. Without it there is
    /// none.
    pub access: Option<PathBuf>,
    /// How its lines are written.
    pub format: Format,
}

/// How a line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// The Common Log Format, with cache result, mechanism and bytes copied behind it.
    Common,
    /// The same with Referer and User-Agent before those.
    #[default]
    Combined,
    /// Squid's native format, with mechanism and bytes copied behind it.
    Squid,
    /// A JSON object a line.
    Json,
}

/// What is kept, and where.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cache {
    /// The directory of the store. Without it small objects are kept in memory, and nothing else.
    pub dir: Option<PathBuf>,
    /// Bytes that the store may take on disk.
    pub size: ByteSize,
    /// Bytes of small objects that all workers together keep in memory.
    pub memory: ByteSize,
    /// Objects up to this size are read and stored in one piece.
    pub memory_object: ByteSize,
    /// Objects that are larger are not stored.
    pub object: ByteSize,
    /// Seconds between two times that what was stored is made to last through a power loss; 0 never
    /// does.
    pub sync: u64,
    /// Seconds for which a 404 or 410 is kept that says nothing of it; 0 for as long as any other
    /// response.
    pub negative: u64,
    /// Statuses of errors that are stored where the response allows it. Statuses that one request's
    /// fields can cause (400, 416, 431 and the like) are refused here.
    pub store_errors: Vec<u16>,
    /// Store responses with Set-Cookie, and send the cookie to every client that gets a hit.
    pub store_set_cookie: bool,
    /// Fields of a request that are part of the key of every response, in addition to the URI and
    /// to what Vary names.
    pub key_fields: Vec<String>,
    /// Fields with which a request goes past the cache.
    pub bypass_fields: Vec<String>,
    /// What becomes of a response whose clients have all left.
    pub abandoned: Abandoned,
}

/// What becomes of a response whose clients have all left before it was whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Abandoned {
    /// It is fetched to its end.
    #[default]
    Finish,
    /// It is given up.
    Drop,
    /// It is fetched to its end if this part of it is there, in per cent.
    Past(u8),
}

/// Who may use the proxy, and for what.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Access {
    /// Networks of clients, as `10.0.0.0/8`; without any the clients of this machine, and of a
    /// reverse proxy all.
    pub allow: Vec<String>,
    /// Ports that CONNECT may open.
    pub connect_ports: Vec<u16>,
    /// Networks that the forward proxy may reach although they are loopback, link-local or private.
    pub reach: Vec<String>,
    /// Networks of clients that may use PURGE.
    pub purge: Vec<String>,
    /// Networks of clients whose requests may demand a new response (`Cache-Control: no-cache`,
    /// `max-age`, `min-fresh`; `Pragma: no-cache`). Unset: all clients of a forward proxy, none
    /// of a reverse proxy.
    pub refresh: Option<Vec<String>>,
}

/// Seconds that each phase may take.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// A client's connection without a request.
    pub idle: u64,
    /// A client's head, from its first byte to its last.
    pub head: u64,
    /// A client that takes nothing, or brings nothing of its body.
    pub client: u64,
    /// How long a request's body may be waited for beyond `limits.request_body_rate`.
    pub body_grace: u64,
    /// All of a request's body.
    pub body: u64,
    /// How long a client may be waited for beyond `limits.response_rate`.
    pub response_grace: u64,
    /// To connect to an origin, its name looked up.
    pub connect: u64,
    /// An origin that brings nothing.
    pub origin: u64,
    /// An origin's connection without a request.
    pub origin_idle: u64,
    /// A tunnel on which nothing moves.
    pub tunnel: u64,
    /// Connections may go on for so long after SIGTERM.
    pub drain: u64,
}

/// How much there may be of anything.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Connections of clients at a time.
    pub connections: u32,
    /// Connections of one client's address at a time; 0 for as many as of all.
    pub connections_per_client: u32,
    /// Connections in use to one origin at a time, of all workers. Requests wait for
    /// `timeouts.connect` for a free one, then get 503.
    pub origin_connections: usize,
    /// Of these, those of one client; unset a quarter, 0 for as many as of all.
    pub origin_connections_per_client: Option<usize>,
    /// Of these, those of fetches that no client waits for; unset a fifth, 0 for none. Beyond it
    /// abandoned responses are given up, and stale ones are not validated in the background.
    pub background_fetches: Option<usize>,
    /// Fetches that no client waits for and that one client caused, from all origins; unset a tenth
    /// of `background_fetches`, 0 for as many.
    pub background_fetches_per_client: Option<usize>,
    /// Bytes of a request's body.
    pub request_body: ByteSize,
    /// Bytes per second that a request's body must bring after `timeouts.body_grace`; 0 for none.
    pub request_body_rate: ByteSize,
    /// A request is sent to its origin once this much of its body has come, or all of it; 0 at
    /// once.
    pub request_ahead: ByteSize,
    /// Memory for bodies that are read ahead, of all workers; 0: none is. Requests wait for
    /// `timeouts.connect` for it, then get 503.
    pub request_ahead_memory: ByteSize,
    /// Of this, that of one client; unset a quarter, 0 for all.
    pub request_ahead_memory_per_client: Option<ByteSize>,
    /// Bytes per second that a client must take of responses after `timeouts.response_grace`; 0 for
    /// none.
    pub response_rate: ByteSize,
    /// Idle connections to one origin that a worker keeps.
    pub origin_idle: usize,
}

/// When bytes are left to the kernel. The defaults were measured; `bench/results` has the figures.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Transfer {
    /// Stored bodies go by sendfile.
    pub sendfile: bool,
    /// Bodies that are at least so long; shorter ones are kept in memory when they are asked for.
    pub sendfile_from: ByteSize,
    /// Bodies from origins go by splice.
    pub splice: bool,
    /// Parts of a body from an origin that are at least so long are spliced.
    pub splice_from: ByteSize,
}

/// TLS with clients and origins.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// Addresses where clients begin with TLS, beside `listen`.
    pub listen: Vec<SocketAddr>,
    /// The file of this server's certificate, with those of the authorities behind it but the last,
    /// in PEM.
    pub certificate: Option<PathBuf>,
    /// The file of its private key, in PEM.
    pub key: Option<PathBuf>,
    /// A file of authorities, in PEM, that sign for the origin, beside those that the system
    /// trusts.
    pub origin_ca: Option<PathBuf>,
    /// The kernel encrypts where it can (kTLS), so that sendfile and splice serve TLS, too.
    pub kernel: bool,
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
            log: Log::default(),
            admin: Admin::default(),
            proxy_protocol: ProxyProtocol::default(),
        }
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            dir: None,
            size: ByteSize::gib(1),
            memory: ByteSize::mib(64),
            memory_object: ByteSize::kib(32),
            object: ByteSize::tib(1),
            sync: 10,
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
        Self { listen: Vec::new(), certificate: None, key: None, origin_ca: None, kernel: true }
    }
}

impl Default for Transfer {
    fn default() -> Self {
        Self { sendfile: true, sendfile_from: ByteSize::kib(8), splice: true, splice_from: ByteSize::kib(64) }
    }
}

impl Timeouts {
    /// A number of seconds; 0 is a day, for nothing lasts forever.
    pub(crate) fn limit(seconds: u64) -> Duration {
        const DAY: Duration = Duration::from_hours(24);
        if seconds == 0 { DAY } else { Duration::from_secs(seconds).min(DAY) }
    }
}
