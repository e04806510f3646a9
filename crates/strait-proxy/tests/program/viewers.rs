//! Many viewers of one film at a time, who seek while it is fetched, from an origin that interrupts
//! some parts: every byte is right, and the film is complete at the end.

use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::body::Body;
use crate::client::{Client, await_hit};
use crate::origin::{Gate, Origin, send_bytes, send_head, trickle};
use crate::rig::Setup;

const MIB: u64 = 1 << 20;
const FILM: Body = Body::new(9, 64 * MIB);
const VIEWERS: u64 = 6;
const SEEKS: u64 = 12;

/// Returns a number below `below`, from a sequence that the state determines.
fn next(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// Seeks to places of a sequence, and checks some or all of the bytes.
fn view(address: SocketAddr, gate: &Gate, mut state: u64) {
    for _ in 0..SEEKS {
        let first = next(&mut state, FILM.len);
        let len = [1, 100_000, 5 * MIB, FILM.len][next(&mut state, 4) as usize].min(FILM.len - first);
        let mut client = Client::connect(address).unwrap();
        client.ask("GET", &FILM.target(), &format!("Range: bytes={first}-{}\r\n", first + len - 1)).unwrap();
        // The whole film arrives by and by.
        gate.open_more(2 * MIB);
        let head = client.head().unwrap();
        assert_eq!((head.status, head.len()), (206, Some(len)));
        let is_left = next(&mut state, 3) == 0;
        let read = if is_left { len.min(200_000) } else { len };
        let bytes = client.exactly(read).unwrap_or_else(|error| panic!("{first}+{read}: {error}"));
        assert!(FILM.is(first, &bytes), "{first}+{read}");
    }
}

#[test]
fn viewers_who_seek_get_the_right_bytes() {
    let (gate, parts) = (Gate::default(), AtomicU64::new(0));
    let behind = gate.clone();
    let origin = Origin::new(move |request, stream| {
        let range = send_head(request, stream, "Cache-Control: max-age=3600\r\n")?;
        if request.field("range").is_none() {
            return trickle(&request.body(), range, &behind, stream);
        }
        // One part in four ends early.
        if parts.fetch_add(1, Ordering::SeqCst) % 4 == 0 {
            send_bytes(&request.body(), range.start..range.end.min(range.start + 3 * MIB), &mut *stream)?;
            return stream.shutdown(Shutdown::Both);
        }
        send_bytes(&request.body(), range, stream)
    });
    let proxy = Setup::for_origin(origin.address).start();
    let mut viewer = Client::connect(proxy.address).unwrap();
    viewer.ask("GET", &FILM.target(), "").unwrap();
    gate.open(MIB);
    assert_eq!(viewer.head().unwrap().len(), Some(FILM.len));
    thread::scope(|scope| {
        for number in 0..VIEWERS {
            let (address, gate) = (proxy.address, &gate);
            scope.spawn(move || view(address, gate, number));
        }
    });
    gate.open(FILM.len);
    FILM.assert_whole(&viewer.exactly(FILM.len).unwrap());
    await_hit(proxy.address, &FILM);
}
