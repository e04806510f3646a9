//! Dump of a packet's bytes below its summary line: tcpdump's `-x`, `-X` and `-A`.

use std::fmt::{self, Write};

/// Format of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dump {
    /// `-x`: hexadecimal.
    Hex,
    /// `-X`: hexadecimal and printable characters.
    HexAscii,
    /// `-A`: printable characters only.
    Ascii,
}

/// Number of bytes in a line of hexadecimal digits.
const LINE_BYTES: usize = 16;
/// Number of columns of those digits: groups of two bytes with a blank between them.
const LINE_COLUMNS: usize = LINE_BYTES * 2 + LINE_BYTES / 2 - 1;

/// Writes `bytes` on lines of their own; each begins with a newline, and the last ends without one.
/// Bytes that could move a terminal's cursor are written as `.`, but for tabs and line ends in
/// [`Dump::Ascii`]. Fails only if `out` does.
pub fn write_dump(out: &mut impl Write, bytes: &[u8], dump: Dump) -> fmt::Result {
    if dump == Dump::Ascii {
        out.write_char('\n')?;
        return bytes.iter().filter(|&&byte| byte != b'\r').try_for_each(|&byte| match byte {
            b'\n' | b'\t' => out.write_char(byte.into()),
            byte => out.write_char(printable(byte)),
        });
    }
    bytes.chunks(LINE_BYTES).enumerate().try_for_each(|(line, bytes)| {
        write!(out, "\n\t0x{:04x}:  ", line * LINE_BYTES)?;
        let mut columns = 0;
        for (i, byte) in bytes.iter().enumerate() {
            let gap = if i > 0 && i % 2 == 0 { " " } else { "" };
            write!(out, "{gap}{byte:02x}")?;
            columns += gap.len() + 2;
        }
        if dump == Dump::Hex {
            return Ok(());
        }
        write!(out, "{:1$}  ", "", LINE_COLUMNS - columns)?;
        // Blanks are written as points here, so that the columns show the end of a line.
        bytes.iter().try_for_each(|&byte| out.write_char(if byte == b' ' { '.' } else { printable(byte) }))
    })
}

fn printable(byte: u8) -> char {
    if byte.is_ascii_graphic() || byte == b' ' { byte.into() } else { '.' }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dumped(bytes: &[u8], dump: Dump) -> String {
        let mut text = String::new();
        write_dump(&mut text, bytes, dump).unwrap();
        text
    }

    #[test]
    fn bytes_are_in_groups_of_two_with_their_characters_beside() {
        let bytes = b"GET / HTTP/1.1\r\n\x1bx";
        assert_eq!(
            dumped(bytes, Dump::HexAscii),
            "\n\t0x0000:  4745 5420 2f20 4854 5450 2f31 2e31 0d0a  GET./.HTTP/1.1..\
             \n\t0x0010:  1b78                                     .x"
        );
        assert_eq!(dumped(&bytes[16..], Dump::Hex), "\n\t0x0000:  1b78");
        assert_eq!(dumped(b"abc", Dump::Hex), "\n\t0x0000:  6162 63");
    }

    #[test]
    fn characters_alone_keep_line_ends_and_no_escapes() {
        assert_eq!(dumped(b"a\tb\r\n\x1b[2Jc\xff", Dump::Ascii), "\na\tb\n.[2Jc.");
        assert_eq!(dumped(b"", Dump::HexAscii), "");
    }
}
