//! Seeks in a film that is being fetched: a range ahead of a running fill is requested on its own,
//! stored, and skipped by the fill.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown};
use std::sync::atomic::{AtomicUsize, Ordering};

use lab::wait_until;

use crate::body::Body;
use crate::cinema::{BEGINNING, Cinema, FILM, FRESH, MIB, assert_part, assert_waits, begin};
use crate::client::{Client, Response, await_hit, get};
use crate::origin::{Gate, Origin, send_body, send_body_behind, send_bytes, send_head, trickle};
use crate::rig::{LIMIT, Setup};

#[test]
fn seek_to_the_end_is_answered_while_the_fill_waits() {
    let mut cinema = Cinema::with_parts("");
    let part = cinema.seek(&format!("{}-", 16 * MIB));
    assert_part(&part, 16 * MIB, 8 * MIB);
    assert_eq!(
        part.head.field("cache-status").map(|it| it.contains("; fwd=partial; fwd-status=206; stored")),
        Some(true)
    );
    assert_eq!(
        cinema.origin.asked()[1].field("if-range"),
        Some(format!("\"{}-{}\"", FILM.id, FILM.len).as_str())
    );
    // The stored part is a hit, although the fill has not reached it.
    let again = cinema.seek(&format!("{}-{}", 17 * MIB, 18 * MIB - 1));
    assert_part(&again, 17 * MIB, MIB);
    assert!(again.head.is_hit());

    // The fill needs no more than the bytes before the part.
    cinema.gate.open(16 * MIB);
    cinema.continues();
    await_hit(cinema.proxy.address, &FILM);
    assert_eq!(cinema.parts(), [Some((16 * MIB, FILM.len - 1))], "no byte is requested twice");
}

#[test]
fn fill_skips_a_part_and_fetches_what_follows() {
    for config in ["transfer.fill = \"splice\"\n", "transfer.fill = \"copy\"\n", "transfer.splice = false\n"]
    {
        let mut cinema = Cinema::with_parts(config);
        println!("{config}");
        assert_fill_asks_for_the_rest(&mut cinema, 8 * MIB);
    }
}

/// Seeks to a part in the middle, lets the origin send `sent` bytes to the fill, and asserts that
/// the film is complete after requests for the part and for what follows it.
fn assert_fill_asks_for_the_rest(cinema: &mut Cinema, sent: u64) {
    assert_part(&cinema.seek(&format!("{}-{}", 8 * MIB, 14 * MIB - 1)), 8 * MIB, 6 * MIB);
    cinema.gate.open(sent);
    cinema.continues();
    await_hit(cinema.proxy.address, &FILM);
    let expected = [Some((8 * MIB, 14 * MIB - 1)), Some((14 * MIB, FILM.len - 1))];
    assert_eq!(cinema.parts(), expected, "no byte is requested twice");
}

#[test]
fn fill_reads_on_if_the_origin_refuses_what_follows() {
    let count = AtomicUsize::new(0);
    let mut cinema = Cinema::new("", move |request, stream| {
        // Servers behind one name may have different tags.
        if count.fetch_add(1, Ordering::SeqCst) > 0 {
            return stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nETag: \"new\"\r\n\r\nnew bytes");
        }
        send_body(request, stream, FRESH)
    });
    assert_fill_asks_for_the_rest(&mut cinema, FILM.len);
}

#[test]
fn fill_reads_on_if_the_origin_does_not_answer_what_follows() {
    let count = AtomicUsize::new(0);
    // The time limit of the origin is an hour.
    let mut cinema = Cinema::new("timeouts.origin = 3600\n", move |request, stream| {
        if count.fetch_add(1, Ordering::SeqCst) > 0 {
            // Until the proxy gives the request up.
            let mut stream = &*stream;
            return io::copy(&mut stream, &mut io::sink()).map(drop);
        }
        send_body(request, stream, FRESH)
    });
    assert_fill_asks_for_the_rest(&mut cinema, FILM.len);
}

