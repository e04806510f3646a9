//! Messages of OTLP: a batch of spans as a request, and the response of a collector.
//!
//! The names of attributes are those of OpenTelemetry's semantic conventions for HTTP servers;
//! those that begin with `strait.` are this proxy's.

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as Message, SpanFlags, Status};
use prost::Message as _;
use strait_http::head::Version;
use strait_http::target::Scheme;

use super::{Described, Span};

/// Methods that a span names; others are `_OTHER` (semantic conventions, `http.request.method`).
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// Returns the bytes of a request with a batch of spans. `service` is the name of the proxy.
pub(crate) fn request(service: &str, spans: &[Span]) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let resource = Resource {
        attributes: vec![text("service.name", service), text("service.version", version)],
        ..Resource::default()
    };
    let scope = InstrumentationScope {
        name: "strait-proxy".to_owned(),
        version: version.to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_spans = vec![ScopeSpans {
        scope: Some(scope),
        spans: spans.iter().map(message).collect(),
        ..ScopeSpans::default()
    }];
    let resource_spans =
        vec![ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

/// Returns the number of spans that a collector has not accepted, from the body of its response
/// with the status 200; 0 for a body that is not valid.
pub(crate) fn rejected(body: &[u8]) -> u64 {
    let response = ExportTraceServiceResponse::decode(body).ok();
    let rejected = response.and_then(|response| response.partial_success).map(|it| it.rejected_spans);
    rejected.and_then(|rejected| u64::try_from(rejected).ok()).unwrap_or(0)
}

fn message(span: &Span) -> Message {
    let parent = span.parent.map(|parent| parent.to_be_bytes().to_vec());
    let is_remote = if parent.is_some() { SpanFlags::ContextIsRemoteMask as u32 } else { 0 };
    let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let request = span.request.as_ref();
    let method = request.and_then(known_method);
    let state = request.map(|request| request.state.clone());
    Message {
        trace_id: span.context.trace.to_be_bytes().to_vec(),
        span_id: span.context.span.to_be_bytes().to_vec(),
        trace_state: state.unwrap_or_default(),
        parent_span_id: parent.unwrap_or_default(),
        flags: u32::from(span.context.flags()) | SpanFlags::ContextHasIsRemoteMask as u32 | is_remote,
        name: method.unwrap_or("HTTP").to_owned(),
        kind: SpanKind::Server as i32,
        start_time_unix_nano: ns(span.begun),
        end_time_unix_nano: ns(span.begun + span.took),
        attributes: attributes(span, method),
        status: Some(status(span)),
        ..Message::default()
    }
}

fn known_method(request: &Described) -> Option<&'static str> {
    METHODS.into_iter().find(|known| *known == request.method)
}

fn attributes(span: &Span, method: Option<&'static str>) -> Vec<KeyValue> {
    let mut all = vec![
        text("http.request.method", method.unwrap_or("_OTHER")),
        text("client.address", &span.client.to_string()),
        text("strait.cache", span.outcome.name()),
        text("strait.mechanism", span.mechanism),
        number("strait.copied_bytes", span.copied_bytes),
        number("http.response.body.size", span.body_bytes),
    ];
    if let Some(request) = &span.request {
        describe(&mut all, request, span.is_encrypted, method);
    }
    if span.status > 0 {
        all.push(number("http.response.status_code", span.status.into()));
    }
    all.extend(error(span).map(|error| text("error.type", &error)));
    all.extend(span.origin.map(|origin| text("strait.origin", &origin.to_string())));
    all
}

/// Adds the attributes of a request.
fn describe(all: &mut Vec<KeyValue>, request: &Described, is_encrypted: bool, method: Option<&str>) {
    if method.is_none() {
        all.push(text("http.request.method_original", &request.method));
    }
    let scheme = if is_encrypted { Scheme::Https } else { Scheme::Http };
    all.push(text("url.scheme", request.scheme.unwrap_or(scheme).name()));
    let version = match request.version {
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
        Version::Http2 => "2",
    };
    all.push(text("network.protocol.version", version));
    for (name, value) in [
        ("url.path", request.path.as_deref()),
        ("url.query", request.query.as_deref()),
        ("user_agent.original", request.user_agent.as_deref()),
    ] {
        all.extend(value.map(|value| text(name, value)));
    }
    if let Some((host, port)) = &request.server {
        all.push(text("server.address", host));
        all.extend(port.map(|port| number("server.port", port.into())));
    }
}

/// Returns the kind of a failure of the server: the status, or `incomplete`.
fn error(span: &Span) -> Option<String> {
    match span.status {
        500.. => Some(span.status.to_string()),
        _ if !span.is_whole => Some("incomplete".to_owned()),
        _ => None,
    }
}

/// Returns the status of a span. An error of the client is none of the server.
fn status(span: &Span) -> Status {
    let code = if error(span).is_some() { StatusCode::Error } else { StatusCode::Unset };
    Status { code: code as i32, ..Status::default() }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: u64) -> KeyValue {
    attribute(key, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
