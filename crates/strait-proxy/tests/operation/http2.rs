//! HTTP/2 with clients, frame by frame: responses by their outcome and mechanism, streams side by
//! side, and the limits of attacks.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use lab::wait_until;
use strait_http2::hpack::{Decoder, FieldList, encode};
use strait_http2::{FRAME_HEAD_BYTES, PREFACE};
use strait_proxy::{Clock, Config, Proxy};

use crate::rig::{LIMIT, Rig, body};

pub(crate) const ON: &str = "http2.enabled = true\n";
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, len @ ..] = (payload.len() as u32).to_be_bytes();
    [&len[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

pub(crate) fn head(stream: u32, fields: &[(&str, &str)], flags: u8) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        encode(name.as_bytes(), value.as_bytes(), &mut block);
    }
    frame(HEADERS, END_HEADERS | flags, stream, &block)
}

pub(crate) fn get(stream: u32, path: &str) -> Vec<u8> {
    let fields = [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "www.example")];
    head(stream, &fields, END_STREAM)
}

/// Frame that was received.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl Received {
    /// Reads a frame; `None` at the end of the connection.
    pub(crate) fn read(tcp: &mut TcpStream) -> Option<Self> {
        let mut head = [0; FRAME_HEAD_BYTES];
        tcp.read_exact(&mut head).ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        tcp.read_exact(&mut payload).ok()?;
        Some(Self { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }

    /// Reads frames until one has the kind.
    pub(crate) fn read_until(tcp: &mut TcpStream, kind: u8) -> Option<Self> {
        std::iter::from_fn(|| Self::read(tcp)).find(|frame| frame.kind == kind)
    }
}

/// Response on a stream.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) is_whole: bool,
}

impl Answer {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

/// Client with windows of 2^31 - 1 bytes.
pub(crate) struct Client {
    pub(crate) tcp: TcpStream,
    decoder: Decoder,
    /// Requests of a test that repeats them.
    sent: u32,
}

impl Client {
    pub(crate) fn to(address: SocketAddr) -> Self {
        Self::with_window(address, (1 << 31) - 1)
    }

    /// Client with windows of that many bytes for its streams.
    pub(crate) fn with_window(address: SocketAddr, window: u32) -> Self {
        Self::with_windows(address, window, (1 << 31) - 1)
    }

    /// Client with windows of that many bytes for its streams, and for the connection, which has at
    /// least 65,535.
    pub(crate) fn with_windows(address: SocketAddr, window: u32, of_connection: u32) -> Self {
        let tcp = TcpStream::connect(address).unwrap();
        tcp.set_read_timeout(Some(LIMIT)).unwrap();
        let mut client = Self { tcp, decoder: Decoder::new(4096), sent: 0 };
        let initial_window = [&[0, 4][..], &window.to_be_bytes()].concat();
        client.send([PREFACE, &frame(SETTINGS, 0, 0, &initial_window)].concat());
        if let more @ 1.. = of_connection - 65_535 {
            client.send(frame(WINDOW_UPDATE, 0, 0, &more.to_be_bytes()));
        }
        client
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.tcp.write_all(bytes.as_ref()).unwrap();
    }

    /// Reads a frame; `None` at the end of the connection.
    pub(crate) fn frame(&mut self) -> Option<Received> {
        Received::read(&mut self.tcp)
    }

    /// Reads frames until one has the kind.
    pub(crate) fn until(&mut self, kind: u8) -> Option<Received> {
        Received::read_until(&mut self.tcp, kind)
    }

