//! Known defects of other proxies that splice: bytes left in a pipe when the sender closes, a
//! corrupted start of chunked bodies, lost tails, and incomplete bodies treated as complete. Bodies
//! here are longer than a pipe.
//!
//! `fills` tests two further defects: followers that wait for the end or fetch again, and whole
//! bodies in place of a range.

use std::io::{self, Write as _};

use rustix::net::sockopt::set_socket_recv_buffer_size;

use crate::body::Body;
use crate::client::{Client, Response, get};
use crate::framing::{Framed, Framing, origin_of_framings};
use crate::origin::{Origin, send_bytes, send_head};
use crate::rig::{Proxy, Setup};

/// Length of several pipes, and not a multiple of the page size.
const LONG: u64 = 3_000_017;

/// Receive buffer of a slow client. Smaller than a pipe, so that bytes stay in the pipe. Larger
/// than a loopback packet, because with a smaller buffer the kernel delays sending.
const WINDOW: usize = 100_000;

/// Requests a body and reads it through a small window, so that its bytes stay in the proxy for a
/// long time.
fn fetch_slowly(proxy: &Proxy, framed: &Framed, version: &str) -> io::Result<Vec<u8>> {
    let mut client = Client::connect(proxy.address)?;
    set_socket_recv_buffer_size(&client.stream, WINDOW)?;
    let target = framed.target();
    write!(client.stream, "GET {target} HTTP/{version}\r\nHost: a\r\n\r\n")?;
    let head = client.head()?;
    client.body(&head)
}

#[test]
fn pipe_is_drained_when_the_sender_closes() {
    let origin = origin_of_framings();
    let proxy = Setup::for_origin(origin.address).start();
    for (id, version) in [(1, "1.1"), (2, "1.0"), (3, "1.1"), (4, "1.0")] {
        for framing in [Framing::Close, Framing::Length] {
            for is_stored in [false, true] {
                let framed = Framed::whole(Body::new(id, LONG + id), framing, is_stored);
                framed.body.assert_whole(&fetch_slowly(&proxy, &framed, version).unwrap());
            }
        }
    }
}

#[test]
fn chunked_bodies_are_complete() {
    let origin = origin_of_framings();
    let proxy = Setup::for_origin(origin.address).start();
    for id in 0..8 {
        for is_stored in [false, true] {
            let framed = Framed::whole(Body::new(id, LONG), Framing::Chunks, is_stored);
            framed.body.assert_whole(&get(proxy.address, &framed.target(), "").body);
            framed.body.assert_whole(&fetch_slowly(&proxy, &framed, "1.0").unwrap());
        }
    }
}

#[test]
fn a_body_of_any_length_keeps_its_tail() {
    const PIPE: u64 = 256 << 10;
    let origin = origin_of_framings();
    let proxy = Setup::for_origin(origin.address).start();
    let mut client = Client::connect(proxy.address).unwrap();
    for len in [PIPE - 1, PIPE, PIPE + 1, 2 * PIPE + 1, 4 * PIPE - 1, 8 * PIPE + 4095] {
        for framing in Framing::ALL {
            for is_stored in [false, true] {
                let framed = Framed::whole(Body::new(len, len), framing, is_stored);
                // On one connection a byte too many or too few would damage the next response.
                framed.body.assert_whole(&client.fetch(&framed.target(), "").unwrap().body);
            }
        }
    }
}

#[test]
fn body_that_outgrows_the_store_during_its_fill_keeps_every_byte() {
    let origin = origin_of_framings();
    for object_max in [100, 20_000, 66_000, 500_000] {
        let limit = format!("[cache]\nobject = {object_max}\n");
        let proxy = Setup::for_origin(origin.address).config(&limit).start();
        for id in 0..8 {
            for framing in Framing::ALL {
                let framed = Framed::whole(Body::new(id, 1_700_003), framing, true);
                framed.body.assert_whole(&get(proxy.address, &framed.target(), "").body);
            }
        }
    }
}

#[test]
fn truncated_bodies_are_reported_and_never_stored_as_complete() {
    let origin = origin_of_framings();
    let proxy = Setup::for_origin(origin.address).start();
    for (id, framing) in [Framing::Length, Framing::Chunks].into_iter().enumerate() {
        for is_stored in [false, true] {
            let whole = Framed::whole(Body::new(id as u64, LONG), framing, is_stored);
            let cut = Framed { cut: Some(LONG - 70_000), ..whole };
            for _ in 0..2 {
                let mut client = Client::connect(proxy.address).unwrap();
                let result = client.fetch(&cut.target(), "").map(|response| response.body.len());
                assert!(result.is_err(), "{cut:?} was accepted as complete: {result:?}");
            }
            whole.body.assert_whole(&get(proxy.address, &whole.target(), "").body);
        }
    }
    assert_eq!(origin.asked().len(), 2 * 2 * 3, "no interrupted response answers the next request");
}

#[test]
fn an_abandoned_fill_continues_and_becomes_complete() {
    let body = Body::new(9, LONG);
    let origin = Origin::new(move |request, stream| {
        let range = send_head(request, stream, "Cache-Control: max-age=3600\r\n")?;
        if request.range().is_some() {
            return send_bytes(&body, range, stream);
        }
        send_bytes(&body, 0..LONG / 2, stream)?;
        Err(io::ErrorKind::ConnectionAborted.into())
    });
    let proxy = Setup::for_origin(origin.address).start();
    let mut client = Client::connect(proxy.address).unwrap();
    assert!(client.fetch(&body.target(), "").is_err());
    let Response { head, body: bytes } = get(proxy.address, &body.target(), "");
    assert_eq!(head.status, 200);
    body.assert_whole(&bytes);
    let asked = origin.asked();
    assert_eq!(asked.len(), 2);
    assert!(asked[1].range().is_some_and(|(first, last)| first > 0 && last == LONG - 1), "{asked:?}");
}
