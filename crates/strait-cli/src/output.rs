//! Where captured packets go: to a file, to a line each on standard output, or nowhere but the count.

mod file;
mod origin;

use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::Instant;

use serde::Serialize;
use strait_capture::Frame;
use strait_capture::sink::SinkError;
use strait_ledger::Report;
use strait_packet::summary;
use strait_sys::clock;

pub(crate) use self::file::Args;
use self::file::FileOutput;
use self::origin::Origin;
use crate::Error;
use crate::lanes::Taker;

/// What the packets come from, as a file's header tells it.
pub(crate) struct Source<'a> {
    /// The interface, or the file that is read.
    pub(crate) interface: &'a str,
    /// The filter's text.
    pub(crate) filter: &'a str,
    /// Bytes kept of each packet.
    pub(crate) snaplen: u32,
    /// `LINKTYPE_*`.
    pub(crate) link_type: u32,
    /// Print nothing for each packet.
    pub(crate) silent: bool,
}

/// One of the three.
pub(crate) enum Output {
    File(Box<FileOutput>),
    Text(Box<Text>),
    Nothing,
}

impl Output {
    /// Whether lines for packets go to the terminal, where no other line should be drawn.
    pub(crate) fn prints_packets(&self) -> bool {
        matches!(self, Self::Text(_))
    }

    /// Ends the output: a file gets its statistics and its name, text is flushed.
    pub(crate) fn close(self, report: &Report) -> Result<(), Error> {
        match self {
            Self::File(file) => file.close(report),
            Self::Text(mut text) => text.flush(),
            Self::Nothing => Ok(()),
        }
    }

    #[inline(never)]
    fn write(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        match self {
            Self::File(file) => file.take(frame),
            Self::Text(text) => text.take(frame),
            Self::Nothing => Ok(()),
        }
    }
}

impl Taker for Output {
    // Where packets are only counted, nothing is left of it.
    #[inline]
    fn take(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        match self {
            Self::Nothing => Ok(()),
            output => output.write(frame),
        }
    }

    fn batch_taken(&mut self) -> Result<(), Error> {
        match self {
            Self::File(file) => file.batch_taken(),
            Self::Text(_) | Self::Nothing => Ok(()),
        }
    }

    fn idle(&mut self, now: Instant) -> Result<(), Error> {
        match self {
            Self::File(file) => file.idle(now),
            Self::Text(text) => text.flush(),
            Self::Nothing => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        match self {
            Self::File(file) => file.flush(),
            Self::Text(text) => text.flush(),
            Self::Nothing => Ok(()),
        }
    }

    fn lost(&self) -> u64 {
        match self {
            Self::File(file) => file.lost(),
            Self::Text(text) => text.lost,
            Self::Nothing => 0,
        }
    }
}

/// One line a packet.
pub(crate) struct Text {
    out: File,
    /// Whole lines that are not written yet.
    lines: String,
    options: summary::Options,
    /// A person is watching: each line is shown at once.
    watched: bool,
    /// Packets whose line could not be written whole.
    lost: u64,
    /// A quarter of an hour since the epoch, in which no clock is changed, and the local time's distance from UTC then.
    zone: (u64, i64),
    /// On all interfaces: which one.
    origin: Option<Origin>,
}

const QUARTER_NS: u64 = 900 * 1_000_000_000;

/// Bytes of lines gathered before they are written.
const GATHERED_BYTES_MAX: usize = 1 << 16;

impl Text {
    /// Lines on standard output.
    pub(crate) fn open(link_type: u32) -> Result<Self, Error> {
        let origin = Origin::of(link_type);
        let out = io::stdout().as_fd().try_clone_to_owned().map_err(Error::Output)?.into();
        let link_type = u16::try_from(link_type).unwrap_or(u16::MAX);
        let options = summary::Options { link_type, ..summary::Options::default() };
        let watched = io::stdout().is_terminal();
        Ok(Self { out, lines: String::new(), options, watched, lost: 0, zone: (u64::MAX, 0), origin })
    }

    fn take(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        let local_ns = self.local_ns(frame.timestamp_ns);
        // Writing to a String cannot fail.
        let _ = summary::write_time(&mut self.lines, local_ns);
        self.lines.push(' ');
        if let Some(origin) = &mut self.origin {
            origin.write(&mut self.lines, frame);
        }
        let _ = summary::write(&mut self.lines, frame.bytes, frame.wire_len, &self.options);
        self.lines.push('\n');
        if self.watched || self.lines.len() >= GATHERED_BYTES_MAX { self.flush() } else { Ok(()) }
    }

    /// The time of day that clocks on the wall show, as tcpdump prints it.
    fn local_ns(&mut self, timestamp_ns: u64) -> u64 {
        let quarter = timestamp_ns / QUARTER_NS;
        if self.zone.0 != quarter {
            self.zone = (quarter, clock::local_offset_s((timestamp_ns / 1_000_000_000) as i64));
        }
        timestamp_ns.saturating_add_signed(self.zone.1 * 1_000_000_000)
    }

    fn flush(&mut self) -> Result<(), Error> {
        let mut left = self.lines.as_bytes();
        let mut result = Ok(());
        while !left.is_empty() && result.is_ok() {
            match self.out.write(left) {
                Ok(0) => result = Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => left = &left[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => result = Err(error),
            }
        }
        self.lost += left.split(|&byte| byte == b'\n').count() as u64 - 1;
        self.lines.clear();
        result.map_err(Error::Output)
    }
}

/// Whether whoever read our output went away: nobody needs to be told.
pub(crate) fn is_reader_gone(error: &Error) -> bool {
    match error {
        Error::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
        Error::Sink(error) => matches!(error, SinkError::ReaderGone { .. }),
        _ => false,
    }
}

/// Prints an account: text, or one JSON object.
pub(crate) fn print_account(account: &(impl Display + Serialize), json: bool) -> Result<(), Error> {
    print_line(&account_text(account, json)?)
}

/// An account as it is printed, without the end of the line.
pub(crate) fn account_text(account: &(impl Display + Serialize), json: bool) -> Result<String, Error> {
    if !json {
        return Ok(account.to_string().trim_end().to_owned());
    }
    serde_json::to_string(account).map_err(|error| Error::Failed(error.to_string()))
}

/// Tells the user something on standard error. Whoever reads that may be gone, which ends nothing.
pub(crate) fn tell(text: std::fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}

/// Prints one line on standard output.
pub(crate) fn print_line(line: &str) -> Result<(), Error> {
    print_text(&format!("{line}\n"))
}

/// Prints on standard output.
pub(crate) fn print_text(text: &str) -> Result<(), Error> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)
}
