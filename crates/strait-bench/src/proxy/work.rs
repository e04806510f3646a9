//! Named workloads, which are equal for all proxies, and the experiments of D4.

use super::workload::{Http2, Sizes, Workload};

/// Workload with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Name.
    pub name: String,
    /// Requests.
    pub workload: Workload,
}

/// Workloads at places on an axis.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Name as a benchmark.
    pub(crate) benchmark: &'static str,
    /// Description of the workloads.
    pub(crate) about: &'static str,
    /// Name of the axis, and unit of its places.
    pub(crate) axis: &'static str,
    pub(crate) unit: &'static str,
    /// Names of the places if they are not numbers.
    pub(crate) labels: Vec<String>,
    /// Places, each with its workload.
    pub(crate) points: Vec<(u32, Workload)>,
}

impl Experiment {
    /// Creates an experiment of named workloads over HTTP/1.1.
    pub fn of(works: Vec<Work>) -> Self {
        Self::named("proxy", "", works)
    }

    /// Creates an experiment of workloads of [`http2_works`].
    pub fn of_http2(works: Vec<Work>) -> Self {
        let about = "HTTP/2; the client is h2load, and all objects are hits.";
        Self::named("proxy http2", about, works)
    }

    fn named(benchmark: &'static str, about: &'static str, works: Vec<Work>) -> Self {
        let (labels, workloads): (_, Vec<_>) =
            works.into_iter().map(|work| (work.name, work.workload)).unzip();
        let points = (0..).zip(workloads).collect();
        Self { benchmark, about, axis: "work", unit: "", labels, points }
    }

    /// Returns the workload at a place.
    pub(crate) fn workload(&self, place: u32) -> Option<&Workload> {
        self.points.iter().find(|(at, _)| *at == place).map(|(_, workload)| workload)
    }
}

/// Pair of D4's figures: response time and CPU time of one experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Only hits at one rate, by size.
    Hits = 6,
    /// Uncacheable objects of 13 KiB, by rate.
    Uncacheable = 8,
    /// Cacheable objects of 13 KiB, each requested once, by rate.
    Stored = 10,
    /// 50 % hits, 80 % cacheable, by rate.
    Mixed = 12,
}

/// All figures.
pub const FIGURES: [Figure; 4] = [Figure::Hits, Figure::Uncacheable, Figure::Stored, Figure::Mixed];

/// Object sizes of Figures 6 and 7, in KiB.
const SIZES_KIB: [u32; 6] = [4, 8, 16, 32, 64, 128];
/// Requests/s of Figures 6 and 7: enough to keep a copying proxy busy with the largest objects,
/// like the 90 on D4's machine.
const HITS_RATE: u32 = 1000;
/// Requests/s of the other figures, up to more than a copying proxy can answer.
const RATES: [u32; 6] = [1000, 2000, 4000, 8000, 12_000, 16_000];
/// Object size of the other figures.
const MISS_BYTES: u64 = 13 * KIB;
/// Limit of concurrent requests.
const OPEN_CONNECTIONS: u32 = 128;
/// Number of objects that hits are spread over.
const OPEN_OBJECTS: u32 = 1024;

impl Figure {
    /// Returns the number of the response-time figure in D4; CPU time is the next figure.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// Returns the experiment of the figure.
    pub fn experiment(self) -> Experiment {
        let (benchmark, about) = match self {
            Self::Hits => ("proxy figures-6-7", "D4's Figures 6 and 7: hits alone, 1000 a second."),
            Self::Uncacheable => {
                ("proxy figures-8-9", "D4's Figures 8 and 9: objects of 13 KiB, none cacheable.")
            }
            Self::Stored => {
                ("proxy figures-10-11", "D4's Figures 10 and 11: objects of 13 KiB, all cacheable, no hits.")
            }
            Self::Mixed => (
                "proxy figures-12-13",
                "D4's Figures 12 and 13: objects of 13 KiB, 80 % cacheable, 50 % hits.",
            ),
        };
        let point = |place: u32| (place, self.workload(place));
        let (axis, unit, points) = match self {
            Self::Hits => ("object size, KiB", "KiB", SIZES_KIB.map(point).to_vec()),
            _ => ("requests a second", "requests/s", RATES.map(point).to_vec()),
        };
        Experiment { benchmark, about, axis, unit, labels: Vec::new(), points }
    }

