//! Keys, read from the terminal.
//!
//! It replaces crossterm's reader. After a hang-up of the terminal that reader loops for ever, and
//! it blocks in the middle of an escape sequence. This one never waits longer than its timeout.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use strait_sys::wait;

use crate::Error;

/// Time limit for the rest of an escape sequence. An escape without a rest is the key.
const SEQUENCE_TIMEOUT: Duration = Duration::from_millis(50);
/// Maximum bytes of an incomplete sequence. Longer ones are discarded, as no key sends them.
const SEQUENCE_MAX: usize = 32;

const ESCAPE: u8 = 0x1b;

/// The terminal's input.
pub(super) struct Keyboard {
    terminal: File,
    /// The received part of an incomplete sequence.
    begun: Vec<u8>,
}

impl Keyboard {
    /// Opens standard input if that is a terminal, else the controlling terminal, like crossterm.
    pub(super) fn open() -> Result<Self, Error> {
        let input = io::stdin();
        let terminal = if input.is_terminal() {
            input.as_fd().try_clone_to_owned().map(File::from)
        } else {
            File::open("/dev/tty")
        };
        let terminal = terminal.map_err(|error| Error::Failed(format!("read the terminal: {error}")))?;
        Ok(Self { terminal, begun: Vec::new() })
    }

    /// Returns the pressed keys, after at most `timeout` if there are none. Returns `None` after a
    /// hang-up of the terminal.
    pub(super) fn read(&mut self, timeout: Duration) -> Result<Option<Vec<KeyEvent>>, Error> {
        let timeout = if self.begun.is_empty() { timeout } else { SEQUENCE_TIMEOUT };
        let [ready] = wait::readable([Some(self.terminal.as_fd())], timeout)?;
        if !ready.readable {
            let alone = std::mem::take(&mut self.begun) == [ESCAPE];
            let keys = if alone { vec![KeyCode::Esc.into()] } else { Vec::new() };
            return Ok((!ready.failed).then_some(keys));
        }
        let mut bytes = [0; 1024];
        // After a hang-up read(2) returns 0 or EIO.
        let Ok(len @ 1..) = self.terminal.read(&mut bytes) else { return Ok(None) };
        self.begun.extend_from_slice(&bytes[..len]);
        let mut keys = Vec::new();
        while let Decoded::Key(len, key) = decode(&self.begun) {
            self.begun.drain(..len);
            keys.extend(key);
        }
        if self.begun.len() > SEQUENCE_MAX {
            self.begun.clear();
        }
        Ok(Some(keys))
    }
}

/// Result of decoding the first bytes of the input.
#[derive(Debug, PartialEq)]
enum Decoded {
    /// A sequence of this many bytes, and its key if it is a known one.
    Key(usize, Option<KeyEvent>),
    /// An incomplete sequence.
    Begun,
}

fn decode(bytes: &[u8]) -> Decoded {
    match bytes {
        [] | [ESCAPE] | [ESCAPE, b'O'] => Decoded::Begun,
        [ESCAPE, b'[', rest @ ..] => decode_sequence(rest),
        [ESCAPE, b'O', last, ..] => Decoded::Key(3, named(&[], *last).map(KeyEvent::from)),
        [ESCAPE, ESCAPE, ..] => Decoded::Key(1, Some(KeyCode::Esc.into())),
        [ESCAPE, rest @ ..] => match decode_letter(rest) {
            Decoded::Key(len, key) => Decoded::Key(
                1 + len,
                key.map(|key| KeyEvent::new(key.code, key.modifiers | KeyModifiers::ALT)),
            ),
            Decoded::Begun => Decoded::Begun,
        },
        _ => decode_letter(bytes),
    }
}

/// Decodes the bytes after `ESC [` (ECMA-48 s5.4): parameters, and one final byte.
fn decode_sequence(rest: &[u8]) -> Decoded {
    match rest.iter().position(|byte| (0x40..0x7f).contains(byte)) {
        Some(at) => Decoded::Key(2 + at + 1, named(&rest[..at], rest[at]).map(KeyEvent::from)),
        None => Decoded::Begun,
    }
}

/// Returns the key of a sequence, as xterm(1) and the Linux console (console_codes(4)) send it.
fn named(parameters: &[u8], last: u8) -> Option<KeyCode> {
    Some(match (parameters, last) {
        (_, b'A') => KeyCode::Up,
        (_, b'B') => KeyCode::Down,
        (_, b'H') | (b"1" | b"7", b'~') => KeyCode::Home,
        (b"5", b'~') => KeyCode::PageUp,
        (b"6", b'~') => KeyCode::PageDown,
        _ => return None,
    })
}

/// Decodes a character or a control character.
fn decode_letter(bytes: &[u8]) -> Decoded {
    let one = |code: KeyCode| Decoded::Key(1, Some(code.into()));
    match bytes[0] {
        b'\r' | b'\n' => one(KeyCode::Enter),
        b'\t' => one(KeyCode::Tab),
        0x08 | 0x7f => one(KeyCode::Backspace),
        control @ 1..=26 => {
            let letter = KeyCode::Char(char::from(control - 1 + b'a'));
            Decoded::Key(1, Some(KeyEvent::new(letter, KeyModifiers::CONTROL)))
        }
        ..0x20 => Decoded::Key(1, None),
        _ => decode_utf8(bytes),
    }
}

fn decode_utf8(bytes: &[u8]) -> Decoded {
    let start = &bytes[..bytes.len().min(4)];
    let valid = match std::str::from_utf8(start) {
        Ok(text) => text,
        Err(error) if error.valid_up_to() > 0 => {
            std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(error) if error.error_len().is_none() => return Decoded::Begun,
        Err(_) => return Decoded::Key(1, None),
    };
    let letter = valid.chars().next();
    Decoded::Key(letter.map_or(1, char::len_utf8), letter.map(|letter| KeyCode::Char(letter).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all keys of `bytes`, and the remaining bytes.
    fn keys(mut bytes: &[u8]) -> (Vec<KeyEvent>, &[u8]) {
        let mut keys = Vec::new();
        while let Decoded::Key(len, key) = decode(bytes) {
            bytes = &bytes[len..];
            keys.extend(key);
        }
        (keys, bytes)
    }

    #[test]
    fn letters_and_named_keys_are_distinguished() {
        let (keys, rest) = keys("/ä\r\x7f\x1b[A\x1b[6~\x1bOH\x1b[99;1~\x1b\x1b[B".as_bytes());
        let codes: Vec<KeyCode> = keys.into_iter().map(|key| key.code).collect();
        let expected = [KeyCode::Char('/'), KeyCode::Char('ä'), KeyCode::Enter, KeyCode::Backspace];
        let moves = [KeyCode::Up, KeyCode::PageDown, KeyCode::Home, KeyCode::Esc, KeyCode::Down];
        assert_eq!((codes, rest), ([&expected[..], &moves[..]].concat(), &b""[..]));
    }

    #[test]
    fn control_and_alt_are_modifiers() {
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        let alt = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::ALT);
        assert_eq!(keys(b"\x03\x1bq").0, [control, alt]);
    }

    #[test]
    fn incomplete_sequences_wait_and_invalid_bytes_are_skipped() {
        for begun in [&b"\x1b"[..], b"\x1b[", b"\x1b[12", b"\x1bO", b"\xc3"] {
            assert_eq!(keys(begun), (Vec::new(), begun));
        }
        assert_eq!(keys(b"\xff\xc3q\0").0, [KeyEvent::from(KeyCode::Char('q'))]);
    }
}
