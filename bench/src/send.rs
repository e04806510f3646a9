//! Claims on Strait's sends and relay, checked by `strait bench send`.
//!
//! The command keeps its own results, `send-<load>.json`; only the claims are here.

use std::process::{Command, Stdio};

use crate::claim::{Bound, Claim};
use crate::error::{Error, Result};
use crate::measure;
use crate::results::{Figures, Results};
use crate::run::Context;

const ABOUT: &str = "Claims of what strait bench send measured: every figure stands in send-buffer.json, send-mixed.json, \
    send-file.json and send-relay.json, with the command and the machine.";

/// Seconds of a try: many short ones are better than few long ones, because connections differ more
/// than seconds do.
const SECONDS: &str = "0.15";
/// Rounds of a load for each requested round.
const ROUNDS_FACTOR: usize = 4;
/// Figures of the claims.
const FIGURES: [&str; 3] = ["bytes_per_s", "cpu_s_per_gb", "messages_per_s"];

/// Sizes at which adaptive sending is judged.
const SIZES: [u32; 6] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Measures, and returns the claims.
pub(crate) fn run(context: &Context) -> Result<Results> {
    let mut results = context.results("send", ABOUT);
    results.rounds = context.rounds * ROUNDS_FACTOR;
    for load in ["buffer", "mixed", "file", "relay"] {
        take(context, load, &mut results)?;
    }
    results.claims = claims(&results);
    results.series.clear();
    Ok(results)
}

/// Runs the benchmark of a load and adds its figures.
fn take(context: &Context, load: &str, results: &mut Results) -> Result<()> {
    let kept = context.out.join(format!("send-{load}.json"));
    let cpus = [measure::GENERATOR_CPU, measure::RECEIVER_CPU].map(|cpu| cpu.to_string());
    // This process is pinned to one CPU, which the child would inherit.
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &cpus.join(",")]).arg(&context.tools.strait);
    command.args(["bench", "send", load, "--seconds", SECONDS, "--rounds", &results.rounds.to_string()]);
    // The results record the command: use a relative path, so that they contain no directory of
    // this machine.
    std::fs::create_dir_all(&context.out)
        .map_err(|source| Error::file(format!("make {}", context.out.display()), source))?;
    command.current_dir(&context.out);
    command.args(["--save", &format!("send-{load}.json"), "--html", &format!("send-{load}.html")]);
    command.args(["--cpus", &cpus[0], "--far-cpus", &cpus[1]]);
    command.args(["--commit", &context.machine.commit]).stdout(Stdio::null());
    let program = format!("{command:?}");
    let status = command.status().map_err(|source| Error::file(format!("start {program}"), source))?;
    if !status.success() {
        return Err(Error::Program { program, code: status.to_string(), said: String::new() });
    }
    let measured = strait_bench::results::Results::read(&kept)
        .map_err(|error| Error::Void(format!("{}: {error}", kept.display())))?;
    for series in &measured.series {
        let name = at(load, series.at as u32, &series.contestant);
        for round in &series.rounds {
            results.record(&name, figures(round));
        }
    }
    Ok(())
}

fn figures(round: &strait_bench::results::Round) -> Result<Figures> {
    match round {
        strait_bench::results::Round::Measured(measured) => {
            let known = |name| Some((name, *measured.get(name)?));
            Ok(FIGURES.into_iter().filter_map(known).collect())
        }
        strait_bench::results::Round::Failed { failure } => Err(Error::Void(failure.clone())),
    }
}

/// Returns the name of the series of a contestant at a place.
fn at(load: &str, place: u32, contestant: &str) -> String {
    format!("{load}/{place}/{contestant}")
}

fn claims(results: &Results) -> Vec<Claim> {
    let mut claims = Vec::new();
    let no_copy = |load, place, way| at(load, place, &format!("no-copy {way}"));
    for size in SIZES {
        let others = ["send", "zc-registered"].map(|way| no_copy("buffer", size, way));
        let text = format!(
            "Adaptive send without copies, {size} bytes: rate, to the better of send and registered SEND_ZC"
        );
        let series = (no_copy("buffer", size, "strait"), &others[..]);
        claims.push(beside_the_best(text, results, "bytes_per_s", series, 0.97));
    }
    for (size, times) in [(256 << 10, 2.5), (1 << 20, 3.0)] {
        let series = ["strait", "send"].map(|way| no_copy("buffer", size, way));
        let text = format!("Adaptive send without copies, {size} bytes: rate, to send");
        claims.push(of_ratio(text, results, "bytes_per_s", &series, Bound::AtLeast(times)));
    }
    for over in ["loopback", "veth"] {
        for size in SIZES {
            let series = ["strait", "send"].map(|way| at("buffer", size, &format!("{over} {way}")));
            let text = format!("Adaptive send over {over}, {size} bytes: rate, to send");
            claims.push(of_ratio(text, results, "bytes_per_s", &series, Bound::AtLeast(0.97)));
        }
    }
    for (pieces, to, times) in
        [(1024, "zc", 10.0), (2048, "zc", 10.0), (1024, "split", 4.0), (2048, "split", 4.0)]
    {
        let series = ["strait", to].map(|way| no_copy("mixed", pieces, way));
        let text = format!("{pieces} small pieces and a body without copies: messages/s, to {to}");
        claims.push(of_ratio(text, results, "messages_per_s", &series, Bound::AtLeast(times)));
    }
    for pieces in [1, 16] {
        let others = ["send", "zc", "split"].map(|way| no_copy("mixed", pieces, way));
        let text =
            format!("{pieces} small pieces and a body without copies: messages/s, to the best other way");
        let series = (no_copy("mixed", pieces, "strait"), &others[..]);
        claims.push(beside_the_best(text, results, "messages_per_s", series, 0.95));
    }
    for (to, most) in [("send", 0.5), ("haproxy", 1.0)] {
        for size in [64 << 10, 1 << 20] {
            let series = ["strait", to].map(|way| at("relay", size, &format!("loopback {way}")));
            let text = format!("Relay, source sends {size} bytes at once: CPU per GB, to {}", relay_name(to));
            claims.push(of_ratio(text, results, "cpu_s_per_gb", &series, Bound::AtMost(most)));
        }
    }
    for size in [1 << 20, 16 << 20] {
        let series = ["strait", "sendfile"].map(|way| at("file", size, &format!("loopback {way}")));
        let text = format!("A file of {size} bytes over loopback: CPU per GB, to a bare sendfile loop");
        claims.push(of_ratio(text, results, "cpu_s_per_gb", &series, Bound::AtMost(1.1)));
    }
    claims
}

fn relay_name(way: &str) -> &'static str {
    if way == "haproxy" { "HAProxy splicing" } else { "read and write" }
}

fn of_ratio(text: String, results: &Results, figure: &str, [this, to]: &[String; 2], bound: Bound) -> Claim {
    Claim::of_ratio(text, results, figure, (this, to), bound)
}

/// Claims that a series reaches `share` of the best of several, by its median.
fn beside_the_best(
    text: String,
    results: &Results,
    figure: &str,
    (this, others): (String, &[String]),
    share: f64,
) -> Claim {
    let median = |name: &&String| results.summary(name, figure).map_or(0.0, |summary| summary.median);
    let best = others.iter().max_by(|one, other| median(one).total_cmp(&median(other)));
    let best = best.map_or("", String::as_str);
    Claim::of_ratio(text, results, figure, (&this, best), Bound::AtLeast(share))
}
