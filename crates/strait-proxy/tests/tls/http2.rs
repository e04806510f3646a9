//! Bodies over HTTP/2 with TLS.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use strait_http2::hpack::encode;
use strait_http2::{FRAME_HEAD_BYTES, PREFACE};

use crate::tls::origin::Origin;
use crate::tls::rig::{Authority, LIMIT, Rig, body, connect};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const WINDOW_MAX: u32 = (1 << 31) - 1;

/// Lengths below and above those of a record, of a turn, and of the buffers of a socket.
const LENS: [usize; 7] = [3_000_000, 100_000, 20_000, 65_536, 4_000, 16_384, 4_000_000];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, len @ ..] = (payload.len() as u32).to_be_bytes();
    [&len[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Client of HTTP/2 over TLS.
struct Client {
    stream: StreamOwned<ClientConnection, TcpStream>,
    next: u32,
    /// Bodies so far by stream.
    bodies: BTreeMap<u32, Vec<u8>>,
    /// Longest payload of DATA.
    longest: usize,
}

impl Client {
    /// Connects with the largest window of the connection, and these of each stream and frame.
    fn new(rig: &Rig, window: u32, frame_bytes: u32) -> Self {
        let mut config = (*rig.authority.client()).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(Arc::new(config), name).unwrap();
        let stream = StreamOwned::new(session, connect(rig.tls_address()));
        let mut client = Self { stream, next: 1, bodies: BTreeMap::new(), longest: 0 };
        let settings = [&[0, 4][..], &window.to_be_bytes(), &[0, 5], &frame_bytes.to_be_bytes()].concat();
        let update = (WINDOW_MAX - 65_535).to_be_bytes();
        client.send(
            &[PREFACE, &frame(SETTINGS, 0, 0, &settings), &frame(WINDOW_UPDATE, 0, 0, &update)].concat(),
        );
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
        self.stream.flush().unwrap();
    }

    /// Requests a body; returns the stream.
    fn get(&mut self, path: &str) -> u32 {
        let mut block = Vec::new();
        for (name, value) in
            [(":method", "GET"), (":scheme", "https"), (":path", path), (":authority", "localhost")]
        {
            encode(name.as_bytes(), value.as_bytes(), &mut block);
        }
        let stream = self.next;
        self.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &block));
        self.next += 2;
        stream
    }

    /// Reads until `count` streams have ended; widens the window of a stream by each part if
    /// `widens`.
    fn read(&mut self, count: usize, widens: bool) {
        let mut ended = 0;
        while ended < count {
            let mut head = [0; FRAME_HEAD_BYTES];
            self.stream.read_exact(&mut head).unwrap();
            let [a, b, c, kind, flags, stream @ ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            self.stream.read_exact(&mut payload).unwrap();
            let stream = u32::from_be_bytes(stream);
            if kind != DATA {
                continue;
            }
            self.longest = self.longest.max(payload.len());
            self.bodies.entry(stream).or_default().extend_from_slice(&payload);
            let is_last = flags & END_STREAM != 0;
            ended += usize::from(is_last);
            if widens && !is_last && !payload.is_empty() {
                self.send(&frame(WINDOW_UPDATE, 0, stream, &(payload.len() as u32).to_be_bytes()));
            }
        }
    }
}

#[test]
fn streams_side_by_side_get_whole_bodies_in_frames_as_long_as_allowed() {
    let origin = Origin::plain();
    let rig = Rig::for_origin(Authority::new(), &origin.url);
    for frame_bytes in [16_384, 1 << 20] {
        let mut client = Client::new(&rig, WINDOW_MAX, frame_bytes);
        // The bodies are stored, then they are hits.
        for _ in 0..3 {
            let streams = LENS.map(|len| client.get(&format!("/kept?{len}")));
            // The proxy fills the buffers of the socket, and waits.
            let mut ahead = vec![0; 60_000];
            let has_many = || client.stream.sock.peek(&mut ahead).is_ok_and(|len| len == 60_000);
            assert!(lab::wait_until(LIMIT, has_many));
            client.read(LENS.len(), false);
            for (stream, len) in streams.into_iter().zip(LENS) {
                assert!(client.bodies.remove(&stream).unwrap() == body(len), "{len} bytes");
            }
        }
        assert_eq!(client.longest > 16_384, frame_bytes > 16_384, "{}", client.longest);
        assert!(client.longest <= frame_bytes as usize);
    }
    assert_eq!(origin.requests(), LENS.len());
}

#[test]
fn narrow_windows_get_whole_bodies() {
    let origin = Origin::plain();
    let rig = Rig::for_origin(Authority::new(), &origin.url);
    for window in [1_000, 16_384, 40_000] {
        let mut client = Client::new(&rig, window, 16_384);
        for _ in 0..2 {
            let streams = [300_000, 200_000].map(|len| (client.get(&format!("/kept?{len}")), len));
            client.read(streams.len(), true);
            for (stream, len) in streams {
                assert!(client.bodies.remove(&stream).unwrap() == body(len), "{len} bytes");
            }
        }
    }
    assert_eq!(origin.requests(), 2);
}
