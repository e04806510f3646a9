//! Benchmark of Strait's caching proxy and others, by Web Polygraph's axes (D4): response time,
//! throughput, and CPU cost of the proxy.
//!
//! Origin and client are separate programs and share the CPUs that the proxy does not use
//! ([`origin`], [`load`]). As root, a veth pair joins them with the proxy's network namespace;
//! otherwise all run on the loopback. Every measurement starts a new proxy.

mod fetch;
pub mod load;
pub mod object;
pub mod origin;
pub mod peer;
mod replay;
mod restart;
pub(crate) mod tree;
pub mod work;
pub mod workload;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use strait_os::netlink::Netlink;
use strait_os::process;

use crate::cache::trace::{Request, Trace};
use crate::child::{Child, Launcher, parse};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::results::{Figures, Results};
use crate::rounds::{self, Definition, Progress};
use crate::wire::{End, Wire};
use load::Account;
use origin::{Count, Listening};
use peer::{Contestant, Directories, Http2Addresses, Service, Setting};
pub use restart::Restarted;
use restart::Stored;
use work::Experiment;
use workload::Workload;

/// Addresses of the private pair (RFC 5737), the proxy's first.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
/// Warm-up time before a measurement.
const WARM_UP: Duration = Duration::from_millis(500);
/// Time limit of a program beyond its measured time: to start and to fill a cache.
const SLACK: Duration = Duration::from_mins(2);
/// Limit of the time until a proxy answers its first request.
const READY_MAX: Duration = Duration::from_secs(30);
/// Limit of the time until the origin listens.
const LISTEN_MAX: Duration = Duration::from_secs(5);
/// Object of the request that tests whether a proxy answers.
const FIRST: object::Object = object::Object { size: 16, id: 0, cacheable: false };
/// TCP congestion control on a private pair: it does not pace, unlike bbr.
const CONGESTION_CONTROL: &str = "reno";

/// Memory cache of a proxy with a cache on disk during a replay, in bytes.
const MEMORY_BESIDE_BYTES: u64 = 1 << 20;

/// Bytes of a stored response beside its body, at most.
const RECORD_BYTES: u64 = 1024;

/// Default limits of a cache on disk and in memory, in MiB.
pub const DISK_MIB: u64 = 4096;
/// See [`DISK_MIB`].
pub const MEMORY_MIB: u64 = 1024;

/// Proxy benchmark: contestants, workloads and limits.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Contestants to measure.
    pub contestants: Vec<Contestant>,
    /// Workloads.
    pub experiment: Experiment,
    /// Number of rounds.
    pub rounds: u32,
    /// Limit of a cache on disk, in bytes.
    pub disk_bytes: u64,
    /// Limit of a cache in memory, in bytes.
    pub memory_bytes: u64,
    /// Compare every body with the expected bytes.
    pub verify_all: bool,
}

/// Settings shared by all measurements.
#[derive(Debug)]
pub struct Rig<'a> {
    launcher: Launcher,
    /// End of the proxy, and end of the origin and the client.
    near: (End, IpAddr),
    far: (End, IpAddr),
    is_private: bool,
    proxy_cpus: Vec<u32>,
    load_cpus: Vec<u32>,
    directories: Directories,
    seconds: f64,
    terminated: &'a AtomicBool,
}

/// How the client reaches the measured program.
#[derive(Debug, Default)]
struct Way {
    /// By CONNECT on each connection.
    connects: bool,
    /// Address for HTTP/2.
    http2: Option<SocketAddr>,
}

impl<'a> Rig<'a> {
    /// Creates a private pair, or uses the loopback if this process is not root. Proxies keep their
    /// files below `directory`.
    ///
    /// # Errors
    /// The pair cannot be created.
    pub fn create(
        launcher: Launcher,
        (proxy_cpus, load_cpus): (Vec<u32>, Vec<u32>),
        directory: &Path,
        seconds: f64,
        terminated: &'a AtomicBool,
    ) -> Result<Self> {
        let is_private = process::is_root();
        let directories = Directories::new(directory)?;
        let (near, far) = if is_private {
            let (near, far) = Wire::routed(ADDRESSES, None)?.into_ends();
            for end in [&near, &far] {
                end.run(prepare_namespace)??;
            }
            ((near, ADDRESSES[0].into()), (far, ADDRESSES[1].into()))
        } else {
            let lo = || (End::own("lo"), Ipv4Addr::LOCALHOST.into());
            (lo(), lo())
        };
        Ok(Self { launcher, near, far, is_private, proxy_cpus, load_cpus, directories, seconds, terminated })
    }

