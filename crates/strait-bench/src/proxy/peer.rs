//! Measured proxies and how to start them. Their configurations, in `peers/`, are compiled
//! into this program and filled in for a measurement.
//!
//! Each proxy has its own directory, removed after the run, and runs as an unprivileged user if
//! this process is root.

mod directory;
mod find;
mod installed;

use std::fmt;
use std::net::SocketAddr;
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use strait_os::process;

use crate::child::{Child, Launcher, Program};
use crate::error::{Error, Result};
pub(crate) use directory::{Directories, Directory};
pub(crate) use find::find;

/// User of the peers if this process is root: without privileges on Debian and most other systems.
const NOBODY: u32 = 65534;
/// Time for a proxy to end.
const STOP_MAX: Duration = Duration::from_secs(10);

/// Configurations of Strait's proxy for tunnels and for HTTP/2.
const FILE: &str = "strait.toml";
const TUNNEL_CONFIGURATION: &str = include_str!("../../peers/strait/tunnel.toml");
const HTTP2_CONFIGURATION: &str = include_str!("../../peers/strait/http2.toml");

/// Program between the client and the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contestant {
    /// The origin itself, without a proxy: the limit of the rig and the minimum cost of a response.
    Direct,
    /// Strait's proxy.
    Strait(Optimised),
    /// nginx with its cache on disk.
    Nginx,
    /// Squid with its cache in memory.
    Squid,
    /// Squid with its cache on disk, read and written by threads (aufs).
    SquidAufs,
    /// Varnish with its cache in memory.
    Varnish,
    /// Varnish with its cache in a mapped file.
    VarnishFile,
    /// HAProxy with its cache in memory.
    HaProxy,
    /// HAProxy with splice(2) for responses that it does not store.
    HaProxySplice,
    /// Traffic Server with its cache on disk and a memory cache.
    TrafficServer,
}

/// Enabled optimisations of Strait's proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optimised {
    /// sendfile(2) for hits.
    pub sendfile: bool,
    /// splice(2) and tee(2) for misses.
    pub splice: bool,
    /// `transfer.fill`: how misses move into the store.
    pub fill: &'static str,
}

/// Strait's proxy as it is by default.
pub(crate) const STRAIT: Contestant = strait(true, true, "auto");

const fn strait(sendfile: bool, splice: bool, fill: &'static str) -> Contestant {
    Contestant::Strait(Optimised { sendfile, splice, fill })
}

/// All contestants by name.
pub const CONTESTANTS: [(&str, Contestant); 15] = [
    ("direct", Contestant::Direct),
    ("strait", STRAIT),
    ("strait-splice-fills", strait(true, true, "splice")),
    ("strait-copy-fills", strait(true, true, "copy")),
    ("strait-no-sendfile", strait(false, true, "auto")),
    ("strait-no-splice", strait(true, false, "copy")),
    ("strait-copies", strait(false, false, "copy")),
    ("nginx", Contestant::Nginx),
    ("squid", Contestant::Squid),
    ("squid-aufs", Contestant::SquidAufs),
    ("varnish", Contestant::Varnish),
    ("varnish-file", Contestant::VarnishFile),
    ("haproxy", Contestant::HaProxy),
    ("haproxy-splice", Contestant::HaProxySplice),
    ("trafficserver", Contestant::TrafficServer),
];

/// Values that fill in a configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting<'a> {
    pub(crate) listen: SocketAddr,
    pub(crate) origin: SocketAddr,
    /// Limits of a cache on disk and in memory, in bytes.
    pub(crate) disk_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) launcher: &'a Launcher,
    pub(crate) service: Service,
}

/// Service of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// It is a cache, over HTTP/1.1.
    Cache,
    /// It is a cache, over HTTP/1.1, HTTP/2, and HTTP/2 with TLS.
    Http2(Http2Addresses),
    /// It relays connections to the origin: by CONNECT, or uninterpreted.
    Tunnels,
}

/// Addresses of a proxy for HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Http2Addresses {
    /// Without TLS, for proxies that do not detect HTTP/2 where they listen for HTTP/1.1.
    pub(crate) clear: SocketAddr,
    pub(crate) tls: SocketAddr,
}

