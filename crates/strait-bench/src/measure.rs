//! One measurement: runs a receiver and a generator on a wire, each on separate CPUs, and collects
//! the figures.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::Deserialize;
use strait_os::wait;

use crate::child::{Child, Cost, Launcher, Program, parse};
use crate::contestant::{Contestant, Way};
use crate::error::{Error, Result};
use crate::receiver::{self, Account, Captured, Delays, MEASURED_MAC, WARM_UP_MAC};
use crate::rounds;
use crate::wire::Wires;

/// Load before each measurement, to fault in the receiver's memory and warm its caches.
const WARM_UP: Load = Load { size_bytes: 64, rate_pps: Some(100_000.0), seconds: 0.05, delay_of_each: 0 };
/// Load that tests whether a contestant works here.
const PROBE: Load = Load { size_bytes: 64, rate_pps: Some(1000.0), seconds: 0.05, delay_of_each: 0 };
/// Up to this rate packets are sent one by one (`sendmmsg`). Above it the kernel sends (`live`, if
/// the wire supports it), in runs with a pause of some 20 ms before each.
const ONE_BY_ONE_PPS_MAX: f64 = 300_000.0;
/// Smallest snapshot length of the rings; larger frames raise it.
const SNAPLEN: u32 = 2048;
/// Time limit of a program beyond the measured time.
const SLACK: Duration = Duration::from_secs(30);
/// Limit of the time until a receiver has opened its sockets.
const READY_MAX: Duration = Duration::from_secs(15);

/// Settings shared by all measurements.
#[derive(Debug)]
pub struct Rig<'a> {
    /// Starts the programs.
    pub launcher: Launcher,
    /// Wires to measure on.
    pub wires: &'a Wires,
    /// Path of the generator.
    pub generator: Generator,
    /// CPUs of the generator.
    pub generator_cpus: Vec<u32>,
    /// CPUs of the receiver.
    pub receiver_cpus: Vec<u32>,
    /// Sending time of a measurement in seconds.
    pub seconds: f64,
    /// True if receivers copy each packet into a staging ring.
    pub stage: bool,
    /// What the receivers capture.
    pub capture: Captured,
    /// Set by a signal; no further measurement is then made.
    pub terminated: &'a AtomicBool,
}

/// Path of the generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Generator {
    /// One path of `strait generate`: `live`, `sendmmsg`, `ring` or `xdp`.
    Path(String),
    /// `sendmmsg`, or `live` at rates that `sendmmsg` cannot reach.
    ByRate,
}

impl Generator {
    fn path(&self, load: &Load) -> &str {
        match self {
            Self::Path(path) => path,
            Self::ByRate if load.rate_pps.is_some_and(|rate| rate <= ONE_BY_ONE_PPS_MAX) => "sendmmsg",
            Self::ByRate => "live",
        }
    }
}

impl std::fmt::Display for Generator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => f.write_str(path),
            Self::ByRate => write!(f, "sendmmsg up to {ONE_BY_ONE_PPS_MAX} packets/s, live above"),
        }
    }
}

/// Traffic of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Frame size in bytes, including the frame check sequence.
    pub size_bytes: u32,
    /// Packets/s; None for the highest rate.
    pub rate_pps: Option<f64>,
    /// Sending time.
    pub seconds: f64,
    /// Delay is measured for one packet in this many; 0 measures none.
    pub delay_of_each: u64,
}

/// Outcome of a measurement.
#[derive(Debug)]
pub struct Outcome {
    /// Packets sent.
    pub offered: u64,
    /// Achieved rate in packets/s.
    pub offered_pps: f64,
    /// Packets that reached the program.
    pub delivered: u64,
    /// Cost of the receiver, from before the start of the generator until the last packet could be
    /// read.
    pub cost: Cost,
    /// CPU time of the generator, with the kernel's work for its packets in its context.
    pub generator_cpu: Duration,
    /// Delays of packets.
    pub delay: Delays,
    /// Path and mode that the receiver got.
    pub got: String,
}

impl Outcome {
    /// Returns the share of lost packets.
    pub fn loss(&self) -> f64 {
        self.offered.saturating_sub(self.delivered) as f64 / self.offered.max(1) as f64
    }
}

/// Output of `strait generate --json`, and its cost.
#[derive(Debug, Deserialize)]
pub(crate) struct Sent {
    /// Number of sent packets.
    pub(crate) frames: u64,
    /// Achieved rate in packets/s.
    pub(crate) achieved_pps: f64,
    /// CPU time of the generator's whole life.
    #[serde(skip)]
    pub(crate) cpu: Duration,
}

