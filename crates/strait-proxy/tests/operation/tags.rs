//! Purge by tag.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;

use lab::wait_until;
use strait_proxy::{Contents, Tag};

use crate::rig::{Client, LIMIT, Rig};

const ADMIN: &str = "admin.listen = \"127.0.0.1:0\"\n";

fn is_hit(rig: &Rig, path: &str) -> bool {
    rig.client().get(path).field("cache-status").unwrap().contains("; hit")
}

fn purge(rig: &Rig, tag: &str) -> serde_json::Value {
    rig.ask(&format!("POST /purge?tag={tag} HTTP/1.1\nHost: localhost")).json()
}

#[test]
fn responses_with_the_tag_are_removed_from_store_and_memory() {
    let paths = ["/200/60/5/tag.a", "/200/60/300000/tag.a", "/200/60/5/tag.b", "/200/60/5/x"];
    for memory in ["", "cache.dir = \"\"\n"] {
        let rig = Rig::start(&(ADMIN.to_owned() + memory));
        // Long bodies are in the store alone.
        let paths = if memory.is_empty() { &paths[..] } else { &[paths[0], paths[2], paths[3]] };
        let fill = || assert!(wait_until(LIMIT, || paths.iter().all(|path| is_hit(&rig, path))));
        for (tag, expected) in [("a", "tag.a"), ("b", "tag.b"), ("all", "tag."), ("c", "none"), ("A", "none")]
        {
            fill();
            let removed = purge(&rig, tag);
            let hits: Vec<_> = paths.iter().map(|path| is_hit(&rig, path)).collect();
            let left: Vec<_> = paths.iter().map(|path| !path.contains(expected)).collect();
            assert_eq!(hits, left, "{tag}: {removed}");
            let count = left.iter().filter(|is_left| !**is_left).count();
            let key = if memory.is_empty() { "stored" } else { "in_memory" };
            assert_eq!(removed[key], count, "{tag}: {removed}");
        }
    }
}

#[test]
fn fill_under_way_is_not_stored_after_a_purge_of_its_tag() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let rig = Rig::start(ADMIN);
    let mut config = rig.config(ADMIN);
    config.origin = Some(format!("http://{}", listener.local_addr().unwrap()));
    config.cache.dir = Some(rig.dir.path().join("other"));
    let proxy = strait_proxy::Proxy::start(&config, strait_proxy::Clock::system()).unwrap();
    let answer = |tag: &str| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nCache-Control: max-age=60\r\nxkey: {tag}\r\n\r\n"
        );
        (head, "body")
    };
    // Before its head, after its head with the tag, and after its head with another one.
    for (number, (tag, is_head_first, stays)) in
        [("a", false, false), ("a", true, false), ("b", true, true)].into_iter().enumerate()
    {
        let mut client = Client::to(proxy.address());
        let request = format!("GET /{number} HTTP/1.1\r\nHost: h\r\n\r\n");
        client.send(&request);
        let (stream, _) = listener.accept().unwrap();
        BufReader::new(&stream).lines().map(Result::unwrap).find(String::is_empty).unwrap();
        let (head, body) = answer(tag);
        if is_head_first {
            (&stream).write_all(head.as_bytes()).unwrap();
            assert_eq!(client.head().unwrap().status(), 200);
        }
        let mut admin = Client::to(proxy.admin().unwrap());
        admin.send("POST /purge?tag=a HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_eq!(admin.answer().unwrap().status(), 200);
        let rest = if is_head_first { body.to_owned() } else { head + body };
        (&stream).write_all(rest.as_bytes()).unwrap();
        if is_head_first {
            assert_eq!(client.exactly(4).unwrap(), b"body");
        } else {
            assert_eq!(client.answer().unwrap().text(), "body");
        }
        assert!(wait_until(LIMIT, || proxy.report().fills == 0));
        let mut cached = Client::to(proxy.address());
        cached.send(request.replace("\r\n\r\n", "\r\nCache-Control: only-if-cached\r\n\r\n"));
        assert_eq!(cached.answer().unwrap().status(), if stays { 200 } else { 504 }, "{number}");
    }
}

