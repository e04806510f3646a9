//! Hit ratio of the store's eviction policy on synthetic traces: simulated with the policy's own
//! code, live in a store on disk, and compared with LRU, with Belady's optimum and with the
//! policies of the published library libCacheSim.
//!
//! Every contestant starts empty, so the first request for an object is always a miss.

mod library;
mod live;
mod ratios;
mod reference;
pub mod trace;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;

use strait_store::policy::{Simulation, Totals};

use self::ratios::Ratios;
pub use self::trace::TRACES;
use self::trace::{Request, Trace};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::proxy::{Rig, peer};
use crate::results::{Figures, Results};
use crate::rounds::{self, Definition, Report};

/// Divisor of the capacity for the size of a simulated segment, as in a store below 1 GiB.
const SEGMENTS: u64 = 256;

/// Policy or cache that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contestant {
    /// The optimum: evicts the object that is requested last.
    Belady,
    /// Evicts the object that was requested last the longest time ago.
    Lru,
    /// Evicts the object with the fewest requests since the begin.
    Lfu,
    /// A policy of libCacheSim.
    Library(&'static str),
    /// The store's policy, simulated.
    Simulated,
    /// A store on disk.
    Store,
    /// A proxy before an origin.
    Proxy(peer::Contestant),
}

/// All contestants with their names.
pub const CONTESTANTS: [(&str, Contestant); 15] = [
    ("belady", Contestant::Belady),
    ("lru", Contestant::Lru),
    ("lfu", Contestant::Lfu),
    ("library-lru", Contestant::Library("LRU")),
    ("library-s3fifo", Contestant::Library("S3FIFO")),
    ("library-sieve", Contestant::Library("Sieve")),
    ("library-wtinylfu", Contestant::Library("WTinyLFU")),
    ("strait-simulated", Contestant::Simulated),
    ("strait-store", Contestant::Store),
    ("strait-proxy", Contestant::Proxy(peer::STRAIT)),
    ("nginx", Contestant::Proxy(peer::Contestant::Nginx)),
    ("haproxy", Contestant::Proxy(peer::Contestant::HaProxy)),
    ("trafficserver", Contestant::Proxy(peer::Contestant::TrafficServer)),
    ("varnish", Contestant::Proxy(peer::Contestant::Varnish)),
    ("squid-aufs", Contestant::Proxy(peer::Contestant::SquidAufs)),
];

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = CONTESTANTS.iter().find(|(_, contestant)| contestant == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

impl FromStr for Contestant {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let named = CONTESTANTS.iter().find(|(of_it, _)| *of_it == name);
        named.map(|(_, contestant)| *contestant).ok_or_else(|| format!("{name} is not a contestant"))
    }
}

/// Traces and caches to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Contestants.
    pub contestants: Vec<Contestant>,
    /// Indices of the traces in [`TRACES`].
    pub traces: Vec<u32>,
    /// Size of the caches in bytes.
    pub capacity_bytes: u64,
    /// Length of a trace.
    pub requests: usize,
    /// Number of runs with different traces.
    pub rounds: u32,
    /// Parent of the directories of stores and traces.
    pub dir: PathBuf,
}

impl Plan {
    /// Returns true if proxies are measured.
    pub fn has_proxies(&self) -> bool {
        self.contestants.iter().any(|contestant| matches!(contestant, Contestant::Proxy(_)))
    }
}

/// Measures every contestant on every trace; proxies with `rig`.
///
/// # Errors
/// A store cannot be opened; the signal.
pub fn run(
    plan: &Plan,
    rig: Option<&Rig<'_>>,
    machine: Machine,
    progress: &mut Report<'_>,
    terminated: &AtomicBool,
) -> Result<Results> {
    let definition = Definition {
        benchmark: "cache",
        about: format!(
            "Hit ratios of caches of {} MiB that start empty, on traces of {} requests.",
            plan.capacity_bytes >> 20,
            plan.requests
        ),
        axis: "trace",
        unit: "",
        labels: TRACES.iter().map(|(name, _)| (*name).to_owned()).collect(),
        contestants: &plan.contestants,
        places: &plan.traces,
        rounds: plan.rounds,
        seconds: 0.0,
    };
    let probe = |contestant| match contestant {
        Contestant::Library(_) => library::probe(),
        Contestant::Proxy(proxy) => rig_of(rig)?.probe(proxy),
        _ => Ok(()),
    };
    rounds::run(&definition, machine, progress, probe, |contestant, trace| {
        rounds::attempt(terminated, || measure(plan, rig, contestant, trace))
    })
}

fn rig_of<'a>(rig: Option<&'a Rig<'a>>) -> Result<&'a Rig<'a>> {
    rig.ok_or_else(|| Error::Invalid("no proxy was started".to_owned()))
}

fn measure(
    plan: &Plan,
    rig: Option<&Rig<'_>>,
    contestant: Contestant,
    trace: u32,
) -> Result<(Figures, String)> {
    let (_, generate) =
        TRACES.get(trace as usize).ok_or_else(|| Error::Invalid(format!("there is no trace {trace}")))?;
    let trace = generate(plan.capacity_bytes, plan.requests);
    let figures = match contestant {
        Contestant::Belady => reference::belady(&trace, plan.capacity_bytes).figures(),
        Contestant::Lru => reference::lru(&trace, plan.capacity_bytes).figures(),
        Contestant::Lfu => reference::lfu(&trace, plan.capacity_bytes).figures(),
        Contestant::Library(policy) => library::run(policy, &trace, plan.capacity_bytes, &plan.dir)?,
        Contestant::Simulated => simulate(&trace, plan.capacity_bytes),
        Contestant::Store => live::run(&trace, plan.capacity_bytes, &plan.dir)?,
        Contestant::Proxy(proxy) => replay(rig_of(rig)?, proxy, &trace, plan.capacity_bytes)?,
    };
    Ok((figures, String::new()))
}

/// Requests the objects from a proxy. Requests that do not reach the origin are hits.
fn replay(rig: &Rig<'_>, proxy: peer::Contestant, trace: &Trace, capacity_bytes: u64) -> Result<Figures> {
    let missed = rig.replay(proxy, capacity_bytes, trace)?;
    let (requests, requested_bytes) = (trace.len() as u64, trace.iter().map(|request| request.bytes).sum());
    let hits = requests.saturating_sub(missed.requests);
    let ratios =
        Ratios { requests, hits, requested_bytes, hit_bytes: requested_bytes.saturating_sub(missed.bytes) };
    Ok(ratios.figures())
}

fn simulate(trace: &Trace, capacity_bytes: u64) -> Figures {
    let mut simulation = Simulation::new(capacity_bytes, capacity_bytes / SEGMENTS);
    for Request { object, bytes } in trace {
        simulation.request(strait_store::hash_of(&object.to_le_bytes()), *bytes);
    }
    let Totals { requests, hits, requested_bytes, hit_bytes, new_bytes, moved_bytes } = simulation.totals();
    let ratios = Ratios { requests, hits, requested_bytes, hit_bytes };
    ratios.with_writes(new_bytes, moved_bytes)
}
