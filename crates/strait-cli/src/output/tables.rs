//! `--to URL`: packets and the ledger as Parquet files, or flows to a collector or a broker.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use strait_os::clock;
use strait_packet::summary::link_type;
use strait_program::broker::{Broker, Format};
use strait_program::bucket::Bucket;
use strait_table::export::Exporter;
use strait_table::flows::FlowLimits;
use strait_table::ipfix::{self, Collector};
use strait_table::messages::SelectedMessages;
use strait_table::packets::{Columns, InterfaceNames};
use strait_table::sink::Recovered;
use strait_table::{
    FileNumbers, Options, ROTATE_BYTES, ROTATE_EVERY, Selected, interface_names, listed_names,
    looked_up_names, no_names, publish, schema, sensor_name,
};

use super::change::{Change, Shared, check_removed};
use super::place::Place;
use super::publisher::Publisher;
use super::source::Input;
use super::table_output::TableOutput;
use super::target::{self, CollectorUrl, Target};
use super::target_file::{self, WatchedTargets};
use super::targets::Targets;
use super::upload::{self, Upload};
use super::{Output, Source, print_stderr, print_text};
use crate::Error;
use crate::bulk::{look_up, no_address};
use crate::parse::{bytes, count_u32, mebibytes, seconds};

/// Options of tables.
#[derive(Clone, ClapArgs)]
#[group(skip)]
pub(crate) struct Args {
    /// Write tables of packets, flows and the ledger, as Parquet files below a directory: file:DIR;
    /// or upload these files: s3://BUCKET/PREFIX; or send flows to a collector by IPFIX:
    /// ipfix://HOST:PORT over UDP, ipfix+tcp:// over TCP, port 4739 if none is given; or publish
    /// them on a subject of NATS: nats://HOST:PORT/SUBJECT, port 4222 if none is given; or on a
    /// topic of Kafka: kafka://HOST:PORT,HOST:PORT/TOPIC, port 9092; nats+tls:// and kafka+tls://
    /// require TLS. Their messages are JSON, or with ?format=arrow streams of Arrow IPC, or with
    /// ?format=protobuf Protocol Buffers. Repeat it for several targets, at most 8: each has a
    /// queue and losses of its own
    #[arg(long, value_name = "URL", group = "target", value_parser = target::parse)]
    to: Vec<Target>,
    /// Read the targets from this file: one URL as for --to a line; lines that begin with # are
    /// comments. Of an interface, SIGHUP reads it again: targets that stay go on, new ones get the
    /// later packets, and removed ones are completed. Only you and root may be able to write to the
    /// file and to its directory
    #[arg(long, value_name = "FILE", group = "target")]
    to_file: Option<PathBuf>,
    /// Targets of the file.
    #[arg(skip)]
    of_file: Vec<Target>,
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

/// Form of the printed columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaForm {
    /// Columns of all tables
    Text,
    /// Message of a flow for compilers of Protocol Buffers
    Proto,
}

/// Prints the columns of tables.
pub(crate) fn print_schema(form: SchemaForm) -> Result<(), Error> {
    let text = match form {
        SchemaForm::Text => schema::text(),
        SchemaForm::Proto => publish::definition(),
    };
    Ok(print_text(&text)?)
}

impl Args {
    /// Reads the file with the targets, if there is one.
    pub(super) fn read_targets(&mut self) -> Result<(), Error> {
        self.of_file = self.to_file.as_deref().map_or(Ok(Vec::new()), target_file::read)?;
        Ok(())
    }

    /// Returns the targets that the user gives.
    fn targets(&self) -> &[Target] {
        if self.to_file.is_some() { &self.of_file } else { &self.to }
    }

    /// Returns true if the output is tables.
    pub(super) fn has_target(&self) -> bool {
        !self.to.is_empty() || self.to_file.is_some()
    }

    /// Returns true if the targets are those of a file.
    pub(super) fn has_target_file(&self) -> bool {
        self.to_file.is_some()
    }

    /// Returns true if flows are exported, and no tables written.
    pub(super) fn exports(&self) -> bool {
        let is_export = |to: &Target| matches!(to, Target::Collector(_) | Target::Broker(_));
        !self.to.is_empty() && self.to.iter().all(is_export)
    }

