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

mod cluster;
mod connection;
mod parcels;
mod records;
mod requests;
mod sasl;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use strait_os::clock;
use strait_program::Error;
use strait_program::broker::Broker;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::cluster::{Access, Cluster};
use self::connection::Connection;
use self::parcels::Parcel;
use self::records::{Origin, Record};
use self::requests::{Code, INIT_PRODUCER_ID, METADATA, Metadata, Produced};
use crate::client::{ACK_LIMIT, Batch, CONNECT_LIMIT, Client, Work, late};

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

/// Identity of this producer.
struct Producer {
    id: i64,
    epoch: i16,
    /// Number of the next record of each partition; 0 if there is none.
    sequences: BTreeMap<usize, i32>,
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
        Ok(Self {
            broker: broker.clone(),
            capture: capture.to_owned(),
            access: Access::new(broker)?,
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
            self.parcels = parcels::sort(batch, work, partitions);
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
