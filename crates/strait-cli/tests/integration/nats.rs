//! Publishing of flows: the stream of a NATS server has the flows of the table, each once, and
//! every flow that it does not get is counted.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use lab::{Nats, Process, Wire, wait_until};
use rustix::process::Signal;
use serde_json::Value;

use crate::refusals::RECORDING;
use crate::rig::{
    Capture, LIMIT, STRAIT, await_open, count, export_to_none, ledger, numbered, run, send, strait,
};
use crate::tables::{Lake, mixed_file};
use crate::upload::upload_program;

/// Columns of the table and of a message.
const COLUMNS: [&str; 23] = [
    "flowEndReason",
    "interfaceName",
    "vlanId",
    "sourceAddress",
    "destinationAddress",
    "sourceTransportPort",
    "destinationTransportPort",
    "protocolIdentifier",
    "icmpTypeCode",
    "communityId",
    "packetDeltaCount",
    "reversePacketDeltaCount",
    "octetDeltaCount",
    "reverseOctetDeltaCount",
    "tcpControlBits",
    "reverseTcpControlBits",
    "handshakeNanoseconds",
    "retransmitted",
    "reverseRetransmitted",
    "outOfOrder",
    "reverseOutOfOrder",
    "zeroWindows",
    "reverseZeroWindows",
];

/// UDP flows of numbered frames.
const UDP_FLOWS: usize = 8;

/// Returns the flows of the stream. Each has an identifier of its own.
fn flows(nats: &Nats) -> Vec<Value> {
    let messages = nats.messages();
    let ids: BTreeSet<&str> = messages.iter().map(|message| &*message.id).collect();
    assert!(ids.len() == messages.len() && ids.iter().all(|id| !id.is_empty()), "{messages:?}");
    messages.iter().map(|message| serde_json::from_slice(&message.content).unwrap()).collect()
}

/// Returns the packets of flows in both directions.
pub(crate) fn packets(flows: &[Value]) -> u64 {
    let of = |flow: &Value, name: &str| flow[name].as_u64().unwrap();
    flows.iter().map(|flow| of(flow, "packetDeltaCount") + of(flow, "reversePacketDeltaCount")).sum()
}

#[test]
fn stream_has_the_flows_of_the_table() {
    let _ = upload_program();
    let Some(nats) = Nats::up_or_skip() else { return };
    let Some(lake) = Lake::or_skip() else { return };
    let file = mixed_file(lake.path());
    let input = ["capture", "-r", file.to_str().unwrap(), "--sensor", "fr1", "--to"];
    let _ = run(&[&input[..], &[&lake.url(), "--tables", "flows"]].concat()).success();
    let url = nats.url("flows.fr1");
    let published = run(&[&input[..], &[&url]].concat()).success();

    let time = |name| format!("strftime({name}, '%Y-%m-%dT%H:%M:%S.%g')");
    let times = [time("flowStartNanoseconds"), time("flowEndNanoseconds")].join(", ");
    let query = format!("select {times}, {} from flows", COLUMNS.join(", "));
    let mut expected = lake.ask(lake.path(), &["sql", &query]);
    let flows = flows(&nats);
    let mut values: Vec<Vec<String>> = flows.iter().map(texts).collect();
    expected.sort();
    values.sort();
    assert!(expected.len() > 10);
    assert_eq!(values, expected);
    assert!(flows.iter().all(|flow| flow["sensor"] == "fr1" && flow.as_object().unwrap().len() == 26));
    let count = expected.len();
    let words = [format!("exported {count} flows, "), format!(" in {count} messages to {url}")];
    assert!(words.iter().all(|words| published.stderr.contains(words)), "{}", published.stderr);
}

/// Returns the values of a flow as the table's text, with times in milliseconds.
fn texts(flow: &Value) -> Vec<String> {
    let time = |name: &str| flow[name].as_str().unwrap()[..23].to_owned();
    let text = |name: &&str| match &flow[*name] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        number => number.to_string(),
    };
    let times = ["flowStartNanoseconds", "flowEndNanoseconds"].map(time);
    times.into_iter().chain(COLUMNS.iter().map(text)).collect()
}

#[test]
fn several_files_are_one_export() {
    let Some(nats) = Nats::up_or_skip() else { return };
    let inputs = ["capture", "-r", RECORDING, "-r", RECORDING, "--json", "--to", &nats.url("flows.a"), "ip"];
    let ledger = ledger(&run(&inputs).success());
    let flows = flows(&nats);
    assert_eq!(packets(&flows), count(&ledger, "delivered"));
    let exported = ["flows", "messages", "lost", "repeated"].map(|name| count(&ledger["exported"], name));
    let flows = flows.len() as u64;
    assert_eq!(exported, [flows, flows, 0, 0]);
}

