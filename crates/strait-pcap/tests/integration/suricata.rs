//! Suricata, unmodified: it alerts on the same packets and reports the same flows as with stock
//! libpcap.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::{Process, Wire, fetched_or_skip, wait_until};
use strait_packet::traffic::{Kind, Traffic};

use crate::rig::{LIMIT, PASSING, SOURCES, assert_took, on_with, send_traffic};

const FLOWS: u32 = 32;
const FRAMES: u64 = 640;
/// Number of alerts: the rules match eight of the flows.
const ALERTS: usize = FRAMES as usize / 4;

#[test]
fn suricata_reports_the_same_alerts_and_flows_as_with_stock_libpcap() {
    let Some(program) = fetched_or_skip("suricata/usr/bin/suricata") else { return };
    let Some(wire) = Wire::builder().or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let place = |path: Option<&str>| directory.path().join(path.unwrap_or("stock"));
    let launch = |path: Option<&'static str>| {
        fs::create_dir(place(path)).unwrap();
        (path, start(&wire, &program, path, &place(path)))
    };
    let running: Vec<_> = [None].into_iter().chain(PASSING.map(Some)).map(launch).collect();
    let traffic = Traffic::builder().flows(FLOWS).kinds(&[Kind::Udp4, Kind::Tcp4]).build().unwrap();
    send_traffic(&wire, &traffic, FRAMES, Duration::ZERO, || false);
    for (path, process) in running {
        let alerts = || events(&place(path), "alert");
        assert!(wait_until(LIMIT, || alerts() >= ALERTS), "{path:?}: {} alerts", alerts());
        let finished = process.interrupt(LIMIT).unwrap().success();
        assert_took(path, &finished.stderr);
        let counts = (alerts(), events(&place(path), "flow"));
        assert_eq!(counts, (ALERTS, FLOWS as usize), "{path:?}: {}", finished.stderr);
    }
}

fn start(wire: &Wire, program: &Path, path: Option<&str>, log: &Path) -> Process {
    let root: PathBuf = program.ancestors().nth(3).unwrap().into();
    let libraries = fs::read_dir(root.join("usr/lib")).unwrap().map(|entry| entry.unwrap().path());
    let libraries = libraries.filter(|path| path.to_string_lossy().contains("-linux-gnu")).last().unwrap();
    let classes = format!("classification-file={}/etc/suricata/classification.config", root.display());
    let references = format!("reference-config-file={}/etc/suricata/reference.config", root.display());
    let config = format!("{SOURCES}/suricata/suricata.yaml");
    let launch = wire.right().command(program).args(["--pcap=right", "--runmode=single", "-k", "none"]);
    let launch = launch.args(["-c", &config, "--set", &classes, "--set", &references, "-l"]).arg(log);
    let launch = launch.args(["-S", &format!("{SOURCES}/suricata/alerts.rules")]);
    let process = on_with(path, launch.env("STRAIT_REPORT", "1"), Some(&libraries)).spawn().unwrap();
    assert!(
        wait_until(LIMIT, || (process.stdout() + &process.stderr()).contains("Engine started")),
        "{path:?}: {}{}",
        process.stdout(),
        process.stderr()
    );
    process
}

/// Counts the events of a kind in the log so far.
fn events(log: &Path, kind: &str) -> usize {
    let text = fs::read_to_string(log.join("eve.json")).unwrap_or_default();
    text.matches(&format!("\"event_type\":\"{kind}\"")).count()
}
