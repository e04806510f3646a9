//! Regular expression for the paths of requests.
//!
//! The search takes a time proportional to the length of the path, whatever the expression, and
//! the expression is compiled with bounded memory at the start. It matches bytes: an encoded line
//! feed and bytes that are not UTF-8 match `.` like all others, so that a client cannot leave an
//! expression by them.

use regex::bytes::{Captures, Regex, RegexBuilder};
use strait_http::path::select_by_only;

/// Maximum length in bytes of the text.
const TEXT_BYTES_MAX: usize = 1024;
/// Maximum size in bytes of the compiled expression.
const PROGRAM_BYTES_MAX: usize = 64 << 10;
/// Maximum size in bytes of the memory for a search, once for each worker.
const SEARCH_BYTES_MAX: usize = 256 << 10;
/// Maximum depth of groups in each other.
const DEPTH_MAX: u32 = 32;

/// Regular expression for paths.
#[derive(Clone, Debug)]
pub(crate) struct PathRegex(Regex);

impl PartialEq for PathRegex {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for PathRegex {}

impl PathRegex {
    /// Compiles an expression.
    ///
    /// # Errors
    /// A reason of one line.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!("the expression is too long; the maximum is {TEXT_BYTES_MAX} bytes"));
        }
        let compiled = RegexBuilder::new(text)
            .unicode(false)
            .dot_matches_new_line(true)
            .size_limit(PROGRAM_BYTES_MAX)
            .dfa_size_limit(SEARCH_BYTES_MAX)
            .nest_limit(DEPTH_MAX)
            .build();
        compiled.map(Self).map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => {
                "the compiled expression is larger than 64KiB; use fewer or smaller repetitions".to_owned()
            }
            // The last line has the reason, after others that show its place.
            error => {
                let text = error.to_string();
                let reason = text.lines().last().unwrap_or_default();
                let reason = reason.strip_prefix("error: ").unwrap_or(reason);
                format!("this is not a regular expression: {reason}")
            }
        })
    }

    /// Returns the number of the group with that number or name.
    pub(crate) fn group(&self, name: &str) -> Option<usize> {
        match name.parse() {
            Ok(number) => (number < self.0.captures_len()).then_some(number),
            Err(_) => self.0.capture_names().position(|own| own == Some(name)),
        }
    }

    /// Returns the result of `replace` for the groups of the decoded path without its query;
    /// `None` if no part of the path matches, or programs read it differently.
    pub(crate) fn replaced<T>(&self, path: &str, replace: impl FnOnce(&Captures<'_>) -> T) -> Option<T> {
        select_by_only(path, |path| self.0.captures(path).map(|groups| replace(&groups)))?
    }

    /// Returns true if a part of the decoded path without its query matches; `None` if programs
    /// read the path differently. A URI without a path has `/`.
    pub(crate) fn matches(&self, path: &str) -> Option<bool> {
        if matches!(path.as_bytes().first(), None | Some(b'?')) {
            return Some(self.0.is_match(b"/"));
        }
        select_by_only(path, |path| self.0.is_match(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_of_the_decoded_path_matches() {
        for (text, path, expected) in [
            ("^/users/[0-9]+$", "/users/12?x", Some(true)),
            ("^/users/[0-9]+$", "/us%65rs/%31", Some(true)),
            ("^/users/[0-9]+$", "/users/12/x", Some(false)),
            ("^/users/[0-9]+$", "/users/12%0a", Some(false)),
            ("^/users/[0-9]+$", "/users//12", None),
            ("^/users/[0-9]+$", "/users/12;x", None),
            ("^/users/[0-9]+$", "/x/../users/12", None),
            (r"\.php$", "/a/b.php?x", Some(true)),
            (r"\.php$", "/a/b.PHP", Some(false)),
            (r"(?i)\.php$", "/a/b.P%48P", Some(true)),
            (r"^/secret/.+$", "/secret/a%0a", Some(true)),
            (r"^/secret/[^/]+$", "/secret/%ff%C3", Some(true)),
            ("^/é$", "/%C3%A9", Some(true)),
            ("^/$", "", Some(true)),
            ("^/$", "?x", Some(true)),
            ("x", "/?x", Some(false)),
        ] {
            assert_eq!(PathRegex::new(text).unwrap().matches(path), expected, "{text} {path}");
        }
    }

    #[test]
    fn wrong_expressions_have_a_reason_of_one_line() {
        let long = "a".repeat(TEXT_BYTES_MAX + 1);
        let deep = format!("{}a{}", "(".repeat(100), ")".repeat(100));
        for (text, expected) in [
            ("(a", "not a regular expression: unclosed group"),
            ("a{2", "not a regular expression: "),
            (r"(a)\1", "not a regular expression: backreferences are not supported"),
            ("(?=a)", "not a regular expression: look-around"),
            ("([a-z0-9/]{1,100}){1,100}", "larger than 64KiB"),
            (&long, "the maximum is 1024 bytes"),
            (&deep, "not a regular expression: exceed the maximum number of nested"),
        ] {
            let why = PathRegex::new(text).unwrap_err();
            assert!(why.contains(expected) && !why.contains('\n'), "{text}: {why}");
        }
    }

    #[test]
    fn usual_expressions_are_within_the_limits() {
        for text in [
            r"^/users/[0-9]{1,20}(/[a-z-]{1,64})?$",
            r"(?i)\.(avif|css|gif|ico|jpe?g|js|json|map|mp4|png|svg|ttf|txt|webm|webp|woff2?)$",
            r"^/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
            r"^/(?:en|de|fr)(?:/|$)",
            r"^/v[1-9][0-9]*/\w+/\d+$",
        ] {
            assert!(PathRegex::new(text).is_ok(), "{text}");
        }
    }
}
