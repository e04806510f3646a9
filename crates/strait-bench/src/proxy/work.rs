//! What is measured: workloads with names, each a question that is asked of every proxy, and the
//! experiments of D4.

use super::workload::{Sizes, Workload};

/// A workload with a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    /// Its name.
    pub name: String,
    /// What is asked.
    pub workload: Workload,
}

/// Workloads at places on an axis.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Its name as a benchmark.
    pub(crate) benchmark: &'static str,
    /// What is asked, in words.
    pub(crate) about: &'static str,
    /// What a place is, and its unit.
    pub(crate) axis: &'static str,
    pub(crate) unit: &'static str,
    /// Names of the places, where they are no numbers.
    pub(crate) labels: Vec<String>,
    /// Places and what is asked there.
    pub(crate) points: Vec<(u32, Workload)>,
}

impl Experiment {
    /// Works side by side.
    pub fn of(works: Vec<Work>) -> Self {
        let (labels, workloads): (_, Vec<_>) =
            works.into_iter().map(|work| (work.name, work.workload)).unzip();
        let points = (0..).zip(workloads).collect();
        Self { benchmark: "proxy", about: "", axis: "work", unit: "", labels, points }
    }

    /// What is asked at a place.
    pub(crate) fn workload(&self, place: u32) -> Option<&Workload> {
        self.points.iter().find(|(at, _)| *at == place).map(|(_, workload)| workload)
    }
}

/// A pair of D4's figures, response time and CPU time of the same experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Hits alone at one rate, by size.
    Hits = 6,
    /// Objects of 13 KiB that may not be stored, by rate.
    Uncacheable = 8,
    /// Objects of 13 KiB that are stored, each asked for once, by rate.
    Stored = 10,
    /// Half hits, 80 % cacheable, by rate.
    Mixed = 12,
}

/// All of them.
pub const FIGURES: [Figure; 4] = [Figure::Hits, Figure::Uncacheable, Figure::Stored, Figure::Mixed];

/// Sizes of objects of Figures 6 and 7, in KiB.
const SIZES_KIB: [u32; 6] = [4, 8, 16, 32, 64, 128];
/// Requests a second there: so many that who copies what a hit sends is busy with the largest, as
/// 90 were for D4's machine.
const HITS_RATE: u32 = 1000;
/// Requests a second of the other figures: from few to more than who copies can take.
const RATES: [u32; 6] = [1000, 2000, 4000, 8000, 12_000, 16_000];
/// Bytes of their objects.
const MISS_BYTES: u64 = 13 * KIB;
/// Requests on their way at most.
const OPEN_CONNECTIONS: u32 = 128;
/// Objects that hits are spread over.
const OPEN_OBJECTS: u32 = 1024;

impl Figure {
    /// Its number in D4; the CPU time stands in the one behind it.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The experiment behind it.
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
        }
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Connections of works with small objects, and with large ones.
const MANY: u32 = 32;
const FEW: u32 = 8;

/// A work as the table below has it: name, bytes, connections, objects that are repeated,
/// cacheable.
type Row = (&'static str, u64, u32, u32, bool);

/// Hits of one size; over more than a processor's cache, so that every byte comes from memory;
/// misses that are not stored, and misses that are. Where nothing is repeated all are misses.
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

/// The mix of Figure 12, as fast as each proxy goes.
fn mixed() -> Work {
    let workload = Workload { connections: MANY, rate: None, ..Figure::Mixed.workload(0) };
    Work { name: "mix-13k".into(), workload }
}

/// All works: closed loops, as fast as each proxy goes.
pub fn works() -> Vec<Work> {
    let work = |(name, bytes, connections, objects, cacheable): Row| {
        let hits = if objects > 0 { 1.0 } else { 0.0 };
        let cacheable = f64::from(u8::from(cacheable));
        let sizes = Sizes::Fixed(bytes);
        let workload = Workload { sizes, connections, hits, cacheable, objects, rate: None };
        Work { name: name.into(), workload }
    };
    WORKS.into_iter().map(work).chain([mixed()]).collect()
}
