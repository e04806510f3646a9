//! Paths as different programs read them.
//!
//! A proxy that selects a route by the path and forwards the path as received must not be read
//! differently by the server behind it: `/public/..%2fadmin` is in `/public/` for one program and
//! is `/admin` for another. nginx selects by one normalised form and forwards the original one.
//! Here a path selects a route only if all usual readings select the same one.
//!
//! Programs also treat a path in several steps, in different orders: one removes dot segments and
//! then decodes `%2F`, another the reverse. Their forms cannot be listed. So a path with dot
//! segments selects nothing if it has anything else that programs disagree on. Without dot segments
//! a treatment only ends segments earlier, and all forms lie between two: the literal one, and the
//! one with all treatments.

use std::ops::Range;

use smallvec::SmallVec;

/// Maximum length in bytes of a path that has more than one form.
const ODD_PATH_BYTES_MAX: usize = 8 << 10;

/// Path without its query in one form, decoded.
type Form = SmallVec<[u8; 256]>;

/// Treatments of a path that programs disagree on.
#[derive(Clone, Copy, Debug, Default)]
struct Reader {
    /// `%2F`, `%5C` and a backslash separate segments.
    decodes_slashes: bool,
    /// Empty segments are removed (nginx: `merge_slashes`).
    merges_slashes: bool,
    /// Dot segments are removed (RFC 3986, section 5.2.4).
    removes_dots: bool,
    /// Parameters of segments are removed, as Java servers do: `/a;b=c/..;/d` is `/a/../d`.
    removes_parameters: bool,
}

/// Returns the result of `select` for a path, if it is the same for all forms of the path; `None`
/// if it may differ, if the path has a NUL, or if a path with several forms is too long.
///
/// `select` gets the path without its query, and returns what it has for the longest of its paths
/// that the form is equal to, or below at a whole segment. None of its paths has a `;`, `%`, `\`,
/// empty segment or dot segment. Percent-encoding is removed once, as servers do.
pub fn select_by_all<T: PartialEq>(path: &str, mut select: impl FnMut(&[u8]) -> T) -> Option<T> {
    let path = path.split('?').next().unwrap_or_default().as_bytes();
    if is_plain(path) {
        return Some(select(path));
    }
    if path.len() > ODD_PATH_BYTES_MAX {
        return None;
    }
    let literal = select(&Reader::default().read(path)?);
    let furthest = select(&furthest(path)?.read(path)?);
    (literal == furthest).then_some(literal)
}

/// Returns the result of `select` for the decoded path without its query; `None` if the path has
/// several forms or a NUL, or is not plain and too long.
///
/// Unlike [`select_by_all`], it is for a `select` that tells any two paths apart, as by a regular
/// expression: that may hold for a form between two others and for none of these.
pub fn select_by_only<T>(path: &str, select: impl FnOnce(&[u8]) -> T) -> Option<T> {
    let path = path.split('?').next().unwrap_or_default().as_bytes();
    if is_plain(path) {
        return Some(select(path));
    }
    if path.len() > ODD_PATH_BYTES_MAX {
        return None;
    }
    let literal = Reader::default().read(path)?;
    (furthest(path)?.read(path)? == literal).then(|| select(&literal))
}

/// Returns the part of a path whose decoded form is `range` of the form that [`select_by_only`]
/// selects by.
///
/// ```
/// use strait_http::path::encoded_part;
///
/// assert_eq!(encoded_part("/a%2Bb/c", 1..4), "a%2Bb");
/// ```
pub fn encoded_part(path: &str, range: Range<usize>) -> &str {
    let (bytes, mut places) = (path.as_bytes(), SmallVec::<[usize; 2]>::new());
    let (mut at, mut decoded) = (0, 0);
    for bound in [range.start, range.end] {
        while decoded < bound && at < bytes.len() {
            let is_encoded = matches!(bytes[at..], [b'%', high, low, ..] if byte_of(high, low).is_some());
            at += if is_encoded { 3 } else { 1 };
            decoded += 1;
        }
        places.push(at);
    }
    path.get(places[0]..places[1]).unwrap_or_default()
}

