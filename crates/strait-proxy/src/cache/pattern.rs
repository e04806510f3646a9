//! Patterns of URIs, in which `*` stands for any text.

use strait_http::target::Uri;

use crate::config::error::{Error, Result};

/// Maximum length of a pattern in bytes.
pub(crate) const PATTERN_BYTES_MAX: usize = 8 << 10;

/// Pattern of URIs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
}

impl Pattern {
    /// Makes a pattern from a text in which `*` stands for any text.
    ///
    /// # Errors
    /// The text is empty or longer than any URI.
    pub fn new(text: &str) -> Result<Self> {
        match text.len() {
            0 => Err(Error::Config("the pattern is empty: * stands for anything".to_owned())),
            1..=PATTERN_BYTES_MAX => Ok(Self { text: text.to_owned() }),
            len => Err(Error::Config(format!("a pattern of {len} bytes; {PATTERN_BYTES_MAX} are the most"))),
        }
    }

    /// Returns its text.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the cache key of one URI, after which a `#` and the name of a pool can follow.
    ///
    /// # Errors
    /// The text is not an http or https URI.
    pub fn of_uri(text: &str) -> Result<String> {
        if !text.contains("://") {
            return Err(Error::Config(format!("{text}: give the whole URI, as in http://host/path")));
        }
        let (uri, pool) = text.split_at(text.find('#').unwrap_or(text.len()));
        let uri = Uri::parse(uri).map_err(|error| Error::Config(format!("{text}: {error}")))?;
        let mut key = String::new();
        uri.write_key(&mut key);
        Ok(key + pool)
    }

    /// Returns true if a cache key matches. A pattern without a `#` is one of URIs, with whatever
    /// pool; one without a `~` is one of URIs and pools, with whatever rules.
    pub(crate) fn matches(&self, key: &str) -> bool {
        let uri = shortened(key, &self.text);
        let mut pieces = self.text.split('*');
        let first = pieces.next().unwrap_or_default();
        let Some(mut rest) = uri.strip_prefix(first) else { return false };
        let Some(last) = pieces.next_back() else { return rest.is_empty() };
        for piece in pieces {
            let Some(at) = rest.find(piece) else { return false };
            rest = &rest[at + piece.len()..];
        }
        rest.ends_with(last)
    }
}

/// Returns a cache key without the parts that `text` does not name: the pool after `#`, and the
/// hash of rules after `~`.
pub(crate) fn shortened<'k>(key: &'k str, text: &str) -> &'k str {
    let Some((uri, end)) = key.split_once('#') else { return key };
    match text.split_once('#') {
        None => uri,
        Some(_) if is_whole(text) => key,
        Some(_) => &key[..key.len() - end.find('~').map_or(0, |at| end.len() - at)],
    }
}

/// Returns true if a cache key names the hash of rules, and so stands for no other key.
pub(crate) fn is_whole(key: &str) -> bool {
    key.split_once('#').is_some_and(|(_, end)| end.contains('~'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_uris() {
        for (pattern, uri, expected) in [
            ("http://a/x", "http://a/x", true),
            ("http://a/x", "http://a/xy", false),
            ("http://a/*", "http://a/", true),
            ("*.png", "http://a/b.png", true),
            ("*.png", "http://a/b.png?c", false),
            ("http://*/img/*.png", "http://a/img/b/c.png", true),
            ("*aba", "http://ababa", true),
            ("ab*ba", "aba", false),
            ("*", "", true),
            ("**", "a", true),
            ("http://a/x", "http://a/x#app", true),
            ("*.png", "http://a/b.png#app", true),
            ("*app", "http://a/b#app", false),
            ("*#app", "http://a/b#app", true),
            ("*#", "http://a/b#app", false),
            ("http://a/x#app", "http://a/x", false),
            ("http://a/x#app", "http://a/x#app~00ff", true),
            ("http://a/~x#app", "http://a/~x#app", true),
            ("http://a/~x#*", "http://a/~x#app~00ff", true),
            ("*.png", "http://a/~b.png#app~00ff", true),
            ("*#app~00ff", "http://a/x#app~00ff", true),
            ("*#app~11", "http://a/x#app~00ff", false),
            ("*#ap", "http://a/x#app~00ff", false),
        ] {
            assert_eq!(Pattern::new(pattern).unwrap().matches(uri), expected, "{pattern} {uri}");
        }
        assert!(Pattern::new("").unwrap_err().to_string().contains("empty"));
        for text in ["/path", "www.example/path", ""] {
            assert!(Pattern::of_uri(text).unwrap_err().to_string().contains("http://host/path"), "{text}");
        }
        assert!(Pattern::of_uri("ftp://a/b").is_err());
        assert_eq!(Pattern::of_uri("HTTP://A.example:80").unwrap(), "http://a.example/");
        assert_eq!(Pattern::of_uri("http://A.example#app").unwrap(), "http://a.example/#app");
    }
}
