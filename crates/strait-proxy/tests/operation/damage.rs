//! Stored bodies that were damaged on disk: no client gets them as complete, and the request that
//! meets the damage gets the origin's bytes.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use lab::wait_until;
use strait_proxy::{Contents, Proxy, Stats};

use crate::rig::{Client, LIMIT, Rig, body};

/// Lengths of bodies that are spliced into a segment, and into files of their own.
const LENGTHS: [usize; 4] = [150_000, 300_000, 3_000_000, 20_000_000];
/// Length of a body that is checked while it is sent.
const LENGTH_LONG: usize = (64 << 20) + 300_000;

fn path(length: usize) -> String {
    format!("/200/1000/{length}/object")
}

fn stats(proxy: &Proxy) -> Stats {
    proxy.report().store.unwrap()
}

/// Stores bodies of these lengths, stops the proxy, adds the missing checksums, and calls
/// `meanwhile` with the directory. Returns a rig with a new proxy for that directory.
fn restarted(lengths: &[usize], toml: &str, meanwhile: impl Fn(&Path)) -> Rig {
    let rig = Rig::start("cache.scrub = \"1TiB\"\ntransfer.fill = \"splice\"");
    let mut client = rig.client();
    for length in lengths {
        assert!(client.get(&path(*length)).body == body(*length));
    }
    let records = lengths.len() as u64;
    rig.wait_stored(records);
    assert!(wait_until(LIMIT, || stats(&rig.proxy).scrubbed >= records), "the scrub reads them");
    drop(client);
    rig.restart(toml, |dir| {
        // The scrub may have read a record twice, and another one not yet.
        let contents = Contents::open(dir).unwrap();
        contents.verify();
        let verified = contents.verify();
        assert_eq!((verified.whole, verified.unhashed, verified.corrupt), (records, 0, 0));
        contents.close();
        meanwhile(dir);
    })
}

/// Flips bytes of all bodies in a store. They begin with the same bytes, and repeat them.
fn damage(dir: &Path) {
    let begin = body(64);
    let mut flipped = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "segment" && end != "object") {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        // Bodies of these lengths begin on a page.
        for at in (0..bytes.len().saturating_sub(100_000)).step_by(4096) {
            if bytes[at..].starts_with(&begin) {
                file.write_all_at(&[bytes[at + 99_000] ^ 4], at as u64 + 99_000).unwrap();
                flipped += 1;
            }
        }
    }
    assert!(flipped > 0);
}

/// Requests bodies, and asserts that each is the right one.
fn get_all(proxy: &Proxy, lengths: &[usize]) {
    let mut client = Client::to(proxy.address());
    for length in lengths {
        let answer = client.get(&path(*length));
        assert_eq!(answer.status(), 200);
        assert!(answer.body == body(*length), "the body of {length} bytes is right");
    }
}

#[test]
fn first_hit_after_a_restart_finds_damage() {
    let rig = restarted(&LENGTHS, "cache.scrub = 0", damage);
    get_all(&rig.proxy, &LENGTHS);
    let count = LENGTHS.len();
    assert_eq!((rig.origin.asked(), stats(&rig.proxy).corrupt), (2 * count, count as u64));
    let text = rig.proxy.take_damage().unwrap();
    assert!(text.contains("its body is damaged; the record is dropped"), "{text}");
    // The new ones are hits.
    rig.wait_stored(count as u64);
    get_all(&rig.proxy, &LENGTHS);
    assert_eq!(rig.origin.asked(), 2 * count);
}

#[test]
fn part_of_a_damaged_body_is_fetched_again() {
    let rig = restarted(&LENGTHS[1..2], "cache.scrub = 0", damage);
    let mut client = rig.client();
    client.send(format!(
        "GET {} HTTP/1.1\r\nHost: www.example\r\nRange: bytes=98000-99999\r\n\r\n",
        path(LENGTHS[1])
    ));
    let answer = client.answer().unwrap();
    let bytes = if answer.status() == 206 { &answer.body[..] } else { &answer.body[98_000..100_000] };
    assert!(*bytes == body(100_000)[98_000..]);
    assert_eq!((rig.origin.asked(), stats(&rig.proxy).corrupt), (2, 1));
}