#[test]
fn fill_without_a_store_is_not_kept_after_a_purge_of_its_tag() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let rig = Rig::start(ADMIN);
    let mut config = rig.config(&format!("{ADMIN}cache.dir = \"\"\n"));
    config.origin = Some(format!("http://{}", listener.local_addr().unwrap()));
    let proxy = strait_proxy::Proxy::start(&config, strait_proxy::Clock::system()).unwrap();
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nCache-Control: max-age=60\r\nConnection: close\r\nxkey: a\r\n\r\n";
    for (path, is_purged) in [("/kept", false), ("/purged", true)] {
        let mut client = Client::to(proxy.address());
        let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
        client.send(&request);
        let (stream, _) = listener.accept().unwrap();
        BufReader::new(&stream).lines().map(Result::unwrap).find(String::is_empty).unwrap();
        (&stream).write_all(format!("{head}4\r\nbody\r\n").as_bytes()).unwrap();
        assert_eq!(client.head().unwrap().status(), 200);
        // A body of unknown length goes to this client alone, and its fill is not listed.
        if is_purged {
            let mut admin = Client::to(proxy.admin().unwrap());
            admin.send("POST /purge?tag=a HTTP/1.1\r\nHost: localhost\r\n\r\n");
            assert_eq!(admin.answer().unwrap().status(), 200);
        }
        (&stream).write_all(b"0\r\n\r\n").unwrap();
        assert_eq!(client.exactly(14).unwrap(), b"4\r\nbody\r\n0\r\n\r\n");
        let status = || {
            let mut cached = Client::to(proxy.address());
            cached.send(request.replace("\r\n\r\n", "\r\nCache-Control: only-if-cached\r\n\r\n"));
            cached.head().unwrap().status()
        };
        if is_purged {
            assert!((0..50).all(|_| status() == 504));
        } else {
            assert!(wait_until(LIMIT, || status() == 200));
        }
    }
}

#[test]
fn tag_is_purged_in_the_directory_of_a_stopped_proxy() {
    let rig = Rig::start("");
    for name in ["tag.a", "tag.b", "x"] {
        rig.client().get(&format!("/200/60/5/{name}"));
    }
    rig.wait_stored(3);
    let Rig { proxy, dir, .. } = rig;
    proxy.stop();
    let contents = Contents::open(&dir.path().join("cache")).unwrap();
    let purge = |tag: &str| contents.purge_tag(&Tag::new(tag).unwrap());
    assert_eq!((purge("a"), purge("a"), purge("none"), purge("all")), (1, 0, 0, 1));
    assert_eq!(contents.stats().records, 1);
    contents.close();
}

#[test]
fn purge_with_tags_removes_their_responses_if_the_client_may() {
    let paths = ["/200/60/5/tag.a", "/200/60/5/tag.b", "/200/60/5/x"];
    let send = |rig: &Rig, fields: &str| {
        let mut client = rig.client();
        client.send(format!("PURGE /200/60/5/x HTTP/1.1\r\nHost: www.example\r\n{fields}\r\n"));
        client.answer().unwrap().status()
    };
    let rig = Rig::start("access.purge = [\"127.0.0.0/8\"]\n");
    for (fields, left) in [
        ("Surrogate-Key: a\r\n", [false, true, true]),
        ("Cache-Tag: none, b\r\n", [true, false, true]),
        ("xkey: b a\r\n", [false, false, true]),
        ("", [true, true, false]),
    ] {
        assert!(wait_until(LIMIT, || paths.iter().all(|path| is_hit(&rig, path))));
        assert_eq!((send(&rig, fields), send(&rig, fields)), (200, 404), "{fields}");
        assert_eq!(paths.map(|path| is_hit(&rig, path)), left, "{fields}");
    }
    assert_eq!(send(&rig, "xkey: \u{e9}\r\n"), 400);
    // A field without tags does not mean the URI.
    assert!(wait_until(LIMIT, || is_hit(&rig, paths[2])));
    for fields in ["Surrogate-Key: ,\r\n", "xkey:\r\n", "xkey: a\r\nCache-Tag: \r\n"] {
        assert!(send(&rig, fields) == 400 && is_hit(&rig, paths[2]), "{fields}");
    }
    let rig = Rig::start("");
    assert!(wait_until(LIMIT, || is_hit(&rig, paths[0])));
    assert!(send(&rig, "xkey: a\r\n") == 403 && is_hit(&rig, paths[0]));
}

#[test]
fn wrong_tags_are_refused() {
    let rig = Rig::start(ADMIN);
    for tag in ["", "a%20b", "a,b", "%C3%A9"] {
        let answer = rig.ask(&format!("POST /purge?tag={tag} HTTP/1.1\nHost: localhost"));
        assert_eq!(answer.status(), 400, "{tag}");
        assert!(answer.text().contains("a tag consists of"), "{}", answer.text());
    }
}
