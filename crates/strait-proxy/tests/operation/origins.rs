//! Limits of one client's connections to an origin, also after its clients have left.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use lab::wait_until;
use strait_proxy::{Clock, Config, Proxy};
use tempfile::TempDir;

use crate::rig::{Answer, Client, LIMIT, Rig};

/// Configuration that sends a client's body to the origin at once, and lets it trickle.
const AT_ONCE: &str = "limits.request_ahead = 0\ntimeouts.body_grace = 3600\n";

/// Returns an address for a proxy, and the configuration to listen there with the PROXY protocol.
fn proxied() -> (SocketAddr, String) {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    (address, format!("listen = [\"{address}\"]\nproxy_protocol.on = [\"{address}\"]\n"))
}

/// Connects the client at 192.0.2.`last`.
fn client(address: SocketAddr, last: u8) -> Client {
    let mut client = Client::to(address);
    client.send(format!("PROXY TCP4 192.0.2.{last} 198.51.100.1 4000 80\r\n"));
    client
}

/// Sends a POST with the beginning of its body.
fn trickle(client: &mut Client) {
    client.send("POST /200/0/1/a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n");
}

fn finish(client: &mut Client) -> Answer {
    client.send("0\r\n\r\n");
    client.answer().unwrap()
}

/// Opens `count` connections from the client at 192.0.2.`last`, each with a trickling POST.
fn trickling(address: SocketAddr, last: u8, count: usize) -> Vec<Client> {
    let begin = |_| {
        let mut client = client(address, last);
        trickle(&mut client);
        client
    };
    (0..count).map(begin).collect()
}

#[test]
fn one_client_holds_a_quarter_of_an_origins_connections() {
    let (address, listen) = proxied();
    let rig = Rig::start(&format!("{listen}{AT_ONCE}limits.origin_connections = 8\ntimeouts.connect = 3600"));
    let mut greedy = trickling(address, 1, 8);
    assert!(wait_until(LIMIT, || rig.proxy.report().origin_opened >= 2));
    // Other clients still get connections: each response frees one for the next client.
    for last in 2..10 {
        assert_eq!(client(address, last).get("/200/0/1/b").status(), 200);
    }
    // The requests that waited are served one after the other.
    for client in &mut greedy {
        assert_eq!(finish(client).status(), 200);
    }
}

#[test]
fn client_beyond_its_share_gets_503_with_retry_after() {
    let (address, listen) = proxied();
    let rig = Rig::start(&format!("{listen}{AT_ONCE}limits.origin_connections = 4\ntimeouts.connect = 1"));
    let mut greedy = trickling(address, 1, 1);
    assert!(wait_until(LIMIT, || rig.proxy.report().origin_opened == 1));
    let answer = client(address, 1).get("/200/60/1/b");
    assert_eq!(answer.status(), 503);
    assert!(answer.text().contains("limits.origin_connections_per_client"), "{}", answer.text());
    assert!(answer.field("retry-after").is_some(), "{}", answer.head);
    assert_eq!(finish(&mut greedy[0]).status(), 200);
    assert_eq!(client(address, 1).get("/200/60/1/b").status(), 200);
}

#[test]
fn client_that_waits_for_its_share_delays_no_other_client() {
    let (address, listen) = proxied();
    let rig = Rig::start(&format!("{listen}{AT_ONCE}limits.origin_connections = 4\ntimeouts.connect = 3600"));
    let mut greedy = trickling(address, 1, 1);
    assert!(wait_until(LIMIT, || rig.proxy.report().origin_opened == 1));
    // This client sends the first request for the path.
    let mut waiting = client(address, 1);
    waiting.send("GET /200/60/1/c HTTP/1.1\r\nHost: www.example\r\n\r\n");
    assert!(wait_until(LIMIT, || rig.proxy.report().open == 2));
    assert_eq!(client(address, 2).get("/200/60/1/c").status(), 200);
    assert_eq!(finish(&mut greedy[0]).status(), 200);
    assert_eq!(waiting.answer().unwrap().status(), 200);
    assert_eq!(rig.origin.asked(), 2);
}

#[test]
fn raised_limit_serves_waiting_requests() {
    let (address, listen) = proxied();
    let toml = |most| format!("{listen}{AT_ONCE}limits.origin_connections = {most}\ntimeouts.connect = 3600");
    let mut rig = Rig::start(&toml(1));
    let _holding = trickling(address, 1, 1);
    assert!(wait_until(LIMIT, || rig.proxy.report().origin_opened == 1));
    let mut waiting = client(address, 2);
    waiting.send("GET /200/0/1/b HTTP/1.1\r\nHost: www.example\r\n\r\n");
    assert!(wait_until(LIMIT, || rig.proxy.report().open == 2));
    rig.proxy.reload(&rig.config(&toml(2))).unwrap();
    assert_eq!(waiting.answer().unwrap().status(), 200);
}

