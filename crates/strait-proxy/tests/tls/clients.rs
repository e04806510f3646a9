//! Clients with TLS.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, HandshakeKind, StreamOwned};
use strait_proxy::{Clock, Config, Proxy};

use crate::tls::origin::Origin;
use crate::tls::rig::{Authority, LIMIT, Rig, body, connect, field, read_head};

fn curl(rig: &Rig, arguments: &[&str]) -> Output {
    let port = rig.tls_address().port();
    let authority = rig.authority.file("ca.pem");
    let mut command = Command::new("curl");
    command.args(["-sS", "-m", "60", "--cacert"]).arg(authority);
    command.args(["--resolve", &format!("localhost:{port}:127.0.0.1")]).args(arguments);
    command.output().unwrap()
}

#[test]
fn curl_is_answered_in_all_versions_and_keeps_its_connection() {
    if !lab::program_or_skip("curl") {
        return;
    }
    let origin = Origin::plain();
    let rig = Rig::for_origin(Authority::new(), &origin.url);
    let url = format!("https://localhost:{}/kept?300000", rig.tls_address().port());
    // HTTP/2 is chosen by ALPN unless the client announces HTTP/1.1 alone.
    for (tls, http, expected) in [
        (&["--tlsv1.3"][..], "--http1.1", "1.1"),
        (&["--tls-max", "1.2"], "--http1.1", "1.1"),
        (&["--tlsv1.3"], "--http2", "2"),
        (&["--tls-max", "1.2"], "--http2", "2"),
    ] {
        let format =
            ["-o", "/dev/null", "-w", "%{http_code} %{size_download} %{num_connects} %{http_version}\n"];
        let again = [&format[..2], &[&url]].concat();
        let output = curl(&rig, &[tls, &[http], &format, &[&url], &again].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            text,
            format!("200 300000 1 {expected}\n200 300000 0 {expected}\n"),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert_eq!(origin.requests(), 1);
}

#[test]
fn curl_refuses_a_certificate_for_another_name() {
    if !lab::program_or_skip("curl") {
        return;
    }
    let origin = Origin::plain();
    let rig = Rig::for_origin(Authority::new(), &origin.url);
    let output = curl(&rig, &[&format!("https://127.0.0.1:{}/kept", rig.tls_address().port())]);
    assert_eq!(output.status.code(), Some(60), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(rig.tls().get("/kept").body, body(11));
}

#[test]
fn failed_handshakes_are_counted_by_reason() {
    let origin = Origin::plain();
    let config = format!("origin = \"{}\"\nadmin.listen = \"127.0.0.1:0\"", origin.url);
    let rig = Rig::with(Authority::new(), &config);
    // A client without TLS, one that closes, and one that does not know the authority.
    let mut http = connect(rig.tls_address());
    http.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    http.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 400 ") && answer.ends_with(": this port expects TLS: use https\n"),
        "{answer}"
    );
    let closes = |line: &str| line.eq_ignore_ascii_case("connection: close");
    assert!(answer.lines().any(closes), "{answer}");
    // Its answer to a request with a body arrives, although nothing reads the body.
    let mut http = connect(rig.tls_address());
    http.write_all(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n123456789").unwrap();
    http.read_to_string(&mut answer).unwrap();
    assert_eq!(answer.matches("HTTP/1.1 400 ").count(), 2);
    // Neither TLS nor HTTP.
    connect(rig.tls_address()).write_all(b"\x00\x01\x02\x03\x04\x05\x06\x07").unwrap();
    drop(connect(rig.tls_address()));
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Authority::new().client(), name).unwrap();
    let refused = StreamOwned::new(session, connect(rig.tls_address())).write_all(b"GET /");
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidData);
    let metrics = || {
        let mut admin = connect(rig.proxy.admin().unwrap());
        admin.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        admin.read_to_string(&mut text).unwrap();
        text
    };
    let counts = || {
        let text = metrics();
        ["ended", "late", "not_tls", "refused"].map(|reason| {
            let line = format!("strait_proxy_tls_handshakes_failed_total{{reason=\"{reason}\"}} ");
            text.lines().find_map(|own| own.strip_prefix(&line)?.parse::<u64>().ok()).unwrap()
        })
    };
    assert!(lab::wait_until(LIMIT, || counts() == [1, 0, 3, 1]), "{:?}", counts());
}

/// The handshake decides which protocol has the answer.
#[test]
fn malformed_request_is_refused_in_the_protocol_of_its_connection() {
    let rig = Rig::for_origin(Authority::new(), &Origin::plain().url);
    for (protocols, is_http2) in
        [(&[][..], false), (&[&b"http/1.1"[..]], false), (&[b"h2", b"http/1.1"], true)]
    {
        let mut config = (*rig.authority.client()).clone();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let name = ServerName::try_from("localhost").unwrap();
        let session = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut stream = StreamOwned::new(session, connect(rig.tls_address()));
        stream.write_all(b"neither of them\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.is_empty());
        assert_eq!(answer.starts_with(b"HTTP/1.1 400 "), !is_http2, "{protocols:?} {answer:?}");
    }
}

#[test]
fn a_second_connection_resumes_the_session_of_the_first() {
    let rig = Rig::for_origin(Authority::new(), &Origin::plain().url);
    for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
        let mut stream = rig.tls_stream();
        stream.write_all(b"GET /kept HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        let mut bytes = Vec::new();
        // The proxy sends close_notify: rustls would fail otherwise.
        stream.read_to_end(&mut bytes).unwrap();
        assert!(bytes.ends_with(&body(11)));
        assert_eq!(stream.conn.handshake_kind(), Some(kind));
    }
}

#[test]
fn bytes_that_are_not_tls_end_only_their_connection() {
    let rig = Rig::for_origin(Authority::new(), &Origin::plain().url);
    let http = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    for (garbage, gets_400) in
        [(&http[..], true), (&vec![0; 70_000], false), (&[22, 3, 1, 255, 255, 1, 0], false)]
    {
        let mut tcp = connect(rig.tls_address());
        // The proxy may close the connection before it has read all bytes.
        let _ = tcp.write_all(garbage);
        let _ = tcp.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = tcp.read_to_end(&mut answer);
        assert_eq!(answer.starts_with(b"HTTP/1.1 400 "), gets_400, "{answer:?}");
    }
    assert_eq!(rig.tls().get("/kept").body, body(11));
}

/// Stream that writes one byte at a time.
struct Trickle(TcpStream);

impl Read for Trickle {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

impl Write for Trickle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(&bytes[..bytes.len().min(1)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn handshake_and_request_byte_by_byte() {
    let rig = Rig::for_origin(Authority::new(), &Origin::plain().url);
    let StreamOwned { conn, sock } = rig.tls_stream();
    sock.set_nodelay(true).unwrap();
    let mut stream = StreamOwned::new(conn, Trickle(sock));
    stream.write_all(b"GET /kept?300000 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    assert!(bytes.ends_with(&body(300_000)));
}

#[test]
fn a_client_may_change_its_keys() {
    let rig = Rig::for_origin(Authority::new(), &Origin::plain().url);
    if rig.proxy.notes().is_empty() {
        // With kTLS the kernel does not know the new keys.
        return;
    }
    let mut stream = rig.tls_stream();
    for _ in 0..3 {
        stream.write_all(b"GET /kept HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        stream.flush().unwrap();
        assert!(read_head(&mut stream).unwrap().starts_with("HTTP/1.1 200 "));
        stream.read_exact(&mut [0; 11]).unwrap();
        stream.conn.refresh_traffic_keys().unwrap();
    }
}

#[test]
fn slow_handshake_is_ended_by_the_timeout() {
    let config = format!("origin = \"{}\"\ntimeouts.head = 1\ntimeouts.idle = 3600", Origin::plain().url);
    let rig = Rig::with(Authority::new(), &config);
    let mut tcp = connect(rig.tls_address());
    tcp.write_all(&[22, 3, 1]).unwrap();
    assert_eq!(tcp.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn plain_and_tls_clients_share_stored_responses() {
    let origin = Origin::plain();
    let rig = Rig::for_origin(Authority::new(), &origin.url);
    assert_eq!(rig.plain().get("/kept?300000").body, body(300_000));
    let response = rig.tls().get("/kept?300000");
    assert!(field(&response.head, "Cache-Status").unwrap().contains("hit"), "{}", response.head);
    assert!(response.body == body(300_000) && origin.requests() == 1);
}

#[test]
fn plain_and_tls_clients_have_own_responses_if_the_scheme_is_forwarded() {
    let origin = Origin::plain();
    let rig = Rig::with(Authority::new(), &format!("origin = \"{}\"\nforwarded = \"append\"", origin.url));
    for _ in 0..2 {
        assert_eq!(rig.plain().get("/kept?1000").body, body(1000));
        assert_eq!(rig.tls().get("/kept?1000").body, body(1000));
    }
    assert_eq!(origin.requests(), 2);
}

#[test]
fn invalid_files_are_named_in_one_line() {
    let authority = Authority::new();
    authority.sign("one", "localhost", 2999);
    authority.sign("two", "localhost", 2999);
    std::fs::write(authority.file("empty"), "").unwrap();
    let (one, two, empty) = (authority.file("one.pem"), authority.file("two.key"), authority.file("empty"));
    let (one, two, empty) = (one.display(), two.display(), empty.display());
    let listen = "listen = [\"127.0.0.1:0\"]\n";
    for (tls, expected) in [
        (listen.to_owned(), "tls.certificate: TLS needs tls.certificate and tls.key".to_owned()),
        (format!("{listen}certificate = \"{one}\""), "tls.key: TLS needs".to_owned()),
        (
            format!("certificate = \"{one}\"\nkey = \"{two}\""),
            "tls.listen: the certificate is used on no address".to_owned(),
        ),
        (
            format!("{listen}certificate = \"{one}\"\nkey = \"{two}\""),
            format!("tls.key = \"{two}\": this is not the key of the certificate"),
        ),
        (
            format!("{listen}certificate = \"{empty}\"\nkey = \"{two}\""),
            format!("tls.certificate = \"{empty}\": the file has no such block"),
        ),
        (
            format!("{listen}certificate = \"{one}\"\nkey = \"{one}\""),
            format!("tls.key = \"{one}\": the file has no such block"),
        ),
        (
            format!("{listen}certificate = \"/nowhere\"\nkey = \"{two}\""),
            "tls.certificate = \"/nowhere\": the file cannot be read: No such file".to_owned(),
        ),
    ] {
        let config = Config::from_toml(&format!("[tls]\n{tls}")).unwrap();
        let error = Proxy::start(&config, Clock::system()).unwrap_err().to_string();
        assert!(error.starts_with(&expected) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn operator_gets_a_note_when_bodies_over_tls_are_copied() {
    let origin = format!("origin = \"{}\"", Origin::plain().url);
    let rig = Rig::with(Authority::new(), &origin);
    for note in rig.proxy.notes() {
        assert_eq!(note, "kTLS: the kernel has no tls module: bodies over TLS are copied");
    }
    let config = Config::from_toml(&format!("{origin}\nlisten = [\"127.0.0.1:0\"]")).unwrap();
    let plain = Proxy::start(&config, Clock::system()).unwrap();
    assert!(plain.notes().is_empty());
}
