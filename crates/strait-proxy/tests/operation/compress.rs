//! Compression of stored responses.

mod left_out;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use lab::wait_until;
use strait_proxy::{Clock, Config, Proxy};
use tempfile::TempDir;

use crate::rig::{Answer, Client, LIMIT};

/// Lines that every coding makes shorter, of `len` bytes.
fn lines_of(seed: &str, len: usize) -> Vec<u8> {
    (0..).flat_map(|line| format!("{seed} {line}\n").into_bytes()).take(len).collect()
}

/// Body that is longer than the ones in memory.
fn text(seed: &str) -> String {
    String::from_utf8(lines_of(seed, 100_000)).unwrap()
}

/// Response of the origin to all requests.
#[derive(Clone)]
struct Page {
    status: u16,
    /// Field lines; the tag is that of If-None-Match in a request that gets 304.
    lines: String,
    body: Vec<u8>,
}

impl Page {
    fn new(lines: &str, body: impl Into<Vec<u8>>) -> Self {
        let lines = format!("Content-Type: text/plain; charset=utf-8\r\n{lines}");
        Self { status: 200, lines, body: body.into() }
    }

    fn answer(&self, head: &str) -> Vec<u8> {
        let own = self.lines.lines().find_map(|line| line.strip_prefix("ETag: "));
        let has_it = own.is_some_and(|tag| head.contains(&format!("if-none-match: {tag}\r\n")));
        let (status, body) = if has_it { (304, &[][..]) } else { (self.status, &self.body[..]) };
        if self.lines.contains("chunked") {
            let head = format!("HTTP/1.1 {status} Said\r\n{}\r\n{:x}\r\n", self.lines, body.len());
            return [head.as_bytes(), body, b"\r\n0\r\n\r\n"].concat();
        }
        let length = if has_it { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let head = format!("HTTP/1.1 {status} Said\r\n{length}{}\r\n", self.lines);
        [head.as_bytes(), body].concat()
    }
}

struct Rig {
    proxy: Option<Proxy>,
    config: Config,
    clock: Clock,
    page: Arc<Mutex<Page>>,
    asked: Arc<AtomicUsize>,
    dir: TempDir,
}

impl Rig {
    /// Starts a proxy with further keys at the top of the file and of the route.
    fn start(page: Page, top: &str, route: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let origin = listener.local_addr().unwrap();
        let (page, asked) = (Arc::new(Mutex::new(page)), Arc::new(AtomicUsize::new(0)));
        serve(listener, page.clone(), asked.clone());
        let dir = tempfile::tempdir().unwrap();
        let config = config(origin, dir.path(), top, route);
        let clock = Clock::fixed(1_700_000_000);
        let proxy = Some(Proxy::start(&config, clock.clone()).unwrap());
        Self { proxy, config, clock, page, asked, dir }
    }

    fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().unwrap()
    }

