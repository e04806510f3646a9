//! Spans of finished exchanges for a collector: their record, and the queue before its thread.
//!
//! Workers add spans and never wait: a span that finds the queue full is dropped and counted. The
//! thread of [`crate::server::export`] takes them. A span allocates memory for its texts, which
//! have limits; an exchange that is not sampled allocates nothing.

pub(crate) mod message;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use strait_http::Field;
use strait_http::head::{Request, Version};
use strait_http::target::{self, Host, Scheme, Target};
use strait_http::trace::{TRACESTATE, TraceContext};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::config::trace::Trace;
use crate::observe::access::{Account, Outcome};
use crate::observe::counters::{SpanCounters, SpanLoss};

/// Maximum of spans in the queue.
const WAITING_MAX: usize = 4096;
/// Maximum of the bytes of a text of a span.
const TEXT_BYTES_MAX: usize = 1024;
/// Maximum of the bytes of tracestate; a longer one is left out (W3C Trace Context, section
/// 3.3.1.5).
const STATE_BYTES_MAX: usize = 512;

/// Queue of spans.
#[derive(Clone, Debug)]
pub(crate) struct Spans {
    sender: Sender<Span>,
    counters: Arc<SpanCounters>,
}

impl Spans {
    /// Returns a queue, and its end for a thread.
    pub(crate) fn new(counters: Arc<SpanCounters>) -> (Self, Receiver<Span>) {
        let (sender, receiver) = channel(WAITING_MAX);
        (Self { sender, counters }, receiver)
    }

    /// Adds the span of an exchange that has ended now, if its trace is sampled. `has_query`: the
    /// span has the query of the target.
    pub(crate) fn add(&self, account: &Account<'_, '_>, has_query: bool) {
        let Some(trace) = account.record.trace.filter(|trace| trace.context.is_sampled()) else { return };
        let span = || Span::of(account, trace, has_query, SystemTime::now());
        match self.sender.try_reserve() {
            Ok(place) => place.send(span()),
            Err(_) => self.counters.lose(SpanLoss::Queue, 1),
        }
    }
}

/// Span of an exchange with a client.
#[derive(Debug)]
pub(crate) struct Span {
    context: TraceContext,
    parent: Option<u64>,
    /// Time since the epoch at which the request was complete.
    begun: Duration,
    took: Duration,
    client: IpAddr,
    is_encrypted: bool,
    request: Option<Described>,
    /// Status of the response; 0 without one.
    status: u16,
    outcome: Outcome,
    mechanism: &'static str,
    copied_bytes: u64,
    body_bytes: u64,
    /// Address of the contacted origin.
    origin: Option<SocketAddr>,
    /// True if the client got the whole response.
    is_whole: bool,
}

/// Texts of a request.
#[derive(Debug)]
struct Described {
    method: String,
    scheme: Option<Scheme>,
    path: Option<String>,
    query: Option<String>,
    /// Host without brackets, and port, to which the client has sent the request.
    server: Option<(String, Option<u16>)>,
    version: Version,
    user_agent: Option<String>,
    /// Value of tracestate; empty without one.
    state: String,
}

impl Span {
    fn of(account: &Account<'_, '_>, trace: Trace, has_query: bool, now: SystemTime) -> Self {
        let Trace { context, parent } = trace;
        let ended = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let describe = |request| Described::of(request, has_query, parent.is_some());
        Self {
            context,
            parent,
            begun: ended.saturating_sub(account.took),
            took: account.took,
            client: account.client.ip().to_canonical(),
            is_encrypted: account.tls.is_some(),
            request: account.request.map(describe),
            status: account.record.status,
            outcome: account.record.outcome,
            mechanism: account.mechanism(),
            copied_bytes: account.moved.sent,
            body_bytes: account.body_bytes(),
            origin: account.record.origin,
            is_whole: account.is_whole,
        }
    }
}

