//! Standard streams that are closed at the start: no data is lost without an error, and commands
//! without data on them work.

use std::fs;

use lab::{Finished, Launch};

use crate::refusals::RECORDING;
use crate::rig::{LIMIT, STRAIT, failure, packets};
use crate::run::with_library;

/// Runs `strait` with `arguments` from a shell with `redirection`.
fn redirected(redirection: &str, arguments: &[&str]) -> Finished {
    let script = format!(r#"exec "$0" "$@" {redirection}"#);
    Launch::new("sh").args(["-c", &script, STRAIT]).args(arguments).run(LIMIT).unwrap()
}

#[test]
fn data_is_not_written_to_a_closed_standard_output() {
    let record = ["capture", "-r", RECORDING];
    for arguments in [
        &["receive"][..],
        &["receive", "-o", "-"],
        &["receive", "-o", "/dev/null", "--json"],
        &record,
        &[&record[..], &["-w", "-"]].concat(),
        &[&record[..], &["--json"]].concat(),
        &["capture", "-D"],
        &["send", RECORDING, "127.0.0.1:1", "--json"],
        &["relay", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--json-log"],
        &["proxy", "--listen", "127.0.0.1:0", "--log", "-"],
        &["proxy", "--print-default-config"],
        &["completions", "bash"],
        &["cache", "stats", "--admin", "127.0.0.1:1"],
    ] {
        let finished = redirected(">&-", arguments);
        let (code, line) = failure(&finished);
        assert_eq!(code, 1, "{arguments:?}: {line}");
        assert!(line.starts_with("strait: standard output is closed"), "{arguments:?}: {line}");
        assert!(!finished.stderr.contains("listening"), "{arguments:?}: {}", finished.stderr);
    }
}

#[test]
fn nothing_is_read_from_a_closed_standard_input() {
    for arguments in
        [&["send", "-", "127.0.0.1:1"][..], &["capture", "-r", "-", "--quiet"], &["replay", "-", "-o", "lo"]]
    {
        let (code, line) = failure(&redirected("<&-", arguments));
        assert_eq!(code, 1, "{arguments:?}: {line}");
        assert!(line.starts_with("strait: standard input is closed"), "{arguments:?}: {line}");
    }
}

#[test]
fn commands_without_data_on_standard_output_run_with_it_closed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("copy.pcap");
    let written = ["capture", "-r", RECORDING, "-w", file.to_str().unwrap()];
    let _ = redirected(">&-", &written).success();
    assert_eq!(packets(&file), packets(RECORDING.as_ref()));
    let _ = redirected(">&- <&-", &["capture", "-r", RECORDING, "--quiet"]).success();
    let pages = directory.path().join("man");
    fs::create_dir(&pages).unwrap();
    let _ = redirected(">&-", &["man", pages.to_str().unwrap()]).success();
}

/// Service managers open the null device as their children's standard output.
#[test]
fn null_device_is_not_a_closed_output() {
    for redirection in [">/dev/null", "1<>/dev/null"] {
        for options in [&["-c", "3"][..], &["-w", "-"], &["--json"]] {
            let _ = redirected(redirection, &[&["capture", "-r", RECORDING], options].concat()).success();
        }
    }
}

#[test]
fn closed_output_stays_closed_for_a_program_under_strait_run() {
    let directory = tempfile::tempdir().unwrap();
    let strait = with_library(directory.path());
    let script = r#"exec "$0" run -- sh -c "echo lost 2>/dev/null || exit 7" >&-"#;
    let finished = Launch::new("sh").args(["-c", script]).arg(&strait).run(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(7), "{}", finished.stderr);
}
