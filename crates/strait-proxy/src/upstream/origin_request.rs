//! Request to an origin, made from a client's request.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use strait_http::fields::{Field, Fields};
use strait_http::forward::forwarded_fields;
use strait_http::forwarded::Hop;
use strait_http::framing::BodyFraming;
use strait_http::head::Request;
use strait_http::target::Uri;
use strait_http::trace::TRACEPARENT;
use tokio::sync::SetOnce;

use crate::config::edge::OriginHttp2;
use crate::config::settings::Settings;
use crate::config::trace::{Trace, Tracing};
use crate::io::gate::{self, Permit};
use crate::io::head::{push_field, push_number, push_via};
use crate::upstream::incoming::Incoming;
use crate::upstream::origin::Origin;

const COOKIE: &str = "cookie";

/// Parts of a client's request that determine the request to the origin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientRequest<'a, 'b> {
    pub(crate) request: &'a Request<'b>,
    pub(crate) client: IpAddr,
    /// True if the proxy has sent 100 (Continue) before it contacted the origin.
    pub(crate) was_continued: bool,
    /// Host for the origin, in place of that of the URI.
    pub(crate) host: Option<&'a str>,
    pub(crate) trace: Option<&'a Trace>,
    /// True unless rules or the section `[trace]` replace fields of the request: as trailers they
    /// could have the same effect.
    pub(crate) passes_trailers: bool,
}

/// Request to an origin.
#[derive(Debug)]
pub(crate) struct OriginRequest {
    pub(crate) origin: Origin,
    /// Head, up to the empty line.
    pub(crate) head: Vec<u8>,
    /// True if a 304 may answer it.
    is_conditional: bool,
    /// True if it asks for another protocol, as WebSocket.
    is_upgrade: bool,
    /// True if its client accepts trailers (RFC 9110, section 10.1.4).
    pub(crate) takes_trailers: bool,
    /// True if trailers of the request may be forwarded.
    pub(crate) passes_trailers: bool,
    /// True if other clients wait for the response.
    pub(crate) is_shared: bool,
    /// Set when it is sent, for the requests that wait for its response.
    pub(crate) sent: Option<Arc<SetOnce<()>>>,
    /// Client that it is sent for.
    pub(crate) client: gate::Client,
    /// Permit of the client's gate to the server, if it was taken before.
    pub(crate) client_permit: Option<Permit>,
    /// Permit of the server's gate, if it was taken before.
    pub(crate) origin_permit: Option<Permit>,
}

/// Purpose of a request, which decides the fields that are sent to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Request that bypasses the cache: all fields.
    Bypass,
    /// Miss with a response for this client alone: all fields. From clients outside
    /// `access.refresh`, `no-cache`, `max-age`, `min-fresh` and Pragma are removed.
    MissAlone,
    /// Miss with a response that is stored: without conditions and ranges.
    Store,
    /// Miss with a part that is stored: without conditions.
    StorePart,
}

impl OriginRequest {
    /// Takes the permits of the client's gate and of the server's that were taken before, except
    /// those for another server.
    pub(crate) fn take_permits(&mut self) -> (Option<Permit>, Option<Permit>) {
        let server = &self.origin.server;
        let is_own = |permit: &Permit| permit.is_for(server);
        (self.client_permit.take().filter(is_own), self.origin_permit.take().filter(is_own))
    }

    /// Sets `sent` when it is sent. The others that wait for its response do not wait for a server
    /// of a pool with several: another server may have a free connection for them.
    pub(crate) fn announce(&mut self, sent: &Arc<SetOnce<()>>) {
        if self.origin.has_others() {
            // A fill that is continued has it set.
            let _ = sent.set(());
        }
        self.sent = Some(sent.clone());
    }