#[test]
fn origin_that_refuses_parts_is_asked_for_few() {
    let mut cinema = Cinema::new("", |_, stream| {
        stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
    });
    let clients: Vec<_> = (0..6)
        .map(|_| {
            let mut client = cinema.begin_seek(&format!("{}-", 16 * MIB), "");
            // It waits for the fill from now on.
            let head = client.head().unwrap();
            (client, head)
        })
        .collect();
    assert_eq!(cinema.parts(), [Some((16 * MIB, FILM.len - 1)); 3]);
    cinema.gate.open(FILM.len);
    for (mut client, head) in clients {
        let body = client.body(&head).unwrap();
        assert_part(&Response { head, body }, 16 * MIB, 8 * MIB);
    }
    cinema.continues();
}

#[test]
fn connection_of_a_fill_that_the_store_refuses_before_a_part_carries_no_other_request() {
    const HELD: Body = Body::new(5, 4 * MIB);
    let (gate, sent, held) = (Gate::default(), Gate::default(), Gate::default());
    let gates = (gate.clone(), sent.clone(), held.clone());
    let origin = Origin::new(move |request, stream| {
        let (gate, sent, held) = &gates;
        let range = send_head(request, stream, FRESH)?;
        if request.body() != FILM {
            return trickle(&request.body(), range, if request.body() == HELD { held } else { sent }, stream);
        }
        if range != (0..FILM.len) {
            return trickle(&FILM, range, sent, stream);
        }
        trickle(&FILM, 0..16 * MIB, gate, &mut *stream)?;
        // The rest is late: another request would get it.
        if stream.read(&mut [0])? > 0 { send_bytes(&FILM, 16 * MIB..FILM.len, stream) } else { Ok(()) }
    });
    // 12 MiB are taken by fills under way, and less than 16 are left for the film.
    let proxy = Setup::for_origin(origin.address).config("workers = 1\ncache.size = \"26MiB\"\n").start();
    let mut holder = Client::connect(proxy.address).unwrap();
    holder.ask("GET", &HELD.target(), "").unwrap();
    assert_eq!(holder.head().unwrap().len(), Some(HELD.len));
    let mut seeker = Client::connect(proxy.address).unwrap();
    seeker.ask("GET", &FILM.target(), &format!("Range: bytes={}-{}\r\n", 16 * MIB, FILM.len - 1)).unwrap();
    assert_eq!(seeker.head().unwrap().status, 206);
    sent.open(17 * MIB);
    assert!(FILM.is(16 * MIB, &seeker.exactly(MIB / 2).unwrap()));
    let mut viewer = begin(&proxy, &gate);
    gate.open(16 * MIB);
    assert!(FILM.is(BEGINNING, &viewer.exactly(15 * MIB).unwrap()));
    let other = Body::new(4, 100_000);
    assert!(other.is(0, &get(proxy.address, &other.target(), "").body));
    sent.open(FILM.len);
    assert!(FILM.is(16 * MIB, &viewer.exactly(8 * MIB).unwrap()));
    assert_eq!(origin.asked().len(), 4);
}

#[test]
fn fill_reads_on_without_a_free_connection_to_the_origin() {
    // A wait for one would last for an hour.
    let config =
        "limits.origin_connections = 2\nlimits.origin_connections_per_client = 2\ntimeouts.connect = 3600\n";
    let mut cinema = Cinema::with_parts(config);
    assert_part(&cinema.seek(&format!("{}-{}", 8 * MIB, 14 * MIB - 1)), 8 * MIB, 6 * MIB);
    // The client's own share is not used up.
    let other = IpAddr::from(Ipv4Addr::new(127, 0, 0, 2));
    let mut other = Client::connect_from(other, cinema.proxy.address).unwrap();
    other.ask("GET", &Body::new(4, 32 * MIB).target(), "").unwrap();
    assert!(wait_until(LIMIT, || cinema.origin.asked().len() == 3));
    cinema.gate.open(FILM.len);
    cinema.continues();
    await_hit(cinema.proxy.address, &FILM);
    assert_eq!(cinema.parts(), [Some((8 * MIB, 14 * MIB - 1)), None]);
}

