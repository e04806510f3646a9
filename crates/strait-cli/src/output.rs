//! Where captured packets go: to a file, to a line each on standard output, or nowhere but the
//! count.

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
    /// How each packet is printed.
    pub(crate) lines: Lines,
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

    /// Ends the output: a file gets its statistics and its name, text is flushed. Returns what is
    /// in the files.
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
    print_notice(&account_text(account, json)?)
}

/// Prints one line on standard output; where that was closed at the start, leaves it out. What a
/// user asked for is checked before: see [`Streams`](crate::standard::Streams).
pub(crate) fn print_notice(line: &str) -> Result<(), Error> {
    if strait_sys::stdio::is_output_closed() { Ok(()) } else { print_line(line) }
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
    Streams::output(true).check()?;
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)
}
