//! Claims on Strait's sends and relay, made on the results of [`crate::send`].

use super::context::{Context, GENERATOR_CPU, RECEIVER_CPU, Reporter, of_ratio};
use crate::claim::{Bound, Claim};
use crate::error::Result;
use crate::results::{Key, Results};
use crate::send::{self, Contestant, Load, Plan, Rig};

/// Seconds of a measurement: many short ones are better than few long ones, because connections
/// differ more than seconds do.
const SECONDS: f64 = 0.15;
/// Rounds of a load for each requested round.
const ROUNDS_FACTOR: u32 = 4;
/// Limit of rounds of [`Load::Peers`], which sends fixed numbers of messages, some of them slowly.
const PEERS_ROUNDS_MAX: u32 = 3;

/// Sizes at which adaptive sending is judged.
const SIZES: [u32; 6] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Measures each load, and claims.
pub(super) fn run(context: &Context<'_>, reporter: &mut Reporter<'_>) -> Result<()> {
    for load in [Load::Buffer, Load::Mixed, Load::File, Load::Relay, Load::Peers] {
        let mut results = measure(context, load, reporter)?;
        results.claims = claims(load, &results);
        let complete = results.complete;
        (reporter.finished)(results)?;
        if !complete {
            break;
        }
    }
    Ok(())
}

fn measure(context: &Context<'_>, load: Load, reporter: &mut Reporter<'_>) -> Result<Results> {
    let over = |&over| load.ways().iter().map(move |&way| Contestant { over, way });
    let rounds = match load {
        Load::Peers => context.rounds.min(PEERS_ROUNDS_MAX),
        _ => context.rounds * ROUNDS_FACTOR,
    };
    let plan = Plan {
        load,
        contestants: load.routes().iter().flat_map(over).collect(),
        places: load.places().to_vec(),
        rounds,
    };
    let cpus = (vec![GENERATOR_CPU], vec![RECEIVER_CPU]);
    let rig = Rig::create(context.launcher.clone(), &plan.contestants, cpus, SECONDS, context.terminated)?;
    send::run(&rig, &plan, context.machine.clone(), reporter.progress)
}

fn claims(load: Load, results: &Results) -> Vec<Claim> {
    match load {
        Load::Buffer => buffers(results),
        Load::Mixed => messages(results),
        Load::File => files(results),
        Load::Relay => relays(results),
        Load::Peers => Vec::new(),
    }
}

fn buffers(results: &Results) -> Vec<Claim> {
    let mut claims = Vec::new();
    for size in SIZES {
        let at = |contestant| (contestant, f64::from(size));
        let text = format!(
            "Adaptive send without copies, {size} bytes: rate, to the better of send and registered SEND_ZC"
        );
        let others = [at("no-copy send"), at("no-copy zc-registered")];
        claims.push(to_the_best(text, results, "bytes_per_s", (at("no-copy strait"), &others), 0.97));
    }
    for (size, times) in [(256 << 10, 2.5), (1 << 20, 3.0)] {
        let at = |contestant| (contestant, f64::from(size));
        let text = format!("Adaptive send without copies, {size} bytes: rate, to send");
        let keys = (at("no-copy strait"), at("no-copy send"));
        claims.push(of_ratio(text, results, "bytes_per_s", keys, Bound::AtLeast(times)));
    }
    for over in ["loopback", "veth"] {
        let [strait, send] = ["strait", "send"].map(|way| format!("{over} {way}"));
        for size in SIZES {
            let at = f64::from(size);
            let text = format!("Adaptive send over {over}, {size} bytes: rate, to send");
            let keys = ((strait.as_str(), at), (send.as_str(), at));
            claims.push(of_ratio(text, results, "bytes_per_s", keys, Bound::AtLeast(0.97)));
        }
    }
    claims
}

fn messages(results: &Results) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (pieces, to, times) in
        [(1024, "zc", 10.0), (2048, "zc", 10.0), (1024, "split", 4.0), (2048, "split", 4.0)]
    {
        let (other, at) = (format!("no-copy {to}"), f64::from(pieces));
        let text = format!("{pieces} small pieces and a body without copies: messages/s, to {to}");
        let keys = (("no-copy strait", at), (other.as_str(), at));
        claims.push(of_ratio(text, results, "messages_per_s", keys, Bound::AtLeast(times)));
    }
    for pieces in [1, 16] {
        let at = |contestant| (contestant, f64::from(pieces));
        let others = ["no-copy send", "no-copy zc", "no-copy split"].map(at);
        let text =
            format!("{pieces} small pieces and a body without copies: messages/s, to the best other way");
        claims.push(to_the_best(text, results, "messages_per_s", (at("no-copy strait"), &others), 0.95));
    }
    claims
}

fn relays(results: &Results) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (to, name, most) in
        [("loopback send", "read and write", 0.5), ("loopback haproxy", "HAProxy splicing", 1.0)]
    {
        for size in [64 << 10, 1 << 20] {
            let at = |contestant| (contestant, f64::from(size));
            let text = format!("Relay, source sends {size} bytes at once: CPU per GB, to {name}");
            let keys = (at("loopback strait"), at(to));
            claims.push(of_ratio(text, results, "cpu_s_per_gb", keys, Bound::AtMost(most)));
        }
    }
    claims
}

fn files(results: &Results) -> Vec<Claim> {
    let claim = |size: u32| {
        let at = |contestant| (contestant, f64::from(size));
        let text = format!("A file of {size} bytes over loopback: CPU per GB, to a bare sendfile loop");
        let keys = (at("loopback strait"), at("loopback sendfile"));
        of_ratio(text, results, "cpu_s_per_gb", keys, Bound::AtMost(1.1))
    };
    [1 << 20, 16 << 20].map(claim).to_vec()
}

/// Claims that a series reaches `share` of the best of several, by its median.
fn to_the_best(
    text: String,
    results: &Results,
    figure: &str,
    (this, others): (Key<'_>, &[Key<'_>]),
    share: f64,
) -> Claim {
    let median = |&(contestant, at): &Key<'_>| {
        results.summary(contestant, at, figure).map_or(0.0, |summary| summary.median)
    };
    let best = others.iter().max_by(|one, other| median(one).total_cmp(&median(other)));
    let best = best.copied().unwrap_or(("", 0.0));
    of_ratio(text, results, figure, (this, best), Bound::AtLeast(share))
}