    /// Reads the responses to `count` streams, in the order of their ends.
    pub(crate) fn answers(&mut self, count: usize) -> Vec<(u32, Answer)> {
        let (mut open, mut ended) = (Vec::<(u32, Answer)>::new(), Vec::new());
        while ended.len() < count {
            let Some(frame) = self.frame() else { break };
            if frame.stream == 0 {
                continue;
            }
            let at = open.iter().position(|(stream, _)| *stream == frame.stream).unwrap_or_else(|| {
                open.push((frame.stream, Answer::default()));
                open.len() - 1
            });
            let answer = &mut open[at].1;
            match frame.kind {
                HEADERS => {
                    let mut list = FieldList::new(1 << 20, 1000);
                    self.decoder.decode(&frame.payload, &mut list).unwrap();
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                    answer.fields.extend(list.iter().map(|(name, value)| (text(name), text(value))));
                }
                DATA => answer.body.extend_from_slice(&frame.payload),
                _ => {}
            }
            answer.is_whole = matches!(frame.kind, HEADERS | DATA) && frame.flags & END_STREAM != 0;
            if answer.is_whole || frame.kind == RST_STREAM {
                ended.push(open.remove(at));
            }
        }
        ended
    }

    pub(crate) fn get(&mut self, stream: u32, path: &str) -> Answer {
        self.send(get(stream, path));
        self.answers(1).remove(0).1
    }
}

/// Returns the code of the GOAWAY with which the proxy ends the connection.
fn end_of(client: &mut Client) -> Option<u32> {
    let frame = client.until(GOAWAY)?;
    frame.payload.get(4..8)?.try_into().ok().map(u32::from_be_bytes)
}

#[test]
fn http2_without_tls_is_off_unless_enabled() {
    let rig = Rig::start("");
    let mut tcp = TcpStream::connect(rig.proxy.address()).unwrap();
    tcp.write_all(PREFACE).unwrap();
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 505"), "{answer}");
}

#[test]
fn misses_and_hits_are_whole_and_other_versions_work_on_the_same_port() {
    let rig = Rig::start(ON);
    let mut client = Client::to(rig.proxy.address());
    for (index, len) in [0, 1, 3000, 100_000, 1 << 20].into_iter().enumerate() {
        for (turn, outcome) in ["fwd=uri-miss", "hit", "hit"].into_iter().enumerate() {
            let answer = client.get((index * 6 + turn * 2 + 1) as u32, &format!("/200/60/{len}/a"));
            assert!(answer.is_whole && answer.body == body(len), "{len} {outcome}");
            assert_eq!(answer.field(":status"), Some("200"));
            assert!(answer.field("cache-status").unwrap().contains(outcome), "{answer:?}");
            assert_eq!(answer.field("content-length"), Some(len.to_string().as_str()));
            if turn == 0 {
                rig.wait_stored(index as u64 + 1);
            }
        }
    }
    assert_eq!(rig.origin.asked(), 5);
    let head_request = [
        (":method", "HEAD"),
        (":scheme", "http"),
        (":path", "/200/60/3000/a"),
        (":authority", "www.example"),
    ];
    client.send(head(99, &head_request, END_STREAM));
    let answer = client.answers(1).remove(0).1;
    assert!(answer.is_whole && answer.body.is_empty() && answer.field("content-length") == Some("3000"));
    assert_eq!(rig.client().get("/200/60/3000/a").body, body(3000));
}

#[test]
fn bodies_of_hits_move_without_a_copy() {
    const LEN: usize = 3 << 20;
    let rig = Rig::start(ON);
    let mut client = Client::to(rig.proxy.address());
    let path = format!("/200/60/{LEN}/a");
    client.get(1, &path);
    rig.wait_stored(1);
    rig.wait_counted(1);
    let before = rig.proxy.report();
    assert_eq!(client.get(3, &path).body, body(LEN));
    rig.wait_counted(2);
    let after = rig.proxy.report();
    assert_eq!(after.spliced - before.spliced, LEN as u64);
    // Heads of frames, and the head of the response.
    let frames = LEN as u64 / (16 << 10) * FRAME_HEAD_BYTES as u64;
    assert!((frames..frames + 4000).contains(&(after.copied - before.copied)), "{before:?} {after:?}");
}

#[test]
fn each_stream_follows_the_rules_of_its_route() {
    let (rig, dir) = (Rig::start(ON), tempfile::tempdir().unwrap());
    let hash = bcrypt::hash_with_salt("b", 4, [7; 16]).unwrap();
    std::fs::write(dir.path().join("users"), format!("ann:{hash}\n")).unwrap();
    let toml = format!(
        "{ON}workers = 1\nlisten = [\"127.0.0.1:0\"]\npool.a.servers = [\"{}\"]\n[[site]]\nroute = [{{ pool = \"a\", auth = {{ users = \"{}\" }}, rate = {{ requests = 4, per = 86400 }}, response_headers = {{ set = {{ Server = \"edge\" }} }} }}]",
        rig.origin.address,
        dir.path().join("users").display()
    );
    let proxy = Proxy::start(&Config::from_toml(&toml).unwrap(), Clock::system()).unwrap();
    let mut client = Client::to(proxy.address());
    let fields =
        [(":method", "GET"), (":scheme", "http"), (":path", "/200/60/5/a"), (":authority", "www.example")];
    // ann:b and ann:c; the last request exceeds the rate.
    for (stream, password, status) in [
        (1, "Basic YW5uOmI=", "200"),
        (3, "Basic YW5uOmI=", "200"),
        (5, "Basic YW5uOmM=", "401"),
        (7, "", "401"),
        (9, "Basic YW5uOmI=", "429"),
    ] {
        client.send(head(stream, &[&fields[..], &[("authorization", password)]].concat(), END_STREAM));
        let answer = client.answers(1).remove(0).1;
        assert_eq!((answer.field(":status"), answer.field("server")), (Some(status), Some("edge")));
    }
    assert_eq!(rig.origin.asked(), 1);
    assert!(!rig.origin.heads.recv().unwrap().to_ascii_lowercase().contains("authorization"));
}

#[test]
fn head_that_the_proxy_makes_longer_than_those_of_origins_is_sent() {
    let lines = (0..98).map(|number| format!("X-F{number}: a\r\n")).collect::<Vec<_>>().concat();
    let response =
        format!("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nCache-Control: max-age=60\r\n{lines}\r\n");
    let (proxy, _) = one_origin(Box::leak(response.into_boxed_str()).as_bytes(), 0);
    let mut client = Client::to(proxy.address());
    client.send(get(1, "/x"));
    let answer = client.answers(1).remove(0).1;
    assert_eq!((answer.field(":status"), answer.field("x-f97")), (Some("200"), Some("a")));
    // As much as rules and a fixed response may add.
    let fields = |name: char| {
        let field = |number| format!("X-{name}{number} = \"{}\"", "v".repeat(4096));
        (0..32).map(field).collect::<Vec<_>>().join(", ")
    };
    let toml = format!(
        "{ON}workers = 1\nlisten = [\"127.0.0.1:0\"]\n[[site]]\nroute = [{{ respond = {{ headers = {{ {} }} }}, response_headers = {{ set = {{ {} }} }} }}]",
        fields('A'),
        fields('B')
    );
    let proxy = Proxy::start(&Config::from_toml(&toml).unwrap(), Clock::system()).unwrap();
    let mut client = Client::to(proxy.address());
    client.send(get(1, "/x"));
    let mut block = Vec::new();
    loop {
        let frame = client.frame().unwrap();
        if frame.stream == 1 {
            assert!(matches!(frame.kind, HEADERS | CONTINUATION), "{}", frame.kind);
            block.extend(frame.payload);
            if frame.flags & END_HEADERS > 0 {
                break;
            }
        }
    }
    let mut list = FieldList::new(1 << 20, 1000);
    client.decoder.decode(&block, &mut list).unwrap();
    assert_eq!(list.iter().filter(|(_, value)| value.len() == 4096).count(), 64);
}

#[test]
fn request_bodies_reach_the_origin() {
    let rig = Rig::start(ON);
    let mut client = Client::to(rig.proxy.address());
    let fields = [(":method", "POST"), (":scheme", "http"), (":path", "/200/0/10/a"), (":authority", "a")];
    client.send(head(1, &[&fields[..], &[("content-length", "5")]].concat(), 0));
    client.send(frame(DATA, 0, 1, b"hel"));
    client.send(frame(DATA, END_STREAM, 1, b"lo"));
    assert_eq!(client.answers(1).remove(0).1.body, body(10));
    let head_text = rig.origin.heads.recv().unwrap();
    assert!(
        head_text.contains("ontent-Length: 5\r\n") || head_text.contains("ontent-length: 5\r\n"),
        "{head_text}"
    );
    assert!(head_text.contains("Via: 2 strait-"), "{head_text}");
    // Without a length, the body is sent in chunks.
    client.send(head(3, &fields, 0));
    client.send([frame(DATA, 0, 3, b"hello"), frame(DATA, END_STREAM, 3, b"")].concat());
    assert_eq!(client.answers(1).remove(0).1.body, body(10));
    let head_text = rig.origin.heads.recv().unwrap();
    assert!(head_text.contains("hunked"), "{head_text}");
}

#[test]
fn stream_without_a_window_delays_no_other() {
    const LEN: usize = 300_000;
    let rig = Rig::start(ON);
    let mut client = Client::with_window(rig.proxy.address(), 1000);
    let path = format!("/200/60/{LEN}/a");
    client.send([get(1, &path), get(3, "/200/60/900/b")].concat());
    let first = client.answers(1).remove(0);
    assert!(first.0 == 3 && first.1.is_whole && first.1.body == body(900));
    rig.wait_stored(2);
    client.send(frame(WINDOW_UPDATE, 0, 1, &1_000_000_u32.to_be_bytes()));
    // The frames of the first window were read before.
    let rest = client.answers(1).remove(0).1;
    assert!(rest.is_whole && body(LEN).ends_with(&rest.body) && rest.body.len() >= LEN - 1000);
}

#[test]
fn cancelled_stream_leaves_the_connection_usable() {
    const LEN: usize = 4 << 20;
    let rig = Rig::start(ON);
    let mut client = Client::with_window(rig.proxy.address(), 100_000);
    client.send(get(1, &format!("/200/60/{LEN}/a")));
    client.until(DATA).unwrap();
    client.send([frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes()), get(3, "/200/60/500/b")].concat());
    loop {
        let (stream, answer) = client.answers(1).remove(0);
        if stream == 3 {
            assert!(answer.is_whole && answer.body == body(500));
            break;
        }
    }
    rig.wait_stored(2);
    rig.wait_counted(2);
}

