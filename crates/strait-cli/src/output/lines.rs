//! A line a packet on standard output, in tcpdump's manner, with tcpdump's options for what it
//! shows.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use clap::{ArgAction, Args as ClapArgs};
use strait_capture::Frame;
use strait_packet::summary::{self, Detail, Dump};
use strait_sys::clock;

use super::origin::Origin;
use crate::Error;

/// Options of the lines.
#[derive(Clone, Copy, Default, ClapArgs)]
// The group would be called Args, as the command's own is.
#[group(skip)]
pub(crate) struct Args {
    /// Print nothing for each packet
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Leave out the fields of transport headers
    #[arg(short = 'q', long)]
    quick: bool,
    /// Print MAC addresses, type and length of each frame
    #[arg(short = 'e', long)]
    link_header: bool,
    /// Print the fields of IP headers; -vv and -vvv are the same
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    /// Print the bytes behind the link header in hexadecimal; -xx with that header
    #[arg(short = 'x', long, action = ArgAction::Count)]
    hex: u8,
    /// Print the bytes in hexadecimal and as characters; -XX with the link header
    #[arg(short = 'X', long, action = ArgAction::Count)]
    hex_ascii: u8,
    /// Print the bytes as characters; -AA with the link header
    #[arg(short = 'A', long, action = ArgAction::Count)]
    ascii: u8,
    /// -t no time, -tt seconds since 1970, -ttt since the packet before, -tttt date and time,
    /// -ttttt since the first packet
    #[arg(short = 't', action = ArgAction::Count, value_parser = clap::value_parser!(u8).range(..=5))]
    time: u8,
    /// Write out each line at once
    #[arg(short = 'l', long)]
    line_buffered: bool,
    /// Print numbers for addresses and ports: always so
    #[arg(short = 'n', action = ArgAction::Count)]
    numeric: u8,
    /// Print absolute TCP sequence numbers: always so
    #[arg(short = 'S', long)]
    absolute_sequence: bool,
}

/// How each packet is printed; the options are all there is to know.
pub(crate) type Lines = Args;

impl Args {
    fn detail(&self) -> Detail {
        Detail { link: self.link_header, verbose: self.verbose > 0, quick: self.quick }
    }

    /// The form of the bytes below the line, and whether the link header is among them.
    fn dump(&self) -> Option<(Dump, bool)> {
        let forms = [(self.ascii, Dump::Ascii), (self.hex_ascii, Dump::HexAscii), (self.hex, Dump::Hex)];
        forms.into_iter().find(|(times, _)| *times > 0).map(|(times, form)| (form, times > 1))
    }
}

/// One line a packet.
pub(crate) struct Text {
    out: File,
    /// Whole lines that are not written yet.
    lines: String,
    /// Where in them each packet ends.
    ends: Vec<usize>,
    options: summary::Options,
    shown: Lines,
    /// Each line is written at once: a person is watching, or asked for it.
    prompt: bool,
    /// Packets not written whole.
    lost: u64,
    /// A quarter of an hour since the epoch, in which no clock is changed, and the local time's
    /// distance from UTC then.
    zone: (u64, i64),
    /// On all interfaces: which one.
    origin: Option<Origin>,
    /// When the packet before came, and the first.
    before_ns: Option<u64>,
    first_ns: Option<u64>,
}

const QUARTER_NS: u64 = 900 * 1_000_000_000;

/// Bytes of lines gathered before they are written.
const GATHERED_BYTES_MAX: usize = 1 << 16;

impl Text {
    /// Lines on standard output.
    pub(crate) fn open(link_type: u32, shown: Lines) -> Result<Self, Error> {
        let origin = Origin::of(link_type);
        let out = io::stdout().as_fd().try_clone_to_owned().map_err(Error::Output)?.into();
        let link_type = u16::try_from(link_type).unwrap_or(u16::MAX);
        Ok(Self {
            out,
            lines: String::new(),
            ends: Vec::new(),
            options: summary::Options { link_type, ..summary::Options::default() },
            shown,
            prompt: shown.line_buffered || io::stdout().is_terminal(),
            lost: 0,
            zone: (u64::MAX, 0),
            origin,
            before_ns: None,
            first_ns: None,
        })
    }

    /// Packets not written whole since the start.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn take(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        self.time(frame.timestamp_ns);
        if let Some(origin) = &mut self.origin {
            origin.write(&mut self.lines, frame);
        }
        let detail = self.shown.detail();
        // Writing to a String cannot fail.
        let _ = summary::write_detailed(&mut self.lines, frame.bytes, frame.wire_len, &self.options, detail);
        if let Some((form, whole)) = self.shown.dump() {
            let header = summary::link_header_len(self.options.link_type, frame.bytes);
            let bytes = &frame.bytes[if whole { 0 } else { header }..];
            let _ = summary::write_dump(&mut self.lines, bytes, form);
        }
        self.lines.push('\n');
        self.ends.push(self.lines.len());
        if self.prompt || self.lines.len() >= GATHERED_BYTES_MAX { self.flush() } else { Ok(()) }
    }

    /// The time before a line, as -t asks for it.
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

    /// The local time, as tcpdump prints it.
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
        self.lost += self.ends.iter().filter(|&&end| end > written).count() as u64;
        self.lines.clear();
        self.ends.clear();
        result.map_err(Error::Output)
    }
}
