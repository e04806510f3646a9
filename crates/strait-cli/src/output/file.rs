//! `-w`: writes packets to a pcapng or pcap file.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args as ClapArgs, ValueEnum};
use strait_capture::owners::Owners;
use strait_capture::sink::{
    FileSink, Format, FrameRef, LinkType, Renamed, SinkError, SinkInterface, SinkOptions, Statistics,
    Summary, Target, frame_ref,
};
use strait_capture::{Compression, Frame};
use strait_ledger::{Grouped, Report};
use strait_os::process::{CAP_DAC_OVERRIDE, CAP_FOWNER};
use strait_os::{clock, output};
use strait_program::replace::is_same_file;
use strait_table::flows::FlowIds;

use super::extras::Extras;
use super::losses::Losses;
use super::owners::{OwnerText, Tally};
use super::source::Input;
use super::{Output, Source, TableArgs, Targets, Text, print_stderr};
use crate::Error;
use crate::parse::{count, mebibytes, megabytes, seconds};

/// Options of an output file.
#[derive(ClapArgs)]
// The group would have the name Args, like the group of the command.
#[group(skip)]
pub(crate) struct Args {
    /// Write packets to this file, `-` for standard output, instead of printing them; an existing
    /// file is replaced. A name in .zst, .gz or .lz4 selects the compression: x.pcapng.zst
    #[arg(short, long, value_name = "FILE", group = "target")]
    write: Option<String>,
    #[command(flatten)]
    tables: TableArgs,
    /// File format [default: pcap for a name in .pcap or .cap, without .gz and the like; else
    /// pcapng]
    #[arg(long, value_enum)]
    format: Option<FormatArg>,
    /// Start another file before one grows past this many MiB, or as in 500k or 2GiB [default: no
    /// limit; 128 for --to]. The size is that on disk, after compression
    #[arg(long, value_name = "SIZE", value_parser = rotation)]
    rotate_mib: Option<u64>,
    /// Like --rotate-mib, in millions of bytes, or as in 500k or 2GiB: tcpdump's -C
    #[arg(short = 'C', long, value_name = "SIZE", conflicts_with = "rotate_mib", value_parser = megabytes)]
    rotate_size: Option<u64>,
    /// Start another file after this many seconds, or as in 5m or 1h [default: no limit; 5m for
    /// --to]. A % in the name given by -w is then a conversion of strftime(3) in local time, as in
    /// x_%H%M%S.pcap. If the name is taken, the file gets a number: x_120000_00002.pcap
    #[arg(short = 'G', long, value_name = "S", value_parser = seconds)]
    rotate_s: Option<Duration>,
    /// Keep the newest N files of a rotation
    #[arg(long, value_name = "N")]
    ring_files: Option<usize>,
    /// With -C keep the newest N files; with -G but without -C end after N files: tcpdump's -W
    #[arg(short = 'W', long, value_name = "N", conflicts_with = "ring_files", value_parser = count)]
    files: Option<u64>,
    /// Write each packet on arrival, to the file or as a line
    #[arg(short = 'U', long)]
    packet_buffered: bool,
    /// Embed the secrets of this key log in the pcapng file, so that Wireshark decrypts TLS and
    /// QUIC. Its format is that of NSS, as programs write it with SSLKEYLOGFILE. It is read while
    /// it grows
    #[arg(long, value_name = "FILE")]
    keylog: Option<PathBuf>,
    /// With -r, leave out the secrets of the input file. A copy has all of them otherwise, also
    /// those of connections that the filter leaves out
    #[arg(long)]
    no_secrets: bool,
    /// Write the names of addresses to the pcapng file, from the DNS answers in the captured
    /// packets. Nothing is looked up
    #[arg(long)]
    names: bool,
    /// Write a comment on the capture to each pcapng file; repeat it for several, at most 16, of at
    /// most 2048 bytes each
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    comment: Vec<String>,
    /// Write an index beside each file, FILE.sidx: with it strait query reads only the needed parts
    /// of the file. Not for a compressed file
    #[arg(long)]
    index: bool,
}