impl Contestant {
    /// Returns true if its cache is in memory alone.
    pub(crate) fn is_in_memory(self) -> bool {
        matches!(self, Self::Squid | Self::Varnish | Self::HaProxy | Self::HaProxySplice)
    }

    /// Returns true for the contestants of D4's experiments: Strait's proxy and Squid.
    pub fn is_of_d4(&self) -> bool {
        matches!(self, Self::Strait(_) | Self::Squid | Self::SquidAufs)
    }

    fn peer(self) -> Option<&'static installed::Peer> {
        match self {
            Self::Direct | Self::Strait(_) => None,
            Self::Nginx => Some(&installed::NGINX),
            Self::Squid => Some(&installed::SQUID),
            Self::SquidAufs => Some(&installed::SQUID_AUFS),
            Self::Varnish => Some(&installed::VARNISH),
            Self::VarnishFile => Some(&installed::VARNISH_FILE),
            Self::HaProxy => Some(&installed::HAPROXY),
            Self::HaProxySplice => Some(&installed::HAPROXY_SPLICE),
            Self::TrafficServer => Some(&installed::TRAFFICSERVER),
        }
    }

    /// Returns true if its tunnels are opened by CONNECT. Other contestants relay all connections.
    pub(crate) fn connects(self) -> bool {
        matches!(self, Self::Strait(_) | Self::Squid)
    }

    /// Returns the peer that relays connections.
    fn tunnel(self) -> Option<&'static installed::Peer> {
        match self {
            Self::Nginx => Some(&installed::NGINX_TUNNEL),
            Self::Squid => Some(&installed::SQUID_TUNNEL),
            Self::HaProxy => Some(&installed::HAPROXY_TUNNEL),
            Self::HaProxySplice => Some(&installed::HAPROXY_TUNNEL_SPLICE),
            _ => None,
        }
    }

    /// Returns the peer with HTTP/2.
    fn http2(self) -> Option<&'static installed::Peer> {
        match self {
            Self::Nginx => Some(&installed::NGINX_HTTP2),
            Self::HaProxy => Some(&installed::HAPROXY_HTTP2),
            Self::Varnish => Some(&installed::VARNISH_HTTP2),
            _ => None,
        }
    }

    /// Returns the address for HTTP/2 of a proxy that listens for HTTP/1.1 at `listen`.
    pub(crate) fn http2_address(self, listen: SocketAddr, http2: Http2Addresses, is_tls: bool) -> SocketAddr {
        match self {
            _ if is_tls => http2.tls,
            Self::Nginx => http2.clear,
            _ => listen,
        }
    }

    /// Returns true unless it leaves TLS to others.
    pub(crate) fn has_tls(self) -> bool {
        !matches!(self, Self::Varnish | Self::VarnishFile)
    }

    /// Returns true if it is measured over HTTP/2.
    pub fn serves_http2(&self) -> bool {
        *self == STRAIT || self.http2().is_some()
    }

    /// Returns its version.
    ///
    /// # Errors
    /// It is not installed.
    pub(crate) fn version(self, launcher: &Launcher) -> Result<String> {
        let (program, options) = match (self, self.peer()) {
            (_, Some(peer)) => (find(peer.program)?, vec![peer.version]),
            (Self::Direct, _) => return Ok("no proxy".into()),
            _ => (launcher.strait.clone(), vec!["--version"]),
        };
        let failed = |error| Error::file(format!("start {}", program.display()), error);
        let output = Command::new(&program).args(options).output().map_err(failed)?;
        let text = [output.stdout, output.stderr].concat();
        let line = String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned();
        if output.status.success() { Ok(line) } else { Err(Error::Invalid(line)) }
    }

    /// Returns the program that serves according to `setting` with files in `directory`, and one to
    /// run before it, if any.
    pub(crate) fn programs(
        self,
        setting: &Setting<'_>,
        directory: &Directory,
    ) -> Result<(Option<Program>, Program)> {
        let fill = |text: &str| setting.fill(text, directory);
        let (peer, what) = match setting.service {
            Service::Cache => (self.peer(), "cache"),
            Service::Http2(_) => (self.http2(), "HTTP/2"),
            Service::Tunnels => (self.tunnel(), "tunnels"),
        };
        if let Service::Http2(_) = setting.service {
            directory.write_certificate()?;
        }
        if let Some(peer) = peer {
            return peer.programs(setting, directory);
        }
        if self.peer().is_some() {
            return Err(Error::Invalid(format!("{self} has no {what} here")));
        }
        let Self::Strait(optimised) = self else {
            return Err(Error::Usage(format!("{self} is not a program")));
        };
        let mut arguments = vec!["proxy".to_owned()];
        arguments.push(fill("--cache-dir=@DIR@/cache"));
        if setting.service != Service::Tunnels {
            arguments.push(fill("--origin=http://@ORIGIN@"));
        }
        let configuration = match setting.service {
            Service::Cache => None,
            Service::Http2(_) => Some(HTTP2_CONFIGURATION),
            Service::Tunnels => Some(TUNNEL_CONFIGURATION),
        };
        match configuration {
            Some(text) => {
                directory.write(FILE, &fill(text))?;
                arguments.push(fill("--config=@DIR@/") + FILE);
            }
            None => arguments.push(fill("--listen=@LISTEN@")),
        }
        arguments.extend([
            format!("--cache-size={}", setting.disk_bytes),
            format!("--memory={}", setting.memory_bytes),
            "--workers=1".into(),
            format!("--fill={}", optimised.fill),
        ]);
        arguments.extend((!optimised.sendfile).then(|| "--no-sendfile".into()));
        arguments.extend((!optimised.splice).then(|| "--no-splice".into()));
        Ok((None, setting.launcher.strait(arguments)))
    }
}

