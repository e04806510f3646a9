//! Checks of text lines: lengths, headers, words, trailing blanks.
//!
//! `tidy` runs it on every text file, without parsing.

use crate::problem::Problem;
use crate::source::File;

/// Limit of a source file's lines; split longer files.
const FILE_LINES_MAX: usize = 600;
/// Extensions of source files.
const SOURCES: [&str; 5] = ["rs", "c", "h", "sh", "py"];

/// Marks of unfinished work, in any source file. Split so that this file passes its own check.
const UNFINISHED: [&str; 5] = [
    concat!("to", "do!("),
    concat!("unimpl", "emented!("),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("#[ig", "nore"),
];

/// Paths of one machine, forbidden in any file.
const MACHINE_PATHS: [&str; 6] = [
    concat!("/wo", "rk/"),
    concat!("/fa", "rm/"),
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/tm", "p/"),
];

/// Returns every problem in the lines of `file`.
pub(crate) fn check(file: &File) -> Vec<Problem> {
    let is_source = SOURCES.iter().any(|extension| file.has_extension(extension));
    let mut problems = Vec::new();
    let mut report = |line, what: String| problems.push(Problem::new(&file.path, line, what));
    if is_source && file.text.lines().count() > FILE_LINES_MAX {
        report(0, format!("longer than {FILE_LINES_MAX} lines: split it by subject"));
    }
    if file.has_extension("rs") && !file.text.starts_with("//!") {
        report(1, "does not begin with a //! header".into());
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        report(0, "does not end with a newline".into());
    }
    for (number, line) in file.lines() {
        if line.ends_with([' ', '\t', '\r']) {
            report(number, "blanks at the end of the line".into());
        }
        for word in UNFINISHED.iter().filter(|word| is_source && line.contains(**word)) {
            report(number, format!("{word}: finish it, or open an issue"));
        }
        for path in MACHINE_PATHS.iter().filter(|path| names_path(line, path)) {
            report(number, format!("{path}: a path of one machine"));
        }
    }
    problems
}

/// Returns true if `line` contains `path` at the start of a path, not further down.
fn names_path(line: &str, path: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "._-~}*)".contains(c);
    line.match_indices(path).any(|(at, _)| !line[..at].ends_with(continues))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(name: &str, text: &str) -> Vec<String> {
        check(&File { path: name.into(), text: text.into() }).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn tidy_file_has_no_problem() {
        assert!(problems("a.rs", "//! A header.\n\nfn main() {}\n").is_empty());
        assert!(problems("a.md", "# A title\n").is_empty());
        assert!(problems("empty", "").is_empty());
    }

    #[test]
    fn file_without_header_is_reported() {
        assert_eq!(problems("a.rs", "fn main() {}\n"), ["a.rs:1: does not begin with a //! header"]);
        assert!(problems("a.py", "pass\n").is_empty());
    }

    #[test]
    fn file_of_601_lines_is_reported() {
        let lines = |count| "//!\n".repeat(count);
        assert!(problems("a.rs", &lines(600)).is_empty());
        assert_eq!(problems("a.rs", &lines(601)), ["a.rs: longer than 600 lines: split it by subject"]);
        assert!(problems("a.json", &lines(601)).is_empty());
    }

    #[test]
    fn trailing_blanks_and_missing_newlines_are_reported() {
        assert_eq!(
            problems("a.md", "x \ny\t\n"),
            ["a.md:1: blanks at the end of the line", "a.md:2: blanks at the end of the line",]
        );
        assert_eq!(problems("a.md", "x"), ["a.md: does not end with a newline"]);
    }

    #[test]
    fn unfinished_work_is_reported_in_sources_only() {
        for word in UNFINISHED {
            let text = format!("//! h\n// {word}\n");
            assert_eq!(problems("a.rs", &text), [format!("a.rs:2: {word}: finish it, or open an issue")]);
            assert!(problems("a.md", &text).is_empty());
        }
    }

    #[test]
    fn paths_of_one_machine_are_reported_everywhere() {
        for path in MACHINE_PATHS {
            assert_eq!(
                problems("a.md", &format!("see {path}x\n")),
                [format!("a.md:1: {path}: a path of one machine")]
            );
            assert!(problems("a.md", &format!("see sub{path}x and ~{path}x\n")).is_empty());
        }
    }
}
