//! Tax of a capture on its host: additional CPU time of each packet, compared with no capture.
//!
//! The generator's CPU receives the packets too, as softirq, so its time per packet is the host's
//! cost: it is compared with the same traffic without a capture in the same round. The reader is a
//! process on other CPUs, measured apart. For the host's own TCP, throughput and the time of round
//! trips are measured while the capture runs.

mod claims;
mod place;
mod softirq;
mod tcp;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub use self::place::Traffic;
use self::place::{On, Place};
use crate::child::Launcher;
use crate::contestant::{Contestant, Way};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::measure::{Generator, Load, Rig};
use crate::results::{Figures, Results, figures};
use crate::rounds::{self, Point, Report};
use crate::wire::{End, Reception, Wire, Wires};

/// Name of the measurement without a capture.
const NO_CAPTURE: &str = "no capture";

/// Tax benchmark.
#[derive(Debug)]
pub struct Plan<'a> {
    /// Captures to measure.
    pub contestants: Vec<Contestant>,
    /// Traffic to measure them with.
    pub traffic: Vec<Traffic>,
    /// Number of rounds.
    pub rounds: u32,
    /// Starts the programs.
    pub launcher: Launcher,
    /// CPUs of the generator, which are those of the host's packet processing.
    pub generator_cpus: Vec<u32>,
    /// CPUs of the reader.
    pub receiver_cpus: Vec<u32>,
    /// Sending time of a measurement in seconds.
    pub seconds: f64,
    /// Set by a signal; no further measurement is then made.
    pub terminated: &'a AtomicBool,
}

/// Capture, or none.
#[derive(Clone, Copy, Debug)]
struct Taxed(Option<Contestant>);

impl fmt::Display for Taxed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(contestant) => contestant.fmt(f),
            None => f.write_str(NO_CAPTURE),
        }
    }
}

/// Links of the traffic; those that are not measured do not exist.
struct Links {
    wire: Option<Wires>,
    bridge: Option<Wires>,
    port: Option<Wires>,
    /// End that the forwarded frames reach.
    sink: Option<End>,
    tcp: Option<Wires>,
}

impl Links {
    fn lay(plan: &Plan<'_>) -> Result<Self> {
        let uses = |on| plan.places().any(|(_, place)| place.on == on);
        let cpu = plan.generator_cpus.first().copied();
        let wire = uses(On::Wire).then(|| Wires::private(&[1], Reception::Batched)).transpose()?;
        let tcp = uses(On::Tcp).then(|| Wire::routed(tcp::ADDRESSES, cpu).map(Wires::single)).transpose()?;
        let mut links = Self { wire, bridge: None, port: None, sink: None, tcp };
        if uses(On::Bridge) {
            let bridged = Wire::bridged()?;
            links.bridge = Some(Wires::single(bridged.bridge));
            links.port = Some(Wires::single(bridged.port));
            links.sink = Some(bridged.sink);
        }
        Ok(links)
    }

    fn of(&self, on: On) -> Result<&Wires> {
        let wires = match on {
            On::Wire => &self.wire,
            On::Bridge => &self.bridge,
            On::Port => &self.port,
            On::Tcp => &self.tcp,
        };
        wires.as_ref().ok_or_else(|| Error::Invalid("a place without its link".into()))
    }
}

/// Runs the benchmark. After an interruption, returns the results so far.
///
/// # Errors
/// None of the captures can be measured here, or the links cannot be created.
pub fn run(plan: &Plan<'_>, machine: Machine, progress: &mut Report<'_>) -> Result<Results> {
    let mut results = Results {
        benchmark: "tax".into(),
        about: about(),
        axis: "traffic".into(),
        labels: place::PLACES.iter().map(|place| place.label.to_owned()).collect(),
        machine,
        rounds: plan.rounds,
        seconds: plan.seconds,
        ..Results::default()
    };
    softirq::cpu_time(&plan.generator_cpus)?;
    let links = Links::lay(plan)?;
    let probes = Wires::private(&[1], Reception::Batched)?;
    let probe = |contestant| plan.rig(&probes, &place::PLACES[0]).probe(contestant);
    let measurable = rounds::measurable(&plan.contestants, probe, &mut results.skipped)?;
    // Cost of a packet without a capture in this round, by place.
    let bases: BTreeMap<u32, Cell<f64>> = plan.places().map(|(at, _)| (at, Cell::new(0.0))).collect();
    let mut points = Vec::new();
    for (at, place) in plan.places() {
        let taxed = measurable.iter().copied().filter(|contestant| place.admits(contestant.way)).map(Some);
        for contestant in std::iter::once(None).chain(taxed).map(Taxed) {
            let (links, base) = (&links, &bases[&at]);
            points.push(Point {
                contestant: contestant.to_string(),
                place: at.into(),
                measure: Box::new(move || plan.measure(links, place, contestant, base)),
            });
        }
    }
    rounds::measure(&mut results, &points, "", progress)?;
    results.claims = claims::of(&results);
    Ok(results)
}

