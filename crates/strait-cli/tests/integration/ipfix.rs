//! Export of flows: nfdump's collector stores the flows of the table, and every flow that it does
//! not get is counted.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};

use lab::{Launch, Process, Wire, fetched_or_skip, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use strait_packet::traffic::{Kind, Traffic};

use crate::refusals::RECORDING;
use crate::rig::{
    Capture, LIMIT, count, export_to_none, failure, frames_of, ledger, numbered, run, send, sizes,
};
use crate::tables::{Lake, file_of, mixed_file};

/// nfdump's collector, on a port of its own.
struct Collector {
    programs: PathBuf,
    process: Process,
    directory: tempfile::TempDir,
    port: u16,
}

impl Collector {
    /// Starts a collector in the test's namespace or that of `wire`'s right end. Skips the test if
    /// nfdump is not installed.
    fn or_skip(wire: Option<&Wire>) -> Option<Self> {
        let program = fetched_or_skip("nfdump/usr/bin/nfcapd")?;
        let directory = tempfile::tempdir().unwrap();
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let launch = wire.map_or_else(|| Launch::new(&program), |wire| wire.right().command(&program));
        let number = port.to_string();
        let process = launch
            .args(["-p", &number, "-b", "127.0.0.1", "-t", "3600", "-w"])
            .arg(directory.path())
            .spawn()
            .unwrap();
        process.wait_for_stderr("Startup", LIMIT).unwrap();
        let programs = program.parent().unwrap().to_owned();
        Some(Self { programs, process, directory, port })
    }

    /// Returns the value of --to.
    fn url(&self) -> String {
        format!("ipfix://127.0.0.1:{}?domain=7", self.port)
    }

    /// Ends the collector when it has read every datagram. Returns nfdump's flows, sorted.
    fn flows(self) -> (Vec<Flow>, String) {
        let sockets = Path::new("/proc").join(self.process.id().to_string()).join("net/udp");
        let port = format!(":{:04X} ", self.port);
        let has_read_all = || {
            let sockets = fs::read_to_string(&sockets).unwrap();
            let socket = sockets.lines().find(|line| line.contains(&port)).expect("its socket");
            // The second pair is the transmit and the receive queue; the last column counts drops.
            assert!(socket.trim_end().ends_with(" 0"), "the collector has lost datagrams: {socket}");
            socket.split_whitespace().nth(4).unwrap().ends_with(":00000000")
        };
        assert!(wait_until(LIMIT, has_read_all));
        self.process.signal(Signal::TERM);
        let log = self.process.wait(LIMIT).unwrap().stderr;
        let nfdump = Launch::new(self.programs.join("nfdump")).env("TZ", "UTC");
        let json = nfdump.arg("-R").arg(self.directory.path()).args(["-o", "json"]).run(LIMIT).unwrap();
        let flows: Value = serde_json::from_str(&json.success().text()).unwrap();
        let mut flows: Vec<Flow> = flows.as_array().unwrap().iter().map(flow).collect();
        flows.sort();
        (flows, log)
    }
}

/// Values of a flow: addresses, ports, protocol, flags, VLAN, packets and bytes in both directions,
/// start, end.
type Flow = Vec<String>;

/// Returns the values of nfdump's object.
fn flow(object: &Value) -> Flow {
    let text = |name: &str| match &object[name] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let either = |names: [&str; 2]| names.map(text).concat();
    // nfdump has no bit for AE, the ninth one.
    let bit = |flag: char| "FSRPAUEC".find(flag).map_or(0, |bit| 1 << bit);
    let flags: u32 = text("tcp_flags").chars().map(bit).sum();
    vec![
        either(["src4_addr", "src6_addr"]),
        either(["dst4_addr", "dst6_addr"]),
        text("src_port"),
        text("dst_port"),
        text("proto"),
        flags.to_string(),
        text("src_vlan"),
        text("in_packets"),
        text("in_bytes"),
        text("out_packets"),
        text("out_bytes"),
        text("first"),
        text("last"),
    ]
}

/// Query for the same values in the table.
const TABLE: &str = "select sourceAddress, destinationAddress, sourceTransportPort, \
    destinationTransportPort, protocolIdentifier, coalesce(tcpControlBits, 0) & 255, vlanId, packetDeltaCount, \
    octetDeltaCount, reversePacketDeltaCount, reverseOctetDeltaCount, \
    strftime(flowStartNanoseconds, '%Y-%m-%dT%H:%M:%S.%g'), strftime(flowEndNanoseconds, '%Y-%m-%dT%H:%M:%S.%g') \
    from flows";

#[test]
fn nfdump_has_the_flows_of_the_table() {
    let Some(lake) = Lake::or_skip() else { return };
    check(&lake, &mixed_file(lake.path()));
}

#[test]
fn nfdump_has_the_flows_of_many_messages() {
    let Some(lake) = Lake::or_skip() else { return };
    let traffic = Traffic::builder().kinds(&Kind::ALL).sizes(sizes("128")).flows(700).build().unwrap();
    let frames = frames_of(&traffic, 2000).into_iter();
    let Some(flows) = check(&lake, &file_of(&lake.path().join("many.pcapng"), frames)) else { return };
    // Some 20 of them fit into a message.
    assert!(flows > 500, "{flows}");
}

/// Compares the flows of a file in the table and in nfdump; returns their number, or `None` without
/// nfdump.
fn check(lake: &Lake, file: &Path) -> Option<usize> {
    let collector = Collector::or_skip(None)?;
    let input = ["capture", "-r", file.to_str().unwrap(), "--to"];
    let _ = run(&[&input[..], &[&lake.url(), "--tables", "flows"]].concat()).success();
    let exported = run(&[&input[..], &[&collector.url()]].concat()).success();

    let expected = lake.ask(lake.path(), &["sql", TABLE]);
    let words = format!("exported {} flows, ", expected.len());
    assert!(exported.stderr.contains(&words), "{}", exported.stderr);
    let (flows, log) = collector.flows();
    assert!(
        log.contains("Observation domain 7") && log.contains("Sequence Errors: 0, Bad Packets: 0"),
        "{log}"
    );
    assert_eq!(flows, sorted(expected));
    Some(flows.len())
}

fn sorted(mut flows: Vec<Flow>) -> Vec<Flow> {
    flows.sort();
    flows
}

/// Returns the packets of flows in both directions.
fn packets(flows: &[Flow]) -> u64 {
    flows
        .iter()
        .flat_map(|flow| [&flow[7], &flow[9]])
        .map(|packets| packets.parse::<u64>().unwrap_or(0))
        .sum()
}

#[test]
fn several_files_are_one_export() {
    let Some(collector) = Collector::or_skip(None) else { return };
    let url = collector.url();
    let files = ["-r", RECORDING, "-r", RECORDING, "-r", RECORDING, "ip"];
    let ledger = ledger(&run(&[&["capture", "--json", "--to", &url], &files[..]].concat()).success());
    let (flows, log) = collector.flows();
    assert!(log.matches("New ipfix exporter").count() == 1 && log.contains("Sequence Errors: 0"), "{log}");
    assert_eq!(packets(&flows), count(&ledger, "delivered"));
}

#[test]
fn live_capture_exports_every_packet_that_the_ledger_has() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(collector) = Collector::or_skip(Some(&wire)) else { return };
    let url = collector.url();
    let capture = Capture::start(wire.right(), &["--to", &url, "--queues", "0-1", "--json", "udp"]);
    send(&wire, &numbered(500));
    let ledger = ledger(&capture.finish());
    let (flows, _) = collector.flows();
    assert!(count(&ledger, "delivered") > 0, "{ledger}");
    assert_eq!(packets(&flows), count(&ledger, "delivered"));
}

