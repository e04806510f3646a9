//! Tests of the language against a relay that forwards every byte: scenarios that pass, and
//! scenarios that must fail.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::{Setup, Subject, lock, play};

/// Relay: forwards each connection to the origin on a separate one.
struct Relay {
    address: SocketAddr,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Subject for Relay {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn advance(&self, _: u64) {}

    fn stop(self: Box<Self>) {
        for stream in lock(&self.streams).iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn start(setup: &Setup<'_>) -> Result<Box<dyn Subject>, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    let (origin, streams) = (setup.origin, Arc::new(Mutex::new(Vec::new())));
    let all = streams.clone();
    if setup.config.contains("broken") {
        return Err("it is broken".into());
    }
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(origin) else { continue };
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                lock(&all).push(from.try_clone().unwrap());
                thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = from.read(&mut buffer) {
                        let _ = to.write_all(&buffer[..count]);
                    }
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    Ok(Box::new(Relay { address, streams }))
}

/// Plays a text; returns passed names and failure messages.
fn played(text: &str) -> (Vec<String>, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.scenario");
    std::fs::write(&file, text).unwrap();
    play(&file, 2, &start).unwrap()
}

#[test]
fn correct_scenarios_pass() {
    let (held, failed) = played(include_str!("tests/holds.scenario"));
    assert_eq!(failed, Vec::<String>::new());
    assert_eq!(held.len(), 5);
}

#[test]
fn wrong_scenarios_fail_with_their_line() {
    let begin = "scenario a\n  a sends GET /x\n  o gets GET /x\n  o sends 200\n    A: b\n    = hello\n";
    for (end, line, message) in [
        ("  a gets 404\n", 7, "got HTTP/1.1 200 Said"),
        ("  a gets 200\n    A: c\n", 7, "A is b"),
        ("  a gets 200\n    A: ^ b\n", 7, "A is b"),
        ("  a gets 200\n    B: ?\n", 7, "B is missing"),
        ("  a gets 200\n    !A\n", 7, "A is present: b"),
        ("  a gets 200\n    = hellO\n", 7, "differs from byte 4"),
        ("  a gets 200\n    =\n", 7, "differs from byte 0"),
        ("  a gets 200\n    & 0-4/5 = hello\n", 7, "a Content-Type without a boundary"),
        ("  a gets 200\n    + A: b\n", 7, "no trailer"),
        ("  a gets 200 cut\n", 7, "the body is complete"),
        ("  a gets data\n    = HTTP/1.0\n", 7, "other bytes arrived"),
        (
            "  o sends 200\n  a gets 200\n  a gets data\n    = HTTP/1\n",
            9,
            "at the end: more bytes arrived; unread by a Client",
        ),
        ("  a dances\n", 7, "unknown step"),
        ("  b gets 200\n", 7, "b has no connection"),
        ("  a gets 200\n  proxy dances\n", 8, "proxy has no connection"),
        ("  a gets 200\n  config\n    | broken\n  proxy restarts\n", 10, "it is broken"),
    ] {
        let (held, failed) = played(&format!("{begin}{end}"));
        assert!(held.is_empty() && failed.len() == 1, "{end}");
        let prefix = format!("a.scenario:{line}: a: ");
        assert!(failed[0].starts_with(&prefix) && failed[0].contains(message), "{end}: {failed:?}");
    }
}

#[test]
fn unparsable_file_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.scenario");
    assert!(play(&file, 1, &start).is_err());
    std::fs::write(&file, "scenario a\n b\n").unwrap();
    assert_eq!(play(&file, 1, &start).unwrap_err(), "a.scenario:2: indent lines by 0, 2 or 4 blanks");
}
