//! Producer of Apache Kafka, and of servers with its protocol. All replicas that are in sync
//! acknowledge each flow.
//!
//! ```text
//! batch ─▶ parcels, one for each partition ─▶ requests, one for each leader ─▶ acknowledgments
//!            ▲                                                                        │
//!            └── sent again with the same sequence ◀── failure, or too large: halves ◀┘
//! ```
//!
//! The producer is idempotent: it has an identifier, and its records are numbered within each
//! partition. A broker ignores a parcel that it has stored, so a parcel without an acknowledgment
//! is sent again without a second copy. If the broker has forgotten the numbers, the producer
//! starts anew; flows that are then sent again although they may be stored are counted
//! ([`Work::repeat`]).
//!
//! The client is written here, as those of crates.io that need no C library are not idempotent.

mod connection;
mod records;
mod requests;
mod sasl;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use strait_os::clock;
use strait_program::Error;
use strait_program::broker::Broker;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_rustls::TlsConnector;

use self::connection::Connection;
use self::records::{Origin, Record};
use self::requests::{Code, INIT_PRODUCER_ID, METADATA, Metadata, PRODUCE, Produced};
use self::sasl::Login;
use crate::publish::{ACK_LIMIT, Batch, CONNECT_LIMIT, Client, Work, late};

/// Time that a leader has to get the acknowledgments of the replicas. It answers before the limit.
const REPLICAS_LIMIT: Duration = Duration::from_secs(4);
/// Maximum time for which a broker can delay the next request, as it does after a quota.
const THROTTLE_MAX: Duration = Duration::from_secs(10);
/// Maximum number of leaders that get a request at the same time.
const LEADERS_MAX: usize = 64;
/// Maximum number of brokers that are asked although they are not given.
const LEARNED_MAX: usize = 16;

/// Producer, which connects when it is needed.
pub(crate) struct Kafka {
    broker: Broker,
    capture: String,
    access: Access,
    /// Position of the next server to ask: one of those given, or then of `learned`.
    server: usize,
    /// Addresses of other brokers that the cluster last named.
    learned: Vec<String>,
    cluster: Option<Cluster>,
    producer: Option<Producer>,
    /// Flows of the batch that are not acknowledged.
    parcels: Vec<Parcel>,
    /// Time before which no request is sent.
    resume: Instant,
}

/// How connections are opened.
#[derive(Clone)]
struct Access {
    tls: Option<TlsConnector>,
    login: Option<Login>,
}

/// Brokers and partitions.
struct Cluster {
    addresses: BTreeMap<i32, String>,
    leaders: Vec<Option<i32>>,
    /// Open connections, by the number of the broker.
    connections: BTreeMap<i32, Connection>,
}

/// Identity of this producer.
struct Producer {
    id: i64,
    epoch: i16,
    /// Number of the next record of each partition; 0 if there is none.
    sequences: BTreeMap<usize, i32>,
}

/// Flows of a partition, which are stored together.
#[derive(Debug, PartialEq, Eq)]
struct Parcel {
    partition: usize,
    /// Positions in the batch, in rising order.
    flows: Vec<usize>,
    /// True if it was sent, and the broker may have stored it.
    is_unknown: bool,
}

/// Encoded batches for each leader, with their partitions.
type Requests = BTreeMap<i32, Vec<(i32, Vec<u8>)>>;

/// Request to a leader, and its outcome.
struct Exchange {
    leader: i32,
    partitions: Vec<usize>,
    connection: Option<Connection>,
    was_sent: bool,
    result: Result<Produced, String>,
}

impl Kafka {
    /// Checks the credentials. The brokers may be down.
    pub(crate) fn open(broker: &Broker, capture: &str) -> Result<Self, Error> {
        let tls = if broker.requires_tls { Some(tls().map_err(Error::usage)?) } else { None };
        let login = Login::from_environment(tls.is_some()).map_err(Error::usage)?;
        Ok(Self {
            broker: broker.clone(),
            capture: capture.to_owned(),
            access: Access { tls, login },
            server: 0,
            learned: Vec::new(),
            cluster: None,
            producer: None,
            parcels: Vec::new(),
            resume: Instant::now(),
        })
    }

