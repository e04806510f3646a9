//! Rules of a route: its conditions, the path and the header fields that it changes, and its
//! limits.
//!
//! [`crate::config::rules_check`] makes them from the file. The rules for requests apply before the
//! lookup, so that cache and origin see the same request; those for responses apply when a head is
//! sent, so that stored responses stay as the origin sent them.

use std::sync::Arc;

use strait_http::cookies;
use strait_http::fields::Field;
use strait_http::head::Request;
use strait_http::rules::is_same_for_programs;

use crate::config::auth::BasicAuth;
use crate::config::cache_rules::{CacheRules, CookieRules};
use crate::config::compress::Compression;
use crate::config::path_regex::PathRegex;
use crate::config::pool::ServerPool;
use crate::config::rate::RateLimit;
use crate::config::rewrite::Rewrite;
use crate::config::route_access::RouteAccess;
use crate::config::route_limits::RouteLimits;
use crate::config::variables::Variables;

/// Rules of a route.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    /// Conditions under which the route applies.
    pub(crate) conditions: Conditions,
    pub(crate) rewrite: Option<Rewrite>,
    pub(crate) request: Option<Arc<RequestRules>>,
    pub(crate) response: Option<Arc<ResponseRules>>,
    pub(crate) cache: Option<Arc<CacheRules>>,
    pub(crate) limits: RouteLimits,
    pub(crate) access: Option<Arc<RouteAccess>>,
    pub(crate) rate: Option<Arc<RateLimit>>,
    pub(crate) auth: Option<Arc<BasicAuth>>,
    pub(crate) auth_request: Option<AuthRequest>,
    /// Hash of the rules that change the requests to the origin, which is part of the cache key: a
    /// response to a request under other rules must not answer.
    pub(crate) key: Option<Box<str>>,
}

impl Rules {
    /// Returns true if they are a cache policy alone, which changes no field.
    pub(crate) fn are_of_cache_alone(&self) -> bool {
        self.cache.is_some() && !self.are_others()
    }

    /// Returns true if there are any.
    pub(crate) fn are_any(&self) -> bool {
        self.cache.is_some() || self.are_others()
    }

    fn are_others(&self) -> bool {
        let Self { conditions, rewrite, request, response, limits, access, rate, auth, auth_request, .. } =
            self;
        !conditions.are_none()
            || rewrite.is_some()
            || request.is_some()
            || response.is_some()
            || !limits.are_none()
            || access.is_some()
            || rate.is_some()
            || auth.is_some()
            || auth_request.is_some()
    }
}

/// Request that asks a server if a client's request is allowed.
#[derive(Clone, Debug)]
pub(crate) struct AuthRequest {
    pub(crate) pool: Arc<ServerPool>,
    pub(crate) path: Box<str>,
}

/// Networks, limits and users of all routes. A reload keeps their state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guards {
    pub(crate) accesses: Vec<Arc<RouteAccess>>,
    pub(crate) limits: Vec<Arc<RateLimit>>,
    pub(crate) auths: Vec<Arc<BasicAuth>>,
}

/// Conditions of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conditions {
    pub(crate) path: Option<PathRegex>,
    /// Empty: all methods.
    pub(crate) methods: Vec<Box<str>>,
    /// Names in lower case with their values; `None`: any value.
    pub(crate) fields: Vec<(Box<str>, Option<Box<str>>)>,
}

/// Changes of requests on the way to the origin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestRules {
    /// Fields of clients that are dropped: those that are removed or set.
    pub(crate) dropped: Vec<Box<str>>,
    /// Cookies of clients that are dropped.
    pub(crate) dropped_cookies: CookieRules,
    pub(crate) lines: Vec<(Box<str>, Box<str>)>,
    /// True if their values have variables.
    pub(crate) has_variables: bool,
    /// Host for the origin. The cache key keeps that of the client.
    pub(crate) host: Option<Box<str>>,
}

/// Changes of responses on the way to the client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResponseRules {
    pub(crate) changes: FieldChanges,
    /// Lifetimes for clients and other caches. Errors do not get them: a cache would keep an outage
    /// for as long.
    pub(crate) lifetimes: FieldChanges,
    /// Compression of stored responses.
    pub(crate) compression: Option<Compression>,
}

