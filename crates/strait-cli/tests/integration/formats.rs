//! Formats of published flows: pyarrow and protoc read the flows that JSON has, each once, and the
//! packets of the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::PathBuf;

use lab::{Kafka, Launch, Nats, StoredRecord, fetched_or_skip, program_or_skip};
use serde_json::Value;

use crate::rig::{LIMIT, count, ledger, run};
use crate::tables::mixed_file;
use crate::upload::upload_program;

/// Partitions of each topic.
const PARTITIONS: u32 = 4;

/// Prints each row of streams of Arrow IPC as JSON. Each stream must have one record batch.
const SCRIPT: &str = "
import json, sys
import pyarrow as pa
for path in sys.argv[1:]:
    with pa.OSFile(path) as file, pa.ipc.open_stream(file) as stream:
        [batch] = list(stream)
    batch.validate(full=True)
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns):
        if pa.types.is_timestamp(column.type):
            assert column.type == pa.timestamp('ns', 'UTC'), column.type
            column = column.cast(pa.int64())
        columns[name] = column.to_pylist()
    for row in range(batch.num_rows):
        print(json.dumps({name: values[row] for name, values in columns.items()}))
";

/// Values of a flow that are not null, as text. Times are nanoseconds since the epoch.
type Row = BTreeMap<String, String>;

/// Programs that decode messages independently of this project.
struct Decoders {
    python: PathBuf,
    directory: tempfile::TempDir,
}

impl Decoders {
    /// Skips the test if a program is not installed.
    fn or_skip() -> Option<Self> {
        let python = fetched_or_skip("tables/bin/python").filter(|_| program_or_skip("protoc"))?;
        Some(Self { python, directory: tempfile::tempdir().unwrap() })
    }

    /// Returns the rows of each stream of Arrow IPC.
    fn arrow(&self, streams: &[&[u8]]) -> Vec<Vec<Row>> {
        let path = self.directory.path().join("stream");
        let read = |stream: &&[u8]| {
            fs::write(&path, stream).unwrap();
            let text =
                Launch::new(&self.python).args(["-c", SCRIPT]).arg(&path).run(LIMIT).unwrap().success();
            text.text().lines().map(|line| row(&serde_json::from_str(line).unwrap())).collect()
        };
        streams.iter().map(read).collect()
    }

    /// Returns the rows of messages of Protocol Buffers, by the printed definition.
    fn protobuf(&self, messages: &[&[u8]]) -> Vec<Row> {
        let definition = run(&["capture", "--schema=proto"]).success().text();
        let path = |name: &str| self.directory.path().join(name);
        fs::write(path("flow.proto"), &definition).unwrap();
        let all =
            "syntax = \"proto3\"; import \"flow.proto\"; message All { repeated strait.Flow flow = 1; }";
        fs::write(path("all.proto"), all).unwrap();
        let field = |message: &&[u8]| {
            let low = (message.len() & 0x7f) as u8 | 0x80;
            let high = u8::try_from(message.len() >> 7).unwrap();
            assert!(high < 0x80);
            [&[10, low, high], *message].concat()
        };
        fs::write(path("input"), messages.iter().flat_map(field).collect::<Vec<u8>>()).unwrap();
        let launch = Launch::new("protoc").arg(format!("-I{}", self.directory.path().display()));
        let launch = launch.args(["--decode=All", "all.proto"]).stdin(File::open(path("input")).unwrap());
        let text = launch.run(LIMIT).unwrap().success().text();
        let field = |line: &str| {
            let (name, value) = line.trim().split_once(": ").unwrap();
            (camel_case(name), value.trim_matches('"').to_owned())
        };
        let flows = text.split("flow {\n").skip(1).map(|flow| flow.strip_suffix("}\n").unwrap());
        flows.map(|flow| zeros(&definition).chain(flow.lines().map(field)).collect()).collect()
    }
}

/// Returns zero for each field of a number: a message may leave it out.
fn zeros(definition: &str) -> impl Iterator<Item = (String, String)> {
    let fields = definition.lines().filter_map(|line| line.strip_prefix("  uint"));
    let name = |field: &str| camel_case(field.split(' ').nth(1).unwrap());
    fields.map(move |field| (name(field), "0".to_owned()))
}

/// Returns the name of a column for that of a field.
fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..])
}

/// Returns the row of an object of JSON.
fn row(flow: &Value) -> Row {
    let value = |(name, value): (&String, &Value)| match value {
        Value::Null => None,
        Value::String(text) if name.starts_with("flow") => Some((name.clone(), time_ns(text).to_string())),
        Value::String(text) => Some((name.clone(), text.clone())),
        number => Some((name.clone(), number.to_string())),
    };
    flow.as_object().unwrap().iter().filter_map(value).collect()
}

