//! Tests of the formats and of the thread: each value of a flow is in its message, and each flow is
//! acknowledged or counted as lost.

use std::io::Cursor;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt8Type, UInt16Type, UInt32Type};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::StreamReader;
use serde_json::{Value, json};

use super::*;
use crate::export::{Record, SinkShare, Writer};
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
    calls: Calls,
}

impl Publisher for Fake {
    fn publish(&mut self, first: u64, batch: &[u8], _: &dyn Fn() -> bool) -> Result<Outcome, String> {
        self.calls.lock().unwrap().push((first, batch.to_vec()));
        self.results.recv().unwrap_or_else(|_| Err("there is no result".into()))
    }
}

type Calls = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

/// Returns a writer of lines to a publisher with these results.
fn writer(results: Vec<Result<Outcome, String>>, end: Duration) -> (Writer, Arc<Exporter>, Calls) {
    writer_of(Format::Json, results, end)
}

fn writer_of(
    format: Format,
    results: Vec<Result<Outcome, String>>,
    end: Duration,
) -> (Writer, Arc<Exporter>, Calls) {
    let (sender, receiver) = mpsc::channel();
    for result in results {
        sender.send(result).unwrap();
    }
    let calls = Calls::default();
    let fake = Fake { results: receiver, calls: Arc::clone(&calls) };
    let limits = Limits { end, ..Limits::default() };
    let exporter = Arc::new(open_with("broker".into(), "fr1", format, Box::new(fake), limits));
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
    let lines = String::from_utf8(lines).unwrap();
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
    let cause = Some("refused".into());
    let refused = Outcome { lost: [0, 2].into(), cause, repeated: 3, messages: 1, bytes: 10 };
    let stored = Outcome { messages: 2, bytes: 20, ..Outcome::default() };
    let (mut writer, exporter, calls) =
        writer(vec![Ok(refused), Err("ended".into()), Ok(stored)], Duration::MAX);
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
    assert_eq!((exported.flows, exported.lost), (1 + 3, 2 + 3));
    assert_eq!((exported.messages, exported.bytes), (1 + 2, 10 + 20));
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
        assert!(text.len() <= BATCH_BYTES_MAX && text.ends_with(b"}\n"));
        lines += text.split_inclusive(|byte| *byte == b'\n').count() as u64;
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

/// Returns a flow with a value in each column that its protocol permits, or with as few as
/// possible.
fn rows_of_all_kinds() -> [FlowRow; 3] {
    let icmp = FlowRow { protocol: 1, ports: Some([8, 0]), ..row(None, 1) };
    let empty = FlowRow { vlan: None, handshake_ns: None, ..row(None, 0) };
    [row(Some([40_000, 443]), 1), icmp, empty]
}

/// Returns the batches that a publisher gets for these flows.
fn published(format: Format, rows: &[FlowRow]) -> Vec<Vec<u8>> {
    let results = (0..50).map(|_| Ok(Outcome::default())).collect();
    let (mut writer, _exporter, calls) = writer_of(format, results, Duration::MAX);
    writer.write(rows, true).unwrap();
    writer.settle().unwrap();
    assert_eq!(writer.exported().flows, rows.len() as u64);
    let calls = std::mem::take(&mut *calls.lock().unwrap());
    calls.into_iter().map(|(_, batch)| batch).collect()
}

/// Returns the only batch of a stream.
fn read(stream: Vec<u8>) -> RecordBatch {
    let mut reader = StreamReader::try_new(Cursor::new(stream), None).unwrap();
    let batch = reader.next().unwrap().unwrap();
    assert!(reader.next().is_none());
    batch
}

#[test]
fn stream_of_arrow_has_the_values_of_the_lines() {
    let rows = rows_of_all_kinds();
    let [lines] = &published(Format::Json, &rows)[..] else { panic!("one batch") };
    let [stream] = &published(Format::Arrow, &rows)[..] else { panic!("one batch") };
    let batch = read(stream.clone());
    let schema = batch.schema();
    assert_eq!(schema.metadata()["strait.table"], "flows");
    for (at, line) in lines.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let line: Value = serde_json::from_slice(line).unwrap();
        for (field, column) in schema.fields().iter().zip(batch.columns()) {
            let expected = match &line[field.name()] {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                number => number.to_string(),
            };
            assert_eq!(text_of(column, at), expected, "{}", field.name());
        }
    }
    assert_eq!((batch.num_rows(), batch.num_columns()), (3, 1 + FLOWS.columns.len()));
}

