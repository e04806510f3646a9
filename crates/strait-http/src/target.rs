//! Request targets and Host (RFC 9112, section 3.2; RFC 9110, sections 4.2 and 7.2), and the cache
//! key of a URI.
//!
//! Only `http` and `https` are supported. A host is a name of letters, digits and `-._~`, or an
//! address. A dot may end a name, but none of its labels is empty. Hosts that resolvers would not
//! accept are refused, since the next program might read them differently.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::error::Malformed;
use crate::head::{Request, Version};

/// Limit of a host name in bytes (RFC 1035, section 2.3.4).
const NAME_BYTES_MAX: usize = 255;

/// Scheme of a URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Without encryption.
    Http,
    /// Over TLS.
    Https,
}

impl Scheme {
    /// Name of the scheme in a URI.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// Default port (RFC 9110, sections 4.2.1 and 4.2.2).
    pub fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// Host of an authority.
#[derive(Clone, Copy, Debug)]
pub enum Host<'b> {
    /// Host name as received.
    Name(&'b str),
    /// IPv4 address.
    V4(Ipv4Addr),
    /// IPv6 address, in brackets.
    V6(Ipv6Addr),
}

impl PartialEq for Host<'_> {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(one), Self::Name(other)) => one.eq_ignore_ascii_case(other),
            (Self::V4(one), Self::V4(other)) => one == other,
            (Self::V6(one), Self::V6(other)) => one == other,
            _ => false,
        }
    }
}

impl Eq for Host<'_> {}

/// Writes the host in lower case, and an IPv6 address in brackets in its canonical short form (RFC
/// 5952).
impl fmt::Display for Host<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => {
                name.chars().try_for_each(|letter| fmt::Write::write_char(out, letter.to_ascii_lowercase()))
            }
            Self::V4(address) => address.fmt(out),
            Self::V6(address) => write!(out, "[{address}]"),
        }
    }
}

/// Host and optional port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority<'b> {
    /// Host name or address.
    pub host: Host<'b>,
    /// Port, never 0.
    pub port: Option<u16>,
}

impl<'b> Authority<'b> {
    /// Parses `uri-host [ ":" port ]` (RFC 9110, section 7.2).
    ///
    /// # Errors
    /// `text` is not an authority, or has user information, which RFC 9110, section 4.2.4, advises
    /// to refuse.
    pub fn parse(text: &'b str) -> Result<Self, Malformed> {
        // Bytes, because short texts are searched faster so than by characters.
        let find = |wanted| text.bytes().position(|byte| byte == wanted);
        if find(b'@').is_some() {
            return Err(Malformed::Syntax("user information in an authority"));
        }
        let (host, port) = if let Some(inside) = text.strip_prefix('[') {
            let (address, port) = inside.split_once(']').ok_or(NO_HOST)?;
            (Host::V6(address.parse().map_err(|_| NO_HOST)?), port)
        } else {
            let (host, port) = text.split_at(find(b':').unwrap_or(text.len()));
            (name(host)?, port)
        };
        Ok(Self { host, port: port_of(port)? })
    }

    /// Port to connect to.
    pub fn port_or_default(&self, scheme: Scheme) -> u16 {
        self.port.unwrap_or(scheme.port())
    }

    /// Writes the authority in pieces, normalised for `scheme`: without the port if that is the
    /// default (RFC 9110, section 4.2.3).
    pub fn write(&self, scheme: Scheme, mut push: impl FnMut(&str)) {
        match self.host {
            Host::Name(name) if !name.bytes().any(|byte| byte.is_ascii_uppercase()) => push(name),
            Host::Name(name) => push(&name.to_ascii_lowercase()),
            Host::V4(address) => write_v4(address, &mut push),
            Host::V6(_) => push(&self.host.to_string()),
        }
        if let Some(port) = self.port.filter(|port| *port != scheme.port()) {
            push(":");
            push(itoa::Buffer::new().format(port));
        }
    }
}

/// Writes the authority normalised, with the port if there is one.
impl fmt::Display for Authority<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(out)?;
        self.port.map_or(Ok(()), |port| write!(out, ":{port}"))
    }
}

/// Writes an address in pieces. Each request has one or two, and `fmt` is slow.
pub(crate) fn write_v4(address: Ipv4Addr, mut push: impl FnMut(&str)) {
    for (index, octet) in address.octets().into_iter().enumerate() {
        push(if index == 0 { "" } else { "." });
        push(itoa::Buffer::new().format(octet));
    }
}

const NO_HOST: Malformed =
    Malformed::Syntax("an authority with a host that is neither a name nor an address");

fn name(host: &str) -> Result<Host<'_>, Malformed> {
    if host.starts_with(|first: char| first.is_ascii_digit())
        && let Ok(address) = host.parse()
    {
        return Ok(Host::V4(address));
    }
    let mut last = b'.';
    let is_name = host.len() <= NAME_BYTES_MAX
        && host.bytes().all(|byte| {
            let is_empty_label = byte == b'.' && last == b'.';
            last = byte;
            is_unreserved(byte) && !is_empty_label
        });
    if is_name && !host.is_empty() { Ok(Host::Name(host)) } else { Err(NO_HOST) }
}