#[test]
fn two_subjects_of_one_stream_get_all_flows() {
    let _ = upload_program();
    let Some(nats) = Nats::up_or_skip() else { return };
    let urls = [nats.url("flows.a"), nats.url("flows.b")];
    let inputs = ["capture", "-r", RECORDING, "--json", "--to", &urls[0], "--to", &urls[1], "ip"];
    let ledger = ledger(&run(&inputs).success());
    let all = flows(&nats);
    assert_eq!(all.len() as u64, count(&ledger["exported"], "flows"), "{ledger}");
    assert_eq!(packets(&all), 2 * count(&ledger, "delivered"), "{ledger}");
}

#[test]
fn every_packet_of_the_ledger_is_in_a_flow_also_after_a_restart_of_the_server() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(mut nats) = wire.right().run(Nats::up_or_skip) else { return };
    let url = nats.url("flows.fr1");
    let options = ["--to", &url, "--queues", "0-1", "--flow-idle", "1", "--json", "udp"];
    let capture = Capture::start(wire.right(), &options);
    send(&wire, &numbered(500));
    assert!(wait_until(LIMIT, || wire.right().run(|| nats.count()) >= UDP_FLOWS));
    nats.stop();
    send(&wire, &numbered(300));
    wire.right().run(|| nats.start(&[]));
    send(&wire, &numbered(200));
    let ledger = ledger(&capture.end(Signal::INT));
    let flows = wire.right().run(|| flows(&nats));
    let (delivered, lost) = (count(&ledger, "delivered"), count(&ledger["lost"], "sink"));
    assert_eq!(packets(&flows), delivered, "{ledger}");
    // The server may need longer than flows wait for it. Half of the frames are UDP.
    assert!(delivered >= 250 && delivered + lost >= 500, "{ledger}");
}

#[test]
fn server_that_is_down_is_reported_and_its_packets_are_lost_in_the_sink() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let url = "nats://127.0.0.1:4222/flows";
    let finished = export_to_none(&wire, url, url, "IO error: Connection refused");
    assert!(finished.stderr.contains(" flows are lost: "), "{}", finished.stderr);
}

/// Returns the program that publishes for a capture.
fn publisher(capture: &Process) -> rustix::process::Pid {
    let id = capture.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let child = children.trim();
    let words = fs::read_to_string(Path::new("/proc").join(child).join("cmdline")).unwrap();
    assert!(words.contains("publish"), "{words}");
    rustix::process::Pid::from_raw(child.parse().unwrap()).unwrap()
}

#[test]
fn killed_program_is_reported_and_its_packets_are_lost_in_the_sink() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(nats) = wire.right().run(Nats::up_or_skip) else { return };
    let url = nats.url("flows.fr1");
    let options = ["capture", "-i", "right", "--to", &url, "--flow-idle", "1", "--json", "udp"];
    let capture = strait(wire.right(), &options).spawn().unwrap();
    assert!(await_open(capture.id()), "{}", capture.stderr());
    rustix::process::kill_process(publisher(&capture), Signal::KILL).unwrap();
    send(&wire, &numbered(100));
    let note = format!("strait: note: the export to {url} fails: strait-upload has ended; flows are lost");
    capture.wait_for_stderr(&note, LIMIT).unwrap();
    capture.signal(Signal::INT);
    let finished = capture.wait(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let ledger = ledger(&finished);
    assert!(count(&ledger["lost"], "sink") > 0, "{ledger}");
    assert_eq!(packets(&wire.right().run(|| flows(&nats))), count(&ledger, "delivered"), "{ledger}");
}

#[test]
fn wrong_uses_of_a_broker_are_refused() {
    let _ = upload_program();
    let nats = "nats://127.0.0.1:1/flows";
    for (options, words) in [
        (&[nats, "--tables", "packets,flows"][..], "leave out --tables"),
        (&[nats, "--columns", "basic"], "leave out --columns"),
        (&[nats, "--rotate-s", "5"], "leave out the rotation of files"),
        (&["nats://host"], "give a server and a subject, as in nats://192.0.2.1:4222/flows"),
        (&["nats://host/a.>"], "a subject has letters"),
        (&["nats://user:x@host/a"], "give credentials by NATS_CREDS"),
    ] {
        let finished = run(&[&["capture", "-r", RECORDING, "--to"], options].concat());
        assert_eq!(finished.status.code(), Some(2), "{options:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{options:?}: {}", finished.stderr);
    }
    let arguments = ["capture", "-r", RECORDING, "--to", nats];
    let finished = lab::Launch::new(STRAIT).args(arguments).env("NATS_CREDS", "/nonexistent");
    let finished = finished.run(LIMIT).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
    let words = [
        "read the credentials in /nonexistent, of NATS_CREDS",
        "start the export to nats://127.0.0.1:1/flows",
    ];
    assert!(words.iter().all(|words| finished.stderr.contains(words)), "{}", finished.stderr);
}