/// Returns the nanoseconds since the epoch of a time after the year 2000.
fn time_ns(text: &str) -> u64 {
    let numbers: Vec<u64> =
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    let [year, month, day, hour, minute, second, nanosecond] = numbers[..] else { panic!("{text}") };
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let lengths = [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let years: u64 = (1970..year).map(|year| 365 + u64::from(is_leap(year))).sum();
    let days = years + lengths[..month as usize - 1].iter().sum::<u64>() + day - 1;
    (((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000_000 + nanosecond
}

/// Returns the packets of flows in both directions.
fn packets(rows: &[Row]) -> u64 {
    let of = |row: &Row, name: &str| row[name].parse::<u64>().unwrap();
    rows.iter().map(|row| of(row, "packetDeltaCount") + of(row, "reversePacketDeltaCount")).sum()
}

fn contents(records: &[StoredRecord]) -> Vec<&[u8]> {
    records.iter().map(|record| &*record.content).collect()
}

/// Publishes the flows of a file to the URLs of JSON, Arrow and Protobuf. Returns the ledger.
fn publish(directory: &std::path::Path, url: impl Fn(&str) -> String) -> Value {
    let _ = upload_program();
    let file = mixed_file(directory);
    let urls = ["json", "arrow", "protobuf"].map(|format| format!("{}?format={format}", url(format)));
    let to = urls.iter().flat_map(|url| ["--to", url]);
    let input = ["capture", "-r", file.to_str().unwrap(), "--sensor", "fr1", "--json"];
    ledger(&run(&input.into_iter().chain(to).chain(["ip"]).collect::<Vec<_>>()).success())
}

/// Asserts that all formats have the same flows, and the packets and the counts of the ledger.
fn assert_same(mut formats: [Vec<Row>; 3], messages: [usize; 3], ledger: &Value) {
    for (at, (rows, messages)) in formats.iter_mut().zip(messages).enumerate() {
        let target = &ledger["targets"][at];
        assert_eq!(packets(rows), count(target, "delivered"), "{target}");
        let exported = ["flows", "messages", "lost"].map(|name| count(&target["exported"], name));
        assert_eq!(exported, [rows.len() as u64, messages as u64, 0], "{target}");
        rows.sort();
    }
    let [json, arrow, protobuf] = formats;
    assert!(json.len() > 10 && json[0].len() > 15, "{json:?}");
    assert_eq!(arrow, json);
    assert_eq!(protobuf, json);
}

#[test]
fn formats_on_nats_have_the_same_flows() {
    let Some(nats) = Nats::up_or_skip() else { return };
    let Some(decoders) = Decoders::or_skip() else { return };
    let ledger = publish(decoders.directory.path(), |format| nats.url(&format!("flows.{format}")));
    let all = nats.messages();
    let ids: BTreeSet<&str> = all.iter().map(|message| &*message.id).collect();
    assert_eq!(ids.len(), all.len(), "{ids:?}");
    let of = |subject: &str| -> Vec<&[u8]> {
        let messages = all.iter().filter(|message| message.subject == subject);
        messages.map(|message| &*message.content).collect()
    };
    let [json, arrow, protobuf] = ["flows.json", "flows.arrow", "flows.protobuf"].map(of);
    let messages = [json.len(), arrow.len(), protobuf.len()];
    assert!(arrow.len() < json.len(), "{messages:?}");
    let json = json.iter().map(|message| row(&serde_json::from_slice(message).unwrap())).collect();
    let rows = [json, decoders.arrow(&arrow).concat(), decoders.protobuf(&protobuf)];
    assert_same(rows, messages, &ledger);
}

#[test]
fn formats_on_kafka_have_the_same_flows_in_the_same_partitions() {
    let Some(kafka) = Kafka::up_or_skip() else { return };
    let Some(decoders) = Decoders::or_skip() else { return };
    for topic in ["json", "arrow", "protobuf"] {
        kafka.create_topic(topic, PARTITIONS, &[]);
    }
    let ledger = publish(decoders.directory.path(), |format| kafka.url(format));
    let records = ["json", "arrow", "protobuf"].map(|topic| kafka.records(topic));
    for records in &records {
        let ids: BTreeSet<&str> = records.iter().map(|record| &*record.id).collect();
        assert_eq!(ids.len(), records.len(), "{ids:?}");
    }
    let messages = records.each_ref().map(Vec::len);
    let [json, arrow, protobuf] = &records;
    let partitions: BTreeMap<&str, u32> =
        json.iter().map(|record| (&*record.key, record.partition)).collect();
    assert!(partitions.values().collect::<BTreeSet<_>>().len() > 1, "{partitions:?}");

    let streams = decoders.arrow(&contents(arrow));
    for (record, rows) in arrow.iter().zip(&streams) {
        assert_eq!(record.key, "null");
        for row in rows {
            assert_eq!(partitions[&*row["communityId"]], record.partition, "{row:?}");
        }
    }
    let flows = decoders.protobuf(&contents(protobuf));
    for (record, row) in protobuf.iter().zip(&flows) {
        assert_eq!((&row["communityId"], partitions[&*record.key]), (&record.key, record.partition));
    }
    let json = json.iter().map(|record| row(&serde_json::from_slice(&record.content).unwrap())).collect();
    assert_same([json, streams.concat(), flows], messages, &ledger);
}

#[test]
fn wrong_formats_are_refused() {
    let words = "give a format after ?, as in ?format=arrow, ?format=protobuf or ?format=json";
    for url in ["nats://host/a?format=avro", "kafka://host/a?", "kafka://host/a?compression=zstd"] {
        let finished = run(&["capture", "-r", "/dev/null", "--to", url]);
        assert_eq!(finished.status.code(), Some(2), "{url}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{url}: {}", finished.stderr);
    }
    let finished = run(&["capture", "--schema=avro"]);
    assert_eq!(finished.status.code(), Some(2), "{}", finished.stderr);
}
