//! How long the body of a message is (RFC 9112, section 6.3).

use crate::error::Malformed;
use crate::fields::Fields;
use crate::head::{Request, Response, Version};

/// The body behind a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// There is none.
    None,
    /// So many bytes, at least one.
    Length(u64),
    /// Chunks, the last of them empty.
    Chunked,
    /// All up to the end of the connection.
    ToClose,
    /// The connection is a tunnel from here on.
    Tunnel,
}

/// The body of a request.
///
/// # Errors
/// Its length is told in two ways, twice, or not as the grammar says: it is to be refused and its connection closed.
pub fn of_request(request: &Request<'_>) -> Result<Body, Malformed> {
    let body = declared(&request.fields, request.version)?.unwrap_or(Body::None);
    // RFC 9110 s9.3.6 and s9.3.8: they have none, and what a server takes for one is the next request or the tunnel.
    if body != Body::None && matches!(request.method, "CONNECT" | "TRACE") {
        return Err(Malformed::Syntax("content in a method that has none"));
    }
    Ok(body)
}

/// The body of the response to a request of `method`.
///
/// # Errors
/// The same; a client is told 502.
pub fn of_response(response: &Response<'_>, method: &str) -> Result<Body, Malformed> {
    // Also where the body is none: what is told twice has been tampered with.
    let declared = declared(&response.fields, response.version)?;
    Ok(match (response.status, method) {
        (200..=299, "CONNECT") | (101, _) => Body::Tunnel,
        (_, "HEAD") | (100..=199 | 204 | 304, _) => Body::None,
        _ => declared.unwrap_or(Body::ToClose),
    })
}

/// What the fields say; `None` where they say nothing.
fn declared(fields: &Fields<'_>, version: Version) -> Result<Option<Body>, Malformed> {
    let is_coded = fields.has("transfer-encoding");
    match (is_coded, length(fields)?) {
        (false, None) => Ok(None),
        (false, Some(0)) => Ok(Some(Body::None)),
        (false, Some(length)) => Ok(Some(Body::Length(length))),
        // RFC 9112 s6.1: the means of request smuggling.
        (true, Some(_)) => Err(Malformed::Syntax("Transfer-Encoding beside Content-Length")),
        // RFC 9112 s6.1: HTTP/1.0 knows none, so that somebody on the way did not understand it.
        (true, None) if version < Version::Http11 => Err(Malformed::Syntax("Transfer-Encoding in HTTP/1.0")),
        (true, None) => coding(fields),
    }
}

/// RFC 9112 s6.1: chunked is the last coding and stands once. No other is known here.
fn coding(fields: &Fields<'_>) -> Result<Option<Body>, Malformed> {
    if fields.all("transfer-encoding").any(|line| line.text().is_none()) {
        return Err(Malformed::Coding);
    }
    let mut codings = fields.elements("transfer-encoding");
    match (codings.next(), codings.next()) {
        (Some(coding), None) if coding.eq_ignore_ascii_case("chunked") => Ok(Some(Body::Chunked)),
        (None, _) => Err(Malformed::Syntax("an empty Transfer-Encoding")),
        (Some(first), Some(_)) if first.eq_ignore_ascii_case("chunked") => {
            Err(Malformed::Syntax("a coding behind chunked"))
        }
        _ => Err(Malformed::Coding),
    }
}

/// The value of Content-Length: one line of digits alone.
fn length(fields: &Fields<'_>) -> Result<Option<u64>, Malformed> {
    let mut lines = fields.all("content-length");
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err(Malformed::Syntax("more than one Content-Length"));
    }
    let digits =
        line.text().filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()));
    let length = digits.and_then(|digits| digits.parse().ok());
    length.map(Some).ok_or(Malformed::Syntax("a Content-Length that is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head;

    fn request(fields: &str) -> Result<Body, Malformed> {
        let bytes = format!("POST / HTTP/1.1\r\n{fields}\r\n");
        of_request(&head::request(bytes.as_bytes()).unwrap().unwrap().0)
    }

    fn response(status: u16, fields: &str, method: &str) -> Result<Body, Malformed> {
        let bytes = format!("HTTP/1.1 {status} X\r\n{fields}\r\n");
        of_response(&head::response(bytes.as_bytes()).unwrap().unwrap().0, method)
    }

    #[test]
    fn a_length_is_told_in_one_way() {
        assert_eq!(request(""), Ok(Body::None));
        assert_eq!(request("Content-Length: 0\r\n"), Ok(Body::None));
        assert_eq!(request("content-length: 18446744073709551615\r\n"), Ok(Body::Length(u64::MAX)));
        assert_eq!(request("Transfer-Encoding: Chunked\r\n"), Ok(Body::Chunked));
        assert_eq!(request("Transfer-Encoding: , chunked\r\n"), Ok(Body::Chunked));
    }

    #[test]
    fn what_could_smuggle_a_request_is_refused() {
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
            // httparse refuses some of them before.
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
    fn some_responses_have_no_body_whatever_they_say() {
        assert_eq!(response(200, "Content-Length: 5\r\n", "GET"), Ok(Body::Length(5)));
        assert_eq!(response(200, "", "GET"), Ok(Body::ToClose));
        for (status, method) in [(200, "HEAD"), (204, "GET"), (304, "GET"), (103, "GET")] {
            assert_eq!(response(status, "Content-Length: 5\r\n", method), Ok(Body::None));
        }
        assert_eq!(response(200, "", "CONNECT"), Ok(Body::Tunnel));
        assert_eq!(response(407, "Content-Length: 5\r\n", "CONNECT"), Ok(Body::Length(5)));
        assert_eq!(response(101, "", "GET"), Ok(Body::Tunnel));
        assert!(response(200, "Content-Length: 5\r\nContent-Length: 6\r\n", "HEAD").is_err());
    }
}