fn about() -> String {
    "Additional CPU time of a packet compared with no capture, on private veth pairs. Host: the generator's CPU, which \
     also receives the packets (strait generate --path live at full rate, with the kernel's softirq thread). Reader: \
     the process that captures. Readers look at no packet but to count it; tcpdump writes to /dev/null. A rejecting \
     filter is the same for all. Bridge: a bridge forwards frames of 60 bytes, captured with snaplen 96 on the bridge \
     or on its port. TCP: one connection of the host at full rate, then round trips of one byte. Captures that take \
     the packets from the host are measured there only with a filter that rejects all."
        .into()
}

impl Plan<'_> {
    /// Returns the places with their numbers.
    fn places(&self) -> impl Iterator<Item = (u32, &'static Place)> {
        let is_wanted = |place: &Place| self.traffic.contains(&place.traffic);
        (0..).zip(&place::PLACES).filter(move |(_, place)| is_wanted(place))
    }

    fn rig<'b>(&'b self, wires: &'b Wires, place: &Place) -> Rig<'b> {
        Rig {
            launcher: self.launcher.clone(),
            wires,
            generator: Generator::ByRate,
            generator_cpus: self.generator_cpus.clone(),
            receiver_cpus: self.receiver_cpus.clone(),
            seconds: self.seconds,
            stage: false,
            capture: place.captured,
            terminated: self.terminated,
        }
    }

    fn measure(
        &self,
        links: &Links,
        place: &Place,
        contestant: Taxed,
        base: &Cell<f64>,
    ) -> Result<(Figures, String)> {
        let rig = self.rig(links.of(place.on)?, place);
        if place.on == On::Tcp {
            return rounds::attempt(self.terminated, || tcp::measure(&rig, contestant.0));
        }
        let load =
            Load { size_bytes: place.size_bytes, rate_pps: None, seconds: self.seconds, delay_of_each: 0 };
        let sink = links.sink.as_ref().filter(|_| matches!(place.on, On::Bridge | On::Port));
        let arrived = || sink.map(|sink| sink.stats().map(|stats| stats.rx_packets)).transpose();
        let (softirq, forwarded) = (softirq::cpu_time(&self.generator_cpus)?, arrived()?);
        let mut taken = match contestant.0 {
            Some(contestant) => taxed(&rig, contestant, &load)?,
            None => untaxed(&rig, &load)?,
        };
        let softirq = softirq::cpu_time(&self.generator_cpus)?.saturating_sub(softirq);
        let cost_us = (taken.cpu + softirq).as_secs_f64() * 1e6 / taken.packets.max(1) as f64;
        if contestant.0.is_none() {
            base.set(cost_us);
        }
        let reader_us = taken.figures.get("reader_us").copied();
        taken.figures.insert("host_cpu_us".into(), cost_us);
        if let (Some(reader_us), true) = (reader_us, base.get() > 0.0) {
            let host_us = cost_us - base.get();
            taken.figures.extend(figures([("host_us", host_us), ("tax_us", host_us + reader_us)]));
        }
        if let (Some(before), Some(after)) = (forwarded, arrived()?) {
            let share = (after - before) as f64 / taken.packets.max(1) as f64;
            taken.figures.insert("forwarded_pps".into(), taken.pps * share.min(1.0));
        }
        Ok((taken.figures, taken.got))
    }
}

/// Measurement of packets.
struct Taken {
    packets: u64,
    pps: f64,
    /// CPU time of the generator.
    cpu: Duration,
    figures: Figures,
    got: String,
}

fn untaxed(rig: &Rig<'_>, load: &Load) -> Result<Taken> {
    let sent = rig.send_alone(load)?;
    let figures = figures([("offered_pps", sent.achieved_pps)]);
    Ok(Taken { packets: sent.frames, pps: sent.achieved_pps, cpu: sent.cpu, figures, got: String::new() })
}

fn taxed(rig: &Rig<'_>, contestant: Contestant, load: &Load) -> Result<Taken> {
    let outcome = rig.measure(contestant, load)?;
    let packets = outcome.offered;
    let reader_us = outcome.cost.cpu.as_secs_f64() * 1e6 / packets.max(1) as f64;
    let mut figures = figures([("offered_pps", outcome.offered_pps), ("reader_us", reader_us)]);
    if rig.capture.rejecting.is_none() {
        figures.insert("loss_percent".into(), outcome.loss() * 100.0);
    }
    Ok(Taken { packets, pps: outcome.offered_pps, cpu: outcome.generator_cpu, figures, got: outcome.got })
}

/// Returns the captures that can be taxed: those that can have a filter.
pub fn ways() -> impl Iterator<Item = Way> {
    Way::all().filter(|way| way.filters())
}
