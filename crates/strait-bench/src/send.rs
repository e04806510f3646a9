//! D5's measurements: cost of a send with and without a copy, over loopback, a veth pair, a route
//! without copies, or to another machine. Loads are one buffer, a message of many small pieces and
//! a body, a file, and relayed data of another connection.
//!
//! The sender is a separate program on its own CPU ([`transmit`]); the far end is a thread of this
//! process ([`far_end`]).

pub mod acknowledge;
pub mod far_end;
pub mod pass;
pub mod peers;
pub mod transmit;
mod way;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use strait_os::interface::Interface;
use strait_os::netlink::Netlink;

use self::way::WAYS;
pub use self::way::Way;
use crate::child::{Launcher, parse};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::results::{Figures, Results};
use crate::rounds::{self, Definition, Progress};
use crate::wire::{End, Wire};
use acknowledge::Ends;
use far_end::{FarEnd, Takes};
use pass::RelayProgram;
use peers::{LOADS, PEERS_MAX};
use transmit::{Account, BODIES_BYTES, PIECE_BYTES};

/// Buffer sizes in bytes, from D5's figures.
pub const SIZES: [u32; 6] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Numbers of small pieces before a body.
pub const PIECES: [u32; 5] = [1, 16, 256, 1024, 2048];
/// File sizes in bytes.
pub const FILES: [u32; 3] = [64 << 10, 1 << 20, 16 << 20];
/// Bytes that the source of a relay sends at once.
pub const RELAYED: [u32; 3] = [4 << 10, 64 << 10, 1 << 20];
/// Size in bytes of the body after small pieces.
pub const BODY_BYTES: u32 = 64 << 10;

/// Addresses of the private pair (RFC 5737).
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
/// Their prefix length.
const PREFIX: u8 = 24;
/// Time before the measurement, in which Strait's sender learns its route.
const WARM_UP_SECONDS: f64 = 0.1;
/// Duration of the measurement that tests a contestant.
const PROBE_SECONDS: f64 = 0.02;
/// Time limit of a program beyond its measured time.
const SLACK: Duration = Duration::from_secs(30);
/// Timeout for the far end to read data in flight after the sender has ended.
const DRAIN_MAX: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Load of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// One buffer; the axis is its size.
    Buffer,
    /// Small pieces and a body; the axis is the number of pieces.
    Mixed,
    /// A file; the axis is its size.
    File,
    /// Relayed data; the axis is the size of the source's sends.
    Relay,
    /// A fixed number of buffers to many peers, or slowly to one; the axis is the load.
    Peers,
}

/// Route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// 127.0.0.1.
    Loopback,
    /// A private veth pair.
    Veth,
    /// A veth pair with a far end that acknowledges without reading, so that nothing copies.
    NoCopy,
    /// Another machine that reads.
    Peer(SocketAddr),
}

/// Way and route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contestant {
    /// Route.
    pub over: Over,
    /// Way.
    pub way: Way,
}

/// Send benchmark: load, contestants, places and rounds.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Load.
    pub load: Load,
    /// Contestants to measure.
    pub contestants: Vec<Contestant>,
    /// Places on the load's axis.
    pub places: Vec<u32>,
    /// Number of rounds.
    pub rounds: u32,
}

/// Settings shared by all measurements.
#[derive(Debug)]
pub struct Rig<'a> {
    launcher: Launcher,
    lines: Vec<Line>,
    sender_cpus: Vec<u32>,
    far_cpus: Vec<u32>,
    seconds: f64,
    terminated: &'a AtomicBool,
}

/// Created route.
#[derive(Debug)]
struct Line {
    over: Over,
    near: End,
    /// None if another machine reads.
    far: Option<(End, SocketAddr, Takes)>,
}

