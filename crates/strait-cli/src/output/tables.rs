//! `--to URL`: packets and the ledger as Parquet files, or flows to a collector or a broker.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args as ClapArgs;
use strait_capture::Frame;
use strait_capture::owners::Owners;
use strait_ledger::{Grouped, Report};
use strait_os::clock;
use strait_program::broker::Broker;
use strait_table::export::{Exported, Exporter};
use strait_table::flows::FlowLimits;
use strait_table::ipfix::{self, Collector};
use strait_table::messages::{Missed, SelectedMessages};
use strait_table::packets::{Columns, InterfaceNames};
use strait_table::sink::{ExportOptions, Recovered, Summary, TableSink};
use strait_table::{
    FileNumbers, Options, Packet, ROTATE_BYTES, ROTATE_EVERY, Selected, Spool, interface_names, no_names,
    publish, schema, sensor_name,
};

use super::owners::OwnerTexts;
use super::publisher::Publisher;
use super::target::{self, CollectorUrl, Target};
use super::upload::{self, Upload};
use super::{Output, Source, print_stderr, print_text};
use crate::Error;
use crate::bulk::{look_up, no_address};
use crate::parse::{bytes, count_u32, mebibytes, seconds};
use crate::sink::Sink;

/// Options of tables.
#[derive(ClapArgs)]
#[group(skip)]
pub(crate) struct Args {
    /// Write tables of packets, flows and the ledger, as Parquet files below a directory: file:DIR;
    /// or upload these files: s3://BUCKET/PREFIX; or send flows to a collector by IPFIX:
    /// ipfix://HOST:PORT over UDP, ipfix+tcp:// over TCP, port 4739 if none is given; or publish
    /// them as JSON, on a subject of NATS: nats://HOST:PORT/SUBJECT, port 4222 if none is given; or
    /// on a topic of Kafka: kafka://HOST:PORT,HOST:PORT/TOPIC, port 9092; nats+tls:// and
    /// kafka+tls:// require TLS
    #[arg(long, value_name = "URL", group = "target", value_parser = target::parse)]
    to: Option<Target>,
    /// Directory below which files wait for their upload [default: /var/spool/strait]
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
    /// Maximum size of the files that wait for their upload, in MiB, or as in 10GiB; beyond it
    /// packets are lost in the sink [default: 1024]
    #[arg(long, value_name = "SIZE", value_parser = spool_bytes)]
    spool_mib: Option<u64>,
    /// Name of this sensor in the paths of the tables, and in published flows [default: the name of
    /// the host]
    #[arg(long, value_name = "NAME", value_parser = sensor_name)]
    sensor: Option<String>,
    /// Tables to write beside that of the ledger: packets, flows, dns, tls, http, separated by
    /// commas [default: packets,flows]
    #[arg(long, value_name = "LIST", value_parser = Selected::parse)]
    tables: Option<Selected>,
    /// Maximum number of flows at a time, 250 bytes each; beyond it the flow that has been idle for
    /// longest is evicted [default: 1,000,000]
    #[arg(long, value_name = "N", value_parser = count_u32)]
    flows_max: Option<u32>,
    /// Time without a packet after which a flow ends [default: 15s]
    #[arg(long, value_name = "S", value_parser = seconds)]
    flow_idle: Option<Duration>,
    /// Time after which an active flow gets a row and starts again [default: 60s]
    #[arg(long, value_name = "S", value_parser = seconds)]
    flow_active: Option<Duration>,
    /// Columns of the table packets: names, or basic (8), headers (13), standard or all, separated
    /// by commas [default: standard]
    #[arg(long, value_name = "LIST", value_parser = Columns::parse)]
    columns: Option<Columns>,
    /// Add the first N bytes of each packet as the column frame of the table packets
    #[arg(long, value_name = "N", value_parser = frame_bytes)]
    frames: Option<u32>,
}

/// Maximum snaplen.
const FRAME_BYTES_MAX: u32 = 262_144;

