//! Keys, read from the terminal.
//!
//! It never waits longer than its timeout, also in the middle of an escape sequence and after a
//! hang-up of the terminal.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::time::Duration;

use strait_os::wait;

use crate::{Error, terminal};

/// Time limit for the rest of an escape sequence. An escape without a rest is the key.
const SEQUENCE_TIMEOUT: Duration = Duration::from_millis(50);
/// Maximum bytes of an incomplete sequence. Longer ones are discarded, as no key sends them.
const SEQUENCE_MAX: usize = 32;

const ESCAPE: u8 = 0x1b;

/// Pressed key, with its modifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) code: Code,
    pub(super) control: bool,
    pub(super) alt: bool,
}

/// Key without modifiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Char(char),
    Enter,
    Escape,
    Tab,
    Backspace,
    Up,
    Down,
    Home,
    PageUp,
    PageDown,
}

impl From<Code> for Key {
    fn from(code: Code) -> Self {
        Self { code, control: false, alt: false }
    }
}

/// The terminal's input.
pub(super) struct Keyboard {
    terminal: File,
    /// The received part of an incomplete sequence.
    begun: Vec<u8>,
}

impl Keyboard {
    /// Opens the terminal's input.
    pub(super) fn open() -> Result<Self, Error> {
        let terminal = terminal::input();
        let terminal = terminal.map_err(|error| Error::Failed(format!("read the terminal: {error}")))?;
        Ok(Self { terminal, begun: Vec::new() })
    }

    /// Returns the pressed keys, after at most `timeout` if there are none. Returns `None` after a
    /// hang-up of the terminal.
    pub(super) fn read(&mut self, timeout: Duration) -> Result<Option<Vec<Key>>, Error> {
        let timeout = if self.begun.is_empty() { timeout } else { SEQUENCE_TIMEOUT };
        let [ready] = wait::readable([Some(self.terminal.as_fd())], timeout)?;
        if !ready.readable {
            let alone = std::mem::take(&mut self.begun) == [ESCAPE];
            let keys = if alone { vec![Code::Escape.into()] } else { Vec::new() };
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
    Key(usize, Option<Key>),
    /// An incomplete sequence.
    Begun,
}

fn decode(bytes: &[u8]) -> Decoded {
    match bytes {
        [] | [ESCAPE] | [ESCAPE, b'O'] => Decoded::Begun,
        [ESCAPE, b'[', rest @ ..] => decode_sequence(rest),
        [ESCAPE, b'O', last, ..] => Decoded::Key(3, named(&[], *last).map(Key::from)),
        [ESCAPE, ESCAPE, ..] => Decoded::Key(1, Some(Code::Escape.into())),
        [ESCAPE, rest @ ..] => match decode_letter(rest) {
            Decoded::Key(len, key) => Decoded::Key(1 + len, key.map(|key| Key { alt: true, ..key })),
            Decoded::Begun => Decoded::Begun,
        },
        _ => decode_letter(bytes),
    }
}

/// Decodes the bytes after `ESC [` (ECMA-48 s5.4): parameters, and one final byte.
fn decode_sequence(rest: &[u8]) -> Decoded {
    match rest.iter().position(|byte| (0x40..0x7f).contains(byte)) {
        Some(at) => Decoded::Key(2 + at + 1, named(&rest[..at], rest[at]).map(Key::from)),
        None => Decoded::Begun,
    }
}

/// Returns the key of a sequence, as xterm(1) and the Linux console (console_codes(4)) send it.
fn named(parameters: &[u8], last: u8) -> Option<Code> {
    Some(match (parameters, last) {
        (_, b'A') => Code::Up,
        (_, b'B') => Code::Down,
        (_, b'H') | (b"1" | b"7", b'~') => Code::Home,
        (b"5", b'~') => Code::PageUp,
        (b"6", b'~') => Code::PageDown,
        _ => return None,
    })
}

/// Decodes a character or a control character.
fn decode_letter(bytes: &[u8]) -> Decoded {
    let one = |code: Code| Decoded::Key(1, Some(code.into()));
    match bytes[0] {
        b'\r' | b'\n' => one(Code::Enter),
        b'\t' => one(Code::Tab),
        0x08 | 0x7f => one(Code::Backspace),
        control @ 1..=26 => {
            let letter = Code::Char(char::from(control - 1 + b'a'));
            Decoded::Key(1, Some(Key { control: true, ..letter.into() }))
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
    Decoded::Key(letter.map_or(1, char::len_utf8), letter.map(|letter| Code::Char(letter).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all keys of `bytes`, and the remaining bytes.
    fn keys(mut bytes: &[u8]) -> (Vec<Key>, &[u8]) {
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
        let codes: Vec<Code> = keys.into_iter().map(|key| key.code).collect();
        let expected = [Code::Char('/'), Code::Char('ä'), Code::Enter, Code::Backspace];
        let moves = [Code::Up, Code::PageDown, Code::Home, Code::Escape, Code::Down];
        assert_eq!((codes, rest), ([&expected[..], &moves[..]].concat(), &b""[..]));
    }

    #[test]
    fn control_and_alt_are_modifiers() {
        let control = Key { control: true, ..Code::Char('c').into() };
        let alt = Key { alt: true, ..Code::Char('q').into() };
        assert_eq!(keys(b"\x03\x1bq").0, [control, alt]);
    }

    #[test]
    fn incomplete_sequences_wait_and_invalid_bytes_are_skipped() {
        for begun in [&b"\x1b"[..], b"\x1b[", b"\x1b[12", b"\x1bO", b"\xc3"] {
            assert_eq!(keys(begun), (Vec::new(), begun));
        }
        assert_eq!(keys(b"\xff\xc3q\0").0, [Key::from(Code::Char('q'))]);
    }
}
