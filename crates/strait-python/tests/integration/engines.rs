//! Libraries that take batches over: pyarrow, DuckDB and Polars.

use lab::{Launch, Wire};
use rustix::process::Signal;

use crate::rig::{LIMIT, frames, package_or_skip, program, python_or_skip, started, write};

/// Runs a program with a library on a file of 3,000 frames.
fn run(name: &str, library: &str) {
    let Some(python) = python_or_skip() else { return };
    let Some(engines) = package_or_skip("tables", library) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("day.pcapng");
    let written = frames(3000);
    write(&file, &written);
    let total: usize = written.iter().map(Vec::len).sum();
    let arguments = [file.to_str().unwrap(), &total.to_string()];
    let launch = program(Launch::new(python), name, &arguments).env("PYTHONPATH", engines);
    assert_eq!(launch.run(LIMIT).unwrap().success().text(), "done\n");
}

#[test]
fn pyarrow_shares_the_memory_of_a_batch_which_outlives_it() {
    run("arrow", "pyarrow");
}

#[test]
fn batches_after_frames_have_all_later_packets() {
    run("mixed", "pyarrow");
}

#[test]
fn duckdb_queries_a_batch_and_a_session() {
    run("duck", "duckdb");
}

#[test]
fn polars_has_the_rows_of_a_batch_and_of_a_session() {
    run("polar", "polars");
}

#[test]
fn interrupt_ends_a_library_that_waits_for_a_batch() {
    let Some(python) = python_or_skip() else { return };
    let Some(engines) = package_or_skip("tables", "pyarrow") else { return };
    let Some(wire) = Wire::builder().or_skip() else { return };
    let launch = program(wire.right().command(python), "stream", &["right"]).env("PYTHONPATH", engines);
    let process = started(launch);
    process.signal(Signal::INT);
    let printed = process.wait(LIMIT).unwrap().success().text();
    assert_eq!(printed, "ready\ninterrupted\n");
}
