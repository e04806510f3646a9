//! Identification of requests: their place in a trace, and their ids.

use strait_http::fields::Fields;
use strait_http::forwarded::Policy;
use strait_http::poisoning::{bypasses_cache, is_keyed};
use strait_http::rules::{Change, is_same_for_programs, why_no_request_rule};
use strait_http::trace::{TRACEPARENT, TRACESTATE, TraceContext};

use crate::config::error::{Error, Result};
use crate::config::export::Endpoint;
use crate::config::file::{Config, Context};
use crate::config::rules_check::NAME_BYTES_MAX;

/// How requests are identified.
#[derive(Clone, Debug)]
pub(crate) struct Tracing {
    context: Context,
    sample: Share,
    /// Field of requests to the origin with the number of the trace.
    pub(crate) request_id: Option<Box<str>>,
    /// Collector of spans.
    pub(crate) export: Option<Endpoint>,
}

/// Share of all requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share(u64);

/// Identification of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    /// Trace, and span of the exchange with the client.
    pub(crate) context: TraceContext,
    /// Span of the client; `None` if the trace begins here.
    pub(crate) parent: Option<u64>,
}

impl Tracing {
    /// Returns true if a collector gets spans over TLS.
    pub(crate) fn exports_by_tls(&self) -> bool {
        self.export.as_ref().is_some_and(|endpoint| endpoint.is_tls)
    }

    /// Checks the section `[trace]`, and that no other section uses its fields.
    pub(crate) fn new(config: &Config, forwarded: Policy) -> Result<Self> {
        let trace = &config.trace;
        let request_id = trace.request_id.as_deref();
        if let Some((name, why)) = request_id.and_then(|name| Some((name, why_no_id(name, forwarded)?))) {
            let name = name.escape_default();
            return Err(Error::Config(format!("trace.request_id = \"{name}\": {why}")));
        }
        let sample = Share::new("trace.sample", trace.sample)?;
        let (context, request_id) = (trace.context, request_id.map(Into::into));
        let tracing = Self { context, sample, request_id, export: Endpoint::new(trace)? };
        if !tracing.is_on() {
            return Ok(tracing);
        }
        match fields_elsewhere(config).find(|(_, name)| tracing.governs(name)) {
            Some((key, name)) => Err(Error::Config(format!(
                "{key}: \"{}\": the origin gets the value of the section [trace]; remove the field here or there",
                name.escape_default()
            ))),
            None => Ok(tracing),
        }
    }

    /// Returns true if requests are identified.
    fn is_on(&self) -> bool {
        self.writes_context() || self.request_id.is_some()
    }

    /// Returns the identification of a request; `None` if none is configured. `random` returns
    /// random numbers.
    pub(crate) fn of(&self, fields: &Fields<'_>, random: impl Fn() -> u64) -> Option<Trace> {
        if !self.is_on() {
            return None;
        }
        let received = if self.context == Context::Join { TraceContext::of(fields) } else { None };
        let span = random();
        if let Some(before) = received {
            return Some(Trace { context: before.followed_by(span), parent: Some(before.span) });
        }
        let number = u128::from(random()) << 64 | u128::from(random());
        let is_sampled = self.sample.takes(&random);
        Some(Trace { context: TraceContext::begin(number, span, is_sampled), parent: None })
    }

    /// Returns true if requests to origins have a trace context of this proxy.
    pub(crate) fn writes_context(&self) -> bool {
        self.context != Context::Pass
    }

    /// Returns true if the origin can get another value of a field than the client has sent.
    pub(crate) fn governs(&self, name: &str) -> bool {
        let is = |own: &str| is_same_for_programs(own, name);
        (self.writes_context() && (is(TRACEPARENT) || is(TRACESTATE)))
            || self.request_id.as_deref().is_some_and(is)
    }

    /// Returns true if a field of a request is not forwarded. The state belongs to the context of
    /// the same request.
    pub(crate) fn drops(&self, name: &str, trace: Option<&Trace>) -> bool {
        let is_joined = trace.is_some_and(|trace| trace.parent.is_some());
        self.governs(name) && !(is_joined && name.eq_ignore_ascii_case(TRACESTATE))
    }
}

/// Returns the fields of requests that other sections use, with their keys.
fn fields_elsewhere(config: &Config) -> impl Iterator<Item = (String, &str)> {
    let keyed = config.cache.key_fields.iter().map(|name| ("cache.key_fields".to_owned(), &**name));
    let routes = config.site.iter().zip(1..).flat_map(|(site, number)| {
        let key = move |route| format!("site[{number}].route[{route}]");
        site.route.iter().zip(1..).map(move |(route, number)| (key(number), route))
    });
    let of_routes = routes.flat_map(|(key, route)| {
        let headers = route.request_headers.iter();
        let changed = headers.flat_map(|own| own.set.keys().chain(own.add.keys()).chain(&own.remove));
        let changed = changed.map(|name| ("request_headers", &**name));
        let compared = route.has_headers.keys().map(|name| ("has_headers", &**name));
        changed.chain(compared).map(move |(of, name)| (format!("{key}.{of}"), name))
    });
    keyed.chain(of_routes)
}

