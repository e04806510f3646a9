//! `strait capture`: captures packets from an interface or a file to a file or the terminal, and
//! prints the ledger at the end.

mod files;
mod filter_file;
pub(crate) mod interfaces;
mod opening;
pub(crate) mod reload;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use serde::Serialize;
use strait_capture::extra::ExtraBlocks;
use strait_capture::owners::Select;
use strait_capture::{Directions, Fanout, Path, Queues, Session, Wait};
use strait_ledger::{Report, TargetReport};
use strait_program::{Failure as _, Streams};

use crate::Error;
use crate::input;
use crate::lanes::{self, Inputs, Limits};
use crate::live::LiveLine;
use crate::metrics::Metrics;
use crate::namespace;
use crate::output::{self, Closed, ExportedTotals, SchemaForm, WatchedTargets, print_stderr};
use crate::parse::{NumberList, bytes, count, kibibytes, mebibytes, path, seconds, wait};
use crate::toolbar::{self, Toolbar};

use self::filter_file::FilterFile;
pub(crate) use self::interfaces::ChosenInterface;
pub(crate) use self::opening::link_name;
use self::reload::{Reloading, Reloads};

/// Options of `strait capture`.
#[derive(ClapArgs)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Interface to capture on, or any for all interfaces; repeat it for several, at most 32
    /// [default: the interface of the default route, else the first that is up]
    #[arg(short, long, value_name = "IF", conflicts_with = "read")]
    interface: Vec<String>,
    #[command(flatten)]
    namespace: namespace::Args,
    /// List the interfaces and the paths that can capture on each
    #[arg(short = 'D', long, conflicts_with_all = ["interface", "read"])]
    list_interfaces: bool,
    /// Print the tables that --to writes, and their columns, or the definition of the Protocol
    /// Buffers that it publishes
    #[arg(
        long,
        value_name = "FORM",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "text",
        conflicts_with_all = ["interface", "read", "list_interfaces"]
    )]
    schema: Option<SchemaForm>,
    /// Read packets from a pcap or pcapng file, also compressed by zstd, gzip or lz4, `-` for
    /// standard input, instead of an interface; with --to also from several files: repeat it, or
    /// give a quoted pattern, as in 'day/*.pcap'
    #[arg(short, long, value_name = "FILE")]
    read: Vec<String>,
    /// Stop after this many packets
    #[arg(short, long, value_name = "N", value_parser = count)]
    count: Option<u64>,
    /// Stop after this many seconds, or as in 500ms or 5m
    #[arg(short, long, value_name = "S", value_parser = seconds)]
    duration: Option<Duration>,
    /// Maximum bytes to store of each packet; 0 is the default
    #[arg(short, long, value_name = "BYTES", default_value_t = SNAPLEN, value_parser = snaplen)]
    snaplen: u32,
    /// Direction of packets: received, sent or both; xdp and zerocopy capture received packets only
    #[arg(short = 'Q', long, value_enum, default_value_t = DirectionArg::Both, conflicts_with = "read")]
    direction: DirectionArg,
    /// Do not set the interface to promiscuous mode: tcpdump's -p
    #[arg(long, conflicts_with = "read")]
    no_promisc: bool,
    /// Read the filter from this file; of an interface, SIGHUP reads it again
    #[arg(short = 'F', long, value_name = "FILE", conflicts_with = "filter")]
    filter_file: Option<PathBuf>,
    /// Print the ledger as one JSON object on standard output, and no packets
    #[arg(long)]
    json: bool,
    /// Serve the counters to Prometheus at http://ADDR/metrics, updated twice a second; without an
    /// address the port is on 127.0.0.1; port 0 selects a free port
    #[arg(long, value_name = "ADDR", value_parser = crate::parse::local, conflicts_with = "read")]
    metrics: Option<SocketAddr>,
    /// Report the process, user and cgroup of each packet's socket, and the container or pod; uses
    /// the tap
    #[arg(long, conflicts_with = "read")]
    owner: bool,
    /// Capture the packets of one process, by its number, or of all with this name
    #[arg(long, value_name = "NAME|PID", conflicts_with = "read")]
    process: Option<String>,
    /// Capture the packets of a running container, by its name, its identifier or the start of it
    #[arg(long, value_name = "ID|NAME", conflicts_with_all = ["read", "process"])]
    container: Option<String>,
    /// Print nothing but a failure on standard error, for strait extcap
    #[arg(long, hide = true)]
    no_notices: bool,
    #[command(flatten)]
    toolbar: toolbar::Args,
    #[command(flatten, next_help_heading = "Kernel path")]
    kernel: KernelArgs,
    #[command(flatten, next_help_heading = "Files")]
    output: output::Args,
    #[command(flatten, next_help_heading = "Lines")]
    lines: output::LineArgs,
    /// Filter in libpcap's language, see pcap-filter(7)
    #[arg(trailing_var_arg = true, value_name = "FILTER")]
    filter: Vec<String>,
}

