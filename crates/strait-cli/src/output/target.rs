//! URLs of `--to`: targets of tables.

use std::fmt;
use std::path::PathBuf;

use strait_program::authority;
use strait_program::broker::Broker;
use strait_program::bucket::Bucket;
use strait_table::ipfix::Transport;

use crate::Error;

/// Port of collectors (RFC 7011 section 10.2.2).
const COLLECTOR_PORT: u16 = 4739;

/// Maximum number of targets. Each has a thread, and a queue of at least 64 MiB while it captures.
pub(super) const TARGETS_MAX: usize = 8;

/// Target of tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Directory of Parquet files.
    Directory(PathBuf),
    /// Collector of flows.
    Collector(CollectorUrl),
    /// Bucket of an object store.
    Bucket(Bucket),
    /// Broker of messages, for flows.
    Broker(Broker),
}

/// URL of a collector: `ipfix://HOST:PORT?domain=N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CollectorUrl {
    /// HOST:PORT.
    pub(super) name: String,
    pub(super) transport: Transport,
    /// Observation domain.
    pub(super) domain: u32,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory) => write!(f, "file:{}", directory.display()),
            Self::Bucket(bucket) => write!(f, "{bucket}"),
            Self::Broker(broker) => write!(f, "{broker}"),
            Self::Collector(CollectorUrl { name, transport, domain }) => {
                let scheme = if *transport == Transport::Udp { "ipfix" } else { "ipfix+tcp" };
                write!(f, "{scheme}://{name}")?;
                if *domain == 0 { Ok(()) } else { write!(f, "?domain={domain}") }
            }
        }
    }
}

/// Refuses too many targets, and two that are the same. Directories are compared when they exist.
pub(super) fn check(targets: &[Target]) -> Result<(), Error> {
    if targets.len() > TARGETS_MAX {
        let given = targets.len();
        return Err(Error::Usage(format!("{given} targets are given: give at most {TARGETS_MAX}")));
    }
    for (at, target) in targets.iter().enumerate() {
        if let Some(other) = targets.iter().take(at).find(|other| is_same(other, target)) {
            return Err(same(other, target));
        }
    }
    Ok(())
}

/// Returns the error for two targets that are the same.
pub(super) fn same(one: &Target, other: &Target) -> Error {
    Error::Usage(format!("{one} and {other} have one place: leave out one, or give another place"))
}

/// Returns true if rows for both go to one place on another machine.
pub(super) fn is_same(one: &Target, other: &Target) -> bool {
    match (one, other) {
        (Target::Collector(one), Target::Collector(other)) => {
            let is_named = one.name.eq_ignore_ascii_case(&other.name);
            is_named && (one.transport, one.domain) == (other.transport, other.domain)
        }
        (Target::Broker(one), Target::Broker(other)) => {
            let has = |address: &String| other.addresses.iter().any(|has| has.eq_ignore_ascii_case(address));
            one.kind == other.kind && one.name == other.name && one.addresses.iter().any(has)
        }
        (Target::Bucket(one), Target::Bucket(other)) => {
            one.name == other.name
                && (is_below(&one.prefix, &other.prefix) || is_below(&other.prefix, &one.prefix))
        }
        _ => false,
    }
}

/// Returns true if a prefix is the other one or below it.
fn is_below(prefix: &str, other: &str) -> bool {
    let rest = prefix.strip_prefix(other);
    rest.is_some_and(|rest| other.is_empty() || rest.is_empty() || rest.starts_with('/'))
}

/// Parses a URL.
pub(super) fn parse(url: &str) -> Result<Target, String> {
    if let Some(path) = url.strip_prefix("file:") {
        return directory(path).map(Target::Directory);
    }
    let collector = |rest, transport| collector(rest, transport).map(Target::Collector);
    if let Some(rest) = url.strip_prefix("ipfix://") {
        return collector(rest, Transport::Udp);
    }
    if let Some(rest) = url.strip_prefix("ipfix+tcp://") {
        return collector(rest, Transport::Tcp);
    }
    if url.starts_with("s3:") {
        return url.parse().map(Target::Bucket);
    }
    if Broker::has_scheme(url) {
        return url.parse().map(Target::Broker);
    }
    Err("give a directory, as in file:/srv/lake, a bucket, as in s3://lake/raw, a collector, as in \
         ipfix://192.0.2.1, a subject of NATS, as in nats://192.0.2.1/flows, or a topic of Kafka, as in \
         kafka://192.0.2.1/flows"
        .into())
}

/// Parses the directory of `file:DIR`, or of `file://HOST/DIR` (RFC 8089) of this machine.
fn directory(path: &str) -> Result<PathBuf, String> {
    let example = "as in file:/srv/lake";
    let path = match path.strip_prefix("//") {
        None => path,
        Some(rest) => {
            let (host, _) = rest.split_once('/').unwrap_or((rest, ""));
            if !host.is_empty() && host != "localhost" {
                return Err(format!("{host} is the host in this URL, not a directory: give one, {example}"));
            }
            &rest[host.len()..]
        }
    };
    if path.is_empty() {
        Err(format!("give the directory of the tables, {example}"))
    } else {
        Ok(path.into())
    }
}

