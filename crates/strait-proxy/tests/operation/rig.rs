//! A proxy, an origin with responses described by their paths, and clients that send given bytes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use lab::wait_until;
use rustix::net::{self, AddressFamily, SocketType};
use strait_proxy::{Clock, Config, Proxy};
use tempfile::TempDir;

/// Timeout of a step on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Number of interim responses to a path with a name that begins with `early`, and bytes of each.
const INTERIM: (usize, usize) = (10, 20_000);

/// Origin. The path describes the response: `/200/60/1000/name` is status 200, fresh for 60 s, with
/// 1000 bytes. A name that begins with `vary` adds `Vary: X-Kind`, one with `address` `Vary:
/// X-Forwarded-For`, one with `cookie` a Set-Cookie, one with `tag.` the tags `all` and the rest of
/// the name, and one with `early` sends interim responses first. One with `plain` has no lifetime,
/// but an old Last-Modified, and one with `nocache` demands validation.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    asked: Arc<AtomicUsize>,
    /// Heads of the received requests.
    pub(crate) heads: Receiver<String>,
}

impl Origin {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, asked) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let (sender, heads) = channel();
        let count = asked.clone();
        // The thread ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming().filter_map(Result::ok) {
                let (count, sender) = (count.clone(), sender.clone());
                thread::spawn(move || {
                    let mut reader = BufReader::new(&stream);
                    while let Some(head) = read_head(&mut reader) {
                        count.fetch_add(1, Ordering::SeqCst);
                        let is_whole =
                            if head.contains("hunked") { skip_chunks(&mut reader).is_some() } else { true };
                        if !is_whole {
                            return;
                        }
                        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                        let _ = sender.send(head);
                        if (&stream).write_all(&answer(&path)).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, asked, heads }
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn answer(path: &str) -> Vec<u8> {
    let parts: Vec<_> = path.split('/').collect();
    let number = |index: usize| parts.get(index).and_then(|part| part.parse().ok()).unwrap_or(0_usize);
    let (status, fresh, len) = (number(1), number(2), number(3));
    let begins = |begin: &str| parts.last().is_some_and(|name| name.starts_with(begin));
    let control = match fresh {
        _ if begins("plain") => "Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT".to_owned(),
        _ if begins("nocache") => "Cache-Control: no-cache, max-age=0, must-revalidate".to_owned(),
        0 => "Cache-Control: no-store".to_owned(),
        fresh => format!("Cache-Control: max-age={fresh}"),
    };
    let vary = match () {
        () if begins("vary") => "Vary: X-Kind\r\n",
        () if begins("address") => "Vary: X-Forwarded-For\r\n",
        () => "",
    };
    let cookie = if begins("cookie") { "Set-Cookie: a=b\r\n" } else { "" };
    let tags = parts.last().and_then(|name| name.strip_prefix("tag."));
    let tags = tags.map(|tag| format!("Surrogate-Key: all {tag}\r\n")).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {status} Said\r\nContent-Length: {len}\r\n{control}\r\nContent-Type: text/x-test\r\n{vary}{cookie}{tags}\r\n"
    );
    let interim = if begins("early") { interim() } else { String::new() };
    [interim.as_bytes(), head.as_bytes(), &body(len)].concat()
}

fn interim() -> String {
    let (count, len) = INTERIM;
    format!("HTTP/1.1 103 Early Hints\r\nLink: </{}>\r\n\r\n", "x".repeat(len)).repeat(count)
}

/// Returns the bytes of a body.
pub(crate) fn body(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + (at >> 8)) as u8).collect()
}

/// Reads a chunked body of text to its end.
fn skip_chunks(reader: &mut impl std::io::BufRead) -> Option<()> {
    let mut line = String::new();
    while line != "0\r\n" {
        line.clear();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    }
    read_head(reader).map(drop)
}

/// Reads lines up to an empty one; `None` if the connection ends.
pub(crate) fn read_head(reader: &mut impl std::io::BufRead) -> Option<String> {
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        head.push_str(&line);
        if line == "\r\n" {
            return Some(head);
        }
    }
}

/// Response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (own, value) = line.split_once(": ")?;
            own.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Connection of a client.
pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) fn to(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).unwrap())
    }

    /// Connects from 127.0.0.`last`.
    pub(crate) fn from(last: u8, address: SocketAddr) -> Self {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        net::bind(&socket, &SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
        net::connect(&socket, &address).unwrap();
        Self::over(socket.into())
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Self(BufReader::new(stream))
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    /// Sends bytes; ignores an ended connection.
    pub(crate) fn try_send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.0.get_mut().write_all(bytes.as_ref());
    }

    pub(crate) fn get(&mut self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: www.example\r\n\r\n"));
        self.answer().unwrap()
    }

    /// Reads a response; `None` if the connection has ended.
    pub(crate) fn answer(&mut self) -> Option<Answer> {
        let mut answer = self.head()?;
        let length = answer.field("content-length").map_or(0, |length| length.parse().unwrap());
        answer.body = self.exactly(length)?;
        Some(answer)
    }

    /// Reads the head of a response; `None` if the connection has ended.
    pub(crate) fn head(&mut self) -> Option<Answer> {
        Some(Answer { head: read_head(&mut self.0)?, body: Vec::new() })
    }

    /// Reads `len` bytes; `None` if the connection ends before.
    pub(crate) fn exactly(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Returns true if the connection ends without another byte.
    pub(crate) fn is_ended(&mut self) -> bool {
        match self.0.fill_buf() {
            Ok(bytes) => bytes.is_empty(),
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Reverse proxy for an origin, with a store in a directory of its own; without one if the
/// configuration has `cache.dir = ""`.
pub(crate) struct Rig {
    pub(crate) proxy: Proxy,
    pub(crate) origin: Origin,
    pub(crate) dir: TempDir,
}

impl Rig {
    pub(crate) fn start(toml: &str) -> Self {
        let (origin, dir) = (Origin::start(), tempfile::tempdir().unwrap());
        let proxy = Proxy::start(&config(toml, &origin, dir.path()), Clock::system()).unwrap();
        Self { proxy, origin, dir }
    }

    /// Stops the proxy, calls `meanwhile` with the directory of its store, and starts another proxy
    /// on it.
    pub(crate) fn restart(self, toml: &str, meanwhile: impl FnOnce(&Path)) -> Self {
        let Self { proxy, origin, dir } = self;
        proxy.stop();
        meanwhile(&dir.path().join("cache"));
        let proxy = Proxy::start(&config(toml, &origin, dir.path()), Clock::system()).unwrap();
        assert!(proxy.wait_loaded(LIMIT));
        Self { proxy, origin, dir }
    }

    /// Parses a configuration for this rig.
    pub(crate) fn config(&self, toml: &str) -> Config {
        config(toml, &self.origin, self.dir.path())
    }

    pub(crate) fn client(&self) -> Client {
        Client::to(self.proxy.address())
    }

    /// Waits until the store has `records` records and no fill is in progress.
    pub(crate) fn wait_stored(&self, records: u64) {
        let is_stored = || {
            let report = self.proxy.report();
            report.fills == 0 && report.store.is_some_and(|store| store.records == records)
        };
        assert!(wait_until(LIMIT, is_stored), "{:?}", self.proxy.report());
    }

    /// Waits until the proxy has counted `requests` requests.
    pub(crate) fn wait_counted(&self, requests: u64) {
        assert!(wait_until(LIMIT, || self.proxy.report().requests == requests));
    }

    /// Sends a request to the admin address.
    pub(crate) fn ask(&self, request: &str) -> Answer {
        let mut client = Client::to(self.proxy.admin().unwrap());
        client.send(request.replace('\n', "\r\n") + "\r\n\r\n");
        client.answer().unwrap()
    }

    /// Sends a request to the proxy.
    pub(crate) fn ask_proxy(&self, request: &str) -> Answer {
        let mut client = self.client();
        client.send(request.replace('\n', "\r\n") + "\r\n\r\n");
        client.answer().unwrap()
    }

    /// Gets a path of the admin address.
    pub(crate) fn show(&self, path: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1\nHost: localhost"))
    }
}

fn config(toml: &str, origin: &Origin, dir: &Path) -> Config {
    let toml = toml.replace("$DIR", &dir.display().to_string());
    let mut config = Config::from_toml(&toml).unwrap();
    if config.listen == Config::default().listen {
        config.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    }
    config.workers = config.workers.max(1);
    config.origin = Some(format!("http://{}", origin.address));
    config.cache.dir = match config.cache.dir {
        Some(none) if none.as_os_str().is_empty() => None,
        _ => Some(dir.join("cache")),
    };
    config
}