/// Returns true for an unreserved character (RFC 3986, section 2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Parses the part after a host, colon included. An empty port counts as absent (RFC 3986, section
/// 3.2.3).
fn port_of(text: &str) -> Result<Option<u16>, Malformed> {
    const NO_PORT: Malformed = Malformed::Syntax("an invalid port");
    if text.is_empty() {
        return Ok(None);
    }
    match text.strip_prefix(':').ok_or(NO_PORT)? {
        "" => Ok(None),
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            digits.parse().ok().filter(|port| *port != 0).map(Some).ok_or(NO_PORT)
        }
        _ => Err(NO_PORT),
    }
}

/// URI of a supported scheme, without a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uri<'b> {
    /// Scheme.
    pub scheme: Scheme,
    /// Authority.
    pub authority: Authority<'b>,
    /// Path and query as received; may be empty.
    pub path: &'b str,
}

impl<'b> Uri<'b> {
    /// Parses an absolute URI.
    ///
    /// # Errors
    /// `text` is not a URI, has another scheme, or has a fragment, which is never sent (RFC 9110,
    /// section 7.1).
    pub fn parse(text: &'b str) -> Result<Self, Malformed> {
        let (scheme, rest) =
            scheme(text).ok_or(Malformed::Syntax("a target that is neither a path nor a URI of http"))?;
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        Ok(Self { scheme, authority: Authority::parse(authority)?, path: path_of(path)? })
    }

    /// Returns true if both have the same scheme, host and port (RFC 9110, section 4.3.1).
    pub fn is_same_origin(&self, other: &Uri<'_>) -> bool {
        let port = |uri: &Uri<'_>| uri.authority.port_or_default(uri.scheme);
        self.scheme == other.scheme
            && self.authority.host == other.authority.host
            && port(self) == port(other)
    }

    /// Path and query in a request to an origin, as two strings to concatenate. Never empty (RFC
    /// 9112, section 3.2.1); `*` for OPTIONS without a path (section 3.2.4).
    pub fn origin_form(&self, method: &str) -> (&'static str, &'b str) {
        match self.path.as_bytes().first() {
            None if method == "OPTIONS" => ("*", ""),
            None | Some(b'?') => ("/", self.path),
            Some(_) => ("", self.path),
        }
    }

    /// Appends the cache key of the URI to `key`: `http://host[:port]/path?query`. Scheme and
    /// authority are normalised. Path and query stay as received, because the origin gets them so
    /// (RFC 9110, section 7.7) and may distinguish forms that RFC 3986, section 6.2.2, calls
    /// equivalent.
    pub fn write_key(&self, key: &mut String) {
        key.push_str(self.scheme.name());
        key.push_str("://");
        self.authority.write(self.scheme, |text| key.push_str(text));
        let (slash, path) = self.origin_form("GET");
        key.push_str(slash);
        key.push_str(path);
    }
}

/// Splits a URI into its scheme and the part after `://`.
fn scheme(text: &str) -> Option<(Scheme, &str)> {
    let (name, rest) = text.split_once("://")?;
    let scheme =
        [Scheme::Http, Scheme::Https].into_iter().find(|scheme| name.eq_ignore_ascii_case(scheme.name()));
    Some((scheme?, rest))
}

/// Accepts more characters than RFC 3986, since browsers do not encode all. Refuses those that end
/// a line or a target.
fn path_of(path: &str) -> Result<&str, Malformed> {
    let is_path = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if is_path {
        Ok(path)
    } else {
        Err(Malformed::Syntax("a target with a fragment, or with bytes that must be encoded"))
    }
}

/// Request target in one of its four forms (RFC 9112, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'b> {
    /// `http://host/path`, sent to a proxy.
    Absolute(Uri<'b>),
    /// `/path`, sent to an origin.
    Origin(&'b str),
    /// `host:port`, for CONNECT; the port is always present.
    Authority(Authority<'b>),
    /// `*`, for OPTIONS of the whole server.
    Asterisk,
}

impl<'b> Target<'b> {
    /// Parses the target of a request of `method`.
    ///
    /// # Errors
    /// The target has no form that the method allows.
    pub fn parse(method: &str, target: &'b str) -> Result<Self, Malformed> {
        match (method, target) {
            // RFC 9110 s9.3.6: a missing or invalid port is refused.
            ("CONNECT", _) => {
                let authority = Authority::parse(target)?;
                authority.port.ok_or(Malformed::Syntax("CONNECT without a port"))?;
                Ok(Self::Authority(authority))
            }
            ("OPTIONS", "*") => Ok(Self::Asterisk),
            (_, path) if path.starts_with('/') => path_of(path).map(Self::Origin),
            _ => Uri::parse(target).map(Self::Absolute),
        }
    }
}

/// Parses Host (RFC 9112, section 3.2); `None` if it is absent, which HTTP/1.0 allows.
///
/// # Errors
/// Host is repeated, absent in HTTP/1.1, or malformed.
pub fn host<'b>(request: &Request<'b>) -> Result<Option<Authority<'b>>, Malformed> {
    let mut lines = request.fields.all("host");
    match (lines.next(), lines.next()) {
        (Some(line), None) => {
            let text = line.text().ok_or(NO_HOST)?;
            Authority::parse(text).map(Some)
        }
        (None, _) if request.version == Version::Http10 => Ok(None),
        (None, _) => Err(Malformed::Syntax("no Host in HTTP/1.1")),
        (Some(_), Some(_)) => Err(Malformed::Syntax("more than one Host")),
    }
}

#[cfg(test)]
mod tests;
