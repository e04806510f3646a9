//! What a request is for: its target and its Host (RFC 9112, section 3.2; RFC 9110, sections 4.2 and 7.2), and the text under which a
//! cache keeps the response.
//!
//! Only `http` and `https` are known. A host is a name of letters, digits and `-._~`, or an address; what resolvers would not take is
//! refused, for the next program might read it as something else.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::error::Malformed;
use crate::head::{Request, Version};

/// Bytes of a host's name at most (RFC 1035, section 2.3.4).
const NAME_BYTES_MAX: usize = 255;

/// The scheme of a URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// In the clear.
    Http,
    /// Through TLS.
    Https,
}

impl Scheme {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port where none is told (RFC 9110, sections 4.2.1 and 4.2.2).
    pub fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// The host of an authority.
#[derive(Clone, Copy, Debug)]
pub enum Host<'b> {
    /// A name, as it was written.
    Name(&'b str),
    /// An address of four bytes.
    V4(Ipv4Addr),
    /// An address of sixteen bytes, which stands in brackets.
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

/// In lower case, an IPv6 address in brackets and in its one short form (RFC 5952).
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

/// A host, and a port where one is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority<'b> {
    /// The host.
    pub host: Host<'b>,
    /// Never 0.
    pub port: Option<u16>,
}

impl<'b> Authority<'b> {
    /// The authority that `text` is: `uri-host [ ":" port ]` (RFC 9110, section 7.2).
    ///
    /// # Errors
    /// It is none, or has user information, which was never for machines (RFC 9110, section 4.2.4).
    pub fn parse(text: &'b str) -> Result<Self, Malformed> {
        if text.contains('@') {
            return Err(Malformed::Syntax("user information in an authority"));
        }
        let (host, port) = if let Some(inside) = text.strip_prefix('[') {
            let (address, port) = inside.split_once(']').ok_or(NO_HOST)?;
            (Host::V6(address.parse().map_err(|_| NO_HOST)?), port)
        } else {
            let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
            (name(host)?, port)
        };
        Ok(Self { host, port: port_of(port)? })
    }

    /// The port to connect to.
    pub fn port_or_default(&self, scheme: Scheme) -> u16 {
        self.port.unwrap_or(scheme.port())
    }

    /// Writes its text for `scheme`: normalised, without the port where that is the scheme's own (RFC 9110, section 4.2.3).
    pub fn write(&self, scheme: Scheme, out: &mut String) {
        match self.host {
            Host::Name(name) => out.extend(name.bytes().map(|byte| char::from(byte.to_ascii_lowercase()))),
            Host::V4(address) => write_v4(address, |text| out.push_str(text)),
            Host::V6(_) => out.push_str(&self.host.to_string()),
        }
        if let Some(port) = self.port.filter(|port| *port != scheme.port()) {
            out.push(':');
            out.push_str(itoa::Buffer::new().format(port));
        }
    }
}

/// Normalised, with the port if one is told.
impl fmt::Display for Authority<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(out)?;
        self.port.map_or(Ok(()), |port| write!(out, ":{port}"))
    }
}

/// Writes an address, piece by piece: each request tells one or two, and formatting is slow.
pub(crate) fn write_v4(address: Ipv4Addr, mut push: impl FnMut(&str)) {
    for (index, octet) in address.octets().into_iter().enumerate() {
        push(if index == 0 { "" } else { "." });
        push(itoa::Buffer::new().format(octet));
    }
}

const NO_HOST: Malformed = Malformed::Syntax("an authority whose host is neither a name nor an address");

fn name(host: &str) -> Result<Host<'_>, Malformed> {
    if host.starts_with(|first: char| first.is_ascii_digit())
        && let Ok(address) = host.parse()
    {
        return Ok(Host::V4(address));
    }
    let is_name = (1..=NAME_BYTES_MAX).contains(&host.len()) && host.bytes().all(is_unreserved);
    if is_name { Ok(Host::Name(host)) } else { Err(NO_HOST) }
}

