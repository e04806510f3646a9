//! Properties of request methods (RFC 9110, section 9).

/// Returns true for a safe method (RFC 9110, section 9.2.1). Unknown methods count as unsafe.
pub fn is_safe(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE")
}

/// Returns true for an idempotent method (RFC 9110, section 9.2.2): its request may be repeated if
/// the connection failed before the response began.
pub fn is_idempotent(method: &str) -> bool {
    is_safe(method) || matches!(method, "PUT" | "DELETE")
}

/// Returns true if a stored response to GET may answer the method (RFC 9111, section 4; RFC 9110,
/// section 9.3.2).
pub fn is_answered_from_store(method: &str) -> bool {
    matches!(method, "GET" | "HEAD")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_have_the_properties_of_the_rfc() {
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
