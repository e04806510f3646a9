//! Heads of requests (RFC 9113, section 8): checks, and a view of the decoded fields.

use crate::hpack::{Entry, FieldList};
use crate::priority::Priority;

/// Head of a request. All its parts are valid in HTTP/1.1 as well: names and methods are tokens,
/// values contain no line end, and the target no space.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// Method.
    pub method: &'a str,
    /// Scheme; only CONNECT has none.
    pub scheme: Option<&'a str>,
    /// Authority, if the request has the pseudo-header field.
    pub authority: Option<&'a str>,
    /// Path and query, or `*`; only CONNECT has none.
    pub path: Option<&'a str>,
    /// Protocol of an extended CONNECT (RFC 8441).
    pub protocol: Option<&'a str>,
    /// Content-Length.
    pub content_length: Option<u64>,
    has_priority: bool,
    list: Option<&'a FieldList>,
}

/// Head of a request apart from its connection.
#[derive(Debug)]
pub struct RequestHead(FieldList);

impl RequestHead {
    /// Head with the fields of a list that [`Request::parse`] has accepted.
    pub(crate) fn new(list: FieldList) -> Self {
        Self(list)
    }

    /// Returns its parts.
    pub fn request(&self) -> Request<'_> {
        Request::of_checked(&self.0)
    }

    pub(crate) fn into_list(mut self) -> FieldList {
        self.0.clear();
        self.0
    }
}

/// Reason for which a request, or trailers, are malformed (RFC 9113, section 8.1.1).
pub(crate) type Malformed = &'static str;

impl<'a> Request<'a> {
    /// Returns the header fields without the pseudo-header fields. Names are in lower case.
    pub fn fields(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone + use<'a> {
        self.list.into_iter().flat_map(fields)
    }

    /// Returns its priority.
    pub(crate) fn priority(&self) -> Priority {
        if !self.has_priority {
            return Priority::default();
        }
        let lines = self.fields().filter(|(name, _)| *name == b"priority");
        Priority::of_lines(lines.map(|(_, value)| value))
    }

    /// Like [`Self::fields`], with names as text.
    pub fn text_fields(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        let others = |entry: &Entry<'_>| !entry.name().starts_with(b":");
        let entries = self.list.into_iter().flat_map(FieldList::entries).filter(others);
        // Names of a valid request are ASCII.
        entries.filter_map(|entry| Some((entry.name_text()?, entry.value())))
    }

    /// Checks a list of fields.
    pub(crate) fn parse(list: &'a FieldList) -> Result<Self, Malformed> {
        let mut request = Self { list: Some(list), ..Self::default() };
        let (mut is_pseudo, mut host) = (true, None);
        for entry in list.entries() {
            let (name, value) = (entry.name(), entry.value());
            if let Some(name) = name.strip_prefix(b":") {
                if !is_pseudo {
                    return Err("a pseudo-header field after other fields");
                }
                request.set(name, visible(entry)?)?;
                continue;
            }
            is_pseudo = false;
            check_field(name, value)?;
            match name {
                b"content-length" => set(&mut request.content_length, length(value)?)?,
                b"host" => set(&mut host, value)?,
                b"priority" => request.has_priority = true,
                _ => {}
            }
        }
        request.check(host)?;
        Ok(request)
    }

    /// Returns the view of a list that [`Self::parse`] has accepted, without the checks. Its
    /// pseudo-header fields come first.
    pub(crate) fn of_checked(list: &'a FieldList) -> Self {
        let mut request = Self { list: Some(list), ..Self::default() };
        for entry in list.entries() {
            let text = || entry.value_text();
            match entry.name() {
                b":method" => request.method = text().unwrap_or_default(),
                b":scheme" => request.scheme = text(),
                b":authority" => request.authority = text(),
                b":path" => request.path = text(),
                b":protocol" => request.protocol = text(),
                b"content-length" => request.content_length = length(entry.value()).ok(),
                b"priority" => request.has_priority = true,
                _ => {}
            }
        }
        request
    }

    fn set(&mut self, name: &[u8], value: &'a str) -> Result<(), Malformed> {
        match name {
            b"method" if self.method.is_empty() && is_token(value.as_bytes()) => {
                self.method = value;
                Ok(())
            }
            b"scheme" => set(&mut self.scheme, value),
            b"authority" => set(&mut self.authority, value),
            b"path" => set(&mut self.path, value),
            b"protocol" => set(&mut self.protocol, value),
            _ => Err("an unknown, repeated or malformed pseudo-header field"),
        }
    }

