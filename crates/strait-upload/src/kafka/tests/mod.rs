//! Tests of the producer without a broker.

mod fake;
mod partial;

use strait_program::broker::Format;

use super::*;
use crate::batch::tests::stream;

/// Returns a producer with the parcels of these flows, of which each key has a digit.
fn producer(flows: usize, partitions: usize) -> (Kafka, Work) {
    let line = |at| format!("{{\"communityId\":\"1:{at}\"}}\n");
    let batch = Batch::lines(0, (0..flows).map(line).collect::<String>().into_bytes());
    let work = Work::new(&batch);
    let broker: Broker = "kafka://h/flows".parse().unwrap();
    let mut kafka = Kafka::new(broker, "c".into(), Access { tls: None, login: None });
    kafka.producer = Some(Producer { cluster: String::new(), id: 1, epoch: 0, sequences: BTreeMap::new() });
    kafka.parcels = parcels::sort(&batch, &work, partitions);
    (kafka, work)
}

/// Marks the first parcel of a partition as sent, with a record for each flow.
fn send(kafka: &mut Kafka, partition: usize) -> Sent {
    let parcel = kafka.first(partition).unwrap().1;
    let records = parcel.flows.len();
    parcel.send(records, 5 * records)
}

/// Sends the first parcel of a partition, and settles it. Returns true if the partition works.
fn settle(kafka: &mut Kafka, partition: usize, code: Option<i16>, work: &mut Work) -> bool {
    let sent = send(kafka, partition);
    let _ = kafka.settle(sent, code.map(Code), work);
    kafka.state(partition, now()) == State::Works
}

#[test]
fn each_failure_is_followed_by_the_next_given_or_learned_server() {
    let (mut kafka, _) = producer(0, 1);
    kafka.learned = vec!["a:1".into(), "b:2".into()];
    let mut next = || {
        let server = kafka.server().cloned().unwrap();
        assert_eq!(kafka.close("down".into()), "down");
        server
    };
    assert_eq!([(); 4].map(|()| next()), ["h:9092", "a:1", "b:2", "h:9092"]);
    kafka.learned.clear();
    assert_eq!(kafka.server().unwrap(), "h:9092");
}

#[test]
fn each_server_is_asked_once_in_an_attempt() {
    let (mut kafka, _) = producer(0, 1);
    // Port 1 is closed.
    kafka.broker = "kafka://127.0.0.1:1,127.0.0.2:1/flows".parse().unwrap();
    kafka.learned = vec!["127.0.0.3:1".into()];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let cause = runtime.block_on(kafka.connect()).unwrap_err();
    assert!(cause.starts_with("127.0.0.3:1: "), "{cause}");
    kafka.close(cause);
    assert_eq!(kafka.server().unwrap(), "127.0.0.1:1");
}

#[test]
fn parcel_that_is_too_large_is_halved_down_to_a_flow() {
    let (mut kafka, mut work) = producer(4, 1);
    let mut next = |code| {
        assert!(settle(&mut kafka, 0, Some(code), &mut work));
        kafka.parcels.iter().map(|parcel| parcel.flows.clone()).collect::<Vec<_>>()
    };
    assert_eq!(next(10), [[0, 1], [2, 3]]);
    assert_eq!(next(18), [vec![0], vec![1], vec![2, 3]]);
    assert_eq!(next(10), [vec![1], vec![2, 3]]);
    assert_eq!(next(0), [[2, 3]]);
    assert!(next(46).is_empty());
    assert_eq!(kafka.producer.unwrap().sequences[&0], 3);
    let answer = work.end("");
    assert_eq!((answer.lost, answer.repeated), (vec![0], 0));
    assert_eq!((answer.messages, answer.bytes), (3, 15));
    assert!(answer.cause.contains("max.message.bytes"));
}

#[test]
fn sequence_starts_again_after_the_largest_number() {
    let (mut kafka, mut work) = producer(4, 1);
    kafka.producer.as_mut().unwrap().sequences.insert(0, i32::MAX - 1);
    assert!(settle(&mut kafka, 0, Some(0), &mut work));
    assert_eq!(kafka.producer.unwrap().sequences[&0], 2);
}

#[test]
fn flows_that_may_be_stored_count_as_repeated_once_they_are_sent_under_another_identity() {
    // No answer; acknowledgment in time of the leader alone; a leader that has changed, a disk
    // that has failed, a topic that is deleted, and an unknown error, all after the append.
    let results = [None, Some(7), Some(6), Some(56), Some(3), Some(-1)];
    let (mut kafka, mut work) = producer(100, results.len() + 1);
    let sizes: Vec<u64> = kafka.parcels.iter().map(|parcel| parcel.flows.len() as u64).collect();
    assert_eq!(sizes.len(), results.len() + 1);
    for (partition, code) in results.into_iter().enumerate() {
        assert!(!settle(&mut kafka, partition, code, &mut work));
    }
    assert!(!settle(&mut kafka, results.len(), Some(19), &mut work));
    assert!(!settle(&mut kafka, 0, Some(19), &mut work), "the first attempt may have worked");
    assert!(Code(45).needs_producer() && !Code(46).needs_producer());
    kafka.start_anew();
    kafka.start_anew();
    assert!(kafka.producer.is_none());
    let sent: Vec<Sent> = [0, 0, 1, results.len()].map(|partition| send(&mut kafka, partition)).into();
    kafka.count_repeated(&sent, &mut work);
    kafka.start_anew();
    // The other ones are lost before they are sent again.
    assert_eq!(work.end("").repeated, sizes[..2].iter().sum::<u64>());
    let marked = kafka.parcels.iter().filter(|parcel| parcel.may_repeat);
    assert_eq!(marked.count(), results.len() + 1);
}

