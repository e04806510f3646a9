//! Length of a message body (RFC 9112, section 6.3).

use crate::error::Malformed;
use crate::fields::Fields;
use crate::head::{Request, Response, Version};

/// Framing of the body after a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// No body.
    None,
    /// This many bytes, at least one.
    Length(u64),
    /// Chunked transfer coding.
    Chunked,
    /// All bytes up to the end of the connection.
    ToClose,
    /// The connection becomes a tunnel.
    Tunnel,
}

/// Framing of a request body.
///
/// # Errors
/// The length is ambiguous, repeated or malformed: refuse the request and close the connection.
pub fn of_request(request: &Request<'_>) -> Result<BodyFraming, Malformed> {
    let body = declared(&request.fields, request.version)?.unwrap_or(BodyFraming::None);
    // RFC 9110 s9.3.6 and s9.3.8: these methods have no content. A server may interpret such
    // content as the next request, or as tunnel data.
    if body != BodyFraming::None && matches!(request.method, "CONNECT" | "TRACE") {
        return Err(Malformed::Syntax("content in CONNECT or TRACE"));
    }
    Ok(body)
}

/// Framing of the body of a response to a request of `method`.
///
/// # Errors
/// As for [`of_request`]; answer the client with 502.
pub fn of_response(response: &Response<'_>, method: &str) -> Result<BodyFraming, Malformed> {
    // Checked also if there is no body: a repeated length is a sign of tampering.
    let declared = declared(&response.fields, response.version)?;
    Ok(match (response.status, method) {
        (200..=299, "CONNECT") | (101, _) => BodyFraming::Tunnel,
        (_, "HEAD") | (100..=199 | 204 | 304, _) => BodyFraming::None,
        _ => declared.unwrap_or(BodyFraming::ToClose),
    })
}

/// Framing declared by the fields; `None` without such fields.
fn declared(fields: &Fields<'_>, version: Version) -> Result<Option<BodyFraming>, Malformed> {
    let is_coded = fields.has("transfer-encoding");
    match (is_coded, length(fields)?) {
        (false, None) => Ok(None),
        (false, Some(0)) => Ok(Some(BodyFraming::None)),
        (false, Some(length)) => Ok(Some(BodyFraming::Length(length))),
        // RFC 9112 s6.1: a means of request smuggling.
        (true, Some(_)) => Err(Malformed::Syntax("both Transfer-Encoding and Content-Length")),
        // RFC 9112 s6.1: HTTP/1.0 has no Transfer-Encoding, so an intermediary may have ignored it.
        (true, None) if version < Version::Http11 => Err(Malformed::Syntax("Transfer-Encoding in HTTP/1.0")),
        (true, None) => coding(fields),
    }
}

/// RFC 9112 s6.1: chunked must be the last coding and appear once. Other codings are not supported.
fn coding(fields: &Fields<'_>) -> Result<Option<BodyFraming>, Malformed> {
    if fields.all("transfer-encoding").any(|line| line.text().is_none()) {
        return Err(Malformed::Coding);
    }
    let mut codings = fields.elements("transfer-encoding");
    match (codings.next(), codings.next()) {
        (Some(coding), None) if coding.eq_ignore_ascii_case("chunked") => Ok(Some(BodyFraming::Chunked)),
        (None, _) => Err(Malformed::Syntax("an empty Transfer-Encoding")),
        (Some(first), Some(_)) if first.eq_ignore_ascii_case("chunked") => {
            Err(Malformed::Syntax("a coding after chunked"))
        }
        _ => Err(Malformed::Coding),
    }
}

/// Longest body: the offset of its last byte must fit the offsets of files.
const LENGTH_MAX: u64 = i64::MAX as u64;

