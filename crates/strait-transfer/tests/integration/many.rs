//! A thousand connections on one engine with a limit of borrowed bytes below the bytes to send.

use std::io::{ErrorKind, Read as _};
use std::net::TcpStream;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use strait_sys::buffer::Frozen;
use strait_transfer::{Engine, Options, Plan, Progress, Segment, Sender, ZeroCopy};

use crate::rig::{PATIENCE, connection, pattern};

const CONNECTIONS: usize = 1000;
const BYTES: usize = 100_000;
const BORROWED_BYTES_MAX: usize = 1 << 20;

/// Reads all streams to their ends, in turn.
fn read_all(mut streams: Vec<TcpStream>) -> Vec<Vec<u8>> {
    let mut got = vec![Vec::new(); streams.len()];
    let (mut ended, mut chunk) = (vec![false; streams.len()], vec![0; 30_000]);
    for stream in &streams {
        stream.set_nonblocking(true).unwrap();
    }
    while ended.contains(&false) {
        for (number, stream) in streams.iter_mut().enumerate() {
            match stream.read(&mut chunk) {
                Ok(0) => ended[number] = true,
                Ok(read) => got[number].extend_from_slice(&chunk[..read]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    }
    got
}

#[test]
fn thousand_connections_share_the_limit_of_borrowed_bytes() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let options = Options {
        zero_copy: ZeroCopy::From(1),
        borrowed_bytes_max: BORROWED_BYTES_MAX,
        borrowed_max: 64,
        register: false,
        ..Options::default()
    };
    let mut engine = Engine::new(options).unwrap();
    let (mut senders, mut streams) = (Vec::new(), Vec::new());
    let bytes = pattern(BYTES, 9);
    let view = Frozen::copied(&bytes).unwrap();
    for _ in 0..CONNECTIONS {
        let (stream, far) = connection();
        let mut sender = Sender::new(stream).unwrap();
        sender.push(&mut engine, Plan::new().with(Segment::Shared(view.clone())));
        senders.push(sender);
        streams.push(far);
    }
    let reading = std::thread::spawn(move || read_all(streams));
    let mut open: Vec<_> = senders.iter_mut().collect();
    while !open.is_empty() {
        open.retain_mut(|sender| sender.advance(&mut engine).unwrap() != Progress::Idle);
        assert!(engine.borrowed_bytes() <= BORROWED_BYTES_MAX);
        engine.collect().unwrap();
    }
    let mut by_zero_copy = 0;
    for mut sender in senders {
        assert_eq!(sender.finish(&mut engine, PATIENCE).unwrap(), 0);
        let account = sender.account();
        assert_eq!(account.bytes(), BYTES as u64);
        by_zero_copy += account.zero_copy + account.zero_copy_copied;
    }
    assert_eq!(engine.borrowed_bytes(), 0);
    assert!(engine.no_zero_copy().is_some() || by_zero_copy > 0);
    assert!(reading.join().unwrap().iter().all(|got| *got == bytes));
    assert!(view.try_mut().is_ok());
}