    /// Makes a client's request for `uri` to `origin`, with its head in `head`, which is empty.
    pub(crate) fn new(
        settings: &Settings,
        mut head: Vec<u8>,
        client_request: &ClientRequest<'_, '_>,
        uri: &Uri<'_>,
        (origin, body): (Origin, BodyFraming),
        purpose: Purpose,
    ) -> Self {
        let request = client_request.request;
        let (slash, path) = uri.origin_form(request.method);
        for part in [request.method, " ", slash, path, " HTTP/1.1\r\n"] {
            head.extend_from_slice(part.as_bytes());
        }
        head.extend_from_slice(b"Host: ");
        match client_request.host {
            Some(host) => head.extend_from_slice(host.as_bytes()),
            None => uri.authority.write(uri.scheme, |text| head.extend_from_slice(text.as_bytes())),
        }
        head.extend_from_slice(b"\r\n");
        let counts_hops = matches!(request.method, "OPTIONS" | "TRACE");
        // Directives that this cache ignores must not cause load on a cache before the origin
        // either.
        let is_ignored = purpose != Purpose::Bypass && !settings.access.allows_refresh(client_request.client);
        let is_thinned = is_ignored && purpose == Purpose::MissAlone;
        let is_sent = |field: &&Field<'_>| {
            let is_dropped = settings.forwarded.rewrites(field.name)
                || (is_ignored && is_directive(field.name))
                || (client_request.was_continued && is_continue(field))
                || settings.tracing.drops(field.name, client_request.trace);
            !is_dropped && is_sent(field.name, purpose, counts_hops)
        };
        let (mut is_conditional, mut has_cookies) = (false, false);
        for field in forwarded_fields(&request.fields).filter(is_sent) {
            is_conditional |= is_condition(field.name);
            push_line(&mut head, field, &request.fields, &mut has_cookies);
        }
        if is_thinned && forwarded_fields(&request.fields).any(|field| is_directive(field.name)) {
            push_without_refresh(&mut head, &request.fields);
        }
        let hop = Hop { client: client_request.client, scheme: uri.scheme, host: uri.authority };
        hop.write(settings.forwarded, &request.fields, &mut head);
        push_via(&mut head, &settings.via, &request.fields, request.version);
        if let Some(trace) = client_request.trace {
            push_trace(&mut head, &settings.tracing, trace);
        }
        match body {
            BodyFraming::Length(length) => push_number(&mut head, "Content-Length", length),
            BodyFraming::Chunked => head.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            // RFC 9110 s8.6: a method with expected content announces its absence.
            BodyFraming::None if matches!(request.method, "POST" | "PUT" | "PATCH") => {
                push_number(&mut head, "Content-Length", 0);
            }
            _ => {}
        }
        head.extend_from_slice(b"\r\n");
        Self {
            origin,
            head,
            is_conditional,
            is_upgrade: false,
            takes_trailers: request.fields.elements("te").any(|it| it.eq_ignore_ascii_case("trailers")),
            passes_trailers: client_request.passes_trailers,
            is_shared: false,
            sent: None,
            client: gate::Client::of(client_request.client),
            client_permit: None,
            origin_permit: None,
        }
    }

    /// Returns the method from the first line of `head`; empty if it is not UTF-8.
    pub(crate) fn method(&self) -> &str {
        let method = self.head.split(|byte| *byte == b' ').next().unwrap_or_default();
        std::str::from_utf8(method).unwrap_or_default()
    }

    /// Appends a field before the empty line that ends the head.
    pub(crate) fn add(&mut self, name: &str, value: &[u8]) {
        self.head.truncate(self.head.len() - 2);
        push_field(&mut self.head, name, value);
        self.head.extend_from_slice(b"\r\n");
        self.is_conditional |= is_condition(name);
        self.is_upgrade |= name == "Upgrade";
    }

    /// Returns the use of HTTP/2 to the server. Changes of the protocol are for HTTP/1.1.
    pub(crate) fn http2(&self) -> OriginHttp2 {
        if self.is_upgrade { OriginHttp2::Off } else { self.origin.http2() }
    }

    /// Makes it a request for a part of the representation with that strong validator, or for the
    /// whole of another one.
    pub(crate) fn add_range(&mut self, part: &Range<u64>, validator: Option<&str>) {
        self.add("Range", format!("bytes={}-{}", part.start, part.end.saturating_sub(1)).as_bytes());
        if let Some(validator) = validator {
            self.add("If-Range", validator.as_bytes());
        }
    }

    /// Returns true if it may be sent to two servers: it asks for nothing but a response.
    pub(crate) fn may_be_hedged(&self) -> bool {
        matches!(self.method(), "GET" | "HEAD") && !self.is_upgrade
    }

    /// Returns the same request for another server of the pool, if the budget allows one more.
    pub(crate) fn hedge(&self, now: u64) -> Option<Self> {
        Some(Self { origin: self.origin.hedge(now)?, ..self.again() })
    }

    /// Returns the same request without permits.
    pub(crate) fn again(&self) -> Self {
        let (origin, head) = (self.origin.clone(), self.head.clone());
        Self { origin, head, sent: None, client_permit: None, origin_permit: None, ..*self }
    }

    /// Notes the time from the end of its head to that of the response.
    pub(crate) fn note_time(&self, incoming: &Incoming, now: u64) {
        if let Some(asked) = incoming.asked {
            self.origin.note_time(self.client, asked.elapsed(), now);
        }
    }

    /// Returns true for a 304 to a GET or HEAD that was sent without a condition. The client has no
    /// copy to which it could apply.
    pub(crate) fn is_unrequested_304(&self, incoming: &Incoming) -> bool {
        incoming.status == 304 && !self.is_conditional && matches!(self.method(), "GET" | "HEAD")
    }
}

