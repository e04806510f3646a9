//! Responses that are not compressed.

use lab::wait_until;
use strait_proxy::Config;

use super::{ON, Page, Rig, lines_of, text};
use crate::rig::LIMIT;

#[test]
fn other_responses_are_not_compressed() {
    let of = |lines: &str, len: usize| Page::new(lines, lines_of("a", len));
    let fresh = "Cache-Control: max-age=600\r\n";
    let pages = [
        (of("Cache-Control: max-age=600, no-transform\r\n", 5000), None),
        (of("Cache-Control: max-age=600\r\nContent-Encoding: x-own\r\n", 5000), None),
        (of(fresh, 1023), None),
        (Page { status: 404, ..of(fresh, 5000) }, None),
        (Page { lines: format!("Content-Type: image/png\r\n{fresh}"), ..of(fresh, 5000) }, None),
        (Page { lines: fresh.to_owned(), ..of(fresh, 5000) }, None),
        (of("Cache-Control: no-store\r\n", 5000), None),
        (of(fresh, 1024), Some("Accept-Encoding")),
    ];
    for (page, vary) in pages {
        let body = page.body.clone();
        let rig = Rig::start(page, "", ON);
        for _ in 0..3 {
            let answer = rig.get("gzip");
            assert_eq!((answer.field("vary"), answer.body == body), (vary, true), "{}", answer.head);
            if vary.is_some() {
                rig.coded("gzip");
                let refused = rig.ask("GET", "\nAccept-Encoding: gzip\nCache-Control: no-transform");
                assert_eq!(refused.field("x-own"), None);
                assert!(refused.body == body, "{}", refused.head);
                break;
            }
        }
        let expected = u64::from(vary.is_some());
        assert_eq!(rig.metric("strait_proxy_compressed_total{coding=\"gzip\"}"), expected);
    }
}

#[test]
fn page_of_a_user_is_not_compressed() {
    for (name, more) in [("Cookie", ""), ("Authorization", ", public")] {
        let lines = format!("Cache-Control: max-age=600{more}\r\nVary: {name}\r\n");
        let rig = Rig::start(Page::new(&lines, text("a")), "", ON);
        for own in [String::new(), format!("\n{name}: a")] {
            for _ in 0..3 {
                let answer = rig.ask("GET", &format!("\nAccept-Encoding: gzip{own}"));
                assert_eq!((answer.field("content-encoding"), answer.text()), (None, text("a")));
                assert_eq!((answer.head.matches("Vary").count(), answer.field("vary")), (1, Some(name)));
            }
        }
        // Each value has a stored response, and none waits for the thread or has a form.
        assert_eq!((rig.asked(), rig.metric("strait_proxy_compress_waiting")), (2, 0));
        assert_eq!(rig.metric("strait_proxy_compressed_total{coding=\"gzip\"}"), 0);
    }
}

#[test]
fn response_stays_in_memory_that_has_no_space_for_its_forms() {
    // Digits of numbers: each coding halves them.
    let number = |at: u64| format!("{:016x}", at.wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes());
    let body: String = (1..1_500).map(number).collect();
    let top = "# without cache.dir\ncache.memory = \"32KiB\"\ncache.memory_object = \"32KiB\"";
    let rig = Rig::start(Page::new("Cache-Control: max-age=600\r\n", body.clone()), top, ON);
    let failed = || rig.metric("strait_proxy_compress_skipped_total{reason=\"failed\"}");
    let is_tried = || {
        assert_eq!(rig.get("gzip").text(), body);
        failed() == 1
    };
    assert!(wait_until(LIMIT, is_tried));
    for _ in 0..3 {
        let answer = rig.get("gzip");
        assert_eq!((answer.field("content-encoding"), answer.text()), (None, body.clone()));
    }
    assert_eq!((failed(), rig.metric("strait_proxy_compress_waiting"), rig.asked()), (1, 0, 1));
}

#[test]
fn body_that_does_not_become_shorter_is_tried_once() {
    // Hashes of numbers: no coding finds a pattern.
    let word = |at: u64| {
        at.wrapping_mul(0x9e37_79b9_7f4a_7c15).swap_bytes().wrapping_mul(0xff51_afd7_ed55_8ccd).to_le_bytes()
    };
    let body: Vec<u8> = (1..20_000).flat_map(word).collect();
    let mut rig = Rig::start(Page::new("Cache-Control: max-age=600\r\n", body.clone()), "", ON);
    let tried = |rig: &Rig| rig.metric("strait_proxy_compress_not_shorter_total{coding=\"gzip\"}");
    let is_tried = || {
        let answer = rig.get("gzip");
        assert!(answer.field("content-encoding").is_none() && answer.body == body);
        tried(&rig) == 1
    };
    assert!(wait_until(LIMIT, is_tried));
    rig.restart();
    for _ in 0..3 {
        assert!(rig.get("gzip").body == body);
    }
    assert_eq!((tried(&rig), rig.metric("strait_proxy_compress_waiting"), rig.asked()), (0, 0, 1));
}

#[test]
fn wrong_compression_is_named() {
    for (route, expected) in [
        ("pool = \"p\"\ncompress.codings = [\"deflate\"]", "site[1].route[1].compress.codings: \"deflate\""),
        ("pool = \"p\"\ncompress.level = \"most\"", "expected one of \"fast\", \"balanced\", \"best\""),
        ("pool = \"p\"\ncompress.min_byte = 3", "compress.min_byte: unknown key (did you mean min_bytes?)"),
        (
            "pool = \"p\"\ncompress = {}\nrequest_headers.remove = [\"Accept-Encoding\"]",
            "changes Accept-Encoding",
        ),
        ("pool = \"p\"\ncompress = {}\nresponse_headers.remove = [\"Vary\"]", "removes or sets vary"),
        ("respond = {}\ncompress = {}", "only responses of a pool"),
    ] {
        let toml = format!("pool.p.servers = [\"127.0.0.1:1\"]\n[[site]]\n[[site.route]]\n{route}");
        let error = Config::from_toml(&toml).and_then(|config| config.check()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
