//! Tunnels with TLS on one side or both.

use std::io::{Read as _, Write as _};
use std::thread;

use crate::tls::origin::Origin;
use crate::tls::origins::both;
use crate::tls::rig::{Authority, Client, Rig, body, field};

/// Sends a large body in pieces, and checks that each comes back.
fn echoes(client: &mut Client) {
    let expected = body(1_000_000);
    for piece in expected.chunks(50_000) {
        client.stream.write_all(piece).unwrap();
        client.stream.flush().unwrap();
        assert!(client.read(piece.len()).unwrap() == piece);
    }
}

#[test]
fn upgraded_connections_are_encrypted_on_both_sides() {
    let (_origin, rig) = both();
    for client in [&mut rig.tls(), &mut rig.plain()] {
        write!(
            client.stream,
            "GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        .unwrap();
        client.stream.flush().unwrap();
        let head = client.head().unwrap();
        assert!(head.starts_with("HTTP/1.1 101 ") && field(&head, "Upgrade") == Some("websocket"), "{head}");
        echoes(client);
    }
}

#[test]
fn connect_over_tls_reaches_a_plain_server_and_ends_with_either_side() {
    let origin = Origin::plain();
    let config = format!(
        "access.reach = [\"127.0.0.0/8\"]\naccess.connect_ports = [{}]\ntimeouts.tunnel = 60",
        origin.port
    );
    let rig = Rig::with(Authority::new(), &config);
    let mut client = rig.tls();
    client.ask(&format!("CONNECT 127.0.0.1:{}", origin.port));
    assert!(client.head().unwrap().starts_with("HTTP/1.1 200 "));
    assert!(client.get("/kept?300000").body == body(300_000));
    client.ask("GET /to-close?300000");
    assert!(client.response().unwrap().body == body(300_000), "the tunnel ends with close_notify");
}

#[test]
fn half_close_passes_a_tunnel_and_the_other_direction_continues() {
    let (_origin, rig) = both();
    let mut stream = rig.tls_stream();
    stream
        .write_all(b"GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        .unwrap();
    super::rig::read_head(&mut stream).unwrap();
    let sent = body(100_000);
    stream.write_all(&sent).unwrap();
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    let reader = thread::spawn(move || {
        let mut back = Vec::new();
        stream.read_to_end(&mut back).map(|_| back)
    });
    assert!(reader.join().unwrap().unwrap() == sent);
}
