//! Tests of lines and of the thread: each value of a flow is in its line, and each flow is
//! acknowledged or counted as lost.

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::export::{SinkShare, Writer};
use crate::flows::{EndReason, FlowRow, Side};
use crate::schema::FLOWS;

fn row(ports: Option<[u16; 2]>, lane: u32) -> FlowRow {
    let back = Side {
        packets: 5,
        octets: 5000,
        flags: Some(18),
        retransmitted: 1,
        out_of_order: 2,
        zero_windows: 3,
    };
    FlowRow {
        start_ns: 1_764_000_000_123_456_789,
        end_ns: 1_764_000_001_000_000_000,
        source: "192.0.2.1".parse().unwrap(),
        destination: "2001:db8::7".parse().unwrap(),
        ports,
        protocol: 6,
        vlan: Some(4094),
        sides: [Side { packets: 3, octets: 300, flags: Some(2), ..Side::default() }, back],
        handshake_ns: Some(1_000_000),
        reason: EndReason::Active,
        interface: lane,
        lane,
    }
}

/// Publisher that returns the given results, and records its calls.
struct Fake {
    results: mpsc::Receiver<Result<Outcome, String>>,
    calls: Arc<Mutex<Vec<(u64, String)>>>,
}

impl Publisher for Fake {
    fn publish(&mut self, first: u64, lines: &[u8], _: &dyn Fn() -> bool) -> Result<Outcome, String> {
        self.calls.lock().unwrap().push((first, String::from_utf8(lines.to_vec()).unwrap()));
        self.results.recv().unwrap_or_else(|_| Err("there is no result".into()))
    }
}

type Calls = Arc<Mutex<Vec<(u64, String)>>>;

/// Returns a writer to a publisher with these results.
fn writer(results: Vec<Result<Outcome, String>>, end: Duration) -> (Writer, Arc<Exporter>, Calls) {
    let (sender, receiver) = mpsc::channel();
    for result in results {
        sender.send(result).unwrap();
    }
    let calls = Calls::default();
    let fake = Fake { results: receiver, calls: Arc::clone(&calls) };
    let limits = Limits { end, ..Limits::default() };
    let exporter = Arc::new(open_with("broker".into(), "fr1", Box::new(fake), limits));
    exporter.start().unwrap();
    let names = |index| (index == 1).then(|| "odd\"name".to_owned());
    (Writer::new(Arc::clone(&exporter), Arc::new(names)), exporter, calls)
}

#[test]
fn line_has_the_columns_and_the_values_of_the_table() {
    let (mut writer, _exporter, calls) = writer(vec![Ok(Outcome::default())], Duration::MAX);
    let icmp = FlowRow { protocol: 1, ports: Some([8, 0]), handshake_ns: None, vlan: None, ..row(None, 0) };
    writer.write(&[row(Some([40_000, 443]), 1), icmp], true).unwrap();
    writer.settle().unwrap();
    let (first, lines) = calls.lock().unwrap().pop().unwrap();
    assert_eq!(first, 0);
    let lines: Vec<&str> = lines.lines().collect();
    let columns: Vec<String> = FLOWS.columns.iter().map(|column| format!("\"{}\":", column.name)).collect();
    for line in &lines {
        let positions: Vec<usize> = columns.iter().map(|name| line.find(name).unwrap()).collect();
        assert!(positions.is_sorted(), "{line}");
    }
    let values: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = json!({
        "sensor": "fr1",
        "flowStartNanoseconds": "2025-11-24T16:00:00.123456789Z",
        "flowEndNanoseconds": "2025-11-24T16:00:01.000000000Z",
        "flowEndReason": 2,
        "interfaceName": "odd\"name",
        "vlanId": 4094,
        "sourceAddress": "192.0.2.1",
        "destinationAddress": "2001:db8::7",
        "sourceTransportPort": 40_000,
        "destinationTransportPort": 443,
        "protocolIdentifier": 6,
        "icmpTypeCode": null,
        "communityId": values[0]["communityId"],
        "packetDeltaCount": 3,
        "reversePacketDeltaCount": 5,
        "octetDeltaCount": 300,
        "reverseOctetDeltaCount": 5000,
        "tcpControlBits": 2,
        "reverseTcpControlBits": 18,
        "handshakeNanoseconds": 1_000_000,
        "retransmitted": 0,
        "reverseRetransmitted": 1,
        "outOfOrder": 0,
        "reverseOutOfOrder": 2,
        "zeroWindows": 0,
        "reverseZeroWindows": 3,
    });
    assert_eq!(values[0], expected);
    assert!(values[0]["communityId"].as_str().unwrap().starts_with("1:"));
    let names = ["vlanId", "interfaceName", "sourceTransportPort", "handshakeNanoseconds", "icmpTypeCode"];
    assert_eq!(
        names.map(|name| &values[1][name]),
        [&Value::Null, &Value::Null, &Value::Null, &Value::Null, &json!(2048)]
    );
}

