//! The wheel in a newer Python than that of the system, as it is built once for all of them.

use std::io::pipe;
use std::path::PathBuf;

use lab::{Launch, Wire, fetched_or_skip};
use rustix::process::Signal;

use crate::rig::{
    LIMIT, count, frames, hex, packages_of, program, python_or_skip, result, send, started, write,
};

/// Returns Python 3.13 and the directory of the installed package, or skips the test.
fn newer_or_skip() -> Option<(PathBuf, String)> {
    let packages = packages_of(python_or_skip()?);
    Some((fetched_or_skip("python3.13/bin/python3.13")?, packages))
}

#[test]
fn newer_python_reads_a_file() {
    let Some((python, packages)) = newer_or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("day.pcapng");
    let written = frames(300);
    write(&file, &written);
    for (name, arguments, expected) in [
        ("file", &[file.to_str().unwrap(), "300"][..], format!("{}\n300 300\n", hex(&written))),
        ("stubs", &[], String::new()),
    ] {
        let launch = program(Launch::new(&python), name, arguments).env("PYTHONPATH", &packages);
        assert!(launch.run(LIMIT).unwrap().success().text() == expected, "{name}");
    }
}

#[test]
fn newer_python_captures_batches() {
    let Some((python, packages)) = newer_or_skip() else { return };
    let Some(wire) = Wire::builder().or_skip() else { return };
    let launch = program(wire.right().command(&python), "batches", &["right", "v3", "tcp"]);
    let process = started(launch.env("PYTHONPATH", &packages));
    send(&wire, &frames(300));
    let result = result(process);
    assert_eq!(result["rows"], 100);
    assert_eq!(count(&result["ledger"], "delivered"), 100, "{result}");
}

#[test]
fn interrupt_ends_a_wait_of_a_newer_python() {
    let Some((python, packages)) = newer_or_skip() else { return };
    let (input, output) = pipe().unwrap();
    let launch = program(Launch::new(&python), "input", &[]).env("PYTHONPATH", &packages);
    let process = launch.stdin(input).spawn().unwrap();
    process.wait_for_stdout("ready\n", LIMIT).unwrap();
    process.signal(Signal::INT);
    assert_eq!(process.wait(LIMIT).unwrap().success().text(), "ready\ninterrupted\n");
    drop(output);
}
