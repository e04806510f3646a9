//! Outputs of captured packets: a file, one line per packet on standard output, or a count only.

mod change;
mod closed;
mod extras;
mod file;
mod former;
mod lines;
mod losses;
mod names;
mod origin;
mod owners;
mod place;
mod program;
mod publisher;
mod source;
mod table_output;
mod tables;
mod target;
mod target_file;
mod targets;
mod upload;
mod windows;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use strait_capture::Frame;
use strait_capture::extra::ExtraBlocks;
use strait_capture::owners::Owners;
use strait_ledger::Report;
pub(crate) use strait_program::output::{
    omit_notices, print_account, print_line, print_notice, print_stderr, print_text, printable,
};

pub(crate) use self::closed::{Closed, ClosedTarget, ExportedTotals, finish};
pub(crate) use self::file::Args;
use self::file::FileOutput;
use self::lines::Text;
pub(crate) use self::lines::{Args as LineArgs, Lines};
use self::owners::Tally;
pub(crate) use self::owners::{owner_json, process_name};
pub(crate) use self::source::Input;
pub(crate) use self::tables::{Args as TableArgs, SchemaForm, print_schema};
pub(crate) use self::target_file::WatchedTargets;
pub(crate) use self::targets::Targets;
use crate::Error;
use crate::sink::{Changed, CountTargets, Sink};

/// Origin of the packets, for the header of an output file.
pub(crate) struct Source<'a> {
    /// The interfaces, or the input file; at least one.
    pub(crate) inputs: &'a [Input],
    /// Socket in the network namespace of the interfaces, which looks up their names; none for a
    /// file.
    pub(crate) names: Option<Arc<OwnedFd>>,
    /// Text of the filter.
    pub(crate) filter: &'a str,
    /// Maximum stored bytes of a packet.
    pub(crate) snaplen: u32,
    /// Path of the capture.
    pub(crate) path: &'a str,
    /// True if no packet is printed.
    pub(crate) silent: bool,
    /// Format of the printed packets.
    pub(crate) lines: Lines,
    /// Owners of the packets, if they are reported.
    pub(crate) owners: Option<Owners>,
    /// Blocks of a file that its copy has, too; none for interfaces.
    pub(crate) extras: Option<ExtraBlocks>,
}

/// An output of captured packets.
pub(crate) enum Output {
    File(Box<FileOutput>),
    Tables(Box<Targets>),
    Text(Box<Text>),
    /// Counts the packets of each owner.
    Owners(Box<Tally>),
    Nothing,
}

impl Output {
    /// Returns true if packets are printed as lines. The live line must then not be drawn.
    pub(crate) fn prints_packets(&self) -> bool {
        matches!(self, Self::Text(_))
    }

    /// Returns a notice of owners that could not be reported, if there are any.
    pub(crate) fn owner_losses(&self) -> Option<String> {
        let owners = match self {
            Self::File(file) => file.owners(),
            Self::Text(text) => text.owners(),
            Self::Owners(tally) => Some(tally.owners()),
            Self::Tables(tables) => tables.owners(),
            Self::Nothing => None,
        };
        owners.and_then(owners::losses)
    }

    /// Returns the packets and bytes of each owner as JSON, if they are counted.
    pub(crate) fn owners(&self) -> Option<serde_json::Value> {
        match self {
            Self::Owners(tally) => Some(tally.json()),
            Self::File(_) | Self::Tables(_) | Self::Text(_) | Self::Nothing => None,
        }
    }

    /// Returns the file with the targets, if it can be read again. It is returned once.
    pub(crate) fn watched_targets(&mut self) -> Option<WatchedTargets> {
        match self {
            Self::Tables(targets) => targets.watched(),
            Self::File(_) | Self::Text(_) | Self::Owners(_) | Self::Nothing => None,
        }
    }

    /// Completes the output: writes a file's statistics and gives it its final name, or flushes
    /// text.
    pub(crate) fn close(self, report: &Report) -> Closed {
        let line = match self {
            Self::File(file) => file.close(report).map(Some),
            Self::Tables(targets) => {
                let (targets, former) = targets.close_all(report);
                return finish(targets, former);
            }
            Self::Text(mut text) => text.flush().map(|()| None),
            Self::Owners(_) | Self::Nothing => Ok(None),
        };
        let (line, failure) = line.map_or_else(|error| (None, Some(error)), |line| (line, None));
        Closed { line, failure, exported: Vec::new() }
    }
}

impl Sink for Output {
    fn start(&mut self) -> Result<(), Error> {
        match self {
            Self::Tables(tables) => tables.start(),
            Self::File(file) => file.start(),
            Self::Text(_) | Self::Owners(_) | Self::Nothing => Ok(()),
        }
    }

    fn begin_batch(&mut self, input: usize) {
        match self {
            Self::File(file) => file.begin_batch(input),
            Self::Tables(tables) => tables.begin_batch(input),
            Self::Text(text) => text.begin_batch(input),
            Self::Owners(_) | Self::Nothing => {}
        }
    }

    fn take(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        match self {
            Self::File(file) => file.take(frame),
            Self::Tables(tables) => tables.take(frame),
            Self::Text(text) => text.take(frame),
            Self::Owners(tally) => tally.take(frame),
            Self::Nothing => Ok(()),
        }
    }

    fn only_counts(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    fn end_batch(&mut self) -> Result<(), Error> {
        match self {
            Self::File(file) => file.end_batch(),
            Self::Tables(_) | Self::Text(_) | Self::Owners(_) | Self::Nothing => Ok(()),
        }
    }

    fn idle(&mut self, now: Instant) -> Result<(), Error> {
        match self {
            Self::File(file) => file.idle(now),
            Self::Tables(tables) => tables.idle(now),
            Self::Text(text) => text.flush(),
            Self::Owners(_) | Self::Nothing => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        match self {
            Self::File(file) => file.flush(),
            Self::Text(text) => text.flush(),
            Self::Tables(_) | Self::Owners(_) | Self::Nothing => Ok(()),
        }
    }

    fn complete(&mut self) -> Result<(), Error> {
        match self {
            Self::Tables(tables) => tables.complete(),
            Self::File(_) | Self::Text(_) | Self::Owners(_) | Self::Nothing => Ok(()),
        }
    }

    fn charge(&self, report: &mut Report) {
        match self {
            Self::File(file) => file.charge(report),
            Self::Tables(targets) => targets.charge(report),
            Self::Text(text) => text.charge(report),
            Self::Owners(_) | Self::Nothing => {}
        }
    }

    fn records(&self) -> bool {
        matches!(self, Self::Tables(_))
    }

    fn record(&mut self, report: &Report) {
        if let Self::Tables(tables) = self {
            tables.record(report);
        }
    }

    fn change_targets(&mut self, report: &Report) -> Changed {
        match self {
            Self::Tables(targets) => targets.change_targets(report),
            Self::File(_) | Self::Text(_) | Self::Owners(_) | Self::Nothing => Changed::default(),
        }
    }

    fn target_metrics(&self) -> Option<CountTargets> {
        match self {
            Self::Tables(targets) => targets.target_metrics(),
            Self::File(_) | Self::Text(_) | Self::Owners(_) | Self::Nothing => None,
        }
    }

    fn written_bytes(&self) -> Option<u64> {
        match self {
            Self::File(file) => Some(file.written_bytes()),
            Self::Tables(tables) => tables.written_bytes(),
            Self::Text(_) | Self::Owners(_) | Self::Nothing => None,
        }
    }
}