#[test]
fn fill_fetches_what_follows_without_clients() {
    let cinema = Cinema::with_parts("");
    assert_part(&cinema.seek(&format!("{}-{}", 8 * MIB, 14 * MIB - 1)), 8 * MIB, 6 * MIB);
    cinema.viewer.stream.shutdown(Shutdown::Both).unwrap();
    cinema.gate.open(8 * MIB);
    cinema.await_stored();
    await_hit(cinema.proxy.address, &FILM);
    let expected = [Some((8 * MIB, 14 * MIB - 1)), Some((14 * MIB, FILM.len - 1))];
    assert_eq!(cinema.parts(), expected);
}

#[test]
fn seeks_before_and_behind_others_request_only_missing_bytes() {
    let mut cinema = Cinema::with_parts("");
    assert_part(&cinema.seek(&format!("{}-{}", 16 * MIB, 20 * MIB - 1)), 16 * MIB, 4 * MIB);
    // Overlaps the part on both sides.
    assert_part(&cinema.seek(&format!("{}-", 10 * MIB)), 10 * MIB, 14 * MIB);
    cinema.gate.open(10 * MIB);
    cinema.continues();
    await_hit(cinema.proxy.address, &FILM);
    let expected =
        [Some((16 * MIB, 20 * MIB - 1)), Some((10 * MIB, 16 * MIB - 1)), Some((20 * MIB, FILM.len - 1))];
    assert_eq!(cinema.parts(), expected, "no byte is requested twice");
}

#[test]
fn short_suffix_is_answered_at_once_and_read_again_by_the_fill() {
    let mut cinema = Cinema::with_parts("");
    assert_part(&cinema.seek("-500"), FILM.len - 500, 500);
    cinema.gate.open(FILM.len);
    cinema.continues();
    await_hit(cinema.proxy.address, &FILM);
    assert_eq!(cinema.parts(), [Some((FILM.len - 500, FILM.len - 1))]);
}

#[test]
fn range_just_ahead_waits_for_the_fill() {
    let cinema = Cinema::with_parts("");
    let first = BEGINNING + 3 * MIB;
    let client = cinema.begin_seek(&format!("{first}-"), "");
    assert_waits(client, &cinema.gate, first, FILM.len - first);
    assert_eq!(cinema.parts(), []);
}

#[test]
fn clients_that_seek_to_the_same_place_share_one_request() {
    let (parts, sent) = (Gate::default(), Gate::default());
    let (heads, bytes) = (parts.clone(), sent.clone());
    let mut cinema = Cinema::new("", move |request, stream| {
        heads.beyond(0)?;
        send_body_behind(&bytes, request, stream, FRESH)
    });
    let place = format!("{}-", 16 * MIB);
    let mut clients: Vec<_> = (0..3).map(|_| cinema.begin_seek(&place, "")).collect();
    assert!(wait_until(LIMIT, || cinema.origin.asked().len() == 2));
    parts.open(1);
    for client in &mut clients {
        assert_eq!(client.head().unwrap().status, 206);
    }
    // The fill of the part is under way, and has the first of these bytes.
    sent.open(17 * MIB);
    let first = 16 * MIB + MIB / 2;
    let mut within = cinema.begin_seek(&format!("{first}-"), "");
    assert_eq!(within.head().unwrap().status, 206);
    assert!(FILM.is(first, &within.exactly(MIB / 4).unwrap()));
    // A client of the whole film gets bytes of both fills in order.
    let mut second_viewer = begin(&cinema.proxy, &cinema.gate);
    sent.open(FILM.len);
    cinema.gate.open(16 * MIB);
    for mut client in clients {
        assert!(FILM.is(16 * MIB, &client.exactly(8 * MIB).unwrap()));
    }
    assert!(FILM.is(BEGINNING, &second_viewer.exactly(FILM.len - BEGINNING).unwrap()));
    cinema.continues();
    await_hit(cinema.proxy.address, &FILM);
    assert_eq!(cinema.parts(), [Some((16 * MIB, FILM.len - 1))]);
}

