//! Spans that a collector gets by OTLP.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use lab::wait_until;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use strait_proxy::{Bound, Clock, Inherited};

use crate::dns_tls::certified;
use crate::rig::{Client, LIMIT, Rig, read_head};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// Collector that decodes requests. It answers each one with the next response of the test.
struct Collector {
    address: SocketAddr,
    is_tls: bool,
    received: Receiver<(String, ExportTraceServiceRequest)>,
    answers: Sender<Vec<u8>>,
}

impl Collector {
    fn start() -> Self {
        Self::with(None)
    }

    /// Collector with TLS if it has a configuration.
    fn with(tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_tls = tls.is_some();
        let ((sender, received), (answers, next)) = (channel(), channel::<Vec<u8>>());
        // The thread ends with the test.
        thread::spawn(move || {
            for tcp in listener.incoming().filter_map(Result::ok) {
                let mut stream: Box<dyn Stream> = match &tls {
                    Some(tls) => {
                        let session = ServerConnection::new(tls.clone()).unwrap();
                        Box::new(StreamOwned::new(session, tcp))
                    }
                    None => Box::new(tcp),
                };
                let Some(request) = read(&mut stream) else { continue };
                let _ = sender.send(request);
                let Ok(answer) = next.recv() else { return };
                let _ = stream.write_all(&answer);
            }
        });
        Self { address, is_tls, received, answers }
    }

    /// Collector that accepts the next batches at once.
    fn accepting(batches: usize) -> Self {
        let collector = Self::start();
        (0..batches).for_each(|_| collector.answer("200 OK", &[]));
        collector
    }

    fn answer(&self, status: &str, body: &[u8]) {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len());
        self.answers.send([head.as_bytes(), body].concat()).unwrap();
    }

    fn config(&self) -> String {
        let (scheme, address) = (if self.is_tls { "https" } else { "http" }, self.address);
        format!(
            "trace.context = \"join\"\ntrace.export = \"{scheme}://{address}/v1/traces\"\nadmin.listen = \"127.0.0.1:0\"\n"
        )
    }

    /// Returns the spans of the next request.
    fn next(&self) -> Vec<Span> {
        spans(self.received.recv_timeout(LIMIT).unwrap().1)
    }

    /// Returns `count` spans, of as many requests as they come in.
    fn spans(&self, count: usize) -> Vec<Span> {
        let mut spans = Vec::new();
        while spans.len() < count {
            spans.extend(self.next());
        }
        assert_eq!(spans.len(), count);
        spans
    }
}

/// Connection to a collector.
trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

fn spans(request: ExportTraceServiceRequest) -> Vec<Span> {
    let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
    scopes.flat_map(|scope| scope.spans).collect()
}

/// Reads a request; `None` at the end of the connection.
fn read(stream: &mut impl Read) -> Option<(String, ExportTraceServiceRequest)> {
    let mut reader = BufReader::new(stream);
    let head = read_head(&mut reader)?;
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "))?.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((head, ExportTraceServiceRequest::decode(&*body).unwrap()))
}

/// Sends a request of a trace; returns the status of the response.
fn ask(rig: &Rig, path: &str, flags: &str) -> u16 {
    ask_at(rig.proxy.address(), path, flags)
}

fn ask_at(proxy: SocketAddr, path: &str, flags: &str) -> u16 {
    let mut client = Client::to(proxy);
    client.send(format!(
        "GET {path} HTTP/1.1\r\nHost: www.example:81\r\nUser-Agent: me\r\ntracestate: a=1\r\ntraceparent: 00-{TRACE}-{PARENT}-{flags}\r\n\r\n"
    ));
    client.answer().unwrap().status()
}

fn hex(bytes: &[u8]) -> String {
    let digit = |half: u8| char::from_digit(half.into(), 16).unwrap();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Returns an attribute as text; empty if there is none.
fn attribute(all: &[KeyValue], key: &str) -> String {
    match all.iter().find(|own| own.key == key).and_then(|own| own.value.clone()?.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        _ => String::new(),
    }
}

/// Returns the number of spans that were sent, and that were dropped for a reason.
fn counted(rig: &Rig, reason: &str) -> (u64, u64) {
    let text = rig.show("/metrics").text();
    let of = |series: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.unwrap().parse().unwrap()
    };
    let dropped = format!("strait_proxy_spans_dropped_total{{reason=\"{reason}\"}}");
    (of("strait_proxy_spans_sent_total"), of(&dropped))
}

