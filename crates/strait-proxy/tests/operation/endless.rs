//! Bodies of unknown length that exceed a quarter of the cache, or have no end.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use lab::wait_until;
use strait_proxy::{Clock, Config, Proxy, Stats};
use tempfile::TempDir;

use crate::rig::{Client, LIMIT, body, read_head};

/// Capacity of the cache.
const CAPACITY: u64 = 64 << 20;
/// Length of a stored object of known length, and number of these.
const OBJECT: usize = 100_000;
const OBJECTS: u64 = 60;
/// Bytes that sockets between origin, proxy and client may hold.
const IN_SOCKETS: u64 = 32 << 20;

/// Origin with bodies of any length for `/endless`, which end with their connection, and of
/// [`OBJECT`] bytes for other paths.
struct Origin {
    address: SocketAddr,
    /// Number of requests for `/endless`, and bytes that were sent in response.
    asked: Arc<AtomicUsize>,
    sent: Arc<AtomicU64>,
    /// Length of these bodies, and the number of bytes after which they pause.
    length: Arc<AtomicU64>,
    pause: Arc<AtomicU64>,
}

impl Origin {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let origin = Self {
            address: listener.local_addr().unwrap(),
            asked: Arc::default(),
            sent: Arc::default(),
            length: Arc::new(AtomicU64::new(u64::MAX)),
            pause: Arc::new(AtomicU64::new(u64::MAX)),
        };
        let (asked, sent) = (origin.asked.clone(), origin.sent.clone());
        let (length, pause) = (origin.length.clone(), origin.pause.clone());
        // The thread ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().filter_map(Result::ok) {
                let (asked, sent) = (asked.clone(), sent.clone());
                let (length, pause) = (length.clone(), pause.clone());
                thread::spawn(move || {
                    let mut reader = BufReader::new(&stream);
                    while let Some(head) = read_head(&mut reader) {
                        if head.starts_with("GET /endless") {
                            asked.fetch_add(1, Ordering::SeqCst);
                            send_endless(&stream, &sent, (&length, &pause));
                            return;
                        }
                        let head = format!(
                            "HTTP/1.1 200 OK\r\nCache-Control: max-age=1000\r\nContent-Length: {OBJECT}\r\n\r\n"
                        );
                        if (&stream).write_all(&[head.as_bytes(), &body(OBJECT)].concat()).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        origin
    }

    /// Waits until nothing is sent.
    fn wait_at_rest(&self) {
        let is_at_rest = || {
            let before = self.sent.load(Ordering::SeqCst);
            thread::sleep(Duration::from_millis(200));
            self.sent.load(Ordering::SeqCst) == before
        };
        assert!(wait_until(LIMIT, is_at_rest));
    }
}

/// Sends a body until its length is reached, with a pause.
fn send_endless(mut stream: &TcpStream, sent: &AtomicU64, (length, pause): (&AtomicU64, &AtomicU64)) {
    let head = "HTTP/1.1 200 OK\r\nCache-Control: max-age=1000\r\nConnection: close\r\n\r\n";
    // The first bytes come with the head.
    let mut at = PIECE as u64;
    let mut is_open = stream.write_all(&[head.as_bytes(), piece(0)].concat()).is_ok();
    sent.fetch_add(at, Ordering::SeqCst);
    while is_open && at < length.load(Ordering::SeqCst) {
        let _ = wait_until(LIMIT, || at < pause.load(Ordering::SeqCst));
        is_open = stream.write_all(piece(at)).is_ok();
        at += PIECE as u64;
        sent.fetch_add(PIECE as u64, Ordering::SeqCst);
    }
}

/// Length of the pieces in which bodies are sent and compared.
const PIECE: usize = 64 << 10;

/// Returns the piece of the body at `at`. Neighbours differ.
fn piece(at: u64) -> &'static [u8] {
    static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| body(2 * PIECE));
    let from = (at / PIECE as u64 * 977) as usize % PIECE;
    &PATTERN[from..from + PIECE]
}

fn start(workers: usize, capacity: u64) -> (Origin, TempDir, Proxy) {
    let (origin, dir) = (Origin::start(), tempfile::tempdir().unwrap());
    let toml = format!(
        "listen = [\"127.0.0.1:0\"]\nworkers = {workers}\norigin = \"http://{}\"\ntimeouts.drain = 1\n\
         [cache]\ndir = \"{}\"\nsize = {capacity}\n",
        origin.address,
        dir.path().join("cache").display()
    );
    let proxy = Proxy::start(&Config::from_toml(&toml).unwrap(), Clock::system()).unwrap();
    assert!(proxy.wait_loaded(LIMIT));
    (origin, dir, proxy)
}

/// Stores objects of known length.
fn store_objects(proxy: &Proxy) {
    let mut client = Client::to(proxy.address());
    for number in 0..OBJECTS {
        assert!(client.get(&format!("/{number}")).body == body(OBJECT));
    }
    assert!(wait_until(LIMIT, || store(proxy).records == OBJECTS), "{:?}", store(proxy));
}

