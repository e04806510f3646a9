//! Statistics of tcpdump, on SIGUSR1 and at its end: they are exact, and equal those of stock
//! tcpdump.

use std::path::Path;
use std::time::Duration;

use lab::{Process, Wire, program_or_skip, wait_until};
use rustix::process::Signal;
use strait_packet::traffic::Kind;

use crate::rig::{LIMIT, PASSING, on, send};
use crate::savefile::Savefile;

#[test]
fn tcpdump_prints_exact_counts_on_request_and_at_its_end() {
    if !program_or_skip("tcpdump") {
        return;
    }
    let Some(wire) = Wire::builder().or_skip() else { return };
    let beside: Vec<_> = [None].into_iter().chain(PASSING.map(Some)).collect();
    ask_and_interrupt(&wire, &beside);
    ask_and_interrupt(&wire, &[Some("xdp")]);
}

fn ask_and_interrupt(wire: &Wire, paths: &[Option<&str>]) {
    let directory = tempfile::tempdir().unwrap();
    let place = |path: Option<&str>| directory.path().join(path.unwrap_or("stock"));
    let running: Vec<_> = paths.iter().map(|path| (*path, start(wire, *path, &place(*path)))).collect();
    let wait_for = |count: usize| {
        send(wire, &[Kind::Udp4, Kind::Tcp4], 200, Duration::ZERO, || false);
        let complete = || paths.iter().all(|path| Savefile::read(&place(*path)).packets == count);
        assert!(wait_until(LIMIT, complete), "{paths:?} have {count} packets");
    };
    wait_for(100);
    for (path, process) in &running {
        process.signal(Signal::USR1);
        process.wait_for_stderr("dropped by kernel", LIMIT).unwrap();
        assert!(process.stderr().contains(&counts(100, ", ")), "{path:?}: {}", process.stderr());
    }
    wait_for(200);
    for (path, process) in running {
        let stderr = process.interrupt(LIMIT).unwrap().success().stderr;
        assert!(stderr.contains(&counts(200, "\n")), "{path:?}: {stderr}");
    }
}

fn start(wire: &Wire, path: Option<&str>, file: &Path) -> Process {
    let launch = wire.right().command("tcpdump").args(["-Un", "--immediate-mode", "-i", "right", "-w"]);
    let process = on(path, launch.arg(file).arg("udp")).spawn().unwrap();
    process.wait_for_stderr("listening on", LIMIT).unwrap();
    process
}

fn counts(packets: u32, between: &str) -> String {
    let received = format!("{packets} packets received by filter");
    format!("{packets} packets captured{between}{received}{between}0 packets dropped by kernel")
}
