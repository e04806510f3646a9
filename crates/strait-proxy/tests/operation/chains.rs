//! Chains of proxies without configured names.

use std::net::{SocketAddr, TcpListener};

use strait_proxy::{Bound, Clock, Config, Inherited, Proxy};

use crate::rig::{Client, Rig};

/// Starts a proxy on a port of its own, without a store.
fn start(toml: &str) -> Proxy {
    let config = Config { listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))], ..config(toml) };
    Proxy::start(&config, Clock::system()).unwrap()
}

fn config(toml: &str) -> Config {
    Config { workers: 1, ..Config::from_toml(toml).unwrap() }
}

#[test]
fn reverse_proxy_before_a_reverse_proxy() {
    let inner = Rig::start("");
    let outer = start(&format!("origin = \"http://{}\"", inner.proxy.address()));
    let mut client = Client::to(outer.address());
    let answer = client.get("/200/60/5/a");
    assert_eq!(answer.status(), 200);
    // A stored response has each Via on a line of its own.
    let via: Vec<_> = answer.head.lines().filter(|line| line.starts_with("Via: 1.1 strait-")).collect();
    assert!(via.len() == 2 && via[0] != via[1], "{}", answer.head);
    assert_eq!(client.get("/200/0/5/b").status(), 200);
    assert_eq!(inner.origin.asked(), 2);
}

#[test]
fn forward_proxy_before_a_reverse_proxy() {
    let inner = Rig::start("");
    let outer = start("access.reach = [\"127.0.0.0/8\"]");
    let mut client = Client::to(outer.address());
    let address = inner.proxy.address();
    client.send(format!("GET http://{address}/200/60/5/a HTTP/1.1\r\nHost: {address}\r\n\r\n"));
    assert_eq!(client.answer().unwrap().status(), 200);
}

#[test]
fn proxy_before_itself_answers_508() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let config = config(&format!("origin = \"http://{address}\""));
    let proxy = Bound::new(&config, Inherited::new(vec![("a".to_owned(), socket)]))
        .unwrap()
        .start(Clock::system())
        .unwrap();
    let mut client = Client::to(proxy.address());
    assert_eq!(client.get("/a").status(), 508);
    client.send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
    assert_eq!(client.answer().unwrap().status(), 508);
}