#[test]
fn collector_that_is_down_is_reported_and_its_packets_are_lost_in_the_sink() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    for (scheme, transport) in [("ipfix", "UDP"), ("ipfix+tcp", "TCP")] {
        let url = format!("{scheme}://127.0.0.1:4739");
        let name = format!("127.0.0.1:4739 over {transport}");
        let finished = export_to_none(&wire, &url, &name, "Connection refused");
        assert!(finished.stderr.contains(" flows are lost: Connection refused"), "{}", finished.stderr);
    }
}

#[test]
fn collector_that_is_down_is_reported_before_the_first_flow() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let capture = Capture::start(wire.right(), &["--to", "ipfix+tcp://127.0.0.1:4739", "udp"]);
    let note = "note: the export to 127.0.0.1:4739 over TCP fails: Connection refused";
    assert!(wait_until(LIMIT, || capture.stderr().contains(note)), "{}", capture.stderr());
    let finished = capture.finish();
    assert!(finished.stderr.contains("exported 0 flows"), "{}", finished.stderr);
}

#[test]
fn options_without_an_effect_on_an_export_are_refused() {
    for (options, words) in [
        (&["--sensor", "s"][..], "leave out --sensor"),
        (&["--tables", "packets,flows"], "leave out --tables"),
        (&["--columns", "basic"], "leave out --columns"),
        (&["--frames", "64"], "leave out --frames"),
        (&["--rotate-s", "5"], "leave out the rotation of files"),
        (&["--to", "ipfix://host:70000"], "70000: give a port from 1 to 65535"),
        (&["--to", "ipfix://host/path"], "give the collector's name or address"),
    ] {
        let to = if options[0] == "--to" { &[][..] } else { &["--to", "ipfix://127.0.0.1"] };
        let finished = run(&[&["capture", "-r", RECORDING], to, options].concat());
        assert_eq!(finished.status.code(), Some(2), "{options:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{options:?}: {}", finished.stderr);
    }
    let finished = run(&["capture", "-r", RECORDING, "--to", "ipfix://nosuch.invalid"]);
    let (code, line) = failure(&finished);
    assert!(code == 1 && line.contains("look up nosuch.invalid:4739: "), "{code} {line}");
}
