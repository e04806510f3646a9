//! Connections over the loopback, and peers that behave as they are told.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A connection: the sender's end and the peer's.
pub(crate) fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (sender, listener.accept().unwrap().0)
}

/// SendOptions a peer reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reads {
    /// Bytes at a time.
    pub(crate) chunk: usize,
    /// SendOptions long it waits before it begins, and after each so many chunks.
    pub(crate) pause: Duration,
    pub(crate) pause_each: usize,
    /// It resets the connection once it has read so much.
    pub(crate) resets_after: Option<usize>,
}

/// A peer that reads to the end, or until it resets; it returns what it got.
pub(crate) fn peer(mut stream: TcpStream, reads: Reads) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let (mut got, mut chunk) = (Vec::new(), vec![0; reads.chunk]);
        for turn in 0_usize.. {
            if turn.is_multiple_of(reads.pause_each) {
                std::thread::sleep(reads.pause);
            }
            match stream.read(&mut chunk) {
                Ok(0) | Err(_) => break,
                Ok(read) => got.extend_from_slice(&chunk[..read]),
            }
            if reads.resets_after.is_some_and(|bytes| got.len() >= bytes) {
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
                break;
            }
        }
        got
    })
}

/// Bytes that tell their place.
pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + (at >> 8) * 7 + seed * 131) as u8).collect()
}

/// A file of these bytes.
pub(crate) fn file_of(bytes: &[u8]) -> Arc<File> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Arc::new(file)
}
