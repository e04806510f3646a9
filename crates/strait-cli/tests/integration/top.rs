//! `strait top`: a stream of objects, and a picture that keys change.

use std::io::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lab::{Launch, Wire, program_or_skip};
use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{LIMIT, STRAIT, failure, numbered, run, send, strait};

#[test]
fn objects_count_every_packet_once() {
    const FRAMES: u64 = 500;
    let Some(wire) = Wire::builder().or_skip() else { return };
    let top = strait(wire.right(), &["top", "-i", "right", "--json", "--interval", "0.2"]).spawn().unwrap();
    assert!(lab::wait_until(LIMIT, || !top.stdout().is_empty()), "{}", top.stderr());
    send(&wire, &numbered(FRAMES));
    let objects = || -> Vec<Value> {
        top.stdout().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let delivered = || objects().last().and_then(|object| object["delivered"].as_u64());
    assert!(lab::wait_until(LIMIT, || delivered() == Some(FRAMES)), "{:?}", objects().last());
    let counted: f64 = objects()
        .iter()
        .map(|object| object["packets_per_second"].as_f64().unwrap() * object["seconds"].as_f64().unwrap())
        .sum();
    assert_eq!(counted.round() as u64, FRAMES);
    let busiest =
        objects().into_iter().find(|object| !object["flows"].as_array().unwrap().is_empty()).unwrap();
    assert_eq!(busiest["protocols"][0]["protocol"], "tcp");
    assert!(busiest["delay"]["p50_ns"].as_u64().unwrap() > 0);
    assert!(busiest["flows"][0]["flow"].as_str().unwrap().contains(" > "));
    top.signal(Signal::INT);
    let ended = top.wait(LIMIT).unwrap().success();
    assert!(ended.stderr.contains("right: path v3"), "{}", ended.stderr);
}

#[test]
fn a_picture_comes_up_takes_keys_and_leaves_the_terminal_as_it_was() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| program_or_skip("script")) else { return };
    let command = format!("stty rows 24 cols 80; {STRAIT} top -i right --interval 0.1");
    let mut child = wire.right().run(|| {
        std::process::Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let mut keys = child.stdin.take().unwrap();
    let mut out = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        std::io::Read::read_to_end(&mut out, &mut text).map(|_| String::from_utf8_lossy(&text).into_owned())
    });
    send(&wire, &numbered(10));
    // Keys that come before it listens wait in the terminal.
    for pressed in ["s", "p", "/nonsense filter\r", "/udp\r", "?", "?", "q"] {
        std::thread::sleep(Duration::from_millis(300));
        keys.write_all(pressed.as_bytes()).unwrap();
    }
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < deadline, "it did not end");
        std::thread::sleep(Duration::from_millis(20));
    };
    let text = reader.join().unwrap().unwrap();
    assert!(status.success(), "{text}");
    // Blanks between words may be moves of the cursor.
    for words in ["strait top", "PAUSED", "syntax", "udp", "right: path v3"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (entered, left) = ("\x1b[?1049h", "\x1b[?1049l");
    assert!(text.contains(entered) && text.find(left) > text.find(entered));
}

#[test]
fn without_a_terminal_it_asks_for_json() {
    let (code, said) = failure(&run(&["top", "-i", "lo"]));
    assert!(code == 2 && said.contains("--json"), "{code} {said}");
    let gone = Launch::new(STRAIT).args(["top", "-i", "no-such-if0", "--json"]).run(LIMIT).unwrap();
    assert_eq!(gone.status.code(), Some(2), "{}", gone.stderr);
}
