//! Objects that are evicted after they were found and before they are pinned.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use lab::wait_until;

use crate::{Clock, Config, Proxy};

/// Time limit of each wait.
const PATIENCE: Duration = Duration::from_secs(20);
/// Too large for memory, so that each response pins a file.
const BODY_BYTES: usize = 100_000;

/// Ends of keys for which the next pins fail, one each.
static GOING: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Returns true once for each pin of the key that is to fail.
pub(super) fn goes_now(key: &str) -> bool {
    let mut going = GOING.lock().unwrap_or_else(PoisonError::into_inner);
    let found = going.iter().position(|end| key.ends_with(end));
    found.map(|index| going.remove(index)).is_some()
}

/// Makes the next `times` pins of the object at `path` fail.
fn let_go(path: &str, times: usize) {
    GOING.lock().unwrap().extend(std::iter::repeat_n(path.to_owned(), times));
}

/// Reads lines up to an empty one; `None` at the end.
pub(in crate::cache) fn read_head(reader: &mut impl std::io::BufRead) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).ok().filter(|read| *read > 0)?;
    }
    Some(head)
}

/// Starts an origin that sends one response to every request.
fn start_origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // It ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            thread::spawn(move || {
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {BODY_BYTES}\r\nCache-Control: max-age=600\r\n\r\n"
                );
                let answer = [head.as_bytes(), &vec![7; BODY_BYTES]].concat();
                let mut reader = BufReader::new(&stream);
                while read_head(&mut reader).is_some() && (&stream).write_all(&answer).is_ok() {}
            });
        }
    });
    address
}

/// Requests an object; returns the status line and the length of the body.
fn get(client: &mut BufReader<TcpStream>, path: &str) -> Option<(String, usize)> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: www.example\r\n\r\n");
    client.get_mut().write_all(request.as_bytes()).ok()?;
    let head = read_head(client)?;
    let mut body = vec![0; BODY_BYTES];
    client.read_exact(&mut body).ok()?;
    let status = head.lines().next()?.to_owned();
    let is_right = body.iter().all(|byte| *byte == 7);
    Some((status, if is_right { body.len() } else { 0 }))
}

#[test]
fn object_evicted_before_its_pin_is_looked_up_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::from_toml("workers = 1").unwrap();
    config.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    config.origin = Some(format!("http://{}", start_origin()));
    config.cache.dir = Some(dir.path().join("cache"));
    let proxy = Proxy::start(&config, Clock::system()).unwrap();
    let stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut client = BufReader::new(stream);
    let path = "/what-goes";
    let whole = Some(("HTTP/1.1 200 OK".to_owned(), BODY_BYTES));
    assert_eq!(get(&mut client, path), whole);
    let is_stored = || proxy.report().store.is_some_and(|store| store.records == 1);
    assert!(wait_until(PATIENCE, is_stored), "{:?}", proxy.report());
    // Evicted from memory, from memory and the store, and again after that.
    for times in [0, 1, 2, 4] {
        let_go(path, times);
        assert_eq!(get(&mut client, path), whole, "{times}");
        assert_eq!(*GOING.lock().unwrap(), Vec::<String>::new());
    }
    // Evicted each time: it is fetched for this client alone.
    let_go(path, 100);
    assert_eq!(get(&mut client, path), whole);
    GOING.lock().unwrap().clear();
    assert_eq!(get(&mut client, path), whole);
    assert_eq!(proxy.report().cut, 0);
}
