//! Dropped packets as lines and in a file.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::time::Instant;

use strait_capture::drops::{Monitor, Packet};
use strait_capture::sink::{FileSink, FrameRef, LinkType, SinkInterface, SinkOptions, Target};
use strait_ledger::Grouped;
use strait_os::clock;
use strait_packet::summary::{self, link_type};

use super::Args;
use super::table::Table;
use crate::Error;
use crate::limit::Limit;
use crate::output;

/// Maximum number of packets that are read at once. Signals and intervals are checked after them.
const BATCH_MAX: usize = 4096;
/// Maximum number of packets that are read at the end: more than the ring has.
const LAST_MAX: usize = 1 << 17;
/// Interfaces of a file, each with its link type.
const LINKS: [(u16, &str); 2] =
    [(link_type::ETHERNET, "drops"), (link_type::RAW, "drops without a link header")];
/// Maximum buffered bytes of lines.
const BUFFERED_BYTES_MAX: usize = 1 << 16;

/// Outputs of dropped packets.
pub(super) struct Packets {
    file: Option<FileSink>,
    prints: bool,
    limit: Limit,
    hidden: u64,
    /// Packets that are not in the file, because they have no known header.
    headerless: u64,
    lines: String,
    is_prompt: bool,
}

impl Packets {
    /// Opens the file, if one is given.
    pub(super) fn open(args: &Args) -> Result<Self, Error> {
        Ok(Self {
            file: args.write.as_deref().map(|file| create(args, file)).transpose()?,
            prints: args.packets,
            limit: Limit::new(args.lines, args.interval, Instant::now()),
            hidden: 0,
            headerless: 0,
            lines: String::new(),
            is_prompt: args.writes_stdout(),
        })
    }

    /// Starts the thread that compresses the file, if it is compressed. The thread gets the
    /// capabilities of this one, so these are dropped before.
    pub(super) fn start(&mut self) -> Result<(), Error> {
        Ok(self.file.as_mut().map_or(Ok(()), FileSink::start)?)
    }

    /// Reads packets. Returns true if there may be more.
    pub(super) fn take(
        &mut self,
        monitor: &mut Monitor,
        table: &mut Table,
        is_end: bool,
    ) -> Result<bool, Error> {
        let maximum = if is_end { LAST_MAX } else { BATCH_MAX };
        self.hidden += self.limit.renew(Instant::now(), false).unwrap_or(0);
        let mut taken = 0;
        while taken < maximum && self.take_one(monitor, table)? {
            taken += 1;
        }
        if is_end {
            self.hidden += self.limit.renew(Instant::now(), true).unwrap_or(0);
        }
        self.flush_lines()?;
        if let Some(file) = self.file.as_mut().filter(|_| self.is_prompt && taken > 0) {
            file.flush()?;
        }
        if let Some(file) = &mut self.file {
            file.flush_due(Instant::now())?;
        }
        Ok(taken == maximum)
    }

    fn take_one(&mut self, monitor: &mut Monitor, table: &mut Table) -> Result<bool, Error> {
        let Some(packet) = monitor.next_packet() else { return Ok(false) };
        let is_shown = self.prints && self.limit.permits();
        if !is_shown && self.file.is_none() {
            return Ok(true);
        }
        let reason = table.describe(&packet.place);
        if is_shown {
            self.print(&packet, &reason);
        }
        if let Some(file) = &mut self.file {
            // It would be an empty packet in the file.
            if packet.bytes.is_empty() {
                self.headerless += 1;
                return Ok(true);
            }
            file.write(&FrameRef {
                timestamp_ns: packet.timestamp_ns,
                bytes: packet.bytes,
                wire_len: packet.wire_len,
                interface: LINKS.iter().position(|(link, _)| *link == packet.link_type).unwrap_or(0) as u32,
                comment: Some(&format!("dropped: {reason}")),
                ..FrameRef::default()
            })?;
        }
        if self.lines.len() >= BUFFERED_BYTES_MAX {
            self.flush_lines()?;
        }
        Ok(true)
    }

    fn print(&mut self, packet: &Packet<'_>, reason: &str) {
        let seconds = (packet.timestamp_ns / 1_000_000_000) as i64;
        let offset_ns = clock::local_offset_s(seconds) * 1_000_000_000;
        let options = summary::Options { link_type: packet.link_type, ..summary::Options::default() };
        let out = &mut self.lines;
        // Writing to a String cannot fail.
        let _ = summary::write_time(out, packet.timestamp_ns.saturating_add_signed(offset_ns));
        out.push(' ');
        if packet.bytes.is_empty() {
            out.push_str("packet without a known header");
        } else {
            let _ = summary::write(out, packet.bytes, packet.wire_len, &options);
        }
        let _ = writeln!(out, ", dropped: {reason}");
    }

    fn flush_lines(&mut self) -> Result<(), Error> {
        let lines = std::mem::take(&mut self.lines);
        if lines.is_empty() { Ok(()) } else { Ok(output::print_text(&lines)?) }
    }

    /// Returns the number of packets that had no line since the last call, if there are any.
    pub(super) fn take_hidden(&mut self) -> Option<u64> {
        Some(std::mem::take(&mut self.hidden)).filter(|hidden| *hidden > 0)
    }

    /// Returns the number of packets since the start that are not in the file, because they have no
    /// known header.
    pub(super) fn headerless(&self) -> u64 {
        self.headerless
    }

    /// Completes the file.
    pub(super) fn close(self) -> Result<(), Error> {
        if let Some(file) = self.file {
            let summary = file.close(&[])?;
            let packets = Grouped(summary.packets);
            output::print_stderr(format_args!("wrote {packets} packets to {}\n", summary.last_file));
        }
        Ok(())
    }
}

fn create(args: &Args, file: &str) -> Result<FileSink, Error> {
    if file == "-" && io::stdout().is_terminal() {
        let text = "-w - would write to the terminal: redirect it, or give -w a file";
        return Err(Error::Usage(text.into()));
    }
    let interface = |(link, name): (u16, &str)| SinkInterface {
        linktype: LinkType(link),
        snaplen: args.snaplen,
        name: Some(args.interface.clone().unwrap_or_else(|| name.to_owned())),
        ..SinkInterface::default()
    };
    Ok(FileSink::create(SinkOptions {
        interfaces: LINKS.map(interface).to_vec(),
        ..SinkOptions::new(Target::parse(file), clock::realtime_ns())
    })?)
}