    /// Returns the server to ask. After a failure it is the next one, as the answers of this one
    /// may be old.
    fn server(&self) -> Option<&String> {
        let servers = self.broker.addresses.iter().chain(&self.learned);
        servers.cycle().nth(self.server)
    }

    /// Continues with the next server.
    fn pass(&mut self) {
        let servers = self.broker.addresses.len() + self.learned.len();
        self.server = (self.server + 1) % servers.max(1);
    }

    /// Asks for the cluster: each server until one answers, or the time is over.
    async fn connect(&mut self) -> Result<(), String> {
        let end = Instant::now() + CONNECT_LIMIT;
        let mut left = self.broker.addresses.len() + self.learned.len();
        loop {
            let asked = self.ask().await;
            left = left.saturating_sub(1);
            if asked.is_ok() || left == 0 || Instant::now() >= end {
                return asked;
            }
            self.pass();
        }
    }

    /// Asks one server for the cluster.
    async fn ask(&mut self) -> Result<(), String> {
        let address = self.server().ok_or("it has no address")?;
        let opened = self.access.connect(address).await;
        let connection = opened.map_err(|cause| format!("{address}: {cause}"))?;
        self.learn(connection).await
    }

    /// Asks for the cluster, and for an identity if there is none.
    async fn learn(&mut self, mut connection: Connection) -> Result<(), String> {
        let (topic, end) = (&self.broker.name, Instant::now() + ACK_LIMIT);
        let answer = connection.call(METADATA, &requests::metadata(topic), end).await?;
        let metadata = requests::read_metadata(&answer, topic)?;
        if self.producer.is_none() {
            let answer = connection.call(INIT_PRODUCER_ID, &requests::init_producer_id(), end).await?;
            let (id, epoch) = requests::read_producer_id(&answer, topic)?;
            self.producer = Some(Producer { id, epoch, sequences: BTreeMap::new() });
        }
        let Metadata { brokers, leaders } = metadata;
        let others = brokers.iter().map(|(_, address)| address);
        let others = others.filter(|address| !self.broker.addresses.contains(address));
        self.learned = others.take(LEARNED_MAX).cloned().collect();
        let addresses = brokers.into_iter().collect();
        self.cluster = Some(Cluster { addresses, leaders, connections: BTreeMap::new() });
        Ok(())
    }

    /// Sends the first parcel of each partition, and settles those that are answered.
    async fn round(&mut self, batch: &Batch, work: &mut Work) -> Result<(), String> {
        sleep_until(self.resume).await;
        let (requests, mut failure) = self.requests(batch);
        let mut exchanges = JoinSet::new();
        let Some(cluster) = &mut self.cluster else { return Err("it is not connected".into()) };
        for (leader, batches) in requests {
            let Some(address) = cluster.addresses.get(&leader).cloned() else {
                failure = Some(Code::LEADER_NOT_AVAILABLE.text(&self.broker.name));
                continue;
            };
            let connection = cluster.connections.remove(&leader);
            let partitions = batches.iter().map(|(partition, _)| *partition as usize).collect();
            let body = requests::produce(&self.broker.name, &batches, REPLICAS_LIMIT.as_millis() as i32);
            let access = self.access.clone();
            exchanges.spawn(async move {
                let (mut connection, mut was_sent) = (connection, false);
                let result = access.exchange(&mut connection, &address, &body, &mut was_sent).await;
                Exchange { leader, partitions, connection, was_sent, result }
            });
        }
        let mut is_forgotten = false;
        while let Some(exchange) = exchanges.join_next().await {
            let exchange = exchange.map_err(|error| error.to_string())?;
            let codes = self.codes(exchange, &mut failure);
            for (partition, code) in codes {
                let refused = self.settle(partition, code, work);
                failure = failure.or(refused);
                is_forgotten |= code.is_some_and(Code::needs_producer);
            }
        }
        if is_forgotten {
            self.start_anew(work);
        }
        failure.map_or(Ok(()), Err)
    }

