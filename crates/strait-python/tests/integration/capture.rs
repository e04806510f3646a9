//! Live captures: the bytes and the number of the sent frames, stops and interrupts.

use lab::Wire;
use rustix::process::Signal;
use serde_json::json;

use crate::rig::{LIMIT, PATHS, count, frames, hex, python_or_skip, result, send, start, transmit};

#[test]
fn frames_on_each_path_are_those_that_were_sent_and_outlive_the_capture() {
    let Some(python) = python_or_skip() else { return };
    // Several times the smallest ring, so that each slot is used again.
    let sent = frames(1500);
    for path in PATHS {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let process = start(&wire, python, "frames", &["right", path, "1500"]);
        for (part, at) in sent.chunks(100).zip(1..) {
            send(&wire, part);
            process.wait_for_stdout(&format!("frames: {}\n", at * 100), LIMIT).unwrap();
        }
        let result = result(process);
        let sent_frames: Vec<String> = sent.iter().map(|frame| hex(&[frame])).collect();
        assert!(result["frames"] == json!(sent_frames), "{path}");
        let lengths: usize = sent.iter().map(Vec::len).sum();
        assert_eq!(result["length"].as_u64(), Some(lengths as u64), "{path}");
        assert_eq!(result["direction"].as_array().unwrap().len(), 1, "{path}");
        assert_eq!(result["direction"][0], "in", "{path}");
        let ledger = &result["ledger"];
        assert_eq!((count(ledger, "received"), count(ledger, "delivered")), (1500, 1500), "{path}: {ledger}");
        assert_eq!(ledger["path"], path);
    }
}

#[test]
fn frames_of_all_queues_are_read_and_counted() {
    let Some(python) = python_or_skip() else { return };
    let Some(wire) = Wire::builder().queues(2).or_skip() else { return };
    let process = start(&wire, python, "frames", &["right", "xdp", "600"]);
    let sent = frames(600);
    for (part, at) in sent.chunks(100).zip(1..) {
        transmit(&wire, part);
        process.wait_for_stdout(&format!("frames: {}\n", at * 100), LIMIT).unwrap();
    }
    let result = result(process);
    let mut expected: Vec<String> = sent.iter().map(|frame| hex(&[frame])).collect();
    expected.sort_unstable();
    let mut received: Vec<&str> =
        result["frames"].as_array().unwrap().iter().map(|frame| frame.as_str().unwrap()).collect();
    received.sort_unstable();
    assert!(received == expected);
    let ledger = &result["ledger"];
    assert_eq!(ledger["lanes"].as_array().unwrap().len(), 2, "{ledger}");
    assert_eq!((count(ledger, "received"), count(ledger, "delivered")), (600, 600), "{ledger}");
}

#[test]
fn rows_of_batches_are_the_matching_frames_and_the_ledger_has_all_of_them() {
    let Some(python) = python_or_skip() else { return };
    for path in PATHS {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let process = start(&wire, python, "batches", &["right", path, "tcp"]);
        send(&wire, &frames(300));
        let result = result(process);
        assert_eq!(result["rows"], 100, "{path}");
        let names = result["names"].as_array().unwrap();
        assert_eq!((names.len(), &names[0]), (9, &"time".into()), "{path}");
        let ledger = &result["ledger"];
        assert_eq!(count(ledger, "delivered"), 100, "{path}: {ledger}");
    }
}

#[test]
fn stop_by_another_thread_ends_the_iterator_after_the_received_packets() {
    let Some(python) = python_or_skip() else { return };
    let Some(wire) = Wire::builder().or_skip() else { return };
    let process = start(&wire, python, "stop", &["right"]);
    send(&wire, &frames(90));
    process.signal(Signal::USR1);
    let result = result(process);
    assert_eq!(result["rows"], 90);
    assert_eq!(count(&result["ledger"], "delivered"), 90);
}

#[test]
fn packets_that_were_not_returned_are_unread_in_the_ledger() {
    let Some(python) = python_or_skip() else { return };
    let Some(wire) = Wire::builder().or_skip() else { return };
    let process = start(&wire, python, "unread", &["right"]);
    send(&wire, &frames(400));
    process.signal(Signal::USR1);
    let result = result(process);
    assert_eq!((count(&result, "received"), count(&result, "delivered")), (400, 3), "{result}");
    assert_eq!(count(&result, "lost.unread"), 397);
}

#[test]
fn interrupt_ends_a_blocked_wait_and_leaves_the_session_usable() {
    let Some(python) = python_or_skip() else { return };
    for wait in ["batches", "frames"] {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let process = start(&wire, python, "interrupt", &["right", wait]);
        process.signal(Signal::INT);
        process.wait_for_stdout("interrupted", LIMIT).unwrap();
        send(&wire, &frames(60));
        let finished = process.wait(LIMIT).unwrap().success();
        assert_eq!(finished.text(), "ready\ninterrupted\n60 60\n", "{wait}");
    }
}

#[test]
fn interrupt_without_a_handler_ends_the_program() {
    let Some(python) = python_or_skip() else { return };
    let Some(wire) = Wire::builder().or_skip() else { return };
    let process = start(&wire, python, "blocked", &["right"]);
    process.signal(Signal::INT);
    let finished = process.wait(LIMIT).unwrap();
    assert!(!finished.status.success());
    assert!(finished.stderr.trim_end().ends_with("KeyboardInterrupt"), "{}", finished.stderr);
}

#[test]
fn removed_interface_ends_the_capture_after_its_packets() {
    let Some(python) = python_or_skip() else { return };
    let Some(wire) = Wire::builder().or_skip() else { return };
    let process = start(&wire, python, "removed", &["right"]);
    send(&wire, &frames(30));
    wire.right().delete();
    let finished = process.wait(LIMIT).unwrap().success();
    let mut lines = finished.text().lines().map(str::to_owned).collect::<Vec<_>>();
    let error = lines.pop().unwrap();
    assert_eq!(lines, ["ready", "30 rows"]);
    assert!(error.starts_with("Error: ") && error.contains("right"), "{error}");
}