    /// Returns an error if a proxy is not installed.
    pub(crate) fn probe(&self, contestant: Contestant) -> Result<()> {
        contestant.version(&self.launcher).map(drop)
    }

    fn attempt(&self, plan: &Plan, contestant: Contestant, workload: &Workload) -> Result<Account> {
        if contestant == Contestant::Direct {
            let (origin, address) = self.origin(&self.near, &self.proxy_cpus)?;
            return self.load(plan, workload, &Way::default(), (address, address), &origin);
        }
        if workload.http2.is_some_and(|http2| http2.is_tls) && !contestant.has_tls() {
            return Err(Error::Invalid(format!("{contestant} has no TLS")));
        }
        let limits = (plan.disk_bytes, plan.memory_bytes);
        let (service, http2) = match workload.http2 {
            Some(_) => {
                let addresses = Http2Addresses { clear: self.free_address()?, tls: self.free_address()? };
                (Service::Http2(addresses), Some(addresses))
            }
            None if workload.is_tunnel => (Service::Tunnels, None),
            None => (Service::Cache, None),
        };
        self.with_proxy(contestant, limits, service, |listen, origin, proxy| {
            let connects = workload.is_tunnel && contestant.connects();
            let is_tls = workload.http2.is_some_and(|http2| http2.is_tls);
            let http2 = http2.map(|addresses| contestant.http2_address(listen, addresses, is_tls));
            self.load(plan, workload, &Way { connects, http2 }, (listen, origin), proxy)
        })
    }

    /// Requests the objects of a trace one after the other from a proxy with a cache of
    /// `capacity_bytes`. Returns the requests that the origin answered.
    pub(crate) fn replay(&self, contestant: Contestant, capacity_bytes: u64, trace: &Trace) -> Result<Count> {
        let memory_bytes = if contestant.is_in_memory() { capacity_bytes } else { MEMORY_BESIDE_BYTES };
        let limits = (capacity_bytes, memory_bytes);
        self.with_proxy(contestant, limits, Service::Cache, |listen, origin, _| {
            let replayed = self.far.0.run(|| {
                let before = fetch::count(origin)?;
                replay::run(listen, trace, self.terminated)?;
                let after = fetch::count(origin)?;
                Ok(Count { requests: after.requests - before.requests, bytes: after.bytes - before.bytes })
            });
            replayed?
        })
    }

    /// Returns an error if Strait's proxy is not installed.
    pub(crate) fn probe_strait(&self) -> Result<()> {
        self.probe(peer::STRAIT)
    }

    /// Stores `count` objects of `bytes` bytes through Strait's proxy, kills it, and requests them
    /// from the next one for some seconds.
    pub(crate) fn restart(&self, (count, bytes): (u32, u64), seconds: f64) -> Result<Restarted> {
        let (_origin, origin) = self.origin(&self.far, &self.load_cpus)?;
        let directory = self.directories.next()?;
        let listen = self.free_address()?;
        let stored = Stored { count, bytes };
        // So that nothing is evicted.
        let disk_bytes = (DISK_MIB << 20).max(2 * u64::from(count) * (bytes + RECORD_BYTES));
        let memory_bytes = MEMORY_BESIDE_BYTES;
        let (launcher, service) = (&self.launcher, Service::Cache);
        let setting = Setting { listen, origin, disk_bytes, memory_bytes, launcher, service };
        let (_, program) = peer::STRAIT.programs(&setting, &directory)?;
        let start = || self.launcher.start(&self.near.0, &program, &self.proxy_cpus, self.limit());
        let mut proxy = start()?;
        let answers = |_: &Child| self.far.0.run(|| Ok(fetch::body(listen, &FIRST.target()).is_ok()))?;
        proxy.wait_until(READY_MAX, answers)?;
        let trace: Trace = (0..count.into()).map(|object| Request { object, bytes }).collect();
        self.far.0.run(|| replay::run(listen, &trace, self.terminated))??;
        // Kills it.
        drop(proxy);
        let times = (Instant::now(), Duration::from_secs_f64(seconds));
        let proxy = start()?;
        let mut restarted = self.far.0.run(|| restart::run(listen, stored, times, self.terminated))??;
        restarted.memory_bytes = tree::memory(proxy.id());
        peer::stop(proxy);
        Ok(restarted)
    }

