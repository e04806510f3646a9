//! One line per packet on standard output, in tcpdump's format and with tcpdump's options.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use clap::{ArgAction, Args as ClapArgs};
use strait_capture::Frame;
use strait_capture::owners::Owners;
use strait_ledger::Report;
use strait_os::clock;
use strait_packet::summary::{self, Detail, Dump, Sequences};

use super::losses::Losses;
use super::origin::Origin;
use super::owners::OwnerText;
use super::source::Input;
use crate::Error;

/// Options for the lines of packets.
#[derive(Clone, Copy, Default, ClapArgs)]
// The group would have the name Args, like the group of the command.
#[group(skip)]
pub(crate) struct Args {
    /// Print no packets
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Omit the fields of transport headers
    #[arg(short = 'q', long)]
    quick: bool,
    /// Print MAC addresses, type and length of each frame
    #[arg(short = 'e', long)]
    link_header: bool,
    /// Print the fields of IP headers; -vv and -vvv are the same
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    /// Print the bytes after the link header in hexadecimal; -xx includes that header
    #[arg(short = 'x', long, action = ArgAction::Count)]
    hex: u8,
    /// Print the bytes in hexadecimal and as characters; -XX includes the link header
    #[arg(short = 'X', long, action = ArgAction::Count)]
    hex_ascii: u8,
    /// Print the bytes as characters; -AA includes the link header
    #[arg(short = 'A', long, action = ArgAction::Count)]
    ascii: u8,
    /// -t no time, -tt seconds since 1970, -ttt time since the previous packet, -tttt date and
    /// time, -ttttt time since the first packet
    #[arg(short = 't', action = ArgAction::Count, value_parser = clap::value_parser!(u8).range(..=5))]
    time: u8,
    /// Write each line immediately
    #[arg(short = 'l', long)]
    line_buffered: bool,
    /// Print numbers for addresses and ports (always on)
    #[arg(short = 'n', action = ArgAction::Count)]
    numeric: u8,
    /// Print absolute TCP sequence numbers, instead of numbers relative to the start of a
    /// connection
    #[arg(short = 'S', long, alias = "absolute-sequence")]
    absolute_tcp_sequence_numbers: bool,
}

/// Format of the printed packets, which is the options themselves.
pub(crate) type Lines = Args;

impl Args {
    /// Also writes each line immediately if `on_arrival`.
    pub(crate) fn written_on_arrival(self, on_arrival: bool) -> Self {
        Self { line_buffered: self.line_buffered || on_arrival, ..self }
    }

    fn detail(&self) -> Detail {
        Detail { link: self.link_header, verbose: self.verbose > 0, quick: self.quick }
    }

    /// Returns the format of the bytes below the line, and true if they include the link header. Of
    /// several formats the first one below counts, as in tcpdump.
    fn dump(&self) -> Option<(Dump, bool)> {
        let forms = [(self.hex_ascii, Dump::HexAscii), (self.hex, Dump::Hex), (self.ascii, Dump::Ascii)];
        forms.into_iter().find(|(times, _)| *times > 0).map(|(times, form)| (form, times > 1))
    }
}

/// Output of one line per packet.
pub(crate) struct Text {
    out: File,
    /// Complete lines that are not written yet.
    lines: String,
    /// End of each packet in `lines`, and its input.
    ends: Vec<(usize, usize)>,
    /// Input of the current batch.
    input: usize,
    options: summary::Options,
    shown: Lines,
    /// Origins of relative sequence numbers; none without them.
    sequences: Option<Sequences>,
    /// True if each line is written immediately: on a terminal, or by option.
    prompt: bool,
    /// Packets not written completely.
    losses: Losses,
    /// A quarter of an hour since the epoch and its offset from UTC in seconds. Time zones change
    /// their offset only at quarters.
    zone: (u64, i64),
    /// Names of interfaces, for a capture on several interfaces.
    origin: Option<Origin>,
    /// Link type of each input.
    link_types: Vec<u16>,
    /// Owners of the packets, if they are reported.
    owners: Option<Owners>,
    /// Timestamps of the previous and the first packet.
    before_ns: Option<u64>,
    first_ns: Option<u64>,
}

const QUARTER_NS: u64 = 900 * 1_000_000_000;

/// Maximum buffered bytes of lines.
const BUFFERED_BYTES_MAX: usize = 1 << 16;

