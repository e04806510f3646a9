//! Strait's capture paths, stock libpcap and plain packet sockets at full rate.
//!
//! Two loads: with `sendmmsg` the generator is the limit and the receiver's cost is compared; with
//! XDP live frames more arrives than most receivers take and the rate is compared. The claims on
//! `v2`, `v3` and `xdp` at full rate are here.

use lab::Wire;

use crate::claim::{Bound, Claim};
use crate::contestants::{self, Receiver, STOCK, STOCK_IMMEDIATE};
use crate::error::Result;
use crate::measure;
use crate::results::Results;
use crate::run::{Contest, Context};
use crate::table::{self, Column};

const ABOUT: &str = "60-byte frames at full rate on a veth pair, generator on CPU 0, receiver on CPU 1. CPU seconds \
    are the receiver's own, user and system, from the generator's start to the last packet.";

/// Smallest frame size, including the frame check sequence.
pub(crate) const SIZE: &str = "64";

/// Columns of a table of receivers.
pub(crate) const COLUMNS: [Column; 4] = [
    Column { title: "offered M/s", figure: "offered_pps", scale: 1e-6, decimals: 3, ratio: false },
    Column { title: "delivered M/s", figure: "delivered_pps", scale: 1e-6, decimals: 3, ratio: true },
    Column { title: "loss %", figure: "loss_percent", scale: 1.0, decimals: 2, ratio: false },
    Column { title: "CPU s/million", figure: "cpu_s_per_million", scale: 1.0, decimals: 4, ratio: true },
];

/// Measures, prints the tables and returns the results with their claims.
pub(crate) fn run(context: &Context) -> Result<Results> {
    let mut results = context.results("capture", ABOUT);
    let (plain, napi) = (measure::plain_wire()?, measure::napi_wire()?);
    let mut contests = Vec::new();
    for (load, wire) in [("sendmmsg", &plain), ("live", &napi)] {
        contests
            .extend(receivers(context).into_iter().map(|receiver| contest(context, load, wire, receiver)));
    }
    context.run(&mut results, &contests, context.rounds)?;
    results.claims = claims(&results);
    for load in ["sendmmsg/", "live/"] {
        print!("{}", table::of_series(&results, load, STOCK, &COLUMNS));
    }
    Ok(results)
}

fn receivers(context: &Context) -> Vec<Receiver> {
    let tools = &context.tools;
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
    let mut receivers = vec![contestants::stock(tools, false), contestants::stock(tools, true)];
    receivers.extend([false, true].map(|batched| contestants::packet_socket(tools, batched)));
    receivers.extend(ours.map(|(path, wait)| contestants::strait(tools, path, wait)));
    receivers
}

/// Measures the receiver under a load of smallest frames, sent by `strait generate --path LOAD`.
pub(crate) fn contest<'a>(
    context: &'a Context,
    load: &str,
    wire: &'a Wire,
    receiver: Receiver,
) -> Contest<'a> {
    let generator = contestants::generate(&context.tools, load, "max", SIZE, context.seconds);
    Contest::new(format!("{load}/{}", receiver.name), move || {
        measure::point(&context.tools, wire, &receiver, &generator, context.seconds)
    })
}

fn claims(results: &Results) -> Vec<Claim> {
    let mut claims = Vec::new();
    for load in ["sendmmsg", "live"] {
        let at = |receiver: &str| format!("{load}/{receiver}");
        let (v3, v2, stock, immediate) =
            (at("v3 balanced"), at("v2 balanced"), at(STOCK), at(STOCK_IMMEDIATE));
        claims.push(no_loss(results, load, &v3, &stock));
        claims.push(Claim::of_ratio(
            format!("v3, {load}: CPU per packet, to stock libpcap"),
            results,
            "cpu_s_per_million",
            (&v3, &stock),
            Bound::AtMost(1.1),
        ));
        claims.push(Claim::of_ratio(
            format!("v2, {load}: CPU per packet, to stock immediate mode"),
            results,
            "cpu_s_per_million",
            (&v2, &immediate),
            Bound::AtMost(1.0),
        ));
        claims.push(Claim::of_values(
            format!("v2, {load}: loss, less that of stock immediate mode"),
            &results.paired(&[(&v2, "loss_percent"), (&immediate, "loss_percent")], |loss| {
                Some(loss[0] - loss[1])
            }),
            "% points",
            Bound::AtMost(0.0),
        ));
    }
    claims.push(Claim::of_ratio(
        "v3, live: rate, to stock libpcap",
        results,
        "delivered_pps",
        ("live/v3 balanced", &format!("live/{STOCK}")),
        Bound::AtLeast(1.0),
    ));
    claims.push(Claim::of_figure(
        "xdp balanced, live: CPU s per million",
        results,
        ("live/xdp balanced", "cpu_s_per_million"),
        (1.0, "s"),
        Bound::AtMost(0.1),
    ));
    claims
}

/// Claims no loss in the rounds in which stock libpcap had none; if it had losses in every round,
/// claims no more than those.
fn no_loss(results: &Results, load: &str, v3: &str, stock: &str) -> Claim {
    let keys = [(v3, "lost_packets"), (stock, "lost_packets")];
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
