//! Toolbar of an extcap interface in Wireshark: a line with the ledger, and a log.
//!
//! Wireshark gives two named pipes to the program of a capture. Each message in them is the byte
//! `T`, a length of 24 bits in network order, and so many bytes: number of the control, command,
//! value (Wireshark Developer's Guide, "Toolbar Controls"). `strait capture` and the capture by ssh
//! write here. A toolbar that is not read must not delay packets: both pipes are opened and used
//! without waiting, and a message that does not fit is dropped and counted.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use clap::Args as ClapArgs;
use rustix::fs::OFlags;
use strait_ledger::{Grouped, Report};

use crate::Error;

/// Controls of `strait extcap --extcap-interfaces`.
pub(crate) const CONTROLS: &str = "\
control {number=0}{type=string}{display=Ledger}{tooltip=Packets of this capture; each received one is delivered, filtered or lost}
control {number=1}{type=button}{role=logger}{display=Log}{tooltip=Losses and changes of the link}
";
const LEDGER: u8 = 0;
const LOG: u8 = 1;

/// Commands of messages.
const INITIALIZED: u8 = 0;
const SET: u8 = 1;
const ADD: u8 = 2;
const DISABLE: u8 = 5;

const SYNC: u8 = b'T';
/// Bytes of `SYNC` and the length.
const HEADER_BYTES: usize = 4;
/// Maximum bytes of a value; further ones are cut off. Such a message is written whole or not at
/// all, as it is shorter than `PIPE_BUF`.
const VALUE_BYTES_MAX: usize = 1024;
/// Maximum length of a received message, by the Developer's Guide.
const RECEIVED_BYTES_MAX: usize = 1 << 16;
/// Maximum log lines until Wireshark reads them.
const PENDING_MAX: usize = 64;

/// Pipes of a toolbar.
#[derive(Clone, Debug, Default, ClapArgs)]
// The group would have the name Args, like the group of the command.
#[group(skip)]
pub(crate) struct Args {
    /// Named pipe of messages from the toolbar
    #[arg(long, value_name = "FILE", hide = true)]
    extcap_control_in: Option<String>,
    /// Named pipe of messages to the toolbar
    #[arg(long, value_name = "FILE", hide = true)]
    extcap_control_out: Option<String>,
}

impl Args {
    /// Opens the toolbar, if there is one. To be called early: Wireshark waits until its pipe is
    /// open.
    ///
    /// # Errors
    /// The pipe from the toolbar cannot be opened.
    pub(crate) fn open(&self) -> Result<Option<Toolbar>, Error> {
        let (Some(input), Some(output)) = (&self.extcap_control_in, &self.extcap_control_out) else {
            return Ok(None);
        };
        let failed = |error| Error::Failed(format!("open {input}: {error}"));
        let input = nonblocking().read(true).open(input).map_err(failed)?;
        Ok(Some(Toolbar {
            input: Some((input, Messages::default())),
            path: output.clone(),
            output: None,
            is_ready: false,
            shown: String::new(),
            pending: Vec::new(),
            dropped: 0,
            lost: 0,
        }))
    }

    /// Returns the arguments for `strait capture`.
    pub(crate) fn forward(&self) -> Vec<String> {
        let options = [
            ("--extcap-control-in", &self.extcap_control_in),
            ("--extcap-control-out", &self.extcap_control_out),
        ];
        let given = |(option, value): (&str, &Option<String>)| Some([option.to_owned(), value.clone()?]);
        options.into_iter().filter_map(given).flatten().collect()
    }
}

fn nonblocking() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags(OFlags::NONBLOCK.bits() as i32);
    options
}

/// Open toolbar.
pub(crate) struct Toolbar {
    /// Pipe from the toolbar, until it ends or has another content.
    input: Option<(File, Messages)>,
    path: String,
    /// Pipe to the toolbar, since Wireshark reads it.
    output: Option<File>,
    /// True since Wireshark has made the controls.
    is_ready: bool,
    /// Text that Wireshark shows.
    shown: String,
    /// Lines of the log that are not sent yet; at most [`PENDING_MAX`].
    pending: Vec<String>,
    /// Lines of the log without a place.
    dropped: u64,
    /// Losses in the log.
    lost: u64,
}

impl Toolbar {
    /// Shows the ledger, and logs new losses.
    pub(crate) fn show(&mut self, report: &Report) {
        let lost = report.capture.lost.total();
        if lost > self.lost {
            self.log(&losses(report, lost - self.lost));
            self.lost = lost;
        }
        self.set(&ledger(report));
    }

    /// Shows a text, and sends the log.
    pub(crate) fn set(&mut self, text: &str) {
        self.receive();
        if !self.is_ready || !self.connect() {
            return;
        }
        // A later text replaces one that was not sent.
        if self.shown != text && self.send(LEDGER, SET, text) {
            text.clone_into(&mut self.shown);
        }
        while let Some(line) = self.pending.first().cloned() {
            if !self.send(LOG, ADD, &line) {
                return;
            }
            self.pending.remove(0);
        }
        if self.dropped > 0 && self.send(LOG, ADD, &format!("{} lines were dropped\n", self.dropped)) {
            self.dropped = 0;
        }
    }

    /// Adds a line to the log, to be sent with the next text.
    pub(crate) fn log(&mut self, line: &str) {
        if self.pending.len() < PENDING_MAX {
            self.pending.push(format!("{line}\n"));
        } else {
            self.dropped += 1;
        }
    }

