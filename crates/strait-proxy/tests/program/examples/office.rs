//! Forward cache of an office.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::net::{SocketAddr, TcpStream};

use lab::wait_until;

use super::{Example, OTHER_CLIENT, Site, connect, count};
use crate::body::Body;
use crate::client::{Client, get};
use crate::origin::Origin;
use crate::rig::LIMIT;

const BODY: Body = Body::new(3, 200_000);

fn start() -> Site {
    Example::read("office")
        .put("10.1.0.2:3128", "127.0.0.1:0")
        .put("10.1.0.0/16", "127.0.0.1/32")
        .put("10.1.5.0/24", "127.0.0.1/32")
        .start()
}

/// Returns the status of CONNECT to a server.
fn tunnel(site: &Site, server: SocketAddr) -> u16 {
    let mut client = Client::connect(site.proxy.address).unwrap();
    client.ask("CONNECT", &server.to_string(), "").unwrap();
    client.head().unwrap().status
}

#[test]
fn clients_share_what_they_fetch() {
    let origin = Origin::of_bodies();
    let site = start();
    let url = format!("http://{}{}", origin.address, BODY.target());
    BODY.assert_whole(&get(site.proxy.address, &url, "").body);
    assert!(wait_until(LIMIT, || get(site.proxy.address, &url, "").head.is_hit()));
    let asked = count(&origin, &BODY.target());
    let part = get(site.proxy.address, &url, "Range: bytes=500-1499\r\n");
    assert!(part.head.is_hit() && part.body.len() == 1000 && BODY.is(500, &part.body));
    assert_eq!(count(&origin, &BODY.target()), asked);
    let log = site.authority.file("log/access.log");
    assert!(wait_until(LIMIT, || fs::read_to_string(&log).unwrap().contains("_HIT")));
}

#[test]
fn other_clients_servers_and_ports_are_refused() {
    let origin = Origin::of_bodies();
    let site = start();
    assert!(site.refuses(OTHER_CLIENT));
    // A server in no network of reach.
    let inside = format!("http://127.0.0.3:{}/1/1", origin.address.port());
    assert_eq!(get(site.proxy.address, &inside, "").head.status, 403);
    assert_eq!(tunnel(&site, origin.address), 403);
    // No server may listen there, but the port is allowed.
    assert_ne!(tunnel(&site, SocketAddr::from(([127, 0, 0, 1], 8443))), 403);
    assert!(origin.asked().is_empty());
}

#[test]
fn one_client_has_a_share_of_the_connections() {
    let site = start();
    let connections: Vec<_> = (0..201).map(|_| connect(site.proxy.address).unwrap()).collect();
    for connection in &connections {
        connection.set_nonblocking(true).unwrap();
    }
    let is_closed = |mut connection: &TcpStream| match connection.read(&mut [0]) {
        Ok(len) => len == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    };
    assert!(wait_until(LIMIT, || connections.iter().any(is_closed)));
}
