//! Tests of the producer while a part of the cluster is down: the flows of the others are stored.

use std::pin::pin;

use strait_os::retry::Attempts;
use tokio::time::timeout;

use super::fake::{Fake, Got, Reaction};
use super::*;
use crate::publish::Publisher;

const HOUR: Duration = Duration::from_hours(1);

/// Runs a test with brokers.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(test);
}

/// Returns a producer for a cluster. Flows do not wait for a part after its first failure, and its
/// next attempt is far away.
fn publisher(fake: &Fake) -> Publisher<Kafka> {
    let broker = format!("kafka://{}/flows", fake.address()).parse().unwrap();
    let mut kafka = Kafka::new(broker, "c".into(), Access { tls: None, login: None });
    kafka.stalls = Stalls::new(Attempts::new(HOUR, HOUR), Duration::ZERO);
    Publisher::new(kafka)
}

/// Returns a batch with a flow for each of these partitions, of two.
fn batch(partitions: &[usize]) -> Batch {
    let key = |partition: &usize| {
        let mut keys = (0..).map(|number| format!("1:{number}"));
        keys.find(|key| records::partition(key, 2) == *partition).unwrap()
    };
    let line = |partition| format!("{{\"communityId\":\"{}\"}}\n", key(partition));
    Batch::lines(0, partitions.iter().map(line).collect::<String>().into_bytes())
}

fn store(_: Got) -> Reaction {
    Reaction::Code(0)
}

#[test]
fn flows_of_other_partitions_are_stored_while_one_has_no_leader() {
    run(async {
        let fake = Fake::start(&[1, -1], store).await;
        let mut publisher = publisher(&fake);
        for (partitions, lost) in [
            (&[0, 0][..], &[][..]),
            (&[0, 1, 0], &[1]),
            (&[1], &[0]),
            (&[0], &[]),
            (&[1, 1], &[0, 1]),
            (&[1, 0], &[0]),
            (&[0], &[]),
        ] {
            let answer = publisher.publish(&batch(partitions)).await;
            let cause = if lost.is_empty() { "" } else { "a partition has no leader" };
            assert_eq!((&*answer.lost, &*answer.cause), (lost, cause), "{partitions:?}");
        }
        let state = fake.state();
        assert_eq!(state.got.iter().map(|got| got.records).sum::<i32>(), 7);
        // The server is asked on a connection of its own.
        assert_eq!((state.asked, state.producers, &state.connections), (1, 1, &[(1, 2)].into()));
    });
}

#[test]
fn flows_of_other_leaders_are_stored_while_one_is_down() {
    run(async {
        let fake = Fake::start(&[1, 2], |got: Got| match got.partition {
            0 => Reaction::Code(0),
            _ => Reaction::Close,
        });
        let fake = fake.await;
        let mut publisher = publisher(&fake);
        for (partitions, lost) in [(&[0, 1][..], &[1][..]), (&[1], &[0]), (&[0], &[]), (&[1, 0], &[0])] {
            assert_eq!(publisher.publish(&batch(partitions)).await.lost, lost, "{partitions:?}");
        }
        let state = fake.state();
        assert_eq!(state.connections, [(1, 2), (2, 1)].into(), "one attempt, and no other login");
        // The lost parcel may be stored, so its number is not used again.
        let producers: Vec<_> = state.got.iter().map(|got| (got.partition, got.producer)).collect();
        assert_eq!((producers.len(), state.producers), (4, 2), "{producers:?}");
        assert_eq!(producers[2..], [(0, 2), (0, 2)]);
    });
}

#[test]
fn all_parcels_of_other_partitions_are_stored_in_smaller_ones() {
    run(async {
        let fake = Fake::start(&[1, -1], |got: Got| Reaction::Code(if got.records > 1 { 10 } else { 0 }));
        let fake = fake.await;
        let answer = publisher(&fake).publish(&batch(&[0, 0, 0, 1, 0])).await;
        assert_eq!(answer.lost, [3]);
        let state = fake.state();
        let stored: Vec<_> =
            state.got.iter().filter(|got| got.records == 1).map(|got| got.sequence).collect();
        assert_eq!(stored, [0, 1, 2, 3]);
    });
}

