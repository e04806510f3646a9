//! Lookups by DNS, /etc/hosts and the search domains of /etc/resolv.conf, as getaddrinfo(3) does
//! them, without a thread and with the lifetimes of the records.
//!
//! hickory-resolver sends the queries. It is given absolute names and no cache: the search list,
//! the hosts, and answers for one address family alone are decided here. Both files are read again
//! after they have changed.

use std::fs::Metadata;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ProtocolConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use hickory_resolver::{Hosts, TokioResolver};
use tokio::sync::Mutex;

use crate::config::dns::Dns as Settings;
use crate::config::pool::SERVERS_MAX;
use crate::config::server::is_localhost;

/// Files that are read again after they have changed.
const FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
/// Addresses of `localhost` that is not in /etc/hosts.
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
/// Time for which addresses without a lifetime are used: those in /etc/hosts.
const HOSTS_FOR: Duration = Duration::from_secs(30);
/// Bounds of the time for which the absence of records is used; the first one if the response has
/// no SOA record (RFC 2308, section 5).
const NONE_FOR: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Maximum of search domains (glibc had this limit up to 2.25).
const SEARCH_MAX: usize = 6;
/// Maximum of addresses of a name, as many as a pool has servers.
const ADDRESSES_MAX: usize = SERVERS_MAX;
/// Maximum of the targets of SRV records.
pub(crate) const TARGETS_MAX: usize = 64;

/// Maximum of aliases (CNAME) from the name of a service to its SRV records.
const ALIASES_MAX: usize = 8;

/// Resolver of one thread.
#[derive(Debug)]
pub(crate) struct Resolver {
    settings: Arc<Settings>,
    system: Mutex<Option<(Stamps, Rc<System>)>>,
}

/// Sizes and times by which a change of the files is noticed.
type Stamps = [Option<(u64, u64, i64, i64)>; FILES.len()];

/// The system's settings, as the files had them.
#[derive(Debug)]
struct System {
    resolver: TokioResolver,
    hosts: Hosts,
    search: Vec<Name>,
    ndots: usize,
}

/// Records with the time for which they are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer<T> {
    pub(crate) records: Vec<T>,
    pub(crate) ttl: Duration,
    /// Family that was not answered; the records are of the other one.
    pub(crate) missing: Option<Family>,
}

/// Address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// SRV record (RFC 2782).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Srv {
    pub(crate) priority: u16,
    pub(crate) weight: u16,
    pub(crate) port: u16,
    pub(crate) target: String,
}

/// Error of a lookup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LookupError {
    /// The name has no such records, which is used for a while.
    #[error("there is no record of this name")]
    None { ttl: Duration },
    /// No server answered, or none with a usable answer.
    #[error("{0}")]
    Failed(Arc<str>),
}

type Result<T> = std::result::Result<T, LookupError>;

impl Family {
    pub(crate) fn of(address: IpAddr) -> Self {
        if address.is_ipv6() { Self::V6 } else { Self::V4 }
    }
}

impl Resolver {
    pub(crate) fn new(settings: Arc<Settings>) -> Self {
        Self { settings, system: Mutex::default() }
    }

    /// Returns true if it was made from these settings.
    pub(crate) fn is_of(&self, settings: &Settings) -> bool {
        *self.settings == *settings
    }

    /// Returns the addresses of a name. Those without a route are left out if others have one.
    pub(crate) async fn addresses(&self, host: &str) -> Result<Answer<IpAddr>> {
        let system = self.system().await?;
        let (found, is_absolute) = (system.hosts(host), host.ends_with('.'));
        // A name of this machine alone (RFC 6761, section 6.3).
        let found = if found.is_empty() && is_localhost(host) { LOOPBACK.to_vec() } else { found };
        if !found.is_empty() {
            let ttl = HOSTS_FOR.min(self.settings.ttl_max);
            return Ok(Answer { records: reachable(found), ttl, missing: None });
        }
        let lookup = async |name: Name| system.addresses(name).await;
        let mut answer = system.search(host, is_absolute, lookup).await?;
        answer.records.retain(|address| is_of_one_host(*address));
        if answer.records.is_empty() {
            return Err(failed(&"all addresses of this name are unspecified, multicast or broadcast ones"));
        }
        answer.records = reachable(answer.records);
        Ok(self.bounded(answer))
    }

