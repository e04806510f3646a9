//! `--to URL`: packets and the ledger as Parquet files, or flows to a collector.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use rustix::net::{AddressFamily, SocketType, netdevice, socket};
use strait_capture::owners::Owners;
use strait_capture::{Direction, Frame};
use strait_ledger::{Grouped, Report};
use strait_os::clock;
use strait_packet::summary::link_type;
use strait_table::flows::FlowLimits;
use strait_table::ipfix::{Collector, Exported, Exporter};
use strait_table::messages::{Missed, SelectedMessages};
use strait_table::packets::{Columns, InterfaceNames};
use strait_table::sink::{ExportOptions, Recovered, Summary, TableSink};
use strait_table::{FileNumbers, Options, Packet, ROTATE_BYTES, ROTATE_EVERY, Selected, schema, sensor_name};

use super::owners::OwnerTexts;
use super::target::{self, CollectorUrl, Target};
use super::{Output, Source, print_stderr, print_text};
use crate::Error;
use crate::bulk::{look_up, no_address};
use crate::parse::{bytes, count_u32, seconds};
use crate::sink::Sink;

/// Options of tables.
#[derive(ClapArgs)]
#[group(skip)]
pub(crate) struct Args {
    /// Write tables of packets, flows and the ledger, as Parquet files below a directory: file:DIR;
    /// or send flows to a collector by IPFIX: ipfix://HOST[:PORT] over UDP, ipfix+tcp:// over TCP
    #[arg(long, value_name = "URL", group = "target", value_parser = target::parse)]
    to: Option<Target>,
    /// Name of this sensor in the paths of the tables [default: the name of the host]
    #[arg(long, value_name = "NAME", requires = "to", value_parser = sensor_name)]
    sensor: Option<String>,
    /// Tables to write beside that of the ledger: packets, flows, dns, tls, http, separated by
    /// commas [default: packets,flows]
    #[arg(long, value_name = "LIST", requires = "to", value_parser = Selected::parse)]
    tables: Option<Selected>,
    /// Maximum number of flows at a time, 250 bytes each; beyond it the flow that has been idle for
    /// longest is evicted [default: 1,000,000]
    #[arg(long, value_name = "N", requires = "to", value_parser = count_u32)]
    flows_max: Option<u32>,
    /// Time without a packet after which a flow ends [default: 15s]
    #[arg(long, value_name = "S", requires = "to", value_parser = seconds)]
    flow_idle: Option<Duration>,
    /// Time after which an active flow gets a row and starts again [default: 60s]
    #[arg(long, value_name = "S", requires = "to", value_parser = seconds)]
    flow_active: Option<Duration>,
    /// Columns of the table packets: names, or basic (8), headers (13), standard or all, separated
    /// by commas [default: standard]
    #[arg(long, value_name = "LIST", requires = "to", value_parser = Columns::parse)]
    columns: Option<Columns>,
    /// Add the first N bytes of each packet as the column frame of the table packets
    #[arg(long, value_name = "N", requires = "to", value_parser = frame_bytes)]
    frames: Option<u32>,
}

/// Maximum snaplen.
const FRAME_BYTES_MAX: u32 = 262_144;

fn frame_bytes(text: &str) -> Result<u32, String> {
    let number = u32::try_from(bytes(text)?).ok().filter(|number| (1..=FRAME_BYTES_MAX).contains(number));
    number.ok_or_else(|| format!("give 1 to {FRAME_BYTES_MAX} bytes"))
}

/// Prints the columns of all tables.
pub(crate) fn print_schema() -> Result<(), Error> {
    Ok(print_text(&schema::text())?)
}

impl Args {
    /// Returns the target, if the output is tables.
    pub(super) fn target(&self) -> Option<&Target> {
        self.to.as_ref()
    }

    /// Returns true if flows are exported.
    pub(super) fn exports(&self) -> bool {
        matches!(self.to, Some(Target::Collector(_)))
    }

    /// Refuses options that have no effect on the target.
    pub(super) fn check(&self, rotates: bool) -> Result<(), Error> {
        if !self.exports() {
            return Ok(());
        }
        let flows = Selected { packets: false, flows: true, messages: SelectedMessages::default() };
        for (is_given, option) in [
            (self.sensor.is_some(), "--sensor"),
            (self.tables.is_some_and(|selected| selected != flows), "--tables"),
            (self.columns.is_some(), "--columns"),
            (self.frames.is_some(), "--frames"),
            (rotates, "the rotation of files"),
        ] {
            if is_given {
                return Err(Error::Usage(format!("IPFIX exports flows alone: leave out {option}")));
            }
        }
        Ok(())
    }

