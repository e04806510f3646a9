//! Encoder of header blocks, with the static table alone.

use super::fixed::STATIC;
use super::huffman;

/// Index of the first entry with a name other than a pseudo-header field's.
const FIRST_NAME: usize = 14;

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
    // These entries are sorted by name.
    let names = &STATIC[FIRST_NAME..];
    match names.binary_search_by(|entry| entry.0.as_bytes().cmp(name)) {
        Ok(at) => (FIRST_NAME + at + 1, false),
        Err(_) => (0, false),
    }
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
