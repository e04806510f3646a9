//! Responses of many short parts, which clients store on purpose or origins prefer.

use std::io::Write as _;

use crate::body::Body;
use crate::client::{await_hit, get};
use crate::origin::{Origin, send_body};
use crate::rig::Setup;

const FRESH: &str = "Cache-Control: max-age=3600\r\n";
const OBJECT: Body = Body::new(7, 1_000_000);
/// Parts that a client stores: with the gaps between them more than the records of a key.
const PARTS: u64 = 60;
/// Longest part that an origin sends.
const LIMITED: u64 = 10_000;

#[test]
fn many_short_parts_do_not_keep_the_whole_out_of_the_cache() {
    let origin = Origin::new(|request, stream| send_body(request, stream, FRESH));
    let proxy = Setup::for_origin(origin.address).start();
    for part in 0..PARTS {
        let first = part * OBJECT.len / PARTS + 5;
        let response = get(proxy.address, &OBJECT.target(), &format!("Range: bytes={first}-{first}\r\n"));
        assert_eq!((response.head.status, response.body.len()), (206, 1));
    }
    let asked = origin.asked().len();
    OBJECT.assert_whole(&get(proxy.address, &OBJECT.target(), "").body);
    assert_eq!(origin.asked().len(), asked + 1, "the whole is requested");
    await_hit(proxy.address, &OBJECT);
    assert_eq!(origin.asked().len(), asked + 1);
}

#[test]
fn origin_that_limits_the_length_of_parts_is_asked_for_the_whole() {
    let origin = Origin::new(|request, stream| {
        let Some((first, last)) = request.range() else { return send_body(request, stream, FRESH) };
        let last = last.min(first + LIMITED - 1).min(OBJECT.len - 1);
        let (len, of) = (last - first + 1, OBJECT.len);
        write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\nETag: \"{}-{of}\"\r\n{FRESH}Content-Length: {len}\r\n\
             Content-Range: bytes {first}-{last}/{of}\r\n\r\n",
            OBJECT.id
        )?;
        crate::origin::send_bytes(&OBJECT, first..last + 1, stream)
    });
    let proxy = Setup::for_origin(origin.address).start();
    let part = get(proxy.address, &OBJECT.target(), "Range: bytes=0-0\r\n");
    assert_eq!((part.head.status, part.body.len()), (206, 1));
    for _ in 0..2 {
        OBJECT.assert_whole(&get(proxy.address, &OBJECT.target(), "").body);
    }
    assert!(origin.asked().len() <= 4, "{} requests", origin.asked().len());
    await_hit(proxy.address, &OBJECT);
}
