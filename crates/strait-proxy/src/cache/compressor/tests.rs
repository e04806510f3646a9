//! Objects that are removed or replaced while they are compressed.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use bytesize::ByteSize;
use lab::wait_until;

use super::{JOBS_MAX, Skip};
use crate::cache::invalidation::Effect;
use crate::cache::object::tests::read_head;
use crate::{Clock, Config, Proxy};

/// Time limit of each wait.
const PATIENCE: Duration = Duration::from_mins(1);
const BODY_BYTES: usize = 20_000;
/// Length of the bodies of paths that begin with `/large`.
const LARGE_BYTES: usize = 15 << 20;

/// End of the keys whose compression waits, and number of those that wait.
static HELD: Mutex<Option<&str>> = Mutex::new(None);
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Waits before the end of a compression of a held key.
pub(super) fn wait_before_the_end_of(key: &str) {
    let is_held =
        || HELD.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|held| key.contains(held));
    WAITING.fetch_add(1, Ordering::SeqCst);
    let released = wait_until(PATIENCE, || !is_held());
    WAITING.fetch_sub(1, Ordering::SeqCst);
    assert!(released);
}

/// Starts an origin. All bytes of a body are the letter of the number of its request.
fn start_origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // It ends with the test's process.
    thread::spawn(move || {
        for (number, stream) in (0..).zip(listener.incoming().filter_map(Result::ok)) {
            let mut reader = BufReader::new(&stream);
            let Some(request) = read_head(&mut reader) else { continue };
            let len = if request.starts_with("GET /large") { LARGE_BYTES } else { BODY_BYTES };
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nContent-Type: text/plain\r\nCache-Control: max-age=600\r\nConnection: close\r\n\r\n"
            );
            let answer = [head.as_bytes(), &vec![b'a' + number; len]].concat();
            let _ = (&stream).write_all(&answer);
        }
    });
    address
}

/// Requests a path; returns Content-Encoding, and the body as the origin has sent it.
fn get(proxy: &Proxy, path: &str) -> (Option<String>, Vec<u8>) {
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: www.example\r\nAccept-Encoding: zstd\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let head = read_head(&mut reader).unwrap();
    let mut body = Vec::new();
    reader.read_to_end(&mut body).unwrap();
    let coding = head.lines().find_map(|line| line.strip_prefix("Content-Encoding: ")).map(str::to_owned);
    if coding.is_some() {
        body = zstd::decode_all(&body[..]).unwrap();
    }
    (coding, body)
}

fn start(dir: &tempfile::TempDir, has_store: bool, has_memory: bool) -> Proxy {
    let toml = format!(
        "workers = 1\nlisten = [\"127.0.0.1:0\"]\n[pool.p]\nservers = [\"{}\"]\n[[site]]\n[[site.route]]\npool = \"p\"\ncompress = {{}}",
        start_origin()
    );
    let mut config = Config::from_toml(&toml).unwrap();
    config.cache.memory = ByteSize::mib(if has_memory { 256 } else { 0 });
    config.cache.memory_object = ByteSize::mib(16);
    config.cache.dir = has_store.then(|| dir.path().join("cache"));
    Proxy::start(&config, Clock::system()).unwrap()
}

fn hold(key: Option<&'static str>) {
    *HELD.lock().unwrap() = key;
}

/// One test, because all compressions of the process are held at the same place.
#[test]
fn response_that_is_removed_while_it_is_compressed_has_no_form() {
    for (has_store, effect) in
        [(true, Effect::Remove), (true, Effect::Expire), (false, Effect::Remove), (false, Effect::Expire)]
    {
        let dir = tempfile::tempdir().unwrap();
        let proxy = start(&dir, has_store, true);
        let compressor = &proxy.shared.compressor;
        let whole = |number: u8| vec![b'a' + number; BODY_BYTES];
        hold(Some("held"));
        let is_running = || WAITING.load(Ordering::SeqCst) == 1;
        assert!(wait_until(PATIENCE, || get(&proxy, "/held") == (None, whole(0)) && is_running()));
        proxy.shared.purge("http://www.example/held#p", effect);
        // The next response is stored before the compression of the last one ends.
        for _ in 0..2 {
            assert_eq!(get(&proxy, "/held"), (None, whole(1)), "{has_store} {effect:?}");
        }
        hold(None);
        assert!(wait_until(PATIENCE, || compressor.skipped(Skip::Replaced) == 1));
        let is_coded = || {
            let (coding, body) = get(&proxy, "/held");
            assert_eq!(body, whole(1), "{has_store} {effect:?}");
            coding.is_some()
        };
        assert!(wait_until(PATIENCE, is_coded));
        assert_eq!(compressor.skipped(Skip::Failed), 0);
        proxy.stop();
    }
    queue_is_bounded();
    bytes_of_the_queue_are_bounded();
    hits_request_a_form_once();
}

fn queue_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let proxy = start(&dir, true, true);
    let compressor = &proxy.shared.compressor;
    hold(Some("many"));
    // One is being compressed before the others are requested, so that all of them wait.
    assert!(wait_until(PATIENCE, || get(&proxy, "/many").0.is_none() && WAITING.load(Ordering::SeqCst) == 1));
    let all: Vec<_> = (0..JOBS_MAX + 2).map(|number| format!("/many{number}")).collect();
    let request_all = || {
        for path in &all {
            let (coding, body) = get(&proxy, path);
            assert!(coding.is_none() && body.len() == BODY_BYTES);
        }
    };
    request_all();
    request_all();
    assert!(wait_until(PATIENCE, || compressor.waiting() == JOBS_MAX), "{}", compressor.waiting());
    assert_eq!(compressor.skipped(Skip::Full), 2);
    hold(None);
    // Those that were skipped are compressed after a later hit.
    assert!(wait_until(PATIENCE, || all.iter().all(|path| get(&proxy, path).0.is_some())));
    proxy.stop();
}

fn bytes_of_the_queue_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let proxy = start(&dir, false, true);
    let compressor = &proxy.shared.compressor;
    hold(Some("large"));
    let get_all = || (0..6).all(|number| get(&proxy, &format!("/large{number}")).0.is_none());
    // One is being compressed, four wait, and one has no space.
    let is_full = || compressor.waiting() == 4 && compressor.skipped(Skip::Full) >= 1;
    assert!(wait_until(PATIENCE, || get_all() && is_full()), "{}", compressor.waiting());
    hold(None);
    proxy.stop();
}

fn hits_request_a_form_once() {
    let dir = tempfile::tempdir().unwrap();
    // Each hit has an object of its own.
    let proxy = start(&dir, true, false);
    let compressor = &proxy.shared.compressor;
    hold(Some("once"));
    let is_running = || WAITING.load(Ordering::SeqCst) == 1;
    assert!(wait_until(PATIENCE, || get(&proxy, "/once").0.is_none() && is_running()));
    for _ in 0..5 {
        assert_eq!((get(&proxy, "/once").0, compressor.waiting()), (None, 0));
    }
    hold(None);
    assert!(wait_until(PATIENCE, || get(&proxy, "/once").0.is_some()));
    assert_eq!((compressor.skipped(Skip::Full), compressor.skipped(Skip::Replaced)), (0, 0));
    proxy.stop();
}
