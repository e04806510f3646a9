//! Outputs of captured packets: a file, one line per packet on standard output, or a count only.

mod file;
mod lines;
mod origin;

use std::fmt::Display;
use std::io::{self, Write};
use std::time::Instant;

use serde::Serialize;
use strait_capture::Frame;
use strait_capture::sink::{SinkError, Summary};
use strait_ledger::Report;

use self::file::FileOutput;
pub(crate) use self::file::{Args, written};
use self::lines::Text;
pub(crate) use self::lines::{Args as LineArgs, Lines};
use crate::Error;
use crate::lanes::Taker;
use crate::standard::Streams;

/// Origin of the packets, for the header of an output file.
pub(crate) struct Source<'a> {
    /// Name of the interface or of the input file.
    pub(crate) interface: &'a str,
    /// Text of the filter.
    pub(crate) filter: &'a str,
    /// Maximum stored bytes of a packet.
    pub(crate) snaplen: u32,
    /// A `LINKTYPE_*` value.
    pub(crate) link_type: u32,
    /// True if no packet is printed.
    pub(crate) silent: bool,
    /// Format of the printed packets.
    pub(crate) lines: Lines,
}

/// An output of captured packets.
pub(crate) enum Output {
    File(Box<FileOutput>),
    Text(Box<Text>),
    Nothing,
}

impl Output {
    /// Returns true if packets are printed as lines. The live line must then not be drawn.
    pub(crate) fn prints_packets(&self) -> bool {
        matches!(self, Self::Text(_))
    }

    /// Completes the output: writes a file's statistics and gives it its final name, or flushes
    /// text. Returns a summary of the files.
    pub(crate) fn close(self, report: &Report) -> Result<Option<Summary>, Error> {
        match self {
            Self::File(file) => file.close(report).map(Some),
            Self::Text(mut text) => text.flush().map(|()| None),
            Self::Nothing => Ok(None),
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
    // Inlined, so that a capture that only counts has no call per packet.
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
            Self::Text(text) => text.lost(),
            Self::Nothing => 0,
        }
    }

    fn written_bytes(&self) -> Option<u64> {
        match self {
            Self::File(file) => Some(file.written_bytes()),
            Self::Text(_) | Self::Nothing => None,
        }
    }
}

/// Returns true if the reader of the output closed its pipe. That is not reported as an error.
pub(crate) fn is_reader_gone(error: &Error) -> bool {
    match error {
        Error::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
        Error::Sink(error) => matches!(error, SinkError::ReaderGone { .. }),
        _ => false,
    }
}

/// Prints an account as text or as one JSON object.
pub(crate) fn print_account(account: &(impl Display + Serialize), json: bool) -> Result<(), Error> {
    print_notice(&account_text(account, json)?)
}

/// Prints one line on standard output, or nothing if that was closed at the start of the program.
/// [`Streams`](crate::standard::Streams) has then already refused output that the user requested.
pub(crate) fn print_notice(line: &str) -> Result<(), Error> {
    if strait_sys::stdio::is_output_closed() { Ok(()) } else { print_line(line) }
}

/// Returns an account as text, without the end of the last line.
pub(crate) fn account_text(account: &(impl Display + Serialize), json: bool) -> Result<String, Error> {
    if !json {
        return Ok(account.to_string().trim_end().to_owned());
    }
    serde_json::to_string(account).map_err(|error| Error::Failed(error.to_string()))
}

/// Prints a message on standard error. A failed write is ignored: its reader may be gone.
pub(crate) fn tell(text: std::fmt::Arguments<'_>) {
    let _ = io::stderr().write_fmt(text);
}

/// Prints one line on standard output.
pub(crate) fn print_line(line: &str) -> Result<(), Error> {
    print_text(&format!("{line}\n"))
}

/// Prints text on standard output.
pub(crate) fn print_text(text: &str) -> Result<(), Error> {
    Streams::output(true).check()?;
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)
}