    fn workload(self, place: u32) -> Workload {
        let (hits, cacheable) = match self {
            Self::Hits => (1.0, 1.0),
            Self::Uncacheable => (0.0, 0.0),
            Self::Stored => (0.0, 1.0),
            Self::Mixed => (0.5, 0.8),
        };
        let (bytes, rate) = match self {
            Self::Hits => (u64::from(place) * KIB, HITS_RATE),
            _ => (MISS_BYTES, place),
        };
        Workload {
            sizes: Sizes::Fixed(bytes),
            connections: OPEN_CONNECTIONS,
            hits,
            cacheable,
            objects: OPEN_OBJECTS,
            rate: Some(rate.into()),
            is_tunnel: false,
            http2: None,
        }
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Connections of workloads with small and with large objects.
const MANY: u32 = 32;
const FEW: u32 = 8;

/// Row of the table below: name, bytes, connections, repeated objects, cacheable.
type Row = (&'static str, u64, u32, u32, bool);

/// Hits of one size; hits on more data than a CPU cache holds, so that every byte is read from
/// memory; misses that are not stored; and misses that are stored. Without repeated objects all
/// requests are misses.
const WORKS: [Row; 10] = [
    ("hit-4k", 4 * KIB, MANY, 4096, true),
    ("hit-16k", 16 * KIB, MANY, 2048, true),
    ("hit-64k", 64 * KIB, MANY, 512, true),
    ("hit-1m", MIB, FEW, 64, true),
    ("hit-10m", 10 * MIB, FEW, 8, true),
    ("hit-700x1m", MIB, FEW, 700, true),
    ("miss-13k", 13 * KIB, MANY, 0, false),
    ("miss-1m", MIB, FEW, 0, false),
    ("store-13k", 13 * KIB, MANY, 0, true),
    ("store-1m", MIB, FEW, 0, true),
];

/// Returns the mix of Figure 12 at each proxy's highest rate.
fn mixed() -> Work {
    let workload = Workload { connections: MANY, rate: None, ..Figure::Mixed.workload(0) };
    Work { name: "mix-13k".into(), workload }
}

/// Returns messages of 13 KiB each way in tunnels: CONNECT, or relayed connections.
fn tunnels() -> Work {
    let workload = Workload { is_tunnel: true, cacheable: 0.0, hits: 0.0, objects: 0, ..mixed().workload };
    Work { name: "connect-13k".into(), workload }
}

/// Returns all workloads: closed loops at each proxy's highest rate.
pub fn works() -> Vec<Work> {
    let work = |(name, bytes, connections, objects, cacheable): Row| {
        let hits = if objects > 0 { 1.0 } else { 0.0 };
        let cacheable = f64::from(u8::from(cacheable));
        let sizes = Sizes::Fixed(bytes);
        let workload = Workload {
            sizes,
            connections,
            hits,
            cacheable,
            objects,
            rate: None,
            is_tunnel: false,
            http2: None,
        };
        Work { name: name.into(), workload }
    };
    WORKS.into_iter().map(work).chain([mixed(), tunnels()]).collect()
}

/// Connections with HTTP/2, and concurrent requests of each.
const HTTP2_CONNECTIONS: u32 = 8;
const HTTP2_STREAMS: u32 = 8;
/// Hits over HTTP/2: name, bytes, repeated objects.
const HTTP2_WORKS: [(&str, u64, u32); 3] = [("4k", 4 * KIB, 4096), ("64k", 64 * KIB, 512), ("1m", MIB, 64)];

/// Returns all workloads over HTTP/2: hits without and with TLS.
pub fn http2_works() -> Vec<Work> {
    let work = |is_tls: bool, (size, bytes, objects): (&str, u64, u32)| Work {
        name: format!("{}-{size}", if is_tls { "h2-tls" } else { "h2" }),
        workload: Workload {
            sizes: Sizes::Fixed(bytes),
            connections: HTTP2_CONNECTIONS,
            hits: 1.0,
            cacheable: 1.0,
            objects,
            rate: None,
            is_tunnel: false,
            http2: Some(Http2 { streams: HTTP2_STREAMS, is_tls }),
        },
    };
    [false, true].into_iter().flat_map(|is_tls| HTTP2_WORKS.map(|row| work(is_tls, row))).collect()
}