#[test]
fn film_that_is_requested_again_follows_the_part_under_way() {
    let sent = Gate::default();
    let bytes = sent.clone();
    let mut cinema = Cinema::new("", move |request, stream| send_body_behind(&bytes, request, stream, FRESH));
    let mut seeker = cinema.begin_seek(&format!("{}-", 8 * MIB), "");
    assert_eq!(seeker.head().unwrap().status, 206);
    cinema.gate.open(8 * MIB);
    let rest = cinema.viewer.exactly(7 * MIB).unwrap();
    assert!(FILM.is(BEGINNING, &rest));
    // The first fill ends; its part is stored.
    let is_stored = || {
        let fields = format!("Range: bytes=0-{}\r\nCache-Control: only-if-cached\r\n", 8 * MIB - 1);
        get(cinema.proxy.address, &FILM.target(), &fields).head.is_hit()
    };
    assert!(wait_until(LIMIT, is_stored));
    let mut late = Client::connect(cinema.proxy.address).unwrap();
    late.ask("GET", &FILM.target(), "").unwrap();
    assert_eq!(late.head().unwrap().len(), Some(FILM.len));
    assert!(FILM.is(0, &late.exactly(8 * MIB).unwrap()), "the part under way has not continued");
    sent.open(FILM.len);
    for client in [&mut late, &mut cinema.viewer, &mut seeker] {
        assert!(FILM.is(8 * MIB, &client.exactly(16 * MIB).unwrap()));
    }
    await_hit(cinema.proxy.address, &FILM);
    assert_eq!(cinema.parts(), [Some((8 * MIB, FILM.len - 1))]);
}

#[test]
fn seek_behind_a_part_under_way_ends_that_part() {
    let sent = Gate::default();
    let bytes = sent.clone();
    let mut cinema = Cinema::new("", move |request, stream| {
        let range = send_head(request, stream, FRESH)?;
        if range.start == 16 * MIB {
            return send_bytes(&request.body(), range, stream);
        }
        trickle(&request.body(), range, &bytes, stream)
    });
    let mut seeker = cinema.begin_seek(&format!("{}-", 8 * MIB), "");
    assert_eq!(seeker.head().unwrap().status, 206);
    sent.open(9 * MIB);
    assert!(FILM.is(8 * MIB, &seeker.exactly(MIB).unwrap()));
    assert_part(&cinema.seek(&format!("{}-", 16 * MIB)), 16 * MIB, 8 * MIB);
    sent.open(16 * MIB);
    assert!(FILM.is(9 * MIB, &seeker.exactly(15 * MIB).unwrap()));
    cinema.gate.open(8 * MIB);
    cinema.continues();
    await_hit(cinema.proxy.address, &FILM);
    let expected = [Some((8 * MIB, FILM.len - 1)), Some((16 * MIB, FILM.len - 1))];
    assert_eq!(cinema.parts(), expected);
}

#[test]
fn abandoned_part_is_completed_by_the_fill() {
    let (sent, is_first) = (Gate::default(), AtomicUsize::new(0));
    let bytes = sent.clone();
    let mut cinema = Cinema::new("cache.abandoned = \"drop\"\n", move |request, stream| {
        let range = send_head(request, stream, FRESH)?;
        if is_first.fetch_add(1, Ordering::SeqCst) > 0 {
            return send_bytes(&request.body(), range, stream);
        }
        trickle(&request.body(), range, &bytes, stream)
    });
    let mut seeker = cinema.begin_seek(&format!("{}-", 8 * MIB), "");
    assert_eq!(seeker.head().unwrap().status, 206);
    sent.open(9 * MIB);
    assert!(FILM.is(8 * MIB, &seeker.exactly(MIB).unwrap()));
    seeker.stream.shutdown(Shutdown::Both).unwrap();
    let mut reached = 9 * MIB;
    let is_stored = || {
        // The proxy notices that the client has left when it sends more.
        reached = (reached + 64 * 1024).min(12 * MIB);
        sent.open(reached);
        let fields = format!("Range: bytes={}-{}\r\nCache-Control: only-if-cached\r\n", 8 * MIB, 9 * MIB - 1);
        get(cinema.proxy.address, &FILM.target(), &fields).head.is_hit()
    };
    assert!(wait_until(LIMIT, is_stored), "the part under way is not given up");
    // The fill ends before the part that was begun, and requests what follows the stored bytes.
    cinema.gate.open(8 * MIB);
    cinema.continues();
    await_hit(cinema.proxy.address, &FILM);
    let [_, Some((first, last))] = cinema.parts()[..] else { panic!("{:?}", cinema.parts()) };
    assert!((9 * MIB..=reached).contains(&first) && last == FILM.len - 1, "{first}-{last}");
}

