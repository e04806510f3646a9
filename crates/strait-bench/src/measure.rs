//! One try: a receiver and a generator on a wire, each on CPUs of its own, and what came of it.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::Deserialize;
use strait_sys::wait;

use crate::child::{Child, Cost, Launcher, Program, parse};
use crate::contestant::{Contestant, Way};
use crate::error::{Error, Result};
use crate::receiver::{self, Account, Delays, MEASURED_MAC, WARM_UP_MAC};
use crate::rounds;
use crate::wire::Wires;

/// What a receiver gets before what counts: its memory has been touched and its code has run.
const WARM_UP: Load = Load { size_bytes: 64, rate_pps: Some(100_000.0), seconds: 0.05, delay_of_each: 0 };
/// What shows whether this machine has a contestant.
const PROBE: Load = Load { size_bytes: 64, rate_pps: Some(1000.0), seconds: 0.05, delay_of_each: 0 };
/// Up to this rate packets are sent one by one; faster, by the kernel (`live`) where the wire takes that. The kernel sends in
/// runs, with a pause of some 20 ms before each.
const ONE_BY_ONE_PPS_MAX: f64 = 300_000.0;
/// Rings are laid out for packets of this size, or for the larger one that is sent.
const SNAPLEN: u32 = 2048;
/// What a program may need beyond its measured time.
const SLACK: Duration = Duration::from_secs(30);
/// How long to wait for a receiver to open its sockets.
const READY_MAX: Duration = Duration::from_secs(15);

/// What all tries share.
#[derive(Debug)]
pub struct Rig<'a> {
    /// Starts programs.
    pub launcher: Launcher,
    /// Where they run.
    pub wires: &'a Wires,
    /// How packets are made.
    pub generator: Generator,
    /// The generator's CPUs.
    pub generator_cpus: Vec<u32>,
    /// The receiver's CPUs.
    pub receiver_cpus: Vec<u32>,
    /// How long a try sends.
    pub seconds: f64,
    /// Whether receivers copy each packet into a staging ring.
    pub stage: bool,
    /// Set by a signal: no further try is made.
    pub terminated: &'a AtomicBool,
}

/// How packets are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Generator {
    /// By this path of `strait generate`: `live`, `sendmmsg`, `ring` or `xdp`.
    Path(String),
    /// By `sendmmsg`, or by `live` at rates that it does not reach.
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

/// What is sent in a try.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of a frame, its check sequence included.
    pub size_bytes: u32,
    /// Packets/s; as fast as it goes if none.
    pub rate_pps: Option<f64>,
    /// How long.
    pub seconds: f64,
    /// Of each so many packets one's delay is measured; none if 0.
    pub delay_of_each: u64,
}

/// What came of a try.
#[derive(Debug)]
pub struct Outcome {
    /// Packets that were sent.
    pub offered: u64,
    /// The rate at which they were, in packets/s.
    pub offered_pps: f64,
    /// Packets of them that the program got.
    pub delivered: u64,
    /// What the receiver cost, from just before the generator was started until all could have been read.
    pub cost: Cost,
    /// How late packets were.
    pub delay: Delays,
    /// The path and mode that was got.
    pub got: String,
}

impl Outcome {
    /// The share of packets that was lost.
    pub fn loss(&self) -> f64 {
        self.offered.saturating_sub(self.delivered) as f64 / self.offered.max(1) as f64
    }
}

/// What `strait generate --json` says.
#[derive(Deserialize)]
struct Sent {
    frames: u64,
    achieved_pps: f64,
}

