//! Stored responses survive a kill, and the proxy a directory that disappears.

use std::collections::HashSet;
use std::path::Path;

use lab::wait_until;
use strait_store::format::journal::{BLOCK_BYTES, Block, Entry};

use crate::body::Body;
use crate::client::{Client, await_hit};
use crate::origin::Origin;
use crate::rig::{LIMIT, Setup};

/// Objects of 100 B to 300 KB: small ones are also in memory, medium ones in segments, large ones
/// are stored by splice.
fn objects(count: u64) -> Vec<Body> {
    (0..count).map(|id| Body::new(id, 100 + (id * id * 3331) % 299_900)).collect()
}

#[test]
fn three_hundred_objects_are_hits_after_a_kill() {
    let origin = Origin::of_bodies();
    let cache = tempfile::tempdir().unwrap();
    let objects = objects(300);
    let proxy = Setup::for_origin(origin.address).start_in(cache.path());
    let mut client = Client::connect(proxy.address).unwrap();
    for object in &objects {
        object.assert_whole(&client.fetch(&object.target(), "").unwrap().body);
    }
    for object in &objects {
        await_hit(proxy.address, object);
    }
    assert_eq!(origin.asked().len(), 300);
    proxy.kill();

    let proxy = Setup::for_origin(origin.address).start_in(cache.path());
    let mut client = Client::connect(proxy.address).unwrap();
    // The proxy serves while it loads its index; only-if-cached shows when it has.
    let is_loaded = |client: &mut Client, object: &Body| {
        client.fetch(&object.target(), "Cache-Control: only-if-cached\r\n").unwrap().head.status == 200
    };
    assert!(objects.iter().all(|object| wait_until(LIMIT, || is_loaded(&mut client, object))));
    let hits = objects.iter().filter(|object| {
        let response = client.fetch(&object.target(), "").unwrap();
        object.assert_whole(&response.body);
        response.head.is_hit()
    });
    assert_eq!(hits.count(), 300);
    assert_eq!(origin.asked().len(), 300);
    drop(client);
    let _ = proxy.terminate();
}

#[test]
fn proxy_serves_while_a_directory_is_gone_and_uses_it_again() {
    let origin = Origin::of_bodies();
    let cache = tempfile::tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| cache.path().join(name));
    let further = format!("[cache]\nfurther_dirs = [\"{}\"]\n", second.display());
    let proxy = Setup::for_origin(origin.address).config(&further).start_in(&first);
    let objects = objects(100);
    let mut client = Client::connect(proxy.address).unwrap();
    let mut fetch_all = || {
        for object in &objects {
            object.assert_whole(&client.fetch(&object.target(), "").unwrap().body);
        }
    };
    fetch_all();
    std::fs::rename(&second, cache.path().join("gone")).unwrap();
    proxy.await_stderr(&format!("the cache lost {}: ", second.display()));
    fetch_all();
    proxy.await_stderr(&format!("the cache uses {} again", second.display()));
    fetch_all();
    for object in &objects {
        await_hit(proxy.address, object);
    }
    assert!(std::fs::read_dir(&second).unwrap().count() > 0);
    // Objects of the other directory stayed hits.
    let asked = origin.asked().len();
    assert!((100..200).contains(&asked), "{asked} requests");
    let finished = proxy.terminate();
    assert_eq!(finished.stderr.matches("the cache lost").count(), 1, "{}", finished.stderr);
}

/// Number of objects in the journal of the store's index.
fn journaled(cache: &Path) -> usize {
    let bytes = std::fs::read(cache.join("index")).unwrap_or_default();
    let blocks = bytes.chunks_exact(BLOCK_BYTES).zip(0..);
    let blocks = blocks.filter_map(|(block, place)| Block::check(block, place));
    blocks.flat_map(|block| block.items::<Entry>().map(|entry| entry.sequence)).collect::<HashSet<_>>().len()
}

#[test]
fn synced_objects_are_hits_after_kills_and_an_unknown_one_is_fetched() {
    let origin = Origin::of_bodies();
    let cache = tempfile::tempdir().unwrap();
    let objects = objects(200);
    let start = || Setup::for_origin(origin.address).config("cache.sync = 1\n").start_in(cache.path());
    let proxy = start();
    let mut client = Client::connect(proxy.address).unwrap();
    for object in &objects {
        object.assert_whole(&client.fetch(&object.target(), "").unwrap().body);
    }
    for object in &objects {
        await_hit(proxy.address, object);
    }
    assert!(wait_until(LIMIT, || journaled(cache.path()) >= objects.len()));
    drop(client);
    proxy.kill();

    for round in 0..3 {
        let asked = origin.asked().len();
        let proxy = start();
        let mut client = Client::connect(proxy.address).unwrap();
        // Its index may still be loading.
        let unknown = Body::new(1000 + round, 500);
        let response = client.fetch(&unknown.target(), "").unwrap();
        unknown.assert_whole(&response.body);
        assert!(!response.head.is_hit());
        for object in &objects {
            // only-if-cached never asks the origin, even if this machine is too busy to load the
            // index in time.
            let is_hit = || {
                let response = client.fetch(&object.target(), "Cache-Control: only-if-cached\r\n").unwrap();
                response.head.is_hit() && {
                    object.assert_whole(&response.body);
                    true
                }
            };
            assert!(wait_until(LIMIT, is_hit), "{} is lost", object.target());
        }
        for object in &objects {
            assert!(client.fetch(&object.target(), "").unwrap().head.is_hit());
        }
        assert_eq!(origin.asked().len(), asked + 1);
        drop(client);
        // The last one at once, before its first sync.
        proxy.kill();
    }
}

#[test]
fn ten_thousand_synced_objects_are_hits_after_a_kill() {
    const OBJECTS: u64 = 10_000;
    let origin = Origin::of_bodies();
    let cache = tempfile::tempdir().unwrap();
    let start = || Setup::for_origin(origin.address).config("cache.sync = 1\n").start_in(cache.path());
    let object = |id: u64| Body::new(id, 100 + id % 900);
    let proxy = start();
    let mut client = Client::connect(proxy.address).unwrap();
    for id in 0..OBJECTS {
        object(id).assert_whole(&client.fetch(&object(id).target(), "").unwrap().body);
    }
    assert!(wait_until(LIMIT, || journaled(cache.path()) >= OBJECTS as usize));
    drop(client);
    proxy.kill();

    let proxy = start();
    let mut client = Client::connect(proxy.address).unwrap();
    // The newest and the oldest first, then objects in between.
    let order = (0..OBJECTS).map(|at| if at % 2 == 0 { at / 2 } else { OBJECTS - 1 - at / 2 });
    for id in order {
        // Without a fetch: even if this machine is too busy to load the journal in time.
        let is_hit = || {
            let response = client.fetch(&object(id).target(), "Cache-Control: only-if-cached\r\n").unwrap();
            response.head.is_hit() && {
                object(id).assert_whole(&response.body);
                true
            }
        };
        assert!(wait_until(LIMIT, is_hit), "{id} is lost");
    }
    assert_eq!(origin.asked().len(), OBJECTS as usize);
    let unknown = object(OBJECTS);
    assert!(!client.fetch(&unknown.target(), "").unwrap().head.is_hit());
    assert_eq!(origin.asked().len(), OBJECTS as usize + 1);
    drop(client);
    let _ = proxy.terminate();
}