#[test]
fn client_without_a_free_connection_waits_for_the_fill() {
    let cinema = Cinema::with_parts("limits.origin_connections_per_client = 1\n");
    let client = cinema.begin_seek(&format!("{}-", 16 * MIB), "");
    assert_waits(client, &cinema.gate, 16 * MIB, 8 * MIB);
    assert_eq!(cinema.parts(), []);
}

#[test]
fn fill_that_arrives_before_the_answer_to_a_seek_answers_it() {
    let cinema = Cinema::new("", |_, stream| {
        // Until the proxy gives the request up.
        let mut stream = &*stream;
        io::copy(&mut stream, &mut io::sink()).map(drop)
    });
    let mut client = cinema.begin_seek(&format!("{}-", 16 * MIB), "");
    assert!(wait_until(LIMIT, || cinema.origin.asked().len() == 2));
    cinema.gate.open(FILM.len);
    let head = client.head().unwrap();
    let body = client.body(&head).unwrap();
    assert_part(&Response { head, body }, 16 * MIB, 8 * MIB);
    assert_eq!(cinema.parts(), [Some((16 * MIB, FILM.len - 1))]);
}

#[test]
fn origin_that_announces_no_ranges_is_not_asked_for_one() {
    let gate = Gate::default();
    let behind = gate.clone();
    let origin = Origin::new(move |request, stream| {
        send_body_behind(&behind, request, stream, &format!("{FRESH}Accept-Ranges: none\r\n"))
    });
    let proxy = Setup::for_origin(origin.address).start();
    let viewer = begin(&proxy, &gate);
    let cinema = Cinema { origin, gate, proxy, viewer };
    let client = cinema.begin_seek(&format!("{}-", 16 * MIB), "");
    assert_waits(client, &cinema.gate, 16 * MIB, 8 * MIB);
    assert_eq!(cinema.parts(), []);
}

#[test]
fn parts_keep_the_fields_that_the_origin_sends_with_the_whole_alone() {
    let gate = Gate::default();
    let behind = gate.clone();
    let origin = Origin::new(move |request, stream| {
        if request.field("range").is_some() {
            // RFC 9110 s15.3.7: with If-Range, only the required fields.
            return send_body(request, stream, FRESH);
        }
        send_body_behind(&behind, request, stream, &format!("{FRESH}Content-Type: video/mp4\r\n"))
    });
    let proxy = Setup::for_origin(origin.address).start();
    let viewer = begin(&proxy, &gate);
    let mut cinema = Cinema { origin, gate, proxy, viewer };
    let is_film = |response: &Response| response.head.field("content-type") == Some("video/mp4");
    let part = format!("{}-", 16 * MIB);
    assert!(is_film(&cinema.seek(&part)));
    assert!(is_film(&cinema.seek(&part)), "the stored part");
    cinema.gate.open(16 * MIB);
    cinema.continues();
    cinema.await_stored();
    assert!(is_film(&get(cinema.proxy.address, &FILM.target(), "")));
}

#[test]
fn part_that_is_interrupted_is_requested_to_its_end() {
    let count = AtomicUsize::new(0);
    let mut cinema = Cinema::new("", move |request, stream| {
        let range = send_head(request, stream, FRESH)?;
        if count.fetch_add(1, Ordering::SeqCst) > 0 {
            return send_bytes(&request.body(), range, stream);
        }
        send_bytes(&request.body(), range.start..range.start + MIB, &mut *stream)?;
        stream.shutdown(Shutdown::Both)
    });
    assert_part(&cinema.seek(&format!("{}-", 16 * MIB)), 16 * MIB, 8 * MIB);
    cinema.gate.open(16 * MIB);
    cinema.continues();
    await_hit(cinema.proxy.address, &FILM);
    assert_eq!(cinema.parts(), [Some((16 * MIB, FILM.len - 1)), Some((17 * MIB, FILM.len - 1))]);
}