impl Setting<'_> {
    /// Replaces the placeholders in `text` by the values of this setting.
    pub(super) fn fill(&self, text: &str, directory: &Directory) -> String {
        let http2 = |of: fn(&Http2Addresses) -> SocketAddr| match &self.service {
            Service::Http2(addresses) => of(addresses).to_string(),
            Service::Cache | Service::Tunnels => String::new(),
        };
        let values = [
            ("@LISTEN_HTTP2@", http2(|addresses| addresses.clear)),
            ("@LISTEN_TLS@", http2(|addresses| addresses.tls)),
            ("@DIR@", directory.path().display().to_string()),
            ("@LISTEN@", self.listen.to_string()),
            ("@LISTEN_HOST@", self.listen.ip().to_string()),
            ("@LISTEN_PORT@", self.listen.port().to_string()),
            ("@ORIGIN@", self.origin.to_string()),
            ("@ORIGIN_HOST@", self.origin.ip().to_string()),
            ("@ORIGIN_PORT@", self.origin.port().to_string()),
            ("@DISK_MIB@", (self.disk_bytes >> 20).to_string()),
            ("@MEMORY_BYTES@", self.memory_bytes.to_string()),
            ("@MEMORY_MIB@", (self.memory_bytes >> 20).to_string()),
        ];
        values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }
}

/// Returns the command as an unprivileged user if this process is root. It gets SIGTERM when its
/// parent ends, so that it can end its own children.
fn unprivileged(command: impl IntoIterator<Item = String>) -> Program {
    let user = ["--reuid", "--regid"].map(|option| format!("{option}={NOBODY}"));
    let user = user.into_iter().chain(["--clear-groups".to_owned()]).filter(|_| process::is_root());
    let ends = ["--pdeathsig=TERM".to_owned(), "--".to_owned()];
    Program::new("setpriv", user.chain(ends).chain(command))
}

/// Ends a proxy and its child processes.
pub(crate) fn stop(child: Child) {
    // A proxy that does not end in time is killed.
    let _ = child.terminate(STOP_MAX);
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = CONTESTANTS.into_iter().find(|(_, contestant)| contestant == self).map(|(name, _)| name);
        f.write_str(name.expect("CONTESTANTS has every one"))
    }
}

impl FromStr for Contestant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = CONTESTANTS.into_iter().find(|(name, _)| *name == text);
        found
            .map(|(_, contestant)| contestant)
            .ok_or_else(|| format!("'{text}': give one of {}", CONTESTANTS.map(|(name, _)| name).join(", ")))
    }
}
