//! `strait generate`: sends numbered, time-stamped, valid traffic, so that the receiver can measure
//! loss, order and delay.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::builder::TypedValueParser;
use clap::{Args as ClapArgs, ValueEnum};
use strait_capture::{InjectPath, Injector};
use strait_ledger as ledger;
use strait_os::clock;
use strait_os::interface::Interface;
use strait_packet::ethernet::MacAddress;
use strait_packet::traffic::{FCS_LEN, Kind, Sizes, Traffic};
use strait_program::Streams;

use crate::Error;
use crate::namespace;
use crate::output::{print_account, print_stderr};
use crate::parse::{Rate, count_u32, mac, one_of, seconds};

mod live;

/// Options of `strait generate`.
#[derive(ClapArgs)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Interface to send on
    #[arg(short = 'o', long, value_name = "IF")]
    output: String,
    #[command(flatten)]
    namespace: namespace::Args,
    /// Frame sizes including the frame check sequence: one size, several in turn as in 64,512,1518,
    /// or imix
    #[arg(long, default_value = "64")]
    size: Sizes,
    /// Packets per second as in 5000 or 100k, or max
    #[arg(long, value_name = "PPS", default_value = "max")]
    rate: Rate,
    /// Stop after this many packets
    #[arg(short, long, value_name = "N", value_parser = crate::parse::count)]
    count: Option<u64>,
    /// Stop after this many seconds, or as in 500ms or 5m [default: 10, unless --count is given]
    #[arg(short, long, value_name = "S", value_parser = seconds)]
    duration: Option<Duration>,
    /// Number of flows, which differ in addresses and ports
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = flows)]
    flows: u32,
    /// Kinds of packets, in turn
    #[arg(long, value_enum, value_delimiter = ',', default_value = "udp4")]
    kind: Vec<KindArg>,
    /// Tag every packet with this VLAN identifier
    #[arg(long, value_name = "ID")]
    vlan: Option<u16>,
    /// Source MAC address [default: 02:00:00:00:00:01]
    #[arg(long, value_name = "MAC", value_parser = mac)]
    source_mac: Option<MacAddress>,
    /// Destination MAC address [default: 02:00:00:00:00:02]
    #[arg(long, value_name = "MAC", value_parser = mac)]
    destination_mac: Option<MacAddress>,
    /// How to send packets; live generates them in the kernel by an XDP program (udp4 of one size)
    #[arg(short, long, value_parser = way(), default_value = InjectPath::Sendmmsg.name())]
    path: Way,
    /// Print the account as one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  strait generate -o veth0 --rate 100000 --duration 10
  strait generate -o veth0 --size imix --flows 10000 --kind udp4,tcp4,udp6,tcp6 --count 1000000
  strait generate -o veth0 --path live --rate max --duration 5";

/// Parses a number of flows. The traffic's builder checks its limits.
fn flows(text: &str) -> Result<u32, String> {
    if text == "0" { Ok(0) } else { count_u32(text) }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum KindArg {
    /// UDP over IPv4
    Udp4,
    /// TCP over IPv4
    Tcp4,
    /// UDP over IPv6
    Udp6,
    /// TCP over IPv6
    Tcp6,
}

/// Way to send.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Injected(InjectPath),
    /// XDP live frames.
    Live,
}

/// Returns the parser of a way's name.
fn way() -> impl TypedValueParser<Value = Way> {
    let injected = InjectPath::ALL.iter();
    let injected = injected.map(|path| (Way::Injected(*path), path.name(), path.description()));
    let live =
        "XDP live frames, millions per second on one core; needs a driver that accepts redirected frames";
    one_of(injected.chain([(Way::Live, "live", live)]))
}

/// Default duration without --count and --duration.
const DURATION_DEFAULT: Duration = Duration::from_secs(10);

/// Conditions for the end.
pub(crate) struct Limits<'a> {
    count: u64,
    duration: Duration,
    terminated: &'a AtomicBool,
}

impl Limits<'_> {
    /// Returns true after `sent` packets if the count or the duration is reached, or a signal
    /// arrived.
    fn reached(&self, sent: u64, started: Instant) -> bool {
        sent >= self.count || started.elapsed() >= self.duration || self.terminated.load(Ordering::Relaxed)
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let terminated = strait_os::process::on_termination()?;
    let traffic = args.traffic()?;
    args.namespace.enter()?;
    args.check_size(&traffic)?;
    let unlimited = if args.count.is_some() { Duration::MAX } else { DURATION_DEFAULT };
    let limits = Limits {
        count: args.count.unwrap_or(u64::MAX),
        duration: args.duration.unwrap_or(unlimited),
        terminated,
    };
    let (sent, failure) = match args.path {
        Way::Live => (live::run(&args.output, &traffic, args.rate, &limits)?, None),
        Way::Injected(path) => send(&args.output, path, &traffic, args.rate, &limits)?,
    };
    // A failure before the first packet has no account.
    if failure.is_none() || sent.offered() > 0 {
        print_account(&sent, args.json)?;
    }
    failure.map_or(Ok(()), Err)
}

