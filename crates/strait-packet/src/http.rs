//! Starts of the heads of HTTP/1 (RFC 9112 s3 and s4). strait-http parses whole heads.

/// Methods of requests, and versions of responses.
const STARTS: [&[u8]; 11] = [
    b"GET ",
    b"POST ",
    b"HEAD ",
    b"PUT ",
    b"DELETE ",
    b"OPTIONS ",
    b"PATCH ",
    b"CONNECT ",
    b"TRACE ",
    b"HTTP/1.1 ",
    b"HTTP/1.0 ",
];

/// Returns true if `bytes` begin like the head of a request or of a response.
pub fn is_head(bytes: &[u8]) -> bool {
    STARTS.iter().any(|start| bytes.starts_with(start))
}