    /// RFC 9113 s8.3.1, s8.5; RFC 8441 s4. `host` is the value of the field Host.
    fn check(&self, host: Option<&[u8]>) -> Result<(), Malformed> {
        let is_target =
            self.path.is_some_and(|path| path.starts_with('/') || (path == "*" && self.method == "OPTIONS"));
        // Other schemes are not for HTTP, and would be part of the target that a proxy reads.
        let is_http = |scheme: &str| ["http", "https"].iter().any(|own| scheme.eq_ignore_ascii_case(own));
        let has_target = self.scheme.is_some_and(is_http) && is_target;
        let is_valid = match (self.method, self.protocol) {
            // The data of a tunnel has no length.
            ("CONNECT", Some(_)) => has_target && self.authority.is_some() && self.content_length.is_none(),
            ("CONNECT", None) => self.scheme.is_none() && self.path.is_none() && self.authority.is_some(),
            (_, protocol) => has_target && protocol.is_none() && !self.method.is_empty(),
        };
        if !is_valid {
            return Err("missing, empty or excess pseudo-header fields");
        }
        let is_same =
            |host: &[u8]| self.authority.is_none_or(|own| own.as_bytes().eq_ignore_ascii_case(host));
        if !host.is_none_or(is_same) {
            return Err("several hosts");
        }
        Ok(())
    }
}

/// Returns the fields of a list without the pseudo-header fields.
pub(crate) fn fields(list: &FieldList) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
    list.iter().filter(|(name, _)| !name.starts_with(b":"))
}

/// Checks the fields of trailers: no pseudo-header fields.
pub(crate) fn check_trailers(list: &FieldList) -> Result<(), Malformed> {
    list.iter().try_for_each(|(name, value)| check_field(name, value))
}

pub(crate) fn set<T>(part: &mut Option<T>, value: T) -> Result<(), Malformed> {
    if part.replace(value).is_some() {
        Err("a repeated pseudo-header field or Content-Length")
    } else {
        Ok(())
    }
}

/// Returns a value without spaces, controls and bytes beyond ASCII, which could change the meaning
/// of a request line.
fn visible(entry: Entry<'_>) -> Result<&str, Malformed> {
    check_visible(entry.value())?;
    entry.value_text().ok_or(INVISIBLE)
}

/// Checks that a value is one of [`visible`].
pub(crate) fn check_visible(value: &[u8]) -> Result<(), Malformed> {
    if value.iter().all(u8::is_ascii_graphic) { Ok(()) } else { Err(INVISIBLE) }
}

const INVISIBLE: Malformed = "a pseudo-header field with a space or a control character";

pub(crate) fn length(value: &[u8]) -> Result<u64, Malformed> {
    let digits =
        std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).ok_or("a malformed Content-Length")
}

/// RFC 9113 s8.2.
pub(crate) fn check_field(name: &[u8], value: &[u8]) -> Result<(), Malformed> {
    if name.is_empty() || !name.iter().all(|byte| OF_NAME[usize::from(*byte)]) {
        return Err("a malformed field name");
    }
    if value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) || value.trim_ascii().len() < value.len() {
        return Err("a malformed field value");
    }
    match name {
        b"connection" | b"proxy-connection" | b"keep-alive" | b"transfer-encoding" | b"upgrade" => {
            Err("a field of HTTP/1.1 connections")
        }
        b"te" if value != b"trailers" => Err("TE other than trailers"),
        _ => Ok(()),
    }
}

fn is_token(text: &[u8]) -> bool {
    let is_token = |byte: &u8| OF_NAME[usize::from(*byte)] || byte.is_ascii_uppercase();
    !text.is_empty() && text.iter().all(is_token)
}

/// True for each byte of a field name in lower case: those of tokens (RFC 9110, section 5.6.2)
/// without upper-case letters.
static OF_NAME: [bool; 256] = of_name();

