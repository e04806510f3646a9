//! Parser of messages for clients and origins of scenarios. It shares no code with the tested
//! proxy, and is stricter, because the proxy's output needs no leniency.

/// Head of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// First line.
    pub(super) first: String,
    /// Names and values, in order.
    pub(super) fields: Vec<(String, String)>,
}

impl Head {
    /// Parses the head at the start of `bytes`; returns it with its length, or None if it is
    /// incomplete.
    pub(super) fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, String> {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
        let text = String::from_utf8_lossy(&bytes[..end]);
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default().to_owned();
        let fields = lines.map(field).collect::<Result<_, _>>()?;
        Ok(Some((Self { first, fields }, end + 4)))
    }

    /// Returns all lines of a field joined; None if there is none.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        let lines = self.fields.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        let values: Vec<_> = lines.map(|(_, value)| value.as_str()).collect();
        (!values.is_empty()).then(|| values.join(", "))
    }

    /// Returns the status of a response.
    pub(super) fn status(&self) -> Result<u16, String> {
        let mut words = self.first.split(' ');
        let (version, status) = (words.next(), words.next());
        let is_version = matches!(version, Some("HTTP/1.1" | "HTTP/1.0"));
        let status = status.filter(|status| status.len() == 3).and_then(|status| status.parse().ok());
        status.filter(|_| is_version).ok_or_else(|| format!("no status line: {}", self.first))
    }

    /// Returns the framing of the body of a request, or of a response to a request of `method`.
    pub(super) fn framing(&self, method: Option<&str>) -> Result<Framing, String> {
        let status = method.map(|_| self.status()).transpose()?;
        let lengths =
            self.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("content-length")).count();
        let chunked = self.get("transfer-encoding");
        match (method, status) {
            _ if lengths > 1 => return Err("several Content-Length".into()),
            _ if lengths > 0 && chunked.is_some() => {
                return Err("both Content-Length and Transfer-Encoding".into());
            }
            (Some("HEAD"), _) | (_, Some(100..=199 | 204 | 304)) | (Some("CONNECT"), Some(200..=299)) => {
                return Ok(Framing::Length(0));
            }
            _ => {}
        }
        match (chunked, self.get("content-length")) {
            (Some(coding), _) if coding == "chunked" => Ok(Framing::Chunked),
            (Some(coding), _) => Err(format!("an unknown coding: {coding}")),
            (None, Some(length)) => super::value::number(&length).map(Framing::Length),
            (None, None) if method.is_some() => Ok(Framing::ToClose),
            (None, None) => Ok(Framing::Length(0)),
        }
    }
}

fn field(line: &str) -> Result<(String, String), String> {
    let (name, value) = line.split_once(':').ok_or_else(|| format!("not a field: {line}"))?;
    if name.is_empty() || name.contains([' ', '\t']) {
        return Err(format!("a malformed field name: {line}"));
    }
    Ok((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
}

/// Framing of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// Length in bytes.
    Length(u64),
    /// Chunked.
    Chunked,
    /// Until the end of the connection.
    ToClose,
}

/// Body, and the number of bytes that it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    pub(super) trailers: Vec<(String, String)>,
    pub(super) used: usize,
}

/// Received part of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// Complete body.
    Whole(Body),
    /// Incomplete body, with its data so far.
    Part(Body),
}

/// Parses the body at the start of `bytes`.
pub(super) fn body(bytes: &[u8], framing: Framing, is_ended: bool) -> Result<Parsed, String> {
    let plain = |bytes: &[u8]| Body { bytes: bytes.to_vec(), trailers: Vec::new(), used: bytes.len() };
    match framing {
        Framing::Length(length) if bytes.len() as u64 >= length => {
            Ok(Parsed::Whole(plain(&bytes[..length as usize])))
        }
        Framing::ToClose if is_ended => Ok(Parsed::Whole(plain(bytes))),
        Framing::Length(_) | Framing::ToClose => Ok(Parsed::Part(plain(bytes))),
        Framing::Chunked => chunks(bytes),
    }
}

fn chunks(bytes: &[u8]) -> Result<Parsed, String> {
    let (mut data, mut at) = (Vec::new(), 0);
    loop {
        let part = |data, used| Ok(Parsed::Part(Body { bytes: data, trailers: Vec::new(), used }));
        let Some(line) = line(&bytes[at..]) else { return part(data, at) };
        let size =
            usize::from_str_radix(&line, 16).map_err(|_| format!("a malformed chunk size: {line:?}"))?;
        let begin = at + line.len() + 2;
        if size == 0 {
            return trailers(bytes, begin, data);
        }
        let end = begin + size;
        match bytes.get(begin..end + 2) {
            Some(chunk) if chunk.ends_with(b"\r\n") => data.extend_from_slice(&chunk[..size]),
            Some(_) => return Err("a chunk that does not end with CR LF".into()),
            None => {
                data.extend_from_slice(&bytes[begin..bytes.len().min(end)]);
                return part(data, bytes.len());
            }
        }
        at = end + 2;
    }
}