#[test]
fn log_has_version_and_stream() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("access");
    let rig = Rig::start(&format!("{ON}[log]\naccess = \"{}\"\nformat = \"json\"\n", file.display()));
    let mut client = Client::to(rig.proxy.address());
    client.get(7, "/200/60/100/a");
    let lines = || std::fs::read_to_string(&file).unwrap_or_default();
    assert!(wait_until(LIMIT, || lines().ends_with('\n')));
    let line: serde_json::Value = serde_json::from_str(lines().trim()).unwrap();
    assert_eq!((&line["version"], &line["stream"]), (&"HTTP/2.0".into(), &7.into()));
    assert_eq!((&line["body_bytes"], &line["whole"]), (&100.into(), &true.into()));
}

/// Starts an origin for one connection, which sends `response` after a request head, then the
/// received bytes up to `echoed`; and a proxy for it.
fn one_origin(response: &'static [u8], echoed: usize) -> (Proxy, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = listener.local_addr().unwrap();
    let served = thread::spawn(move || {
        let (mut tcp, _) = listener.accept().unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            tcp.read_exact(&mut byte).unwrap();
            head.extend_from_slice(&byte);
        }
        tcp.write_all(response).unwrap();
        let mut bytes = vec![0; echoed];
        tcp.read_exact(&mut bytes).unwrap();
        tcp.write_all(&bytes).unwrap();
        String::from_utf8(head).unwrap()
    });
    let mut config = Config::from_toml(ON).unwrap();
    config.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    config.workers = 1;
    config.origin = Some(format!("http://{origin}"));
    (Proxy::start(&config, Clock::system()).unwrap(), served)
}

