//! Text for a terminal.

/// Returns `text` with its control characters as escapes, as in `\u{1b}`, except line ends and
/// tabs.
///
/// Names of interfaces and files may contain control sequences of the terminal: Linux forbids only
/// `/`, `:` and blanks in the name of an interface, and only `/` in that of a file.
pub fn printable(text: &str) -> String {
    let is_escaped = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        if is_escaped(c) {
            printable.extend(c.escape_debug());
        } else {
            printable.push(c);
        }
    }
    printable
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
}