fn wait_counted(rig: &Rig, reason: &str, expected: (u64, u64)) {
    assert!(wait_until(LIMIT, || counted(rig, reason) == expected), "{:?}", counted(rig, reason));
}

#[test]
fn span_has_the_ids_that_the_origin_got() {
    let collector = Collector::accepting(9);
    let rig = Rig::start(&collector.config());
    assert_eq!(ask(&rig, "/200/60/9/a?key=secret", "00"), 200, "not sampled");
    rig.wait_stored(1);
    rig.origin.heads.recv_timeout(LIMIT).unwrap();
    assert_eq!(ask(&rig, "/200/60/9/b?key=secret", "01"), 200);
    rig.wait_stored(2);
    let head = rig.origin.heads.recv_timeout(LIMIT).unwrap();
    assert_eq!(ask(&rig, "/200/60/9/b?key=secret", "01"), 200);
    let (of_request, request) = collector.received.recv_timeout(LIMIT).unwrap();
    assert!(of_request.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{of_request}");
    assert!(of_request.contains("\r\nContent-Type: application/x-protobuf\r\n"), "{of_request}");
    let resource = request.resource_spans[0].resource.clone().unwrap().attributes;
    assert_eq!(attribute(&resource, "service.name"), "strait");
    let mut all = spans(request);
    if all.len() < 2 {
        all.extend(collector.next());
    }
    let [miss, hit] = &all[..] else { panic!("{all:?}") };
    let sent = format!("\r\ntraceparent: 00-{TRACE}-{}-01\r\n", hex(&miss.span_id));
    assert!(head.contains(&sent), "{head} {sent}");
    assert_ne!(miss.span_id, hit.span_id);
    for (span, cache) in [(miss, "miss"), (hit, "hit")] {
        assert_eq!((hex(&span.trace_id).as_str(), hex(&span.parent_span_id).as_str()), (TRACE, PARENT));
        assert_eq!((span.name.as_str(), span.kind, span.trace_state.as_str()), ("GET", 2, "a=1"));
        assert_eq!(span.flags, 0x301);
        assert!(span.start_time_unix_nano > 0 && span.start_time_unix_nano <= span.end_time_unix_nano);
        for (key, expected) in [
            ("http.request.method", "GET"),
            ("url.path", "/200/60/9/b"),
            ("url.query", ""),
            ("url.scheme", "http"),
            ("server.address", "www.example"),
            ("server.port", "81"),
            ("client.address", "127.0.0.1"),
            ("network.protocol.version", "1.1"),
            ("user_agent.original", "me"),
            ("http.response.status_code", "200"),
            ("http.response.body.size", "9"),
            ("error.type", ""),
            ("strait.cache", cache),
        ] {
            assert_eq!(attribute(&span.attributes, key), expected, "{key} {span:?}");
        }
    }
    assert_eq!(attribute(&miss.attributes, "strait.origin"), rig.origin.address.to_string());
    wait_counted(&rig, "queue", (2, 0));
}

#[test]
fn span_has_the_query_if_the_log_has_it() {
    let collector = Collector::accepting(9);
    let rig = Rig::start(&format!("log.access = \"$DIR/log\"\n{}", collector.config()));
    assert_eq!(ask(&rig, "/500/0/9/a?key=1", "01"), 500);
    let span = &collector.spans(1)[0];
    assert_eq!(attribute(&span.attributes, "url.query"), "key=1");
    assert_eq!(
        (attribute(&span.attributes, "error.type").as_str(), span.status.clone().unwrap().code),
        ("500", 2)
    );
}

#[test]
fn span_of_an_exchange_that_is_not_logged_has_no_query() {
    let collector = Collector::accepting(9);
    let rig = Rig::start(&format!("log.access = \"$DIR/log\"\nlog.sample = 0.0\n{}", collector.config()));
    for (path, query) in [("/200/60/9/a?key=1", ""), ("/500/0/9/a?key=2", "key=2")] {
        ask(&rig, path, "01");
        assert_eq!(attribute(&collector.spans(1)[0].attributes, "url.query"), query, "{path}");
    }
}

#[test]
fn refused_spans_are_counted() {
    let collector = Collector::start();
    let rig = Rig::start(&collector.config());
    collector.answer("400 Bad Request", &[]);
    ask(&rig, "/200/60/9/a", "01");
    wait_counted(&rig, "refused", (0, 1));
    let partial = ExportTracePartialSuccess { rejected_spans: 1, error_message: "why".to_owned() };
    let partial = ExportTraceServiceResponse { partial_success: Some(partial) };
    collector.answer("200 OK", &partial.encode_to_vec());
    ask(&rig, "/200/60/9/a", "01");
    wait_counted(&rig, "refused", (0, 2));
}

#[test]
fn the_operator_learns_of_a_failure_and_of_its_end() {
    let (collector, rig) = (Collector::start(), Rig::start(""));
    let mut config = rig.config(&collector.config());
    config.cache.dir = None;
    let notes = Arc::<Mutex<Vec<String>>>::default();
    let noted = notes.clone();
    let bound = Bound::new(&config, Inherited::default()).unwrap();
    let bound = bound.on_note(move |note| noted.lock().unwrap().push(note.to_owned()));
    let proxy = bound.start(Clock::system()).unwrap();
    let address = collector.address;
    // One note for two failures.
    for (status, count) in [("400 Bad Request", 1), ("404 Not Found", 1), ("200 OK", 2)] {
        ask_at(proxy.address(), "/200/60/9/a", "01");
        assert_eq!(collector.next().len(), 1);
        collector.answer(status, &[]);
        assert!(wait_until(LIMIT, || notes.lock().unwrap().len() == count), "{status}");
    }
    let failed =
        format!("spans cannot be sent to {address}: status 400: they are dropped until it accepts them");
    let again = format!("spans are sent to {address} again; lost spans: 2");
    assert_eq!(*notes.lock().unwrap(), [failed, again]);
}

#[test]
fn an_overloaded_collector_gets_the_batch_again() {
    let collector = Collector::start();
    let rig = Rig::start(&collector.config());
    for status in ["503 Service Unavailable", "429 Too Many Requests", "200 OK"] {
        collector.answer(status, &[]);
    }
    ask(&rig, "/200/60/9/a", "01");
    wait_counted(&rig, "collector", (1, 0));
    let ids: Vec<_> = (0..3).map(|_| collector.next()[0].span_id.clone()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[test]
fn a_dead_collector_costs_only_dropped_spans() {
    // A port without a listener.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = format!("trace.context = \"join\"\ntrace.export = \"http://{address}/v1/traces\"");
    let rig = Rig::start(&format!("admin.listen = \"127.0.0.1:0\"\n{config}"));
    for _ in 0..3 {
        assert_eq!(ask(&rig, "/200/60/9/a", "01"), 200);
    }
    assert!(wait_until(LIMIT, || counted(&rig, "collector").1 > 0));
    assert_eq!(counted(&rig, "collector").0, 0);
}

/// The collector answers nothing until all requests are answered, many more than its queue holds.
#[test]
fn a_slow_collector_delays_no_request() {
    const REQUESTS: usize = 8000;
    let collector = Collector::start();
    let rig = Rig::start(&collector.config());
    assert_eq!(ask(&rig, "/200/600/9/a", "01"), 200);
    rig.wait_stored(1);
    let mut client = rig.client();
    let request =
        format!("GET /200/600/9/a HTTP/1.1\r\nHost: a\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\n\r\n");
    for _ in 0..REQUESTS / 100 {
        client.send(request.repeat(100));
        (0..100).for_each(|_| assert_eq!(client.answer().unwrap().status(), 200));
    }
    let (sent, dropped) = counted(&rig, "queue");
    assert!(sent == 0 && dropped > 0, "{sent} {dropped}");
    (0..REQUESTS).for_each(|_| collector.answer("200 OK", &[]));
    let all = REQUESTS as u64 + 1;
    let is_all = || {
        let (sent, dropped) = counted(&rig, "queue");
        sent + dropped == all
    };
    assert!(wait_until(LIMIT, is_all), "{:?} of {all}", counted(&rig, "queue"));
}

#[test]
fn spans_before_shutdown_are_sent() {
    let collector = Collector::accepting(9);
    let rig = Rig::start(&collector.config());
    for _ in 0..50 {
        assert_eq!(ask(&rig, "/200/60/9/a", "01"), 200);
    }
    rig.proxy.stop();
    assert_eq!(collector.received.try_iter().map(|(_, request)| spans(request).len()).sum::<usize>(), 50);
}

/// Their attempts alone would end after a minute, and each of them has a limit at the end.
#[test]
fn silent_collectors_do_not_keep_the_proxy_from_ending() {
    let collectors: Vec<_> = (0..6).map(|_| Collector::start()).collect();
    let mut rig = Rig::start(&collectors[0].config());
    for collector in &collectors {
        let config = rig.config(&collector.config());
        rig.proxy.reload(&config).unwrap();
        let has_span = || {
            ask(&rig, "/200/60/9/a", "01");
            collector.received.try_recv().is_ok()
        };
        assert!(wait_until(LIMIT, has_span));
    }
    let (ends, ended) = channel();
    let Rig { proxy, origin: _origin, dir: _dir } = rig;
    thread::spawn(move || {
        proxy.stop();
        let _ = ends.send(());
    });
    ended.recv_timeout(LIMIT).unwrap();
}

#[test]
fn a_reload_changes_the_collector() {
    let (one, other) = (Collector::accepting(9), Collector::accepting(9));
    let mut rig = Rig::start(&one.config());
    ask(&rig, "/200/60/9/a", "01");
    assert_eq!(one.spans(1).len(), 1);
    let config = rig.config(&other.config());
    rig.proxy.reload(&config).unwrap();
    // The worker may not have adopted the settings yet.
    let is_moved = || {
        ask(&rig, "/200/60/9/a", "01");
        other.received.try_recv().is_ok()
    };
    assert!(wait_until(LIMIT, is_moved));
    let config = rig.config("name = \"without\"\ntrace.context = \"join\"");
    rig.proxy.reload(&config).unwrap();
    let is_adopted = || {
        let answer = rig.client().get("/200/60/9/a");
        answer.field("cache-status").is_some_and(|status| status.starts_with("without"))
    };
    assert!(wait_until(LIMIT, is_adopted));
    ask(&rig, "/200/60/9/last", "01");
    rig.proxy.stop();
    let sent = other.received.try_iter().flat_map(|(_, request)| spans(request));
    let mut paths = sent.map(|span| attribute(&span.attributes, "url.path"));
    assert!(paths.all(|path| path != "/200/60/9/last"));
}

#[test]
fn collector_is_reached_over_tls_if_its_certificate_is_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    let collector = Collector::with(Some(certified("127.0.0.1", &ca)));
    collector.answer("200 OK", &[]);
    let trusting = format!("tls.origin_ca = \"{}\"\n{}", ca.display(), collector.config());
    let rig = Rig::start(&trusting);
    assert_eq!(ask(&rig, "/200/60/9/a", "01"), 200);
    assert_eq!(attribute(&collector.spans(1)[0].attributes, "url.path"), "/200/60/9/a");
    wait_counted(&rig, "collector", (1, 0));

    // The certificate is signed by another authority than the trusted one.
    let other = directory.path().join("other.pem");
    certified("127.0.0.1", &other);
    let distrusting = format!("tls.origin_ca = \"{}\"\n{}", other.display(), collector.config());
    let rig = Rig::start(&distrusting);
    assert_eq!(ask(&rig, "/200/60/9/b", "01"), 200);
    wait_counted(&rig, "collector", (0, 1));
    assert!(collector.received.try_recv().is_err());
}