/// Changes of the field lines of a head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldChanges {
    /// Fields that are dropped: those that are removed or set.
    pub(crate) dropped: Vec<Box<str>>,
    /// Field lines that are added.
    pub(crate) lines: Vec<u8>,
}

impl Conditions {
    /// Iterates over the names of their fields, as the origin gets them. Requests with an
    /// underscore in a name bypass the cache.
    pub(crate) fn key_fields(&self) -> impl Iterator<Item = String> {
        self.fields.iter().map(|(name, _)| name.replace('_', "-"))
    }

    /// Returns true if there are none.
    pub(crate) fn are_none(&self) -> bool {
        self.path.is_none() && self.methods.is_empty() && self.fields.is_empty()
    }

    /// Returns true if Connection names a field that selects: the origin would not get it, and its
    /// response would be stored for requests with it.
    pub(crate) fn are_evaded_by(&self, request: &Request<'_>) -> bool {
        connection_names(request, self.fields.iter().map(|(name, _)| &**name))
    }

    /// Returns true if a request with the path of a URI meets them; `None` if that depends on the
    /// reading of the path.
    pub(crate) fn hold(&self, path: &str, request: &Request<'_>) -> Option<bool> {
        if !self.hold_for(request) {
            return Some(false);
        }
        self.path.as_ref().map_or(Some(true), |regex| regex.matches(path))
    }

    /// Returns true if method and fields meet theirs. GET stands for HEAD, which has the same
    /// target, and for PURGE, which removes its responses. `X_Staff` counts as X-Staff, as
    /// programs read it. Of several lines an origin may read the first or the last, so none of
    /// them has the value.
    fn hold_for(&self, request: &Request<'_>) -> bool {
        let method = if matches!(request.method, "HEAD" | "PURGE") { "GET" } else { request.method };
        let is_method = |own: &str| own == method || own == request.method;
        let has = |name: &str, value: Option<&str>| {
            let mut lines = request.fields.iter().filter(|field| is_same_for_programs(field.name, name));
            let (first, second) = (lines.next(), lines.next());
            let is_value =
                |value: &str| second.is_none() && first.is_some_and(|it| it.value == value.as_bytes());
            value.map_or(first.is_some(), is_value)
        };
        (self.methods.is_empty() || self.methods.iter().any(|own| is_method(own)))
            && self.fields.iter().all(|(name, value)| has(name, value.as_deref()))
    }
}

impl RequestRules {
    /// Returns true if a client's field of that name is dropped. Programs that read an underscore
    /// as a hyphen would take `X_User` for X-User.
    pub(crate) fn drops(&self, name: &str) -> bool {
        self.dropped.iter().any(|own| is_same_for_programs(own, name))
    }

    /// Returns true if a client's cookie of that name is dropped.
    pub(crate) fn drops_cookie(&self, name: &[u8]) -> bool {
        self.drops("cookie") || self.dropped_cookies.drop(name)
    }

    /// Returns true if the rules write a field of that name.
    pub(crate) fn writes(&self, name: &str) -> bool {
        self.lines.iter().any(|(own, _)| is_same_for_programs(own, name))
    }

    /// Returns the rules for a request, with the values of variables; `None` if one is too long.
    pub(crate) fn filled(&self, variables: &Variables<'_>) -> Option<Self> {
        let fill = |(name, value): &(Box<str>, Box<str>)| Some((name.clone(), variables.fill(value)?.into()));
        let lines = self.lines.iter().map(fill).collect::<Option<_>>()?;
        Some(Self { lines, has_variables: false, ..self.clone() })
    }

    /// Changes a client's request into the one that cache and origin see.
    pub(crate) fn apply<'b>(&'b self, request: &mut Request<'b>) {
        request.fields.remove(|name| self.drops(name));
        if !self.dropped_cookies.are_none() {
            cookies::remove(&mut request.fields, |name| self.dropped_cookies.drop(name));
        }
        for (name, value) in &self.lines {
            request.fields.push(Field { name, value: value.as_bytes() });
        }
    }

    /// Returns true if Connection names a field that the rules write.
    pub(crate) fn are_evaded_by(&self, request: &Request<'_>) -> bool {
        connection_names(request, self.lines.iter().map(|(name, _)| &**name))
    }
}