impl Args {
    /// The standard streams that carry data.
    pub(crate) fn streams(&self) -> Streams {
        Streams::output(self.json)
    }

    fn traffic(&self) -> Result<Traffic, Error> {
        if self.path == Way::Live && (self.kind != [KindArg::Udp4] || self.size.slots().len() > 1) {
            return Err(Error::Usage(
                "--path live sends udp4 of one size: omit --kind, and give one --size".into(),
            ));
        }
        let kinds: Vec<Kind> = self.kind.iter().map(|&kind| kind.into()).collect();
        let source = self.source_mac.unwrap_or(MacAddress([2, 0, 0, 0, 0, 1]));
        let destination = self.destination_mac.unwrap_or(MacAddress([2, 0, 0, 0, 0, 2]));
        Traffic::builder()
            .macs(source, destination)
            .vlan(self.vlan)
            .kinds(&kinds)
            .sizes(self.size.clone())
            .flows(self.flows)
            .build()
            .map_err(|error| Error::Usage(error.to_string()))
    }

    /// Refuses frame sizes above the MTU, as the kernel would send no such frame.
    fn check_size(&self, traffic: &Traffic) -> Result<(), Error> {
        let interface = Interface::find(&self.output)?;
        let most = interface.frame_bytes_max(self.vlan.is_some());
        if traffic.frame_len_max() <= most {
            return Ok(());
        }
        let (size, mtu) = (traffic.frame_len_max() + FCS_LEN, interface.mtu);
        let (name, most) = (interface.name, most + FCS_LEN);
        Err(Error::Usage(format!(
            "--size {size}: {name} accepts frames of up to {most} bytes (MTU {mtu}): \
             give a smaller size, or ip link set {name} mtu {}",
            size - most + mtu as usize
        )))
    }
}

/// Sends, and returns the account and the error if one ended it early.
fn send(
    interface: &str,
    path: InjectPath,
    traffic: &Traffic,
    rate: Rate,
    limits: &Limits<'_>,
) -> Result<(ledger::Send, Option<Error>), Error> {
    let mut injector = Injector::open(interface, path)?;
    strait_os::process::drop_capabilities(false)?;
    if let Some(note) = injector.note() {
        print_stderr(format_args!("strait: {note}\n"));
    }
    let failure = send_until(&mut injector, traffic, rate, limits).err();
    let (account, unsent) = finish(injector);
    Ok((account, failure.map(Error::from).or(unsent)))
}

/// Sends the remaining packets and returns the account. On an error the account covers the packets
/// sent so far.
pub(crate) fn finish(mut injector: Injector) -> (ledger::Send, Option<Error>) {
    match injector.finish() {
        Ok(account) => (account, None),
        Err(error) => (injector.account(), Some(error.into())),
    }
}

fn send_until(
    injector: &mut Injector,
    traffic: &Traffic,
    rate: Rate,
    limits: &Limits<'_>,
) -> Result<(), strait_capture::Error> {
    let (started, start_ns) = (Instant::now(), clock::monotonic_ns());
    let mut sequence = 0;
    while !limits.reached(sequence, started) {
        if let Some(due_ns) = rate.due_ns(sequence) {
            injector.wait_until(start_ns + due_ns)?;
        }
        // One clock reading for a few packets that are sent in one call.
        let now_ns = clock::realtime_ns();
        let batch = if rate.is_max() { PACKETS_PER_TIMESTAMP } else { 1 };
        for _ in 0..batch.min(limits.count - sequence) {
            let len = traffic.write_frame(sequence, now_ns, injector.buffer()?);
            injector.push(len);
            sequence += 1;
        }
    }
    Ok(())
}

/// Packets that share a time stamp at the maximum rate.
const PACKETS_PER_TIMESTAMP: u64 = 16;

impl From<KindArg> for Kind {
    fn from(kind: KindArg) -> Self {
        match kind {
            KindArg::Udp4 => Self::Udp4,
            KindArg::Tcp4 => Self::Tcp4,
            KindArg::Udp6 => Self::Udp6,
            KindArg::Tcp6 => Self::Tcp6,
        }
    }
}
