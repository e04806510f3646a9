//! Name of the proxy in Via, by which it detects loops.
//!
//! A request with the proxy's own name in Via has passed through it before. A proxy without a
//! configured name chooses a random one at the start, so that two proxies on one path are not taken
//! for a loop. The random name reveals nothing about the machine.

use std::hash::{BuildHasher as _, RandomState};

use strait_http2::hpack;

/// A proxy's name in Via (RFC 9110, section 7.6.3).
#[derive(Clone, Debug)]
pub(crate) struct ViaName {
    pub(crate) text: String,
    /// `Via: 1.1 text`, with its line's end.
    pub(crate) line: Vec<u8>,
    /// That field in the encoding of HTTP/2.
    pub(crate) block: Vec<u8>,
    is_random: bool,
}

impl ViaName {
    /// Returns a configured name, which is a token.
    pub(crate) fn configured(name: &str) -> Self {
        let (value, mut block) = (format!("1.1 {name}"), Vec::new());
        hpack::encode(b"via", value.as_bytes(), &mut block);
        let line = format!("Via: {value}\r\n").into_bytes();
        Self { text: name.to_owned(), line, block, is_random: false }
    }

    /// Returns a random name that begins with `name`.
    pub(crate) fn random(name: &str) -> Self {
        let number = RandomState::new().hash_one(name) as u32;
        Self { is_random: true, ..Self::configured(&format!("{name}-{number:08x}")) }
    }

    /// Returns the name after a reload. A random name stays: messages with it may be under way.
    pub(crate) fn after(self, before: &Self) -> Self {
        if self.is_random && before.is_random { before.clone() } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_name_is_unique_and_survives_reloads() {
        let (one, other) = (ViaName::random("strait"), ViaName::random("strait"));
        assert_ne!(one.text, other.text);
        assert_eq!(one.text.len(), "strait-00000000".len());
        assert_eq!(other.after(&one).text, one.text);
        let configured = ViaName::configured("edge-1").after(&one);
        assert_eq!((&*configured.text, &*configured.line), ("edge-1", &b"Via: 1.1 edge-1\r\n"[..]));
        assert_eq!(one.clone().after(&configured).text, one.text);
    }
}