    /// Refuses options that have no effect on any target. A file can get another target later.
    pub(super) fn check(&self, rotates: bool) -> Result<(), Error> {
        target::check(self.targets())?;
        if self.to_file.is_some() {
            return Ok(());
        }
        let has_spool = self.to.iter().any(|to| matches!(to, Target::Bucket(_)));
        if !has_spool && (self.spool.is_some() || self.spool_mib.is_some()) {
            return Err(Error::Usage("--spool and --spool-mib are for --to s3://BUCKET".into()));
        }
        if !self.has_target() {
            return self.check_without_target();
        }
        if !self.exports() {
            return Ok(());
        }
        let flows = Selected { packets: false, flows: true, messages: SelectedMessages::default() };
        let is_ipfix = self.to.iter().all(|to| matches!(to, Target::Collector(_)));
        for (is_given, option) in [
            (self.sensor.is_some() && is_ipfix, "--sensor"),
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
        mut source: Source<'_>,
        limits: (Option<u64>, Option<Duration>),
    ) -> Result<Output, Error> {
        let owners = source.owners.take();
        let shared = Shared::default();
        let opener = Opener {
            args: self.clone(),
            limits,
            inputs: source.inputs.to_vec(),
            names: source.names.take(),
            has_owners: owners.is_some(),
            is_file: source.path == "file",
            shared: shared.clone(),
        };
        let opened = opener.open(self.targets(), &[])?;
        shared.lock().open = self.targets().to_vec();
        let mut targets = Targets::new(opened, owners, shared);
        targets.set_inputs(source.inputs);
        if let Some(path) = self.to_file.clone() {
            targets.watch(WatchedTargets::new(path, move |targets| opener.change(targets)));
        }
        Ok(Output::Tables(Box::new(targets)))
    }

    /// Opens the tables of `count` workers that read files.
    pub(super) fn open_several(
        &self,
        limits: (Option<u64>, Option<Duration>),
        count: usize,
    ) -> Result<Vec<Targets>, Error> {
        // All workers of a target together have the memory of one table of flows.
        let flows = self.flow_limits().shared_by(count);
        let capture = new_capture();
        let mut workers: Vec<Vec<TableOutput>> = (0..count).map(|_| Vec::new()).collect();
        for (target, place) in self.places(&capture, self.targets(), &[])? {
            let url = target.to_string();
            if let Place::Export(exporter) = &place {
                for worker in &mut workers {
                    worker.push(TableOutput::export(url.clone(), exporter, no_names(), flows, true));
                }
                continue;
            }
            let options = Options { flows, ..self.options(&capture, &place, limits, true)? };
            for (at, worker) in workers.iter_mut().enumerate() {
                let tables = TableOutput::files(url.clone(), options.clone(), place.clone(), no_names())?;
                if at == 0 {
                    report_recovered(tables.recovered());
                }
                worker.push(tables);
            }
        }
        let new = |targets| Targets::new(targets, None, Shared::default());
        Ok(workers.into_iter().map(new).collect())
    }

    /// Opens the places of `targets`, beside those of `present`. The uploads start last: they send
    /// and remove files, which a refused command must not do.
    fn places<'t>(
        &self,
        capture: &str,
        targets: &'t [Target],
        present: &[Target],
    ) -> Result<Vec<(&'t Target, Place)>, Error> {
        self.check_directories(targets, present)?;
        let (uploads, others): (Vec<_>, Vec<_>) =
            targets.iter().enumerate().partition(|(_, target)| matches!(target, Target::Bucket(_)));
        let open = |(at, target)| Ok((at, target, self.place(capture, target)?));
        let mut places = others.into_iter().chain(uploads).map(open).collect::<Result<Vec<_>, Error>>()?;
        places.sort_by_key(|(at, ..)| *at);
        Ok(places.into_iter().map(|(_, target, place)| (target, place)).collect())
    }

    /// Opens the place of the tables.
    fn place(&self, capture: &str, target: &Target) -> Result<Place, Error> {
        Ok(match target {
            Target::Directory(directory) => Place::Directory(directory.clone()),
            Target::Collector(url) => Place::Export(Arc::new(open_collector(url)?)),
            Target::Broker(broker) => Place::Export(Arc::new(self.open_broker(capture, broker)?)),
            Target::Bucket(bucket) => {
                let bytes_max = self.spool_mib.unwrap_or(upload::SPOOL_BYTES);
                Place::Bucket(Arc::new(Upload::start(bucket, self.spool_of(bucket), bytes_max)?))
            }
        })
    }

    /// Returns the spool directory of a bucket.
    fn spool_of(&self, bucket: &Bucket) -> PathBuf {
        upload::directory(bucket, self.spool.as_deref().unwrap_or(Path::new(upload::SPOOL)))
    }

    /// Creates the directories of all targets. Refuses two targets with one directory, by whatever
    /// paths, and a directory in the spool of an upload or around it: files in a spool are uploaded
    /// and removed. A directory of `present` can have failed: it is then left out.
    fn check_directories(&self, targets: &[Target], present: &[Target]) -> Result<(), Error> {
        let mut seen: Vec<(&Target, bool, PathBuf, (u64, u64))> = Vec::new();
        let present = present.iter().map(|target| (target, true));
        for (target, is_present) in present.chain(targets.iter().map(|target| (target, false))) {
            let (directory, is_spool) = match target {
                Target::Directory(directory) => (directory.clone(), false),
                Target::Bucket(bucket) => (self.spool_of(bucket), true),
                Target::Collector(_) | Target::Broker(_) => continue,
            };
            let failed = |error: io::Error| {
                let remedy = if is_spool { ": give a spool directory of yours by --spool" } else { "" };
                Error::Failed(format!("create {}: {error}{remedy}", directory.display()))
            };
            let (path, identity) = match created(&directory) {
                Err(_) if is_present => continue,
                found => found.map_err(failed)?,
            };
            for (other, other_is_spool, other_path, other_identity) in &seen {
                let is_inside = path.starts_with(other_path) || other_path.starts_with(&path);
                if identity == *other_identity || is_inside && (is_spool || *other_is_spool) {
                    return Err(target::same(other, target));
                }
            }
            seen.push((target, is_spool, path, identity));
        }
        Ok(())
    }

