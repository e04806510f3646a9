//! Paths as different programs read them.
//!
//! A proxy that selects a route by the path and forwards the path as received must not be read
//! differently by the server behind it: `/public/..%2fadmin` is in `/public/` for one program and
//! is `/admin` for another. nginx selects by one normalised form and forwards the original one.
//! Here a path selects a route only if all usual forms select the same one.

use smallvec::SmallVec;

/// Maximum length in bytes of a path that has more than one form: each form is compared.
const ODD_PATH_BYTES_MAX: usize = 8 << 10;

/// Path without its query in one form, decoded.
type Form = SmallVec<[u8; 256]>;

/// Treatments of a path that programs disagree on.
#[derive(Clone, Copy, Debug)]
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
/// if it differs, if the path has a NUL, or if a path with several forms is too long.
///
/// `select` gets the path without its query. Percent-encoding is removed once, as servers do.
pub fn select_by_all<T: PartialEq>(path: &str, mut select: impl FnMut(&[u8]) -> T) -> Option<T> {
    let path = path.split('?').next().unwrap_or_default().as_bytes();
    if is_plain(path) {
        return Some(select(path));
    }
    if path.len() > ODD_PATH_BYTES_MAX {
        return None;
    }
    let mut selected = None;
    for reader in readers(path) {
        let form = reader.read(path)?;
        let own = select(&form);
        match &selected {
            Some(other) if *other != own => return None,
            _ => selected = Some(own),
        }
    }
    selected
}

/// Returns a path without its query, decoded and without empty and dot segments, for a file below a
/// directory; `None` if it has a NUL.
pub fn resolved(path: &str) -> Option<Vec<u8>> {
    let reader =
        Reader { decodes_slashes: true, merges_slashes: true, removes_dots: true, removes_parameters: false };
    let path = path.split('?').next().unwrap_or_default();
    reader.read(path.as_bytes()).map(SmallVec::into_vec)
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

/// Returns the treatments by which the forms of a path can differ.
fn readers(path: &[u8]) -> impl Iterator<Item = Reader> {
    let has = |part: &[u8]| path.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part));
    let slashes = has(b"%2f") || has(b"%5c") || has(b"\\");
    let parameters = has(b";") || has(b"%3b");
    // A segment of parameters alone is empty without them.
    let merges = slashes || parameters || has(b"//");
    let dots = has(b".") || has(b"%2e");
    let both = |differ: bool| if differ { &[false, true][..] } else { &[false][..] };
    both(slashes).iter().flat_map(move |&decodes_slashes| {
        both(merges).iter().flat_map(move |&merges_slashes| {
            both(dots).iter().flat_map(move |&removes_dots| {
                both(parameters).iter().map(move |&removes_parameters| Reader {
                    decodes_slashes,
                    merges_slashes,
                    removes_dots,
                    removes_parameters,
                })
            })
        })
    })
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

    /// Returns all forms of a path, as text; empty if there is none.
    fn forms(path: &str) -> Vec<String> {
        let mut forms = Vec::new();
        let all = select_by_all(path, |form| forms.push(String::from_utf8_lossy(form).into_owned()));
        if all.is_none() {
            return Vec::new();
        }
        forms.sort();
        forms.dedup();
        forms
    }

    #[test]
    fn plain_path_has_one_form() {
        for path in ["/", "/a", "/a/", "/a/b.c", "/a.b/c", "/a-b_c~d/e:f@g!$&'()*+,="] {
            assert_eq!(forms(path), [path]);
            assert_eq!(forms(&format!("{path}?/../%2e%2e")), [path]);
        }
    }

    #[test]
    fn odd_paths_have_the_forms_of_different_programs() {
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
            ("/a;b=c/d", &["/a/d", "/a;b=c/d"]),
            ("/a/..;/b", &["/a/../b", "/a/..;/b", "/b"]),
            ("/;/a", &["//a", "/;/a", "/a"]),
            ("/a/..%2fb", &["/a/..%2Fb", "/a/../b", "/b"]),
            ("/%252e%252e/a", &["/%2e%2e/a"]),
            ("/a%00", &[]),
        ] {
            assert_eq!(forms(path), expected, "{path}");
        }
        assert_eq!(forms(&format!("/{}%20", "a".repeat(ODD_PATH_BYTES_MAX))), Vec::<String>::new());
    }

    #[test]
    fn path_whose_forms_select_differently_selects_nothing() {
        let is_admin = |form: &[u8]| form.starts_with(b"/admin");
        assert_eq!(select_by_all("/admin/x", is_admin), Some(true));
        assert_eq!(select_by_all("/%61dmin/x", is_admin), Some(true));
        assert_eq!(select_by_all("/public/a%2fb", is_admin), Some(false));
        for hostile in
            ["//admin", "/x/../admin", "/x/%2e%2e/admin", "/x%2f../admin", "/x/..;/admin", "/admin/../x"]
        {
            assert_eq!(select_by_all(hostile, is_admin), None, "{hostile}");
        }
    }

    proptest! {
        /// No form leaves the root, and all forms begin with a slash.
        #[test]
        fn forms_stay_below_the_root(path in "/(%2[ef]|%5c|[./;a\\\\]){0,12}") {
            for reader in readers(path.as_bytes()) {
                let form = reader.read(path.as_bytes()).unwrap();
                prop_assert!(form.starts_with(b"/"), "{form:?}");
                if reader.removes_dots {
                    prop_assert!(form.split(|byte| *byte == b'/').all(|it| it != b".."), "{form:?}");
                }
            }
        }
    }
}
