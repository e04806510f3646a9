//! A slow body of 1 MB: a later client gets the stored bytes at once, also for a range of them. A
//! client that leaves does not stop the fill, and a range alone is stored, used and completed.
//!
//! The test lets the origin continue, so bytes that a client has before can only come from the
//! store.

use std::net::Shutdown;

use lab::wait_until;

use crate::body::Body;
use crate::client::{Client, await_hit, get};
use crate::origin::{Gate, Origin, Request};
use crate::rig::{LIMIT, Proxy, Setup};

const MEGABYTE: Body = Body::new(1, 1 << 20);
/// Bytes stored when other clients come: a third of the body.
const THIRD: u64 = MEGABYTE.len / 3;

/// Starts a proxy for an origin that sends bytes up to the gate.
fn trickling() -> (Origin, Gate, Proxy) {
    let gate = Gate::default();
    let origin = Origin::of_bodies_behind(&gate);
    let proxy = Setup::for_origin(origin.address).start();
    (origin, gate, proxy)
}

/// Connects a client that requests the body and reads the head and the first third.
fn first(proxy: &Proxy, gate: &Gate) -> Client {
    let mut client = Client::connect(proxy.address).unwrap();
    client.ask("GET", &MEGABYTE.target(), "").unwrap();
    gate.open(THIRD);
    assert_eq!(client.head().unwrap().len(), Some(MEGABYTE.len));
    assert!(MEGABYTE.is(0, &client.exactly(THIRD).unwrap()));
    client
}

/// Reads the rest of the body, for a client that has the first third.
#[track_caller]
fn continues(client: &mut Client, upto: u64) {
    assert!(MEGABYTE.is(THIRD, &client.exactly(upto - THIRD).unwrap()));
}

#[test]
fn a_follower_gets_stored_bytes_at_once_and_then_streams() {
    let (origin, gate, proxy) = trickling();
    let mut leader = first(&proxy, &gate);
    let mut follower = Client::connect(proxy.address).unwrap();
    follower.ask("GET", &MEGABYTE.target(), "").unwrap();
    let head = follower.head().unwrap();
    assert_eq!((head.status, head.len()), (200, Some(MEGABYTE.len)));
    assert!(MEGABYTE.is(0, &follower.exactly(THIRD).unwrap()), "the origin has not continued yet");
    for client in [&mut leader, &mut follower] {
        gate.open(2 * THIRD);
        continues(client, 2 * THIRD);
    }
    gate.open(MEGABYTE.len);
    for mut client in [leader, follower] {
        assert!(MEGABYTE.is(2 * THIRD, &client.exactly(MEGABYTE.len - 2 * THIRD).unwrap()));
    }
    await_hit(proxy.address, &MEGABYTE);
    assert_eq!(origin.asked().len(), 1);
}

#[test]
fn a_range_of_stored_bytes_is_answered_at_once() {
    let (origin, gate, proxy) = trickling();
    let mut leader = first(&proxy, &gate);
    let part = get(proxy.address, &MEGABYTE.target(), "Range: bytes=1000-200999\r\n");
    assert_eq!(part.head.status, 206, "200 in full is not what was asked for");
    assert_eq!(part.head.field("content-range"), Some("bytes 1000-200999/1048576"));
    assert!(part.body.len() == 200_000 && MEGABYTE.is(1000, &part.body));

    // A range beyond the stored bytes: the head comes at once, the bytes when the origin sends
    // them.
    let mut waiting = Client::connect(proxy.address).unwrap();
    waiting.ask("GET", &MEGABYTE.target(), "Range: bytes=-1000\r\n").unwrap();
    assert_eq!(waiting.head().unwrap().status, 206);
    gate.open(MEGABYTE.len);
    assert!(MEGABYTE.is(MEGABYTE.len - 1000, &waiting.exactly(1000).unwrap()));
    continues(&mut leader, MEGABYTE.len);
    assert_eq!(origin.asked().len(), 1);
}

#[test]
fn a_client_that_leaves_does_not_stop_the_fill() {
    let (origin, gate, proxy) = trickling();
    let idle = proxy.descriptors().sockets;
    let leader = first(&proxy, &gate);
    leader.stream.shutdown(Shutdown::Both).unwrap();
    drop(leader);
    gate.open(2 * THIRD);
    // The client's connection is closed; the one to the origin is still open.
    assert!(proxy.await_sockets(idle + 1), "{:?}", proxy.descriptors());
    gate.open(MEGABYTE.len);
    await_hit(proxy.address, &MEGABYTE);
    assert_eq!(origin.asked().len(), 1);
}

#[test]
fn range_of_an_unstored_object_is_fetched_stored_and_completed() {
    let origin = Origin::of_bodies();
    let proxy = Setup::for_origin(origin.address).start();
    let ask = |fields: &str| get(proxy.address, &MEGABYTE.target(), fields);
    let ranges = || origin.asked().iter().map(Request::range).collect::<Vec<_>>();

    // A hit for only-if-cached shows that the received bytes are stored.
    let is_stored = |range: &str| {
        let wish = format!("Range: bytes={range}\r\nCache-Control: only-if-cached\r\n");
        wait_until(LIMIT, || ask(&wish).head.is_hit())
    };

    let part = ask("Range: bytes=300000-599999\r\n");
    assert_eq!((part.head.status, part.body.len()), (206, 300_000));
    assert!(MEGABYTE.is(300_000, &part.body));
    assert!(is_stored("300000-599999"));
    let within = ask("Range: bytes=400000-499999\r\n");
    assert!(within.head.status == 206 && MEGABYTE.is(400_000, &within.body));
    assert_eq!(ranges(), [Some((300_000, 599_999))], "only what was asked for");

    let more = ask("Range: bytes=500000-699999\r\n");
    assert!(more.head.status == 206 && more.body.len() == 200_000 && MEGABYTE.is(500_000, &more.body));
    assert_eq!(ranges()[1..], [Some((600_000, 699_999))], "only what is missing");
    assert!(is_stored("300000-699999"));

    let whole = ask("");
    assert_eq!(whole.head.status, 200);
    MEGABYTE.assert_whole(&whole.body);
    assert_eq!(ranges()[2..], [Some((0, 299_999)), Some((700_000, 1_048_575))], "only what is missing");

    await_hit(proxy.address, &MEGABYTE);
    assert_eq!(ranges().len(), 4, "nothing is missing");
}
