//! Tests of `strait-upload publish` with Apache Kafka: each flow is stored once, in the partition
//! of its key, also if acknowledgments are lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lab::Kafka;

use crate::publish::Publisher;

const KEYS: u64 = 10;
const PARTITIONS: u32 = 3;

/// Returns a line for each number, with one of the keys.
fn lines(numbers: Range<u64>) -> String {
    numbers.fold(String::new(), |mut lines, number| {
        let key = number % KEYS;
        writeln!(lines, "{{\"communityId\":\"1:{key}=\",\"number\":{number}}}").unwrap();
        lines
    })
}

/// Relay between clients and a broker, which can lose acknowledgments.
pub(crate) struct Relay {
    pub(crate) port: u16,
    /// Requests to store records of which the next ones get no answer.
    to_lose: Arc<AtomicUsize>,
}

impl Relay {
    pub(crate) fn to(broker: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let to_lose = Arc::new(AtomicUsize::new(0));
        let shared = Arc::clone(&to_lose);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, to_lose) = (client.unwrap(), Arc::clone(&shared));
                std::thread::spawn(move || relay(client, broker, &to_lose));
            }
        });
        Self { port, to_lose }
    }

    pub(crate) fn lose(&self, answers: usize) {
        self.to_lose.store(answers, Ordering::Relaxed);
    }

    pub(crate) fn has_lost_all(&self) -> bool {
        self.to_lose.load(Ordering::Relaxed) == 0
    }
}

/// Relays requests and their answers until one side closes the connection, or an answer is lost.
fn relay(mut client: TcpStream, broker: u16, to_lose: &AtomicUsize) -> Option<()> {
    let mut broker = TcpStream::connect(("127.0.0.1", broker)).ok()?;
    loop {
        let request = frame(&mut client)?;
        broker.write_all(&request).ok()?;
        let answer = frame(&mut broker)?;
        let is_produce = request[4..6] == [0, 0];
        let fewer = |left: usize| left.checked_sub(1);
        if is_produce && to_lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok() {
            return None;
        }
        client.write_all(&answer).ok()?;
    }
}

/// Reads a request or an answer with its length.
fn frame(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut frame = vec![0; 4];
    stream.read_exact(&mut frame).ok()?;
    let length = u32::from_be_bytes(frame[..4].try_into().unwrap());
    frame.resize(4 + length as usize, 0);
    stream.read_exact(&mut frame[4..]).ok()?;
    Some(frame)
}

#[test]
fn flow_is_stored_once_also_if_acknowledgments_are_lost_or_the_broker_starts_again() {
    let Some(mut kafka) = Kafka::down_or_skip() else { return };
    let relay = Relay::to(kafka.port());
    kafka.advertise(relay.port);
    kafka.format(&[]);
    kafka.start();
    // Batches of 100 flows must be split.
    kafka.create_topic("flows", PARTITIONS, &["max.message.bytes=1000"]);
    // The first server is down.
    let url = kafka.url("flows").replace("kafka://", "kafka://127.0.0.1:1,");
    let mut publisher = Publisher::to(&url, &[]);
    publisher.write_lines(0, &lines(0..100));
    assert_eq!(publisher.answer(), "\n");

    relay.lose(3);
    publisher.write_lines(100, &lines(100..200));
    assert_eq!((publisher.answer().as_str(), relay.has_lost_all()), ("\n", true));
    kafka.stop();
    publisher.write_lines(200, &lines(200..300));
    kafka.start();
    let restarted = publisher.answer();
    // The broker may need longer than flows wait for it.
    let stored_max = if restarted == "\n" { 300 } else { 200 };
    relay.lose(1);
    let long = format!("{}{{\"communityId\":\"1:5=\",\"text\":\"{}\"}}\n", lines(300..301), "x".repeat(1000));
    let answer = loop {
        publisher.write_lines(300, &long);
        let answer = publisher.answer();
        if !answer.starts_with("0,1 ") {
            break answer;
        }
    };
    // Its end depends on the attempt of which the answer was lost.
    assert!(answer.starts_with("1 a flow is longer than max.message.bytes of the topic"), "{answer}");
    assert!(relay.has_lost_all() && publisher.end());

    let records = kafka.records("flows");
    let mut partitions = BTreeMap::<&str, BTreeSet<u32>>::new();
    for record in &records {
        partitions.entry(&record.key).or_default().insert(record.partition);
    }
    assert_eq!(partitions.len() as u64, KEYS);
    assert!(partitions.values().all(|partitions| partitions.len() == 1), "{partitions:?}");
    let used: BTreeSet<u32> = partitions.into_values().flatten().collect();
    assert_eq!(used.len(), PARTITIONS as usize);
    let ids: BTreeSet<&str> = records.iter().map(|record| &*record.id).collect();
    assert_eq!(ids.len(), records.len(), "a flow is there twice");
    let numbers = (0..stored_max).chain(300..301);
    assert!(numbers.clone().all(|number| ids.contains(&*format!("fr1-9:json:{number}"))));
    for record in &records {
        let number: u64 = record.id.rsplit_once(':').unwrap().1.parse().unwrap();
        assert_eq!(format!("{}\n", record.text()), lines(number..number + 1));
    }
}

