//! Methods and what is known of them (RFC 9110, section 9).

/// Whether a method only reads (RFC 9110, section 9.2.1). Of one that is not known the worst is assumed.
pub fn is_safe(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE")
}

/// Whether doing it twice is as doing it once (RFC 9110, section 9.2.2): such a request may be sent again where a connection broke before
/// the response began.
pub fn is_idempotent(method: &str) -> bool {
    is_safe(method) || matches!(method, "PUT" | "DELETE")
}

/// Whether a stored response to GET may answer it (RFC 9111, section 4; RFC 9110, section 9.3.2).
pub fn is_answered_from_store(method: &str) -> bool {
    matches!(method, "GET" | "HEAD")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_what_the_rfc_says() {
        for (method, safe, idempotent, stored) in [
            ("GET", true, true, true),
            ("HEAD", true, true, true),
            ("OPTIONS", true, true, false),
            ("TRACE", true, true, false),
            ("PUT", false, true, false),
            ("DELETE", false, true, false),
            ("POST", false, false, false),
            ("PATCH", false, false, false),
            ("CONNECT", false, false, false),
            ("get", false, false, false),
        ] {
            let is = (is_safe(method), is_idempotent(method), is_answered_from_store(method));
            assert_eq!(is, (safe, idempotent, stored), "{method}");
        }
    }
}