/// Returns a path without its query, decoded and without empty and dot segments, for a file below a
/// directory; `None` if it has a NUL.
pub fn resolved(path: &str) -> Option<Vec<u8>> {
    let reader =
        Reader { decodes_slashes: true, merges_slashes: true, removes_dots: true, removes_parameters: false };
    let path = path.split('?').next().unwrap_or_default();
    reader.read(path.as_bytes()).map(SmallVec::into_vec)
}

/// Returns a path and its query with `to` in place of `prefix`, which is not encoded; `None` if the
/// path does not begin with the segments of `prefix` in all readings, or might leave `to`: it has a
/// dot segment in some reading, a NUL, or an empty segment after the prefix.
///
/// ```
/// use strait_http::path::rewritten;
///
/// assert_eq!(rewritten("/%61pi/x%2fy?z", "/api", "/v1/").as_deref(), Some("/v1/x%2fy?z"));
/// assert_eq!(rewritten("/api/../x", "/api", "/v1"), None);
/// ```
pub fn rewritten(path_and_query: &str, prefix: &str, to: &str) -> Option<String> {
    let (path, query) = path_and_query.split_at(path_and_query.find('?').unwrap_or(path_and_query.len()));
    let furthest = Reader { decodes_slashes: true, removes_parameters: true, ..Reader::default() };
    if !is_plain(path.as_bytes()) && dot_segments(&furthest.read(path.as_bytes())?) > 0 {
        return None;
    }
    let mut rest = path;
    for expected in prefix.split('/').skip(1).filter(|segment| !segment.is_empty()) {
        let (_, behind) = rest.split_once('/').filter(|(before, _)| before.is_empty())?;
        let segment = behind.split('/').next().unwrap_or_default();
        if *Reader::default().decoded(segment.as_bytes())? != *expected.as_bytes() {
            return None;
        }
        rest = &behind[segment.len()..];
    }
    // After `to`, an empty segment could begin an authority: `//evil`.
    if furthest.read(rest.as_bytes())?.starts_with(b"//") {
        return None;
    }
    let to = if rest.starts_with('/') { to.trim_end_matches('/') } else { to };
    Some([to, rest, query].concat())
}

/// Returns true if a path has one form only, which is the path itself.
fn is_plain(path: &[u8]) -> bool {
    let mut last = 0;
    path.iter().all(|&byte| {
        let is_odd = match byte {
            b'%' | b'\\' | b';' => true,
            b'/' | b'.' => last == b'/',
            _ => false,
        };
        last = byte;
        !is_odd
    })
}

/// Returns the reader whose form is furthest from the literal one; `None` if the path has forms
/// that do not lie between these two.
fn furthest(path: &[u8]) -> Option<Reader> {
    let splits = Reader { decodes_slashes: true, removes_parameters: true, ..Reader::default() };
    let form = splits.read(path)?;
    let dots = dot_segments(&form);
    if dots == 0 {
        let swallows = path.split(|byte| *byte == b'/').any(has_slash_in_parameter);
        return (!swallows).then_some(Reader { merges_slashes: true, ..splits });
    }
    let has = |part: &[u8]| has(path, part);
    let is_split = has(b"%2f") || has(b"%5c") || has(b"\\") || has(b";") || has(b"%3b");
    let has_empty = form.windows(2).any(|two| two == b"//");
    // Some programs know only `..`, and others also `%2e%2e`.
    let written = dot_segments(path);
    let is_mixed = written != 0 && written != dots;
    let is_odd = is_split || has_empty || is_mixed;
    (!is_odd).then_some(Reader { removes_dots: true, ..Reader::default() })
}

/// Returns the number of dot segments, as they are written.
fn dot_segments(path: &[u8]) -> usize {
    path.split(|byte| *byte == b'/').filter(|segment| matches!(*segment, b"." | b"..")).count()
}

/// Returns true if a segment has a slash in a parameter, which is removed with it or ends it: the
/// order decides.
fn has_slash_in_parameter(segment: &[u8]) -> bool {
    let first = |part: &[u8]| segment.windows(part.len()).position(|at| at.eq_ignore_ascii_case(part));
    let begin = [&b";"[..], b"%3b"].into_iter().filter_map(first).min();
    let rest = begin.and_then(|begin| segment.get(begin..)).unwrap_or_default();
    has(rest, b"%2f") || has(rest, b"%5c") || has(rest, b"\\")
}