fn trailers(bytes: &[u8], mut at: usize, data: Vec<u8>) -> Result<Parsed, String> {
    let mut trailers = Vec::new();
    while let Some(line) = line(&bytes[at..]) {
        at += line.len() + 2;
        if line.is_empty() {
            return Ok(Parsed::Whole(Body { bytes: data, trailers, used: at }));
        }
        trailers.push(field(&line)?);
    }
    Ok(Parsed::Part(Body { bytes: data, trailers: Vec::new(), used: at }))
}

/// Returns the line at the start of `bytes`; None if it is incomplete.
fn line(bytes: &[u8]) -> Option<String> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// Part of a multipart body (RFC 9110, section 14.6): its fields and its bytes.
pub(super) type Part = (Head, Vec<u8>);

/// Parses the parts of a multipart/byteranges body.
pub(super) fn parts(content_type: &str, body: &[u8]) -> Result<Vec<Part>, String> {
    let boundary = content_type.strip_prefix("multipart/byteranges; boundary=");
    let boundary = boundary.ok_or_else(|| format!("a Content-Type without a boundary: {content_type}"))?;
    let begin = format!("\r\n--{boundary}\r\n");
    let end = format!("\r\n--{boundary}--\r\n");
    let find =
        |bytes: &[u8], text: &str| bytes.windows(text.len()).position(|window| window == text.as_bytes());
    let (mut parts, mut rest) = (Vec::new(), body);
    while rest.starts_with(begin.as_bytes()) {
        rest = &rest[begin.len()..];
        // Head::read expects a first line before the fields.
        let headed = [b"part\r\n", rest].concat();
        let (head, used) = Head::read(&headed)?.ok_or("a part without the end of its head")?;
        rest = &rest[used - "part\r\n".len()..];
        let length = find(rest, &begin).or_else(|| find(rest, &end)).ok_or("a part without an end")?;
        parts.push((head, rest[..length].to_vec()));
        rest = &rest[length..];
    }
    if rest == end.as_bytes() {
        Ok(parts)
    } else {
        Err(format!("no closing line, but {}", super::value::shown(rest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framing_is_determined_from_the_head() {
        let read = |head: &str, method| {
            let bytes = format!("{head}\r\n\r\n");
            Head::read(bytes.as_bytes()).unwrap().unwrap().0.framing(method)
        };
        assert_eq!(read("HTTP/1.1 200 OK\r\nContent-Length: 5", Some("GET")), Ok(Framing::Length(5)));
        assert_eq!(read("HTTP/1.1 200 OK\r\nContent-Length: 5", Some("HEAD")), Ok(Framing::Length(0)));
        assert_eq!(read("HTTP/1.1 200 OK", Some("GET")), Ok(Framing::ToClose));
        assert_eq!(read("GET / HTTP/1.1", None), Ok(Framing::Length(0)));
        assert!(read("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5", Some("GET")).is_err());
        assert!(
            read("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", Some("GET")).is_err()
        );
    }

    #[test]
    fn chunks_are_joined() {
        let bytes = b"3\r\nabc\r\n2\r\nde\r\n0\r\nA: b\r\n\r\nrest";
        let whole = Body {
            bytes: b"abcde".to_vec(),
            trailers: vec![("A".into(), "b".into())],
            used: bytes.len() - 4,
        };
        assert_eq!(body(bytes, Framing::Chunked, false), Ok(Parsed::Whole(whole)));
        for len in 0..bytes.len() - 4 {
            assert!(matches!(body(&bytes[..len], Framing::Chunked, true), Ok(Parsed::Part(_))), "{len}");
        }
        assert!(body(b"3\r\nabcd\r\n", Framing::Chunked, false).is_err());
        assert!(body(b"x\r\n", Framing::Chunked, false).is_err());
    }

    #[test]
    fn multipart_body_is_parsed() {
        let body = b"\r\n--b\r\nContent-Range: bytes 0-0/2\r\n\r\nx\r\n--b\r\nA: c\r\n\r\ny\r\n--b--\r\n";
        let parts = parts("multipart/byteranges; boundary=b", body).unwrap();
        let texts: Vec<_> = parts.iter().map(|(_, bytes)| bytes.as_slice()).collect();
        assert_eq!(texts, [b"x", b"y"]);
        assert_eq!(parts[0].0.get("content-range").as_deref(), Some("bytes 0-0/2"));
        assert!(super::parts("multipart/byteranges; boundary=b", &body[..body.len() - 2]).is_err());
        assert!(super::parts("text/plain", body).is_err());
    }
}