/// Returns true if Connection names one of these fields. The proxy would not forward it (RFC 9110,
/// section 7.6.1), so that a client could take it out of its request.
fn connection_names<'a>(request: &Request<'_>, mut names: impl Iterator<Item = &'a str>) -> bool {
    request.fields.has("connection")
        && names.any(|name| {
            request.fields.elements("connection").any(|option| is_same_for_programs(name, option))
        })
}

impl ResponseRules {
    /// Changes the field lines of a head without its empty line.
    pub(crate) fn apply(&self, head: &mut Vec<u8>) {
        self.changes.apply(head);
        if !is_error(head) {
            self.lifetimes.apply(head);
        }
    }

    /// Returns true if a field of that name in lower case is dropped.
    pub(crate) fn drops(&self, name: &str) -> bool {
        let mut all = self.changes.dropped.iter().chain(&self.lifetimes.dropped);
        all.any(|own| **own == *name)
    }
}

/// Returns true if a head has the status of an error.
fn is_error(head: &[u8]) -> bool {
    let status = head.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    matches!(status.first(), Some(b'4' | b'5'))
}

impl FieldChanges {
    fn apply(&self, head: &mut Vec<u8>) {
        if !self.dropped.is_empty() {
            self.drop_from(head);
        }
        head.extend_from_slice(&self.lines);
    }

    /// Moves the kept lines together.
    fn drop_from(&self, head: &mut Vec<u8>) {
        let (mut kept, mut at) = (0, 0);
        while let Some(line) = head.get(at..).filter(|rest| !rest.is_empty()) {
            let len = line.iter().position(|byte| *byte == b'\n').map_or(line.len(), |end| end + 1);
            // The first line is the status line.
            if at == 0 || !line.get(..len).is_some_and(|line| self.drops_line(line)) {
                head.copy_within(at..at + len, kept);
                kept += len;
            }
            at += len;
        }
        head.truncate(kept);
    }

    fn drops_line(&self, line: &[u8]) -> bool {
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
        self.dropped.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use strait_http::head;

    use super::*;

    fn boxed(names: &[&str]) -> Vec<Box<str>> {
        names.iter().map(|name| (*name).into()).collect()
    }

    #[test]
    fn request_rules_drop_what_programs_take_for_the_field() {
        let rules = RequestRules {
            dropped: boxed(&["x-user", "cookie"]),
            lines: vec![("X-User".into(), "edge".into())],
            ..RequestRules::default()
        };
        let bytes =
            b"GET / HTTP/1.1\r\nHost: a\r\nX_User: evil\r\nx-USER: evil\r\nCookie: a\r\nX-Users: b\r\n\r\n";
        let (mut request, _) = head::request(bytes).unwrap().unwrap();
        rules.apply(&mut request);
        let left: Vec<_> = request.fields.iter().map(|field| (field.name, field.value)).collect();
        assert_eq!(left, [("Host", &b"a"[..]), ("X-Users", b"b"), ("X-User", b"edge")]);
        assert!(request.fields.has("x-user") && !rules.are_evaded_by(&request));
        let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close, X-user\r\n\r\n";
        assert!(rules.are_evaded_by(&head::request(bytes).unwrap().unwrap().0));
    }

    #[test]
    fn response_rules_leave_the_status_line_and_other_fields() {
        let rules = ResponseRules {
            changes: FieldChanges {
                dropped: boxed(&["server", "http/1.1 200 ok"]),
                lines: b"A: b\r\n".into(),
            },
            ..ResponseRules::default()
        };
        for (head, expected) in [
            ("HTTP/1.1 200 OK\r\nServer: x\r\nB: c\r\nSERVER: y\r\n", "HTTP/1.1 200 OK\r\nB: c\r\nA: b\r\n"),
            ("HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nA: b\r\n"),
            ("HTTP/1.1 200 OK\r\nServers: x\r\n", "HTTP/1.1 200 OK\r\nServers: x\r\nA: b\r\n"),
        ] {
            let mut bytes = head.as_bytes().to_vec();
            rules.apply(&mut bytes);
            assert_eq!(String::from_utf8(bytes).unwrap(), expected);
        }
    }
}