#[test]
fn websocket_passes_in_a_stream() {
    let switching = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\nhello";
    let (proxy, served) = one_origin(switching, 5);
    let mut client = Client::to(proxy.address());
    let connect = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":path", "/chat"),
        (":authority", "a"),
    ];
    client.send([head(1, &connect, 0), frame(DATA, 0, 1, b"abcde")].concat());
    let answer = client.answers(1).remove(0).1;
    assert_eq!((answer.field(":status"), &answer.body[..]), (Some("200"), &b"helloabcde"[..]));
    assert!(answer.is_whole && answer.field("sec-websocket-accept").is_none(), "{answer:?}");
    let head = served.join().unwrap();
    assert!(head.starts_with("GET /chat HTTP/1.1\r\n") && head.contains("Upgrade: websocket\r\n"), "{head}");
}

#[test]
fn data_after_a_refused_websocket_is_no_request() {
    let rig = Rig::start(ON);
    let mut client = Client::to(rig.proxy.address());
    let connect = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":path", "/200/0/5/chat"),
        (":authority", "a"),
        ("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA=="),
    ];
    let hidden = b"DELETE /200/0/1/hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    client.send([head(1, &connect, 0), frame(DATA, 0, 1, hidden)].concat());
    assert_eq!(client.answers(1).remove(0).1.field(":status"), Some("200"));
    client.send(get(3, "/200/0/5/other"));
    // The rest of the first stream's data is refused by a reset.
    assert!(client.answers(2).iter().any(|(stream, answer)| *stream == 3 && answer.is_whole));
    assert_eq!(rig.origin.asked(), 2);
}

