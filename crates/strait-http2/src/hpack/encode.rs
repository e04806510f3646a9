//! Encoder of header blocks, with the static table alone.

use super::fixed::STATIC;
use super::huffman;

/// Index of the first entry with a name other than a pseudo-header field's.
const FIRST_NAME: usize = 14;
/// For each letter and the one after the last, the index of the first entry with it or a later one:
/// these entries are sorted by name.
const FIRST_OF_LETTER: [u8; 27] = first_of_letter();

const fn first_of_letter() -> [u8; 27] {
    let (mut firsts, mut letter, mut at) = ([0; 27], 0, FIRST_NAME);
    while letter < firsts.len() {
        while at < STATIC.len() && (STATIC[at].0.as_bytes()[0] as usize) < b'a' as usize + letter {
            at += 1;
        }
        firsts[letter] = at as u8;
        letter += 1;
    }
    firsts
}

/// Appends the announcement that the encoder uses no dynamic table. It must come first in the first
/// block of a connection, and then holds for every later size that the peer allows.
pub fn forget_table(out: &mut Vec<u8>) {
    out.push(0x20);
}

/// Appends a field. The name is in lower case.
pub fn encode(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    match find(name, value) {
        (index, true) => integer(index, 7, 0x80, out),
        (index, false) => {
            integer(index, 4, 0, out);
            if index == 0 {
                string(name, out);
            }
            string(value, out);
        }
    }
}

/// Longest name in bytes that is converted to lower case without an allocation.
const NAME_BYTES: usize = 64;
/// Strings of fewer bytes have one byte for their length.
const SHORT_MAX: usize = 127;

/// Appends a field, with its name in lower case (RFC 9113, section 8.2).
pub fn encode_lower(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let mut room = [0; NAME_BYTES];
    match room.get_mut(..name.len()) {
        Some(lower) => {
            lower.copy_from_slice(name);
            lower.make_ascii_lowercase();
            encode(lower, value, out);
        }
        None => encode(&name.to_ascii_lowercase(), value, out),
    }
}

/// Appends the value of a field, which `write` appends, after the encoding of its name. Without
/// Huffman's code, for which the length must be known first.
pub fn encode_value_by(write: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    let start = out.len();
    out.push(0);
    write(out);
    let len = out.len() - start - 1;
    if len < SHORT_MAX {
        out[start] = len as u8;
    } else {
        let value = out.split_off(start + 1);
        out.truncate(start);
        string(&value, out);
    }
}

/// Returns the index of a static entry with that name, or 0, and true if it has the value.
fn find(name: &[u8], value: &[u8]) -> (usize, bool) {
    if name.starts_with(b":") {
        let has_name = |(_, entry): &(usize, &(&str, &str))| entry.0.as_bytes() == name;
        let entries = || STATIC.iter().take(FIRST_NAME).enumerate().filter(has_name);
        let exact = entries().find(|(_, entry)| entry.1.as_bytes() == value);
        return match exact {
            Some((at, _)) => (at + 1, true),
            None => (entries().next().map_or(0, |(at, _)| at + 1), false),
        };
    }
    let Some(letter) = name.first().and_then(|first| first.checked_sub(b'a')).map(usize::from) else {
        return (0, false);
    };
    let Some(&[first, end]) = FIRST_OF_LETTER.get(letter..).and_then(<[u8]>::first_chunk) else {
        return (0, false);
    };
    let mut candidates = usize::from(first)..usize::from(end);
    // Names of other lengths are skipped without a comparison of their bytes.
    let found = candidates.find(|at| STATIC[*at].0.as_bytes() == name);
    (found.map_or(0, |at| at + 1), false)
}

/// Appends an integer with a prefix of `bits` behind the bits of `first` (RFC 7541, section 5.1).
fn integer(value: usize, bits: u8, first: u8, out: &mut Vec<u8>) {
    let prefix_max = (1 << bits) - 1;
    if value < prefix_max {
        out.push(first | value as u8);
        return;
    }
    out.push(first | prefix_max as u8);
    let mut rest = value - prefix_max;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn string(text: &[u8], out: &mut Vec<u8>) {
    let coded_len = huffman::coded_len(text);
    if coded_len < text.len() {
        integer(coded_len, 7, 0x80, out);
        huffman::encode(text, out);
    } else {
        integer(text.len(), 7, 0, out);
        out.extend_from_slice(text);
    }
}
