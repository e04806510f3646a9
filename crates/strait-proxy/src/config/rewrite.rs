//! Replacement of the path in requests to a pool, and in the names of files: of its begin, or of
//! all of it with groups of the route's expression.

use regex::bytes::Captures;
use strait_http::path::{encoded_part, rewritten, select_by_only};

use crate::config::path_regex::PathRegex;
use crate::config::prefixes::PATH_BYTES_MAX;

/// Maximum of groups in a new path.
const GROUPS_MAX: usize = 16;
/// Maximum length in bytes of a path whose groups are searched. The time for that, unlike the one
/// to compare a path, is proportional to the length multiplied by the size of the expression.
const SEARCHED_BYTES_MAX: usize = 2048;

/// Replacement of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rewrite {
    /// Of the path of the route by another one.
    Begin { from: Box<str>, to: Box<str> },
    /// Of the whole path.
    Whole(PathRegex, Template),
}

/// Path with groups of an expression, as `/item/{1}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    /// Texts, each before the group of that number.
    groups: Vec<(Box<str>, usize)>,
    end: Box<str>,
}

impl Rewrite {
    /// Makes the replacement of `from`, the path of a route with that expression, by `to`.
    ///
    /// # Errors
    /// A reason of one line.
    pub(crate) fn new(from: &str, regex: Option<&PathRegex>, to: &str) -> Result<Self, &'static str> {
        why_no_path(to).map_or(Ok(()), Err)?;
        if !to.contains(['{', '}']) {
            return Ok(Self::Begin { from: from.into(), to: to.into() });
        }
        let regex = regex.ok_or("a group, as {1}, needs the path_regex of the route")?;
        Ok(Self::Whole(regex.clone(), Template::new(regex, to)?))
    }

    /// Returns the path and query of a request to the origin; `None` if programs read the path
    /// differently.
    pub(crate) fn apply(&self, path: &str) -> Option<String> {
        let slash = if path.starts_with('/') { "" } else { "/" };
        let path = [slash, path].concat();
        match self {
            Self::Begin { from, to } => rewritten(&path, from, to),
            Self::Whole(regex, template) => {
                let (path, query) = path.split_at(path.find('?').unwrap_or(path.len()));
                if path.len() > SEARCHED_BYTES_MAX {
                    return None;
                }
                let new = regex.replaced(path, |groups| template.filled(path, groups))?;
                // Groups together can be a segment that neither of them is.
                select_by_only(&new, |_| ())?;
                Some(new + query)
            }
        }
    }
}

/// Returns the reason why a path cannot be written to requests.
fn why_no_path(path: &str) -> Option<&'static str> {
    if !path.starts_with('/') {
        Some("a path begins with /, for example \"/v1\"")
    } else if path.len() > PATH_BYTES_MAX {
        Some("the path is too long; the maximum is 1024 bytes")
    } else if !path.bytes().all(|byte| byte.is_ascii_graphic()) || path.contains(['?', '#', '%', '\\', ';']) {
        Some("write the path without query, encoding and parameters")
    } else if path.contains("//") || path.split('/').any(|part| matches!(part, "." | "..")) {
        Some("the path has empty or dot segments, which programs read differently")
    } else {
        None
    }
}