fn frame_bytes(text: &str) -> Result<u32, String> {
    let number = u32::try_from(bytes(text)?).ok().filter(|number| (1..=FRAME_BYTES_MAX).contains(number));
    number.ok_or_else(|| format!("give 1 to {FRAME_BYTES_MAX} bytes"))
}

/// Parses the limit of a spool: at least some files of the smallest size.
fn spool_bytes(text: &str) -> Result<u64, String> {
    const LEAST: u64 = 1 << 20;
    mebibytes(text)
        .and_then(|bytes| if bytes >= LEAST { Ok(bytes) } else { Err("give at least 1 MiB".into()) })
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
        matches!(self.to, Some(Target::Collector(_) | Target::Broker(_)))
    }

    /// Refuses options that have no effect on the target.
    pub(super) fn check(&self, rotates: bool) -> Result<(), Error> {
        if !matches!(self.to, Some(Target::Bucket(_))) && (self.spool.is_some() || self.spool_mib.is_some()) {
            return Err(Error::Usage("--spool and --spool-mib are for --to s3://BUCKET".into()));
        }
        if self.to.is_none() {
            return self.check_without_target();
        }
        if !self.exports() {
            return Ok(());
        }
        let flows = Selected { packets: false, flows: true, messages: SelectedMessages::default() };
        for (is_given, option) in [
            (self.sensor.is_some() && matches!(self.to, Some(Target::Collector(_))), "--sensor"),
            (self.tables.is_some_and(|selected| selected != flows), "--tables"),
            (self.columns.is_some(), "--columns"),
            (self.frames.is_some(), "--frames"),
            (rotates, "the rotation of files"),
        ] {
            if is_given {
                return Err(Error::Usage(format!("an export has flows alone: leave out {option}")));
            }
        }
        Ok(())
    }

    /// Refuses options of tables without --to.
    fn check_without_target(&self) -> Result<(), Error> {
        let options = [
            (self.sensor.is_some(), "--sensor"),
            (self.tables.is_some(), "--tables"),
            (self.flows_max.is_some(), "--flows-max"),
            (self.flow_idle.is_some(), "--flow-idle"),
            (self.flow_active.is_some(), "--flow-active"),
            (self.columns.is_some(), "--columns"),
            (self.frames.is_some(), "--frames"),
        ];
        match options.into_iter().find(|(is_given, _)| *is_given) {
            Some((_, option)) => Err(Error::Usage(format!(
                "{option} needs a target of tables: give --to, as in --to file:/srv/lake"
            ))),
            None => Ok(()),
        }
    }

    /// Opens the tables of a capture; `limits` are size and age of a file.
    pub(super) fn open(
        &self,
        target: &Target,
        mut source: Source<'_>,
        limits: (Option<u64>, Option<Duration>),
    ) -> Result<Output, Error> {
        let is_file = source.path == "file";
        let names = names_of(&source, is_file);
        let mut tables = match self.place(target)? {
            Place::Export(exporter) => export(&exporter, names, self.flow_limits(), is_file),
            place => {
                let mut options = self.options(&place, limits, is_file)?;
                if source.owners.is_some() {
                    options.columns = options.columns.with_owner();
                }
                TableOutput::open(options, place, names)?
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
        let place = self.place(target)?;
        // All workers together have the memory of one table.
        let flows = self.flow_limits().shared_by(count);
        if let Place::Export(exporter) = &place {
            return Ok((0..count).map(|_| export(exporter, no_names(), flows, true)).collect());
        }
        let options = Options { flows, ..self.options(&place, limits, true)? };
        let open = |_| TableOutput::open(options.clone(), place.clone(), no_names());
        let tables = (0..count).map(open).collect::<Result<Vec<_>, _>>()?;
        if let Some(first) = tables.first() {
            report_recovered(first.sink.recovered());
        }
        Ok(tables)
    }

    /// Opens the place of the tables.
    fn place(&self, target: &Target) -> Result<Place, Error> {
        Ok(match target {
            Target::Directory(directory) => Place::Directory(directory.clone()),
            Target::Collector(url) => Place::Export(Arc::new(open_collector(url)?)),
            Target::Broker(broker) => Place::Export(Arc::new(self.open_broker(broker)?)),
            Target::Bucket(bucket) => {
                let spool = self.spool.as_deref().unwrap_or(Path::new(upload::SPOOL));
                Place::Bucket(Arc::new(Upload::start(bucket, spool)?))
            }
        })
    }

    fn options(
        &self,
        place: &Place,
        limits: (Option<u64>, Option<Duration>),
        waits: bool,
    ) -> Result<Options, Error> {
        let (directory, spool) = match place {
            Place::Bucket(upload) => {
                let bytes_max = self.spool_mib.unwrap_or(upload::SPOOL_BYTES);
                let spool = Spool::new(upload.directory(), bytes_max, Spool::PATIENCE);
                (upload.directory().to_owned(), Some(Arc::new(spool)))
            }
            Place::Directory(directory) => (directory.clone(), None),
            Place::Export(_) => return Err(Error::Failed("an export has no files".into())),
        };
        Ok(Options {
            directory,
            spool,
            sensor: self.sensor()?,
            capture: new_capture(),
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

    /// Starts the program that publishes on a subject of a broker.
    fn open_broker(&self, broker: &Broker) -> Result<Exporter, Error> {
        let sensor = self.sensor()?;
        let publisher = Publisher::start(broker, &format!("{sensor}-{}", new_capture()))?;
        Ok(publish::open(broker.to_string(), &sensor, Box::new(publisher)))
    }

    fn sensor(&self) -> Result<String, Error> {
        self.sensor.clone().map_or_else(host, Ok)
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
fn open_collector(url: &CollectorUrl) -> Result<Exporter, Error> {
    let CollectorUrl { name, transport, domain } = url;
    let addresses: Vec<SocketAddr> = look_up(name)?.collect();
    if addresses.is_empty() {
        return Err(no_address(name));
    }
    let collector = Collector { name: name.clone(), addresses, transport: *transport, domain: *domain };
    Ok(ipfix::open(collector)?)
}

/// Returns an identifier of this capture.
fn new_capture() -> String {
    format!("{:016x}", clock::realtime_ns())
}

/// Returns tables that are exported.
fn export(exporter: &Arc<Exporter>, names: InterfaceNames, flows: FlowLimits, waits: bool) -> TableOutput {
    let options = ExportOptions { exporter: Arc::clone(exporter), flows, waits };
    let sink = TableSink::export(options, names, clock::realtime_ns());
    let place = Place::Export(Arc::clone(exporter));
    TableOutput { sink, link_type: 0, lane: 0, owners: None, place, is_failing: false }
}

/// Returns the name of the host as the name of the sensor.
fn host() -> Result<String, Error> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    sensor_name(&name).map_err(|reason| {
        Error::Usage(format!("{name} cannot be the name of the sensor: {reason}: use --sensor"))
    })
}

/// Returns the function that names the interfaces of a source.
fn names_of(source: &Source<'_>, is_file: bool) -> InterfaceNames {
    if is_file { no_names() } else { interface_names(source.interface, source.link_type) }
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

/// Open place of tables.
#[derive(Clone)]
enum Place {
    Directory(PathBuf),
    Bucket(Arc<Upload>),
    Export(Arc<Exporter>),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory) => write!(f, "below {}", directory.display()),
            Self::Bucket(upload) => write!(f, "in {}", upload.bucket()),
            Self::Export(exporter) => write!(f, "to {}", exporter.name()),
        }
    }
}

impl TableOutput {
    fn open(options: Options, place: Place, names: InterfaceNames) -> Result<Self, Error> {
        let sink = TableSink::open(options, names, clock::realtime_ns())?;
        Ok(Self { sink, link_type: 0, lane: 0, owners: None, place, is_failing: false })
    }

    /// Reports the start and the end of a failure of the export.
    fn report_failure(&mut self) {
        let Place::Export(exporter) = &self.place else { return };
        let (receiver, failure) = (exporter.name(), exporter.failure());
        let was_failing = std::mem::replace(&mut self.is_failing, failure.is_some());
        match failure {
            Some(error) if !was_failing => print_stderr(format_args!(
                "strait: note: the export to {receiver} fails: {error}; flows are lost until it works\n"
            )),
            None if was_failing => {
                print_stderr(format_args!("strait: note: the export to {receiver} works again\n"));
            }
            _ => {}
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
        Ok(Totals { place: Some(self.place), summary })
    }
}

impl Sink for TableOutput {
    fn start(&mut self) -> Result<(), Error> {
        if let Place::Bucket(upload) = &self.place {
            upload.watch()?;
        }
        Ok(self.sink.start()?)
    }

    #[inline]
    fn take(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
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
            direction: frame.direction.known(),
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
    place: Option<Place>,
    summary: Summary,
}

impl Totals {
    /// Adds the totals of other tables of the same place.
    pub(crate) fn add(&mut self, other: Self) {
        self.place = other.place;
        self.summary.add(&other.summary);
    }

    /// Returns the totals of an export as a JSON object, if this was one.
    pub(crate) fn exported(&self) -> Option<serde_json::Value> {
        let Exported { flows, messages, bytes, lost, repeated, .. } = self.summary.exported;
        matches!(self.place, Some(Place::Export(_))).then(|| {
            serde_json::json!({
                "flows": flows, "messages": messages, "bytes": bytes, "lost": lost, "repeated": repeated,
            })
        })
    }

    /// Waits for the end of an upload, and returns the line.
    ///
    /// # Errors
    /// Flows were lost on their way to a collector or a broker; files are not uploaded.
    pub(crate) fn line(&self) -> Result<String, Error> {
        if let Some(Place::Bucket(upload)) = &self.place {
            upload.finish()?;
        }
        let Exported { flows, lost, failure, .. } = &self.summary.exported;
        let Some(place) = self.place.as_ref().filter(|_| *lost > 0) else { return Ok(self.to_string()) };
        let (lost, all) = (Grouped(*lost), Grouped(flows + lost));
        let cause = failure.as_deref().unwrap_or("an unknown cause");
        let repeated = Repeated(self.summary.exported.repeated);
        Err(Error::Failed(format!("export {place}: {lost} of {all} flows are lost: {cause}{repeated}")))
    }
}

/// `wrote 5,000 packets and 20 flows, 40,000 bytes, to 3 files below /srv/lake; 1 flow was evicted`
impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { packets, flows, flows_evicted, messages, missed, .. } = &self.summary;
        if matches!(self.place, Some(Place::Export(_))) {
            let Exported { flows, messages, bytes, .. } = &self.summary.exported;
            let (flows, messages, bytes) = (Grouped(*flows), Grouped(*messages), Grouped(*bytes));
            write!(f, "exported {flows} flows, {bytes} bytes, in {messages} messages")?;
        } else {
            write_rows(f, &self.summary)?;
        }
        if let Some(place) = &self.place {
            write!(f, " {place}")?;
        }
        write!(f, "{}", Repeated(self.summary.exported.repeated))?;
        match flows_evicted {
            0 => {}
            1 => f.write_str("; 1 flow was evicted: give a larger --flows-max")?,
            many => write!(f, "; {} flows were evicted: give a larger --flows-max", Grouped(*many))?,
        }
        match packets.without_hour + flows.without_hour + messages.without_hour {
            0 => {}
            rows => write!(f, "; {} rows have no date and hour, as times jump", Grouped(rows))?,
        }
        match packets.refused + flows.refused + messages.refused {
            0 => {}
            rows => write!(f, "; {} rows are lost, as the spool was full", Grouped(rows))?,
        }
        write_missed(f, missed)
    }
}

/// `; 20 flows were sent again and may be stored twice`, or nothing.
struct Repeated(u64);

impl fmt::Display for Repeated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            flows => write!(f, "; {} flows were sent again and may be stored twice", Grouped(flows)),
        }
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