    /// Returns the SRV records of a service, at most [`TARGETS_MAX`] of the least priorities.
    pub(crate) async fn services(&self, name: &str) -> Result<Answer<Srv>> {
        let system = self.system().await?;
        let lookup = async |name: Name| system.services(name).await;
        let mut answer = system.search(name, name.ends_with('.'), lookup).await?;
        answer.records = first_targets(answer.records);
        Ok(self.bounded(answer))
    }

    fn bounded<T>(&self, answer: Answer<T>) -> Answer<T> {
        Answer { ttl: self.settings.bounded(answer.ttl), ..answer }
    }

    /// Returns the settings of the system, read now if the files have changed.
    async fn system(&self) -> Result<Rc<System>> {
        let mut own = self.system.lock().await;
        let stamps = stamps();
        if let Some((of, system)) = &*own
            && *of == stamps
        {
            return Ok(system.clone());
        }
        // A file of hosts can have megabytes.
        let read = || (std::fs::read(FILES[0]), std::fs::read(FILES[1]).map(|text| hosts_of(&text)));
        let read = tokio::task::spawn_blocking(read).await;
        let (resolv, hosts) = read.map_err(|error| failed(&error))?;
        let hosts = hosts.unwrap_or_default();
        let system = Rc::new(System::new(&self.settings, &resolv.unwrap_or_default(), hosts)?);
        *own = Some((stamps, system.clone()));
        Ok(system)
    }
}

impl System {
    /// Makes a resolver from the text of /etc/resolv.conf.
    fn new(settings: &Settings, resolv: &[u8], hosts: Hosts) -> Result<Self> {
        let (config, mut options) = parsed(resolv).map_err(|error| failed(&error))?;
        let (domain, mut search, mut servers) = config.into_parts();
        if search.is_empty() {
            search.extend(domain);
        }
        search.truncate(SEARCH_MAX);
        if !settings.servers.is_empty() {
            servers = settings.servers.iter().map(|address| server(*address)).collect();
        }
        let ndots = options.ndots;
        set(&mut options);
        let config = ResolverConfig::from_parts(None, Vec::new(), servers);
        let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        *builder.options_mut() = options;
        let resolver = builder.build().map_err(|error| failed(&error))?;
        Ok(Self { resolver, hosts, search, ndots })
    }