impl Template {
    fn new(regex: &PathRegex, text: &str) -> Result<Self, &'static str> {
        let (mut groups, mut rest) = (Vec::new(), text);
        while let Some((before, behind)) = rest.split_once('{') {
            let (name, behind) =
                behind.split_once('}').ok_or("a brace is not closed; write a group as {1}")?;
            let group = regex
                .group(name)
                .ok_or("path_regex has no group of that number or name; the first is {1}")?;
            groups.push((before.into(), group));
            rest = behind;
        }
        if groups.len() > GROUPS_MAX {
            return Err("the path has too many groups; the maximum is 16");
        }
        let texts = groups.iter().map(|(text, _): &(Box<str>, usize)| &**text).chain([rest]);
        if texts.into_iter().any(|text| text.contains('}')) {
            return Err("a brace is not opened; write a group as {1}");
        }
        Ok(Self { groups, end: rest.into() })
    }

    /// Returns the new path with the groups of `path` as the client has encoded them. A group that
    /// matches nothing is empty.
    fn filled(&self, path: &str, groups: &Captures<'_>) -> String {
        let mut new = String::new();
        for (before, index) in &self.groups {
            let range = groups.get(*index).map_or(0..0, |group| group.range());
            new.extend([before, encoded_part(path, range)]);
        }
        new + &self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(regex: &str, to: &str, path: &str) -> Option<String> {
        Rewrite::new("/", Some(&PathRegex::new(regex).unwrap()), to).unwrap().apply(path)
    }

    #[test]
    fn groups_of_the_expression_are_in_the_new_path() {
        for (regex, to, path, expected) in [
            ("^/users/([0-9]+)/(.*)$", "/u/{2}/of/{1}", "/users/12/photo?x=1", "/u/photo/of/12?x=1"),
            ("^/(?<lang>en|de)/(.+)$", "/{2}.{lang}", "/en/a/b", "/a/b.en"),
            ("^/a(/b)?$", "/x{1}", "/a", "/x"),
            ("^/(.*)$", "/v2/{1}", "/a%20b%25%C3%A9%22/c", "/v2/a%20b%25%C3%A9%22/c"),
            // Encoded or not, the server gets it as the client has sent it.
            ("^/(.*)$", "/v2/{1}", "/%61+%2B%2c,%zz", "/v2/%61+%2B%2c,%zz"),
            ("^/%(.)(.*)$", "/v2/{2}/{1}", "/%25%C3%A9", "/v2/%A9/%C3"),
            ("^/(.)$", "/{1}2fx", "/%25", "/%252fx"),
            ("/([^/]*)$", "/last/{1}", "/a/b/c", "/last/c"),
            ("x", "/y", "/x/z", "/y/x/z"),
        ] {
            assert_eq!(applied(regex, to, path).as_deref(), Some(expected), "{regex} {to} {path}");
        }
    }

    #[test]
    fn paths_that_programs_read_differently_are_refused() {
        for (regex, to, path) in [
            ("^/(.*)$", "/v2/{1}", "/a/../b"),
            ("^/(.*)$", "/v2/{1}", "/a/%2e%2e/b"),
            ("^/(.*)$", "/v2/{1}", "/a%2fb"),
            ("^/(.*)$", "/v2/{1}", "/a//b"),
            ("^/(.*)$", "/v2/{1}", "/a;b"),
            ("^/(.*)$", "/v2/{1}", "/a%00"),
            ("^/(.*)$", "/{0}", "/a"),
            // Together, the groups are a dot segment, or an empty one.
            ("^/a([.])b([.])$", "/{1}{2}/x", "/a.b."),
            ("^/a([.])b([.])$", "/{1}{2}/x", "/a%2eb."),
            ("^/(a?)/?$", "/{1}/x", "/"),
        ] {
            assert_eq!(applied(regex, to, path), None, "{regex} {to} {path}");
        }
    }

    #[test]
    fn long_paths_are_not_searched() {
        let path = |len| format!("/{}?{}", "a".repeat(len - 1), "b".repeat(len));
        assert!(applied("^/(.*)$", "/{1}", &path(SEARCHED_BYTES_MAX)).is_some());
        assert_eq!(applied("^/(.*)$", "/{1}", &path(SEARCHED_BYTES_MAX + 1)), None);
    }

    #[test]
    fn wrong_templates_have_a_reason() {
        let regex = PathRegex::new("^/(a)(?<name>b)$").unwrap();
        for (to, expected) in [
            ("/{3}", "no group of that number or name"),
            ("/{other}", "no group of that number or name"),
            ("/{}", "no group"),
            ("/{-1}", "no group"),
            ("/{1", "not closed"),
            ("/1}", "not opened"),
            ("/{1}}", "not opened"),
            ("/{1}?{2}", "without query"),
            ("{1}", "a path begins with /"),
            (&format!("/{}", "{1}".repeat(GROUPS_MAX + 1)), "the maximum is 16"),
        ] {
            let why = Rewrite::new("/", Some(&regex), to).unwrap_err();
            assert!(why.contains(expected), "{to}: {why}");
        }
        assert!(Rewrite::new("/", None, "/{1}").unwrap_err().contains("needs the path_regex"));
        assert!(Rewrite::new("/", Some(&regex), "/{name}/{2}/{0}").is_ok());
    }
}
