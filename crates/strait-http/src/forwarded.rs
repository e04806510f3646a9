//! Whom a request came from, told to the origin: Forwarded (RFC 7239), and X-Forwarded-For, -Proto and -Host, for which there is no RFC.

use std::net::IpAddr;

use crate::fields::{Fields, is_closed};
use crate::target::{Scheme, write_v4};

const FORWARDED: &str = "Forwarded";
const FOR: &str = "X-Forwarded-For";
const PROTO: &str = "X-Forwarded-Proto";
const HOST: &str = "X-Forwarded-Host";

/// What is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Nothing is added; what came is passed on.
    #[default]
    Off,
    /// The client is added to what came: for a proxy behind others that are trusted.
    Append,
    /// What came is dropped, as anybody could have written it: for the first proxy that is trusted.
    Replace,
}

impl Policy {
    /// Returns true if a field of that name is dropped as soon as it is read: any client could have written it, and no
    /// response may depend on it.
    pub fn drops(self, name: &str) -> bool {
        self == Self::Replace && (name.eq_ignore_ascii_case(FORWARDED) || is_x_forwarded(name))
    }

    /// Whether a field of that name is not passed on, since [`Hop::write`] writes it anew.
    pub fn rewrites(self, name: &str) -> bool {
        self != Self::Off
            && [FORWARDED, FOR, PROTO, HOST].into_iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

/// Returns true for X-Forwarded-For, -Proto, -Host, -Port, -Prefix and all others of that family.
pub(crate) fn is_x_forwarded(name: &str) -> bool {
    const PREFIX: &[u8] = b"x-forwarded-";
    // CGI, WSGI, Rack and PHP read an underscore as a hyphen.
    let folded = name.bytes().map(|byte| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() });
    name.len() >= PREFIX.len() && folded.take(PREFIX.len()).eq(PREFIX.iter().copied())
}

/// How a request came to the proxy.
#[derive(Clone, Copy, Debug)]
pub struct Hop<'a> {
    /// From whom.
    pub client: IpAddr,
    /// Through what.
    pub scheme: Scheme,
    /// With what Host, as it was checked.
    pub host: Option<&'a str>,
}

impl Hop<'_> {
    /// Writes the field lines behind `head`. Each is one line, with what came before in it, for not every origin reads several. Of
    /// X-Forwarded-Proto and -Host, which are no lists, what came first stays.
    pub fn write(&self, policy: Policy, asked: &Fields<'_>, head: &mut Vec<u8>) {
        if policy == Policy::Off {
            return;
        }
        let nothing = Fields::default();
        let came = if policy == Policy::Append { asked } else { &nothing };
        list(head, FORWARDED, came);
        self.element(head);
        list(head, FOR, came);
        self.address(head);
        push(head, &["\r\n"]);
        first(head, PROTO, came, Some(self.scheme.name()));
        first(head, HOST, came, self.host);
    }

    /// The element of Forwarded, and the end of its line (RFC 7239, sections 4 and 6).
    fn element(&self, head: &mut Vec<u8>) {
        let (before, behind) = if self.client.to_canonical().is_ipv4() { ("", "") } else { ("\"[", "]\"") };
        push(head, &["for=", before]);
        self.address(head);
        push(head, &[behind, ";proto=", self.scheme.name()]);
        if let Some(host) = self.host {
            // A host that was checked has neither quotes nor backslashes.
            push(head, &[";host=\"", host, "\""]);
        }
        push(head, &["\r\n"]);
    }

    fn address(&self, head: &mut Vec<u8>) {
        match self.client.to_canonical() {
            IpAddr::V4(address) => write_v4(address, |text| push(head, &[text])),
            IpAddr::V6(address) => push(head, &[&address.to_string()]),
        }
    }
}

/// Begins the line of a list with what came. A string that is left open would swallow what is written behind it.
fn list(head: &mut Vec<u8>, name: &str, came: &Fields<'_>) {
    push(head, &[name, ": "]);
    for element in came.elements(name).filter(|element| is_closed(element)) {
        push(head, &[element, ", "]);
    }
}

/// The line of a field that is no list.
fn first(head: &mut Vec<u8>, name: &str, came: &Fields<'_>, own: Option<&str>) {
    if let Some(value) = came.all(name).next().map(|field| field.value).or(own.map(str::as_bytes)) {
        push(head, &[name, ": "]);
        head.extend_from_slice(value);
        push(head, &["\r\n"]);
    }
}

fn push(head: &mut Vec<u8>, texts: &[&str]) {
    for text in texts {
        head.extend_from_slice(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::tests::fields;

    fn written(policy: Policy, client: &str, lines: &[(&'static str, &'static str)]) -> String {
        let hop = Hop { client: client.parse().unwrap(), scheme: Scheme::Http, host: Some("a:8080") };
        let mut head = Vec::new();
        hop.write(policy, &fields(lines), &mut head);
        String::from_utf8(head).unwrap()
    }

    #[test]
    fn a_client_is_told_of_as_the_policy_says() {
        let came = [
            ("forwarded", "for=_a"),
            ("Forwarded", "for=\"b, c\""),
            ("Forwarded", "for=d, for=\"open"),
            ("X-Forwarded-For", "1.1.1.1"),
            ("x-forwarded-proto", "https"),
        ];
        assert_eq!(written(Policy::Off, "192.0.2.1", &came), "");
        assert_eq!(
            written(Policy::Append, "192.0.2.1", &came),
            "Forwarded: for=_a, for=\"b, c\", for=d, for=192.0.2.1;proto=http;host=\"a:8080\"\r\n\
             X-Forwarded-For: 1.1.1.1, 192.0.2.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: a:8080\r\n"
        );
        assert_eq!(
            written(Policy::Replace, "2001:db8::1", &came),
            "Forwarded: for=\"[2001:db8::1]\";proto=http;host=\"a:8080\"\r\n\
             X-Forwarded-For: 2001:db8::1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a:8080\r\n"
        );
        assert!(written(Policy::Append, "::ffff:192.0.2.1", &[]).starts_with("Forwarded: for=192.0.2.1;"));
    }

    #[test]
    fn what_is_written_anew_is_not_passed_on() {
        for name in ["forwarded", "X-Forwarded-FOR", "X-Forwarded-Proto", "x-forwarded-host"] {
            assert!(
                Policy::Append.rewrites(name)
                    && Policy::Replace.rewrites(name)
                    && !Policy::Off.rewrites(name)
            );
        }
        assert!(!Policy::Append.rewrites("X-Forwarded-Port"));
    }
}