/// Parses `HOST[:PORT][?domain=N]`.
fn collector(rest: &str, transport: Transport) -> Result<CollectorUrl, String> {
    let (authority, query) = rest.split_once('?').map_or((rest, None), |(one, other)| (one, Some(other)));
    let domain = match query {
        None => 0,
        Some(query) => query
            .strip_prefix("domain=")
            .and_then(number)
            .ok_or_else(|| format!("{query}: give the observation domain, as in ?domain=7"))?,
    };
    let remedy =
        "give the collector's name or address, as in ipfix://192.0.2.1:4739 or ipfix://[2001:db8::1]";
    let name = authority::parse(authority, COLLECTOR_PORT, remedy)?;
    Ok(CollectorUrl { name, transport, domain })
}

/// Parses digits.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collector_of(url: &str) -> (String, Transport, u32) {
        let Ok(Target::Collector(CollectorUrl { name, transport, domain })) = parse(url) else {
            panic!("{url}: {:?}", parse(url));
        };
        (name, transport, domain)
    }

    #[test]
    fn collectors_have_a_host_a_port_and_a_domain() {
        for (url, expected) in [
            ("ipfix://192.0.2.1", ("192.0.2.1:4739", Transport::Udp, 0)),
            ("ipfix://flows.example:9995?domain=7", ("flows.example:9995", Transport::Udp, 7)),
            ("ipfix+tcp://[2001:db8::1]", ("[2001:db8::1]:4739", Transport::Tcp, 0)),
            ("ipfix+tcp://[::1]:65535?domain=4294967295", ("[::1]:65535", Transport::Tcp, u32::MAX)),
        ] {
            let (name, transport, domain) = collector_of(url);
            assert_eq!((&*name, transport, domain), expected, "{url}");
        }
    }

    #[test]
    fn two_targets_with_one_place_are_refused() {
        for (one, other, is_same) in [
            ("ipfix://Host", "ipfix://host:4739", true),
            ("ipfix://host", "ipfix://host?domain=1", false),
            ("ipfix://host", "ipfix+tcp://host", false),
            ("kafka://a,b/flows", "kafka://C,B:9092/flows", true),
            ("kafka://a/flows", "kafka+tls://a/flows", true),
            ("kafka://a/flows", "kafka://a/flows2", false),
            ("nats://a/flows", "kafka://a:4222/flows", false),
            ("s3://lake", "s3://lake/raw", true),
            ("s3://lake/raw/", "s3://lake/raw", true),
            ("s3://lake/raw", "s3://lake/raw2", false),
            ("s3://lake/raw", "s3://like/raw", false),
            ("file:/a", "file:/b", false),
        ] {
            for targets in [[one, other], [other, one]] {
                let targets = targets.map(|url| parse(url).unwrap());
                assert_eq!(check(&targets).is_err(), is_same, "{targets:?}");
            }
        }
        let many = ["file:/a", "file:/b"].map(|url| parse(url).unwrap());
        assert!(check(&many.iter().cycle().take(8).cloned().collect::<Vec<_>>()).is_ok());
        let error = check(&many.iter().cycle().take(9).cloned().collect::<Vec<_>>()).unwrap_err();
        assert_eq!(error.to_string(), "9 targets are given: give at most 8");
    }

    #[test]
    fn targets_are_printed_as_their_urls() {
        for url in ["file:/a", "ipfix://host:1", "ipfix+tcp://[::1]:4739?domain=7", "s3://lake/raw"] {
            assert_eq!(parse(url).unwrap().to_string(), url);
        }
    }

    #[test]
    fn wrong_urls_are_refused_with_a_remedy() {
        for (url, words) in [
            ("", "give a directory"),
            ("192.0.2.1:4739", "give a directory"),
            ("ipfix:192.0.2.1", "give a directory"),
            ("s3:lake", "give a bucket"),
            ("s3://Lake", "a bucket has"),
            ("ipfix://", "the collector's name"),
            ("ipfix://:4739", "the collector's name"),
            ("ipfix://user@host", "the collector's name"),
            ("ipfix://host/path", "the collector's name"),
            ("ipfix://2001:db8::1", "give a port"),
            ("ipfix://[2001:db8::1", "the collector's name"),
            ("ipfix://[192.0.2.1]", "the collector's name"),
            ("ipfix://[::1]4739", "the collector's name"),
            ("ipfix://ho\u{e9}st", "the collector's name"),
            ("ipfix://host:", "give a port"),
            ("ipfix://host:0", "give a port"),
            ("ipfix://host:65536", "give a port"),
            ("ipfix://host:+1", "give a port"),
            ("ipfix://host?domain=", "observation domain"),
            ("ipfix://host?domain=4294967296", "observation domain"),
            ("ipfix://host?domain=-1", "observation domain"),
            ("ipfix://host?port=1", "observation domain"),
        ] {
            let error = parse(url).unwrap_err();
            assert!(error.contains(words), "{url}: {error}");
        }
    }
}
