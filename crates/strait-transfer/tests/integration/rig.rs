//! Connections over the loopback, and peers with configurable reads.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Time limit that no test reaches.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Returns a connection: the sender's end and the peer's.
pub(crate) fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (sender, listener.accept().unwrap().0)
}

/// Reads of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reads {
    /// Bytes of one read.
    pub(crate) chunk: usize,
    /// Pause before the first chunk and after every `pause_each` chunks.
    pub(crate) pause: Duration,
    pub(crate) pause_each: usize,
    /// Number of bytes after which it resets the connection.
    pub(crate) resets_after: Option<usize>,
}

/// Starts a peer that reads to the end, or until it resets the connection; it returns the bytes.
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

/// Returns bytes that depend on their position.
pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + (at >> 8) * 7 + seed * 131) as u8).collect()
}

/// Returns a file with these bytes.
pub(crate) fn file_of(bytes: &[u8]) -> Arc<File> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Arc::new(file)
}