impl Described {
    fn of(request: &Request<'_>, has_query: bool, has_parent: bool) -> Self {
        let target = Target::parse(request.method, request.target).ok();
        let (authority, path) = match target {
            Some(Target::Absolute(uri)) => (Some(uri.authority), Some(uri.path)),
            Some(Target::Origin(path)) => (None, Some(path)),
            Some(Target::Authority(authority)) => (Some(authority), None),
            Some(Target::Asterisk) => (None, Some("*")),
            None => (None, None),
        };
        let authority = authority.or_else(|| target::host(request).ok().flatten());
        let (path, query) = path.map_or((None, None), |path| match path.split_once('?') {
            Some((path, query)) => (Some(path), Some(query)),
            None => (Some(path), None),
        });
        Self {
            method: cut(request.method),
            scheme: if let Some(Target::Absolute(uri)) = target { Some(uri.scheme) } else { None },
            path: path.map(|path| if path.is_empty() { "/" } else { path }).map(cut),
            query: query.filter(|_| has_query).map(cut),
            server: authority.map(|authority| (host(&authority.host), authority.port)),
            version: request.version,
            user_agent: field(request, "user-agent"),
            state: if has_parent { state(request) } else { String::new() },
        }
    }
}

fn host(host: &Host<'_>) -> String {
    match host {
        Host::Name(name) => name.to_ascii_lowercase(),
        Host::V4(address) => address.to_string(),
        Host::V6(address) => address.to_string(),
    }
}

fn field(request: &Request<'_>, name: &str) -> Option<String> {
    let value = request.fields.all(name).next()?.value;
    Some(cut(&String::from_utf8_lossy(&value[..value.len().min(TEXT_BYTES_MAX)])))
}

/// Returns the members of tracestate in all lines; nothing if they are too long.
fn state(request: &Request<'_>) -> String {
    let mut state = String::new();
    for line in request.fields.all(TRACESTATE).filter_map(Field::text) {
        if state.len() + line.len() >= STATE_BYTES_MAX {
            return String::new();
        }
        if !state.is_empty() {
            state.push(',');
        }
        state.push_str(line);
    }
    state
}

/// Copies a text up to its maximum length, so that the span holds no memory for the rest.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}

#[cfg(test)]
mod tests {
    use strait_http::head;

    use super::*;

    fn described(text: &str, has_query: bool) -> Described {
        let text = format!("{text}\r\n\r\n");
        let (request, _) = head::request(text.as_bytes()).unwrap().unwrap();
        Described::of(&request, has_query, true)
    }

    #[test]
    fn targets_of_all_forms_are_described() {
        let of = |text: &str| {
            let Described { path, query, server, scheme, .. } = described(text, true);
            let scheme = scheme.map(Scheme::name);
            (path.unwrap_or_default(), query, server.map(|(host, port)| format!("{host} {port:?}")), scheme)
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            of("GET /a?b=c HTTP/1.1\r\nHost: X.example:80"),
            ("/a".into(), some("b=c"), some("x.example Some(80)"), None)
        );
        assert_eq!(
            of("GET http://y?b HTTP/1.1\r\nHost: x"),
            ("/".into(), some("b"), some("y None"), Some("http"))
        );
        assert_eq!(
            of("CONNECT [::1]:443 HTTP/1.1\r\nHost: x"),
            (String::new(), None, some("::1 Some(443)"), None)
        );
        assert_eq!(of("OPTIONS * HTTP/1.1\r\nHost: x"), ("*".into(), None, some("x None"), None));
        assert_eq!(of("GET a HTTP/1.1\r\nHost: x"), (String::new(), None, some("x None"), None));
    }

    #[test]
    fn texts_have_limits() {
        let long = "e".repeat(TEXT_BYTES_MAX + 1);
        let text = format!("GET /{long}?{long} HTTP/1.1\r\nHost: x\r\nUser-Agent: {long}");
        let Described { path, query, user_agent, .. } = described(&text, true);
        for text in [path, query, user_agent].map(Option::unwrap) {
            assert_eq!((text.len(), text.capacity()), (TEXT_BYTES_MAX, TEXT_BYTES_MAX));
        }
        assert_eq!(described(&text, false).query, None);
        assert_eq!(cut(&"\u{e9}".repeat(TEXT_BYTES_MAX)).len(), TEXT_BYTES_MAX);
        let with = |state: &str| described(&format!("GET / HTTP/1.1\r\nHost: x\r\n{state}"), false).state;
        assert_eq!(with("tracestate: a=1\r\nTracestate: b=2"), "a=1,b=2");
        assert_eq!(with(&format!("tracestate: a={}", "1".repeat(STATE_BYTES_MAX))), "");
    }
}