#[test]
fn number_is_used_again_if_too_few_replicas_were_in_sync() {
    run(async {
        let fake = Fake::start(&[1, 1], |got: Got| Reaction::Code(if got.partition == 1 { 19 } else { 0 }));
        let fake = fake.await;
        let mut publisher = publisher(&fake);
        assert_eq!(publisher.publish(&batch(&[0, 1])).await.lost, [1]);
        publisher.client.stalls.end(Part::Partition(1, Some(1)));
        assert_eq!(publisher.publish(&batch(&[1])).await.lost, [0]);
        let state = fake.state();
        let sent: Vec<_> = state.got.iter().filter(|got| got.partition == 1).collect();
        assert_eq!(sent, [&Got { partition: 1, producer: 1, sequence: 0, records: 1 }; 2]);
        assert_eq!((state.producers, &state.connections), (1, &[(1, 2)].into()));
    });
}

#[test]
fn flow_waits_for_a_leader_which_the_cluster_is_asked_for_on_an_open_connection() {
    run(async {
        let fake = Fake::start(&[1, 1], store).await;
        let mut publisher = publisher(&fake);
        assert!(publisher.publish(&batch(&[0])).await.lost.is_empty());
        fake.state().react = Box::new(|_| Reaction::Code(6));
        fake.state().leaders = vec![1, -1];
        fake.state().next_leaders = Some(vec![1, 2]);
        publisher.client.stalls = Stalls::new(Attempts::new(Duration::ZERO, Duration::ZERO), HOUR);
        let kafka = &mut publisher.client;
        let (mut asked, batch) = (0, batch(&[1]));
        let mut work = Work::new(&batch);
        {
            let mut attempt = pin!(kafka.attempt(&batch, &mut work));
            while asked < 3 {
                timeout(Duration::from_millis(1), &mut attempt).await.unwrap_err();
                asked = fake.state().asked;
            }
            fake.state().react = Box::new(store);
            attempt.await.unwrap();
        }
        let connections = [(1, 2), (2, 1)].into();
        assert_eq!((work.open(), &fake.state().connections), (&[][..], &connections));
    });
}

#[test]
fn numbers_of_a_parcel_are_not_used_again_after_a_cancelled_attempt() {
    run(async {
        let fake = Fake::start(&[1, 1], |_| Reaction::Hang).await;
        let mut kafka = publisher(&fake).client;
        let batch = batch(&[0]);
        let mut work = Work::new(&batch);
        {
            let mut attempt = pin!(kafka.attempt(&batch, &mut work));
            while fake.state().got.is_empty() {
                timeout(Duration::from_millis(1), &mut attempt).await.unwrap_err();
            }
        }
        kafka.forget();
        assert!(kafka.producer.is_none());
    });
}

#[test]
fn numbers_of_a_flow_that_became_too_large_are_not_used_again() {
    run(async {
        let mut reactions = [Reaction::Close, Reaction::Code(10)].into_iter();
        let fake = Fake::start(&[1, 1], move |_| reactions.next().unwrap_or(Reaction::Code(0))).await;
        let mut publisher = publisher(&fake);
        publisher.client.stalls = Stalls::new(Attempts::new(Duration::ZERO, Duration::ZERO), HOUR);
        let answer = publisher.publish(&batch(&[0])).await;
        assert!(answer.cause.ends_with("but an earlier attempt may have stored it"), "{answer:?}");
        assert!(publisher.publish(&batch(&[0])).await.lost.is_empty());
        let numbers: Vec<_> = fake.state().got.iter().map(|got| (got.producer, got.sequence)).collect();
        assert_eq!(numbers, [(1, 0), (1, 0), (2, 0)]);
    });
}

#[test]
fn another_cluster_at_the_same_address_gets_another_producer_from_the_first_number_on() {
    run(async {
        let fake = Fake::start(&[1, 1], store).await;
        let mut publisher = publisher(&fake);
        for (name, expected) in [("a", (1, 0)), ("a", (1, 1)), ("b", (2, 0)), ("b", (2, 1))] {
            fake.state().name = name;
            assert!(publisher.publish(&batch(&[0])).await.lost.is_empty());
            let got = fake.state().got.pop().unwrap();
            assert_eq!((got.producer, got.sequence), expected);
            publisher.client.close(String::new());
        }
        let state = fake.state();
        assert_eq!((state.asked, state.producers), (4, 2));
    });
}
