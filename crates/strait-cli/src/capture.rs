//! `strait capture`: packets from an interface or a file, to a file or the terminal, with the ledger at the end.

use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use strait_capture::{Directions, Fanout, Path, Queues, Session, Wait};

use crate::Error;
use crate::input;
use crate::lanes::{self, Until};
use crate::live::LiveLine;
use crate::output::{self, tell};
use crate::parse::{NumberList, seconds};

/// Options of `strait capture`.
#[derive(ClapArgs)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Interface to capture on
    #[arg(short, long, value_name = "IF", required_unless_present = "read", conflicts_with = "read")]
    interface: Option<String>,
    /// Read packets from a pcap or pcapng file, `-` for standard input, instead of an interface
    #[arg(short, long, value_name = "FILE")]
    read: Option<String>,
    /// Kernel path; xdp and xdp-zc take the packets they capture away from the host
    #[arg(short, long, value_enum, default_value_t = PathArg::Auto, conflicts_with = "read")]
    path: PathArg,
    /// How to wait for packets
    #[arg(long, value_enum, default_value_t = WaitArg::Balanced, conflicts_with = "read")]
    wait: WaitArg,
    /// Bytes to keep of each packet
    #[arg(short, long, value_name = "BYTES", default_value_t = 262_144)]
    snaplen: u32,
    /// Stop after this many packets
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Stop after this many seconds
    #[arg(short, long, value_name = "S", value_parser = seconds)]
    duration: Option<Duration>,
    /// Which packets: received, sent or both; xdp sees received ones only
    #[arg(long, value_enum, default_value_t = DirectionArg::Both, conflicts_with = "read")]
    direction: DirectionArg,
    /// With xdp receive queues, one lane each; with packet sockets as many lanes: all, or as in 0,2,5-7 [default: one lane; for xdp all queues]
    #[arg(long, value_name = "LIST", conflicts_with = "read")]
    queues: Option<Queues>,
    /// How packet sockets spread packets over several lanes; hash keeps both directions of a flow together
    #[arg(long, value_enum, default_value_t = FanoutArg::Hash, conflicts_with = "read")]
    fanout: FanoutArg,
    /// CPUs to pin the lanes to, in turn, as in 0,2,5-7
    #[arg(long, value_name = "LIST", conflicts_with = "read")]
    cpus: Option<NumberList>,
    /// Ring memory for each lane, in MiB [default: 8; for xdp 32]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=2048), conflicts_with = "read")]
    ring_mib: Option<u32>,
    /// Do not set the interface to promiscuous mode
    #[arg(long, conflicts_with = "read")]
    no_promisc: bool,
    /// Put AF_XDP's memory on huge pages
    #[arg(long, conflicts_with = "read")]
    huge_pages: bool,
    /// Print nothing for each packet
    #[arg(short, long)]
    quiet: bool,
    /// Print the ledger as one JSON object on standard output, and nothing for each packet
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    output: output::Args,
    /// Filter in libpcap's language, see pcap-filter(7)
    #[arg(trailing_var_arg = true, value_name = "FILTER")]
    filter: Vec<String>,
}

const EXAMPLES: &str = "Examples:
  strait capture -i eth0 tcp port 443
  strait capture -i eth0 -w web.pcapng --rotate-mib 100 --ring-files 10 port 80
  strait capture -i eth0 --path xdp --queues all --cpus 2-5 -w /dev/null
  strait capture -r web.pcapng --json host 10.0.0.1";

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum PathArg {
    /// The best packet-socket path; never takes packets away from the host
    Auto,
    /// recvmmsg on AF_PACKET
    Recv,
    /// TPACKET_V2 ring
    V2,
    /// TPACKET_V3 ring
    V3,
    /// AF_XDP: zero-copy, else native copy, else generic
    Xdp,
    /// AF_XDP zero-copy or nothing
    XdpZc,
    /// AF_XDP by the driver's own program, frames copied, or nothing
    XdpNative,
    /// AF_XDP by the kernel's generic program
    XdpGeneric,
    /// PF_ZEROCOPY: a NIC given to the kernel module of that name
    #[value(name = "zerocopy")]
    ZeroCopy,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum WaitArg {
    /// Wake for each packet
    Latency,
    /// Wake for each packet while the line is quiet, gather them under load
    Balanced,
    /// Never sleep
    Busy,
}

#[derive(Clone, Copy, ValueEnum)]
enum DirectionArg {
    /// Received packets
    In,
    /// Sent packets
    Out,
    /// Both
    Both,
}

#[derive(Clone, Copy, ValueEnum)]
enum FanoutArg {
    /// By flow
    Hash,
    /// By receiving CPU
    Cpu,
    /// By receive queue
    Queue,
    /// The first lane until its ring is full, then the next
    Rollover,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    args.check()?;
    let terminated = strait_sys::process::on_termination()?;
    if !input::has_come(args.read.as_deref(), terminated)? {
        return Ok(());
    }
    let session = args.open()?;
    for note in session.notes() {
        tell(format_args!("strait: {note}\n"));
    }
    let interface = args.interface.as_deref().or(args.read.as_deref()).unwrap_or_default();
    let mut output = args.output.open(&output::Source {
        interface,
        filter: &args.filter.join(" "),
        snaplen: args.snaplen,
        link_type: session.link_type(),
        silent: args.quiet || args.json,
    })?;
    args.drop_privileges()?;
    let live = if output.prints_packets() { None } else { LiveLine::on_terminal() };
    let until = Until { count: args.count, duration: args.duration, terminated };
    let (report, failure) = lanes::run(session, &mut output, &until, live);
    let closed = output.close(&report);
    print_report(&report, args.json)?;
    match failure {
        Some(error) if !output::is_reader_gone(&error) => Err(error),
        _ => closed,
    }
}

/// Whether a word of a filter looks like an option; no filter has such a word.
fn is_option(word: &str) -> bool {
    word.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c == '-' || c.is_ascii_alphabetic()))
}

