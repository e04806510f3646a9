//! Fields that rules of an operator may change: of requests on the way to the origin, and of
//! responses on the way to the client.
//!
//! A rule must not change the framing of a message, the fields of a connection, or the fields that
//! describe a body. This module names the reasons; the proxy applies the rules.

use crate::chunked::is_token;
use crate::forward::is_of_connection;

/// Change of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Replaces all lines of the field by one.
    Set,
    /// Adds a line.
    Add,
    /// Removes all lines of the field.
    Remove,
}

/// Request fields that the cache evaluates. A rule that sets one would give each client a response
/// that it has not requested.
const EVALUATED: [&str; 9] = [
    "a-im",
    "cache-control",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "pragma",
    "range",
];

/// Response fields that describe the sent body.
const OF_BODY: [&str; 4] = ["content-encoding", "content-location", "content-range", "content-type"];

/// Response fields by which clients validate and select stored responses.
const VALIDATORS: [&str; 2] = ["etag", "last-modified"];

/// Returns the reason why a rule cannot change a field of requests; `None` if it can.
pub fn why_no_request_rule(name: &str, change: Change) -> Option<&'static str> {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    if let Some(why) = why_never(name) {
        Some(why)
    } else if is("host") && change != Change::Set {
        Some("a request has one Host; set it, or leave it")
    } else if is("expect") || is("max-forwards") {
        Some("the proxy evaluates this field itself")
    } else if change != Change::Remove && EVALUATED.into_iter().any(is) {
        Some("the cache evaluates this field of each client; it can only be removed")
    } else {
        None
    }
}

/// Returns the reason why a rule cannot change a field of responses; `None` if it can.
pub fn why_no_response_rule(name: &str, change: Change) -> Option<&'static str> {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    if let Some(why) = why_never(name) {
        Some(why)
    } else if is("date") || is("age") {
        Some("the proxy writes this field itself")
    } else if OF_BODY.into_iter().any(is) {
        Some("this field describes the body, which rules do not change")
    } else if change != Change::Remove && VALIDATORS.into_iter().any(is) {
        Some("clients compare this field with the body's; it can only be removed")
    } else {
        None
    }
}

fn why_never(name: &str) -> Option<&'static str> {
    if !is_token(name.as_bytes()) {
        Some("this is not a field name")
    } else if is_of_connection(name) || name.eq_ignore_ascii_case("http2-settings") {
        Some("this field belongs to the connection or the framing of messages")
    } else if name.eq_ignore_ascii_case("via") {
        Some("the proxy writes this field itself")
    } else {
        None
    }
}

/// Returns true if two names are equal for programs that read an underscore as a hyphen, in any
/// case (CGI, WSGI, Rack, PHP).
pub fn is_same_for_programs(one: &str, other: &str) -> bool {
    let fold = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    one.len() == other.len() && one.bytes().map(fold).eq(other.bytes().map(fold))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_change_no_framing_and_no_connection() {
        for name in
            ["Connection", "content-length", "Transfer-Encoding", "TE", "Upgrade", "Via", "", "a b", "a:"]
        {
            for change in [Change::Set, Change::Add, Change::Remove] {
                assert!(why_no_request_rule(name, change).is_some(), "{name}");
                assert!(why_no_response_rule(name, change).is_some(), "{name}");
            }
        }
    }

    #[test]
    fn some_fields_can_be_removed_or_set_alone() {
        for (name, set, add, remove) in [
            ("X-Tenant", true, true, true),
            ("Host", true, false, false),
            ("Range", false, false, true),
            ("If-None-Match", false, false, true),
            ("Expect", false, false, false),
            ("Authorization", true, true, true),
        ] {
            let may = |change| why_no_request_rule(name, change).is_none();
            let changes = (may(Change::Set), may(Change::Add), may(Change::Remove));
            assert_eq!(changes, (set, add, remove), "{name}");
        }
        for (name, set, remove) in [
            ("Server", true, true),
            ("Cache-Control", true, true),
            ("ETag", false, true),
            ("Content-Type", false, false),
            ("Content-Range", false, false),
            ("Age", false, false),
        ] {
            let may = |change| why_no_response_rule(name, change).is_none();
            assert_eq!((may(Change::Set), may(Change::Remove)), (set, remove), "{name}");
        }
    }

    #[test]
    fn underscore_equals_hyphen() {
        assert!(is_same_for_programs("X_User-Id", "x-user_id"));
        assert!(!is_same_for_programs("x-user", "x-users") && !is_same_for_programs("xauser", "x-user"));
    }
}