    /// Opens the tables of a capture; `limits` are size and age of a file.
    pub(super) fn open(
        &self,
        target: &Target,
        mut source: Source<'_>,
        limits: (Option<u64>, Option<Duration>),
    ) -> Result<Output, Error> {
        let is_file = source.path == "file";
        let names = interface_names(&source, is_file);
        let mut tables = match target {
            Target::Collector(url) => export(&open_exporter(url)?, names, self.flow_limits(), is_file),
            Target::Directory(directory) => {
                let mut options = self.options(directory, limits, is_file)?;
                if source.owners.is_some() {
                    options.columns = options.columns.with_owner();
                }
                TableOutput::open(options, names)?
            }
        };
        report_recovered(tables.sink.recovered());
        tables.start_source(source.link_type, 0);
        tables.owners = source.owners.take().map(OwnerTexts::new);
        Ok(Output::Tables(Box::new(tables)))
    }

    /// Opens the tables of `count` workers that read files.
    pub(super) fn open_several(
        &self,
        target: &Target,
        limits: (Option<u64>, Option<Duration>),
        count: usize,
    ) -> Result<Vec<TableOutput>, Error> {
        let directory = match target {
            Target::Directory(directory) => directory,
            Target::Collector(url) => {
                let (exporter, flows) = (open_exporter(url)?, self.flow_limits().shared_by(count));
                return Ok((0..count).map(|_| export(&exporter, no_names(), flows, true)).collect());
            }
        };
        let mut options = self.options(directory, limits, true)?;
        // All workers together have the memory of one table.
        options.flows = options.flows.shared_by(count);
        let open = |_| TableOutput::open(options.clone(), no_names());
        let tables = (0..count).map(open).collect::<Result<Vec<_>, _>>()?;
        if let Some(first) = tables.first() {
            report_recovered(first.sink.recovered());
        }
        Ok(tables)
    }

    fn options(
        &self,
        directory: &Path,
        limits: (Option<u64>, Option<Duration>),
        waits: bool,
    ) -> Result<Options, Error> {
        Ok(Options {
            directory: directory.to_owned(),
            sensor: self.sensor.clone().map_or_else(host, Ok)?,
            capture: format!("{:016x}", clock::realtime_ns()),
            numbers: FileNumbers::default(),
            selected: self.tables.unwrap_or_default(),
            flows: self.flow_limits(),
            columns: self.columns(),
            frame_bytes: self.frames.unwrap_or_default(),
            rotate_bytes: limits.0.unwrap_or(ROTATE_BYTES),
            rotate_every: limits.1.unwrap_or(ROTATE_EVERY),
            waits,
        })
    }

    fn columns(&self) -> Columns {
        let columns = self.columns.clone().unwrap_or_default();
        if self.frames.is_some() { columns.with_frame() } else { columns }
    }

    fn flow_limits(&self) -> FlowLimits {
        let default = FlowLimits::default();
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        FlowLimits {
            flows_max: self.flows_max.unwrap_or(default.flows_max),
            idle_ns: self.flow_idle.map_or(default.idle_ns, nanoseconds),
            active_ns: self.flow_active.map_or(default.active_ns, nanoseconds),
        }
    }
}

/// Looks up a collector, and opens the export to it.
fn open_exporter(url: &CollectorUrl) -> Result<Arc<Exporter>, Error> {
    let CollectorUrl { name, transport, domain } = url;
    let addresses: Vec<SocketAddr> = look_up(name)?.collect();
    if addresses.is_empty() {
        return Err(no_address(name));
    }
    let collector = Collector { name: name.clone(), addresses, transport: *transport, domain: *domain };
    Ok(Arc::new(Exporter::open(collector)?))
}

/// Returns tables that are exported.
fn export(exporter: &Arc<Exporter>, names: InterfaceNames, flows: FlowLimits, waits: bool) -> TableOutput {
    let options = ExportOptions { exporter: Arc::clone(exporter), flows, waits };
    let sink = TableSink::export(options, names, clock::realtime_ns());
    let place = Place::Collector(Arc::clone(exporter));
    TableOutput { sink, link_type: 0, lane: 0, owners: None, place, is_failing: false }
}

/// Returns the name of the host as the name of the sensor.
fn host() -> Result<String, Error> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    sensor_name(&name).map_err(|reason| {
        Error::Usage(format!("{name} cannot be the name of the sensor: {reason}: use --sensor"))
    })
}

/// Returns the function that names the interfaces of a file, which belong to another machine.
fn no_names() -> InterfaceNames {
    Arc::new(|_| None)
}