    /// Returns the batches for each leader, and the failure if a partition has none.
    fn requests(&self, batch: &Batch) -> (Requests, Option<String>) {
        let (mut requests, mut failure) = (Requests::new(), None);
        let (Some(cluster), Some(producer)) = (&self.cluster, &self.producer) else {
            return (requests, Some("it is not connected".into()));
        };
        let time_ms = (clock::realtime_ns() / 1_000_000) as i64;
        let mut chosen = BTreeSet::new();
        for Parcel { partition, flows, .. } in &self.parcels {
            if !chosen.insert(partition) {
                continue;
            }
            let Some(leader) = cluster.leaders.get(*partition).copied().flatten() else {
                failure = Some(Code::LEADER_NOT_AVAILABLE.text(&self.broker.name));
                continue;
            };
            if requests.len() >= LEADERS_MAX && !requests.contains_key(&leader) {
                // They follow in the next round.
                continue;
            }
            let sequence = producer.sequences.get(partition).copied().unwrap_or(0);
            let origin = Origin { producer: producer.id, epoch: producer.epoch, sequence };
            let ids: Vec<String> = flows.iter().map(|at| batch.id(&self.capture, *at)).collect();
            let records = flows.iter().zip(&ids).map(|(at, id)| {
                let line = batch.line(*at);
                Record { key: records::key(line), line, id }
            });
            let encoded = records::encode(records, origin, time_ms);
            requests.entry(leader).or_default().push((*partition as i32, encoded));
        }
        (requests, failure)
    }

    /// Keeps the connection of an exchange. Returns the result of each partition: none if there is
    /// no answer, although the request was sent.
    fn codes(&mut self, exchange: Exchange, failure: &mut Option<String>) -> Vec<(usize, Option<Code>)> {
        let Exchange { leader, partitions, connection, was_sent, result } = exchange;
        if let (Some(cluster), Some(connection)) = (&mut self.cluster, connection) {
            cluster.connections.insert(leader, connection);
        }
        let results = match result {
            Ok(Produced { results, throttle_ms }) => {
                let throttle = Duration::from_millis(throttle_ms.into()).min(THROTTLE_MAX);
                self.resume = self.resume.max(Instant::now() + throttle);
                results
            }
            Err(cause) => {
                *failure = Some(cause);
                Vec::new()
            }
        };
        if !was_sent {
            return Vec::new();
        }
        let code = |partition: usize| {
            results.iter().find(|(index, _)| *index as usize == partition).map(|(_, code)| *code)
        };
        partitions.into_iter().map(|partition| (partition, code(partition))).collect()
    }

    /// Notes the result of the first parcel of a partition. Returns the failure.
    fn settle(&mut self, partition: usize, code: Option<Code>, work: &mut Work) -> Option<String> {
        let at = self.parcels.iter().position(|parcel| parcel.partition == partition)?;
        let parcel = self.parcels.get_mut(at)?;
        let Some(code) = code else {
            parcel.is_unknown = true;
            return Some(late());
        };
        if code.is_stored() {
            let Parcel { flows, .. } = self.parcels.remove(at);
            work.settle(&flows);
            if let Some(producer) = &mut self.producer {
                let next = producer.sequences.entry(partition).or_default();
                // After the largest number comes 0.
                *next = next.wrapping_add(flows.len() as i32) & i32::MAX;
            }
            return None;
        }
        let cause = code.text(&self.broker.name);
        if code.is_too_large() {
            let Parcel { mut flows, is_unknown, .. } = self.parcels.remove(at);
            if flows.len() == 1 {
                let maybe = if is_unknown { ", but an earlier attempt may have stored it" } else { "" };
                work.refuse(&flows, cause + maybe);
            } else {
                let second = flows.split_off(flows.len() / 2);
                let halves = [flows, second].map(|flows| Parcel { partition, flows, is_unknown });
                self.parcels.splice(at..at, halves);
            }
            return None;
        }
        parcel.is_unknown |= code.is_unknown();
        Some(cause)
    }

    /// Forgets the identity of this producer. Counts flows that are sent again although the broker
    /// may have them.
    fn start_anew(&mut self, work: &mut Work) {
        self.producer = None;
        for parcel in &mut self.parcels {
            if std::mem::take(&mut parcel.is_unknown) {
                work.repeat(parcel.flows.len());
            }
        }
    }
}