impl Load {
    /// Returns the name of its axis.
    fn axis(self) -> &'static str {
        match self {
            Self::Buffer => "buffer, bytes",
            Self::Mixed => "64-byte pieces before a body of 64 KiB",
            Self::File => "file, bytes",
            Self::Relay => "bytes that the source sends at once",
            Self::Peers => "load",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Buffer | Self::File | Self::Relay => "bytes",
            Self::Mixed => "pieces",
            Self::Peers => "",
        }
    }

    /// Returns names of the places if they are not numbers.
    fn labels(self) -> Vec<String> {
        let names = if self == Self::Peers { &LOADS[..] } else { &[] };
        names.iter().map(|(name, _)| (*name).to_owned()).collect()
    }

    /// Returns the name of its benchmark.
    pub fn benchmark(self) -> &'static str {
        match self {
            Self::Buffer => "send buffer",
            Self::Mixed => "send mixed",
            Self::File => "send file",
            Self::Relay => "send relay",
            Self::Peers => "send peers",
        }
    }

    /// Returns the default places.
    pub fn places(self) -> &'static [u32] {
        match self {
            Self::Buffer => &SIZES,
            Self::Mixed => &PIECES,
            Self::File => &FILES,
            Self::Relay => &RELAYED,
            Self::Peers => &[0, 1, 2, 3, 4],
        }
    }

    /// Returns the ways that can send it.
    pub fn ways(self) -> &'static [Way] {
        match self {
            Self::Buffer => &[Way::Send, Way::ZeroCopy, Way::Registered, Way::Mapped, Way::Strait],
            Self::Mixed => &[Way::Send, Way::Coalesce, Way::ZeroCopy, Way::Split, Way::Strait],
            Self::File => &[Way::Send, Way::Sendfile, Way::Mapped, Way::Strait],
            Self::Relay => &[Way::Send, Way::HaProxy, Way::Strait],
            Self::Peers => &[Way::Send, Way::ZeroCopy, Way::Strait],
        }
    }

    /// Returns the default routes.
    pub fn routes(self) -> &'static [Over] {
        match self {
            Self::Relay => &[Over::Loopback],
            Self::Peers => &[Over::Veth, Over::NoCopy],
            _ => &[Over::Loopback, Over::Veth, Over::NoCopy],
        }
    }

    /// Returns the options of the sending program for a place.
    fn arguments(self, place: u32) -> Vec<String> {
        let [pieces, body, file] = match self {
            Self::Peers => {
                let (_, load) = LOADS[place as usize % LOADS.len()];
                return vec![
                    format!("--body={}", load.bytes),
                    format!("--peers={}", load.peers),
                    format!("--sends={}", load.sends),
                    format!("--pause-ms={}", load.pause.as_millis()),
                ];
            }
            Self::Buffer | Self::Relay => [0, place, 0],
            Self::Mixed => [place, BODY_BYTES, 0],
            Self::File => [0, 0, place],
        };
        vec![format!("--pieces={pieces}"), format!("--body={body}"), format!("--file={file}")]
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = WAYS.into_iter().find(|(_, way)| way == self).map(|(name, _)| name);
        f.write_str(name.expect("WAYS has every way"))
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = WAYS.into_iter().find(|(name, _)| *name == text).map(|(_, way)| way);
        found.ok_or_else(|| format!("'{text}': give one of {}", WAYS.map(|(name, _)| name).join(", ")))
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => f.write_str("loopback"),
            Self::Veth => f.write_str("veth"),
            Self::NoCopy => f.write_str("no-copy"),
            Self::Peer(address) => write!(f, "{address}"),
        }
    }
}

impl FromStr for Over {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "loopback" => Ok(Self::Loopback),
            "veth" => Ok(Self::Veth),
            "no-copy" => Ok(Self::NoCopy),
            _ => Err(format!("'{text}': give loopback, veth or no-copy")),
        }
    }
}

impl fmt::Display for Contestant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.over, self.way)
    }
}

impl Line {
    fn create(over: Over, cpu: u32) -> Result<Self> {
        match over {
            Over::Loopback => {
                let (far, address) = (End::own("lo"), (Ipv4Addr::LOCALHOST, 0).into());
                Ok(Self { over, near: End::own("lo"), far: Some((far, address, Takes::Reading)) })
            }
            Over::Veth => Self::veth(over, false, cpu),
            Over::NoCopy => Self::veth(over, true, cpu),
            Over::Peer(_) => Ok(Self { over, near: End::own(""), far: None }),
        }
    }

    fn veth(over: Over, acknowledges: bool, cpu: u32) -> Result<Self> {
        let (near, far) = Wire::routed(ADDRESSES, (!acknowledges).then_some(cpu))?.into_ends();
        far.run(|| add_peers(far.interface()))??;
        let mac = |end: &End| end.run(|| Interface::find(end.interface()).map(|found| found.mac));
        let takes = if acknowledges {
            near.run(|| std::fs::write("/proc/sys/net/ipv4/tcp_timestamps", "0"))?
                .map_err(|error| Error::file("switch TCP timestamps off", error))?;
            Takes::Acknowledging(Ends { macs: [mac(&near)??, mac(&far)??], addresses: ADDRESSES })
        } else {
            Takes::Reading
        };
        let address = (ADDRESSES[1], 0).into();
        Ok(Self { over, near, far: Some((far, address, takes)) })
    }
}

