//! Soft purge: responses are stale, and not removed.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use lab::wait_until;
use strait_proxy::{Contents, Pattern, Tag};

use crate::pool_rig::{self, Mode, Server};
use crate::rig::{Client, LIMIT, Rig};

const TOML: &str = "admin.listen = \"127.0.0.1:0\"\naccess.purge = [\"127.0.0.1\"]\n";
const HOST: &str = "http://www.example";

fn is_hit(client: &mut Client, path: &str) -> bool {
    client.get(path).field("cache-status").unwrap().contains("; hit")
}

/// Fetches a path until it is a hit.
fn store(rig: &Rig, path: &str) {
    assert!(wait_until(LIMIT, || is_hit(&mut rig.client(), path)), "{path}");
}

#[test]
fn marked_response_is_fetched_again_and_the_new_one_is_fresh() {
    for memory in ["", "cache.dir = \"\"\n"] {
        let rig = Rig::start(&(TOML.to_owned() + memory));
        let purge = |query: &str| rig.ask(&format!("POST /purge?{query} HTTP/1.1\nHost: localhost"));
        let purge_by = |head: &str| rig.ask_proxy(&format!("PURGE {head}\nHost: www.example")).text();
        let path = "/200/60/5/tag.a";
        let key = if memory.is_empty() { "stored" } else { "in_memory" };
        for number in 0..4 {
            store(&rig, path);
            let asked = rig.origin.asked();
            match number {
                0 => assert_eq!(purge(&format!("uri={HOST}{path}&soft=1")).json()[key], 1),
                1 => assert_eq!(purge("tag=a&soft=1").json()[key], 1),
                2 => {
                    let marked = purge_by(&format!("{path} HTTP/1.1\nSoft-Purge: 1"));
                    assert_eq!(marked, "strait: marked as stale\n");
                }
                _ => {
                    let marked = purge_by("/ HTTP/1.1\nSoft-Purge: 1\nSurrogate-Key: all");
                    assert_eq!(marked, "strait: marked as stale\n");
                }
            }
            assert!(!is_hit(&mut rig.client(), path), "{number}");
            assert_eq!(rig.origin.asked(), asked + 1);
            assert!(wait_until(LIMIT, || is_hit(&mut rig.client(), path)), "{number}");
        }
        assert_eq!(purge("uri=http://www.example/&soft=0").status(), 400);
        assert!(purge_by("/ HTTP/1.1\nSoft-Purge: yes").contains("Soft-Purge: expected 1"));
    }
}

#[test]
fn marked_response_answers_where_stale_ones_may() {
    let dir = tempfile::tempdir().unwrap();
    for rest in ["", &format!("cache.dir = \"{}\"", dir.path().join("cache").display())] {
        let server = Server::start();
        let rig = pool_rig::Rig::start(&[(&server, "")], "", rest);
        let mut client = rig.client();
        for path in ["/stored", "/validated", "/x"] {
            assert_eq!(client.get(path).status(), 200);
        }
        assert!(wait_until(LIMIT, || is_hit(&mut client, "/stored") && is_hit(&mut client, "/validated")));
        let purge = |path: &str, soft: &str| {
            let purged = rig.change(&format!("/purge?uri={HOST}{path}{soft}"));
            assert_eq!(purged.status(), 200);
        };
        for path in ["/stored", "/validated"] {
            purge(path, "&soft=1");
        }
        // It answers at once, and one request validates it; the answer is later than the mark.
        rig.clock.advance(1);
        let asked = server.asked();
        assert!(is_hit(&mut client, "/validated"));
        assert!(wait_until(LIMIT, || server.asked() == asked + 1));
        // The origin is asked, and fails: the time in which the response may replace its error
        // begins at the purge.
        server.become_mode(Mode::Reset);
        rig.clock.advance(598);
        let stale = client.get("/stored");
        assert_eq!((stale.status(), stale.text().as_str()), (200, "ok"));
        assert!(server.asked() > asked + 1);
        rig.clock.advance(2);
        assert_eq!(client.get("/stored").status(), 502);
        purge("/stored", "");
        assert_eq!(client.get("/stored").status(), 502);
    }
}

#[test]
fn mark_outlives_a_restart_and_is_set_in_a_directory() {
    let paths = ["/200/600/5/one", "/200/600/300000/two", "/200/600/5/tag.a", "/200/600/5/left"];
    let rig = Rig::start(TOML);
    for path in paths {
        store(&rig, path);
    }
    rig.wait_stored(4);
    let marked = rig.ask(&format!("POST /purge?uri={HOST}{}&soft=1 HTTP/1.1\nHost: localhost", paths[0]));
    assert_eq!(marked.json()["stored"], 1);
    let mark = |dir: &Path| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let contents = Contents::open(dir).unwrap();
        let key = Pattern::of_uri(&format!("{HOST}{}", paths[1])).unwrap();
        assert_eq!((contents.expire(&key, now), contents.expire(&key, now)), (1, 0));
        assert_eq!(contents.expire_tag(&Tag::new("a").unwrap(), now), 1);
        let ttls: Vec<_> =
            paths.iter().map(|path| contents.get(&format!("{HOST}{path}"), now)[0].ttl).collect();
        assert!(ttls[..3].iter().all(|ttl| *ttl <= 0) && ttls[3] > 0, "{ttls:?}");
        contents.close();
    };
    let rig = rig.restart(TOML, mark);
    let asked = rig.origin.asked();
    let hits: Vec<_> = paths.iter().map(|path| is_hit(&mut rig.client(), path)).collect();
    assert_eq!((hits, rig.origin.asked()), (vec![false, false, false, true], asked + 3));
}
