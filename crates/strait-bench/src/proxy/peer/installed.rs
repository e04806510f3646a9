//! Other proxies: programs, arguments, and the configurations in `peers/`.

use super::{Directory, Setting, find};
use crate::child::Program;
use crate::error::Result;

/// Installed proxy.
#[derive(Clone, Copy)]
pub(super) struct Peer {
    pub(super) program: &'static str,
    /// Argument that prints its version.
    pub(super) version: &'static str,
    /// Directories to create in its own directory.
    directories: &'static [&'static str],
    /// Configuration files: names in its directory, and texts.
    files: &'static [(&'static str, &'static str)],
    /// Further placeholders in files and arguments, with their values.
    values: &'static [(&'static str, &'static str)],
    /// Environment variables.
    environment: &'static [&'static str],
    /// Arguments of a run before the actual one, such as to create a cache.
    before: &'static [&'static str],
    arguments: &'static [&'static str],
}

macro_rules! configuration {
    ($path:literal) => {
        include_str!(concat!("../../../peers/", $path))
    };
}

pub(super) const NGINX: Peer = Peer {
    program: "nginx",
    version: "-v",
    directories: &[],
    files: &[("nginx.conf", configuration!("nginx/nginx.conf"))],
    values: &[("@HTTP2@", "")],
    // Without it, malloc returns the buffers to the kernel after every long response.
    environment: &["MALLOC_TRIM_THRESHOLD_=1073741824"],
    before: &[],
    arguments: &["-e", "stderr", "-p", "@DIR@", "-c", "@DIR@/nginx.conf"],
};

pub(super) const NGINX_HTTP2: Peer =
    Peer { values: &[("@HTTP2@", configuration!("nginx/http2.conf"))], ..NGINX };

pub(super) const NGINX_TUNNEL: Peer =
    Peer { files: &[("nginx.conf", configuration!("nginx/tunnel.conf"))], ..NGINX };

pub(super) const SQUID: Peer = Peer {
    program: "squid",
    version: "-v",
    environment: &[],
    files: &[("squid.conf", configuration!("squid/memory.conf"))],
    arguments: &["-N", "-f", "@DIR@/squid.conf"],
    ..NGINX
};

pub(super) const SQUID_TUNNEL: Peer =
    Peer { files: &[("squid.conf", configuration!("squid/tunnel.conf"))], ..SQUID };

pub(super) const SQUID_AUFS: Peer = Peer {
    directories: &["cache"],
    files: &[("squid.conf", configuration!("squid/aufs.conf"))],
    // Creates the cache directories.
    before: &["-N", "-z", "-f", "@DIR@/squid.conf"],
    ..SQUID
};

pub(super) const VARNISH: Peer = Peer {
    program: "varnishd",
    environment: &[],
    version: "-V",
    files: &[("default.vcl", configuration!("varnish/default.vcl"))],
    values: &[("@STORE@", "malloc,@MEMORY_MIB@M"), ("@HTTP2@", "-http2")],
    // One CPU needs one thread pool.
    arguments: &[
        "-F",
        "-j",
        "none",
        "-n",
        "@DIR@/work",
        "-T",
        "none",
        "-f",
        "@DIR@/default.vcl",
        "-a",
        "@LISTEN@",
        "-s",
        "@STORE@",
        "-p",
        "thread_pools=1",
        "-p",
        "timeout_idle=600",
        "-p",
        "feature=@HTTP2@",
        "-p",
        VARNISH_LOG,
    ],
    ..NGINX
};

/// Log mask: the log in memory, the source of access logs, without the records of every request.
const VARNISH_LOG: &str = "vsl_mask=-Begin,-End,-Link,-Timestamp,-ReqAcct,-BereqAcct,-ReqStart,-ReqMethod,-ReqURL,-ReqProtocol,\
    -ReqHeader,-ReqUnset,-RespProtocol,-RespStatus,-RespReason,-RespHeader,-RespUnset,-BereqMethod,-BereqURL,-BereqProtocol,\
    -BereqHeader,-BereqUnset,-BerespProtocol,-BerespStatus,-BerespReason,-BerespHeader,-BerespUnset,-VCL_call,-VCL_return,\
    -VCL_use,-Hit,-HitMiss,-HitPass,-BackendOpen,-BackendStart,-BackendClose,-Fetch_Body,-Filters,-Storage,-Length,-TTL";

pub(super) const VARNISH_FILE: Peer =
    Peer { values: &[("@STORE@", "file,@DIR@/cache,@DISK_MIB@M"), ("@HTTP2@", "-http2")], ..VARNISH };

pub(super) const VARNISH_HTTP2: Peer =
    Peer { values: &[("@STORE@", "malloc,@MEMORY_MIB@M"), ("@HTTP2@", "+http2")], ..VARNISH };

pub(super) const HAPROXY: Peer = Peer {
    program: "haproxy",
    environment: &[],
    version: "-v",
    files: &[("haproxy.cfg", configuration!("haproxy/haproxy.cfg"))],
    values: &[("@SPLICE@", ""), ("@HTTP2@", "")],
    arguments: &["-db", "-f", "@DIR@/haproxy.cfg"],
    ..NGINX
};

pub(super) const HAPROXY_SPLICE: Peer =
    Peer { values: &[("@SPLICE@", "option splice-response"), ("@HTTP2@", "")], ..HAPROXY };

pub(super) const HAPROXY_HTTP2: Peer =
    Peer { values: &[("@SPLICE@", ""), ("@HTTP2@", configuration!("haproxy/http2.cfg"))], ..HAPROXY };

pub(super) const HAPROXY_TUNNEL: Peer =
    Peer { files: &[("haproxy.cfg", configuration!("haproxy/tunnel.cfg"))], ..HAPROXY };

pub(super) const HAPROXY_TUNNEL_SPLICE: Peer =
    Peer { values: &[("@SPLICE@", "option splice-auto")], ..HAPROXY_TUNNEL };

pub(super) const TRAFFICSERVER: Peer = Peer {
    program: "traffic_server",
    environment: &[],
    version: "-V",
    directories: &["cache"],
    files: &[
        ("runroot.yaml", configuration!("trafficserver/runroot.yaml")),
        ("records.config", configuration!("trafficserver/records.config")),
        ("remap.config", configuration!("trafficserver/remap.config")),
        ("storage.config", configuration!("trafficserver/storage.config")),
        ("ip_allow.yaml", configuration!("trafficserver/ip_allow.yaml")),
        ("plugin.config", ""),
    ],
    arguments: &["--run-root=@DIR@/runroot.yaml"],
    ..NGINX
};

impl Peer {
    /// Writes its configuration. Returns the program to run first, if any, and the program that
    /// serves.
    pub(super) fn programs(
        &self,
        setting: &Setting<'_>,
        directory: &Directory,
    ) -> Result<(Option<Program>, Program)> {
        let fill = |text: &str| {
            let own =
                self.values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value));
            setting.fill(&own, directory)
        };
        for name in self.directories {
            directory.make(name)?;
        }
        for (name, text) in self.files {
            directory.write(name, &fill(text))?;
        }
        let path = find(self.program)?.to_string_lossy().into_owned();
        let name = [path.as_str()];
        let program = |arguments: &[&str]| {
            let command = ["env"].iter().chain(self.environment).chain(&name).chain(arguments);
            super::unprivileged(command.map(|word| fill(word)))
        };
        let before = (!self.before.is_empty()).then(|| program(self.before));
        Ok((before, program(self.arguments)))
    }
}
