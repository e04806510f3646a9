//! Strait's capture paths, stock libpcap and plain packet sockets at full rate.
//!
//! Two loads: with `sendmmsg` the generator is the limit and the receiver's cost is compared; with
//! XDP live frames more arrives than most receivers take and the rate is compared. The claims on
//! `v2`, `v3` and `xdp` at full rate are here.

use super::context::{Context, Reporter, Subject, of_figure, of_ratio, point};
use super::measure::{self, napi_wire, plain_wire};
use super::programs::{self, Receiver, STOCK, STOCK_IMMEDIATE};
use crate::claim::{Bound, Claim};
use crate::error::Result;
use crate::results::Results;
use crate::rounds::Point;
use crate::wire::Wire;

const ABOUT: &str = "60-byte frames at full rate on a veth pair, generator on CPU 0, receiver on CPU 1. CPU seconds \
    are the receiver's own, user and system, from the generator's start to the last packet.";

/// Smallest frame size, including the frame check sequence.
pub(super) const SIZE: &str = "64";

/// Loads, the places on the axis: paths of `strait generate`.
const LOADS: [&str; 2] = ["sendmmsg", "live"];

/// Measures and claims.
pub(super) fn run(context: &Context<'_>, reporter: &mut Reporter<'_>) -> Result<()> {
    let subject = Subject { benchmark: "claims capture", about: ABOUT, axis: "load", labels: &LOADS };
    let wires = [plain_wire()?, napi_wire()?];
    let mut points = Vec::new();
    for (place, (load, wire)) in LOADS.into_iter().zip(&wires).enumerate() {
        let receivers = receivers(context).into_iter();
        points.extend(receivers.map(|receiver| at_full_rate(context, (load, place as f64), wire, receiver)));
    }
    context.run(&subject, context.rounds, points, claims, reporter)
}

fn receivers(context: &Context<'_>) -> Vec<Receiver> {
    let ours = [
        ("recv", "balanced"),
        ("v2", "latency"),
        ("v2", "balanced"),
        ("v3", "latency"),
        ("v3", "balanced"),
        ("xdp", "latency"),
        ("xdp", "balanced"),
        ("xdp", "busy"),
    ];
    let mut receivers = vec![programs::stock(context, false), programs::stock(context, true)];
    receivers.extend([false, true].map(|batched| programs::packet_socket(context, batched)));
    receivers.extend(ours.map(|(path, wait)| programs::strait(context, path, wait)));
    receivers
}

/// Returns the point of a receiver under a load of smallest frames, sent by `strait generate --path
/// LOAD`.
pub(super) fn at_full_rate<'a>(
    context: &'a Context<'_>,
    (load, place): (&str, f64),
    wire: &'a Wire,
    receiver: Receiver,
) -> Point<'a> {
    let generator = programs::generate(context, load, "max", SIZE, context.seconds);
    point(receiver.name.clone(), place, move || {
        measure::point(&context.launcher, wire, &receiver, &generator, context.seconds)
    })
}

fn claims(results: &Results) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (place, load) in (0..).zip(LOADS) {
        let at = |receiver| (receiver, f64::from(place));
        let (v3, v2, stock, immediate) =
            (at("v3 balanced"), at("v2 balanced"), at(STOCK), at(STOCK_IMMEDIATE));
        let cost = "cpu_s_per_million";
        claims.push(no_loss(results, place.into(), load));
        let text = format!("v3, {load}: CPU per packet, to stock libpcap");
        claims.push(of_ratio(text, results, cost, (v3, stock), Bound::AtMost(1.1)));
        let text = format!("v2, {load}: CPU per packet, to stock immediate mode");
        claims.push(of_ratio(text, results, cost, (v2, immediate), Bound::AtMost(1.0)));
        let keys = [(v2, "loss_percent"), (immediate, "loss_percent")];
        claims.push(Claim::of_values(
            format!("v2, {load}: loss, less that of stock immediate mode"),
            &results.paired(&keys, |loss| Some(loss[0] - loss[1])),
            "% points",
            Bound::AtMost(0.0),
        ));
    }
    let live = |receiver| (receiver, 1.0);
    claims.push(of_ratio(
        "v3, live: rate, to stock libpcap",
        results,
        "delivered_pps",
        (live("v3 balanced"), live(STOCK)),
        Bound::AtLeast(1.0),
    ));
    claims.push(of_figure(
        "xdp balanced, live: CPU s per million",
        results,
        (live("xdp balanced"), "cpu_s_per_million"),
        (1.0, "s"),
        Bound::AtMost(0.1),
    ));
    claims
}

/// Claims no loss in the rounds in which stock libpcap had none; if it had losses in every round,
/// claims no more than those.
fn no_loss(results: &Results, place: f64, load: &str) -> Claim {
    let keys = ["v3 balanced", STOCK].map(|receiver| ((receiver, place), "lost_packets"));
    let bound = Bound::AtMost(0.0);
    let beside_none = results.paired(&keys, |lost| (lost[1] <= 0.0).then_some(lost[0]));
    let beside_some = results.paired(&keys, |lost| (lost[1] > 0.0).then(|| lost[0] - lost[1]));
    if beside_none.is_empty() && !beside_some.is_empty() {
        let text =
            format!("v3, {load}: packets lost, less those of stock libpcap, which lost in every round");
        return Claim::of_values(text, &beside_some, "packets", bound);
    }
    let text = format!("v3, {load}: packets lost where stock libpcap lost none");
    Claim::of_values(text, &beside_none, "packets", bound).worst()
}