fn store(proxy: &Proxy) -> Stats {
    proxy.report().store.unwrap()
}

/// Client that reads the endless body.
struct Reader {
    stream: BufReader<TcpStream>,
    at: u64,
}

impl Reader {
    /// Sends the request, by HTTP/1.0: the body comes without chunks.
    fn new(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        (&stream).write_all(b"GET /endless HTTP/1.0\r\nHost: www.example\r\n\r\n").unwrap();
        Self { stream: BufReader::new(stream), at: 0 }
    }

    fn head(&mut self) {
        let head = read_head(&mut self.stream).unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }

    /// Reads the body up to `upto`, and compares it.
    fn read(&mut self, upto: u64) {
        let mut bytes = vec![0; PIECE];
        while self.at < upto {
            self.stream.read_exact(&mut bytes).unwrap();
            assert!(bytes == piece(self.at), "{}", self.at);
            self.at += PIECE as u64;
        }
    }

    fn is_ended(&mut self) -> bool {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).is_ok() && rest.is_empty()
    }
}

#[test]
fn body_without_end_evicts_nothing_and_holds_no_space() {
    let (origin, _dir, proxy) = start(1, CAPACITY);
    store_objects(&proxy);
    let before = store(&proxy).used_bytes;
    let mut reader = Reader::new(&proxy);
    reader.head();
    reader.read(2 * CAPACITY);
    // Its space is free although the body goes on.
    let is_freed = || store(&proxy).used_bytes <= before + (1 << 20);
    assert!(wait_until(LIMIT, is_freed), "{before} {:?}", store(&proxy));
    assert_eq!((store(&proxy).records, store(&proxy).evicted), (OBJECTS, 0));
    let length = origin.sent.load(Ordering::SeqCst) + CAPACITY;
    origin.length.store(length, Ordering::SeqCst);
    reader.read(length);
    assert!(reader.is_ended());
    assert_eq!((origin.asked.load(Ordering::SeqCst), proxy.stop().cut), (1, 0));
}

#[test]
fn all_clients_of_a_body_that_is_too_long_get_all_of_it() {
    const LENGTH: u64 = 2 * CAPACITY + CAPACITY / 2;
    let (origin, _dir, proxy) = start(2, CAPACITY);
    store_objects(&proxy);
    origin.length.store(LENGTH, Ordering::SeqCst);
    // They follow one fill: the second one comes after the head of the response to the first one.
    let mut readers: Vec<_> = (0..3)
        .map(|_| {
            let mut reader = Reader::new(&proxy);
            reader.head();
            reader
        })
        .collect();
    assert_eq!(origin.asked.load(Ordering::SeqCst), 1);
    let mut slow = readers.pop().unwrap();
    let is_too_long = || store(&proxy).used_bytes > OBJECTS * OBJECT as u64 + CAPACITY / 4;
    thread::scope(|scope| {
        for reader in &mut readers {
            scope.spawn(|| {
                reader.read(LENGTH);
                assert!(reader.is_ended());
            });
        }
        assert!(wait_until(LIMIT, is_too_long), "{:?}", store(&proxy));
        // The others get no more than the slow one lets them.
        origin.wait_at_rest();
        while slow.at < LENGTH {
            slow.read(slow.at + PIECE as u64);
            let (sent, stats) = (origin.sent.load(Ordering::SeqCst), store(&proxy));
            assert!(sent <= slow.at + CAPACITY / 4 + IN_SOCKETS, "{sent} {}", slow.at);
            assert_eq!((stats.evicted, stats.records), (0, OBJECTS), "{} {stats:?}", slow.at);
        }
        assert!(slow.is_ended());
    });
    assert_eq!((origin.asked.load(Ordering::SeqCst), proxy.stop().cut), (1, 0));
}

#[test]
fn origin_goes_on_while_a_slow_client_reads() {
    const LIMIT_BYTES: u64 = 48 << 20;
    const SLOWLY_READ: u64 = 24 << 20;
    let (origin, _dir, proxy) = start(2, 4 * LIMIT_BYTES);
    // The slow client comes when much of the body is stored.
    origin.pause.store(LIMIT_BYTES - (4 << 20), Ordering::SeqCst);
    origin.length.store(3 * LIMIT_BYTES, Ordering::SeqCst);
    let mut fast = Reader::new(&proxy);
    fast.head();
    fast.read(LIMIT_BYTES - (4 << 20));
    let mut slow = Reader::new(&proxy);
    slow.head();
    origin.pause.store(u64::MAX, Ordering::SeqCst);
    thread::scope(|scope| {
        scope.spawn(|| fast.read(3 * LIMIT_BYTES));
        origin.wait_at_rest();
        let before = origin.sent.load(Ordering::SeqCst);
        assert!(before < 3 * LIMIT_BYTES);
        slow.read(SLOWLY_READ);
        assert!(wait_until(LIMIT, || origin.sent.load(Ordering::SeqCst) > before), "{before}");
        slow.read(3 * LIMIT_BYTES);
    });
    assert_eq!(origin.asked.load(Ordering::SeqCst), 1);
}
