//! What the proxy is told: the file `strait.toml`, and what it is checked into.
//!
//! Every key has a default; an empty file is a forward cache for the clients of this machine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use serde::Deserialize;

use crate::error::{Error, Result};

/// The file `strait.toml`. Times are in seconds; sizes are bytes, or as `512MiB`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Addresses that clients connect to; port 0 takes a free one.
    pub listen: Vec<SocketAddr>,
    /// Threads that serve, each on a processor of its own; 0 for one a processor.
    pub workers: usize,
    /// The server that this one stands before (a reverse proxy), as `http://HOST[:PORT]` or `https://HOST[:PORT]`; without it clients
    /// name the server themselves (a forward proxy).
    pub origin: Option<String>,
    /// The name that this proxy gives itself in Via and Cache-Status (RFC 9110, section 7.6.3).
    pub name: String,
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
}

/// What is kept, and where.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cache {
    /// The directory of the store. Without it small objects are kept in memory, and nothing else.
    pub dir: Option<PathBuf>,
    /// Bytes that the store may take on disk.
    pub size: ByteSize,
    /// Bytes of small objects that all workers together keep in memory.
    pub memory: ByteSize,
    /// Objects up to this size are kept in memory when they are asked for; larger ones are sent from their files.
    pub memory_object: ByteSize,
    /// Objects that are larger are not stored.
    pub object: ByteSize,
    /// Seconds between two times that what was stored is made to last through a power loss; 0 never does.
    pub sync: u64,
    /// What becomes of a response whose clients have all left.
    pub abandoned: Abandoned,
}

/// What becomes of a response whose clients have all left before it was whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
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
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Access {
    /// Networks of clients, as `10.0.0.0/8`; without any the clients of this machine, and of a reverse proxy all.
    pub allow: Vec<String>,
    /// Ports that CONNECT may open.
    pub connect_ports: Vec<u16>,
    /// Networks that the forward proxy may reach although they are loopback, link-local or private.
    pub reach: Vec<String>,
    /// Networks of clients that may use PURGE.
    pub purge: Vec<String>,
}

/// Seconds that each phase may take.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// A client's connection without a request.
    pub idle: u64,
    /// A client's head, from its first byte to its last.
    pub head: u64,
    /// A client that takes nothing, or brings nothing of its body.
    pub client: u64,
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
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Connections of clients at a time.
    pub connections: u32,
    /// Bytes of a request's body.
    pub request_body: ByteSize,
    /// Idle connections to one origin that a worker keeps.
    pub origin_idle: usize,
}

/// When bytes are left to the kernel. The defaults were measured; `bench/results` has the figures.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Transfer {
    /// Stored bodies go by sendfile.
    pub sendfile: bool,
    /// Bodies from origins go by splice.
    pub splice: bool,
    /// Parts of a body from an origin that are at least so long are spliced.
    pub splice_from: ByteSize,
}

/// TLS with clients and origins.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// Addresses where clients begin with TLS, beside `listen`.
    pub listen: Vec<SocketAddr>,
    /// The file of this server's certificate, with those of the authorities behind it but the last, in PEM.
    pub certificate: Option<PathBuf>,
    /// The file of its private key, in PEM.
    pub key: Option<PathBuf>,
    /// A file of authorities, in PEM, that sign for the origin, beside those that the system trusts.
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
            name: "strait".to_owned(),
            cache: Cache::default(),
            access: Access::default(),
            timeouts: Timeouts::default(),
            limits: Limits::default(),
            transfer: Transfer::default(),
            tls: Tls::default(),
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
            abandoned: Abandoned::Finish,
        }
    }
}

impl Default for Access {
    fn default() -> Self {
        Self { allow: Vec::new(), connect_ports: vec![443], reach: Vec::new(), purge: Vec::new() }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            idle: 60,
            head: 10,
            client: 60,
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
        Self { connections: 10_000, request_body: ByteSize::tib(1), origin_idle: 64 }
    }
}

impl Default for Tls {
    fn default() -> Self {
        Self { listen: Vec::new(), certificate: None, key: None, origin_ca: None, kernel: true }
    }
}

impl Default for Transfer {
    fn default() -> Self {
        Self { sendfile: true, splice: true, splice_from: ByteSize::kib(64) }
    }
}

impl Config {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// It is not TOML, or has keys or values that are not known: the message has the line.
    pub fn from_toml(text: &str) -> Result<Self> {
        toml::from_str(text).map_err(|error| Error::Config(error.to_string().trim_end().to_owned()))
    }
}

impl Timeouts {
    /// A number of seconds; 0 is a day, for nothing lasts forever.
    pub(crate) fn limit(seconds: u64) -> Duration {
        const DAY: Duration = Duration::from_hours(24);
        if seconds == 0 { DAY } else { Duration::from_secs(seconds).min(DAY) }
    }
}