#[test]
fn lost_lines_are_counted_by_lane_and_numbers_go_on() {
    let refused = Outcome { lost: [0, 2].into(), cause: Some("refused".into()), repeated: 3 };
    let (mut writer, exporter, calls) =
        writer(vec![Ok(refused), Err("ended".into()), Ok(Outcome::default())], Duration::MAX);
    let rows = [row(None, 3), row(None, 3), row(None, 4)];
    let mut failures = Vec::new();
    for _ in 0..3 {
        writer.write(&rows, true).unwrap();
        writer.settle().unwrap();
        failures.push(exporter.failure());
    }
    assert_eq!(failures, [Some("refused".to_owned()), Some("ended".to_owned()), None]);
    assert_eq!(calls.lock().unwrap().iter().map(|(first, _)| *first).collect::<Vec<_>>(), [0, 3, 6]);
    let exported = writer.exported();
    assert_eq!((exported.flows, exported.messages, exported.lost), (1 + 3, 1 + 3, 2 + 3));
    assert_eq!(exported.repeated, 3);
    assert_eq!(exported.failure.as_deref(), Some("ended"));
    assert_eq!((writer.lost().of(3), writer.lost().of(4)), (8 * 3, 8 * 2));
}

#[test]
fn messages_have_a_limited_length_and_whole_lines() {
    let results = (0..20).map(|_| Ok(Outcome::default())).collect();
    let (mut writer, _exporter, calls) = writer(results, Duration::MAX);
    writer.write(&vec![row(Some([1, 2]), 0); 2000], true).unwrap();
    writer.settle().unwrap();
    let calls = calls.lock().unwrap();
    assert!(calls.len() > 2);
    let mut lines = 0;
    for (first, text) in &*calls {
        assert_eq!(*first, lines);
        assert!(text.len() <= LINES_BYTES_MAX && text.ends_with("}\n"));
        lines += text.lines().count() as u64;
    }
    assert_eq!((lines, writer.exported().flows), (2000, 2000));
}

#[test]
fn flows_are_lost_when_the_time_after_the_end_is_over() {
    let (mut writer, exporter, calls) = writer(vec![Ok(Outcome::default())], Duration::ZERO);
    let sinks = [(); 2].map(|()| SinkShare::new(Arc::clone(&exporter)));
    let mut write = || {
        writer.write(&[row(None, 0)], true).unwrap();
        writer.settle().unwrap();
        writer.exported()
    };
    let [first, second] = sinks;
    drop(first);
    let exported = write();
    assert_eq!((exported.flows, exported.lost), (1, 0), "another sink has not ended");
    drop(second);
    let exported = write();
    assert_eq!((exported.flows, exported.lost), (1, 1));
    assert!(exported.failure.unwrap().contains("s after the end"));
    assert_eq!(calls.lock().unwrap().len(), 1);
}