/// Options of the kernel path.
#[derive(ClapArgs)]
// clap's group for this struct is not used.
#[group(skip)]
struct KernelArgs {
    /// Kernel path; with xdp and xdp-zc the host does not receive the captured packets
    #[arg(short, long, value_parser = path(), default_value = Path::Auto.name(), conflicts_with = "read")]
    path: Path,
    /// How to wait for packets
    #[arg(long, value_parser = wait(), default_value = Wait::Balanced.name(), conflicts_with = "read")]
    wait: Wait,
    /// Receive queues to read with xdp and zerocopy, one lane each; with packet sockets, the number
    /// of listed queues is the number of lanes: all, or as in 0,2,5-7 [default: one lane; for xdp
    /// and zerocopy all queues]
    #[arg(long, value_name = "LIST", conflicts_with = "read")]
    queues: Option<Queues>,
    /// How packet sockets spread packets over several lanes; hash keeps both directions of a flow
    /// together [default: hash]
    #[arg(long, value_enum, conflicts_with = "read")]
    fanout: Option<FanoutArg>,
    /// CPUs to pin the lanes to, in turn, as in 0,2,5-7
    #[arg(long, value_name = "LIST", conflicts_with = "read")]
    cpus: Option<NumberList>,
    /// Ring memory for each lane, in MiB or as in 512KiB or 1GiB [default: 8; for recv 16; for v2
    /// 136 if the NIC merges segments; for xdp 32, or 64 for one queue]
    #[arg(long, value_name = "SIZE", value_parser = ring_mebibytes, conflicts_with = "read")]
    ring_mib: Option<usize>,
    /// Ring memory for each lane, in KiB: tcpdump's -B
    #[arg(short = 'B', long, value_name = "KIB", value_parser = ring_kibibytes, conflicts_with_all = ["read", "ring_mib"])]
    buffer_size: Option<usize>,
    /// Put AF_XDP's memory on huge pages
    #[arg(long, conflicts_with = "read")]
    huge_pages: bool,
}

/// Default snaplen, which is libpcap's maximum.
const SNAPLEN: u32 = 262_144;

/// Parses a number of bytes. The session checks the maximum.
fn snaplen(text: &str) -> Result<u32, String> {
    u32::try_from(bytes(text)?).map_err(|_| format!("it is too large: give at most {SNAPLEN}"))
}

fn ring_mebibytes(text: &str) -> Result<usize, String> {
    ring(mebibytes(text)?)
}

fn ring_kibibytes(text: &str) -> Result<usize, String> {
    ring(kibibytes(text)?)
}

/// Parses a ring size of at most 2 GiB. The session checks the minimum.
fn ring(bytes: u64) -> Result<usize, String> {
    match bytes {
        1..=0x8000_0000 => Ok(bytes as usize),
        _ => Err("give more than 0 and at most 2 GiB".into()),
    }
}