#[test]
fn origin_without_ranges_is_asked_once() {
    let mut cinema = Cinema::new("", |request, stream| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nETag: \"3-{}\"\r\n{FRESH}\r\n",
            FILM.len, FILM.len
        );
        stream.write_all(head.as_bytes())?;
        send_bytes(&request.body(), 0..FILM.len, stream)
    });
    let mut first = cinema.begin_seek(&format!("{}-", 16 * MIB), "");
    assert_eq!(first.head().unwrap().status, 206);
    let second = cinema.begin_seek(&format!("{}-", 20 * MIB), "");
    assert_waits(second, &cinema.gate, 20 * MIB, 4 * MIB);
    assert!(FILM.is(16 * MIB, &first.exactly(8 * MIB).unwrap()));
    cinema.continues();
    await_hit(cinema.proxy.address, &FILM);
    assert_eq!(cinema.parts(), [Some((16 * MIB, FILM.len - 1))]);
}

#[test]
fn unusable_answers_to_a_seek_leave_the_fill_as_it_is() {
    let part = |fields: &str, first: u64| {
        let len = FILM.len - 16 * MIB;
        let last = first + len - 1;
        format!(
            "206 Partial Content\r\nContent-Length: {len}\r\nContent-Range: bytes {first}-{last}/{}\r\n{fields}",
            FILM.len
        )
    };
    let tag = format!("ETag: \"3-{}\"\r\n", FILM.len);
    for (what, head) in [
        ("another tag", part(&format!("ETag: \"new\"\r\n{FRESH}"), 16 * MIB)),
        ("a weak tag", part(&format!("ETag: W/\"3-{}\"\r\n{FRESH}", FILM.len), 16 * MIB)),
        ("no validator", part(FRESH, 16 * MIB)),
        ("another part", part(&format!("{tag}{FRESH}"), 15 * MIB)),
        ("no-store", part(&format!("{tag}Cache-Control: no-store\r\n"), 16 * MIB)),
        ("private", part(&format!("{tag}Cache-Control: private, max-age=3600\r\n"), 16 * MIB)),
        ("a cookie", part(&format!("{tag}{FRESH}Set-Cookie: a=b\r\n"), 16 * MIB)),
        ("another variant", part(&format!("{tag}{FRESH}Vary: User-Agent\r\n"), 16 * MIB)),
        ("another representation", format!("200 OK\r\nContent-Length: 8388608\r\nETag: \"new\"\r\n{FRESH}")),
        ("404", format!("404 Not Found\r\nContent-Length: 8388608\r\n{FRESH}")),
        ("412", "412 Precondition Failed\r\nContent-Length: 8388608\r\n".to_owned()),
        (
            "416",
            format!(
                "416 Range Not Satisfiable\r\nContent-Length: 8388608\r\nContent-Range: bytes */9\r\n{FRESH}"
            ),
        ),
        ("304", format!("304 Not Modified\r\n{tag}{FRESH}")),
        ("503", "503 Service Unavailable\r\nContent-Length: 8388608\r\n".to_owned()),
    ] {
        let mut cinema = Cinema::new("", move |_, stream| {
            stream.write_all(format!("HTTP/1.1 {head}\r\n").as_bytes())?;
            // Bytes that must not get into the film.
            stream.write_all(&vec![b'x'; 8 * MIB as usize])
        });
        let client = cinema.begin_seek(&format!("{}-", 16 * MIB), "");
        assert_waits(client, &cinema.gate, 16 * MIB, 8 * MIB);
        cinema.continues();
        await_hit(cinema.proxy.address, &FILM);
        assert_eq!(cinema.parts(), [Some((16 * MIB, FILM.len - 1))], "{what}");
    }
}