impl Rig<'_> {
    /// Tests whether a contestant can be measured here.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub(crate) fn probe(&self, contestant: Contestant) -> Result<()> {
        self.measure(contestant, &PROBE).map(drop)
    }

    /// Makes a measurement.
    pub fn measure(&self, contestant: Contestant, load: &Load) -> Result<Outcome> {
        rounds::attempt(self.terminated, || self.attempt(contestant, load))
    }

    /// Sends packets without a receiver.
    pub(crate) fn send_alone(&self, load: &Load) -> Result<Sent> {
        rounds::attempt(self.terminated, || self.send(1, load, MEASURED_MAC, time_limit(load)))
    }

    /// Starts the receiver of a contestant; its packets count when this returns.
    pub(crate) fn start(&self, contestant: Contestant, load: &Load) -> Result<Receiving> {
        let program = self.receiver(contestant, load);
        let end = self.wires.of(contestant.lanes).receiver();
        let mut child = self.launcher.start(end, &program, &self.receiver_cpus, time_limit(load) * 2)?;
        child.wait_until(READY_MAX, |child| match contestant.way {
            Way::Peer(peer) => peer.is_ready(child),
            _ => Ok(child.stderr()?.contains(receiver::READY)),
        })?;
        Ok(Receiving { child, program, way: contestant.way })
    }

    fn attempt(&self, contestant: Contestant, load: &Load) -> Result<Outcome> {
        let (limit, lanes) = (time_limit(load), contestant.lanes);
        let receiving = self.start(contestant, load)?;
        // Other programs count every packet, so they get no warm-up.
        if !matches!(contestant.way, Way::Peer(_)) {
            self.send(lanes, &WARM_UP, WARM_UP_MAC, limit)?;
            wait::sleep(contestant.way.drain());
        }
        let before = receiving.child.cost()?;
        let sent = self.send(lanes, load, MEASURED_MAC, limit)?;
        wait::sleep(contestant.way.drain());
        let cost = receiving.child.cost()?.since(before);
        judge(&sent, receiving.finish(limit)?, cost, self.capture)
    }

    fn send(&self, lanes: u32, load: &Load, to: [u8; 6], limit: Duration) -> Result<Sent> {
        let rate = load.rate_pps.map_or("max".to_owned(), |rate| format!("{rate:.0}"));
        let (size, seconds) = (load.size_bytes.to_string(), load.seconds.to_string());
        let to = to.map(|byte| format!("{byte:02x}")).join(":");
        let sender = self.wires.of(lanes).sender();
        let path = self.generator.path(load);
        let arguments = ["generate", "-o", sender.interface(), "--path", path, "--rate", &rate];
        let more = ["--size", &size, "--duration", &seconds, "--destination-mac", &to, "--json"];
        let program = self.launcher.strait([&arguments[..], &more].concat());
        let sending: Child = self.launcher.start(sender, &program, &self.generator_cpus, limit)?;
        let output = sending.finish(limit)?;
        Ok(Sent { cpu: output.usage.cpu, ..parse(&program, &output.stdout)? })
    }

    fn receiver(&self, contestant: Contestant, load: &Load) -> Program {
        let interface = self.wires.of(contestant.lanes).receiver().interface();
        let Captured { snaplen, rejecting } = self.capture;
        if let Way::Peer(peer) = contestant.way {
            return peer.program(interface, &self.receiver_cpus, self.capture);
        }
        let (way, lanes) = (contestant.way.to_string(), contestant.lanes.to_string());
        let delays = load.delay_of_each.to_string();
        let snaplen = snaplen.unwrap_or(SNAPLEN.max(load.size_bytes)).to_string();
        let mut arguments = vec!["receive", "-i", interface, "--path", &way, "--delay-of-each", &delays];
        arguments.extend(["--wait", contestant.wait.name(), "--lanes", &lanes, "--snaplen", &snaplen]);
        if let Some(filter) = rejecting {
            arguments.extend(["--filter", filter]);
        }
        let rings = contestant.rings.map(|rings| rings.to_string());
        if let Some(rings) = &rings {
            arguments.extend(["--tap-rings", rings]);
        }
        if contestant.owners {
            arguments.push("--owners");
        }
        if !contestant.timestamps {
            arguments.push("--no-timestamps");
        }
        if !self.stage {
            arguments.push("--no-stage");
        }
        self.launcher.own(arguments)
    }
}

/// Running receiver of a contestant.
pub(crate) struct Receiving {
    pub(crate) child: Child,
    program: Program,
    way: Way,
}

impl Receiving {
    /// Ends the receiver and returns its counts.
    pub(crate) fn finish(self, limit: Duration) -> Result<Account> {
        let output = self.child.interrupt(limit)?;
        match self.way {
            Way::Peer(peer) => peer.account(&output),
            _ => parse(&self.program, &output.stdout),
        }
    }
}

/// Returns the time limit of a program that runs during `load`.
pub(crate) fn time_limit(load: &Load) -> Duration {
    Duration::from_secs_f64(load.seconds) + SLACK
}

/// Checks the counts; an error if they are not plausible.
fn judge(sent: &Sent, account: Account, cost: Cost, captured: Captured) -> Result<Outcome> {
    let (offered, delivered) = (sent.frames, account.delivered);
    if offered == 0 {
        return Err(Error::Invalid("the generator sent nothing".into()));
    }
    if captured.rejecting.is_some() && delivered > 0 {
        return Err(Error::Invalid(format!("the receiver's filter let {delivered} packets pass")));
    }
    if captured.rejecting.is_none() && delivered == 0 {
        return Err(Error::Invalid(format!("the receiver got none of {offered} packets")));
    }
    if delivered > offered {
        return Err(Error::Invalid(format!(
            "the receiver got {delivered} of {offered} packets: something else sends on this wire"
        )));
    }
    let (delay, got) = (account.delay, account.got);
    let generator_cpu = sent.cpu;
    Ok(Outcome { offered, offered_pps: sent.achieved_pps, delivered, cost, generator_cpu, delay, got })
}
