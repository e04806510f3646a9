//! The low-water mark never holds back bytes, the end of a connection or an error.

use std::io::Write as _;
use std::os::fd::AsFd as _;

use super::*;

const LIMIT: Duration = Duration::from_secs(30);
/// Bytes of the body that are due when the mark is set.
const DUE: u64 = 1 << 20;

/// A connection with a mark of 64 KiB, and its peer.
fn with_mark() -> (Socket, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    peer.set_nodelay(true).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    accepted.set_nonblocking(true).unwrap();
    let mut socket = Socket::new(TcpStream::from_std(accepted).unwrap(), LIMIT);
    let begin = tokio::time::Instant::now();
    let marks = (0..9).map(|read| socket.low_water.note(8192, DUE, || begin + Duration::from_micros(read)));
    assert_eq!(marks.last().flatten(), Some(64 << 10));
    assert!(socket.stream.set_low_water(64 << 10));
    (socket, peer)
}

/// Receives by splice(2) or by recv(2); returns the number of bytes.
async fn receive(socket: &mut Socket, is_spliced: bool, due: u64) -> Result<usize, SocketError> {
    if is_spliced {
        socket.splice_to(&mut Pipe::new().unwrap(), due).await
    } else {
        socket.receive(64 << 10, due).await.map(|piece| piece.bytes().len())
    }
}

#[tokio::test]
async fn bytes_below_the_mark_are_received_while_the_peer_waits() {
    for is_spliced in [true, false] {
        let (mut socket, mut peer) = with_mark();
        let mut received = 0;
        for _ in 0..3 {
            peer.write_all(&[b'a'; 1000]).unwrap();
            let upto = received + 1000;
            while received < upto {
                let some = receive(&mut socket, is_spliced, DUE - received).await.unwrap();
                assert!(some > 0);
                received += some as u64;
            }
        }
    }
}

#[tokio::test]
async fn end_and_reset_of_the_peer_are_seen_below_the_mark() {
    for is_spliced in [true, false] {
        let (mut socket, mut peer) = with_mark();
        peer.write_all(&[b'a'; 1000]).unwrap();
        drop(peer);
        let mut received = 0;
        while received < 1000 {
            received += receive(&mut socket, is_spliced, DUE).await.unwrap();
        }
        assert_eq!(receive(&mut socket, is_spliced, DUE).await, Ok(0));

        let (mut socket, peer) = with_mark();
        rustix::net::sockopt::set_socket_linger(peer.as_fd(), Some(Duration::ZERO)).unwrap();
        drop(peer);
        assert_eq!(receive(&mut socket, is_spliced, DUE).await, Err(SocketError::Closed));
    }
}

#[tokio::test]
async fn idle_peer_times_out_below_the_mark() {
    let (mut socket, _peer) = with_mark();
    socket.idle_timeout = Duration::from_millis(20);
    assert_eq!(receive(&mut socket, true, DUE).await, Err(SocketError::TimedOut));
}

#[tokio::test]
async fn byte_after_the_body_is_seen_by_an_idle_connection() {
    for is_spliced in [true, false] {
        let (mut socket, mut peer) = with_mark();
        peer.write_all(&[b'a'; 1000]).unwrap();
        let mut due = 1000;
        while due > 0 {
            due -= receive(&mut socket, is_spliced, due).await.unwrap() as u64;
        }
        assert!(socket.stream.is_quiet());
        peer.write_all(b"H").unwrap();
        // The wake-up of a single byte: the mark is gone.
        assert_eq!(poll_fn(|context| socket.stream.poll_readable(context)).await.ok(), Some(()));
        assert!(!socket.stream.is_quiet());
    }
}

#[tokio::test]
async fn head_is_read_without_a_mark() {
    let (mut socket, mut peer) = with_mark();
    peer.write_all(b"HTTP/1.1").unwrap();
    let mut buffer = Buffer::default();
    assert_eq!(socket.read(&mut buffer).await, Ok(8));
    assert!(!socket.low_water.poll_late(&mut Context::from_waker(std::task::Waker::noop())));
}
