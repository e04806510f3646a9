//! Program in Rust with the `pcap` crate: examples/sniff.rs.

use std::path::PathBuf;
use std::time::Duration;

use lab::Wire;
use strait_packet::traffic::Kind;

use crate::rig::{LIMIT, STOCK_AND_PATHS, assert_took, reporting_on, send_mixed};

/// Returns the program, which Cargo builds before the tests.
fn sniff() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().and_then(|deps| deps.parent()).unwrap().join("examples/sniff");
    assert!(built.is_file(), "{} is not built", built.display());
    built
}

#[test]
fn the_pcap_crate_reads_the_same_as_with_stock_libpcap() {
    let mut first = None;
    for path in STOCK_AND_PATHS {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let launch = wire.right().command(sniff()).args(["right", "80", "udp and port 20000"]);
        let process = reporting_on(path, launch).spawn().unwrap();
        process.wait_for_stdout("ready", LIMIT).unwrap();
        send_mixed(&wire, &[Kind::Udp4, Kind::Tcp4], 200, Duration::ZERO);
        let finished = process.wait(LIMIT).unwrap().success();
        assert_took(path, &finished.stderr);
        let printed = finished.text();
        assert!(printed.contains("\ntrue 0\nSome(TimeoutExpired)\n"), "{path:?}: {printed}");
        assert_eq!(first.get_or_insert(printed.clone()), &printed, "{path:?}");
    }
}