/// Returns the function that names interfaces.
fn interface_names(source: &Source<'_>, is_file: bool) -> InterfaceNames {
    if is_file {
        return no_names();
    }
    if source.link_type == u32::from(link_type::LINUX_SLL2) {
        return Arc::new(|index| {
            let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
            netdevice::index_to_name(&socket, index).ok()
        });
    }
    let name = source.interface.to_owned();
    Arc::new(move |_| Some(name.clone()))
}

fn report_recovered(recovered: &Recovered) {
    let Recovered { completed, removed, skipped, skipped_more } = recovered;
    for path in completed {
        print_stderr(format_args!("strait: completed {}, which a killed capture has left\n", path.display()));
    }
    if *removed > 0 {
        let files = if *removed == 1 { "file" } else { "files" };
        print_stderr(format_args!(
            "strait: removed {removed} {files} without rows, which a killed capture has left\n"
        ));
    }
    for (path, reason) in skipped {
        print_stderr(format_args!("strait: left {} alone: {reason}\n", path.display()));
    }
    if *skipped_more > 0 {
        print_stderr(format_args!("strait: left {skipped_more} more entries alone\n"));
    }
}

/// Open tables.
pub(crate) struct TableOutput {
    sink: TableSink,
    link_type: u16,
    /// Number of the first lane of the source.
    lane: u32,
    owners: Option<OwnerTexts>,
    place: Place,
    /// True if a failure of the export was reported.
    is_failing: bool,
}

/// Place of tables.
enum Place {
    Directory(PathBuf),
    Collector(Arc<Exporter>),
}

impl TableOutput {
    fn open(options: Options, names: InterfaceNames) -> Result<Self, Error> {
        let place = Place::Directory(options.directory.clone());
        let sink = TableSink::open(options, names, clock::realtime_ns())?;
        Ok(Self { sink, link_type: 0, lane: 0, owners: None, place, is_failing: false })
    }

    /// Reports the start and the end of a failure of the export.
    fn report_failure(&mut self) {
        let Place::Collector(exporter) = &self.place else { return };
        let failure = exporter.failure();
        if failure.is_some() == self.is_failing {
            return;
        }
        self.is_failing = failure.is_some();
        let collector = exporter.collector();
        match failure {
            Some(error) => print_stderr(format_args!(
                "strait: note: the export to {collector} fails: {error}; flows are lost until it works\n"
            )),
            None => print_stderr(format_args!("strait: note: the export to {collector} works again\n")),
        }
    }

    /// Returns the owners of the packets, if they are reported.
    pub(super) fn owners(&self) -> Option<&Owners> {
        self.owners.as_ref().map(OwnerTexts::owners)
    }

    /// Starts the packets of a source. `lane` is the number of its first lane.
    pub(crate) fn start_source(&mut self, link_type: u32, lane: u32) {
        self.link_type = u16::try_from(link_type).unwrap_or(u16::MAX);
        self.lane = lane;
    }

    /// Ends the flows of a file and adds it to the ledger.
    pub(crate) fn end_file(&mut self, report: &Report) -> Result<(), Error> {
        self.sink.ledger_of_file(report, clock::realtime_ns());
        Ok(self.sink.end_flows()?)
    }

    /// Corrects the ledger of a file that has ended.
    pub(crate) fn correct_file(&mut self, before: &Report, now: &Report) {
        self.sink.correct_ledger(before, now, clock::realtime_ns());
    }

    /// Completes the tables, and returns their totals.
    pub(crate) fn close(self, report: &Report) -> Result<Totals, Error> {
        let summary = self.sink.close(report, clock::realtime_ns())?;
        Ok(match self.place {
            Place::Directory(directory) => {
                Totals { to: format!("below {}", directory.display()), is_export: false, summary }
            }
            Place::Collector(exporter) => {
                Totals { to: format!("to {}", exporter.collector()), is_export: true, summary }
            }
        })
    }
}

impl Sink for TableOutput {
    fn start(&mut self) -> Result<(), Error> {
        Ok(self.sink.start()?)
    }

    #[inline]
    fn take(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        let direction = match frame.direction {
            Direction::In => Some(strait_table::Direction::In),
            Direction::Out => Some(strait_table::Direction::Out),
            Direction::Unknown => None,
        };
        let owner = match &mut self.owners {
            Some(owners) => owners.of(frame)?,
            None => None,
        };
        Ok(self.sink.push(&Packet {
            bytes: frame.bytes,
            link_type: self.link_type,
            wire_len: frame.wire_len,
            time_ns: frame.timestamp_ns,
            interface: frame.interface,
            lane: self.lane + frame.queue,
            direction,
            owner: owner.as_ref(),
        })?)
    }

