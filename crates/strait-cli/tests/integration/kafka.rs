//! Publishing of flows on Kafka: the topic has the packets of the ledger, each flow once.

use std::collections::BTreeSet;

use lab::{Kafka, StoredRecord, Wire, wait_until};
use rustix::process::Signal;
use serde_json::Value;

use crate::nats::packets;
use crate::refusals::RECORDING;
use crate::rig::{Capture, LIMIT, count, ledger, numbered, run, send};

const PARTITIONS: u32 = 4;

/// Returns the flows of records, each of which has the key of its flow and its own identifier.
fn flows(records: &[StoredRecord]) -> Vec<Value> {
    let ids: BTreeSet<&str> = records.iter().map(|record| &*record.id).collect();
    assert_eq!(ids.len(), records.len(), "{records:?}");
    let flow = |record: &StoredRecord| {
        let flow: Value = serde_json::from_slice(&record.content).unwrap();
        assert_eq!(flow["communityId"], record.key, "{record:?}");
        flow
    };
    records.iter().map(flow).collect()
}

#[test]
fn every_packet_of_the_ledger_is_in_a_record_also_after_a_restart_of_the_broker() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let Some(mut kafka) = wire.right().run(Kafka::down_or_skip) else { return };
    wire.right().run(|| {
        kafka.format(&[]);
        kafka.start();
        kafka.create_topic("flows", PARTITIONS, &[]);
    });
    let url = kafka.url("flows");
    let options = ["--to", &url, "--queues", "0-1", "--flow-idle", "1", "--json", "udp"];
    let capture = Capture::start(wire.right(), &options);
    send(&wire, &numbered(500));
    assert!(wait_until(LIMIT, || wire.right().run(|| kafka.count("flows")) > 0));
    kafka.stop();
    send(&wire, &numbered(300));
    wire.right().run(|| kafka.start());
    send(&wire, &numbered(200));
    let ledger = ledger(&capture.end(Signal::INT));
    let records = wire.right().run(|| kafka.records("flows"));
    let (delivered, lost) = (count(&ledger, "delivered"), count(&ledger["lost"], "sink"));
    assert_eq!(packets(&flows(&records)), delivered, "{ledger}");
    // The broker may need longer than flows wait for it. Half of the frames are UDP.
    assert!(delivered > 0 && delivered + lost >= 500, "{ledger}");
}

#[test]
fn wrong_urls_of_a_topic_are_refused() {
    for (url, words) in [
        ("kafka://host", "give servers and a topic, as in kafka://192.0.2.1:9092,192.0.2.2:9092/flows"),
        ("kafka://a,b/a:b", "a topic has letters"),
        ("kafka+tls://user:x@host/a", "give credentials by KAFKA_USER and KAFKA_PASSWORD"),
    ] {
        let finished = run(&["capture", "-r", RECORDING, "--to", url]);
        assert_eq!(finished.status.code(), Some(2), "{url}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{url}: {}", finished.stderr);
    }
}
