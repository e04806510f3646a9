//! Many connections at once: followers of one fill, and idle ones. Memory grows neither with their
//! number nor with the length of bodies.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use lab::{skip, wait_until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::body::Body;
use crate::client::{Client, await_hit};
use crate::origin::{Gate, Origin};
use crate::rig::{LIMIT, Setup};

/// Raises the limit of descriptors for this process and the proxies that it starts. Returns false
/// and skips the test if it cannot.
fn descriptors_or_skip(count: u64) -> bool {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= count) {
        return true;
    }
    let is_raised = setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum }).is_ok();
    if !is_raised {
        skip(format!("{count} descriptors are not allowed; see ulimit -Hn"));
    }
    is_raised
}

const FOLLOWERS: usize = 1000;
const FOLLOWED: Body = Body::new(5, 2_000_003);
/// Bytes that all clients have before the origin continues.
const BEGINNING: u64 = 900_000;

#[test]
fn a_thousand_followers_of_one_fill() {
    if !descriptors_or_skip(3000) {
        return;
    }
    let gate = Gate::default();
    let origin = Origin::of_bodies_behind(&gate);
    let proxy = Setup::for_origin(origin.address).config("limits.connections_per_client = 0\n").start();
    let begun = Arc::new(AtomicUsize::new(0));
    gate.open(BEGINNING);
    let follow = {
        let (address, begun) = (proxy.address, Arc::clone(&begun));
        move || -> io::Result<bool> {
            let mut client = Client::connect(address)?;
            client.ask("GET", &FOLLOWED.target(), "")?;
            let head = client.head()?;
            let beginning = client.exactly(BEGINNING)?;
            begun.fetch_add(1, Ordering::Relaxed);
            let rest = client.exactly(FOLLOWED.len - BEGINNING)?;
            let is_right = FOLLOWED.is(0, &beginning) && FOLLOWED.is(BEGINNING, &rest);
            Ok(head.len() == Some(FOLLOWED.len) && is_right)
        }
    };
    let spawn = |_| thread::Builder::new().stack_size(256 << 10).spawn(follow.clone()).unwrap();
    let followers: Vec<_> = (0..FOLLOWERS).map(spawn).collect();
    let all_begun = wait_until(LIMIT, || begun.load(Ordering::Relaxed) == FOLLOWERS);
    assert!(all_begun, "{} of {FOLLOWERS} have the beginning", begun.load(Ordering::Relaxed));
    gate.open(FOLLOWED.len);
    for follower in followers {
        assert!(follower.join().unwrap().unwrap(), "the body of a follower");
    }
    await_hit(proxy.address, &FOLLOWED);
    assert_eq!(origin.asked().len(), 1);
    let peak = proxy.memory_peak() >> 20;
    println!("{FOLLOWERS} followers: the proxy took {peak} MiB");
    assert!(peak < 100, "{peak} MiB");
}

#[test]
fn many_clients_and_objects_cause_one_fetch_of_each() {
    const CLIENTS: usize = 8;
    let origin = Origin::of_bodies();
    let proxy = Setup::for_origin(origin.address).start();
    // From memory and from the store, at the pace of the slowest client.
    let object = |id| Body::new(id, if id % 2 == 0 { 1000 } else { 150_000 });
    let objects: Vec<_> = (0..400).map(object).collect();
    let ask = || {
        let mut client = Client::connect(proxy.address).unwrap();
        for object in &objects {
            object.assert_whole(&client.fetch(&object.target(), "").unwrap().body);
        }
    };
    thread::scope(|scope| (0..CLIENTS).for_each(|_| drop(scope.spawn(ask))));
    assert_eq!(origin.asked().len(), objects.len());
}

#[test]
fn ten_thousand_idle_connections_in_a_hundred_megabytes() {
    const IDLE: usize = 10_000;
    if !descriptors_or_skip(IDLE as u64 + 1000) {
        return;
    }
    let origin = Origin::of_bodies();
    // The kernel does not spread connections evenly over the workers, and each worker has its share
    // of the limit.
    let proxy = Setup::for_origin(origin.address)
        .config("[limits]\nconnections = 14000\nconnections_per_client = 0\n")
        .start();
    let body = Body::new(1, 1000);
    await_hit(proxy.address, &body);
    let before = proxy.memory();
    let talk = |_| {
        let mut client = Client::connect(proxy.address).unwrap();
        body.assert_whole(&client.fetch(&body.target(), "").unwrap().body);
        client
    };
    let mut clients: Vec<_> = (0..IDLE).map(talk).collect();
    assert!(proxy.descriptors().sockets >= IDLE);
    let (memory, each) = (proxy.memory(), (proxy.memory() - before) / IDLE as u64);
    println!("{IDLE} idle connections: {} MiB, {each} bytes each", memory >> 20);
    assert!(memory < 100_000_000, "{memory} bytes");
    // The connections still work.
    for client in clients.iter_mut().step_by(1000) {
        body.assert_whole(&client.fetch(&body.target(), "").unwrap().body);
    }
}
