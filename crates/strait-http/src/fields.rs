//! Header fields of a message (RFC 9110, section 5).

use smallvec::SmallVec;

/// A field line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'b> {
    /// Name as written; comparisons ignore case.
    pub name: &'b str,
    /// Value without surrounding whitespace.
    pub value: &'b [u8],
}

impl<'b> Field<'b> {
    /// Returns the value if it is ASCII, as all values that a proxy evaluates are.
    pub fn text(&self) -> Option<&'b str> {
        if self.value.is_ascii() { std::str::from_utf8(self.value).ok() } else { None }
    }
}

/// Field lines of a head, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields<'b> {
    lines: SmallVec<[Field<'b>; 20]>,
    /// Bits of the field names, which rule out most absent names without a search.
    names: u64,
}

impl<'b> FromIterator<Field<'b>> for Fields<'b> {
    fn from_iter<T: IntoIterator<Item = Field<'b>>>(fields: T) -> Self {
        // In place: the lines take more than half a kilobyte.
        let mut all = Self::default();
        all.lines.extend(fields);
        all.names = all.lines.iter().fold(0, |names, field| names | bit(field.name));
        all
    }
}

/// Maps a name in any case to one of 64 bits.
fn bit(name: &str) -> u64 {
    let first = name.as_bytes().first().map_or(0, u8::to_ascii_lowercase);
    bit_of(name.len() * 7 + usize::from(first))
}

impl<'b> Fields<'b> {
    /// Iterates over all lines.
    pub fn iter(&self) -> impl Iterator<Item = &Field<'b>> {
        self.lines.iter()
    }

    /// Removes the lines with names that `is_match` accepts.
    pub fn remove(&mut self, is_match: impl Fn(&str) -> bool) {
        self.lines.retain(|field| !is_match(field.name));
    }

    /// Appends a line.
    pub fn push(&mut self, field: Field<'b>) {
        self.names |= bit(field.name);
        self.lines.push(field);
    }

    /// Iterates over the lines named `name`.
    pub fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s Field<'b>> {
        let lines = if self.names & bit(name) == 0 { &[] } else { &self.lines[..] };
        lines.iter().filter(move |field| field.name.eq_ignore_ascii_case(name))
    }

    /// Returns true if there is a line named `name`.
    pub fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }

    /// Returns the value of a singleton field; `None` if the field is absent, repeated or not
    /// ASCII.
    pub fn one(&self, name: &str) -> Option<&'b str> {
        let mut lines = self.all(name);
        let line = lines.next()?;
        if lines.next().is_some() { None } else { line.text() }
    }

    /// Returns true if all elements of a list can be read. A line that is not ASCII, or has an
    /// unterminated string, hides elements.
    pub fn is_legible(&self, name: &str) -> bool {
        self.all(name).all(|line| line.text().is_some_and(is_closed))
    }

    /// Iterates over the non-empty elements of a list field, over all its lines (RFC 9110, section
    /// 5.6.1). Lines that are not ASCII are skipped.
    pub fn elements<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'b str> + 's {
        self.all(name).filter_map(Field::text).flat_map(split_list)
    }
}