fn has(path: &[u8], part: &[u8]) -> bool {
    path.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part))
}

impl Reader {
    /// Returns the form of a path that begins with `/`; `None` if it has a NUL, at which some
    /// programs cut it.
    fn read(self, path: &[u8]) -> Option<Form> {
        let decoded = self.decoded(path)?;
        let mut form = Form::new();
        let mut segments = decoded.split(|byte| *byte == b'/').skip(1).peekable();
        while let Some(segment) = segments.next() {
            let segment = if self.removes_parameters { before(segment, b';') } else { segment };
            let is_last = segments.peek().is_none();
            match segment {
                b"" if self.merges_slashes && !is_last => continue,
                b"." if self.removes_dots => {}
                b".." if self.removes_dots => {
                    form.truncate(form.iter().rposition(|byte| *byte == b'/').unwrap_or(0));
                }
                _ => {
                    form.push(b'/');
                    form.extend_from_slice(segment);
                    continue;
                }
            }
            if is_last {
                form.push(b'/');
            }
        }
        Some(form)
    }

    /// Removes percent-encoding; a slash that does not separate segments keeps it.
    fn decoded(self, path: &[u8]) -> Option<Form> {
        let mut decoded = Form::new();
        let mut rest = path;
        while let [first, others @ ..] = rest {
            let (byte, is_encoded) = match (first, others) {
                (b'%', [high, low, ..]) => match byte_of(*high, *low) {
                    Some(byte) => (byte, true),
                    None => (b'%', false),
                },
                _ => (*first, false),
            };
            match byte {
                0 => return None,
                b'/' | b'\\' if self.decodes_slashes => decoded.push(b'/'),
                b'/' if is_encoded => decoded.extend_from_slice(b"%2F"),
                _ => decoded.push(byte),
            }
            rest = if is_encoded { others.get(2..).unwrap_or_default() } else { others };
        }
        Some(decoded)
    }
}

