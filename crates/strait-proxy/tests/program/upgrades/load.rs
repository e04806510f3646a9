//! Upgrades under load: clients of many kinds, each of which counts a request without its response
//! as a failure.

use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use lab::{Launch, program_or_skip, wait_until};

use super::rig::{Service, await_end};
use crate::body::Body;
use crate::client::{Client, await_hit};
use crate::origin::Origin;
use crate::rig::LIMIT;
use crate::servers::certificate;

/// Upgrades in a row.
const UPGRADES: usize = 10;
/// Requests of each kind between two upgrades.
const REQUESTS: u64 = 20;
/// Objects that are hits.
const HITS: u64 = 20;

/// Counts of one kind of client.
#[derive(Debug, Default)]
struct Tally {
    done: AtomicU64,
    failed: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

impl Tally {
    /// Repeats a request until the test is over.
    fn run(&self, mut request: impl FnMut(u64) -> io::Result<()>) {
        for number in 0.. {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            match request(number) {
                Ok(()) => drop(self.done.fetch_add(1, Ordering::Relaxed)),
                Err(error) => {
                    self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(error.to_string());
                }
            }
        }
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }
}

/// Object that is a hit, or with an odd number one that is a miss.
fn object(client: u64, number: u64) -> Body {
    match number % 4 {
        0 | 2 => Body::new(number / 2 % HITS, 2000 + number / 2 % HITS * 9000),
        1 => Body::new(1_000_000 * client + number, 3000),
        _ => Body::new(1_000_000 * client + number, 400_000),
    }
}

/// Fetches an object; the connection that the response leaves is kept in `kept`.
fn fetch(address: SocketAddr, kept: &mut Option<Client>, body: &Body) -> io::Result<()> {
    let mut client = kept.take().map_or_else(|| Client::connect(address), Ok)?;
    let response = client.fetch(&body.target(), "")?;
    if response.head.status != 200 || !body.is(0, &response.body) || response.body.len() as u64 != body.len {
        return Err(io::Error::other(format!("{}: {:?}", body.target(), response.head)));
    }
    *kept = Some(client).filter(|_| response.head.field("connection") != Some("close"));
    Ok(())
}

fn upload(address: SocketAddr, kept: &mut Option<Client>, number: u64) -> io::Result<()> {
    let mut client = kept.take().map_or_else(|| Client::connect(address), Ok)?;
    let (body, answer) = (Body::new(number, 150_000), Body::new(900_000_000 + number, 300));
    client.ask("POST", &answer.target(), &format!("Content-Length: {}\r\n", body.len))?;
    for part in body.bytes(0..body.len).chunks(50_000) {
        client.stream.write_all(part)?;
    }
    let head = client.head()?;
    let received = client.body(&head)?;
    if head.status != 200 || !answer.is(0, &received) {
        return Err(io::Error::other(format!("{head:?}")));
    }
    *kept = Some(client).filter(|_| head.field("connection") != Some("close"));
    Ok(())
}

/// Fetches objects by curl on one HTTP/2 connection with TLS. Curl repeats requests that the proxy
/// has refused without any processing (RFC 9113, section 8.7).
fn fetch_http2(address: SocketAddr, number: u64) -> io::Result<()> {
    let bodies: Vec<_> = (0..8).map(|index| object(77, 8 * number + index)).collect();
    let urls = bodies.iter().map(|body| format!("https://{address}{}", body.target()));
    let own = ["--disable", "--silent", "--show-error", "--fail", "--noproxy", "*", "--insecure", "--http2"];
    let finished = Launch::new("curl").args(own).args(urls).run(LIMIT).map_err(io::Error::other)?;
    let expected: Vec<_> = bodies.iter().flat_map(|body| body.bytes(0..body.len)).collect();
    if !finished.status.success() || finished.stdout != expected {
        return Err(io::Error::other(format!("{}: {}", finished.status, finished.stderr)));
    }
    Ok(())
}

#[test]
fn ten_upgrades_under_load_fail_no_request() {
    if !program_or_skip("curl") {
        return;
    }
    let (origin, folder) = (Origin::of_bodies(), tempfile::tempdir().unwrap());
    let Some((certificate, key)) = certificate(folder.path(), Ipv4Addr::LOCALHOST) else { return };
    let config = format!(
        "http2.enabled = true\nlimits.connections_per_client = 0\ntls.listen = [\"127.0.0.1:0\"]\ntls.certificate = \"{}\"\ntls.key = \"{}\"\n",
        certificate.display(),
        key.display()
    );
    let service = Service::start(origin.address, &config);
    let (address, encrypted) = (service.address, service.second_address());
    (0..HITS).for_each(|number| await_hit(address, &object(0, 2 * number)));
    let first = service.newest();
    let tallies: [Tally; 5] = Default::default();
    thread::scope(|scope| {
        let [kept_open, opened, uploads, http2, hits] = &tallies;
        scope.spawn(move || {
            let mut kept = None;
            kept_open.run(|number| fetch(address, &mut kept, &object(1, number)));
        });
        scope.spawn(move || opened.run(|number| fetch(address, &mut None, &object(2, number))));
        scope.spawn(move || {
            let mut kept = None;
            uploads.run(|number| upload(address, &mut kept, number));
        });
        scope.spawn(move || http2.run(|number| fetch_http2(encrypted, number)));
        scope.spawn(move || {
            let mut kept = None;
            hits.run(|number| fetch(address, &mut kept, &object(3, 2 * number)));
        });
        let end = || tallies.iter().for_each(|tally| tally.is_over.store(true, Ordering::Relaxed));
        for _ in 0..UPGRADES {
            let before = tallies.each_ref().map(Tally::done);
            let enough = [REQUESTS, REQUESTS, REQUESTS, 2, REQUESTS];
            let is_loaded = || {
                tallies
                    .iter()
                    .zip(before)
                    .zip(enough)
                    .all(|((tally, before), more)| tally.done() >= before + more)
            };
            if !wait_until(LIMIT, is_loaded) {
                break;
            }
            service.upgrade_listening(2);
        }
        end();
    });
    for tally in &tallies {
        let failed = tally.failed.lock().unwrap();
        assert!(failed.is_empty(), "{:?} of {}", failed.iter().take(3).collect::<Vec<_>>(), tally.done());
    }
    assert_eq!(service.upgraded(), UPGRADES);
    await_end(first);
    (0..HITS).for_each(|number| await_hit(address, &object(0, 2 * number)));
}