/// Field names in lower case, for lookups that ignore case. Length and first letter rule out most
/// other names without a search.
#[derive(Debug)]
pub(crate) struct Names<const N: usize> {
    all: [&'static str; N],
    lengths: u64,
    letters: u64,
}

impl<const N: usize> Names<N> {
    pub(crate) const fn new(names: [&'static str; N]) -> Self {
        let (mut lengths, mut letters, mut index) = (0, 0, 0);
        while index < N {
            lengths |= bit_of(names[index].len());
            letters |= bit_of(names[index].as_bytes()[0] as usize);
            index += 1;
        }
        Self { all: names, lengths, letters }
    }

    /// Returns true if `name` is one of them.
    pub(crate) fn has(&self, name: &str) -> bool {
        let first = name.as_bytes().first().map_or(0, u8::to_ascii_lowercase);
        self.lengths & bit_of(name.len()) != 0
            && self.letters & bit_of(first.into()) != 0
            && self.all.iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

const fn bit_of(number: usize) -> u64 {
    1 << (number % 64)
}

/// Iterates over the bytes of a text in lower case.
pub(crate) fn lower(text: &str) -> impl Iterator<Item = u8> + '_ {
    text.bytes().map(|byte| byte.to_ascii_lowercase())
}

/// Position within quoted strings: whether the next byte is quoted, and whether it is escaped.
#[derive(Clone, Copy, Default)]
struct Quoting {
    quoted: bool,
    escaped: bool,
}

impl Quoting {
    /// State after one more byte.
    fn behind(self, byte: u8) -> Self {
        let Self { quoted, escaped } = self;
        match byte {
            _ if escaped => Self { quoted, escaped: false },
            b'\\' if quoted => Self { quoted, escaped: true },
            b'"' => Self { quoted: !quoted, escaped: false },
            _ => self,
        }
    }
}

/// Returns true if the last quoted string in `text` is terminated.
pub(crate) fn is_closed(text: &str) -> bool {
    memchr::memchr(b'"', text.as_bytes()).is_none()
        || !text.bytes().fold(Quoting::default(), Quoting::behind).quoted
}

/// Splits a list at the commas outside quoted strings.
pub fn split_list(list: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(list);
    std::iter::from_fn(move || {
        let list = rest?;
        let (element, behind) = match comma(list) {
            Some(at) => (&list[..at], Some(&list[at + 1..])),
            None => (list, None),
        };
        rest = behind;
        Some(trimmed(element))
    })
    .filter(|element| !element.is_empty())
}

/// Removes spaces and tabs at both ends: bytes, because that is faster than characters.
fn trimmed(text: &str) -> &str {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = text.bytes().take_while(|byte| is_space(byte)).count();
    let end = text.len() - text[start..].bytes().rev().take_while(|byte| is_space(byte)).count();
    &text[start..end]
}

/// Position of the first comma outside quoted strings.
fn comma(list: &str) -> Option<usize> {
    // Most lists have no quoted string.
    let first = memchr::memchr2(b',', b'"', list.as_bytes())?;
    if list.as_bytes()[first] == b',' {
        return Some(first);
    }
    let mut quoting = Quoting::default();
    list.bytes().position(|byte| {
        let is_comma = byte == b',' && !quoting.quoted;
        quoting = quoting.behind(byte);
        is_comma
    })
}

/// Splits a parameter into its name and its value: a token, or the inside of a quoted string with
/// its escapes.
pub(crate) fn parameter(element: &str) -> (&str, Option<&str>) {
    let Some((name, value)) = element.split_once('=') else { return (element, None) };
    let (name, value) = (name.trim_end_matches([' ', '\t']), value.trim_start_matches([' ', '\t']));
    let inside = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    (name, Some(inside.unwrap_or(value)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Makes fields for tests.
    pub(crate) fn fields<'b>(lines: &[(&'b str, &'b str)]) -> Fields<'b> {
        lines.iter().map(|(name, value)| Field { name, value: value.as_bytes() }).collect()
    }

    #[test]
    fn lists_are_split_at_commas_outside_strings() {
        let split = |list| split_list(list).collect::<Vec<_>>();
        assert_eq!(split("a, b ,,\tc"), ["a", "b", "c"]);
        assert_eq!(split(r#"private="a, b", x="\",", z"#), [r#"private="a, b""#, r#"x="\",""#, "z"]);
        assert!(split(" , ,").is_empty());
        // An unterminated string extends to the end.
        assert_eq!(split("a=\"b, c"), ["a=\"b, c"]);
    }

    #[test]
    fn names_are_found_in_any_case() {
        const NAMES: Names<3> = Names::new(["a", "a-b", "cd"]);
        for (name, expected) in
            [("a", true), ("A-B", true), ("cD", true), ("", false), ("b", false), ("ab", false), ("c", false)]
        {
            assert_eq!(NAMES.has(name), expected, "{name}");
        }
    }

    #[test]
    fn list_with_unreadable_lines_is_not_legible() {
        let fields = fields(&[("a", "b, c=\"d\\\"\""), ("b", "c"), ("b", "\u{e9}"), ("c", "d=\"e, f")]);
        assert!(fields.is_legible("a") && fields.is_legible("none"));
        assert!(!fields.is_legible("b") && !fields.is_legible("c"));
    }

    #[test]
    fn repeated_field_is_no_singleton() {
        let fields = fields(&[("ETag", "\"a\""), ("age", "1"), ("Age", "2")]);
        assert_eq!(fields.one("etag"), Some("\"a\""));
        assert_eq!((fields.one("Age"), fields.one("date")), (None, None));
        assert_eq!(fields.elements("AGE").collect::<Vec<_>>(), ["1", "2"]);
    }
}
