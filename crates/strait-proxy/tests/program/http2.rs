//! HTTP/2 with clients that people use, the conformance tests of h2spec, and the memory of idle
//! connections.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;

use lab::{Finished, Launch, program_or_skip, wait_until};
use strait_http2::hpack::encode;
use strait_http2::{FRAME_HEAD_BYTES, PREFACE};

use crate::body::Body;
use crate::client::Client;
use crate::origin::Origin;
use crate::rig::{LIMIT, Proxy, Setup};
use crate::servers::{certificate, find};

const ON: &str = "http2.enabled = true\nlimits.connections_per_client = 0\n";
const SMALL: Body = Body::new(1, 1234);
const LARGE: Body = Body::new(2, 3_234_567);

fn start(origin: &Origin) -> Proxy {
    Setup::for_origin(origin.address).config(ON).start()
}

fn curl(arguments: &[&str]) -> Finished {
    let own = ["--disable", "--silent", "--show-error", "--fail", "--noproxy", "*"];
    Launch::new("curl").args(own).args(arguments).run(LIMIT).unwrap().success()
}

#[test]
fn curl_by_prior_knowledge() {
    if !program_or_skip("curl") {
        return;
    }
    let origin = Origin::of_bodies();
    let proxy = start(&origin);
    for body in [SMALL, LARGE] {
        let url = format!("{}{}", proxy.url(), body.target());
        for arguments in [&["--http2-prior-knowledge"][..], &["--http2-prior-knowledge"], &[]] {
            body.assert_whole(&curl(&[&[url.as_str()], arguments].concat()).stdout);
        }
        let version = ["--http2-prior-knowledge", "--output", "/dev/null", "--write-out", "%{http_version}"];
        assert_eq!(curl(&[&[url.as_str()], &version[..]].concat()).text(), "2");
        let part = curl(&["--http2-prior-knowledge", "--range", "1000-1099", &url]).stdout;
        assert!(part.len() == 100 && body.is(1000, &part));
    }
}

/// Returns a proxy with a certificate, and the port of its listener with TLS; `None` without
/// openssl.
fn start_with_tls(origin: &Origin, folder: &Path, more: &str) -> Option<(Proxy, u16)> {
    let (certificate, key) = certificate(folder, Ipv4Addr::LOCALHOST)?;
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let tls = format!(
        "tls.listen = [\"127.0.0.1:{port}\"]\ntls.certificate = \"{}\"\ntls.key = \"{}\"\n",
        certificate.display(),
        key.display()
    );
    Some((Setup::for_origin(origin.address).config(more).config(&tls).start(), port))
}

#[test]
fn curl_by_alpn() {
    if !program_or_skip("curl") {
        return;
    }
    let (origin, folder) = (Origin::of_bodies(), tempfile::tempdir().unwrap());
    // By default.
    let Some((_proxy, port)) = start_with_tls(&origin, folder.path(), "") else { return };
    for body in [SMALL, LARGE] {
        let url = format!("https://127.0.0.1:{port}{}", body.target());
        for (option, version) in [("--http2", "2"), ("--http2", "2"), ("--http1.1", "1.1")] {
            body.assert_whole(&curl(&["--insecure", option, &url]).stdout);
            let show = ["--insecure", option, "--output", "/dev/null", "--write-out", "%{http_version}"];
            assert_eq!(curl(&[&show[..], &[&url]].concat()).text(), version);
        }
    }
}

#[test]
fn curl_gets_http_1_where_http2_is_off() {
    if !program_or_skip("curl") {
        return;
    }
    let (origin, folder) = (Origin::of_bodies(), tempfile::tempdir().unwrap());
    let off = "http2.enabled = false\n";
    let Some((_proxy, port)) = start_with_tls(&origin, folder.path(), off) else { return };
    let url = format!("https://127.0.0.1:{port}{}", SMALL.target());
    let show = ["--insecure", "--http2", "--output", "/dev/null", "--write-out", "%{http_version}"];
    assert_eq!(curl(&[&show[..], &[&url]].concat()).text(), "1.1");
}

#[test]
fn h2load_with_streams_side_by_side() {
    if !program_or_skip("h2load") {
        return;
    }
    let origin = Origin::of_bodies();
    let proxy = start(&origin);
    let urls = [SMALL, LARGE].map(|body| format!("{}{}", proxy.url(), body.target()));
    let load =
        Launch::new("h2load").args(["-n", "400", "-c", "4", "-m", "20"]).args(&urls).run(LIMIT).unwrap();
    let text = load.success().text();
    assert!(text.contains("400 total, 400 started, 400 done, 400 succeeded, 0 failed"), "{text}");
    let bytes = (SMALL.len + LARGE.len) * 200;
    assert!(text.contains(&format!("{bytes}) data")), "{text}");
}