    fn end_batch(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn idle(&mut self, now: Instant) -> Result<(), Error> {
        self.report_failure();
        Ok(self.sink.flush_due(now)?)
    }

    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn complete(&mut self) -> Result<(), Error> {
        Ok(self.sink.complete()?)
    }

    fn lost(&self) -> u64 {
        self.sink.lost()
    }

    fn lost_in(&self, lane: u32) -> u64 {
        self.sink.lost_in(lane)
    }

    fn records(&self) -> bool {
        true
    }

    fn record(&mut self, report: &Report) {
        self.sink.ledger(report, clock::realtime_ns());
    }

    fn written_bytes(&self) -> Option<u64> {
        Some(self.sink.written_bytes())
    }
}

/// Totals of completed tables, for a line about them.
#[derive(Default)]
pub(crate) struct Totals {
    /// `below DIRECTORY`, or `to COLLECTOR`.
    to: String,
    is_export: bool,
    summary: Summary,
}

impl Totals {
    /// Adds the totals of other tables of the same target.
    pub(crate) fn add(&mut self, other: Self) {
        (self.to, self.is_export) = (other.to, other.is_export);
        self.summary.add(&other.summary);
    }

    /// Returns the line.
    ///
    /// # Errors
    /// Flows were lost on their way to a collector.
    pub(crate) fn line(&self) -> Result<String, Error> {
        let Exported { flows, lost, failure, .. } = &self.summary.exported;
        if *lost == 0 {
            return Ok(self.to_string());
        }
        let (lost, all) = (Grouped(*lost), Grouped(flows + lost));
        let cause = failure.as_deref().unwrap_or("an unknown cause");
        Err(Error::Failed(format!("export {}: {lost} of {all} flows are lost: {cause}", self.to)))
    }
}

/// `wrote 5,000 packets and 20 flows, 40,000 bytes, to 3 files below /srv/lake; 1 flow was evicted`
impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { packets, flows, flows_evicted, messages, missed, .. } = &self.summary;
        if self.is_export {
            let Exported { flows, messages, bytes, .. } = &self.summary.exported;
            let (flows, messages, bytes) = (Grouped(*flows), Grouped(*messages), Grouped(*bytes));
            write!(f, "exported {flows} flows, {bytes} bytes, in {messages} messages")?;
        } else {
            write_rows(f, &self.summary)?;
        }
        write!(f, " {}", self.to)?;
        match flows_evicted {
            0 => {}
            1 => f.write_str("; 1 flow was evicted: give a larger --flows-max")?,
            many => write!(f, "; {} flows were evicted: give a larger --flows-max", Grouped(*many))?,
        }
        match packets.without_hour + flows.without_hour + messages.without_hour {
            0 => {}
            rows => write!(f, "; {} rows have no date and hour, as times jump", Grouped(rows))?,
        }
        write_missed(f, missed)
    }
}

/// `; 3 messages are missing: gaps 2, malformed 1`
fn write_missed(f: &mut fmt::Formatter<'_>, missed: &Missed) -> fmt::Result {
    let causes: Vec<(&str, u64)> = missed.named().into_iter().filter(|(_, count)| *count > 0).collect();
    if causes.is_empty() {
        return Ok(());
    }
    let all = Grouped(causes.iter().map(|(_, count)| count).sum());
    let causes: Vec<String> =
        causes.iter().map(|(cause, count)| format!("{cause} {}", Grouped(*count))).collect();
    write!(f, "; {all} messages are missing: {}", causes.join(", "))
}

fn write_rows(
    f: &mut fmt::Formatter<'_>,
    Summary { packets, flows, messages, ledger, .. }: &Summary,
) -> fmt::Result {
    let rows = match (packets.rows, flows.rows) {
        (0, flows) if flows > 0 => format!("{} flows", Grouped(flows)),
        (packets, 0) => format!("{} packets", Grouped(packets)),
        (packets, flows) => format!("{} packets and {} flows", Grouped(packets), Grouped(flows)),
    };
    let rows =
        if messages.rows == 0 { rows } else { format!("{rows} and {} messages", Grouped(messages.rows)) };
    let bytes = Grouped(packets.bytes + flows.bytes + messages.bytes + ledger.bytes);
    let count = packets.files + flows.files + messages.files + ledger.files;
    let files = if count == 1 { "file" } else { "files" };
    write!(f, "wrote {rows}, {bytes} bytes, to {} {files}", Grouped(count))
}
