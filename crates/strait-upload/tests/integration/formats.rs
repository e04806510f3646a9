//! Tests of `strait-upload publish` with batches of Arrow and Protobuf: no message is longer than
//! the broker permits, and each flow is stored once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Cursor;
use std::sync::Arc;

use arrow_array::cast::AsArray as _;
use arrow_array::types::UInt32Type;
use arrow_array::{RecordBatch, StringArray, UInt32Array};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema};
use lab::{Kafka, Nats};

use crate::kafka::Relay;
use crate::publish::Publisher;

const FLOWS: u32 = 500;
const KEYS: u32 = 10;

/// Returns a stream with rows of these numbers, each with one of the keys.
fn stream(numbers: std::ops::Range<u32>) -> Vec<u8> {
    let schema = Arc::new(Schema::new(vec![
        Field::new("number", DataType::UInt32, false),
        Field::new("communityId", DataType::Utf8, false),
    ]));
    let keys: StringArray = numbers.clone().map(|number| Some(format!("1:{}=", number % KEYS))).collect();
    let numbers: UInt32Array = numbers.collect();
    let rows = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(numbers), Arc::new(keys)]).unwrap();
    let mut writer = StreamWriter::try_new(Vec::new(), &schema).unwrap();
    writer.write(&rows).unwrap();
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

/// Returns numbers and keys of the rows of a stored stream.
fn rows(content: &[u8]) -> Vec<(u32, String)> {
    let mut reader = StreamReader::try_new(Cursor::new(content), None).unwrap();
    let batch = reader.next().unwrap().unwrap();
    assert!(reader.next().is_none());
    let numbers = batch.column(0).as_primitive::<UInt32Type>().values().iter().copied();
    let keys = batch.column(1).as_string::<i32>().iter().map(|key| key.unwrap().to_owned());
    numbers.zip(keys).collect()
}

/// Returns the numbers of messages and bytes in an answer, which must have no lost flow.
fn stored(answer: &str) -> (usize, usize) {
    let numbers = answer.strip_prefix('=').and_then(|rest| rest.split_once(' ')).unwrap().0;
    assert!(answer.split_whitespace().skip(1).all(|word| word.starts_with('+')), "{answer}");
    let (messages, bytes) = numbers.split_once(',').unwrap();
    (messages.parse().unwrap(), bytes.parse().unwrap())
}

/// Publishes a batch twice to a server that takes messages of at most `bytes_max` bytes.
fn assert_limited(nats: &Nats, bytes_max: usize, cause: &str) {
    let url = nats.url("flows.a");
    let mut publisher = Publisher::to(&format!("{url}?format=arrow"), &[]);
    for _ in 0..2 {
        publisher.write_bytes(0, &stream(0..FLOWS));
        let (messages, bytes) = stored(&publisher.whole_answer());
        let all = nats.messages();
        assert!(messages > 1 && all.iter().all(|message| message.content.len() <= bytes_max));
        assert_eq!((messages, bytes), (all.len(), all.iter().map(|message| message.content.len()).sum()));
        let mut numbers: Vec<u32> =
            all.iter().flat_map(|message| rows(&message.content)).map(|(number, _)| number).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..FLOWS).collect::<Vec<_>>());
        for message in &all {
            let (first, count) = (rows(&message.content)[0].0, rows(&message.content).len());
            assert_eq!(message.id, format!("fr1-9:flows.a:arrow:{first}:{count}"));
        }
    }
    assert!(publisher.end());

    // A flow that is too long alone is lost alone, at once.
    let mut publisher = Publisher::to(&url, &[]);
    publisher.write_lines(9000, &format!("short\n{}\nshort\n", "x".repeat(bytes_max)));
    let answer = publisher.whole_answer();
    assert_eq!(answer, format!("=2,10 1 {cause}\n"));
    assert!(publisher.end());
}