    /// Starts a proxy before an origin, and calls `measure` with the addresses of both and the
    /// proxy's process. The limits are those of a cache on disk and in memory, in bytes.
    fn with_proxy<T>(
        &self,
        contestant: Contestant,
        (disk_bytes, memory_bytes): (u64, u64),
        service: Service,
        measure: impl FnOnce(SocketAddr, SocketAddr, &Child) -> Result<T>,
    ) -> Result<T> {
        let (_origin, address) = self.origin(&self.far, &self.load_cpus)?;
        let directory = self.directories.next()?;
        let listen = self.free_address()?;
        let launcher = &self.launcher;
        let setting = Setting { listen, origin: address, disk_bytes, memory_bytes, launcher, service };
        let (before, program) = contestant.programs(&setting, &directory)?;
        if let Some(before) = before {
            self.launcher.start(&self.near.0, &before, &self.proxy_cpus, self.limit())?.finish(READY_MAX)?;
        }
        let mut proxy = self.launcher.start(&self.near.0, &program, &self.proxy_cpus, self.limit())?;
        let connects = service == Service::Tunnels && contestant.connects();
        let is_answered = || {
            if connects {
                fetch::tunnel(listen, address).is_ok()
            } else {
                fetch::body(listen, &FIRST.target()).is_ok()
            }
        };
        let answers = |_: &Child| self.far.0.run(|| Ok(is_answered()))?;
        let measured = proxy
            .wait_until(READY_MAX, answers)
            .inspect(|()| tree::pin(proxy.id(), &self.proxy_cpus))
            .and_then(|()| measure(listen, address, &proxy));
        peer::stop(proxy);
        measured
    }

    fn limit(&self) -> Duration {
        WARM_UP + Duration::from_secs_f64(self.seconds) + SLACK
    }

    /// Starts an origin at an end.
    fn origin(&self, (end, address): &(End, IpAddr), cpus: &[u32]) -> Result<(Child, SocketAddr)> {
        let program = self.launcher.own(["origin".to_owned(), format!("--listen={address}:0")]);
        let mut child = self.launcher.start(end, &program, cpus, self.limit())?;
        child.wait_until(LISTEN_MAX, |child| Ok(child.stdout()?.ends_with('\n')))?;
        let Listening { address } = parse(&program, &child.stdout()?)?;
        Ok((child, address))
    }

    /// Returns an unused address at the proxy's end.
    fn free_address(&self) -> Result<SocketAddr> {
        let (end, address) = &self.near;
        let found =
            end.run(|| TcpListener::bind((*address, 0)).and_then(|listener| listener.local_addr()))?;
        found.map_err(|error| Error::file("find a free port", error))
    }

    /// Runs the client.
    fn load(
        &self,
        plan: &Plan,
        workload: &Workload,
        way: &Way,
        (to, origin): (SocketAddr, SocketAddr),
        watched: &Child,
    ) -> Result<Account> {
        let mut arguments = vec!["load".to_owned()];
        arguments.extend([
            format!("--to={to}"),
            format!("--origin={origin}"),
            format!("--watch={}", watched.id()),
            format!("--sizes={}", workload.sizes),
            format!("--connections={}", workload.connections),
            format!("--hits={}", workload.hits),
            format!("--cacheable={}", workload.cacheable),
            format!("--objects={}", workload.objects),
            format!("--warm-up={}", WARM_UP.as_secs_f64()),
            format!("--seconds={}", self.seconds),
        ]);
        arguments.extend(workload.rate.map(|rate| format!("--rate={rate}")));
        arguments.extend(workload.is_tunnel.then(|| "--tunnel".to_owned()));
        arguments.extend(way.connects.then(|| "--connect".to_owned()));
        if let Some((http2, to)) = workload.http2.zip(way.http2) {
            arguments.extend([format!("--http2={to}"), format!("--streams={}", http2.streams)]);
            arguments.extend(http2.is_tls.then(|| "--tls".to_owned()));
        }
        arguments.extend(plan.verify_all.then(|| "--verify-all".to_owned()));
        let program = self.launcher.own(arguments);
        let client = self.launcher.start(&self.far.0, &program, &self.load_cpus, self.limit())?;
        let account: Account = parse(&program, &client.finish(self.limit())?.stdout)?;
        match account.errors {
            0 if account.requests == 0 => {
                Err(Error::Invalid(format!("no request was answered in {} s", self.seconds)))
            }
            0 => Ok(account),
            errors => {
                Err(Error::Invalid(format!("{errors} requests failed, the first: {}", account.first_error)))
            }
        }
    }
}