#[test]
fn certificate_password_and_topic_are_checked() {
    let Some(mut kafka) = Kafka::down_or_skip() else { return };
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let [certificate, both] = ["cert.pem", "both.pem"].map(|name| kafka.directory().join(name));
    std::fs::write(&certificate, certified.cert.pem()).unwrap();
    let key = certified.signing_key.serialize_pem();
    std::fs::write(&both, format!("{key}{}", certified.cert.pem())).unwrap();
    let secure = kafka.add_listener(
        "SASL_SSL",
        &format!(
            "ssl.keystore.type=PEM\n\
             ssl.keystore.location={}\n\
             sasl.enabled.mechanisms=SCRAM-SHA-512,SCRAM-SHA-256,PLAIN\n\
             listener.name.sasl_ssl.plain.sasl.jaas.config=\
             org.apache.kafka.common.security.plain.PlainLoginModule required user_plain=\"SECRET\";\n\
             listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=\
             org.apache.kafka.common.security.scram.ScramLoginModule required;\n\
             listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=\
             org.apache.kafka.common.security.scram.ScramLoginModule required;\n",
            both.display()
        ),
    );
    let scrams = ["256", "512"].map(|bits| format!("SCRAM-SHA-{bits}=[name=scram,password=SECRET]"));
    kafka.format(&["--add-scram", &scrams[0], "--add-scram", &scrams[1]]);
    kafka.start();
    kafka.create_topic("flows", 1, &[]);
    let trust = ("SSL_CERT_FILE", certificate.to_str().unwrap());
    let start = |topic: &str, number: u64, variables: &[(&str, &str)]| {
        let url = format!("kafka+tls://127.0.0.1:{secure}/{topic}");
        let mut publisher = Publisher::to(&url, variables);
        publisher.write_lines(number, &lines(number..number + 1));
        publisher
    };
    for (number, user, mechanism) in
        [(0, "scram", "SCRAM-SHA-512"), (1, "scram", "SCRAM-SHA-256"), (2, "plain", "PLAIN")]
    {
        let login = [("KAFKA_USER", user), ("KAFKA_PASSWORD", "SECRET"), ("KAFKA_SASL_MECHANISM", mechanism)];
        let mut publisher = start("flows", number, &[&login[..], &[trust]].concat());
        assert_eq!((publisher.answer().as_str(), publisher.end()), ("\n", true), "{mechanism}");
    }
    let login = [("KAFKA_USER", "scram"), ("KAFKA_PASSWORD", "SECRET")];
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let untrusted = kafka.directory().join("other.pem");
    std::fs::write(&untrusted, other.cert.pem()).unwrap();
    let untrusted = [("SSL_CERT_FILE", untrusted.to_str().unwrap())];
    // They wait for the broker at the same time.
    let refused = [
        ("flows", &[&login[..], &untrusted].concat()[..], "certificate"),
        ("flows", &[("KAFKA_USER", "scram"), ("KAFKA_PASSWORD", "WRONG"), trust], "password is wrong"),
        ("none", &[&login[..], &[trust]].concat(), " the cluster has no topic none: create it\n"),
    ]
    .map(|(topic, variables, words)| (start(topic, 3, variables), words));
    for (mut publisher, words) in refused {
        let answer = publisher.answer();
        assert!(answer.starts_with("0 ") && answer.contains(words), "{answer}");
        assert!(publisher.end());
    }
    let ids: Vec<String> = kafka.records("flows").into_iter().map(|record| record.id).collect();
    assert_eq!(ids, ["fr1-9:json:0", "fr1-9:json:1", "fr1-9:json:2"]);
}