/// Parses a positive size, in MiB if it has no unit.
fn rotation(text: &str) -> Result<u64, String> {
    mebibytes(text).and_then(|bytes| if bytes > 0 { Ok(bytes) } else { Err("give a size above 0".into()) })
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum FormatArg {
    /// pcapng with interface description and drop counts
    Pcapng,
    /// pcap with nanosecond timestamps
    Pcap,
}

impl Args {
    /// Refuses contradictory options, before any file is opened.
    pub(crate) fn check(&self, json: bool, files: &[String]) -> Result<(), Error> {
        let usage = |text: &str| Err(Error::Usage(text.into()));
        self.tables.check(self.rotate_bytes().is_some() || self.rotate_s.is_some())?;
        self.check_files()?;
        match self.write.as_deref() {
            Some("") => usage("-w needs the name of a file, or - for standard output"),
            _ if self.no_secrets && files.is_empty() => {
                usage("--no-secrets leaves out the secrets of a file: give -r FILE")
            }
            Some("-") if json => usage("--json and -w - both use standard output: give -w a file"),
            Some("-") if io::stdout().is_terminal() => {
                usage("-w - would write to the terminal: redirect it, or give -w a file")
            }
            Some(write) if self.keylog.as_deref().is_some_and(|log| is_same_file(write.as_ref(), log)) => {
                usage("--keylog and -w name the same file: write to another file")
            }
            Some(write) if self.keylog.is_some() && self.format_of(write) == Format::Pcap => {
                usage("only pcapng holds secrets: leave out --keylog, or give -w a name in .pcapng")
            }
            Some(write) if self.names && self.format_of(write) == Format::Pcap => {
                usage("only pcapng holds names: leave out --names, or give -w a name in .pcapng")
            }
            Some(write) if files.iter().any(|read| is_same_file(write.as_ref(), read.as_ref())) => {
                usage("-r and -w name the same file: write to another file")
            }
            _ => Ok(()),
        }
    }

    /// Refuses options of files without a file or tables.
    fn check_files(&self) -> Result<(), Error> {
        let (has_file, has_any) = (self.write.is_some(), self.write.is_some() || self.is_tables());
        let options = [
            (self.format.is_some() && !has_file, "--format", "-w FILE"),
            (self.index && !has_file, "--index", "-w FILE"),
            (self.keylog.is_some() && !has_file, "--keylog", "-w FILE"),
            (self.no_secrets && !has_file, "--no-secrets", "-w FILE"),
            (self.names && !has_file, "--names", "-w FILE"),
            (!self.comment.is_empty() && !has_file, "--comment", "-w FILE"),
            (self.ring_files.is_some() && !has_file, "--ring-files", "-w FILE"),
            (self.files.is_some() && !has_file, "-W", "-w FILE"),
            (self.rotate_mib.is_some() && !has_any, "--rotate-mib", "-w FILE or --to URL"),
            (self.rotate_size.is_some() && !has_any, "-C", "-w FILE or --to URL"),
            (self.rotate_s.is_some() && !has_any, "-G", "-w FILE or --to URL"),
        ];
        match options.into_iter().find(|(is_wrong, ..)| *is_wrong) {
            Some((_, option, target)) => {
                Err(Error::Usage(format!("{option} needs an output: give {target}")))
            }
            None => Ok(()),
        }
    }

    /// Returns the capabilities for completing the file. Its directory may belong to another user:
    /// the rename at the end needs the same permission as the creation.
    pub(crate) fn capabilities(&self) -> Vec<u32> {
        const STICKY: u32 = 0o1000;
        if self.tables.has_target() {
            // Later files get directories of their own.
            return vec![CAP_DAC_OVERRIDE];
        }
        let file = self.write.as_deref().filter(|file| *file != "-");
        let Some(entry) = file.and_then(|file| output::file(Path::new(file)).ok()) else { return vec![] };
        let directory =
            entry.directory.try_clone().and_then(|directory| fs::File::from(directory).metadata());
        let is_other_and_sticky = directory.is_ok_and(|directory| {
            directory.mode() & STICKY != 0 && directory.uid() != rustix::process::geteuid().as_raw()
        });
        let mut capabilities = vec![CAP_DAC_OVERRIDE];
        capabilities.extend(is_other_and_sticky.then_some(CAP_FOWNER));
        capabilities
    }

    fn rotate_bytes(&self) -> Option<u64> {
        self.rotate_mib.or(self.rotate_size)
    }

    /// Returns the number and period of the files after which a capture ends: -W and -G without -C.
    pub(crate) fn files_limit(&self) -> Option<(u32, Duration)> {
        let files = self.files.filter(|_| self.rotate_bytes().is_none())?;
        Some((u32::try_from(files).unwrap_or(u32::MAX), self.rotate_s?))
    }

    /// Returns the number of files to keep: --ring-files, or -W with -C. -W without any rotation is
    /// also passed on, for the sink to refuse it.
    fn ring_files(&self) -> Option<usize> {
        let files = self.files.filter(|_| self.files_limit().is_none());
        self.ring_files.or(files.map(|files| usize::try_from(files).unwrap_or(usize::MAX)))
    }

    /// Returns true if only the number of packets is needed. `silent` means that no packet is
    /// printed.
    pub(crate) fn counts_only(&self, silent: bool) -> bool {
        self.write.is_none() && !self.tables.has_target() && silent
    }

    /// Returns true if packets go to standard output, by `-w -` or as lines.
    pub(crate) fn uses_stdout(&self, silent: bool) -> bool {
        let prints = !silent && !self.tables.has_target();
        self.write.as_deref().map_or(prints, |file| file == "-")
    }

    /// Opens the tables of `count` workers that read files.
    pub(crate) fn open_tables(&self, count: usize) -> Result<Vec<Targets>, Error> {
        self.tables.open_several((self.rotate_bytes(), self.rotate_s), count)
    }

    /// Returns true if packets are written to tables.
    pub(crate) fn is_tables(&self) -> bool {
        self.tables.has_target()
    }

    /// Reads the file with the targets, if there is one.
    pub(crate) fn read_targets(&mut self) -> Result<(), Error> {
        self.tables.read_targets()
    }

    /// Returns true if the targets of tables are those of a file.
    pub(crate) fn has_target_file(&self) -> bool {
        self.tables.has_target_file()
    }

    /// Returns true if flows are exported.
    pub(crate) fn exports(&self) -> bool {
        self.tables.exports()
    }

    /// Returns true if packets are written to a file.
    pub(crate) fn is_file(&self) -> bool {
        self.write.is_some()
    }

    fn format_of(&self, file: &str) -> Format {
        match self.format {
            Some(FormatArg::Pcapng) => Format::Pcapng,
            Some(FormatArg::Pcap) => Format::Pcap,
            None => format_of(file),
        }
    }

    /// Opens the output for the options.
    pub(crate) fn open(&self, mut source: Source<'_>) -> Result<Output, Error> {
        if self.is_tables() {
            return self.tables.open(source, (self.rotate_bytes(), self.rotate_s));
        }
        let owners = source.owners.take();
        let Some(file) = &self.write else {
            return Ok(match (source.silent, owners) {
                (false, owners) => {
                    let lines = source.lines.written_on_arrival(self.packet_buffered);
                    Output::Text(Box::new(Text::open(source.inputs, source.names, lines, owners)?))
                }
                (true, Some(owners)) => Output::Owners(Box::new(Tally::new(owners))),
                (true, None) => Output::Nothing,
            });
        };
        let options = SinkOptions {
            format: self.format_of(file),
            rotate_bytes: self.rotate_bytes(),
            rotate_every: self.rotate_s,
            ring_files: self.ring_files(),
            files_max: self.files_limit().map(|(files, _)| files.into()),
            comments: self.comment.clone(),
            is_private: self.keylog.is_some(),
            ..options(Target::parse(file), &source)
        };
        let settings = Settings { prompt: self.packet_buffered, index: self.index };
        let mut extras = Extras::open(self.keylog.as_deref(), source.extras.take(), options.rotate_bytes)?;
        if self.no_secrets {
            extras.omit_secrets();
        }
        if self.names {
            extras.collect_names(options.interfaces.iter().map(|interface| interface.linktype.0).collect());
        }
        FileOutput::create(options, settings, source.inputs, (owners, extras))
    }
}

impl Output {
    /// Opens an output to one pcapng file.
    pub(crate) fn to_file(path: &std::path::Path, source: &Source<'_>) -> Result<Self, Error> {
        let options = options(Target::Path(path.to_owned()), source);
        FileOutput::create(options, Settings::default(), source.inputs, (None, Extras::default()))
    }
}

fn options(target: Target, source: &Source<'_>) -> SinkOptions {
    let filter = Some(source.filter).filter(|filter| !filter.is_empty());
    let interface = |input: &Input| SinkInterface {
        linktype: LinkType(u16::try_from(input.link_type).unwrap_or(u16::MAX)),
        snaplen: source.snaplen,
        name: Some(input.name.clone()),
        description: None,
        filter: filter.map(str::to_owned),
        speed_bps: input.speed_bps,
    };
    let interfaces = source.inputs.iter().map(interface).collect();
    SinkOptions { interfaces, ..SinkOptions::new(target, clock::realtime_ns()) }
}

/// Returns the format for the extension of `file`. The default is pcapng, as pcap cannot store
/// directions, queues and loss counts. Frames of a capture on all interfaces have their own header
/// in both formats.
fn format_of(file: &str) -> Format {
    let extension = Compression::strip(Path::new(file)).extension().unwrap_or_default();
    let is_pcap = ["pcap", "cap"].iter().any(|pcap| extension.eq_ignore_ascii_case(pcap));
    if is_pcap { Format::Pcap } else { Format::Pcapng }
}

/// Settings of a file beside those of its sink.
#[derive(Clone, Copy, Default)]
struct Settings {
    /// True if each batch is flushed on request of the user.
    prompt: bool,
    /// True if each file gets an index.
    index: bool,
}

/// An open file, or a series of them.
pub(crate) struct FileOutput {
    sink: FileSink,
    extras: Extras,
    /// True if each batch is flushed: the output is a pipe, or the user requested it.
    streams: bool,
    /// Owners of the packets, and the text of the last comment.
    owners: Option<(Owners, String)>,
    /// Number of the interface of the current batch.
    interface: u32,
    losses: Losses,
}

impl FileOutput {
    fn create(
        options: SinkOptions,
        settings: Settings,
        inputs: &[Input],
        (owners, extras): (Option<Owners>, Extras),
    ) -> Result<Output, Error> {
        let streams = settings.prompt || options.target == Target::Stdout;
        let losses = Losses::of(inputs);
        let owners = owners.map(|owners| (owners, String::new()));
        let sink = if settings.index {
            let mut ids = FlowIds::new();
            FileSink::create_indexed(options, Box::new(move |frame, link| ids.of(frame.bytes, link.0)))?
        } else {
            FileSink::create(options)?
        };
        let mut file = Self { sink, extras, streams, owners, interface: 0, losses };
        file.report_set_aside();
        Ok(Output::File(Box::new(file)))
    }

    /// Reports the partial file of a killed capture that the new file would have replaced.
    fn report_set_aside(&mut self) {
        if let Some(name) = self.sink.take_set_aside() {
            print_stderr(format_args!(
                "strait: the partial file of an interrupted capture is kept as {}\n",
                name.display()
            ));
        }
    }

    /// Starts the thread that compresses, if the file is compressed.
    pub(super) fn start(&mut self) -> Result<(), Error> {
        Ok(self.sink.start()?)
    }

    pub(super) fn begin_batch(&mut self, input: usize) {
        self.interface = u32::try_from(input).unwrap_or(u32::MAX);
        self.losses.begin_batch(input);
        self.extras.begin_batch();
    }

    pub(super) fn take(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        let packet = frame_ref(frame, self.interface);
        self.losses.take();
        let added = self.extras.add_due(&mut self.sink);
        self.account(added)?;
        self.extras.read_names(self.interface, frame.bytes);
        let Some((owners, text)) = &mut self.owners else {
            let written = self.sink.write(&packet);
            return self.account(written);
        };
        text.clear();
        if let Some(found) = owners.of(frame)?.filter(|found| found.is_first) {
            // Writing to a String cannot fail.
            let _ = write!(text, "owner {}", OwnerText(&found.owner));
        }
        let comment = Some(&**text).filter(|text| !text.is_empty());
        let written = self.sink.write(&FrameRef { comment, ..packet });
        self.account(written)
    }

    /// Charges lost packets to their interfaces: they are the latest ones.
    #[inline]
    fn account(&mut self, result: Result<(), SinkError>) -> Result<(), Error> {
        if result.is_err() {
            self.losses.lose_until(self.sink.lost());
        }
        Ok(result?)
    }

    pub(super) fn owners(&self) -> Option<&Owners> {
        self.owners.as_ref().map(|(owners, _)| owners)
    }

    /// Flushes the batch if the output streams.
    pub(super) fn end_batch(&mut self) -> Result<(), Error> {
        if self.streams { self.flush() } else { Ok(()) }
    }

    /// Reports a file of a rotation that got another name.
    fn report_renamed(&mut self) {
        if let Some(Renamed { taken, name }) = self.sink.take_renamed() {
            print_stderr(format_args!(
                "strait: {} is taken: the file is {}\n",
                taken.display(),
                name.display()
            ));
        }
    }

    pub(super) fn idle(&mut self, now: Instant) -> Result<(), Error> {
        self.report_set_aside();
        self.report_renamed();
        self.extras.report();
        let added = self.extras.add(&mut self.sink);
        let flushed = added.and_then(|()| self.sink.flush_due(now));
        self.account(flushed)
    }

    pub(super) fn flush(&mut self) -> Result<(), Error> {
        let added = self.extras.add(&mut self.sink);
        let flushed = added.and_then(|()| self.sink.flush());
        self.account(flushed)
    }

    /// Moves lost packets from delivered to the losses of their interfaces.
    pub(super) fn charge(&self, report: &mut Report) {
        self.losses.charge(report, self.sink.lost());
    }

    /// Returns the bytes written or buffered so far, in all files.
    pub(super) fn written_bytes(&self) -> u64 {
        self.sink.written_bytes()
    }

    /// Completes the file, with the ledger of each interface in its statistics block.
    pub(super) fn close(mut self, report: &Report) -> Result<String, Error> {
        let statistics: Vec<_> = report.interfaces().iter().zip(0..).map(statistics_of).collect();
        let has_failed = self.sink.has_failed();
        let finished = self.extras.finish(&mut self.sink);
        let summary = self.sink.close(&statistics)?;
        self.extras.report_losses(&summary);
        report_unindexed(&summary);
        // An earlier failure was reported.
        if !has_failed {
            finished?;
        }
        Ok(files_line(&summary))
    }
}

/// Returns the statistics of the interface with a number in the file.
fn statistics_of((report, interface): (&Report, u32)) -> Statistics {
    let capture = &report.capture;
    Statistics {
        interface,
        received: Some(capture.received),
        dropped: Some(capture.lost.nic_missed),
        filter_accepted: Some(capture.received.saturating_sub(capture.filtered)),
        os_dropped: Some(capture.lost.total().saturating_sub(capture.lost.nic_missed)),
        delivered: Some(capture.delivered),
        ..Statistics::default()
    }
}

/// Reports files without the index that they should have.
fn report_unindexed(Summary { unindexed, last_unindexed, .. }: &Summary) {
    let others = match unindexed {
        0 => return,
        1 => String::new(),
        more => format!(" ({} more files have none)", more - 1),
    };
    print_stderr(format_args!(
        "strait: no index of {last_unindexed}; strait query --index FILE writes one{others}\n"
    ));
}

/// Formats the line about the files: `wrote 20 packets, 3,160 bytes, to web.pcapng`.
fn files_line(summary: &Summary) -> String {
    let Summary { packets, bytes, files, deleted, renamed, first_file, last_file, .. } = summary;
    let content = match summary.content_bytes {
        content if content == *bytes => String::new(),
        content => format!(" ({} before compression)", Grouped(content)),
    };
    let (packets, bytes) = (Grouped(*packets), Grouped(*bytes));
    let to = match files - deleted {
        0 | 1 => last_file.clone(),
        count => format!("{count} files, {first_file} to {last_file}"),
    };
    let deleted = if *deleted > 0 { format!("; {deleted} older files were deleted") } else { String::new() };
    let renamed = match renamed {
        0 => String::new(),
        1 => "; one file has another name, because its name was taken".into(),
        many => format!("; {many} files have other names, because their names were taken"),
    };
    format!("wrote {packets} packets, {bytes} bytes{content}, to {to}{deleted}{renamed}")
}
