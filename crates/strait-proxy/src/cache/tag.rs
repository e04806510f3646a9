//! Tags of stored responses, by which an operator removes all responses that belong together:
//! Surrogate-Key, Cache-Tag and xkey, as origins write them for caches.

use strait_http::fields::Fields;

use crate::config::error::{Error, Result};

/// Maximum length of a tag in bytes.
const TAG_BYTES_MAX: usize = 1024;
/// Maximum of tags in a request to purge.
const TAGS_MAX: usize = 16;
/// Fields with tags, which spaces or commas separate.
const FIELDS: [&str; 3] = ["surrogate-key", "cache-tag", "xkey"];

/// Tag of responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag(String);

impl Tag {
    /// Makes a tag from its text.
    ///
    /// # Errors
    /// No response can have it.
    pub fn new(text: &str) -> Result<Self> {
        let is_part = |byte: u8| byte.is_ascii_graphic() && byte != b',';
        if text.is_empty() || text.len() > TAG_BYTES_MAX || !text.bytes().all(is_part) {
            return Err(Error::Config(format!(
                "\"{}\": a tag consists of 1 to {TAG_BYTES_MAX} visible characters of ASCII without commas",
                text.chars().take(60).collect::<String>().escape_default()
            )));
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns its text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the tags of a request to purge; none if it has none of the fields.
    ///
    /// # Errors
    /// There are too many, one that no response can have, or a field without tags: its URI alone
    /// is not meant.
    pub(crate) fn of_purge(fields: &Fields<'_>) -> Result<Vec<Self>> {
        let mut lines = FIELDS.iter().flat_map(|name| fields.all(name));
        if let Some(line) = lines.find(|line| words_of(line.value).next().is_none()) {
            return Err(Error::Config(format!("{} has no tag; to purge the URI, leave it out", line.name)));
        }
        let texts = words(fields).map(|word| std::str::from_utf8(word).unwrap_or_default());
        let tags: Vec<_> = texts.take(TAGS_MAX + 1).map(Self::new).collect::<Result<_>>()?;
        if tags.len() > TAGS_MAX {
            return Err(Error::Config(format!("{TAGS_MAX} tags are the most of one request")));
        }
        Ok(tags)
    }

    /// Returns true if a response with these fields has the tag. Letters are compared with their
    /// case.
    pub(crate) fn is_in(&self, fields: &Fields<'_>) -> bool {
        words(fields).any(|word| word == self.0.as_bytes())
    }
}

/// Iterates over the tags in fields.
fn words<'b>(fields: &Fields<'b>) -> impl Iterator<Item = &'b [u8]> {
    FIELDS.iter().flat_map(|name| fields.all(name)).flat_map(|line| words_of(line.value))
}

fn words_of(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| matches!(byte, b' ' | b'\t' | b',')).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use strait_http::head;

    use super::*;

    #[test]
    fn request_to_purge_has_a_limited_number_of_tags() {
        let of = |lines: &str| {
            let bytes = format!("PURGE / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
            Tag::of_purge(&head::request(bytes.as_bytes()).unwrap().unwrap().0.fields)
        };
        assert_eq!(of("").unwrap(), []);
        assert_eq!(of("xkey: a, b\r\nCache-Tag: c\r\n").unwrap().len(), 3);
        assert_eq!(of(&format!("xkey: {}\r\n", "a ".repeat(16))).unwrap().len(), 16);
        for wrong in ["a ".repeat(17), "\u{e9}".to_owned(), " , ".to_owned()] {
            assert!(of(&format!("Cache-Tag: a\r\nxkey: {wrong}\r\n")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tags_are_whole_words_of_three_fields() {
        let bytes = b"HTTP/1.1 200 OK\r\nSurrogate-Key: a post-1  b\r\nCache-Tag: c,post-2, d\r\nxkey: e\r\nXKEY: f\r\nX-Tag: g\r\n\r\n";
        let fields = head::response(bytes).unwrap().unwrap().0.fields;
        for (tag, expected) in [
            ("a", true),
            ("post-1", true),
            ("post", false),
            ("post-2", true),
            ("d", true),
            ("e", true),
            ("f", true),
            ("g", false),
            ("A", false),
        ] {
            assert_eq!(Tag::new(tag).unwrap().is_in(&fields), expected, "{tag}");
        }
        for text in ["", "a b", "a,b", "\u{e9}", "a\r\n", &"a".repeat(1025)] {
            assert!(Tag::new(text).unwrap_err().to_string().contains("a tag consists of"), "{text}");
        }
    }
}