    /// Returns the addresses of a name in /etc/hosts, of all families: a name that is there for one
    /// of them is not looked up for the other.
    fn hosts(&self, host: &str) -> Vec<IpAddr> {
        let Ok(mut name) = Name::from_ascii(host.to_ascii_lowercase()) else { return Vec::new() };
        name.set_fqdn(true);
        let of = |kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind));
        let lookups = [of(RecordType::AAAA), of(RecordType::A)];
        lookups.iter().flatten().flat_map(addresses).collect()
    }

    /// Looks a name up as it is, and with the search domains: first as it is if it has at least
    /// `ndots` dots (resolv.conf(5)). The first name with records counts. The search ends with an
    /// error if a server does not answer: a name after that could be another machine's.
    async fn search<T>(
        &self,
        host: &str,
        is_absolute: bool,
        lookup: impl AsyncFn(Name) -> Result<Answer<T>>,
    ) -> Result<Answer<T>> {
        let name = Name::from_ascii(host).map_err(|error| failed(&error))?;
        let mut plain = name.clone();
        plain.set_fqdn(true);
        let domains = self.search.iter().filter(|_| !is_absolute);
        let mut names: Vec<_> =
            domains.filter_map(|domain| name.clone().append_domain(domain).ok()).collect();
        let dots = host.bytes().filter(|byte| *byte == b'.').count();
        names.insert(if is_absolute || dots >= self.ndots { 0 } else { names.len() }, plain);
        let mut none = NONE_FOR.1;
        for name in names {
            match lookup(name).await {
                Err(LookupError::None { ttl }) => none = none.min(ttl),
                done => return done,
            }
        }
        Err(LookupError::None { ttl: none })
    }

    /// Looks up both families. If one fails, the answer has the addresses of the other.
    async fn addresses(&self, name: Name) -> Result<Answer<IpAddr>> {
        let (v6, v4) =
            tokio::join!(self.lookup(name.clone(), RecordType::AAAA), self.lookup(name, RecordType::A));
        let of = |found: &Lookup| Answer {
            records: addresses(found).collect(),
            ttl: ttl_of(found),
            missing: None,
        };
        match (v6.as_ref().map(of), v4.as_ref().map(of)) {
            (Ok(v6), Ok(v4)) => {
                let (ttl, missing) = (v6.ttl.min(v4.ttl), None);
                Ok(Answer { records: [v6.records, v4.records].concat(), ttl, missing })
            }
            (Ok(v6), Err(LookupError::None { .. })) => Ok(v6),
            (Err(LookupError::None { .. }), Ok(v4)) => Ok(v4),
            (Ok(v6), Err(_)) => Ok(Answer { missing: Some(Family::V4), ..v6 }),
            (Err(_), Ok(v4)) => Ok(Answer { missing: Some(Family::V6), ..v4 }),
            (Err(LookupError::None { ttl }), Err(LookupError::None { ttl: other })) => {
                Err(LookupError::None { ttl: (*ttl).min(*other) })
            }
            (Err(failed @ LookupError::Failed(_)), Err(_)) | (Err(_), Err(failed)) => Err(failed.clone()),
        }
    }

    /// Returns the SRV records of a name, or of the name that it is an alias of.
    async fn services(&self, mut name: Name) -> Result<Answer<Srv>> {
        let mut ttl = Duration::MAX;
        for _ in 0..=ALIASES_MAX {
            let error = match self.services_of(name.clone()).await {
                Ok(answer) => return Ok(Answer { ttl: answer.ttl.min(ttl), ..answer }),
                Err(error) => error,
            };
            // The resolver takes the target of an SRV record behind an alias for another alias: it
            // drops the record, or fails to look up the records of that target.
            let alias = match self.lookup(name.clone(), RecordType::CNAME).await {
                Ok(alias) => alias,
                Err(LookupError::None { .. }) => return Err(error),
                Err(failed) => return Err(failed),
            };
            ttl = ttl.min(ttl_of(&alias));
            let mut own = alias.answers().iter().filter(|answer| answer.name == name);
            name = own.find_map(|answer| target_of(&answer.data)).ok_or(error)?;
        }
        Err(failed(&"the name is an alias of an alias, and so on: more than 8"))
    }

    async fn services_of(&self, name: Name) -> Result<Answer<Srv>> {
        let found = self.lookup(name.clone(), RecordType::SRV).await?;
        let record = |data: &RData| match data {
            // A target "." means that there is no such service (RFC 2782).
            RData::SRV(srv) if !srv.target.is_root() => Some(Srv {
                priority: srv.priority,
                weight: srv.weight,
                port: srv.port,
                target: srv.target.to_ascii().to_ascii_lowercase(),
            }),
            _ => None,
        };
        let own = found.answers().iter().filter(|answer| answer.name == name);
        let records: Vec<_> = own.filter_map(|answer| record(&answer.data)).collect();
        let ttl = ttl_of(&found);
        if records.is_empty() {
            Err(LookupError::None { ttl })
        } else {
            Ok(Answer { records, ttl, missing: None })
        }
    }

    /// Looks up an absolute name.
    async fn lookup(&self, name: Name, kind: RecordType) -> Result<Lookup> {
        // A task of its own: a defect in the decoding of a response must not end its caller.
        let resolver = self.resolver.clone();
        let found = tokio::spawn(async move { resolver.lookup(name, kind).await }).await;
        let found = found.map_err(|error| failed(&error))?.map_err(|error| match error {
            NetError::Dns(DnsError::NoRecordsFound(none)) => {
                let ttl = none.negative_ttl.map_or(NONE_FOR.0, |ttl| Duration::from_secs(ttl.into()));
                LookupError::None { ttl: ttl.clamp(NONE_FOR.0, NONE_FOR.1) }
            }
            error => failed(&error),
        })?;
        let has_kind = found.answers().iter().any(|answer| answer.record_type() == kind);
        if has_kind { Ok(found) } else { Err(LookupError::None { ttl: NONE_FOR.0 }) }
    }
}

