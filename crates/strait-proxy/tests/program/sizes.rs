//! Bodies of 0 and 1 byte, of more than 2^32 bytes, and of unknown length.

use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use lab::{skip, wait_until};
use rustix::fs::{sendfile, statvfs};

use crate::body::Body;
use crate::client::{Client, await_hit_of, get};
use crate::framing::{Framed, Framing, origin_of_framings};
use crate::origin::Origin;
use crate::rig::{LIMIT, Proxy, Setup};

#[test]
fn bodies_of_no_bytes_and_of_one_in_every_framing() {
    let origin = origin_of_framings();
    let proxy = Setup::for_origin(origin.address).start();
    let mut client = Client::connect(proxy.address).unwrap();
    for len in [0, 1, 2, 1000] {
        for framing in Framing::ALL {
            for is_stored in [false, true] {
                let framed = Framed::whole(Body::new(7, len), framing, is_stored);
                framed.body.assert_whole(&client.fetch(&framed.target(), "").unwrap().body);
                if is_stored {
                    await_hit_of(proxy.address, &framed.target(), &framed.body);
                }
            }
        }
    }
}

/// One byte more than 32 bits count.
const HUGE: u64 = (1 << 32) + 1;
/// Bytes that are not a hole: across 2^32, up to the end.
const TAIL: u64 = 100_000;
const MARK: Body = Body::new(3, TAIL);

/// Starts an origin with a sparse file of that length. `fields` say whether it may be stored.
fn huge(fields: &'static str) -> Origin {
    let file = tempfile::tempfile().unwrap();
    file.set_len(HUGE).unwrap();
    file.write_all_at(&MARK.bytes(0..TAIL), HUGE - TAIL).unwrap();
    let file = Arc::new(file);
    Origin::new(move |request, stream| {
        let (range, status) = match request.range() {
            Some((first, last)) => (
                first..last + 1,
                format!("206 Partial Content\r\nContent-Range: bytes {first}-{last}/{HUGE}"),
            ),
            None => (0..HUGE, "200 OK".to_owned()),
        };
        let len = range.end - range.start;
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\nETag: \"huge\"\r\n{fields}\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        let mut at = range.start;
        while at < range.end {
            let asked = (range.end - at).min(1 << 30) as usize;
            sendfile(&*stream, &*file, Some(&mut at), asked)?;
        }
        Ok(())
    })
}

/// Reads the whole body: zeros are discarded in the kernel (MSG_TRUNC, tcp(7)), the tail is
/// checked.
fn take_huge(proxy: &Proxy) -> bool {
    let mut client = Client::connect(proxy.address).unwrap();
    client.ask("GET", "/huge", "").unwrap();
    let head = client.head().unwrap();
    assert_eq!((head.status, head.len()), (200, Some(HUGE)));
    let mut left = HUGE - TAIL - client.drain();
    while left > 0 {
        let most = left.min(4 << 20) as usize;
        left -= client.discard(most).unwrap();
    }
    assert!(MARK.is(0, &client.exactly(TAIL).unwrap()), "the tail");
    head.is_hit()
}

#[test]
fn more_than_four_gigabytes_that_are_not_stored() {
    let origin = huge("Cache-Control: no-store");
    let proxy = Setup::for_origin(origin.address).start();
    assert!(!take_huge(&proxy));
    assert!(proxy.memory_peak() < 100 << 20, "{} bytes", proxy.memory_peak());
}

#[test]
fn more_than_four_gigabytes_that_are_stored() {
    let cache = tempfile::tempdir().unwrap();
    let disk = statvfs(cache.path()).unwrap();
    if disk.f_bavail * disk.f_frsize < 4 * HUGE {
        return skip("16 GB of disk are to be free");
    }
    let origin = huge("Cache-Control: max-age=3600");
    let setup =
        Setup::for_origin(origin.address).config("[cache]\nsync = 0\n").args(&["--cache-size", "20GiB"]);
    let proxy = setup.start_in(cache.path());
    let _ = take_huge(&proxy);
    assert!(wait_until(LIMIT, || take_huge(&proxy)));
    assert_eq!(origin.asked().len(), 1);
    assert!(proxy.memory_peak() < 100 << 20, "{} bytes", proxy.memory_peak());
}

#[test]
fn a_part_across_four_gigabytes_is_stored_alone() {
    let origin = huge("Cache-Control: max-age=3600");
    let proxy = Setup::for_origin(origin.address).start();
    let first = HUGE - TAIL;
    let ask = || get(proxy.address, "/huge", &format!("Range: bytes={first}-{}\r\n", HUGE - 1));
    for _ in 0..2 {
        let part = ask();
        assert_eq!(part.head.status, 206);
        MARK.assert_whole(&part.body);
    }
    assert!(wait_until(LIMIT, || ask().head.is_hit()));
    assert_eq!(origin.asked().len(), 1);
}
