//! `strait extcap`: tshark lists the interfaces and captures with them.

use std::fs;

use lab::{Wire, program_or_skip, wait_until};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;

use crate::rig::{Capture, LIMIT, STRAIT, failure, numbered, send, strait};

#[test]
fn tshark_lists_the_interfaces_and_captures_the_frames() {
    let Some(wire) = Wire::builder().or_skip().filter(|_| program_or_skip("tshark")) else { return };
    let home = tempfile::tempdir().unwrap();
    let at_home =
        |program: &str| wire.right().command(program).env("HOME", home.path()).env("XDG_CONFIG_HOME", "");
    let installed = at_home(STRAIT).args(["extcap", "--install"]).run(LIMIT).unwrap().success();
    assert_eq!(installed.text().matches("installed ").count(), 2, "{}", installed.text());
    let list = at_home("tshark").arg("-D").run(LIMIT).unwrap().success().text();
    assert!(list.contains("strait:right (Strait: right)") && list.contains("strait:any"), "{list}");

    let fields = ["-T", "fields", "-e", "frame.len", "-e", "udp.dstport"];
    let options = ["-l", "-i", "strait:right", "-f", "udp and greater 500", "-c", "20"];
    let tshark = at_home("tshark").args(options).args(fields).spawn().unwrap();
    // Again and again, as nothing shows that the capture has begun.
    let captured = wait_until(LIMIT, || {
        send(&wire, &numbered(40));
        tshark.stdout().lines().count() >= 20
    });
    assert!(captured, "{}", tshark.stderr());
    let text = tshark.wait(LIMIT).unwrap().success().text();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let is_long_udp = |line: &Vec<&str>| line[0].parse::<u32>().unwrap() > 500 && !line[1].is_empty();
    assert!(lines.len() == 20 && lines.iter().all(is_long_udp), "{text}");
}

/// Wireshark shows text on standard error as the error of a capture that has ended.
#[test]
fn only_a_failure_is_printed_on_standard_error() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    mkfifoat(CWD, &fifo, Mode::from(0o600)).unwrap();
    let extcap = |interface: &str| {
        let arguments = ["extcap", "--capture", "--extcap-interface", interface, "--fifo"];
        strait(wire.right(), &arguments).arg(&fifo)
    };
    let reader = std::thread::spawn({
        let fifo = fifo.clone();
        move || fs::read(fifo).unwrap()
    });
    let capture = Capture::watch(extcap("strait:right"));
    send(&wire, &numbered(3));
    let finished = capture.end(Signal::TERM).success();
    assert_eq!(finished.stderr, "");
    assert!(reader.join().unwrap().len() > 24 + 3 * 64, "the FIFO has a header and the frames");

    let (code, line) = failure(&extcap("strait:nosuch0").run(LIMIT).unwrap());
    assert!(code == 2 && line.contains("nosuch0") && line.contains("no such interface"), "{code} {line}");
}

#[test]
fn wrong_requests_are_refused() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let extcap =
        |arguments: &[&str]| strait(wire.right(), &[&["extcap"], arguments].concat()).run(LIMIT).unwrap();
    let of = ["--extcap-interface", "strait:right"];
    let line = extcap(&[&of[..], &["--extcap-dlts"]].concat()).success().text();
    assert_eq!(line, "dlt {number=1}{name=EN10MB}{display=EN10MB (Ethernet)}\n");
    let config = extcap(&[&of[..], &["--extcap-config"]].concat()).success().text();
    assert!(config.contains("{value=auto}") && config.contains("{default=true}"), "{config}");
    for (filter, reason) in [("tcp port 80", ""), ("tcp prt", "no filter")] {
        let text = extcap(&[&of[..], &["--extcap-capture-filter", filter]].concat()).success().text();
        assert!(text.contains(reason) && text.is_empty() == reason.is_empty(), "{filter}: {text}");
    }
    for arguments in [&[][..], &["--extcap-dlts"], &["--capture", "--extcap-interface", "strait:right"]] {
        assert_eq!(extcap(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