fn print_report(report: &strait_ledger::Report, json: bool) -> Result<(), Error> {
    if json {
        let text = serde_json::to_string(report).map_err(|error| Error::Failed(error.to_string()))?;
        return output::print_line(&text);
    }
    tell(format_args!("{report}"));
    Ok(())
}

impl Args {
    /// Refuses what contradicts itself, before anything is opened.
    fn check(&self) -> Result<(), Error> {
        self.output.check(self.json, self.read.as_deref())?;
        if self.huge_pages && !matches!(self.path, PathArg::Xdp | PathArg::XdpZc) {
            return Err(Error::Usage("--huge-pages is for --path xdp".into()));
        }
        match self.filter.iter().find(|word| is_option(word)) {
            Some(word) => Err(Error::Usage(format!("{word} stands in the filter: options go before it"))),
            None => Ok(()),
        }
    }

    fn open(&self) -> Result<Session, Error> {
        let builder =
            Session::builder(self.interface.as_deref().or(self.read.as_deref()).unwrap_or_default())
                .path(self.path.into())
                .wait(self.wait.into())
                .snaplen(self.snaplen)
                .directions(self.direction.into())
                .queues(self.queues.clone().unwrap_or_default())
                .fanout(self.fanout.into())
                .cpus(self.cpus.clone().map_or_else(Vec::new, |list| list.0))
                .promiscuous(!self.no_promisc)
                .huge_pages(self.huge_pages)
                // Who only counts packets asks for no times.
                .timestamps(!self.output.counts_only(self.quiet || self.json))
                .filter(self.filter.join(" "));
        let builder = match self.ring_mib {
            Some(mib) => builder.ring((mib as usize) << 20),
            None => builder,
        };
        Ok(if self.read.is_some() { builder.open_file()? } else { builder.open()? })
    }

    /// Everything is open: from here on the program needs no privilege, but to make the files of a rotation.
    fn drop_privileges(&self) -> Result<(), Error> {
        Ok(strait_sys::process::drop_capabilities(self.output.rotates())?)
    }
}

impl PathArg {
    /// As users spell it.
    pub(crate) fn name(self) -> String {
        spelled(&self)
    }
}

impl WaitArg {
    /// As users spell it.
    pub(crate) fn name(self) -> String {
        spelled(&self)
    }
}

fn spelled(value: &impl ValueEnum) -> String {
    value.to_possible_value().expect("no value is skipped").get_name().to_owned()
}

impl From<PathArg> for Path {
    fn from(path: PathArg) -> Self {
        match path {
            PathArg::Auto => Self::Auto,
            PathArg::Recv => Self::Recv,
            PathArg::V2 => Self::V2,
            PathArg::V3 => Self::V3,
            PathArg::Xdp => Self::Xdp,
            PathArg::XdpZc => Self::XdpZeroCopy,
            PathArg::XdpNative => Self::XdpNative,
            PathArg::XdpGeneric => Self::XdpGeneric,
            PathArg::ZeroCopy => Self::ZeroCopy,
        }
    }
}

impl From<WaitArg> for Wait {
    fn from(wait: WaitArg) -> Self {
        match wait {
            WaitArg::Latency => Self::Latency,
            WaitArg::Balanced => Self::Balanced,
            WaitArg::Busy => Self::Busy,
        }
    }
}

impl From<DirectionArg> for Directions {
    fn from(direction: DirectionArg) -> Self {
        match direction {
            DirectionArg::In => Self::In,
            DirectionArg::Out => Self::Out,
            DirectionArg::Both => Self::Both,
        }
    }
}

impl From<FanoutArg> for Fanout {
    fn from(fanout: FanoutArg) -> Self {
        match fanout {
            FanoutArg::Hash => Self::Hash,
            FanoutArg::Cpu => Self::Cpu,
            FanoutArg::Queue => Self::Queue,
            FanoutArg::Rollover => Self::Rollover,
        }
    }
}