#[test]
fn halves_of_a_parcel_that_may_be_stored_may_be_stored() {
    let (mut kafka, mut work) = producer(4, 1);
    assert!(!settle(&mut kafka, 0, None, &mut work));
    for _ in 0..2 {
        assert!(settle(&mut kafka, 0, Some(10), &mut work));
    }
    assert!(kafka.parcels.iter().all(|parcel| parcel.is_unknown));
    assert!(settle(&mut kafka, 0, Some(10), &mut work));
    work.store(&[1, 2, 3], 3, 15);
    let answer = work.end("");
    assert_eq!(answer.lost, [0]);
    assert!(answer.cause.contains("may have stored it"));
}

#[test]
fn leaders_above_the_maximum_wait_for_the_next_round() {
    let line = |at| format!("{{\"communityId\":\"1:{at}\"}}\n");
    let batch = Batch::lines(0, (0..5000).map(line).collect::<String>().into_bytes());
    let (mut kafka, mut work) = producer(0, 1);
    let leaders: Vec<_> = (0..100).map(Some).collect();
    kafka.parcels = parcels::sort(&batch, &Work::new(&batch), leaders.len());
    assert_eq!(kafka.parcels.len(), leaders.len());
    kafka.cluster = Some(Cluster { addresses: BTreeMap::new(), leaders, connections: BTreeMap::new() });
    let Step::Send(chosen) = kafka.step() else { panic!("all of them work") };
    assert_eq!((chosen.len(), kafka.requests(&chosen, &batch, &mut work).len()), (100, LEADERS_MAX));
    assert_eq!(kafka.parcels.iter().filter(|parcel| parcel.is_unknown).count(), LEADERS_MAX);
}

#[test]
fn numbers_of_a_lost_parcel_are_not_used_again() {
    for code in [None, Some(3), Some(6), Some(56), Some(-1)] {
        let (mut kafka, mut work) = producer(4, 1);
        assert!(!settle(&mut kafka, 0, code, &mut work));
        kafka.forget();
        assert!(kafka.producer.is_none() && kafka.parcels.is_empty(), "{code:?}");
    }
    // The attempt is cancelled.
    let (mut kafka, _) = producer(4, 1);
    send(&mut kafka, 0);
    kafka.forget();
    assert!(kafka.producer.is_none());
    // Too few replicas are in sync: none of the numbers is in use.
    let (mut kafka, mut work) = producer(4, 1);
    assert!(!settle(&mut kafka, 0, Some(19), &mut work));
    kafka.forget();
    assert!(kafka.producer.is_some() && kafka.parcels.is_empty());
    let (mut kafka, mut work) = producer(4, 1);
    assert!(settle(&mut kafka, 0, Some(0), &mut work));
    kafka.forget();
    assert!(kafka.producer.is_some(), "all flows are stored");
}

/// Returns a producer with a parcel of four flows of Arrow, and the batch.
fn producer_of_arrow() -> (Kafka, Batch, Work) {
    let batch = Batch::read(7, Format::Arrow, stream(&["1:0", "1:1", "1:2", "1:0"])).unwrap();
    let (mut kafka, _) = producer(0, 1);
    let work = Work::new(&batch);
    kafka.parcels = parcels::sort(&batch, &work, 1);
    (kafka, batch, work)
}

#[test]
fn parcel_of_arrow_is_one_record_and_takes_one_number() {
    let (mut kafka, batch, mut work) = producer_of_arrow();
    for (expected, code) in [("c:arrow:7:4", 10), ("c:arrow:7:2", 0), ("c:arrow:9:2", 0)] {
        let (sent, encoded) = kafka.encode(0, &batch, &mut work, 0).unwrap();
        assert!(encoded.ends_with(expected.as_bytes()), "{expected}");
        assert_eq!(sent.records, 1);
        assert!(!kafka.settle(sent, Some(Code(code)), &mut work));
    }
    assert_eq!(kafka.producer.unwrap().sequences[&0], 2);
    let answer = work.end("");
    assert_eq!((answer.lost.len(), answer.messages, answer.repeated), (0, 2, 0));
}

#[test]
fn halves_of_a_record_that_may_be_stored_get_another_identity() {
    let (mut kafka, batch, mut work) = producer_of_arrow();
    let (sent, _) = kafka.encode(0, &batch, &mut work, 0).unwrap();
    assert!(!kafka.settle(sent, None, &mut work));
    let (sent, _) = kafka.encode(0, &batch, &mut work, 0).unwrap();
    assert!(kafka.settle(sent, Some(Code(10)), &mut work), "its first half would have its number");
    kafka.start_anew();
    let sent: Vec<Sent> = (0..2)
        .map(|_| {
            let sent = send(&mut kafka, 0);
            kafka.count_repeated(&[sent], &mut work);
            assert!(!kafka.settle(sent, Some(Code(0)), &mut work));
            sent
        })
        .collect();
    assert_eq!((sent.len(), work.end("").repeated), (2, 4));
}