/// Returns the name that an alias stands for.
fn target_of(data: &RData) -> Option<Name> {
    match data {
        RData::CNAME(target) => Some(target.0.clone()),
        _ => None,
    }
}

/// Parses the text of /etc/resolv.conf: without its domains if they are no names, so that its
/// servers stay.
fn parsed(resolv: &[u8]) -> std::result::Result<(ResolverConfig, ResolverOpts), NetError> {
    // Without servers in the file, glibc asks one on this machine (resolv.conf(5)).
    let local = b"\nnameserver 127.0.0.1\n";
    let is_domain = |line: &&[u8]| {
        let line = line.trim_ascii_start();
        line.starts_with(b"search") || line.starts_with(b"domain")
    };
    let lines = resolv.split(|byte| *byte == b'\n');
    let servers = || lines.filter(|line| !is_domain(line)).collect::<Vec<_>>().join(&b'\n');
    let parse = |text: &[u8]| parse_resolv_conf(text).or_else(|_| parse_resolv_conf([text, local].concat()));
    parse(resolv).or_else(|_| parse(&servers())).or_else(|_| parse_resolv_conf(local))
}

/// Parses the text of /etc/hosts. Bytes that are not UTF-8 spoil their word alone.
fn hosts_of(text: &[u8]) -> Hosts {
    let mut hosts = Hosts::default();
    // Reading from memory does not fail.
    let _ = hosts.read_hosts_conf(String::from_utf8_lossy(text).as_bytes());
    hosts
}

/// Changes the options of resolv.conf for lookups of absolute names without a cache.
fn set(options: &mut ResolverOpts) {
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Never;
    options.ndots = 0;
    // The file can have 0.
    options.timeout = options.timeout.max(Duration::from_secs(1));
    options.attempts = options.attempts.max(1);
}

fn server(address: SocketAddr) -> NameServerConfig {
    let connection = |protocol| {
        let mut connection = ConnectionConfig::new(protocol);
        connection.port = address.port();
        connection
    };
    let both = vec![connection(ProtocolConfig::Udp), connection(ProtocolConfig::Tcp)];
    NameServerConfig::new(address.ip(), true, both)
}

fn addresses(found: &Lookup) -> impl Iterator<Item = IpAddr> {
    found.answers().iter().filter_map(|answer| answer.data.ip_addr())
}

/// Returns the least lifetime of the records, those of aliases included.
fn ttl_of(found: &Lookup) -> Duration {
    let ttl = found.answers().iter().map(|answer| answer.ttl).min();
    Duration::from_secs(ttl.unwrap_or(0).into())
}

/// Returns at most [`TARGETS_MAX`] records of the least priorities. The order of the response does
/// not matter.
fn first_targets(mut records: Vec<Srv>) -> Vec<Srv> {
    let key = |srv: &Srv| (srv.priority, srv.target.clone(), srv.port, srv.weight);
    records.sort_by_cached_key(key);
    records.dedup();
    records.truncate(TARGETS_MAX);
    records
}

fn failed(error: &dyn std::fmt::Display) -> LookupError {
    LookupError::Failed(error.to_string().into())
}

fn stamps() -> Stamps {
    let stamp = |file: Metadata| (file.ino(), file.len(), file.mtime(), file.mtime_nsec());
    FILES.map(|path| std::fs::metadata(path).ok().map(stamp))
}