/// Writes a line of `fields`. All cookies are one line (RFC 6265, section 5.4), in place of the
/// first one; after that `has_cookies` is true.
fn push_line(head: &mut Vec<u8>, field: &Field<'_>, fields: &Fields<'_>, has_cookies: &mut bool) {
    if !field.name.eq_ignore_ascii_case(COOKIE) {
        push_field(head, field.name, field.value);
    } else if !std::mem::replace(has_cookies, true) {
        let lines: Vec<&[u8]> = fields.all(COOKIE).map(|line| line.value).collect();
        push_field(head, "Cookie", &lines.join(&b"; "[..]));
    }
}

fn push_trace(head: &mut Vec<u8>, tracing: &Tracing, trace: &Trace) {
    if tracing.writes_context() {
        push_field(head, TRACEPARENT, trace.context.value().as_bytes());
    }
    if let Some(name) = &tracing.request_id {
        push_field(head, &**name, format!("{:032x}", trace.context.trace).as_bytes());
    }
}

/// Returns true for a field that a 304 may answer (RFC 9110, section 15.4.5).
fn is_condition(name: &str) -> bool {
    name.eq_ignore_ascii_case("if-none-match") || name.eq_ignore_ascii_case("if-modified-since")
}

fn is_directive(name: &str) -> bool {
    name.eq_ignore_ascii_case("cache-control") || name.eq_ignore_ascii_case("pragma")
}

/// Writes Cache-Control without the directives that demand a new response, if others are left.
fn push_without_refresh(head: &mut Vec<u8>, fields: &Fields<'_>) {
    let is_refresh = |directive: &&str| {
        let name = directive.split('=').next().unwrap_or_default().trim();
        ["no-cache", "max-age", "min-fresh"].into_iter().any(|own| own.eq_ignore_ascii_case(name))
    };
    let others: Vec<_> = fields.elements("cache-control").filter(|it| !is_refresh(it)).collect();
    if !others.is_empty() {
        push_field(head, "Cache-Control", others.join(", ").as_bytes());
    }
}

/// Returns true if a field expects 100 (Continue), and nothing else.
fn is_continue(field: &Field<'_>) -> bool {
    field.name.eq_ignore_ascii_case("expect") && field.value.eq_ignore_ascii_case(b"100-continue")
}

/// Fields that make the response valid for one request only. Origins do not name them in Vary, so
/// they are removed from requests with a response that is stored.
const OF_ONE_REQUEST: [&str; 6] =
    ["a-im", "expect", "if-match", "if-modified-since", "if-none-match", "if-unmodified-since"];

fn is_sent(name: &str, purpose: Purpose, counts_hops: bool) -> bool {
    let is = |names: &[&str]| names.iter().any(|other| name.eq_ignore_ascii_case(other));
    match purpose {
        _ if is(&["host", "via"]) => false,
        // Written anew for methods that count hops.
        Purpose::Bypass | Purpose::MissAlone if is(&["max-forwards"]) => !counts_hops,
        Purpose::Bypass | Purpose::MissAlone => true,
        Purpose::StorePart => !is(&OF_ONE_REQUEST),
        Purpose::Store => !is(&OF_ONE_REQUEST) && !is(&["if-range", "range"]),
    }
}
