//! Priorities of HTTP/2: the order of streams that have data at the same time.

use std::thread;
use std::time::Duration;

use crate::http2::{
    Client, DATA, END_STREAM, HEADERS, ON, PING, RST_STREAM, WINDOW_UPDATE, frame, get, head,
};
use crate::origin_http2_rig;
use crate::rig::{Rig, body};

#[test]
fn urgent_stream_is_sent_before_another_one_with_data() {
    const LEN: usize = 4_000_000;
    let rig = Rig::start(ON);
    let path = format!("/200/60/{LEN}/a");
    assert!(Client::to(rig.proxy.address()).get(1, &path).is_whole);
    rig.wait_stored(1);
    // By default, streams of one urgency are sent one after the other.
    for (priorities, first) in [(["u=7", "u=0"], 3), (["u=0", "u=7"], 1), (["u=3", "u=3"], 1)] {
        let mut client = Client::with_window(rig.proxy.address(), 0);
        for (stream, priority) in [1, 3].into_iter().zip(priorities) {
            let fields = [
                (":method", "GET"),
                (":scheme", "http"),
                (":path", &*path),
                (":authority", "www.example"),
                ("priority", priority),
            ];
            client.send(head(stream, &fields, END_STREAM));
            assert_eq!(client.until(HEADERS).unwrap().stream, stream);
        }
        // Both have data and windows at the same time.
        let windows = [1, 3].map(|stream| frame(WINDOW_UPDATE, 0, stream, &(LEN as u32).to_be_bytes()));
        client.send(windows.concat());
        let mut of_other = 0;
        loop {
            let data = client.until(DATA).unwrap();
            of_other += if data.stream == first { 0 } else { data.payload.len() };
            if data.stream == first && data.flags & END_STREAM > 0 {
                break;
            }
        }
        assert!(of_other < LEN / 4, "{priorities:?}: {of_other}");
    }
}

/// The client has the default priority for both: without those of the responses they take turns.
#[test]
fn priority_of_a_response_decides_its_order() {
    // Less than the window of the proxy.
    const LEN: usize = 250_000;
    let rig = origin_http2_rig::Rig::start();
    let mut client = Client::with_window(rig.proxy.address(), 0);
    client.send([get(1, "/slow"), get(3, "/fast")].concat());
    let mut origin = rig.accept();
    for _ in 0..2 {
        let request = origin.request();
        let urgency = if request.field(":path") == Some("/fast") { "u=0" } else { "u=7" };
        let fields = [(":status", "200"), ("cache-control", "no-store"), ("priority", urgency)];
        origin.head(request.stream, &fields, 0);
        client.until(HEADERS).unwrap();
        origin.data(request.stream, &body(LEN), END_STREAM);
    }
    // The proxy has all frames before.
    origin.send(frame(PING, 0, 0, &[0; 8]));
    origin.until(PING).unwrap();
    client.send([1, 3].map(|stream| frame(WINDOW_UPDATE, 0, stream, &(LEN as u32).to_be_bytes())).concat());
    let mut of_slow = 0;
    loop {
        let data = client.until(DATA).unwrap();
        of_slow += if data.stream == 1 { data.payload.len() } else { 0 };
        if data.stream == 3 && data.flags & END_STREAM > 0 {
            break;
        }
    }
    assert!(of_slow < LEN / 2, "{of_slow}");
}

#[test]
fn stream_that_waits_for_a_more_urgent_one_is_not_slow() {
    const LEN: usize = 24_000_000;
    // A slow client: it takes a multiple of the time limit for the urgent stream.
    const PAUSE: Duration = Duration::from_millis(5);
    let rig = Rig::start(&format!("{ON}timeouts.client = 2\n"));
    let path = format!("/200/60/{LEN}/a");
    assert!(Client::to(rig.proxy.address()).get(1, &path).is_whole);
    rig.wait_stored(1);
    let mut client = Client::with_window(rig.proxy.address(), 0);
    for (stream, priority) in [(1, "u=7"), (3, "u=0")] {
        let fields =
            [(":method", "GET"), (":scheme", "http"), (":path", &*path), (":authority", "www.example")];
        client.send(head(stream, &[&fields[..], &[("priority", priority)]].concat(), END_STREAM));
        assert_eq!(client.until(HEADERS).unwrap().stream, stream);
    }
    client.send([3, 1].map(|stream| frame(WINDOW_UPDATE, 0, stream, &(LEN as u32).to_be_bytes())).concat());
    let mut left = [LEN; 2];
    while left != [0, 0] {
        let frame = client.frame().unwrap();
        assert_ne!(frame.kind, RST_STREAM, "{} {left:?}", frame.stream);
        if frame.kind == DATA {
            left[usize::from(frame.stream == 3)] -= frame.payload.len();
        }
        if left[1] > 0 {
            thread::sleep(PAUSE);
        }
    }
}