impl Client for Kafka {
    async fn attempt(&mut self, batch: &Batch, work: &mut Work) -> Result<(), String> {
        if self.cluster.is_none() {
            self.connect().await?;
        }
        if self.parcels.is_empty() {
            let partitions = self.cluster.as_ref().map_or(0, |cluster| cluster.leaders.len());
            self.parcels = parcels(batch, work, partitions);
        }
        while !self.parcels.is_empty() {
            self.round(batch, work).await?;
        }
        Ok(())
    }

    /// Starts anew if there are parcels: it is unknown if their numbers are used.
    fn forget(&mut self) {
        if !self.parcels.is_empty() {
            self.producer = None;
        }
        self.parcels.clear();
    }

    fn close(&mut self, cause: String) -> String {
        self.cluster = None;
        self.pass();
        cause
    }
}

impl Access {
    async fn connect(&self, address: &str) -> Result<Connection, String> {
        let end = Instant::now() + CONNECT_LIMIT;
        let mut connection = Connection::open(address, self.tls.as_ref(), end).await?;
        if let Some(login) = &self.login {
            login.log_in(&mut connection, end).await?;
        }
        Ok(connection)
    }

    /// Sends a request to store batches, and reads the answer.
    async fn exchange(
        &self,
        connection: &mut Option<Connection>,
        address: &str,
        body: &[u8],
        was_sent: &mut bool,
    ) -> Result<Produced, String> {
        if connection.is_none() {
            let opened = self.connect(address).await;
            *connection = Some(opened.map_err(|cause| format!("{address}: {cause}"))?);
        }
        let Some(connection) = connection else { return Err("it is not connected".into()) };
        *was_sent = true;
        let end = Instant::now() + ACK_LIMIT;
        let answer = connection.call(PRODUCE, body, end).await?;
        Ok(requests::read_produced(&answer)?)
    }
}

/// Sorts the open flows of a batch by partition.
fn parcels(batch: &Batch, work: &Work, partitions: usize) -> Vec<Parcel> {
    let mut parcels = BTreeMap::<usize, Vec<usize>>::new();
    for (at, line) in batch.open(work) {
        parcels.entry(records::partition(records::key(line), partitions)).or_default().push(at);
    }
    let parcel = |(partition, flows)| Parcel { partition, flows, is_unknown: false };
    parcels.into_iter().map(parcel).collect()
}

