//! Client information for the origin: Forwarded (RFC 7239), and X-Forwarded-For, -Proto and -Host,
//! which have no RFC.

use std::net::IpAddr;

use crate::fields::{Fields, is_closed};
use crate::target::{Authority, Scheme, write_v4};

const FORWARDED: &str = "Forwarded";
const FOR: &str = "X-Forwarded-For";
const PROTO: &str = "X-Forwarded-Proto";
const HOST: &str = "X-Forwarded-Host";

/// Policy for the forwarding fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Nothing is added; received fields are forwarded unchanged.
    #[default]
    Off,
    /// The client is added to the received fields: for a proxy behind trusted proxies.
    Append,
    /// Received fields are dropped, since any client could have written them: for the first trusted
    /// proxy.
    Replace,
}

impl Policy {
    /// Returns true if a received field of that name is dropped at once: any client could have
    /// written it, and no response may depend on it.
    pub fn drops(self, name: &str) -> bool {
        self == Self::Replace && (name.eq_ignore_ascii_case(FORWARDED) || is_x_forwarded(name))
    }

    /// Returns true if the origin gets the client's address in the field of that name, whatever the
    /// client has sent in it.
    pub fn names_client(self, name: &str) -> bool {
        self != Self::Off && is_of_client(name)
    }

    /// Returns true if a received field of that name is not forwarded, because [`Hop::write`]
    /// writes it.
    pub fn rewrites(self, name: &str) -> bool {
        self != Self::Off
            && [FORWARDED, FOR, PROTO, HOST].into_iter().any(|own| own.eq_ignore_ascii_case(name))
    }
}

/// Returns true for the fields that have the client's address.
pub fn is_of_client(name: &str) -> bool {
    [FORWARDED, FOR].into_iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// Returns true for X-Forwarded-For, -Proto, -Host, -Port, -Prefix and all others of that family.
pub(crate) fn is_x_forwarded(name: &str) -> bool {
    const PREFIX: &[u8] = b"x-forwarded-";
    // CGI, WSGI, Rack and PHP read an underscore as a hyphen.
    let folded = name.bytes().map(|byte| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() });
    name.len() >= PREFIX.len() && folded.take(PREFIX.len()).eq(PREFIX.iter().copied())
}

/// The connection on which a request arrived.
#[derive(Clone, Copy, Debug)]
pub struct Hop<'a> {
    /// Address of the client.
    pub client: IpAddr,
    /// Scheme of the request.
    pub scheme: Scheme,
    /// Authority of the request's URI.
    pub host: Authority<'a>,
}

impl Hop<'_> {
    /// Appends the field lines to `head`. Each field is one line that includes received values,
    /// because some origins read only one. X-Forwarded-Proto and -Host are not lists: their first
    /// received value is kept.
    pub fn write(&self, policy: Policy, request_fields: &Fields<'_>, head: &mut Vec<u8>) {
        if policy == Policy::Off {
            return;
        }
        let nothing = Fields::default();
        let received = if policy == Policy::Append { request_fields } else { &nothing };
        list(head, FORWARDED, received);
        self.element(head);
        list(head, FOR, received);
        self.address(head);
        push(head, &["\r\n"]);
        first(head, PROTO, received, |head| push(head, &[self.scheme.name()]));
        first(head, HOST, received, |head| self.host(head));
    }

    /// Writes this hop's element of Forwarded and the end of the line (RFC 7239, sections 4 and 6).
    fn element(&self, head: &mut Vec<u8>) {
        let (before, behind) = if self.client.to_canonical().is_ipv4() { ("", "") } else { ("\"[", "]\"") };
        push(head, &["for=", before]);
        self.address(head);
        // An authority contains neither quotes nor backslashes.
        push(head, &[behind, ";proto=", self.scheme.name(), ";host=\""]);
        self.host(head);
        push(head, &["\"\r\n"]);
    }

    fn host(&self, head: &mut Vec<u8>) {
        self.host.write(self.scheme, |text| push(head, &[text]));
    }

    fn address(&self, head: &mut Vec<u8>) {
        match self.client.to_canonical() {
            IpAddr::V4(address) => write_v4(address, |text| push(head, &[text])),
            IpAddr::V6(address) => push(head, &[&address.to_string()]),
        }
    }
}

/// Begins a list line with the received elements. Skips an element with an unterminated string,
/// which would swallow later ones.
fn list(head: &mut Vec<u8>, name: &str, received: &Fields<'_>) {
    push(head, &[name, ": "]);
    for element in received.elements(name).filter(|element| is_closed(element)) {
        push(head, &[element, ", "]);
    }
}

/// Writes the line of a field that is not a list, with the received value if there is one.
fn first(head: &mut Vec<u8>, name: &str, received: &Fields<'_>, write_own: impl FnOnce(&mut Vec<u8>)) {
    push(head, &[name, ": "]);
    match received.all(name).next() {
        Some(field) => head.extend_from_slice(field.value),
        None => write_own(head),
    }
    push(head, &["\r\n"]);
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
        let hop = Hop {
            client: client.parse().unwrap(),
            scheme: Scheme::Http,
            host: Authority::parse("A:8080").unwrap(),
        };
        let mut head = Vec::new();
        hop.write(policy, &fields(lines), &mut head);
        String::from_utf8(head).unwrap()
    }

    #[test]
    fn fields_are_written_by_policy() {
        let received = [
            ("forwarded", "for=_a"),
            ("Forwarded", "for=\"b, c\""),
            ("Forwarded", "for=d, for=\"open"),
            ("X-Forwarded-For", "1.1.1.1"),
            ("x-forwarded-proto", "https"),
        ];
        assert_eq!(written(Policy::Off, "192.0.2.1", &received), "");
        assert_eq!(
            written(Policy::Append, "192.0.2.1", &received),
            "Forwarded: for=_a, for=\"b, c\", for=d, for=192.0.2.1;proto=http;host=\"a:8080\"\r\n\
             X-Forwarded-For: 1.1.1.1, 192.0.2.1\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: a:8080\r\n"
        );
        assert_eq!(
            written(Policy::Replace, "2001:db8::1", &received),
            "Forwarded: for=\"[2001:db8::1]\";proto=http;host=\"a:8080\"\r\n\
             X-Forwarded-For: 2001:db8::1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: a:8080\r\n"
        );
        assert!(written(Policy::Append, "::ffff:192.0.2.1", &[]).starts_with("Forwarded: for=192.0.2.1;"));
    }

    #[test]
    fn rewritten_fields_are_not_forwarded() {
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