#[test]
fn undamaged_bodies_are_hits_after_a_restart() {
    let rig = restarted(&LENGTHS, "cache.scrub = 0", |_| {});
    (0..2).for_each(|_| get_all(&rig.proxy, &LENGTHS));
    assert_eq!((rig.origin.asked(), stats(&rig.proxy).corrupt), (LENGTHS.len(), 0));
}

#[test]
fn many_requests_at_a_time_get_the_right_bytes() {
    let rig = restarted(&LENGTHS[2..], "cache.scrub = 0\nworkers = 2", damage);
    let proxy = &rig.proxy;
    std::thread::scope(|scope| {
        (0..16).for_each(|_| drop(scope.spawn(|| get_all(proxy, &LENGTHS[2..]))));
    });
    assert_eq!(stats(&rig.proxy).corrupt, 2);
}

#[test]
fn scrub_finds_damage_before_a_request() {
    let count = LENGTHS.len() as u64;
    let rig = restarted(&LENGTHS, "cache.scrub = \"1TiB\"\ncache.check_hits = \"off\"", damage);
    assert!(wait_until(LIMIT, || stats(&rig.proxy).corrupt == count));
    get_all(&rig.proxy, &LENGTHS);
    assert_eq!(rig.origin.asked() as u64, 2 * count);
}

#[test]
fn every_hit_is_checked_if_configured() {
    let rig = restarted(&LENGTHS, "cache.scrub = 0\ncache.check_hits = \"always\"", |_| {});
    get_all(&rig.proxy, &LENGTHS);
    assert_eq!(rig.origin.asked(), LENGTHS.len());
    damage(&rig.dir.path().join("cache"));
    get_all(&rig.proxy, &LENGTHS);
    assert_eq!((rig.origin.asked(), stats(&rig.proxy).corrupt), (2 * LENGTHS.len(), LENGTHS.len() as u64));
}

#[test]
fn damaged_very_long_body_is_cut_off() {
    let rig = restarted(&[LENGTH_LONG], "cache.scrub = 0", damage);
    let mut client = rig.client();
    client.send(format!("GET {} HTTP/1.1\r\nHost: www.example\r\n\r\n", path(LENGTH_LONG)));
    assert!(client.answer().is_none(), "its end was not sent");
    assert_eq!((rig.origin.asked(), stats(&rig.proxy).corrupt), (1, 1));
    let mut client = Client::to(rig.proxy.address());
    assert!(client.get(&path(LENGTH_LONG)).body == body(LENGTH_LONG));
    assert_eq!(rig.origin.asked(), 2);
}

#[test]
fn purge_during_a_very_long_response_leaves_it_whole_unless_it_is_damaged() {
    const BEGINNING: usize = 1 << 20;
    let toml = "cache.scrub = 0\naccess.purge = [\"127.0.0.1\"]";
    for (is_damaged, meanwhile) in [(false, (|_: &Path| {}) as fn(&Path)), (true, damage)] {
        let rig = restarted(&[LENGTH_LONG], toml, meanwhile);
        let mut client = rig.client();
        client.send(format!("GET {} HTTP/1.1\r\nHost: www.example\r\n\r\n", path(LENGTH_LONG)));
        assert_eq!(client.head().unwrap().status(), 200);
        // The rest does not fit in the buffers of the connection.
        let beginning = client.exactly(BEGINNING).unwrap();
        let mut operator = rig.client();
        operator.send(format!("PURGE {} HTTP/1.1\r\nHost: www.example\r\n\r\n", path(LENGTH_LONG)));
        assert_eq!(operator.answer().unwrap().status(), 200);
        rig.wait_stored(0);
        match client.exactly(LENGTH_LONG - BEGINNING) {
            Some(rest) => assert!(!is_damaged && [beginning, rest].concat() == body(LENGTH_LONG)),
            None => assert!(is_damaged, "an intact response is cut off"),
        }
    }
}