#[test]
fn bodies_without_memory_do_not_reach_the_origin() {
    let (address, listen) = proxied();
    let rig = Rig::start(&format!(
        "{listen}limits.request_ahead_memory = \"32KiB\"\ntimeouts.body_grace = 3600\ntimeouts.connect = 3600"
    ));
    // One body is read, one request waits, and the others are refused.
    let mut clients: Vec<_> = (1..6).flat_map(|last| trickling(address, last, 1)).collect();
    let is_refused = |report: strait_proxy::Report| report.statuses.contains(&("5xx", 3));
    assert!(wait_until(LIMIT, || is_refused(rig.proxy.report())), "{:?}", rig.proxy.report());
    assert_eq!((rig.proxy.report().origin_opened, rig.origin.asked()), (0, 0));
    let mut answers = Vec::new();
    for client in &mut clients {
        // Refused connections may be closed already.
        client.try_send("0\r\n\r\n");
        answers.push(client.answer().unwrap());
    }
    let (done, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status() == 200);
    assert_eq!((done.len(), refused.len()), (2, 3), "{answers:?}");
    for answer in refused {
        assert!(answer.status() == 503 && answer.text().contains("limits.request_ahead_memory"));
        assert!(answer.field("retry-after").is_some(), "{}", answer.head);
    }
}

#[test]
fn read_body_holds_its_memory_until_it_is_sent() {
    let (address, listen) = proxied();
    let rig = Rig::start(&format!(
        "{listen}limits.request_ahead_memory = \"32KiB\"\ntimeouts.body_grace = 3600\ntimeouts.connect = 3600\nlimits.origin_connections = 1"
    ));
    // A long body, with its beginning sent at once, holds the only connection to the origin.
    let mut holding = client(address, 1);
    let beginning = "x".repeat(16 << 10);
    holding.send(format!(
        "POST /200/0/1/a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4000\r\n{beginning}\r\n"
    ));
    assert!(wait_until(LIMIT, || rig.proxy.report().origin_opened == 1));
    // This body is read into the buffer, and its request waits for that connection.
    let mut read = client(address, 2);
    read.send("POST /200/0/1/a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    assert_eq!(read.answer().unwrap().status(), 100);
    read.send("xx");
    let mut others: Vec<_> = (3..6).flat_map(|last| trickling(address, last, 1)).collect();
    // One request may wait for the permit of these bytes; the others are refused.
    let is_refused = |report: strait_proxy::Report| report.statuses.contains(&("5xx", 2));
    assert!(wait_until(LIMIT, || is_refused(rig.proxy.report())), "{:?}", rig.proxy.report());
    assert_eq!(finish(&mut holding).status(), 200);
    assert_eq!(read.answer().unwrap().status(), 200);
    let statuses: Vec<_> = others
        .iter_mut()
        .map(|client| {
            client.try_send("0\r\n\r\n");
            client.answer().unwrap().status()
        })
        .collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 1, "{statuses:?}");
}

/// Origin that answers every request with the beginning of a long body.
struct Endless {
    address: SocketAddr,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Endless {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, streams) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let all = streams.clone();
        // The thread ends with the test's process.
        thread::spawn(move || {
            for mut stream in listener.incoming().filter_map(Result::ok) {
                let mut head = [0; 4096];
                // The requests are small and come in one piece.
                let read = stream.read(&mut head).unwrap_or(0);
                let is_request = head[..read].ends_with(b"\r\n\r\n");
                let answer =
                    "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nCache-Control: max-age=60\r\n\r\n";
                if is_request && stream.write_all(answer.as_bytes()).is_ok() {
                    all.lock().unwrap().push(stream);
                }
            }
        });
        Self { address, streams }
    }

    /// Sends another piece of each body, and returns the number of open responses.
    fn go_on(&self) -> usize {
        let mut streams = self.streams.lock().unwrap();
        streams.retain_mut(|stream| stream.write_all(&[7; 64]).is_ok());
        streams.len()
    }

    fn proxy(&self, toml: &str) -> (Proxy, TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::from_toml(toml).unwrap();
        config.workers = 2;
        config.origin = Some(format!("http://{}", self.address));
        config.cache.dir = Some(dir.path().join("cache"));
        (Proxy::start(&config, Clock::system()).unwrap(), dir)
    }
}

#[test]
fn abandoned_fills_beyond_a_limit_are_given_up() {
    const FILLS: usize = 60;
    let ((address, listen), origin) = (proxied(), Endless::start());
    let (proxy, _dir) = origin.proxy(&listen);
    // A tenth of a fifth of 2,000.
    let most = 40;
    let ask = |index| {
        let mut client = client(address, 1);
        client.send(format!("GET /{index} HTTP/1.1\r\nHost: www.example\r\n\r\n"));
        client
    };
    let clients: Vec<_> = (0..FILLS).map(ask).collect();
    assert!(wait_until(LIMIT, || origin.go_on() == FILLS));
    drop(clients);
    let have_left = || origin.go_on() > 0 && proxy.report().open == 0;
    assert!(wait_until(LIMIT, have_left), "{:?}", proxy.report());
    assert!(wait_until(LIMIT, || origin.go_on() == most), "{:?}", proxy.report());
    assert_eq!(proxy.report().fills, most);
    // The fill of another client continues.
    let mut other = client(address, 2);
    other.send("GET /other HTTP/1.1\r\nHost: www.example\r\n\r\n");
    assert!(wait_until(LIMIT, || origin.go_on() == most + 1));
    drop(other);
    assert!(wait_until(LIMIT, || origin.go_on() > 0 && proxy.report().open == 0));
    assert_eq!(origin.go_on(), most + 1);
}