const EXAMPLES: &str = "Examples:
  strait capture -i eth0 tcp port 443
  strait capture -nnvvXs0 -i any icmp
  strait capture -i eth0 -w web.pcapng --rotate-mib 100 --ring-files 10 port 80
  strait capture -i eth0 --path xdp --queues all --cpus 0-3 -w /dev/null
  strait capture -i eth0 --to file:/srv/lake --sensor fr1
  strait capture -i eth0 --to file:/srv/lake --to kafka://192.0.2.1/flows
  strait capture -i eth0 -F eth0.filter --to-file eth0.targets --sensor fr1
  strait capture -r 'day/*.pcapng' --to file:/srv/lake --sensor fr1
  strait capture -r web.pcapng --json host 10.0.0.1";

#[derive(Clone, Copy, ValueEnum)]
enum DirectionArg {
    /// Received packets
    In,
    /// Sent packets
    Out,
    /// Both
    #[value(alias = "inout")]
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
pub(crate) fn run(args: &mut Args) -> Result<(), Error> {
    if args.list_interfaces {
        return args.namespace.run(|| interfaces::list(args.json));
    }
    if let Some(form) = args.schema {
        return output::print_schema(form);
    }
    if args.no_notices {
        output::omit_notices();
    }
    let toolbar = args.toolbar.open()?;
    let reloads = args.reloads()?;
    args.output.read_targets()?;
    let args = &*args;
    let files = input::files(&args.read)?;
    args.check(&files)?;
    if args.output.is_tables() && files::are_for_workers(&files) {
        return files::run(args, &files);
    }
    let file = files.first().map(String::as_str);
    if !input::wait_until_readable(file)? {
        return Ok(());
    }
    let filter = args.filter()?;
    let extras = (file.is_some() && args.output.is_file()).then(ExtraBlocks::default);
    let (sessions, chosen, names) = args.open_sources((file, extras.clone()), &filter)?;
    // Only after open(): libpcap's compiler cannot check a flag, so until then a signal must end
    // the process by its default action. The kernel then releases rings and programs.
    let terminated = match &reloads {
        Some(_) => strait_os::process::on_termination_except_hangup()?,
        None => strait_os::process::on_termination()?,
    };
    let (inputs, lanes) = Inputs::new(sessions);
    let mut output = args.output.open(output::Source {
        inputs: &opening::sources(&inputs, chosen.as_deref()),
        names,
        filter: &filter,
        snaplen: args.snaplen(),
        path: inputs.each_session(Session::path).first().copied().unwrap_or_default(),
        silent: args.is_silent(),
        lines: args.lines,
        owners: inputs.each_session(Session::owners).into_iter().flatten().next(),
        extras,
    })?;
    let metrics = Metrics::open(args.metrics)?;
    let reloading = args.reloading(&inputs, output.watched_targets(), reloads)?;
    args.drop_privileges()?;
    args.announce(&inputs, chosen.as_deref());
    metrics.iter().for_each(Metrics::announce);
    let live = live_line(toolbar, &inputs, &output);
    let limits =
        Limits { count: args.count, duration: args.time_limit(), terminated, reloading: reloading.as_ref() };
    let (report, failure) = lanes::run((inputs, lanes), &mut output, &limits, live, metrics.as_ref());
    if let Some(losses) = output.owner_losses() {
        print_stderr(format_args!("strait: note: {losses}\n"));
    }
    let owners = output.owners();
    let closed = output.close(&report);
    print_report(&JsonReport::new(&report, owners, &closed.exported), args.json)?;
    closed.end(failure, args.json)
}

/// Returns the place for the ledger of the running capture: a toolbar, or a terminal without lines
/// of packets.
fn live_line(toolbar: Option<Toolbar>, inputs: &Inputs, output: &output::Output) -> Option<LiveLine> {
    let Some(mut toolbar) = toolbar else {
        return if output.prints_packets() { None } else { LiveLine::on_terminal() };
    };
    let name =
        |session: &Session| format!("{}: path {} ({})", session.interface(), session.path(), session.mode());
    toolbar.log(&inputs.each_session(name).join(", "));
    Some(LiveLine::on_toolbar(toolbar))
}

impl Closed {
    /// Prints the line about the files, and returns the failure of the capture, else that of the
    /// output.
    fn end(self, failure: Option<Error>, json: bool) -> Result<(), Error> {
        let has_failed = failure.is_some() || self.failure.is_some();
        // With --json only after a failure, to name the remaining files.
        if let Some(files) = self.line.filter(|_| !json || has_failed) {
            print_stderr(format_args!("{files}\n"));
        }
        let failure = failure.filter(|error| !error.is_reader_gone()).or(self.failure);
        failure.map_or(Ok(()), Err)
    }
}

/// Returns true if a word of a filter looks like an option. In an expression of a filter a minus
/// sign can be a word of its own, as in `ip[2:2] - len`.
fn is_option(word: &str) -> bool {
    word.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c == '-' || c.is_ascii_alphabetic()))
}

