//! `-w`: packets into a pcapng or pcap file, with the options that say how.

use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use clap::{Args as ClapArgs, ValueEnum};
use strait_capture::Frame;
use strait_capture::sink::{
    FileSink, Format, LinkType, SinkInterface, SinkOptions, Statistics, Target, frame_ref,
};
use strait_ledger::Report;
use strait_sys::clock;

use super::{Output, Source, Text};
use crate::Error;
use crate::parse::seconds;

/// Options of an output file.
#[derive(ClapArgs)]
// The group would be called Args, as the command's own is.
#[group(skip)]
pub(crate) struct Args {
    /// Write packets to this file, `-` for standard output, instead of printing them
    #[arg(short, long, value_name = "FILE")]
    write: Option<String>,
    /// File format
    #[arg(long, value_enum, default_value_t = FormatArg::Pcapng, requires = "write")]
    format: FormatArg,
    /// Start another file before one grows past this many MiB
    #[arg(long, value_name = "N", requires = "write", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    rotate_mib: Option<u64>,
    /// Start another file every so many seconds
    #[arg(long, value_name = "N", requires = "write", value_parser = seconds)]
    rotate_s: Option<Duration>,
    /// Keep the newest N files of a rotation
    #[arg(long, value_name = "N", requires = "write")]
    ring_files: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum FormatArg {
    /// pcapng with interface description and drop counts
    Pcapng,
    /// pcap with nanosecond timestamps
    Pcap,
}

impl Args {
    /// Refuses what contradicts itself, before anything is opened.
    pub(crate) fn check(&self, json: bool, read: Option<&str>) -> Result<(), Error> {
        let usage = |text: &str| Err(Error::Usage(text.into()));
        match (self.write.as_deref(), read) {
            (Some("-"), _) if json => usage("--json and -w - both want standard output: give -w a file"),
            (Some("-"), _) if io::stdout().is_terminal() => {
                usage("-w - would write to the terminal: redirect it, or give -w a file")
            }
            (Some(write), Some(read)) if is_same_file(write, read) => {
                usage("-r and -w name the same file: write to another one")
            }
            _ => Ok(()),
        }
    }

    /// Whether more files will be made later.
    pub(crate) fn rotates(&self) -> bool {
        self.rotate_mib.is_some() || self.rotate_s.is_some()
    }

    /// Whether nothing but the number of packets is asked for; `silent`: no packet is printed.
    pub(crate) fn counts_only(&self, silent: bool) -> bool {
        self.write.is_none() && silent
    }

    /// Opens the output that the options ask for.
    pub(crate) fn open(&self, source: &Source<'_>) -> Result<Output, Error> {
        let Some(file) = &self.write else {
            let text = || Ok(Output::Text(Box::new(Text::open(source.link_type)?)));
            return if source.silent { Ok(Output::Nothing) } else { text() };
        };
        let options = SinkOptions {
            format: match self.format {
                FormatArg::Pcapng => Format::Pcapng,
                FormatArg::Pcap => Format::Pcap,
            },
            rotate_bytes: self.rotate_mib.map(|mib| mib << 20),
            rotate_every: self.rotate_s,
            ring_files: self.ring_files,
            ..options(Target::parse(file), source)
        };
        FileOutput::create(options)
    }
}

impl Output {
    /// One pcapng file.
    pub(crate) fn to_file(path: &std::path::Path, source: &Source<'_>) -> Result<Self, Error> {
        FileOutput::create(options(Target::Path(path.to_owned()), source))
    }
}

fn options(target: Target, source: &Source<'_>) -> SinkOptions {
    let filter = Some(source.filter).filter(|filter| !filter.is_empty());
    let interface = SinkInterface {
        linktype: LinkType(u16::try_from(source.link_type).unwrap_or(u16::MAX)),
        snaplen: source.snaplen,
        name: Some(source.interface.to_owned()),
        description: None,
        filter: filter.map(str::to_owned),
    };
    SinkOptions { interfaces: vec![interface], ..SinkOptions::new(target, clock::realtime_ns()) }
}

fn is_same_file(one: &str, other: &str) -> bool {
    let place = |path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()));
    matches!((place(one), place(other)), (Ok(one), Ok(other)) if one == other)
}

/// An open file, or a series of them.
pub(crate) struct FileOutput {
    sink: FileSink,
    /// Somebody reads it as it is written.
    streams: bool,
}

impl FileOutput {
    fn create(options: SinkOptions) -> Result<Output, Error> {
        let streams = options.target == Target::Stdout;
        Ok(Output::File(Box::new(Self { sink: FileSink::create(options)?, streams })))
    }

    pub(super) fn take(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        Ok(self.sink.write(&frame_ref(frame, 0))?)
    }

    /// A batch is taken: a pipe gets it at once.
    pub(super) fn batch_taken(&mut self) -> Result<(), Error> {
        if self.streams { self.flush() } else { Ok(()) }
    }

    pub(super) fn idle(&mut self, now: Instant) -> Result<(), Error> {
        Ok(self.sink.flush_due(now)?)
    }

    pub(super) fn flush(&mut self) -> Result<(), Error> {
        Ok(self.sink.flush()?)
    }

    pub(super) fn lost(&self) -> u64 {
        self.sink.lost()
    }

    /// Completes the file, with the ledger in its statistics block.
    pub(super) fn close(self, report: &Report) -> Result<(), Error> {
        let capture = &report.capture;
        let statistics = Statistics {
            interface: 0,
            received: Some(capture.received),
            dropped: Some(capture.lost.nic_missed),
            filter_accepted: Some(capture.received - capture.filtered),
            os_dropped: Some(capture.lost.total() - capture.lost.nic_missed),
            delivered: Some(capture.delivered),
            ..Statistics::default()
        };
        self.sink.close(&[statistics])?;
        Ok(())
    }
}