#[test]
fn message_of_arrow_is_no_longer_than_max_payload() {
    let Some(mut nats) = Nats::down_or_skip() else { return };
    let configuration = nats.directory().join("limits.conf");
    fs::write(&configuration, "max_payload: 4096\n").unwrap();
    nats.start(&["-c", configuration.to_str().unwrap()]);
    nats.create_stream();
    // The header counts too.
    assert_limited(&nats, 4096 - 40, "a flow is longer than max_payload of the server");
}

#[test]
fn message_of_arrow_is_no_longer_than_the_limit_of_the_account() {
    let Some(mut nats) = Nats::down_or_skip() else { return };
    let configuration = nats.directory().join("account.conf");
    let account = "jetstream: enabled, limits: {max_payload: 4096}, users: [{user: a, password: b}]";
    fs::write(&configuration, format!("accounts: {{A: {{{account}}}}}\nno_auth_user: a\n")).unwrap();
    nats.start(&["-c", configuration.to_str().unwrap()]);
    nats.create_stream();
    assert_limited(&nats, 4096 - 40, "a flow is longer than the server permits to the account");
}

#[test]
fn message_of_arrow_is_no_longer_than_max_msg_size() {
    let Some(mut nats) = Nats::down_or_skip() else { return };
    nats.start(&[]);
    nats.create_stream_with(r#","max_msg_size":4096"#);
    assert_limited(&nats, 4096, "a flow is longer than max_msg_size of the stream");
}

#[test]
fn record_of_arrow_fits_the_topic_and_its_flows_are_stored_once_in_the_partition_of_their_key() {
    let Some(mut kafka) = Kafka::down_or_skip() else { return };
    let relay = Relay::to(kafka.port());
    kafka.advertise(relay.port);
    kafka.format(&[]);
    kafka.start();
    kafka.create_topic("flows", 3, &["max.message.bytes=3000"]);
    let mut publisher = Publisher::to(&format!("{}?format=arrow", kafka.url("flows")), &[]);
    publisher.write_bytes(0, &stream(0..FLOWS));
    let first = stored(&publisher.whole_answer());
    // Answers to requests that were too large are lost, and then those to smaller ones.
    relay.lose(5);
    publisher.write_bytes(FLOWS.into(), &stream(FLOWS..2 * FLOWS));
    let second = stored(&publisher.whole_answer());
    assert!(relay.has_lost_all() && publisher.end());

    let records = kafka.records("flows");
    assert!(records.len() > 3 && records.iter().all(|record| record.content.len() < 3000));
    let bytes = records.iter().map(|record| record.content.len()).sum();
    assert_eq!((first.0 + second.0, first.1 + second.1), (records.len(), bytes));
    let ids: BTreeSet<&str> = records.iter().map(|record| &*record.id).collect();
    assert_eq!(ids.len(), records.len());
    let (mut partitions, mut numbers) = (BTreeMap::<String, BTreeSet<u32>>::new(), Vec::new());
    for record in &records {
        assert_eq!(record.key, "null");
        let rows = rows(&record.content);
        assert_eq!(record.id, format!("fr1-9:arrow:{}:{}", rows[0].0, rows.len()));
        for (number, key) in rows {
            partitions.entry(key).or_default().insert(record.partition);
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..2 * FLOWS).collect::<Vec<_>>());
    assert_eq!(partitions.len(), KEYS as usize);
    assert!(partitions.values().all(|partitions| partitions.len() == 1), "{partitions:?}");
}

#[test]
fn batch_in_another_format_ends_the_program() {
    for (format, bytes, words) in [
        ("arrow", &b"{\"communityId\":\"1:a\"}\n"[..], "a batch is not in its format"),
        ("protobuf", &b"\x7fshort"[..], "a batch is not in its format: a message is cut"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("stderr");
        let url = format!("nats://127.0.0.1:1/flows?format={format}");
        let mut publisher = Publisher::with_log(&url, &log);
        publisher.write_bytes(0, bytes);
        assert_eq!(publisher.whole_answer(), "");
        assert!(!publisher.end());
        let text = fs::read_to_string(&log).unwrap();
        assert!(text.contains(words) && text.lines().count() == 1, "{text}");
    }
}