/// Returns the addresses to which there is a route, or all if there is none to any: getaddrinfo(3)
/// sorts addresses without a route last (RFC 6724, section 6, rule 1).
fn reachable(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    if addresses.len() > ADDRESSES_MAX {
        // Sorted, so that the same ones are left whatever the order in the response.
        addresses.sort_unstable();
        addresses.truncate(ADDRESSES_MAX);
    }
    let reachable: Vec<_> = addresses.iter().copied().filter(|address| has_route(*address)).collect();
    if reachable.is_empty() { addresses } else { reachable }
}

/// Returns true unless an address is that of several hosts or of none. Linux connects to this
/// machine in place of the unspecified address.
fn is_of_one_host(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let is_broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(address.is_unspecified() || address.is_multicast() || is_broadcast)
}

/// Returns true if there is a route to an address. Connecting a datagram socket looks for one and
/// sends nothing.
fn has_route(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let connected: io::Result<()> = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect((address, 9)));
    connected.is_ok()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::config::file;

    fn settings(servers: &[&str]) -> Settings {
        let servers = servers.iter().map(|text| (*text).to_owned()).collect();
        Settings::new(&file::Dns { servers, ..file::Dns::default() }).unwrap()
    }

    fn system(resolv: &str, hosts: &str) -> System {
        let mut read = Hosts::default();
        read.read_hosts_conf(hosts.as_bytes()).unwrap();
        System::new(&settings(&[]), resolv.as_bytes(), read).unwrap()
    }

    /// Returns the names that are looked up in this order, if there are no records.
    async fn names(resolv: &str, host: &str) -> Vec<String> {
        let names = RefCell::new(Vec::new());
        let lookup = async |name: Name| {
            names.borrow_mut().push(name.to_ascii());
            Err::<Answer<IpAddr>, _>(LookupError::None { ttl: Duration::from_secs(9) })
        };
        let system = system(resolv, "");
        let result = system.search(host, host.ends_with('.'), lookup).await;
        assert_eq!(result, Err(LookupError::None { ttl: Duration::from_secs(9) }));
        names.into_inner()
    }

    #[tokio::test]
    async fn search_domains_apply_as_resolv_conf_says() {
        let domains = "nameserver 192.0.2.1\nsearch one.test two.test\n";
        assert_eq!(names(domains, "app").await, ["app.one.test.", "app.two.test.", "app."]);
        assert_eq!(names(domains, "app.x").await, ["app.x.", "app.x.one.test.", "app.x.two.test."]);
        assert_eq!(names(domains, "app.x.").await, ["app.x."]);
        let dots = format!("{domains}options ndots:2\n");
        assert_eq!(names(&dots, "app.x").await, ["app.x.one.test.", "app.x.two.test.", "app.x."]);
        assert_eq!(names(&dots, "a.b.x").await[0], "a.b.x.");
        let domain = "nameserver 192.0.2.1\ndomain one.test\n";
        assert_eq!(names(domain, "app").await, ["app.one.test.", "app."]);
        let many = format!("nameserver 192.0.2.1\nsearch {}\n", "x.test ".repeat(100));
        assert!(names(&many, "app").await.len() <= SEARCH_MAX + 1);
    }

    #[tokio::test]
    async fn search_ends_with_the_first_records_and_with_a_failure() {
        let system = system("nameserver 192.0.2.1\nsearch one.test two.test\n", "");
        for result in [
            Ok(Answer { records: vec![IpAddr::from([192, 0, 2, 7])], ttl: Duration::ZERO, missing: None }),
            Err(LookupError::Failed("no answer".into())),
        ] {
            let count = RefCell::new(0);
            let lookup = async |name: Name| {
                *count.borrow_mut() += 1;
                let is_second = name.to_ascii() == "app.two.test.";
                if is_second { result.clone() } else { Err(LookupError::None { ttl: Duration::ZERO }) }
            };
            assert_eq!((system.search("app", false, lookup).await, *count.borrow()), (result.clone(), 2));
        }
        let none = async |_: Name| Err::<Answer<IpAddr>, _>(LookupError::None { ttl: Duration::ZERO });
        assert!(matches!(system.search("a..b", false, none).await, Err(LookupError::Failed(_))), "no name");
    }

    #[test]
    fn line_that_is_no_text_leaves_the_others() {
        let hosts = hosts_of(b"192.0.2.1 a.example # caf\xe9\n192.0.2.2 caf\xe9 b.example\n");
        let system = System::new(&settings(&[]), b"", hosts).unwrap();
        assert_eq!(system.hosts("a.example").len(), 1);
        assert_eq!(system.hosts("b.example").len(), 1);
        let resolv = format!("search {}.test\nnameserver 192.0.2.9\n", "x".repeat(100));
        let (config, _) = parsed(resolv.as_bytes()).unwrap();
        let servers: Vec<_> = config.name_servers().iter().map(|it| it.ip.to_string()).collect();
        assert_eq!(servers, ["192.0.2.9"]);
    }

    #[test]
    fn file_without_servers_or_with_garbage_is_usable() {
        let long = "x".repeat(100_000);
        for resolv in [
            "",
            "# nothing\n",
            "nameserver\n",
            "search a b\noptions timeout:0 attempts:0\n",
            "\0\u{1}what",
            &long,
        ] {
            let system = system(resolv, "");
            let options = system.resolver.options();
            assert!(options.timeout >= Duration::from_secs(1) && options.attempts >= 1, "{resolv:.40}");
        }
    }

    #[test]
    fn order_of_a_response_does_not_select_the_targets() {
        let srv = |priority, at: usize| Srv { priority, weight: 1, port: 80, target: format!("t{at:03}.") };
        let mut records: Vec<_> = (0..100).map(|at| srv(1, at)).collect();
        records.push(srv(0, 100));
        records.push(srv(1, 0));
        let first = first_targets(records.clone());
        assert_eq!((first.len(), first[0].priority), (TARGETS_MAX, 0));
        records.reverse();
        assert_eq!(first_targets(records), first);
        assert_eq!(first_targets(vec![srv(1, 0), srv(1, 0)]).len(), 1, "a repeated record");
    }

    #[tokio::test]
    async fn localhost_is_this_machine() {
        // No DNS server answers at this address.
        let resolver = Resolver::new(Arc::new(settings(&["127.0.0.1:1"])));
        for host in ["localhost", "LocalHost.", "app.localhost"] {
            let answer = resolver.addresses(host).await.unwrap();
            assert!(answer.records.iter().all(IpAddr::is_loopback), "{host}: {answer:?}");
        }
    }

    #[test]
    fn name_in_the_hosts_has_the_addresses_that_are_there() {
        let system = system(
            "",
            "192.0.2.1 a.example b.example # c.example\n2001:db8::1 A.Example\n192.0.2.2 a.example\n",
        );
        let of = |host| system.hosts(host).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(of("A.example."), ["2001:db8::1", "192.0.2.1", "192.0.2.2"]);
        assert_eq!(of("b.example"), ["192.0.2.1"]);
        assert!(of("c.example").is_empty() && of("a b").is_empty());
    }

    #[test]
    fn address_of_several_hosts_or_none_is_refused() {
        for (text, expected) in [
            ("192.0.2.1", true),
            ("127.0.0.1", true),
            ("2001:db8::1", true),
            ("0.0.0.0", false),
            ("::", false),
            ("::ffff:0.0.0.0", false),
            ("224.0.0.1", false),
            ("ff02::1", false),
            ("255.255.255.255", false),
        ] {
            assert_eq!(is_of_one_host(text.parse().unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn address_without_a_route_is_left_out() {
        let loopback: IpAddr = "127.0.0.1".parse().unwrap();
        let reserved: IpAddr = "255.255.255.255".parse().unwrap();
        assert!(has_route(loopback));
        let kept = reachable(vec![reserved, loopback]);
        assert!(kept.contains(&loopback) && (kept.len() == 1) != has_route(reserved));
        assert_eq!(reachable(vec![reserved]), [reserved], "all stay if none has a route");
        let many: Vec<IpAddr> =
            (0..1000_u32).map(|at| std::net::Ipv4Addr::from(0x7f00_0001 + at).into()).collect();
        assert_eq!(reachable(many).len(), ADDRESSES_MAX);
    }
}