    fn restart(&mut self) {
        drop(self.proxy.take());
        self.proxy = Some(Proxy::start(&self.config, self.clock.clone()).unwrap());
        assert!(self.proxy().wait_loaded(LIMIT));
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Sends a request with further field lines, each with a line feed before it.
    fn ask(&self, method: &str, lines: &str) -> Answer {
        let mut client = Client::to(self.proxy().address());
        client.send(
            format!("{method} /page HTTP/1.1\nHost: www.example\nConnection: close{lines}\n\n")
                .replace('\n', "\r\n"),
        );
        let mut answer = client.head().unwrap();
        let length = answer.field("content-length").map_or(0, |length| length.parse().unwrap());
        if method != "HEAD" {
            answer.body = client.exactly(length).unwrap();
        }
        answer
    }

    /// Gets the page, whose end is that of the connection or of its chunks.
    fn ask_to_end(&self, lines: &str) {
        let mut client = Client::to(self.proxy().address());
        client.send(format!("GET /page HTTP/1.0\nHost: www.example{lines}\n\n").replace('\n', "\r\n"));
        assert_eq!(client.head().unwrap().status(), 200);
        while client.exactly(1).is_some() {}
    }

    fn get(&self, accept: &str) -> Answer {
        self.ask("GET", &format!("\nAccept-Encoding: {accept}"))
    }

    fn admin(&self, line: &str) -> Answer {
        let mut client = Client::to(self.proxy().admin().unwrap());
        client.send(format!("{line} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        client.answer().unwrap()
    }

    /// Returns a sample of the metrics.
    fn metric(&self, name: &str) -> u64 {
        let text = self.admin("GET /metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse().unwrap()
    }

    /// Requests the page until it is coded.
    fn coded(&self, coding: &str) -> Answer {
        let mut last = None;
        let is_coded = || {
            let answer = self.get(coding);
            let is_coded = answer.field("content-encoding") == Some(coding);
            last = Some(answer);
            is_coded
        };
        assert!(wait_until(LIMIT, is_coded), "{coding}");
        last.unwrap()
    }
}

fn config(origin: SocketAddr, dir: &Path, top: &str, route: &str) -> Config {
    let store = if top.contains("cache.dir") {
        String::new()
    } else {
        format!("cache.dir = \"{}\"", dir.join("cache").display())
    };
    let toml = format!(
        "{top}\n{store}\nworkers = 2\nlisten = [\"127.0.0.1:0\"]\nadmin.listen = \"127.0.0.1:0\"\naccess.purge = [\"127.0.0.1\"]\n[pool.p]\nservers = [\"{origin}\"]\n[[site]]\n[[site.route]]\npool = \"p\"\n{route}\n"
    );
    Config::from_toml(&toml).unwrap()
}

fn serve(listener: TcpListener, page: Arc<Mutex<Page>>, asked: Arc<AtomicUsize>) {
    // The thread ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            let (page, asked) = (page.clone(), asked.clone());
            thread::spawn(move || {
                let mut reader = BufReader::new(&stream);
                loop {
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") {
                        if reader.read_line(&mut head).unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    asked.fetch_add(1, Ordering::SeqCst);
                    let head = head.replace("If-None-Match", "if-none-match");
                    let answer = page.lock().unwrap().answer(&head);
                    if (&stream).write_all(&answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

fn decoded(answer: &Answer) -> Vec<u8> {
    let (mut out, bytes) = (Vec::new(), &answer.body[..]);
    match answer.field("content-encoding") {
        Some("zstd") => out = zstd::decode_all(bytes).unwrap(),
        Some("br") => drop(brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out).unwrap()),
        Some("gzip") => drop(flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).unwrap()),
        other => panic!("{other:?}"),
    }
    out
}

const ON: &str = "compress = {}";

#[test]
fn each_coding_has_the_same_bytes_from_one_request_to_the_origin() {
    let body = text("a");
    let lines =
        "Cache-Control: max-age=600\r\nETag: \"a\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    let rig = Rig::start(Page::new(lines, body.clone()), "", ON);
    let first = rig.get("gzip, br, zstd");
    // It is not stored before it is sent, and no response waits for compression.
    assert_eq!((first.field("content-encoding"), first.text()), (None, body.clone()));
    assert_eq!(first.field("vary"), Some("Accept-Encoding"), "{}", first.head);
    for coding in ["zstd", "br", "gzip"] {
        let answer = rig.coded(coding);
        assert!(answer.body.len() < body.len() / 2 && decoded(&answer) == body.as_bytes(), "{coding}");
        assert_eq!(answer.field("etag"), Some(&*format!("W/\"a-strait-{coding}\"")));
        assert_eq!(answer.field("vary"), Some("Accept-Encoding"));
        assert_eq!(answer.head.matches("Vary").count(), 1);
        assert!(answer.field("cache-status").unwrap().contains("hit"));
        let head = rig.ask("HEAD", &format!("\nAccept-Encoding: {coding}"));
        assert_eq!(head.head, answer.head, "HEAD has the fields of GET");
        assert_eq!(rig.metric(&format!("strait_proxy_compressed_total{{coding=\"{coding}\"}}")), 1);
        let bytes = |name: &str| {
            rig.metric(&format!("strait_proxy_compress_{name}_bytes_total{{coding=\"{coding}\"}}"))
        };
        assert_eq!((bytes("in"), bytes("out")), (body.len() as u64, answer.body.len() as u64));
    }
    for (accept, expected) in [
        ("gzip, br, zstd", Some("zstd")),
        ("zstd;q=0.5, br", Some("br")),
        ("*;q=0.1, zstd;q=0, br;q=0", Some("gzip")),
        ("gzip;q=0.5, identity", None),
        ("deflate", None),
        ("gzip;q=2", None),
        ("", None),
    ] {
        let answer = rig.get(accept);
        assert_eq!(answer.field("content-encoding"), expected, "{accept}");
        assert_eq!(answer.field("vary"), Some("Accept-Encoding"));
        assert_eq!(if expected.is_some() { decoded(&answer) } else { answer.body }, body.as_bytes());
    }
    let plain = rig.ask("GET", "");
    assert_eq!((plain.field("content-encoding"), plain.field("etag")), (None, Some("\"a\"")));
    assert_eq!((plain.text(), rig.asked()), (body, 1));
    // One record has all forms.
    assert_eq!(rig.proxy().report().store.unwrap().records, 1);
}

#[test]
fn client_with_either_form_gets_304_and_ranges_are_of_the_original() {
    let body = text("a");
    let lines = "Cache-Control: max-age=600\r\nETag: \"a\"\r\nAccept-Ranges: bytes\r\n";
    let rig = Rig::start(Page::new(lines, body.clone()), "", ON);
    let coded = rig.coded("br");
    assert_eq!(coded.field("accept-ranges"), None, "{}", coded.head);
    for (accept, tag, expected) in [
        ("br", "\"a\"", (304, Some("\"a\""))),
        ("br", "\"a-strait-br\"", (304, Some("W/\"a-strait-br\""))),
        ("br", "W/\"a-strait-br\", \"b\"", (304, Some("W/\"a-strait-br\""))),
        ("identity", "\"a\"", (304, Some("\"a\""))),
        ("br", "\"a-strait-gzip\"", (200, Some("W/\"a-strait-br\""))),
        ("identity", "\"a-strait-br\"", (200, Some("\"a\""))),
        ("br", "\"b\"", (200, Some("W/\"a-strait-br\""))),
    ] {
        let answer = rig.ask("GET", &format!("\nAccept-Encoding: {accept}\nIf-None-Match: {tag}"));
        assert_eq!((answer.status(), answer.field("etag")), expected, "{accept} {tag}");
        assert_eq!(answer.field("vary"), Some("Accept-Encoding"));
    }
    for (condition, status) in [
        ("", 206),
        ("\nIf-Range: \"a\"", 206),
        ("\nIf-Range: \"a-strait-br\"", 200),
        ("\nIf-Range: W/\"a-strait-br\"", 200),
    ] {
        let answer = rig.ask("GET", &format!("\nAccept-Encoding: br\nRange: bytes=10-29{condition}"));
        let (first, end) = if status == 206 { (10, 30) } else { (0, body.len()) };
        assert_eq!((answer.status(), answer.field("content-encoding")), (status, None), "{condition}");
        assert_eq!((answer.field("etag"), answer.text()), (Some("\"a\""), body[first..end].to_owned()));
    }
    assert_eq!(rig.asked(), 1);
}

#[test]
fn weak_tag_stays_and_there_is_no_date() {
    let lines =
        "Cache-Control: max-age=600\r\nETag: W/\"a\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    let rig = Rig::start(Page::new(lines, text("a")), "", ON);
    let coded = rig.coded("gzip");
    assert_eq!((coded.field("etag"), coded.field("last-modified")), (Some("W/\"a\""), None));
    let again = rig.ask("GET", "\nAccept-Encoding: gzip\nIf-None-Match: W/\"a\"");
    assert_eq!((again.status(), rig.asked()), (304, 1));
    // The date of the response as received does not apply to a part of the form.
    let late = "\nAccept-Encoding: gzip\nRange: bytes=5-\nIf-Range: Sun, 06 Nov 1994 08:49:37 GMT";
    assert_eq!(rig.ask("GET", late).field("content-encoding"), None);
}

#[test]
fn purged_response_has_no_form() {
    let lines = "Cache-Control: max-age=600\r\nSurrogate-Key: red\r\n";
    for len in [3_000, 100_000, 3_000_000] {
        let body = |seed: &str| lines_of(seed, len);
        let rig = Rig::start(Page::new(lines, body("0")), "", "compress.level = \"fast\"");
        let purges: [&dyn Fn(&Rig) -> u16; 4] = [
            &|rig| rig.ask("PURGE", "").status(),
            &|rig| rig.ask("PURGE", "\nSurrogate-Key: red").status(),
            &|rig| rig.ask("PURGE", "\nSoft-Purge: 1").status(),
            &|rig| rig.admin("POST /ban?pattern=http://www.example/*").status(),
        ];
        for (number, purge) in purges.iter().enumerate() {
            let (old, new) = (body(&number.to_string()), body(&(number + 1).to_string()));
            assert!(decoded(&rig.coded("br")) == old, "{len} {number}");
            rig.page.lock().unwrap().body.clone_from(&new);
            assert_eq!((purge(&rig), rig.asked()), (200, number + 1), "{len} {number}");
            let answer = rig.get("br");
            assert_eq!((answer.field("content-encoding"), rig.asked()), (None, number + 2), "{len} {number}");
            assert!(answer.body == new);
            assert!(decoded(&rig.coded("br")) == new);
        }
    }
}

#[test]
fn validated_response_keeps_its_form_and_a_changed_one_gets_another() {
    let lines = |tag: &str| format!("Cache-Control: max-age=60\r\nETag: \"{tag}\"\r\nX-Tag: {tag}\r\n");
    for len in [3_000, 100_000] {
        let body = |seed: &str| lines_of(seed, len);
        let rig = Rig::start(Page::new(&lines("a"), body("a")), "", ON);
        let made = || rig.metric("strait_proxy_compressed_total{coding=\"zstd\"}");
        let first = rig.coded("zstd");
        for round in 1..=3 {
            rig.clock.advance(61);
            // The condition has the tag of the origin: it answers 304.
            let answer = rig.get("zstd");
            assert!(answer.field("cache-status").unwrap().contains("fwd-status=304"), "{}", answer.head);
            assert_eq!(
                (answer.field("etag"), answer.body == first.body),
                (Some("W/\"a-strait-zstd\""), true)
            );
            let hit = rig.get("zstd");
            assert!(hit.field("cache-status").unwrap().contains("; hit; ttl=60"), "{}", hit.head);
            assert_eq!((hit.body == first.body, rig.asked(), made()), (true, 1 + round, 1));
        }
        rig.clock.advance(61);
        *rig.page.lock().unwrap() = Page::new(&lines("b"), body("b"));
        let answer = rig.get("zstd");
        assert_eq!((answer.field("content-encoding"), answer.body == body("b")), (None, true));
        let coded = rig.coded("zstd");
        assert_eq!((coded.field("x-tag"), decoded(&coded) == body("b"), made()), (Some("b"), true, 2));
        assert_eq!(coded.field("etag"), Some("W/\"b-strait-zstd\""));
    }
}

#[test]
fn cookie_of_one_client_gets_into_no_form() {
    let lines = "Cache-Control: max-age=60\r\nETag: \"a\"\r\n";
    for len in [3_000, 100_000] {
        let rig = Rig::start(Page::new(lines, lines_of("a", len)), "", ON);
        assert_eq!(rig.ask("GET", "").status(), 200);
        rig.clock.advance(61);
        rig.page.lock().unwrap().lines += "Set-Cookie: a=b\r\n";
        let own = rig.get("br");
        assert!(own.field("cache-status").unwrap().contains("fwd-status=304"), "{}", own.head);
        assert_eq!(own.field("set-cookie"), Some("a=b"));
        let coded = rig.coded("br");
        assert_eq!((coded.field("set-cookie"), rig.asked()), (None, 2), "{}", coded.head);
        rig.clock.advance(61);
        let own = rig.get("br");
        assert_eq!((own.field("set-cookie"), own.field("content-encoding")), (Some("a=b"), Some("br")));
        assert_eq!((rig.get("br").field("set-cookie"), rig.asked()), (None, 3));
        // Fields that the first client alone may have.
        let private = "Cache-Control: max-age=60, private=\"X-Token\"\r\nX-Token: secret\r\n";
        *rig.page.lock().unwrap() = Page::new(private, lines_of("b", len));
        assert_eq!(rig.ask("PURGE", "").status(), 200);
        assert_eq!(rig.get("br").field("x-token"), Some("secret"));
        assert_eq!(rig.coded("br").field("x-token"), None);
    }
}

#[test]
fn date_of_the_response_as_received_gives_304() {
    let modified = "Sun, 06 Nov 1994 08:49:37 GMT";
    let lines = format!("Cache-Control: max-age=600\r\nLast-Modified: {modified}\r\n");
    let rig = Rig::start(Page::new(&lines, text("a")), "", ON);
    let coded = rig.coded("br");
    for (since, status, coding) in [(modified, 304, None), ("Sun, 06 Nov 1994 08:49:36 GMT", 200, Some("br"))]
    {
        let answer = rig.ask("GET", &format!("\nAccept-Encoding: br\nIf-Modified-Since: {since}"));
        assert_eq!((answer.status(), answer.field("content-encoding")), (status, coding), "{since}");
        assert!(status == 304 || answer.body == coded.body);
    }
    assert_eq!(rig.asked(), 1);
}

#[test]
fn condition_between_the_date_and_a_later_modification_gives_the_form() {
    let lines = "Cache-Control: max-age=600\r\nLast-Modified: Fri, 06 Nov 2093 08:49:37 GMT\r\n";
    let rig = Rig::start(Page::new(lines, text("a")), "", ON);
    let coded = rig.coded("br");
    let answer = rig.ask("GET", "\nAccept-Encoding: br\nIf-Modified-Since: Thu, 06 Nov 2092 08:49:37 GMT");
    assert_eq!((answer.status(), answer.body == coded.body), (200, true));
}

#[test]
fn variants_have_forms_of_their_own() {
    let lines = "Cache-Control: max-age=600\r\nVary: X-Kind\r\n";
    let rig = Rig::start(Page::new(lines, text("none")), "", ON);
    let kinds = ["a", "b"];
    let ask = |kind: &str| rig.ask("GET", &format!("\nAccept-Encoding: gzip\nX-Kind: {kind}"));
    for kind in kinds {
        rig.page.lock().unwrap().body = text(kind).into_bytes();
        assert_eq!(ask(kind).text(), text(kind));
    }
    for kind in kinds {
        assert!(wait_until(LIMIT, || ask(kind).field("content-encoding") == Some("gzip")), "{kind}");
        let answer = ask(kind);
        assert_eq!(decoded(&answer), text(kind).as_bytes());
        assert!(
            answer.head.contains("Vary: X-Kind\r\n") && answer.head.contains("Vary: Accept-Encoding\r\n")
        );
    }
    assert_eq!((rig.asked(), rig.ask("GET", "\nAccept-Encoding: gzip").text()), (2, text("b")));
}

#[test]
fn forms_survive_a_restart() {
    for len in [3_000, 100_000, 3_000_000] {
        let body = lines_of("a", len);
        let page = Page::new("Cache-Control: max-age=600\r\n", body.clone());
        let mut rig = Rig::start(page, "", "compress.level = \"fast\"");
        let first = rig.coded("zstd");
        rig.restart();
        let again = rig.get("zstd");
        assert_eq!(
            (again.field("content-encoding"), again.body == first.body),
            (Some("zstd"), true),
            "{len}"
        );
        assert!(decoded(&again) == body && rig.get("identity").body == body);
        assert_eq!((rig.asked(), rig.metric("strait_proxy_compressed_total{coding=\"zstd\"}")), (1, 0));
        // A coding is added, and the others stay.
        let part = rig.ask("GET", "\nRange: bytes=100-199");
        assert!(part.status() == 206 && part.body == body[100..200]);
        assert!(rig.dir.path().join("cache").is_dir());
    }
}

#[test]
fn response_of_unknown_length_gets_forms() {
    for len in [3_000, 100_000, 1_000_000] {
        let body = lines_of("a", len);
        let page = Page::new("Cache-Control: max-age=600\r\nTransfer-Encoding: chunked\r\n", body.clone());
        let mut rig = Rig::start(page, "", ON);
        let first = rig.ask("HEAD", "\nAccept-Encoding: br");
        assert_eq!(first.field("content-encoding"), None);
        rig.ask_to_end("\nAccept-Encoding: br");
        assert!(decoded(&rig.coded("br")) == body, "{len}");
        rig.restart();
        assert!(decoded(&rig.get("br")) == body && rig.get("identity").body == body, "{len}");
        assert_eq!(rig.asked(), 2);
    }
}

#[test]
fn damaged_form_is_fetched_again() {
    let body = lines_of("a", 100_000);
    let page = Page::new("Cache-Control: max-age=600\r\n", body.clone());
    let mut rig = Rig::start(page, "", ON);
    let coded = rig.coded("gzip");
    drop(rig.proxy.take());
    // Flips a byte within the form, which is found by its bytes.
    for entry in std::fs::read_dir(rig.dir.path().join("cache")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let places: Vec<_> = bytes
            .windows(coded.body.len())
            .enumerate()
            .filter(|(_, it)| *it == coded.body)
            .map(|(at, _)| at)
            .collect();
        for at in &places {
            bytes[at + coded.body.len() / 2] ^= 1;
        }
        if !places.is_empty() {
            std::fs::write(&path, bytes).unwrap();
        }
    }
    rig.restart();
    let answer = rig.get("gzip");
    assert_eq!((answer.field("content-encoding"), answer.body == body, rig.asked()), (None, true, 2));
    assert!(decoded(&rig.coded("gzip")) == body);
}

#[test]
fn further_coding_is_added_to_stored_forms() {
    let page = Page::new("Cache-Control: max-age=600\r\n", text("a"));
    let mut rig = Rig::start(page, "", "compress.codings = [\"br\"]");
    let first = rig.coded("br");
    rig.config.site[0].route[0].compress.as_mut().unwrap().codings = vec!["gzip".to_owned(), "br".to_owned()];
    rig.restart();
    let gzip = rig.coded("gzip");
    assert_eq!((decoded(&gzip), rig.get("br").body == first.body), (text("a").into_bytes(), true));
    assert_eq!((rig.get("br").field("content-encoding"), rig.asked()), (Some("br"), 1));
    assert_eq!(rig.metric("strait_proxy_compressed_total{coding=\"br\"}"), 0);
    // A coding that is no longer configured is not sent.
    rig.config.site[0].route[0].compress = None;
    rig.restart();
    let answer = rig.get("gzip, br");
    assert_eq!(
        (answer.field("content-encoding"), answer.field("vary"), answer.text()),
        (None, None, text("a"))
    );
}

#[test]
fn cache_in_memory_has_forms() {
    let lines = "Cache-Control: max-age=60\r\nETag: \"a\"\r\n";
    let text = |seed: &str| String::from_utf8(lines_of(seed, 20_000)).unwrap();
    let rig = Rig::start(Page::new(lines, text("a")), "# without cache.dir", ON);
    assert!(rig.proxy().report().store.is_none());
    let first = rig.coded("br");
    assert_eq!((decoded(&first), rig.get("identity").text()), (text("a").into_bytes(), text("a")));
    rig.clock.advance(61);
    let answer = rig.get("br");
    assert!(answer.field("cache-status").unwrap().contains("fwd-status=304") && answer.body == first.body);
    assert_eq!((rig.get("br").body == first.body, rig.asked()), (true, 2));
    assert_eq!(rig.metric("strait_proxy_compressed_total{coding=\"br\"}"), 1);
    rig.page.lock().unwrap().body = text("b").into_bytes();
    assert_eq!(rig.ask("PURGE", "").status(), 200);
    assert_eq!(rig.get("br").text(), text("b"));
    assert_eq!(decoded(&rig.coded("br")), text("b").as_bytes());
}