#[test]
fn requests_with_foreign_schemes_and_tunnels_with_a_length_are_reset() {
    let rig = Rig::start(ON);
    let mut client = Client::to(rig.proxy.address());
    let foreign =
        [(":method", "GET"), (":scheme", "http://evil/?"), (":path", "/200/0/5/a"), (":authority", "a")];
    let tunnel = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":path", "/200/0/5/chat"),
        (":authority", "a"),
        ("content-length", "5"),
    ];
    client.send([head(1, &foreign, END_STREAM), head(3, &tunnel, 0)].concat());
    assert_eq!([1, 2].map(|_| client.until(RST_STREAM).unwrap().stream), [1, 3]);
    assert_eq!(rig.origin.asked(), 0);
}

#[test]
fn chunks_and_trailers_become_frames() {
    let chunked = b"HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\nX-End: 7\r\n\r\n";
    let (proxy, served) = one_origin(chunked, 0);
    let mut client = Client::to(proxy.address());
    let answer = client.get(1, "/a");
    assert!(answer.is_whole && answer.body == b"abcde", "{answer:?}");
    assert_eq!((answer.field("transfer-encoding"), answer.field("x-end")), (None, Some("7")));
    served.join().unwrap();
}

#[test]
fn streams_count_as_connections_of_their_client() {
    let rig = Rig::start(&format!("{ON}limits.connections_per_client = 3\n"));
    // Responses wait for windows, so that their streams stay open.
    let mut client = Client::with_window(rig.proxy.address(), 0);
    client.send([get(1, "/200/60/700/a"), get(3, "/200/60/700/b")].concat());
    client.until(HEADERS).unwrap();
    client.until(HEADERS).unwrap();
    client.send(get(5, "/200/60/700/c"));
    let refused = client.until(RST_STREAM).unwrap();
    assert_eq!((refused.stream, &refused.payload[..]), (5, &7_u32.to_be_bytes()[..]));
    client.send(frame(WINDOW_UPDATE, 0, 1, &700_u32.to_be_bytes()));
    client.until(DATA).unwrap();
    rig.wait_counted(1);
    assert!(wait_until(LIMIT, || {
        client.send(get(7 + client.sent * 2, "/200/60/700/c"));
        client.sent += 1;
        let answer = client.frame().unwrap();
        answer.kind == HEADERS
    }));
}

