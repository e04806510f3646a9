//! Standard output as a stream: readable by another program, and no error when its reader closes
//! it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use lab::{End, Wire};

use crate::rig::{LIMIT, STRAIT, await_open, failure, numbered, run, send, strait};
use crate::tools;

/// Starts `strait capture` at the right end with a pipe as standard output.
fn piped(end: &End, options: &[&str]) -> Child {
    let mut command = Command::new(STRAIT);
    command.args(["capture", "-i", "right"]).args(options).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = end.run(|| command.spawn()).unwrap();
    assert!(await_open(child.id()));
    child
}

/// Closes the reader, and asserts that the capture ends without an error, with code 0 and a closed
/// ledger with the loss.
fn assert_quiet(mut child: Child) {
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}: {stderr}");
    assert!(!stderr.contains("strait: "), "{stderr}");
    assert!(stderr.contains("the ledger balances") && stderr.contains(" sink "), "{stderr}");
}

#[test]
fn stream_with_a_closed_reader_ends_without_an_error() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for format in ["pcapng", "pcap"] {
        let mut child = piped(wire.right(), &["-w", "-", "--format", format]);
        // Like `head -c 24`.
        let mut head = [0; 24];
        child.stdout.as_mut().unwrap().read_exact(&mut head).unwrap();
        drop(child.stdout.take());
        send(&wire, &numbered(10));
        assert_quiet(child);
    }
}

#[test]
fn lines_with_a_closed_reader_end_without_an_error() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let mut child = piped(wire.right(), &[]);
    send(&wire, &numbered(10));
    // Like `head -n 1`.
    let mut line = String::new();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut line).unwrap();
    drop(reader);
    assert!(line.contains(" > "), "{line}");
    send(&wire, &numbered(10));
    assert_quiet(child);
}

#[test]
fn stream_is_read_by_tcpdump_while_it_is_captured() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    if !tools::present() {
        return;
    }
    let script = r#""$0" capture -i right -w - --count 50 --format $1 | tcpdump -nn -r -"#;
    for format in ["pcapng", "pcap"] {
        let launch = wire.right().command("sh").args(["-c", script, STRAIT, format]);
        let process = launch.spawn().unwrap();
        // tcpdump prints this after the header, which is written when the capture is open.
        process.wait_for_stderr("reading from file -", LIMIT).unwrap();
        send(&wire, &numbered(60));
        let finished = process.wait(LIMIT).unwrap().success();
        assert_eq!(finished.text().lines().count(), 50, "{}", finished.stderr);
    }
}

#[test]
fn each_line_of_a_quiet_capture_is_written_immediately() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let process = strait(wire.right(), &["capture", "-i", "right"]).spawn().unwrap();
    assert!(await_open(process.id()));
    send(&wire, &numbered(1));
    process.wait_for_stdout("198.18.0.1.49152 > 198.19.0.1.20000: UDP, length 18\n", LIMIT).unwrap();
    let finished = process.interrupt(LIMIT).unwrap().success();
    assert_eq!(finished.text().lines().count(), 1);
}

#[test]
fn json_and_a_stream_cannot_share_standard_output() {
    let (code, line) = failure(&run(&["capture", "-i", "lo", "-w", "-", "--json"]));
    assert_eq!(code, 2, "{line}");
    assert!(line.contains("--json") && line.contains("-w -"), "{line}");
}

/// Runs strait with a standard error without a reader, and returns its exit code.
fn without_stderr(arguments: &[&str]) -> Option<i32> {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child =
        Command::new(STRAIT).args(arguments).stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    child.wait().unwrap().code()
}

#[test]
fn closed_standard_error_changes_no_exit_code() {
    assert_eq!(without_stderr(&["capture", "-r", "/no/such/file"]), Some(1));
    assert_eq!(without_stderr(&["doctor", "nosuch0"]), Some(2));
    if !lab::root_or_skip() {
        return;
    }
    assert_eq!(without_stderr(&["capture", "-i", "lo", "--duration", "0.1", "--json"]), Some(0));
    assert_eq!(without_stderr(&["capture", "-i", "lo", "--duration", "0.1"]), Some(0));
}

#[test]
fn closed_reader_of_standard_output_is_no_failure() {
    for arguments in [&["proxy", "--print-default-config"][..], &["completions", "bash"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(STRAIT).args(arguments).stdout(writer).output().unwrap();
        assert!(output.stderr.is_empty(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    }
}