/// Adds the addresses of further peers.
fn add_peers(interface: &str) -> Result<()> {
    let mut netlink = Netlink::open()?;
    let index = netlink.interface(interface)?.index;
    for number in 1..PEERS_MAX {
        let address = Ipv4Addr::from_bits(ADDRESSES[1].to_bits() + u32::from(number));
        netlink.add_address(index, address.into(), PREFIX)?;
    }
    Ok(())
}

impl<'a> Rig<'a> {
    /// Creates the routes that the contestants need.
    ///
    /// # Errors
    /// Creating a private pair fails without CAP_SYS_ADMIN and CAP_NET_ADMIN.
    pub fn create(
        launcher: Launcher,
        contestants: &[Contestant],
        (sender_cpus, far_cpus): (Vec<u32>, Vec<u32>),
        seconds: f64,
        terminated: &'a AtomicBool,
    ) -> Result<Self> {
        let cpu = sender_cpus.first().copied().unwrap_or(0);
        let mut lines: Vec<Line> = Vec::new();
        for contestant in contestants {
            if lines.iter().all(|line| line.over != contestant.over) {
                lines.push(Line::create(contestant.over, cpu)?);
            }
        }
        Ok(Self { launcher, lines, sender_cpus, far_cpus, seconds, terminated })
    }

    /// Makes a measurement.
    fn measure(&self, load: Load, contestant: Contestant, place: u32, seconds: [f64; 2]) -> Result<Account> {
        rounds::attempt(self.terminated, || self.attempt(load, contestant, place, seconds))
    }

    fn attempt(&self, load: Load, contestant: Contestant, place: u32, seconds: [f64; 2]) -> Result<Account> {
        let line = self.lines.iter().find(|line| line.over == contestant.over);
        let line = line.expect("lines were laid for all contestants");
        let far = line.far.as_ref();
        let far = far.map(|(end, address, takes)| FarEnd::start(end, *address, *takes, &self.far_cpus));
        let far = far.transpose()?;
        let to = match (&far, contestant.over) {
            (Some(far), _) => far.address(),
            (None, Over::Peer(address)) => address,
            (None, _) => unreachable!("every private route has a far end"),
        };
        if load == Load::Relay {
            return self.relay(contestant.way, (line, place), far.as_ref(), to, seconds);
        }
        let account = self.transmit((line, &self.sender_cpus), to, contestant.way, load, place, seconds)?;
        match far {
            Some(far) if contestant.over != Over::NoCopy => judge(&far, &account)?,
            _ => {}
        }
        Ok(account)
    }

    /// Runs the sending program.
    fn transmit(
        &self,
        (line, cpus): (&Line, &[u32]),
        to: SocketAddr,
        way: Way,
        load: Load,
        place: u32,
        [warm_up, seconds]: [f64; 2],
    ) -> Result<Account> {
        let options = [
            format!("--to={to}"),
            format!("--way={way}"),
            format!("--seconds={seconds}"),
            format!("--warm-up={warm_up}"),
        ];
        let arguments = ["transmit".to_owned()].into_iter().chain(options).chain(load.arguments(place));
        let program = self.launcher.own(arguments);
        let limit = Duration::from_secs_f64(warm_up + seconds) + SLACK;
        let sending = self.launcher.start(&line.near, &program, cpus, limit)?;
        parse(&program, &sending.finish(limit)?.stdout)
    }

    /// Runs a relay program between a source, which shares the far end's CPUs, and the far end. The
    /// CPU time is the relay's, for all relayed bytes.
    fn relay(
        &self,
        way: Way,
        (line, place): (&Line, u32),
        far: Option<&FarEnd>,
        to: SocketAddr,
        seconds: [f64; 2],
    ) -> Result<Account> {
        let far = far.ok_or_else(|| Error::Usage("a relay is measured over loopback".into()))?;
        let limit = Duration::from_secs_f64(seconds.iter().sum()) + SLACK;
        let relay_program = RelayProgram::start(&self.launcher, way, to, &self.sender_cpus, limit)?;
        let before = relay_program.child.cost()?;
        let source = (line, &self.far_cpus[..]);
        let account = self.transmit(source, relay_program.address, Way::Send, Load::Relay, place, seconds)?;
        judge(far, &account)?;
        let cpu_s = relay_program.child.cost()?.since(before).cpu.as_secs_f64();
        // The source's account covers only a part of the relayed bytes.
        let cpu_s = cpu_s * account.bytes as f64 / account.all_bytes.max(1) as f64;
        Ok(Account { cpu_s, got: way.to_string(), ..account })
    }
}