/// RFC 3986, section 2.3.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// The port behind a host, colon included: a port that is empty is as none (RFC 3986, section 3.2.3).
fn port_of(text: &str) -> Result<Option<u16>, Malformed> {
    const NO_PORT: Malformed = Malformed::Syntax("a port that is none");
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

/// A URI of the schemes that are known here, without its fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uri<'b> {
    /// Its scheme.
    pub scheme: Scheme,
    /// Who has it.
    pub authority: Authority<'b>,
    /// Path and query, as they were written; may be empty.
    pub path: &'b str,
}

impl<'b> Uri<'b> {
    /// The URI that `text` is.
    ///
    /// # Errors
    /// It is none, has another scheme, or a fragment, which is never sent (RFC 9110, section 7.1).
    pub fn parse(text: &'b str) -> Result<Self, Malformed> {
        let (scheme, rest) =
            scheme(text).ok_or(Malformed::Syntax("a target that is neither a path nor a URI of http"))?;
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        Ok(Self { scheme, authority: Authority::parse(authority)?, path: path_of(path)? })
    }

    /// Whether both have the same scheme, host and port (RFC 9110, section 4.3.1).
    pub fn is_same_origin(&self, other: &Uri<'_>) -> bool {
        let port = |uri: &Uri<'_>| uri.authority.port_or_default(uri.scheme);
        self.scheme == other.scheme
            && self.authority.host == other.authority.host
            && port(self) == port(other)
    }

    /// The path and query that an origin is asked for: never empty (RFC 9112, section 3.2.1), in two texts to be written one behind the
    /// other. For OPTIONS, where there is neither, that is `*` (section 3.2.4).
    pub fn origin_form(&self, method: &str) -> (&'static str, &'b str) {
        match self.path.as_bytes().first() {
            None if method == "OPTIONS" => ("*", ""),
            None | Some(b'?') => ("/", self.path),
            Some(_) => ("", self.path),
        }
    }

    /// Writes the text under which a cache keeps responses behind `key`: `http://host[:port]/path?query`. Scheme and authority are
    /// normalised; path and query are as they were written, for that is what the origin is asked for (RFC 9110, section 7.7), and it may
    /// answer otherwise to what RFC 3986, section 6.2.2, holds for the same.
    pub fn write_key(&self, key: &mut String) {
        key.push_str(self.scheme.name());
        key.push_str("://");
        self.authority.write(self.scheme, key);
        let (slash, path) = self.origin_form("GET");
        key.push_str(slash);
        key.push_str(path);
    }
}

/// The scheme of a URI, and what stands behind its `://`.
fn scheme(text: &str) -> Option<(Scheme, &str)> {
    let (name, rest) = text.split_once("://")?;
    let scheme =
        [Scheme::Http, Scheme::Https].into_iter().find(|scheme| name.eq_ignore_ascii_case(scheme.name()));
    Some((scheme?, rest))
}

/// RFC 3986 allows fewer characters, but browsers write more of them as they are; what would end a line or a target is not among them.
fn path_of(path: &str) -> Result<&str, Malformed> {
    let is_path = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if is_path {
        Ok(path)
    } else {
        Err(Malformed::Syntax("a target with a fragment, or with bytes that are to be encoded"))
    }
}

/// The target of a request, in its four forms (RFC 9112, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'b> {
    /// `http://host/path`: for a proxy.
    Absolute(Uri<'b>),
    /// `/path`: for an origin.
    Origin(&'b str),
    /// `host:port`: what CONNECT asks for; the port is always told.
    Authority(Authority<'b>),
    /// `*`: OPTIONS of the server as a whole.
    Asterisk,
}

impl<'b> Target<'b> {
    /// The target of a request of `method`.
    ///
    /// # Errors
    /// It is in no form that the method has.
    pub fn parse(method: &str, target: &'b str) -> Result<Self, Malformed> {
        match (method, target) {
            // RFC 9110 s9.3.6: without a port, or with one that is none, it is refused.
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

/// What the Host of a request says (RFC 9112, section 3.2): `None` where there is none, as HTTP/1.0 allows.
///
/// # Errors
/// There are several, or none in HTTP/1.1, or it is not as the grammar says.
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