#[test]
fn stream_whose_client_opens_no_window_ends_and_others_go_on() {
    let rig = Rig::start(&format!("{ON}timeouts.client = 1\n"));
    let mut client = Client::with_window(rig.proxy.address(), 0);
    client.send(get(1, "/200/60/100000/a"));
    let reset = client.until(RST_STREAM).unwrap();
    assert_eq!(reset.stream, 1);
    let head_request =
        [(":method", "HEAD"), (":scheme", "http"), (":path", "/200/60/7/b"), (":authority", "www.example")];
    client.send(head(3, &head_request, END_STREAM));
    assert_eq!(client.until(HEADERS).unwrap().stream, 3);
}

/// Sends `next(0)`, `next(1)` and so on until the proxy ends the connection, while another client
/// is served; checks the counter of the limit, and that the proxy forgets the connection.
fn attack(limit: &str, next: impl Fn(u32) -> Vec<u8>) {
    let rig = Rig::start(&format!("{ON}admin.listen = \"127.0.0.1:0\"\n"));
    let mut other = Client::to(rig.proxy.address());
    let mut client = Client::to(rig.proxy.address());
    let mut is_ended = false;
    for index in 0..20_000 {
        // The proxy may have closed the connection.
        if client.tcp.write_all(&next(index)).is_err() {
            is_ended = true;
            break;
        }
        if index % 1000 == 0 {
            let stream = index / 1000 * 2 + 1;
            assert_eq!(other.get(stream, "/200/60/700/other").body, body(700), "{limit}");
        }
    }
    let code = end_of(&mut client);
    assert!(is_ended || code == Some(11), "{limit}: {code:?}");
    let metric = format!("strait_proxy_http2_abuse_total{{limit=\"{limit}\"}} 1");
    let is_counted = || rig.show("/metrics").text().contains(&metric);
    assert!(wait_until(LIMIT, is_counted), "{limit}");
    drop(client);
    assert_eq!(other.get(99, "/200/60/700/other").body, body(700), "{limit}");
    assert!(wait_until(LIMIT, || rig.proxy.report().open == 1), "{limit}");
}

#[test]
fn rapid_resets_end_the_connection() {
    attack("rapid_reset", |index| {
        let stream = index * 2 + 1;
        [get(stream, "/200/60/700/other"), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
    });
}

#[test]
fn floods_of_frames_end_the_connection() {
    attack("ping", |_| frame(PING, 0, 0, &[0; 8]));
    attack("settings", |_| frame(SETTINGS, 0, 0, &[]));
    attack("priority", |_| frame(2, 0, 1, &[0; 5]));
    // The window of the connection is full: updates of a stream that has ended are valid.
    let update = |index| match index {
        0 => get(1, "/200/60/700/other"),
        _ => frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]),
    };
    attack("window_update", update);
}

#[test]
fn floods_within_a_request_end_the_connection() {
    let post = [(":method", "POST"), (":scheme", "http"), (":path", "/200/0/1/a"), (":authority", "a")];
    attack("small_data", |index| if index == 0 { head(1, &post, 0) } else { frame(DATA, 0, 1, b"") });
    attack("continuation", |index| match index {
        0 => frame(HEADERS, END_STREAM, 1, &[0x82]),
        _ => frame(CONTINUATION, 0, 1, &[0x86; 10]),
    });
    // An entry of 4096 bytes, then a thousand references to it in each block.
    let entry = [b"\x40\x01a\x7f\xe0\x1e".to_vec(), vec![b'x'; 4063]].concat();
    attack("hpack", |index| {
        let block = if index == 0 { entry.clone() } else { vec![0xbe; 1000] };
        frame(HEADERS, END_HEADERS | END_STREAM, index * 2 + 1, &block)
    });
}