    fn options(
        &self,
        capture: &str,
        place: &Place,
        limits: (Option<u64>, Option<Duration>),
        waits: bool,
    ) -> Result<Options, Error> {
        let (directory, spool) = match place {
            Place::Bucket(upload) => (upload.directory().to_owned(), Some(Arc::clone(upload.spool()))),
            Place::Directory(directory) => (directory.clone(), None),
            Place::Export(_) => return Err(Error::Failed("an export has no files".into())),
        };
        Ok(Options {
            directory,
            spool,
            sensor: self.sensor()?,
            capture: capture.to_owned(),
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
    fn open_broker(&self, capture: &str, broker: &Broker) -> Result<Exporter, Error> {
        let sensor = self.sensor()?;
        let publisher = Publisher::start(broker, &format!("{sensor}-{capture}"))?;
        let format = match broker.format {
            Format::Json => publish::Format::Json,
            Format::Arrow => publish::Format::Arrow,
            Format::Protobuf => publish::Format::Protobuf,
        };
        Ok(publish::open(broker.to_string(), &sensor, format, Box::new(publisher)))
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

/// Creates a directory. Returns its path without links, and its device and inode.
fn created(directory: &Path) -> io::Result<(PathBuf, (u64, u64))> {
    strait_os::output::create_directory(directory)?;
    let path = directory.canonicalize()?;
    let metadata = path.metadata()?;
    Ok((path, (metadata.dev(), metadata.ino())))
}

/// Options with which the targets of a capture are opened.
struct Opener {
    args: Args,
    /// Size and age of a file.
    limits: (Option<u64>, Option<Duration>),
    inputs: Vec<Input>,
    /// Socket that looks up names of interfaces.
    names: Option<Arc<OwnedFd>>,
    has_owners: bool,
    is_file: bool,
    shared: Shared,
}

impl Opener {
    /// Opens targets beside `others`.
    fn open(&self, targets: &[Target], others: &[Target]) -> Result<Vec<TableOutput>, Error> {
        let capture = new_capture();
        let places = self.args.places(&capture, targets, others)?;
        places.into_iter().map(|(target, place)| self.tables(&capture, target, place)).collect()
    }

    fn tables(&self, capture: &str, target: &Target, place: Place) -> Result<TableOutput, Error> {
        let (url, names) = (target.to_string(), names_of(&self.inputs, self.names.as_ref(), self.is_file));
        if let Place::Export(exporter) = &place {
            return Ok(TableOutput::export(url, exporter, names, self.args.flow_limits(), self.is_file));
        }
        let mut options = self.args.options(capture, &place, self.limits, self.is_file)?;
        if self.has_owners {
            options.columns = options.columns.with_owner();
        }
        let tables = TableOutput::files(url, options, place, names)?;
        report_recovered(tables.recovered());
        Ok(tables)
    }

    /// Opens and starts those of `targets` that the capture does not have yet, for its next change.
    ///
    /// # Errors
    /// There are too many targets; one has the place of another; one cannot be opened.
    fn change(&self, targets: Vec<Target>) -> Result<(), Error> {
        target::check(&targets)?;
        let present = self.shared.lock().clone();
        let targets = present.named(targets);
        check_removed(&present, &targets)?;
        let new = present.new_ones(&targets)?;
        let mut opened = self.open(&new, &[&present.open[..], &present.ending].concat())?;
        opened.iter_mut().try_for_each(TableOutput::start)?;
        self.shared.set_next(Change { targets, opened });
        Ok(())
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

/// Returns the name of the host as the name of the sensor.
fn host() -> Result<String, Error> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    sensor_name(&name).map_err(|reason| {
        Error::Usage(format!("{name} cannot be the name of the sensor: {reason}: use --sensor"))
    })
}

/// Returns the function that names interfaces; `socket` looks up those of a cooked link.
fn names_of(inputs: &[Input], socket: Option<&Arc<OwnedFd>>, is_file: bool) -> InterfaceNames {
    let is_cooked = |input: &Input| input.link_type == u32::from(link_type::LINUX_SLL2);
    match (inputs, socket) {
        _ if is_file => no_names(),
        ([input], Some(socket)) if is_cooked(input) => looked_up_names(Arc::clone(socket)),
        ([input], _) => interface_names(&input.name, input.link_type),
        (inputs, _) => listed_names(inputs.iter().map(|input| (input.index, input.name.clone())).collect()),
    }
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