impl Text {
    /// Opens an output of lines on standard output; `names` is a socket in the network namespace of
    /// the interfaces.
    pub(super) fn open(
        inputs: &[Input],
        names: Option<Arc<OwnedFd>>,
        shown: Lines,
        owners: Option<Owners>,
    ) -> Result<Self, Error> {
        let out = io::stdout().as_fd().try_clone_to_owned().map_err(Error::Output)?.into();
        let link_type = |input: &Input| u16::try_from(input.link_type).unwrap_or(u16::MAX);
        let link_types: Vec<u16> = inputs.iter().map(link_type).collect();
        let link_type = link_types.first().copied().unwrap_or(u16::MAX);
        Ok(Self {
            out,
            lines: String::new(),
            ends: Vec::new(),
            input: 0,
            options: summary::Options { link_type, ..summary::Options::default() },
            shown,
            sequences: (!shown.absolute_tcp_sequence_numbers).then(Sequences::default),
            prompt: shown.line_buffered || io::stdout().is_terminal(),
            losses: Losses::of(inputs),
            zone: (u64::MAX, 0),
            origin: Origin::of(inputs, names),
            link_types,
            owners,
            before_ns: None,
            first_ns: None,
        })
    }

    /// Moves the packets that were not written completely to the losses.
    pub(super) fn charge(&self, report: &mut Report) {
        self.losses.charge(report, self.losses.total());
    }

    pub(super) fn owners(&self) -> Option<&Owners> {
        self.owners.as_ref()
    }

    pub(super) fn begin_batch(&mut self, input: usize) {
        self.input = input;
        if let Some(link_type) = self.link_types.get(input) {
            self.options.link_type = *link_type;
        }
        if let Some(origin) = &mut self.origin {
            origin.begin_batch(input);
        }
    }

    pub(super) fn take(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        self.time(frame.timestamp_ns);
        if let Some(origin) = &mut self.origin {
            origin.write(&mut self.lines, frame);
        }
        let detail = self.shown.detail();
        let (line, options) = (&mut self.lines, &self.options);
        // Writing to a String cannot fail.
        let _ = match &mut self.sequences {
            Some(known) => summary::write_relative(line, frame.bytes, frame.wire_len, options, detail, known),
            None => summary::write_detailed(line, frame.bytes, frame.wire_len, options, detail),
        };
        if let Some(owners) = &mut self.owners {
            let _ = match owners.of(frame)? {
                Some(found) => write!(self.lines, ", owner {}", OwnerText(&found.owner)),
                None => write!(self.lines, ", owner unknown"),
            };
        }
        if let Some((form, whole)) = self.shown.dump() {
            let header = summary::link_header_len(self.options.link_type, frame.bytes);
            let bytes = &frame.bytes[if whole { 0 } else { header }..];
            let _ = summary::write_dump(&mut self.lines, bytes, form);
        }
        self.lines.push('\n');
        self.ends.push((self.lines.len(), self.input));
        if self.prompt || self.lines.len() >= BUFFERED_BYTES_MAX { self.flush() } else { Ok(()) }
    }

    /// Writes the time at the start of a line, in the format of -t.
    fn time(&mut self, timestamp_ns: u64) {
        let before_ns = self.before_ns.replace(timestamp_ns).unwrap_or(timestamp_ns);
        let first_ns = *self.first_ns.get_or_insert(timestamp_ns);
        let local_ns = self.local_ns(timestamp_ns);
        // Writing to a String cannot fail.
        let _ = match self.shown.time {
            0 => summary::write_time(&mut self.lines, local_ns),
            1 => return,
            2 => summary::write_epoch(&mut self.lines, timestamp_ns),
            3 => summary::write_elapsed(&mut self.lines, before_ns, timestamp_ns),
            4 => summary::write_date_time(&mut self.lines, local_ns),
            _ => summary::write_elapsed(&mut self.lines, first_ns, timestamp_ns),
        };
        self.lines.push(' ');
    }

    /// Converts a timestamp to local time, like tcpdump.
    fn local_ns(&mut self, timestamp_ns: u64) -> u64 {
        let quarter = timestamp_ns / QUARTER_NS;
        if self.zone.0 != quarter {
            self.zone = (quarter, clock::local_offset_s((timestamp_ns / 1_000_000_000) as i64));
        }
        timestamp_ns.saturating_add_signed(self.zone.1 * 1_000_000_000)
    }

    pub(super) fn flush(&mut self) -> Result<(), Error> {
        let mut written = 0;
        let mut result = Ok(());
        while written < self.lines.len() && result.is_ok() {
            match self.out.write(&self.lines.as_bytes()[written..]) {
                Ok(0) => result = Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => result = Err(error),
            }
        }
        for (_, input) in self.ends.drain(..).filter(|&(end, _)| end > written) {
            self.losses.lose_one_of(input);
        }
        self.lines.clear();
        result.map_err(Error::Output)
    }
}