/// Trusts the certificates of the system, or those that SSL_CERT_FILE names.
fn tls() -> Result<TlsConnector, String> {
    let mut roots = rustls::RootCertStore::empty();
    let loaded = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(loaded.certs);
    if added == 0 {
        let cause = loaded.errors.first().map_or("there are none".into(), ToString::to_string);
        return Err(format!("read the certificates to trust: {cause}: set SSL_CERT_FILE"));
    }
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    Ok(Arc::new(config).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a producer with the parcels of these flows, of which each key has a digit.
    fn producer(flows: usize, partitions: usize) -> (Kafka, Work) {
        let line = |at| format!("{{\"communityId\":\"1:{at}\"}}\n");
        let batch = Batch::new(0, (0..flows).map(line).collect::<String>().into_bytes());
        let work = Work::new(&batch);
        let broker: Broker = "kafka://h/flows".parse().unwrap();
        let mut kafka = Kafka {
            broker,
            capture: "c".into(),
            access: Access { tls: None, login: None },
            server: 0,
            learned: Vec::new(),
            cluster: None,
            producer: Some(Producer { id: 1, epoch: 0, sequences: BTreeMap::new() }),
            parcels: Vec::new(),
            resume: Instant::now(),
        };
        kafka.parcels = parcels(&batch, &work, partitions);
        (kafka, work)
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
        let mut settle = |code| {
            assert_eq!(kafka.settle(0, Some(Code(code)), &mut work), None);
            kafka.parcels.iter().map(|parcel| parcel.flows.clone()).collect::<Vec<_>>()
        };
        assert_eq!(settle(10), [[0, 1], [2, 3]]);
        assert_eq!(settle(18), [vec![0], vec![1], vec![2, 3]]);
        assert_eq!(settle(10), [vec![1], vec![2, 3]]);
        assert_eq!(settle(0), [[2, 3]]);
        assert!(settle(46).is_empty());
        assert_eq!(kafka.producer.unwrap().sequences[&0], 3);
        let answer = work.end("");
        assert_eq!((answer.lost, answer.repeated), (vec![0], 0));
        assert!(answer.cause.contains("max.message.bytes"));
    }

    #[test]
    fn sequence_starts_again_after_the_largest_number() {
        let (mut kafka, mut work) = producer(4, 1);
        kafka.producer.as_mut().unwrap().sequences.insert(0, i32::MAX - 1);
        assert_eq!(kafka.settle(0, Some(Code::NONE), &mut work), None);
        assert_eq!(kafka.producer.unwrap().sequences[&0], 2);
    }

    #[test]
    fn flows_that_may_be_stored_count_as_repeated_if_the_producer_starts_anew() {
        // No answer; acknowledgment in time of the leader alone; a leader that has changed, a disk
        // that has failed, a topic that is deleted, and an unknown error, all after the append.
        let results = [None, Some(7), Some(6), Some(56), Some(3), Some(-1)].map(|code| code.map(Code));
        let (mut kafka, mut work) = producer(100, results.len() + 1);
        let sizes: Vec<u64> = kafka.parcels.iter().map(|parcel| parcel.flows.len() as u64).collect();
        assert_eq!(sizes.len(), results.len() + 1);
        for (partition, code) in results.into_iter().enumerate() {
            assert!(kafka.settle(partition, code, &mut work).is_some());
        }
        assert!(kafka.settle(results.len(), Some(Code(19)), &mut work).is_some());
        assert!(kafka.settle(0, Some(Code(19)), &mut work).is_some(), "the first attempt may have worked");
        assert!(Code(45).needs_producer() && !Code(46).needs_producer());
        kafka.start_anew(&mut work);
        kafka.start_anew(&mut work);
        assert!(kafka.producer.is_none());
        assert_eq!(work.end("").repeated, sizes[..results.len()].iter().sum::<u64>());
    }

    #[test]
    fn halves_of_a_parcel_that_may_be_stored_may_be_stored() {
        let (mut kafka, mut work) = producer(4, 1);
        kafka.settle(0, None, &mut work).unwrap();
        for _ in 0..3 {
            assert_eq!(kafka.settle(0, Some(Code(10)), &mut work), None);
        }
        kafka.start_anew(&mut work);
        work.settle(&[1, 2, 3]);
        let answer = work.end("");
        assert_eq!((answer.repeated, answer.lost), (3, vec![0]));
        assert!(answer.cause.contains("may have stored it"));
    }

    #[test]
    fn leaders_above_the_maximum_wait_for_the_next_round() {
        let line = |at| format!("{{\"communityId\":\"1:{at}\"}}\n");
        let batch = Batch::new(0, (0..5000).map(line).collect::<String>().into_bytes());
        let (mut kafka, _) = producer(0, 1);
        let leaders: Vec<_> = (0..100).map(Some).collect();
        kafka.parcels = parcels(&batch, &Work::new(&batch), leaders.len());
        assert_eq!(kafka.parcels.len(), leaders.len());
        kafka.cluster = Some(Cluster { addresses: BTreeMap::new(), leaders, connections: BTreeMap::new() });
        let (requests, failure) = kafka.requests(&batch);
        assert_eq!((requests.len(), failure), (LEADERS_MAX, None));
    }

    #[test]
    fn numbers_of_a_lost_parcel_are_not_used_again() {
        for code in [None, Some(3), Some(6), Some(19), Some(56), Some(-1)] {
            let (mut kafka, mut work) = producer(4, 1);
            kafka.settle(0, code.map(Code), &mut work).unwrap();
            kafka.forget();
            assert!(kafka.producer.is_none() && kafka.parcels.is_empty(), "{code:?}");
        }
        let (mut kafka, mut work) = producer(4, 1);
        assert_eq!(kafka.settle(0, Some(Code::NONE), &mut work), None);
        kafka.forget();
        assert!(kafka.producer.is_some(), "all flows are stored");
    }
}
