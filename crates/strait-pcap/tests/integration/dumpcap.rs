//! dumpcap, unmodified, on the packet-socket paths: it polls the handle's descriptor, and drops its
//! privileges before it sets its filter.

use std::time::Duration;

use lab::{Launch, Wire, program_or_skip};
use strait_packet::traffic::Kind;

use crate::rig::{LIMIT, SOCKETS, assert_took, reporting_on, send};

#[test]
fn dumpcap_captures_the_packets_of_its_filter() {
    if !program_or_skip("dumpcap") || !program_or_skip("tcpdump") {
        return;
    }
    for path in SOCKETS {
        let Some(wire) = Wire::builder().or_skip() else { return };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("captured");
        let launch =
            wire.right().command("dumpcap").args(["-i", "right", "-f", "udp", "-a", "packets:50", "-w"]);
        let process = reporting_on(Some(path), launch.arg(&file)).spawn().unwrap();
        process.wait_for_stderr("File:", LIMIT).unwrap();
        send(&wire, &[Kind::Udp4, Kind::Tcp4], 100, Duration::ZERO, || false);
        let finished = process.wait(LIMIT).unwrap().success();
        assert!(finished.stderr.contains("Packets captured: 50"), "{path}: {}", finished.stderr);
        assert_took(Some(path), &finished.stderr);
        let udp = Launch::new("tcpdump").args(["-nnr"]).arg(&file).arg("udp").run(LIMIT).unwrap().success();
        assert_eq!(udp.text().lines().count(), 50, "{path}");
    }
}