fn print_report(object: &JsonReport<'_>, json: bool) -> Result<(), Error> {
    if json {
        let text = serde_json::to_string(object).map_err(|error| Error::Failed(error.to_string()))?;
        return Ok(output::print_line(&text)?);
    }
    print_stderr(format_args!("{}", object.report));
    Ok(())
}

/// Object of `--json`.
#[derive(Serialize)]
struct JsonReport<'a> {
    #[serde(flatten)]
    report: &'a Report,
    /// Ledger of each of several interfaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Report>,
    /// Packets by owner, with `--owner` and without `-w`.
    #[serde(skip_serializing_if = "Option::is_none")]
    owners: Option<serde_json::Value>,
    /// Totals of all exports.
    #[serde(skip_serializing_if = "Option::is_none")]
    exported: Option<ExportedTotals>,
    /// Ledger of each target, with `--to`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    targets: Vec<JsonTarget<'a>>,
}

/// Target in the object of `--json`.
#[derive(Serialize)]
struct JsonTarget<'a> {
    #[serde(flatten)]
    ledger: &'a TargetReport,
    /// Totals of an export.
    #[serde(skip_serializing_if = "Option::is_none")]
    exported: Option<ExportedTotals>,
}

impl<'a> JsonReport<'a> {
    fn new(
        report: &'a Report,
        owners: Option<serde_json::Value>,
        exported: &[Option<ExportedTotals>],
    ) -> Self {
        let totals = exported.iter().copied().chain(std::iter::repeat(None));
        let target = |(ledger, exported)| JsonTarget { ledger, exported };
        let targets = report.targets.iter().zip(totals).map(target).collect();
        let interfaces = if report.parts.is_empty() { Vec::new() } else { report.interfaces() };
        Self { report, interfaces, owners, exported: ExportedTotals::sum(exported), targets }
    }
}

impl Args {
    /// Returns the standard streams that carry data.
    pub(crate) fn streams(&self) -> Streams {
        let prints = self.list_interfaces || self.schema.is_some() || self.json;
        Streams {
            input: self.read.iter().any(|file| file == "-"),
            output: prints || self.output.uses_stdout(self.is_silent()),
        }
    }

