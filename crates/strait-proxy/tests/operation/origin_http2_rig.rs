//! An origin that speaks HTTP/2, frame by frame, and a proxy for it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;

use strait_http2::PREFACE;
use strait_http2::hpack::{Decoder, FieldList, encode};
use strait_proxy::{Clock, Config, Proxy};

use crate::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, Received, SETTINGS, frame, head};
use crate::rig::{Answer, Client, LIMIT};

/// Proxy of one worker for an origin whose connections the test serves.
pub(crate) struct Rig {
    pub(crate) proxy: Proxy,
    pub(crate) origin: Origin,
}

/// Origin, or another server of the pool.
pub(crate) struct Origin(TcpListener);

impl Deref for Rig {
    type Target = Origin;

    fn deref(&self) -> &Origin {
        &self.origin
    }
}

impl Origin {
    fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// Accepts a connection of the proxy without a word.
    pub(crate) fn accept_silent(&self) -> TcpStream {
        let (tcp, _) = self.0.accept().unwrap();
        tcp.set_read_timeout(Some(LIMIT)).unwrap();
        tcp
    }

    /// Accepts a connection of the proxy, with these settings.
    pub(crate) fn accept_with(&self, settings: &[(u16, u32)]) -> Peer {
        let mut peer = Peer { tcp: self.accept_silent(), decoder: Decoder::new(4096) };
        let mut preface = [0; PREFACE.len()];
        peer.tcp.read_exact(&mut preface).unwrap();
        assert_eq!(preface, PREFACE);
        peer.settings(settings);
        peer
    }

    pub(crate) fn accept(&self) -> Peer {
        self.accept_with(&[])
    }
}

impl Rig {
    pub(crate) fn start() -> Self {
        Self::with("")
    }

    /// Starts a proxy with further lines of the configuration.
    pub(crate) fn with(toml: &str) -> Self {
        Self::with_all(toml, "", "", Origin::start(), None)
    }

    /// Starts a proxy with further lines of the pool.
    pub(crate) fn with_pool(pool: &str) -> Self {
        Self::with_all("", pool, "", Origin::start(), None)
    }

    /// Starts a proxy with further keys of the route.
    pub(crate) fn with_route(route: &str) -> Self {
        Self::with_all("", "", route, Origin::start(), None)
    }

    /// Starts a proxy for a pool with another server, which is asked only in place of the origin.
    pub(crate) fn with_backup() -> (Self, Origin) {
        let (origin, backup) = (Origin::start(), Origin::start());
        (Self::with_all("", "", "", origin, Some(&backup)), backup)
    }

    fn with_all(toml: &str, pool: &str, route: &str, origin: Origin, backup: Option<&Origin>) -> Self {
        let backup = backup.map(|backup| format!(", \"{} backup\"", backup.address()));
        let toml = format!(
            "http2.enabled = true\nworkers = 1\nlisten = [\"127.0.0.1:0\"]\nadmin.listen = \"127.0.0.1:0\"\ntimeouts.drain = 1\n\
             {toml}\n[pool.a]\nservers = [\"{}\"{}]\nhttp2 = \"on\"\n{pool}\n[[site]]\n[[site.route]]\npool = \"a\"\n{route}\n",
            origin.address(),
            backup.unwrap_or_default()
        );
        let proxy = Proxy::start(&Config::from_toml(&toml).unwrap(), Clock::system()).unwrap();
        Self { proxy, origin }
    }

    pub(crate) fn client(&self) -> Client {
        Client::to(self.proxy.address())
    }

    pub(crate) fn http2_client(&self) -> crate::http2::Client {
        crate::http2::Client::to(self.proxy.address())
    }

    /// Returns the status of the proxy.
    pub(crate) fn status(&self) -> serde_json::Value {
        let mut client = Client::to(self.proxy.admin().unwrap());
        client.send("GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client.answer().unwrap().json()
    }

    /// Returns true if the metrics have the line.
    pub(crate) fn metric(&self, line: &str) -> bool {
        let mut client = Client::to(self.proxy.admin().unwrap());
        client.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        client.answer().unwrap().text().lines().any(|own| own == line)
    }
}

/// Request that an origin has received.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) stream: u32,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) is_last: bool,
}

impl Request {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

/// Connection of the proxy at the origin.
pub(crate) struct Peer {
    pub(crate) tcp: TcpStream,
    decoder: Decoder,
}

impl Peer {
    pub(crate) fn settings(&mut self, settings: &[(u16, u32)]) {
        let setting = |(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
        self.send(frame(SETTINGS, 0, 0, &settings.iter().map(setting).collect::<Vec<_>>().concat()));
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

    /// Reads the next head of a request, or trailers.
    pub(crate) fn request(&mut self) -> Request {
        let frame = self.until(HEADERS).unwrap();
        assert_eq!(frame.flags & END_HEADERS, END_HEADERS);
        let mut list = FieldList::new(1 << 20, 1000);
        self.decoder.decode(&frame.payload, &mut list).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let fields = list.iter().map(|(name, value)| (text(name), text(value))).collect();
        Request { stream: frame.stream, fields, is_last: frame.flags & END_STREAM > 0 }
    }

    /// Reads `len` bytes of a body.
    pub(crate) fn body(&mut self, stream: u32, len: usize) -> Vec<u8> {
        let mut body = Vec::new();
        while body.len() < len {
            let frame = self.until(DATA).unwrap();
            assert_eq!(frame.stream, stream);
            body.extend(frame.payload);
        }
        body
    }

    pub(crate) fn head(&mut self, stream: u32, fields: &[(&str, &str)], flags: u8) {
        self.send(head(stream, fields, flags));
    }

    pub(crate) fn data(&mut self, stream: u32, data: &[u8], flags: u8) {
        for (index, piece) in data.chunks(16 << 10).enumerate() {
            let is_last = (index + 1) * (16 << 10) >= data.len();
            self.send(frame(DATA, if is_last { flags } else { 0 }, stream, piece));
        }
        if data.is_empty() {
            self.send(frame(DATA, flags, stream, b""));
        }
    }

    /// Answers a request with a body that may not be stored.
    pub(crate) fn answer(&mut self, stream: u32, body: &[u8]) {
        self.head(stream, &[(":status", "200"), ("cache-control", "no-store")], 0);
        self.data(stream, body, END_STREAM);
    }
}

/// Returns the head of a POST without a length.
pub(crate) fn post(stream: u32, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "www.example")];
    head(stream, &[&fields[..], more].concat(), 0)
}

/// Returns a block with these fields.
pub(crate) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        encode(name.as_bytes(), value.as_bytes(), &mut block);
    }
    block
}

/// Returns true if a response is about a failure of the origin.
pub(crate) fn is_failure(answer: &Answer) -> bool {
    matches!(answer.status(), 502..=504)
}