#[test]
fn requests_that_must_not_get_a_part_of_their_own_wait() {
    let mut cinema = Cinema::with_parts("");
    let place = format!("{}-", 16 * MIB);
    // The response does not allow an answer to it to be stored for others (RFC 9111, section 3.5).
    let authorized = cinema.begin_seek(&place, "Authorization: Basic YQ==\r\n");
    let several = cinema.begin_seek("9000000-9000009,20000000-20000009", "");
    let mut outdated = cinema.begin_seek(&place, "If-Range: \"other\"\r\n");
    assert_eq!(outdated.head().unwrap().status, 200, "the part of another film was requested");
    let mut head = Client::connect(cinema.proxy.address).unwrap();
    head.ask("HEAD", &FILM.target(), &format!("Range: bytes={place}\r\n")).unwrap();
    let head = head.head().unwrap();
    assert_eq!((head.status, head.len()), (200, Some(FILM.len)));
    let beyond = cinema.seek(&format!("{}-", FILM.len));
    assert_eq!(beyond.head.status, 416);

    assert_waits(authorized, &cinema.gate, 16 * MIB, 8 * MIB);
    FILM.assert_whole(&outdated.exactly(FILM.len).unwrap());
    let mut several = several;
    let head = several.head().unwrap();
    let body = several.body(&head).unwrap();
    assert!(head.status == 206 && head.field("content-type").unwrap().starts_with("multipart/byteranges"));
    let has = |first: u64| body.windows(10).any(|bytes| FILM.is(first, bytes));
    assert!(has(9_000_000) && has(20_000_000));
    cinema.continues();
    assert_eq!(cinema.parts(), []);
}

#[test]
fn purge_between_keeps_parts_out_of_the_store() {
    let mut cinema = Cinema::with_parts("access.purge = [\"127.0.0.1\"]\n");
    assert_part(&cinema.seek(&format!("{}-", 16 * MIB)), 16 * MIB, 8 * MIB);
    let mut operator = Client::connect(cinema.proxy.address).unwrap();
    operator.ask("PURGE", &FILM.target(), "").unwrap();
    assert_eq!(operator.head().unwrap().status, 200);
    cinema.gate.open(FILM.len);
    cinema.continues();
    let next = get(cinema.proxy.address, &FILM.target(), "");
    assert!(!next.head.is_hit(), "nothing from before the purge is stored as the whole");
    FILM.assert_whole(&next.body);
}

#[test]
fn seeks_beyond_the_limit_of_fills_wait() {
    /// Fills of one key, less the one of the whole film.
    const PARTS_MAX: usize = 15;
    let (parts, long) = (Gate::default(), Body::new(5, 32 * MIB));
    let (heads, whole) = (parts.clone(), Gate::default());
    let origin = {
        let whole = whole.clone();
        Origin::new(move |request, stream| {
            if request.field("range").is_some() {
                heads.beyond(0)?;
                return send_body(request, stream, FRESH);
            }
            let range = send_head(request, stream, FRESH)?;
            trickle(&request.body(), range, &whole, stream)
        })
    };
    let proxy = Setup::for_origin(origin.address).start();
    let ask = |fields: &str| {
        let mut client = Client::connect(proxy.address).unwrap();
        client.ask("GET", &long.target(), fields).unwrap();
        client
    };
    let mut viewer = ask("");
    whole.open(BEGINNING);
    assert_eq!(viewer.head().unwrap().status, 200);
    let place = |number: usize| (10 + number as u64) * MIB;
    let seek = |number: usize| ask(&format!("Range: bytes={}-{}\r\n", place(number), place(number) + 999));
    let mut seekers = Vec::new();
    for number in 0..PARTS_MAX {
        seekers.push(seek(number));
        assert!(wait_until(LIMIT, || origin.asked().len() == number + 2));
    }
    // Their heads come at once: they wait for the bytes of the whole film.
    let mut late: Vec<_> = (PARTS_MAX..PARTS_MAX + 5).map(seek).collect();
    for client in &mut late {
        assert_eq!(client.head().unwrap().status, 206);
    }
    assert_eq!(origin.asked().len(), PARTS_MAX + 1);
    parts.open(1);
    for (number, mut client) in seekers.into_iter().enumerate() {
        assert_eq!(client.head().unwrap().status, 206);
        assert!(long.is(place(number), &client.exactly(1000).unwrap()));
    }
    whole.open(long.len);
    for (number, mut client) in late.into_iter().enumerate() {
        assert!(long.is(place(PARTS_MAX + number), &client.exactly(1000).unwrap()));
    }
}
