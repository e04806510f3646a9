//! What the proxy calls itself in Via, and knows itself again by.
//!
//! A message that has passed through a proxy of the same pseudonym before goes round in circles. A
//! proxy that is given no name draws a pseudonym when it starts, so that two of them in a row are
//! no circle; it tells nothing of the machine.

use std::hash::{BuildHasher as _, RandomState};

/// A proxy's name in Via (RFC 9110, section 7.6.3).
#[derive(Clone, Debug)]
pub(crate) struct ViaName {
    pub(crate) text: String,
    /// `Via: 1.1 text`, with its line's end.
    pub(crate) line: Vec<u8>,
    is_drawn: bool,
}

impl ViaName {
    /// The name that a proxy is given, which is a token.
    pub(crate) fn given(name: &str) -> Self {
        Self { text: name.to_owned(), line: format!("Via: 1.1 {name}\r\n").into_bytes(), is_drawn: false }
    }

    /// One that nobody else has, and that begins with `name`.
    pub(crate) fn drawn(name: &str) -> Self {
        let number = RandomState::new().hash_one(name) as u32;
        Self { is_drawn: true, ..Self::given(&format!("{name}-{number:08x}")) }
    }

    /// What a proxy is called from now on that was called `before`: one that was drawn stays, for
    /// messages may be on their way.
    pub(crate) fn after(self, before: &Self) -> Self {
        if self.is_drawn && before.is_drawn { before.clone() } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_drawn_is_of_one_proxy_and_stays() {
        let (one, other) = (ViaName::drawn("strait"), ViaName::drawn("strait"));
        assert_ne!(one.text, other.text);
        assert_eq!(one.text.len(), "strait-00000000".len());
        assert_eq!(other.after(&one).text, one.text);
        let given = ViaName::given("edge-1").after(&one);
        assert_eq!((&*given.text, &*given.line), ("edge-1", &b"Via: 1.1 edge-1\r\n"[..]));
        assert_eq!(one.clone().after(&given).text, one.text);
    }
}
