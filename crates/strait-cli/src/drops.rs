//! `strait drops`: packets that the kernel dropped, by reason, protocol, interface and function.
//!
//! Once per interval the counts of the [`Monitor`] are compared with the previous ones ([`table`])
//! and printed. Dropped packets are read more often, printed as lines and written to a file
//! ([`packets`]). Nothing is captured and nothing is changed.

mod packets;
mod table;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use strait_capture::drops::{Monitor, Options, SNAPLEN_MAX};
use strait_os::interface::Interface;
use strait_program::Failure as _;

use self::packets::Packets;
use self::table::Table;
use crate::parse::seconds;
use crate::{Error, namespace, output};

/// Interval at which packets are read and signals are checked.
const POLL: Duration = Duration::from_millis(50);

/// Options of `strait drops`.
#[derive(ClapArgs)]
#[command(
    after_help = "Each drop has a reason of the kernel (enum skb_drop_reason, Linux 5.17). NOT_SPECIFIED is a drop for which the kernel
states no reason, also for packets that a closed socket had not read.

Examples:
  strait drops
  strait drops -i eth0 --packets
  strait drops --all-namespaces --json --interval 10
  strait drops -w drops.pcapng --duration 60"
)]
pub(crate) struct Args {
    /// Count only packets of this interface
    #[arg(short, long, value_name = "IF", conflicts_with = "all_namespaces")]
    interface: Option<String>,
    #[command(flatten)]
    namespace: namespace::Args,
    /// Count packets of all network namespaces
    #[arg(long)]
    all_namespaces: bool,
    /// Seconds between reports
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "1")]
    interval: Duration,
    /// Stop after this many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    duration: Option<Duration>,
    /// Print one JSON object per interval instead
    #[arg(long)]
    json: bool,
    /// Also print a line for each dropped packet
    #[arg(long, conflicts_with = "json")]
    packets: bool,
    /// Maximum lines of packets per interval
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    lines: u64,
    /// Write the dropped packets to a pcapng file, with the reason as comment; - is standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<String>,
    /// Maximum bytes of a packet; only the linear part of its buffer is copied
    #[arg(short, long, value_name = "BYTES", default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(SNAPLEN_MAX)))]
    snaplen: u32,
}

impl Args {
    /// Returns true if standard output has the file, and so nothing else.
    fn writes_stdout(&self) -> bool {
        self.write.as_deref() == Some("-")
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    if args.writes_stdout() && (args.json || args.packets) {
        return Err(Error::Usage("-w - uses standard output: give -w a file".into()));
    }
    args.namespace.enter()?;
    let interface = args.interface.as_deref().map(Interface::find).transpose()?;
    let options = Options {
        all_namespaces: args.all_namespaces,
        ifindex: interface.map(|interface| interface.index),
        snaplen: (args.packets || args.write.is_some()).then_some(args.snaplen),
    };
    let mut monitor = Monitor::open(&options)?;
    let mut packets = Packets::open(args)?;
    let terminated = strait_os::process::on_termination()?;
    // Dropped before the first packet is parsed, and before another thread starts.
    strait_os::process::drop_capabilities(args.write.is_some())?;
    packets.start()?;
    if monitor.names().lacks_functions() {
        output::print_stderr(format_args!(
            "strait: functions are shown as addresses: their names need CAP_SYSLOG, or kernel.kptr_restrict=0\n"
        ));
    }
    let mut table = Table::new(monitor.names().clone(), monitor.namespace());
    let watched = watch(args, &mut monitor, &mut table, &mut packets, terminated);
    let headerless = packets.headerless();
    let closed = packets.close();
    let totals = table.totals(monitor.missed()?, headerless);
    if !args.json {
        output::print_stderr(format_args!("{totals}\n"));
    }
    watched.and(closed).or_else(|error| if error.is_reader_gone() { Ok(()) } else { Err(error) })
}

/// Reports until a signal or the end of the duration. The last report is of the time since the one
/// before it.
fn watch(
    args: &Args,
    monitor: &mut Monitor,
    table: &mut Table,
    packets: &mut Packets,
    terminated: &AtomicBool,
) -> Result<(), Error> {
    let end = args.duration.and_then(|duration| Instant::now().checked_add(duration));
    let mut began = Instant::now();
    loop {
        let now = Instant::now();
        let is_over = terminated.load(Ordering::Relaxed) || end.is_some_and(|end| now >= end);
        if is_over {
            // Later drops would be counted, but not be in the file.
            monitor.stop();
        }
        let has_more = packets.take(monitor, table, is_over)?;
        if is_over || now.duration_since(began) >= args.interval {
            table.take(monitor, now.duration_since(began))?;
            began = now;
            report(args, monitor, table, packets)?;
        }
        if is_over {
            return Ok(());
        }
        if !has_more {
            strait_os::wait::sleep(POLL.min(args.interval.saturating_sub(began.elapsed())));
        }
    }
}

fn report(args: &Args, monitor: &Monitor, table: &mut Table, packets: &mut Packets) -> Result<(), Error> {
    if let Some(hidden) = packets.take_hidden() {
        output::print_stderr(format_args!("strait: {hidden} packets without a line: see --lines\n"));
    }
    if args.json {
        return Ok(output::print_line(&table.json(monitor.missed()?, packets.headerless()).to_string())?);
    }
    let text = table.text();
    if text.is_empty() || args.writes_stdout() { Ok(()) } else { Ok(output::print_text(&text)?) }
}