    /// Reads messages of the toolbar. After the first one its controls exist.
    fn receive(&mut self) {
        let Some((input, messages)) = &mut self.input else { return };
        let mut buffer = [0; 4096];
        let is_open = match input.read(&mut buffer) {
            // Before Wireshark opens the pipe, its end is the same.
            Ok(0) => !self.is_ready,
            Ok(len) => match messages.take(&buffer[..len]) {
                Some(commands) => {
                    self.is_ready |= commands.contains(&INITIALIZED);
                    true
                }
                None => false,
            },
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        };
        if !is_open {
            self.input = None;
        }
    }

    /// Opens the pipe to the toolbar once Wireshark reads it.
    fn connect(&mut self) -> bool {
        if self.output.is_none() {
            self.output = nonblocking().write(true).open(&self.path).ok();
            if self.output.is_some() {
                // The line is not for input.
                self.send(LEDGER, DISABLE, "");
            }
        }
        self.output.is_some()
    }

    /// Sends a message. Returns false if it has no room, or the toolbar is closed.
    fn send(&mut self, control: u8, command: u8, value: &str) -> bool {
        let Some(output) = &mut self.output else { return false };
        let sent = output.write_all(&message(control, command, value));
        if sent.as_ref().is_err_and(|error| error.kind() != ErrorKind::WouldBlock) {
            self.output = None;
            self.is_ready = false;
        }
        sent.is_ok()
    }
}

/// Returns a message.
fn message(control: u8, command: u8, value: &str) -> Vec<u8> {
    let value = &value.as_bytes()[..value.floor_char_boundary(VALUE_BYTES_MAX)];
    let [_, length @ ..] = (value.len() as u32 + 2).to_be_bytes();
    [&[SYNC], &length[..], &[control, command], value].concat()
}

/// Commands in a stream of messages.
#[derive(Debug, Default)]
struct Messages {
    /// Bytes of an incomplete message.
    rest: Vec<u8>,
}

impl Messages {
    /// Returns the commands of the messages that these bytes complete; `None` if they are no
    /// messages.
    fn take(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.rest.extend_from_slice(bytes);
        let mut commands = Vec::new();
        loop {
            let Some(header) = self.rest.first_chunk::<HEADER_BYTES>() else { return Some(commands) };
            let [sync, a, b, c] = *header;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            if sync != SYNC || !(2..=RECEIVED_BYTES_MAX).contains(&length) {
                return None;
            }
            let Some(message) = self.rest.get(HEADER_BYTES..HEADER_BYTES + length) else {
                return Some(commands);
            };
            commands.push(message[1]);
            self.rest.drain(..HEADER_BYTES + length);
        }
    }
}

/// `received 5,003: delivered 5,000, filtered 3, lost 0`
fn ledger(report: &Report) -> String {
    let capture = &report.capture;
    let [received, delivered, filtered, lost] =
        [capture.received, capture.delivered, capture.filtered, capture.lost.total()].map(Grouped);
    format!("received {received}: delivered {delivered}, filtered {filtered}, lost {lost}")
}

/// `12 s: lost 5 packets more; in all ring full 5, sink 2`
fn losses(report: &Report, more: u64) -> String {
    let named = report.capture.lost.named().into_iter().filter(|(_, count)| *count > 0);
    let causes: Vec<String> =
        named.map(|(cause, count)| format!("{} {}", cause.replace('_', " "), Grouped(count))).collect();
    format!("{:.0} s: lost {} packets more; in all {}", report.seconds, Grouped(more), causes.join(", "))
}

#[cfg(test)]
mod tests {
    use strait_ledger::{Capture, Losses};

    use super::*;

    #[test]
    fn message_has_its_length_and_is_cut_between_characters() {
        assert_eq!(message(LOG, ADD, "ab\n"), b"T\0\0\x05\x01\x02ab\n");
        let long = message(LEDGER, SET, &"é".repeat(VALUE_BYTES_MAX));
        assert_eq!((long.len(), &long[..4]), (HEADER_BYTES + 2 + VALUE_BYTES_MAX, &b"T\0\x04\x02"[..]));
        assert!(std::str::from_utf8(&long[6..]).is_ok());
        assert!(message(0, 0, &"é".repeat(VALUE_BYTES_MAX)).len() < 4096);
    }

    #[test]
    fn messages_are_read_in_any_pieces() {
        let stream = [message(0, INITIALIZED, ""), message(7, SET, "value"), message(1, ADD, "")].concat();
        for piece in 1..=stream.len() {
            let mut messages = Messages::default();
            let commands: Vec<u8> =
                stream.chunks(piece).flat_map(|bytes| messages.take(bytes).unwrap()).collect();
            assert_eq!(commands, [INITIALIZED, SET, ADD], "{piece}");
            assert!(messages.rest.is_empty());
        }
    }

    #[test]
    fn other_bytes_are_no_messages() {
        for bytes in [&b"X\0\0\x02\0\0"[..], b"T\0\0\x01\0", b"T\0\0\0", b"T\x01\0\x01\0\0"] {
            assert_eq!(Messages::default().take(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn texts_have_the_ledger_and_the_causes_of_losses() {
        let lost = Losses { ring_full: 1200, ..Losses::default() };
        let capture = Capture { received: 6203, delivered: 5000, filtered: 3, lost, ..Capture::default() };
        let report = Report { seconds: 12.4, ..Report::from_lanes(Vec::new(), &capture) };
        assert_eq!(ledger(&report), "received 6,203: delivered 5,000, filtered 3, lost 1,200");
        assert_eq!(losses(&report, 7), "12 s: lost 7 packets more; in all ring full 1,200");
    }
}