/// Checks that all sent bytes arrived.
fn judge(far: &FarEnd, account: &Account) -> Result<()> {
    let deadline = std::time::Instant::now() + DRAIN_MAX;
    while far.bytes() < account.all_bytes && std::time::Instant::now() < deadline {
        strait_os::wait::sleep(POLL_INTERVAL);
    }
    match far.bytes() {
        came if came == account.all_bytes => Ok(()),
        came => Err(Error::Invalid(format!("{came} of {} bytes came", account.all_bytes))),
    }
}

/// Runs the benchmark. After an interruption, returns the results so far.
///
/// # Errors
/// None of the contestants can be measured here.
pub fn run(
    rig: &Rig<'_>,
    plan: &Plan,
    machine: Machine,
    progress: &mut dyn FnMut(&Progress<'_>) -> Result<()>,
) -> Result<Results> {
    let load = plan.load;
    let definition = Definition {
        benchmark: load.benchmark(),
        about: about(load),
        axis: load.axis(),
        unit: load.unit(),
        labels: load.labels(),
        contestants: &plan.contestants,
        places: &plan.places,
        rounds: plan.rounds,
        seconds: rig.seconds,
    };
    let smallest = plan.places.iter().copied().min().unwrap_or_default();
    let probe = |contestant| rig.measure(load, contestant, smallest, [0.0, PROBE_SECONDS]).map(drop);
    rounds::run(&definition, machine, progress, probe, |contestant, place| {
        // The first sends to each peer count: from them the sender learns the device.
        let seconds = if load == Load::Peers { [0.0, 0.0] } else { [WARM_UP_SECONDS, rig.seconds] };
        let account = rig.measure(load, contestant, place, seconds)?;
        Ok((figures(load, &account), account.got))
    })
}

fn about(load: Load) -> String {
    let what = match load {
        Load::Buffer => format!("buffers, one of {} MiB after the other,", BODIES_BYTES >> 20),
        Load::Mixed => format!(
            "messages of so many pieces of {PIECE_BYTES} bytes and a body of {} KiB, one of {} MiB after the other,",
            BODY_BYTES >> 10,
            BODIES_BYTES >> 20
        ),
        Load::File => "the same file, which is in memory, over and over".to_owned(),
        Load::Peers => {
            return "Share of the bytes that were sent by zero-copy requests, rate and CPU time of the sending program, with what it learned on \
                    the way alone. Peers are sent to in turn, on one connection each. zc is SEND_ZC of every buffer, strait decides by \
                    itself. On the veth pair the kernel copies; no-copy is one whose far end acknowledges in eBPF and reads nothing."
                .into();
        }
        Load::Relay => {
            return "Rate at which one core passes on what one TCP connection sends to another, and the CPU time of the program \
                    that does; source and sink share the other CPU. send is a loop of read(2) and write(2) with 64 KiB."
                .into();
        }
    };
    format!(
        "Rate at which one core sends {what} on one TCP connection, and the CPU time of the sending program, after {WARM_UP_SECONDS} s \
         of warm-up. zc is SEND_ZC of every buffer, mmap-zc the same of a file's mapping, which is made once, strait decides by itself. no-copy is a veth pair whose far end acknowledges \
         in eBPF and reads nothing."
    )
}

fn figures(load: Load, account: &Account) -> Figures {
    let gigabytes = account.bytes as f64 / 1e9;
    let mut named = vec![
        ("bytes_per_s", account.bytes as f64 / account.seconds),
        ("cpu_s_per_gb", account.cpu_s / gigabytes),
    ];
    if load == Load::Mixed {
        named.push(("messages_per_s", account.messages as f64 / account.seconds));
    }
    if load == Load::Peers {
        named.extend(account.lent.map(|share| ("lent_percent", share * 100.0)));
    }
    named.extend(account.zero_copy.map(|share| ("zero_copy_percent", share * 100.0)));
    named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
