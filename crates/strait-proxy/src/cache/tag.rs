//! Tags of stored responses, by which an operator removes all responses that belong together:
//! Surrogate-Key, Cache-Tag and xkey, as origins write them for caches.

use strait_http::fields::Fields;

use crate::config::error::{Error, Result};

/// Maximum length of a tag in bytes.
const TAG_BYTES_MAX: usize = 1024;
/// Response fields with tags, which spaces or commas separate.
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

    /// Returns true if a response with these fields has the tag. Letters are compared with their
    /// case.
    pub(crate) fn is_in(&self, fields: &Fields<'_>) -> bool {
        let is_own = |line: &[u8]| {
            let mut tags = line.split(|byte| matches!(byte, b' ' | b'\t' | b','));
            tags.any(|tag| tag == self.0.as_bytes())
        };
        FIELDS.iter().any(|name| fields.all(name).any(|line| is_own(line.value)))
    }
}

#[cfg(test)]
mod tests {
    use strait_http::head;

    use super::*;

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