    /// Refuses options that contradict each other, before anything is opened.
    fn check(&self, files: &[String]) -> Result<(), Error> {
        let usage = |text: String| Err(Error::Usage(text));
        self.output.check(self.json, files)?;
        if self.owner && self.output.exports() {
            return usage("an export has flows alone: leave out --owner".into());
        }
        if files.len() > 1 && !self.output.is_tables() {
            let count = files.len();
            return usage(format!("-r names {count} files: give one, or --to to write tables of all"));
        }
        if files.len() > 1 && files.iter().any(|file| file == "-") {
            return usage("-r - cannot be combined with other files: read it alone".into());
        }
        let path = self.kernel.path;
        if self.kernel.huge_pages && !matches!(path, Path::Xdp | Path::XdpZeroCopy) {
            return usage("--huge-pages is for --path xdp".into());
        }
        if self.kernel.fanout.is_some() && path.takes_frames() {
            let path = path.name();
            return usage(format!(
                "--fanout works with packet sockets only, and --path {path} uses AF_XDP or PF_ZEROCOPY: the NIC spreads \
                 packets over its queues (ethtool -X); omit --fanout, or use --path v3"
            ));
        }
        if self.kernel.fanout.is_some() && path == Path::Tap {
            let reason = "a lane of the tap has the packets of its CPUs";
            return usage(format!(
                "--fanout works with packet sockets only: {reason}; omit --fanout, or use --path v3"
            ));
        }
        let option = self.filter.iter().position(|word| is_option(word));
        let words = &self.filter[..option.unwrap_or(self.filter.len())];
        if let Some(name) = input::file_in_filter(words) {
            return usage(if self.read.is_empty() {
                format!("{name} is a file, not a filter: use -r {name}")
            } else {
                format!(
                    "{name} is a file, not a filter: repeat -r, or quote the pattern, as in -r 'day/*.pcap'"
                )
            });
        }
        if let Some(word) = option.map(|at| &self.filter[at]) {
            return usage(format!("{word}: options must precede the filter"));
        }
        self.check_interfaces()
    }

    fn filter(&self) -> Result<String, Error> {
        let Some(file) = &self.filter_file else { return Ok(self.filter.join(" ")) };
        filter_file::read(file)
    }

    /// Handles SIGHUP from now on in a capture on interfaces with a file that is read again. A
    /// service manager may send it at any time after the program was started.
    fn reloads(&self) -> Result<Option<Reloads>, Error> {
        let has_file = self.filter_file.is_some() || self.output.has_target_file();
        let is_watched = has_file && self.read.is_empty();
        is_watched.then(Reloads::on_hangup).transpose()
    }

    /// Returns the files that SIGHUP reads again.
    fn reloading(
        &self,
        inputs: &Inputs,
        targets: Option<WatchedTargets>,
        signal: Option<Reloads>,
    ) -> Result<Option<Reloading>, Error> {
        let Some(signal) = signal else { return Ok(None) };
        let interfaces = inputs.each_session(|session| session.interface().to_owned());
        let open = |file: &PathBuf| self.namespace.run(|| FilterFile::open(file, &interfaces));
        let filter = self.filter_file.as_ref().map(open).transpose()?;
        Ok(Some(Reloading::new(signal, filter, targets)))
    }

    /// Returns true if no packet is printed.
    fn is_silent(&self) -> bool {
        self.lines.quiet || self.json
    }

    /// Returns the snaplen. Like in tcpdump, 0 stores whole packets.
    fn snaplen(&self) -> u32 {
        if self.snaplen == 0 { SNAPLEN } else { self.snaplen }
    }

    /// Returns the time limit of the capture. Like in tcpdump, -G with -W and without -C ends after
    /// that number of files.
    fn time_limit(&self) -> Option<Duration> {
        let limit = self.output.files_limit().filter(|_| self.read.is_empty());
        let all_files = limit.map(|(files, period)| period.saturating_mul(files));
        [self.duration, all_files].into_iter().flatten().min()
    }

    /// Returns the owners whose packets are captured.
    fn select(&self) -> Option<Select> {
        let process = self.process.clone().map(Select::Process);
        process.or(self.container.clone().map(Select::Container))
    }

    /// Drops all capabilities after sockets and files are open, except those for creating and
    /// renaming files.
    fn drop_privileges(&self) -> Result<(), Error> {
        Ok(strait_os::process::drop_capabilities_except(&self.output.capabilities())?)
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