const fn of_name() -> [bool; 256] {
    let (mut of_name, mut byte) = ([false; 256], 0_u8);
    while byte < 128 {
        of_name[byte as usize] = byte.is_ascii_lowercase() || byte.is_ascii_digit();
        byte += 1;
    }
    let (others, mut at) = (b"!#$%&'*+-.^_`|~", 0);
    while at < others.len() {
        of_name[others[at] as usize] = true;
        at += 1;
    }
    of_name
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hpack::{Decoder, encode};

    #[test]
    fn names_consist_of_the_characters_of_tokens() {
        for byte in 0..=u8::MAX {
            let is_token = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            assert_eq!(super::is_token(&[byte]), is_token, "{byte}");
            let is_name = is_token && !byte.is_ascii_uppercase();
            assert_eq!(check_field(&[b'a', byte], b"").is_ok(), is_name, "{byte}");
        }
    }

    fn list(fields: &[(&str, &str)]) -> FieldList {
        let (mut block, mut list) = (Vec::new(), FieldList::new(1 << 16, 100));
        for (name, value) in fields {
            encode(name.as_bytes(), value.as_bytes(), &mut block);
        }
        Decoder::new(4096).decode(&block, &mut list).unwrap();
        list
    }

    const GET: &[(&str, &str)] = &[(":method", "GET"), (":scheme", "http"), (":path", "/a")];

    fn parse(fields: &[(&str, &str)]) -> Result<(), Malformed> {
        Request::parse(&list(fields)).map(drop)
    }

    #[test]
    fn parts_and_fields_are_found() {
        let fields = [GET, &[(":authority", "a"), ("host", "A"), ("content-length", "7")]].concat();
        let list = list(&fields);
        let request = Request::parse(&list).unwrap();
        assert_eq!((request.method, request.path, request.authority), ("GET", Some("/a"), Some("a")));
        assert_eq!((request.content_length, request.fields().count()), (Some(7), 2));
        let connect = [(":method", "CONNECT"), (":authority", "a:443")];
        assert!(parse(&connect).is_ok());
        let websocket =
            [&[(":method", "CONNECT"), (":protocol", "websocket")], &GET[1..], &[(":authority", "a")]];
        assert!(parse(&websocket.concat()).is_ok());
        assert!(parse(&[&[(":method", "OPTIONS"), (":path", "*")], &GET[1..2]].concat()).is_ok());
    }

    proptest! {
        /// A list of which the fields were checked is read as it was by the check.
        #[test]
        fn checked_list_is_read_as_when_it_was_checked(
            order in any::<prop::sample::Index>(),
            pseudo in prop::collection::vec(
                ("(:method|:scheme|:path|:authority|:protocol|:status)", "(GET|CONNECT|http|https|/|/a|\\*|a:1|websocket|)"),
                0..3,
            ),
            more in prop::collection::vec(
                ("(content-length|host|priority|cookie|te|x-a|[ -~]{0,3})", "(0|7|a:1|u=1, i|trailers|[ -\u{ff}]{0,3})"),
                0..5,
            ),
        ) {
            let of_get = [(":method", "GET"), (":scheme", "http"), (":path", "/a"), (":authority", "a:1")];
            let mut fields = of_get.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
            let first = order.index(fields.len());
            fields.rotate_left(first);
            for (name, value) in pseudo {
                fields.retain(|(own, _)| *own != name);
                fields.push((name, value));
            }
            fields.extend(more);
            let fields: Vec<_> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
            let list = list(&fields);
            if let Ok(parsed) = Request::parse(&list) {
                let checked = Request::of_checked(&list);
                prop_assert_eq!(format!("{checked:?}"), format!("{parsed:?}"));
                prop_assert_eq!(checked.priority(), parsed.priority());
                let text: Vec<_> = checked.text_fields().map(|(name, value)| (name.as_bytes(), value)).collect();
                prop_assert_eq!(text, parsed.fields().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn malformed_requests_are_refused() {
        for index in 0..GET.len() {
            let mut without = GET.to_vec();
            without.remove(index);
            assert!(parse(&without).is_err(), "{without:?}");
            assert!(parse(&[GET, &GET[index..=index]].concat()).is_err(), "repeated {index}");
            let mut empty = GET.to_vec();
            empty[index].1 = "";
            assert!(parse(&empty).is_err(), "{empty:?}");
        }
        for (name, value) in [
            (":status", "200"),
            (":path", "a"),
            (":path", "*"),
            (":path", "/a b"),
            (":path", "/\u{e9}"),
            (":method", "G T"),
            (":protocol", "websocket"),
            ("Upper", "a"),
            ("sp ace", "a"),
            ("", "a"),
            ("a", " b"),
            ("a", "b\t"),
            ("a", "b\r\nc: d"),
            ("a", "b\0"),
            ("connection", "close"),
            ("keep-alive", "1"),
            ("proxy-connection", "1"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("te", "gzip"),
            ("content-length", "+1"),
            ("content-length", ""),
        ] {
            let mut fields: Vec<_> = GET.iter().filter(|field| field.0 != name).copied().collect();
            fields.push((name, value));
            assert!(parse(&fields).is_err(), "{name:?}: {value:?}");
        }
        assert!(parse(&[GET, &[("a", "b"), (":authority", "a")]].concat()).is_err());
        assert!(parse(&[GET, &[(":authority", "a"), ("host", "b")]].concat()).is_err());
        assert!(parse(&[GET, &[("host", "a"), ("host", "a")]].concat()).is_err());
        assert!(parse(&[GET, &[("content-length", "1"), ("content-length", "1")]].concat()).is_err());
        assert!(check_trailers(&list(&[(":path", "/")])).is_err());
        assert!(check_trailers(&list(&[("a", "b")])).is_ok());
    }
}