/// Returns the reason why a field cannot have the id.
fn why_no_id(name: &str, forwarded: Policy) -> Option<&'static str> {
    match why_no_request_rule(name, Change::Set) {
        None if name.len() > NAME_BYTES_MAX => Some("the name is too long; the maximum is 256 bytes"),
        None if forwarded.rewrites(name) || forwarded.drops(name) => {
            Some("the setting `forwarded` governs this field")
        }
        None if is_keyed(name) || bypasses_cache(name) => {
            Some("the cache key has this field of each client, or the field bypasses the cache")
        }
        _ if name.eq_ignore_ascii_case("host") => Some("the origin needs this field"),
        _ if [TRACEPARENT, TRACESTATE].iter().any(|own| own.eq_ignore_ascii_case(name)) => {
            Some("trace.context governs this field")
        }
        why => why,
    }
}

impl Share {
    /// Checks a share, which is the value of `key`.
    pub(crate) fn new(key: &str, share: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::Config(format!(
                "{key} = {share}: expected a share from 0 to 1, for example 0.01"
            )));
        }
        // A float has no exact `u64::MAX`: the conversion saturates.
        Ok(Self((share * u64::MAX as f64) as u64))
    }

    /// Returns true for a part of all random numbers: none for 0, all for 1.
    pub(crate) fn takes(self, random: impl FnOnce() -> u64) -> bool {
        self.0 == u64::MAX || (self.0 > 0 && random() < self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use strait_http::head;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn tracing(text: &str) -> Result<Tracing> {
        Tracing::new(&Config::from_toml(text)?, Policy::Replace)
    }

    fn of(tracing: &Tracing, lines: &str) -> Option<Trace> {
        let text = format!("GET / HTTP/1.1\r\n{lines}\r\n");
        let count = Cell::new(0);
        let random = || count.replace(count.get() + 1) + 1;
        tracing.of(&head::request(text.as_bytes()).unwrap().unwrap().0.fields, random)
    }

    #[test]
    fn traces_are_joined_or_begun() {
        let sent = format!("traceparent: {PARENT}\r\n");
        let joined = of(&tracing("[trace]\ncontext = \"join\"").unwrap(), &sent).unwrap();
        assert_eq!(joined.context.value(), PARENT.replace("b7ad6b7169203331", "0000000000000001"));
        assert_eq!(joined.parent, Some(0xb7ad_6b71_6920_3331));
        for (context, lines) in [("join", ""), ("join", "traceparent: 00-1\r\n"), ("begin", &sent)] {
            let tracing = tracing(&format!("[trace]\ncontext = \"{context}\"\nsample = 1")).unwrap();
            let begun = of(&tracing, lines).unwrap();
            assert_eq!(
                (begun.context.value().as_str(), begun.parent),
                ("00-00000000000000020000000000000003-0000000000000001-03", None)
            );
        }
        assert_eq!(of(&tracing("").unwrap(), &sent), None);
    }

    #[test]
    fn fields_of_clients_are_dropped_where_the_proxy_writes_them() {
        let joins = tracing("[trace]\ncontext = \"join\"\nrequest_id = \"X-Request-Id\"").unwrap();
        let sent = of(&joins, &format!("traceparent: {PARENT}\r\n"));
        for (name, is_dropped) in [
            ("Traceparent", true),
            ("tracestate", false),
            ("x-request-id", true),
            ("X_Request_Id", true),
            ("X-Request", false),
        ] {
            assert_eq!(joins.drops(name, sent.as_ref()), is_dropped, "{name}");
        }
        assert!(joins.drops("tracestate", of(&joins, "").as_ref()), "it belongs to no trace");
        let passes = tracing("").unwrap();
        assert!(!["traceparent", "tracestate", "X-Request-Id"].iter().any(|name| passes.governs(name)));
    }

    #[test]
    fn shares_are_of_all_numbers() {
        let takes = |share, random| Share::new("key", share).unwrap().takes(|| random);
        assert!(!takes(0.0, 0) && takes(1.0, u64::MAX));
        assert!(takes(0.5, u64::MAX / 2 - 1) && !takes(0.5, u64::MAX / 2 + 1));
        for share in [-0.1, 1.1, f64::NAN] {
            assert!(Share::new("key", share).is_err());
        }
    }

    #[test]
    fn wrong_fields_are_refused() {
        let why = |text: &str| tracing(text).unwrap_err().to_string();
        for (name, expected) in [
            ("a b", "not a field name"),
            ("Host", "the origin needs this field"),
            ("Connection", "belongs to the connection"),
            ("If-None-Match", "the cache evaluates"),
            ("traceparent", "trace.context governs"),
            ("X-Forwarded-For", "`forwarded` governs"),
            ("X-Host", "the cache key has this field"),
            (&"x".repeat(NAME_BYTES_MAX + 1), "too long"),
        ] {
            let why = why(&format!("[trace]\nrequest_id = \"{name}\""));
            assert!(why.contains(expected), "{name}: {why}");
        }
        for (rule, expected) in [
            ("request_headers = { set = { Traceparent = \"x\" } }", "request_headers: \"Traceparent\""),
            ("request_headers = { remove = [\"tracestate\"] }", "request_headers: \"tracestate\""),
            ("has_headers = { X_Id = \"x\" }", "has_headers: \"X_Id\""),
        ] {
            let why = why(&format!(
                "pool.a.servers = [\"h:1\"]\n[trace]\ncontext = \"join\"\nrequest_id = \"X-Id\"\n[[site]]\n\
                 route = [{{ pool = \"a\", {rule} }}]"
            ));
            assert!(why.contains(&format!("site[1].route[1].{expected}: the origin gets")), "{why}");
        }
        let why = why("cache.key_fields = [\"traceparent\"]\ntrace.context = \"begin\"");
        assert!(why.contains("cache.key_fields: \"traceparent\""), "{why}");
    }
}
