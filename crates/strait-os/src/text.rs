//! Text for a terminal.

/// Returns `text` with its control characters as escapes, as in `\u{1b}`, except line ends and
/// tabs. Characters that change the order or the lines of the text shown are escaped too.
///
/// Names of interfaces and files may contain control sequences of the terminal: Linux forbids only
/// `/`, `:` and blanks in the name of an interface, and only `/` in that of a file.
pub fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => printable.push(c),
            _ if c.is_control() => printable.extend(c.escape_debug()),
            _ if is_layout(c) => printable.extend(c.escape_unicode()),
            _ => printable.push(c),
        }
    }
    printable
}

/// Returns true for marks of the direction of writing (Unicode annex 9) and separators of lines.
fn is_layout(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_line_ends_are_kept() {
        assert_eq!(
            printable("e\x1b]0;T\x07: \u{9b}2J\r\n\tä\"'\\"),
            "e\\u{1b}]0;T\\u{7}: \\u{9b}2J\\r\n\tä\"'\\"
        );
    }

    #[test]
    fn marks_of_direction_and_separators_of_lines_are_escaped() {
        assert_eq!(printable("a\u{202e}b\u{2067}\u{2028}é"), "a\\u{202e}b\\u{2067}\\u{2028}é");
    }
}
