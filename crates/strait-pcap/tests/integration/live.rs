//! Live calls of a program in C, with the same checks on each path and on stock libpcap.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lab::{Finished, Result, Wire, program_or_skip};
use strait_packet::traffic::Kind;

use crate::rig::{LIMIT, STOCK_AND_PATHS, built, on, send};

/// More frames than the programs need on all paths.
const FRAMES_MAX: u64 = 100_000;
const PARTS: [&str; 3] = ["live.c", "options.c", "waiting.c"];

#[test]
fn live_calls_behave_like_libpcaps_on_every_path() {
    for_each_path(&STOCK_AND_PATHS, &[]);
}

#[test]
fn live_calls_have_no_leaks_and_no_invalid_accesses() {
    let leaks = ["--leak-check=full", "--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"];
    if program_or_skip("valgrind") {
        let options = ["--quiet", "--error-exitcode=9", "--undef-value-errors=no"];
        for_each_path(&STOCK_AND_PATHS[1..], &[&["valgrind"], &options[..], &leaks].concat());
    }
}

/// Runs the program under `runner` on each of `paths`, while frames come in.
fn for_each_path(paths: &[Option<&str>], runner: &[&str]) {
    if !program_or_skip("cc") {
        return;
    }
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let program = built(&PARTS, directory.path());
    let over = AtomicBool::new(false);
    let outcomes = std::thread::scope(|scope| {
        scope.spawn(|| {
            let is_over = || over.load(Ordering::Relaxed);
            send(&wire, &[Kind::Udp4], FRAMES_MAX, Duration::from_millis(2), is_over);
        });
        let file = directory.path().join("dumped");
        let run = |path| (path, run(&wire, runner, &program, &file, path));
        let outcomes: Vec<_> = paths.iter().copied().map(run).collect();
        over.store(true, Ordering::Relaxed);
        outcomes
    });
    for (path, outcome) in outcomes {
        let finished = outcome.unwrap();
        assert!(finished.status.success(), "{path:?}: {}{}", finished.text(), finished.stderr);
    }
}

fn run(wire: &Wire, runner: &[&str], program: &Path, file: &Path, path: Option<&str>) -> Result<Finished> {
    let launch = match runner.split_first() {
        Some((first, rest)) => wire.right().command(first).args(rest).arg(program),
        None => wire.right().command(program),
    };
    on(path, launch.arg("right").arg(file)).run(LIMIT)
}