/// Prepares the calling thread's namespace: sets congestion control and brings `lo` up.
fn prepare_namespace() -> Result<()> {
    const PATH: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
    std::fs::write(PATH, CONGESTION_CONTROL).map_err(|error| Error::file(format!("write {PATH}"), error))?;
    // Some peers connect to themselves.
    let mut netlink = Netlink::open()?;
    let index = netlink.interface("lo")?.index;
    Ok(netlink.set_up(index, true)?)
}

/// Writes to that many bytes of free memory, at most half of it, and frees them. A virtual machine
/// gets a page from its host on the first access, and can return free ones: otherwise that would be
/// a part of the cost of contestants that cache in memory or in the page cache.
fn touch_memory(bytes: u64) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"));
    let available_bytes = line.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10;
    std::hint::black_box(vec![1_u8; bytes.min(available_bytes / 2) as usize]);
}

/// Runs the benchmark. After an interruption, returns the results so far.
///
/// # Errors
/// None of the contestants can be measured here.
pub fn run(
    rig: &Rig<'_>,
    plan: &Plan,
    machine: Machine,
    progress: &mut dyn FnMut(&Progress<'_>) -> Result<()>,
) -> Result<Results> {
    let experiment = &plan.experiment;
    let places: Vec<u32> = experiment.points.iter().map(|(place, _)| *place).collect();
    let definition = Definition {
        benchmark: experiment.benchmark,
        about: about(rig, plan),
        axis: experiment.axis,
        unit: experiment.unit,
        labels: experiment.labels.clone(),
        contestants: &plan.contestants,
        places: &places,
        rounds: plan.rounds,
        seconds: rig.seconds,
    };
    let probe = |contestant| rig.probe(contestant);
    rounds::run(&definition, machine, progress, probe, |contestant, place| {
        let workload = experiment.workload(place).expect("places are those of the experiment");
        touch_memory(plan.disk_bytes.saturating_add(plan.memory_bytes));
        let account = rounds::attempt(rig.terminated, || rig.attempt(plan, contestant, workload))?;
        Ok((figures(&account), contestant.version(&rig.launcher)?))
    })
}

fn about(rig: &Rig<'_>, plan: &Plan) -> String {
    let experiment = &plan.experiment;
    let route = if rig.is_private {
        format!("a veth pair with an MTU of 1500 and {CONGESTION_CONTROL}")
    } else {
        "the loopback, with an MTU of 65536 that slows sends without a copy down: run as root for a veth pair"
            .into()
    };
    let verified = if plan.verify_all {
        "every body is compared with the expected bytes"
    } else {
        "the length of every body is checked, and the bytes of all small and one in 16 long bodies"
    };
    format!(
        "{}{}Response time, throughput and CPU time of caching proxies with one worker on CPU {:?}; origin and client share CPU {:?}, \
         over {route}. As much memory as the caches may use is touched before each measurement, which starts the proxy with an empty cache; {verified}. direct is the origin in the proxy's place.",
        experiment.about,
        if experiment.about.is_empty() { "" } else { " " },
        rig.proxy_cpus,
        rig.load_cpus
    )
}

fn figures(account: &Account) -> Figures {
    let (requests, gigabytes) = (account.requests as f64, account.bytes as f64 / 1e9);
    let [p50, p90, p99, max] = account.response_ns.map(|ns| ns as f64 / 1e3);
    let named = [
        ("requests_per_s", requests / account.seconds),
        ("bytes_per_s", account.bytes as f64 / account.seconds),
        ("cpu_us_per_request", account.cpu_s * 1e6 / requests),
        ("cpu_s_per_gb", account.cpu_s / gigabytes),
        ("busy_percent", account.cpu_s / account.seconds * 100.0),
        ("p50_us", p50),
        ("p90_us", p90),
        ("p99_us", p99),
        ("max_us", max),
        ("hit_percent", (1.0 - account.origin.requests as f64 / requests) * 100.0),
        ("memory_mib", account.memory_bytes as f64 / f64::from(1 << 20)),
        ("verified_percent", account.verified as f64 / requests * 100.0),
        ("unanswered", account.unanswered as f64),
    ];
    let is_reported = |name: &str, value: f64| name != "unanswered" || value > 0.0;
    let named = named.into_iter().filter(|&(name, value)| is_reported(name, value));
    named.map(|(name, value)| (name.to_owned(), value)).collect()
}
