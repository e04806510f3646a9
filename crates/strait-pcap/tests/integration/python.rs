//! Programs in Python: Scapy, which loads libpcap with ctypes, and pcapy, an extension that is
//! linked with libpcap.

use std::time::Duration;

use lab::{Wire, fetched_or_skip};
use strait_packet::traffic::Kind;

use crate::rig::{LIMIT, SOURCES, STOCK_AND_PATHS, assert_took, reporting_on, send_mixed};

#[test]
fn pcapy_reads_the_same_as_with_stock_libpcap() {
    reads_as_with_stock_libpcap("read.py", "counts: True 0\nnothing: 0 []");
}

#[test]
fn scapy_sniffs_the_same_as_with_stock_libpcap() {
    reads_as_with_stock_libpcap("sniff.py", "nothing: 0, in time: True");
}

/// Runs a program on each path under the same traffic. It must print the same output each time,
/// with `last` at the end.
fn reads_as_with_stock_libpcap(program: &str, last: &str) {
    let Some(python) = fetched_or_skip("python/bin/python") else { return };
    let mut first = None;
    for path in STOCK_AND_PATHS {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let launch = wire.right().command(&python).arg(format!("{SOURCES}/python/{program}")).arg("right");
        let process = reporting_on(path, launch.env("PYTHONDONTWRITEBYTECODE", "1")).spawn().unwrap();
        process.wait_for_stdout("ready", LIMIT).unwrap();
        send_mixed(&wire, &[Kind::Udp4, Kind::Tcp4], 200, Duration::ZERO);
        let finished = process.wait(LIMIT).unwrap().success();
        assert_took(path, &finished.stderr);
        let printed = finished.text();
        assert!(printed.trim_end().ends_with(last), "{path:?}: {printed}");
        assert_eq!(first.get_or_insert(printed.clone()), &printed, "{path:?}");
    }
}