impl Rig<'_> {
    /// Whether this machine has a contestant.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn probe(&self, contestant: Contestant) -> Result<()> {
        self.measure(contestant, &PROBE).map(drop)
    }

    /// Makes a try.
    pub fn measure(&self, contestant: Contestant, load: &Load) -> Result<Outcome> {
        rounds::attempt(self.terminated, || self.attempt(contestant, load))
    }

    fn attempt(&self, contestant: Contestant, load: &Load) -> Result<Outcome> {
        let limit = Duration::from_secs_f64(load.seconds) + SLACK;
        let program = self.receiver(contestant, load);
        let wire = self.wires.of(contestant.lanes);
        let mut receiving = self.launcher.start(wire.receiver(), &program, &self.receiver_cpus, limit * 2)?;
        receiving.wait_until(READY_MAX, |child| match contestant.way {
            Way::Peer(peer) => peer.is_ready(child),
            _ => Ok(child.stderr()?.contains(receiver::READY)),
        })?;
        // Other programs count whatever comes, so that nothing may come before what counts.
        if !matches!(contestant.way, Way::Peer(_)) {
            self.send(contestant, &WARM_UP, WARM_UP_MAC, limit)?;
            wait::sleep(contestant.way.drain());
        }
        let before = receiving.cost()?;
        let sent = self.send(contestant, load, MEASURED_MAC, limit)?;
        wait::sleep(contestant.way.drain());
        let cost = receiving.cost()?.since(before);
        let said = receiving.interrupt(limit)?;
        let account = match contestant.way {
            Way::Peer(peer) => peer.account(&said)?,
            _ => parse(&program, &said.stdout)?,
        };
        judge(&sent, account, cost)
    }

    fn send(&self, contestant: Contestant, load: &Load, to: [u8; 6], limit: Duration) -> Result<Sent> {
        let rate = load.rate_pps.map_or("max".to_owned(), |rate| format!("{rate:.0}"));
        let (size, seconds) = (load.size_bytes.to_string(), load.seconds.to_string());
        let to = to.map(|byte| format!("{byte:02x}")).join(":");
        let sender = self.wires.of(contestant.lanes).sender();
        let path = self.generator.path(load);
        let arguments = ["generate", "-o", sender.interface(), "--path", path, "--rate", &rate];
        let more = ["--size", &size, "--duration", &seconds, "--destination-mac", &to, "--json"];
        let program = Program::new(self.strait(), [&arguments[..], &more].concat());
        let sending: Child = self.launcher.start(sender, &program, &self.generator_cpus, limit)?;
        parse(&program, &sending.finish(limit)?.stdout)
    }

    fn receiver(&self, contestant: Contestant, load: &Load) -> Program {
        let interface = self.wires.of(contestant.lanes).receiver().interface();
        if let Way::Peer(peer) = contestant.way {
            return peer.program(interface, &self.receiver_cpus);
        }
        let (way, lanes) = (contestant.way.to_string(), contestant.lanes.to_string());
        let delays = load.delay_of_each.to_string();
        let snaplen = SNAPLEN.max(load.size_bytes).to_string();
        let mut arguments =
            vec!["bench", "receive", "-i", interface, "--path", &way, "--delay-of-each", &delays];
        arguments.extend(["--wait", contestant.wait.name(), "--lanes", &lanes, "--snaplen", &snaplen]);
        if !contestant.timestamps {
            arguments.push("--no-timestamps");
        }
        if !self.stage {
            arguments.push("--no-stage");
        }
        Program::new(self.strait(), arguments)
    }

    fn strait(&self) -> String {
        let strait: &PathBuf = &self.launcher.strait;
        strait.to_string_lossy().into_owned()
    }
}

/// Whether the figures mean anything.
fn judge(sent: &Sent, account: Account, cost: Cost) -> Result<Outcome> {
    let (offered, delivered) = (sent.frames, account.delivered);
    if offered == 0 {
        return Err(Error::Void("the generator sent nothing".into()));
    }
    if delivered == 0 {
        return Err(Error::Void(format!("the receiver got none of {offered} packets")));
    }
    if delivered > offered {
        return Err(Error::Void(format!(
            "the receiver got {delivered} of {offered} packets: something else sends on this wire"
        )));
    }
    let (delay, got) = (account.delay, account.got);
    Ok(Outcome { offered, offered_pps: sent.achieved_pps, delivered, cost, delay, got })
}
