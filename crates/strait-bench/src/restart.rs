//! Start of Strait's proxy after kill -9, with many stored objects: the time to its first hit, and
//! the hits and misses of the time after it.
//!
//! A client stores the objects, ends the proxy by SIGKILL, starts it again and requests random
//! ones. Every 64th request is for an object that is not stored: it must not wait long for the
//! index.

use std::fmt;
use std::sync::atomic::AtomicBool;

use crate::error::Result;
use crate::machine::Machine;
use crate::proxy::{Restarted, Rig};
use crate::results::{Figures, Results};
use crate::rounds::{self, Definition, Report};

/// Objects to store, and requests after the start.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Numbers of stored objects.
    pub objects: Vec<u32>,
    /// Bytes of each.
    pub object_bytes: u64,
    /// Number of starts.
    pub rounds: u32,
    /// Time of the requests, in seconds.
    pub seconds: f64,
}

/// The one contestant.
#[derive(Clone, Copy, Debug)]
struct Strait;

impl fmt::Display for Strait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("strait")
    }
}

/// Measures a start for each number of objects.
///
/// # Errors
/// The proxy cannot be measured; the signal.
pub fn run(
    rig: &Rig<'_>,
    plan: &Plan,
    machine: Machine,
    progress: &mut Report<'_>,
    terminated: &AtomicBool,
) -> Result<Results> {
    let definition = Definition {
        benchmark: "restart",
        about: format!(
            "Start of the proxy after kill -9 with stored objects of {} bytes. Times are those from the start of the process. \
             Random objects are requested one after the other for {} s; every 64th is not stored.",
            plan.object_bytes, plan.seconds
        ),
        axis: "objects",
        unit: "objects",
        labels: Vec::new(),
        contestants: &[Strait],
        places: &plan.objects,
        rounds: plan.rounds,
        seconds: plan.seconds,
    };
    rounds::run(
        &definition,
        machine,
        progress,
        |_| rig.probe_strait(),
        |_, objects| {
            let restarted =
                rounds::attempt(terminated, || rig.restart((objects, plan.object_bytes), plan.seconds))?;
            Ok((figures(&restarted), String::new()))
        },
    )
}

fn figures(restarted: &Restarted) -> Figures {
    let ms = |ns: u64| ns as f64 / 1e6;
    let named = [
        ("first_hit_ms", ms(restarted.first_hit_ns)),
        ("first_response_ms", ms(restarted.first_response_ns)),
        ("hits", restarted.hits as f64),
        ("misses", restarted.misses as f64),
        ("slowest_hit_ms", ms(restarted.slowest_hit_ns)),
        ("unknown", restarted.unknown as f64),
        ("slowest_unknown_ms", ms(restarted.slowest_unknown_ns)),
        ("memory_mib", restarted.memory_bytes as f64 / f64::from(1 << 20)),
    ];
    named.map(|(name, value)| (name.to_owned(), value)).into()
}
