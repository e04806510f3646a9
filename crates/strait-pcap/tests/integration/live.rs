//! A program in C that uses the live calls, on each path and on stock libpcap, which is held to the same checks.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lab::{Launch, Wire, program_or_skip};
use strait_packet::traffic::Kind;

use crate::rig::{LIMIT, library, send};

/// More than the programs need for all paths.
const FRAMES_MAX: u64 = 50_000;
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/integration/c/live.c");

/// The program, built.
fn program(directory: &Path) -> PathBuf {
    let program = directory.join("live");
    let options = ["-Wall", "-Wextra", "-Werror", "-O1", "-D_GNU_SOURCE", SOURCE, "-o"];
    let _ = Launch::new("cc")
        .args(options)
        .arg(&program)
        .args(["-lpcap", "-lpthread"])
        .run(LIMIT)
        .unwrap()
        .success();
    program
}

#[test]
fn live_calls_do_what_libpcaps_do_on_every_path() {
    if !program_or_skip("cc") {
        return;
    }
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (program, file) = (program(directory.path()), directory.path().join("dumped"));
    let (library, over) = (library(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let is_over = || over.load(Ordering::Relaxed);
            send(&wire, &[Kind::Udp4], FRAMES_MAX, Duration::from_millis(2), is_over);
        });
        let outcomes: Vec<_> = [None, Some("recv"), Some("v2"), Some("v3"), Some("xdp")]
            .into_iter()
            .map(|path| {
                let launch = wire.right().command(&program).arg("right").arg(&file);
                let launch = match path {
                    Some(path) => {
                        let launch = launch.env("LD_PRELOAD", &library).env("STRAIT_STRICT", "1");
                        launch.env("STRAIT_PATH", path)
                    }
                    None => launch,
                };
                (path, launch.run(LIMIT))
            })
            .collect();
        over.store(true, Ordering::Relaxed);
        for (path, outcome) in outcomes {
            let finished = outcome.unwrap();
            assert!(finished.status.success(), "{path:?}: {}{}", finished.text(), finished.stderr);
        }
    });
}
