//! Variables in the values of fields that a route writes to requests.
//!
//! Clients choose host and URI, so a filled value has visible ASCII alone, and a limited length: it
//! stays one field line.

use std::fmt::Write as _;
use std::net::IpAddr;

use strait_http::target::Uri;

/// Maximum length in bytes of a value, also of a filled one.
pub(crate) const VALUE_BYTES_MAX: usize = 4096;

const CLIENT: &str = "{client}";
const HOST: &str = "{host}";
const SCHEME: &str = "{scheme}";
const URI: &str = "{uri}";

/// Returns true if a value has a variable.
pub(crate) fn are_in(value: &str) -> bool {
    first(value).is_some()
}

/// Returns true if a value has the scheme of the request.
pub(crate) fn names_scheme(value: &str) -> bool {
    value.contains(SCHEME)
}

/// Returns the position of the first variable, and its name.
fn first(value: &str) -> Option<(usize, &'static str)> {
    let all = [CLIENT, HOST, SCHEME, URI].into_iter();
    all.filter_map(|name| Some((value.find(name)?, name))).min()
}

/// Values of the variables for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variables<'a> {
    pub(crate) client: IpAddr,
    /// URI as the cache key has it.
    pub(crate) uri: &'a Uri<'a>,
    pub(crate) method: &'a str,
}

impl Variables<'_> {
    /// Returns a value with the values of its variables; `None` if it is too long.
    pub(crate) fn fill(&self, value: &str) -> Option<String> {
        let (mut filled, mut rest) = (String::new(), value);
        while let Some((at, name)) = first(rest) {
            filled.push_str(&rest[..at]);
            push_visible(&mut filled, &self.of(name));
            rest = &rest[at + name.len()..];
        }
        filled.push_str(rest);
        (filled.len() <= VALUE_BYTES_MAX).then_some(filled)
    }

    fn of(&self, name: &str) -> String {
        match name {
            CLIENT => self.client.to_canonical().to_string(),
            HOST => {
                // As the key has it: stored responses must not depend on another spelling.
                let mut host = String::new();
                self.uri.authority.write(self.uri.scheme, |text| host.push_str(text));
                host
            }
            SCHEME => self.uri.scheme.name().to_owned(),
            _ => {
                let (slash, path) = self.uri.origin_form(self.method);
                format!("{slash}{path}")
            }
        }
    }
}

/// Appends a text, with all but visible ASCII as `%HH`.
fn push_visible(out: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_graphic() {
            out.push(char::from(byte));
        } else {
            // Writing to memory does not fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(value: &str, uri: &str) -> Option<String> {
        let uri = Uri::parse(uri).unwrap();
        Variables { client: "::ffff:192.0.2.1".parse().unwrap(), uri: &uri, method: "GET" }.fill(value)
    }

    #[test]
    fn variables_are_replaced_once() {
        for (value, uri, expected) in [
            ("{client}", "http://a/", "192.0.2.1"),
            ("{scheme}://{host}{uri}", "http://A.example:81/x?y=%20", "http://a.example:81/x?y=%20"),
            ("a {\"client\"} {clients} {host}.", "http://a", "a {\"client\"} {clients} a."),
            // The key is the same without the port.
            ("{host}", "http://A:80/", "a"),
            ("{host}", "https://A:443/", "a"),
            ("{host}", "https://[2001:DB8::1]:80/", "[2001:db8::1]:80"),
            // The text of a client has no variables.
            ("{uri}{client}", "http://a/{client}", "/{client}192.0.2.1"),
        ] {
            assert_eq!(filled(value, uri).as_deref(), Some(expected), "{value}");
        }
        assert!(are_in("x{uri}") && !are_in("{url}") && !are_in("{\"uri\"}"));
    }

    #[test]
    fn long_values_and_unusual_bytes_make_no_other_line() {
        let mut text = String::new();
        push_visible(&mut text, "a\r\nB: c\t\u{e9}%0d");
        assert_eq!(text, "a%0D%0AB:%20c%09%C3%A9%0d");
        let uri = |len: usize| format!("http://a/{}", "b".repeat(len - 1));
        assert!(filled("{uri}", &uri(VALUE_BYTES_MAX)).is_some());
        assert_eq!(filled("{uri}", &uri(VALUE_BYTES_MAX + 1)), None);
        assert_eq!(filled("{uri} {uri}", &uri(VALUE_BYTES_MAX / 2)), None);
    }
}