/// Returns a value as its text in a line.
fn text_of(column: &dyn Array, at: usize) -> String {
    let texts = column.as_string_opt::<i32>();
    if column.is_null(at) {
        String::new()
    } else if let Some(texts) = texts {
        texts.value(at).to_owned()
    } else if let Some(times) = column.as_primitive_opt::<TimestampNanosecondType>() {
        lines::time_text(times.value(at).try_into().unwrap())
    } else {
        let number = column.as_primitive_opt::<Int64Type>().map(|numbers| numbers.value(at));
        let number = number.or_else(|| Some(column.as_primitive_opt::<UInt32Type>()?.value(at).into()));
        let number = number.or_else(|| Some(column.as_primitive_opt::<UInt16Type>()?.value(at).into()));
        let number = number.or_else(|| Some(column.as_primitive_opt::<UInt8Type>()?.value(at).into()));
        number.unwrap().to_string()
    }
}

/// Reads a varint.
fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

#[test]
fn messages_of_protobuf_have_the_values_of_the_lines() {
    let rows = rows_of_all_kinds();
    let [lines] = &published(Format::Json, &rows)[..] else { panic!("one batch") };
    let [batch] = &published(Format::Protobuf, &rows)[..] else { panic!("one batch") };
    let names = std::iter::once("sensor").chain(FLOWS.columns.iter().map(|column| column.name));
    let names: Vec<&str> = names.collect();
    let mut batch = &batch[..];
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let line: Value = serde_json::from_slice(line).unwrap();
        let length = varint(&mut batch) as usize;
        let (mut message, rest) = batch.split_at(length);
        batch = rest;
        let mut fields = std::collections::BTreeMap::new();
        while !message.is_empty() {
            let key = varint(&mut message);
            let value = varint(&mut message);
            let value = if key & 7 == 2 {
                let (text, rest) = message.split_at(value as usize);
                message = rest;
                String::from_utf8(text.to_vec()).unwrap()
            } else {
                assert_eq!(key & 7, 0, "a varint");
                value.to_string()
            };
            assert_eq!(fields.insert(key >> 3, value), None);
        }
        for (number, name) in (1..).zip(&names) {
            let is_optional = number >= 2 && FLOWS.columns[number as usize - 2].nullable;
            let expected = match &line[*name] {
                Value::Null => None,
                // A zero of a field that is not optional is left out.
                zero if *zero == 0 && !is_optional => None,
                Value::String(text) if number == 2 || number == 3 => {
                    let times = [row(None, 0).start_ns, row(None, 0).end_ns];
                    let time = times.into_iter().find(|time| lines::time_text(*time) == *text);
                    time.map(|time| time.to_string())
                }
                Value::String(text) => Some(text.clone()),
                number => Some(number.to_string()),
            };
            assert_eq!(fields.remove(&number), expected, "{name}");
        }
        assert!(fields.is_empty(), "{fields:?}");
    }
    assert!(batch.is_empty());
}

#[test]
fn definition_has_a_field_for_each_column() {
    let text = definition();
    for words in [
        "syntax = \"proto3\";\n",
        "  string sensor = 1;\n",
        "  uint64 flow_start_nanoseconds = 2;\n",
        "  optional string interface_name = 5;\n",
        "  string community_id = 13;\n",
        "  optional uint64 handshake_nanoseconds = 20;\n",
        "  uint32 reverse_zero_windows = 26;\n}\n",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    let fields = text.lines().filter(|line| line.ends_with(';') && line.contains(" = "));
    assert_eq!(fields.count(), 2 + FLOWS.columns.len(), "and the syntax");
    assert_eq!(FLOWS.columns[11].name, "communityId", "a client of Kafka reads field 13");
}

#[test]
fn batches_of_each_format_have_a_limited_length() {
    for (format, rows_max) in [(Format::Arrow, 2000), (Format::Protobuf, 2000)] {
        let row = row(Some([1, 2]), 1);
        let batches = published(format, &vec![row; 5000]);
        assert!(batches.len() > 5000 / rows_max, "{format:?}: {}", batches.len());
        for (at, batch) in batches.iter().enumerate() {
            let is_last = at + 1 == batches.len();
            let is_long = is_last || batch.len() > BATCH_BYTES_MAX * 3 / 4;
            assert!(batch.len() <= BATCH_BYTES_MAX && is_long, "{format:?}: {}", batch.len());
        }
    }
}

#[test]
fn longest_flow_fits_into_a_batch_of_its_own() {
    for format in [Format::Arrow, Format::Protobuf, Format::Json] {
        let mut builder = format.new_builder(&"s".repeat(255));
        let name = "\u{1}".repeat(255);
        let row = row(Some([1, 2]), 1);
        let record = Record { row: &row, interface: Some(&name) };
        let mut messages: Vec<Message> = (0..3).filter_map(|_| builder.push(&record, 0)).collect();
        messages.extend(builder.finish());
        assert!(builder.finish().is_none());
        assert_eq!(messages.iter().map(|message| message.flows.len()).collect::<Vec<_>>(), [1, 1, 1]);
        assert!(messages.iter().all(|message| !message.bytes.is_empty()));
        // The estimate for Arrow is not less than the length.
        assert!(messages.iter().all(|message| message.bytes.len() < 8 << 10), "{format:?}");
    }
}