#[test]
fn h2load_with_tls_and_narrow_windows() {
    if !program_or_skip("h2load") {
        return;
    }
    let (origin, folder) = (Origin::of_bodies(), tempfile::tempdir().unwrap());
    let Some((_proxy, port)) = start_with_tls(&origin, folder.path(), ON) else { return };
    let urls = [SMALL, LARGE].map(|body| format!("https://127.0.0.1:{port}{}", body.target()));
    for window_bits in ["14", "17", "30"] {
        let options = ["-n", "80", "-c", "4", "-m", "20", "-w", window_bits, "-W", window_bits];
        let load = Launch::new("h2load").args(options).args(&urls).run(LIMIT).unwrap();
        let text = load.success().text();
        assert!(text.contains("80 total, 80 started, 80 done, 80 succeeded, 0 failed"), "{text}");
        let bytes = (SMALL.len + LARGE.len) * 40;
        assert!(text.contains(&format!("{bytes}) data")), "{text}");
    }
}

#[test]
fn every_case_of_h2spec_passes() {
    let Some(h2spec) = find("h2spec") else { return };
    let origin = Origin::of_bodies();
    let proxy = start(&origin);
    assert_conformant(&h2spec, proxy.address.port(), &[]);
    let folder = tempfile::tempdir().unwrap();
    let Some((_proxy, port)) = start_with_tls(&origin, folder.path(), ON) else { return };
    assert_conformant(&h2spec, port, &["--tls", "--insecure"]);
}

fn assert_conformant(h2spec: &Path, port: u16, more: &[&str]) {
    let port = port.to_string();
    let arguments = ["--host", "127.0.0.1", "--port", &port, "--path", "/1/1234", "--strict"];
    let finished = Launch::new(h2spec).args(arguments).args(more).run(LIMIT * 4).unwrap();
    let text = finished.text();
    assert!(text.contains(" 0 skipped, 0 failed"), "{text}");
}

/// Connections of the test without windows, requests of each, and the memory that each request may
/// take.
const STUCK: usize = 10;
const STUCK_REQUESTS: u32 = 100;
const STUCK_BYTES_MAX: u64 = 48 << 10;

#[test]
fn requests_without_windows_hold_bounded_memory_and_delay_no_other_client() {
    let origin = Origin::of_bodies();
    let proxy = start(&origin);
    let mut other = Client::connect(proxy.address).unwrap();
    let mut is_served = || {
        other.ask("GET", &LARGE.target(), "").unwrap();
        other.head().unwrap();
        LARGE.is(0, &other.exactly(LARGE.len).unwrap())
    };
    assert!((0..3).all(|_| is_served()));
    let before = proxy.memory();
    let stuck: Vec<_> = (0..STUCK).map(|_| stuck(&proxy)).collect();
    assert!(is_served());
    let grown = proxy.memory_peak().saturating_sub(before);
    let requests = STUCK as u64 * u64::from(STUCK_REQUESTS);
    assert!(grown < requests * STUCK_BYTES_MAX, "{grown} bytes for {requests} requests");
    drop(stuck);
    assert!(wait_until(LIMIT, || proxy.descriptors().sockets < 20));
}

/// Opens a connection with windows of 0 bytes, and waits for the heads of all its responses.
fn stuck(proxy: &Proxy) -> TcpStream {
    let mut tcp = TcpStream::connect(proxy.address).unwrap();
    tcp.set_read_timeout(Some(LIMIT)).unwrap();
    let settings = [0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0];
    let mut bytes = [PREFACE, &settings].concat();
    let mut block = Vec::new();
    let target = LARGE.target();
    for (name, value) in [(":method", "GET"), (":scheme", "http"), (":path", &target), (":authority", "a")] {
        encode(name.as_bytes(), value.as_bytes(), &mut block);
    }
    for stream in (1..).step_by(2).take(STUCK_REQUESTS as usize) {
        // HEADERS with END_HEADERS and END_STREAM.
        bytes.extend_from_slice(&[0, 0, block.len() as u8, 1, 5]);
        bytes.extend_from_slice(&u32::to_be_bytes(stream));
        bytes.extend_from_slice(&block);
    }
    tcp.write_all(&bytes).unwrap();
    let mut heads = 0;
    while heads < STUCK_REQUESTS {
        let mut head = [0; FRAME_HEAD_BYTES];
        tcp.read_exact(&mut head).unwrap();
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        tcp.read_exact(&mut vec![0; len as usize]).unwrap();
        assert!(head[3] != 3, "a stream was reset");
        heads += u32::from(head[3] == 1);
    }
    tcp
}

/// Idle connections of the test, and the memory that each may take.
const IDLE: usize = 1000;
const IDLE_BYTES_MAX: u64 = 15_000;

#[test]
fn idle_connections_take_little_memory() {
    let origin = Origin::of_bodies();
    let proxy = start(&origin);
    let begin = || {
        let mut tcp = TcpStream::connect(proxy.address).unwrap();
        tcp.set_read_timeout(Some(LIMIT)).unwrap();
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        tcp.write_all(&[PREFACE, &settings].concat()).unwrap();
        // The server's SETTINGS, WINDOW_UPDATE and acknowledgement.
        tcp.read_exact(&mut [0; 45 + 13 + 9]).unwrap();
        tcp
    };
    let first = begin();
    let before = proxy.memory();
    let connections: Vec<_> = (0..IDLE).map(|_| begin()).collect();
    let grown = proxy.memory().saturating_sub(before);
    assert!(grown < IDLE as u64 * IDLE_BYTES_MAX, "{grown} bytes");
    drop((first, connections));
    assert!(wait_until(LIMIT, || proxy.descriptors().sockets < 100));
}