/// Value of Content-Length, which must be one line of digits.
fn length(fields: &Fields<'_>) -> Result<Option<u64>, Malformed> {
    let mut lines = fields.all("content-length");
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err(Malformed::Syntax("more than one Content-Length"));
    }
    let digits =
        line.text().filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
    let length = digits.and_then(|digits| digits.parse().ok()).filter(|length| *length <= LENGTH_MAX);
    length.map(Some).ok_or(Malformed::Syntax("an invalid Content-Length"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head;

    fn request(fields: &str) -> Result<BodyFraming, Malformed> {
        let bytes = format!("POST / HTTP/1.1\r\n{fields}\r\n");
        of_request(&head::request(bytes.as_bytes()).unwrap().unwrap().0)
    }

    fn response(status: u16, fields: &str, method: &str) -> Result<BodyFraming, Malformed> {
        let bytes = format!("HTTP/1.1 {status} X\r\n{fields}\r\n");
        of_response(&head::response(bytes.as_bytes()).unwrap().unwrap().0, method)
    }

    #[test]
    fn single_declarations_of_a_length_are_read() {
        assert_eq!(request(""), Ok(BodyFraming::None));
        assert_eq!(request("Content-Length: 0\r\n"), Ok(BodyFraming::None));
        assert_eq!(request("content-length: 9223372036854775807\r\n"), Ok(BodyFraming::Length(LENGTH_MAX)));
        assert!(request("content-length: 9223372036854775808\r\n").is_err());
        assert!(request("content-length: 18446744073709551615\r\n").is_err());
        assert_eq!(request("Transfer-Encoding: Chunked\r\n"), Ok(BodyFraming::Chunked));
        assert_eq!(request("Transfer-Encoding: , chunked\r\n"), Ok(BodyFraming::Chunked));
    }

    #[test]
    fn ambiguous_lengths_are_refused() {
        for fields in [
            "Content-Length: 5\r\nContent-Length: 5\r\n",
            "Content-Length: 5, 5\r\n",
            "Content-Length: +5\r\n",
            "Content-Length: 0x5\r\n",
            "Content-Length: 5 5\r\n",
            "Content-Length:\r\n",
            "Content-Length: 18446744073709551616\r\n",
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
            "Transfer-Encoding: chunked, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
            "Transfer-Encoding: \r\n",
        ] {
            assert_eq!(request(fields).map_err(Malformed::status), Err(400), "{fields:?}");
        }
        for fields in [
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Transfer-Encoding: \x0bchunked\r\n",
            "Transfer-Encoding: \"chunked\"\r\n",
            "Transfer-Encoding: chunked;q=1\r\n",
        ] {
            // httparse refuses some of them already.
            let bytes = format!("POST / HTTP/1.1\r\n{fields}\r\n");
            let refused = match head::request(bytes.as_bytes()) {
                Ok(head) => of_request(&head.unwrap().0).is_err(),
                Err(_) => true,
            };
            assert!(refused, "{fields:?}");
        }
        let old = head::request(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap().unwrap().0;
        assert!(of_request(&old).is_err());
        for (method, refused) in [("CONNECT", true), ("TRACE", true), ("GET", false)] {
            let bytes = format!("{method} a:1 HTTP/1.1\r\nContent-Length: 1\r\n\r\n");
            let head = head::request(bytes.as_bytes()).unwrap().unwrap().0;
            assert_eq!(of_request(&head).is_err(), refused, "{method}");
        }
    }

    #[test]
    fn some_responses_have_no_body_despite_their_length() {
        assert_eq!(response(200, "Content-Length: 5\r\n", "GET"), Ok(BodyFraming::Length(5)));
        assert_eq!(response(200, "", "GET"), Ok(BodyFraming::ToClose));
        for (status, method) in [(200, "HEAD"), (204, "GET"), (304, "GET"), (103, "GET")] {
            assert_eq!(response(status, "Content-Length: 5\r\n", method), Ok(BodyFraming::None));
        }
        assert_eq!(response(200, "", "CONNECT"), Ok(BodyFraming::Tunnel));
        assert_eq!(response(407, "Content-Length: 5\r\n", "CONNECT"), Ok(BodyFraming::Length(5)));
        assert_eq!(response(101, "", "GET"), Ok(BodyFraming::Tunnel));
        assert!(response(200, "Content-Length: 5\r\nContent-Length: 6\r\n", "HEAD").is_err());
    }
}