/// Returns the byte of two hexadecimal digits.
fn byte_of(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

fn before(segment: &[u8], end: u8) -> &[u8] {
    segment.split(|byte| *byte == end).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_path_has_one_form() {
        for path in ["/", "/a", "/a/", "/a/b.c", "/a.b/c", "/a-b_c~d/e:f@g!$&'()*+,="] {
            for path_and_query in [path, &format!("{path}?/../%2e%2e")] {
                let read = select_by_all(path_and_query, <[u8]>::to_vec);
                assert_eq!(read.as_deref(), Some(path.as_bytes()));
            }
        }
    }

    #[test]
    fn odd_paths_have_a_literal_form_and_the_furthest_one() {
        for (path, expected) in [
            ("/%61dmin", &["/admin"][..]),
            ("/%zz%4", &["/%zz%4"]),
            ("/.a", &["/.a"]),
            ("/a/./b", &["/a/./b", "/a/b"]),
            ("/a/../b", &["/a/../b", "/b"]),
            ("/../../b", &["/../../b", "/b"]),
            ("/a/%2E%2e/b", &["/a/../b", "/b"]),
            ("/a/..", &["/", "/a/.."]),
            ("/a//b", &["/a//b", "/a/b"]),
            ("//a", &["//a", "/a"]),
            ("/a%2Fb", &["/a%2Fb", "/a/b"]),
            ("/a\\b", &["/a/b", "/a\\b"]),
            ("/a%5cb", &["/a/b", "/a\\b"]),
            ("/a%2f%2Fb\\c", &["/a%2F%2Fb\\c", "/a/b/c"]),
            ("/a;b=c/d", &["/a/d", "/a;b=c/d"]),
            ("/;/a", &["/;/a", "/a"]),
            ("/a%2fb;c", &["/a%2Fb;c", "/a/b"]),
            ("/%252e%252e/a", &["/%2e%2e/a"]),
        ] {
            let mut forms = Vec::new();
            let mut add = |form: &[u8]| forms.push(String::from_utf8_lossy(form).into_owned());
            select_by_all(path, &mut add).unwrap_or_else(|| panic!("{path}"));
            forms.sort();
            forms.dedup();
            assert_eq!(forms, expected, "{path}");
        }
    }

    #[test]
    fn path_whose_treatments_depend_on_their_order_selects_nothing() {
        let long = format!("/{}%20", "a".repeat(ODD_PATH_BYTES_MAX));
        for path in [
            "/a%00",
            &long,
            "/a/..;/b",
            "/a/..%2fb",
            "/a%5cb/../c",
            "/a/\\../b",
            "/a//../b",
            "/a/%3b/../b",
            "/a/%2e%2e/../b",
            "/a;b%2fc",
        ] {
            assert_eq!(select_by_all(path, |_| ()), None, "{path}");
        }
    }

    #[test]
    fn only_form_of_a_path_is_selected_by() {
        let read = |path| select_by_only(path, |form| String::from_utf8_lossy(form).into_owned());
        for (path, expected) in [
            ("/a/b.c?d/../e", "/a/b.c"),
            ("/%61%2Eb/%7e", "/a.b/~"),
            ("/%252e%252e/%252f", "/%2e%2e/%2f"),
            ("/a%0Ab%3fc%23", "/a\nb?c#"),
        ] {
            assert_eq!(read(path).as_deref(), Some(expected), "{path}");
        }
        let long = format!("/{}%20", "a".repeat(ODD_PATH_BYTES_MAX));
        for path in [
            "//a",
            "/a//b",
            "/a/.",
            "/a/%2e%2e/b",
            "/a%2fb",
            "/a%5Cb",
            "/a\\b",
            "/a;b",
            "/a%3bb",
            "/a%00",
            &long,
        ] {
            assert_eq!(read(path), None, "{path}");
        }
    }

    #[test]
    fn prefix_is_replaced_at_whole_segments() {
        for (path, prefix, to, expected) in [
            ("/api/x?y=/api", "/api", "/v1", "/v1/x?y=/api"),
            ("/api", "/api", "/v1", "/v1"),
            ("/api?x", "/api", "/v1/", "/v1/?x"),
            ("/api/", "/api", "/v1/", "/v1/"),
            ("/api/x", "/api", "/", "/x"),
            ("/api", "/api", "/", "/"),
            ("/api/x", "/api/", "/v1", "/v1/x"),
            ("/x", "/", "/v1", "/v1/x"),
            ("/", "/", "/v1", "/v1/"),
            ("/%61pi/x%2fy;z", "/api", "/v1", "/v1/x%2fy;z"),
            ("/a/b/c//d", "/a/b", "/e/f", "/e/f/c//d"),
            ("/a%20b/c", "/a b", "/v1", "/v1/c"),
        ] {
            assert_eq!(rewritten(path, prefix, to).as_deref(), Some(expected), "{path}");
        }
        for (path, prefix) in [
            ("/apix", "/api"),
            ("/API/x", "/api"),
            ("//api/x", "/api"),
            ("/api//x", "/api"),
            ("/api/\\x", "/api"),
            ("/api;p/x", "/api"),
            ("/api/..", "/api"),
            ("/api/./x", "/api"),
            ("/api/%2e%2e/x", "/api"),
            ("/api/..;/x", "/api"),
            ("/api/x%2f..%2f..%2fy", "/api"),
            ("/api/x\\..\\..\\y", "/api"),
            ("/api%2fx", "/api"),
            ("/api/%00", "/api"),
            ("/../x", "/"),
        ] {
            assert_eq!(rewritten(path, prefix, "/v1"), None, "{path}");
        }
    }

    /// Returns the position of the longest path that a form is equal to or below.
    fn longest(form: &[u8]) -> usize {
        let is_below = |path: &&&[u8]| match form.strip_prefix(**path) {
            Some(rest) => rest.is_empty() || rest.starts_with(b"/"),
            None => false,
        };
        [&b"/a/b"[..], b"/a"].iter().filter(is_below).map(|path| path.len()).max().unwrap_or(0)
    }

    #[test]
    fn path_whose_forms_select_differently_selects_nothing() {
        assert_eq!(select_by_all("/a/x", longest), Some(2));
        assert_eq!(select_by_all("/%61/x", longest), Some(2));
        assert_eq!(select_by_all("/x/a%2fb", longest), Some(0));
        for hostile in ["//a", "/x/../a", "/x/%2e%2e/a", "/x%2f../a", "/x/..;/a", "/a/../x"] {
            assert_eq!(select_by_all(hostile, longest), None, "{hostile}");
        }
    }

    /// Step of a program.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// Replaces each of the first by the second.
        Replace(&'static str, &'static str),
        RemoveParameters,
        RemoveDots,
    }

    const STEPS: [Step; 9] = [
        Step::Replace("%2f", "/"),
        Step::Replace("%5c", "\\"),
        Step::Replace("\\", "/"),
        Step::Replace("%2e", "."),
        Step::Replace("%3b", ";"),
        Step::Replace("//", "/"),
        Step::RemoveParameters,
        Step::RemoveDots,
        Step::RemoveDots,
    ];

    fn run(step: Step, path: &str) -> String {
        let mut path = path.to_owned();
        match step {
            Step::Replace(from, to) => {
                while path.contains(from) {
                    path = path.replace(from, to);
                }
            }
            Step::RemoveParameters => {
                let segments: Vec<_> = path.split('/').map(|it| it.split(';').next().unwrap()).collect();
                path = segments.join("/");
            }
            Step::RemoveDots => {
                let mut kept: Vec<&str> = Vec::new();
                for segment in path.split('/').skip(1) {
                    match segment {
                        "." => {}
                        ".." => drop(kept.pop()),
                        other => kept.push(other),
                    }
                }
                path = format!("/{}", kept.join("/"));
            }
        }
        path
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]

        /// Whatever a program does with a path, and in whatever order, the path it finds in the end
        /// has the same rule.
        #[test]
        fn no_program_reads_a_path_with_another_rule(
            path in "(/|%2f|%5c|\\\\|/\\.\\.|/%2e%2e|;|%3b|/a|/b|/x|a|b){0,9}",
            steps in prop::collection::vec(prop::sample::select(&STEPS[..]), 0..9),
        ) {
            let path = format!("/{path}");
            if let Some(selected) = select_by_all(&path, longest) {
                let read = steps.iter().fold(path.clone(), |path, step| run(*step, &path));
                prop_assert_eq!(longest(read.as_bytes()), selected, "{} is read as {}", path, read);
            }
        }

        /// Each program that decodes a path with one form reads that form, whatever else it does.
        #[test]
        fn no_program_reads_a_path_with_one_form_differently(
            path in "(/|%2f|%5c|\\\\|/\\.\\.|/%2e%2e|;|%3b|/a|/b|a|\\.){0,6}",
            steps in prop::collection::vec(prop::sample::select(&STEPS[..]), 0..9),
        ) {
            let path = format!("/{path}");
            if let Some(only) = select_by_only(&path, <[u8]>::to_vec) {
                let decode = [Step::Replace("%2e", ".")];
                let read = steps.iter().chain(&decode).fold(path.clone(), |path, step| run(*step, &path));
                prop_assert_eq!(read.as_bytes(), only, "{} is read as {}", path, read);
            }
        }

        /// No program reads a rewritten path as one outside the new prefix.
        #[test]
        fn rewritten_paths_stay_below_the_prefix(
            path in "(/|%2f|%5c|\\\\|/\\.\\.|/%2e%2e|;|%3b|/a|/b|a|\\.|%2e){0,9}",
            steps in prop::collection::vec(prop::sample::select(&STEPS[..]), 0..9),
        ) {
            if let Some(to) = rewritten(&format!("/a{path}"), "/a", "/new/b") {
                let read = steps.iter().fold(to.clone(), |path, step| run(*step, &path));
                let is_below = read.strip_prefix("/new/b").is_some_and(|rest| {
                    rest.is_empty() || rest.starts_with(['/', '\\', ';', '%'])
                });
                prop_assert!(is_below, "{} is read as {}", to, read);
            }
        }

        /// No name of a file leaves the root.
        #[test]
        fn resolved_paths_stay_below_the_root(path in "/(%2[ef]|%5c|[./;a\\\\]){0,12}") {
            let form = resolved(&path).unwrap();
            prop_assert!(form.starts_with(b"/"), "{form:?}");
            prop_assert!(form.split(|byte| *byte == b'/').all(|it| it != b".."), "{form:?}");
        }
    }
}
