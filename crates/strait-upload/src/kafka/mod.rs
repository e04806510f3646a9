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
//! A partition or a broker can be down for long. The flows of the others are settled first, and
//! only its own are lost ([`stalls`]).
//!
//! The client is written here, as those of crates.io that need no C library are not idempotent.

mod cluster;
mod connection;
mod parcels;
mod records;
mod requests;
mod sasl;
mod stalls;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use strait_os::clock;
use strait_program::Error;
use strait_program::broker::Broker;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use self::cluster::{Access, Cluster};
use self::connection::Connection;
use self::parcels::{Parcel, Sent};
use self::records::{Origin, Record};
use self::requests::{Code, INIT_PRODUCER_ID, METADATA, Produced};
use self::stalls::{Part, Stalls, State};
use crate::batch::Batch;
use crate::client::{ACK_LIMIT, CONNECT_LIMIT, Client, Work, late};

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
    /// Number of the broker that was last asked for the cluster on a connection that was open.
    asked: i32,
    /// Brokers and partitions that have failed.
    stalls: Stalls,
    producer: Option<Producer>,
    /// Flows of the batch that are not acknowledged.
    parcels: Vec<Parcel>,
    /// Time before which no request is sent.
    resume: Instant,
}

/// Identity of this producer.
struct Producer {
    /// Identifier of the cluster, which does not know the producers of another one.
    cluster: String,
    id: i64,
    epoch: i16,
    /// Number of the next record of each partition; 0 if there is none.
    sequences: BTreeMap<usize, i32>,
}

/// Next step of an attempt.
enum Step {
    /// Send the first parcel of each of these partitions.
    Send(BTreeSet<usize>),
    /// Ask for the cluster.
    Ask,
    Wait(Duration),
}

/// Parcels for a leader, with the encoded batch of each partition.
#[derive(Default)]
struct Request {
    sent: Vec<Sent>,
    batches: Vec<(i32, Vec<u8>)>,
}

/// Request to a leader, and its outcome.
struct Exchange {
    leader: i32,
    sent: Vec<Sent>,
    connection: Option<Connection>,
    was_sent: bool,
    result: Result<Produced, String>,
}

impl Kafka {
    /// Checks the credentials. The brokers may be down.
    pub(crate) fn open(broker: &Broker, capture: &str) -> Result<Self, Error> {
        Ok(Self::new(broker.clone(), capture.to_owned(), Access::new(broker)?))
    }

    fn new(broker: Broker, capture: String, access: Access) -> Self {
        Self {
            broker,
            capture,
            access,
            server: 0,
            learned: Vec::new(),
            cluster: None,
            asked: 0,
            stalls: Stalls::default(),
            producer: None,
            parcels: Vec::new(),
            resume: Instant::now(),
        }
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

    /// Asks for the cluster: the next broker with an open connection, else the servers.
    async fn ask(&mut self) -> Result<(), String> {
        let open = self.cluster.as_mut().and_then(|cluster| cluster.take_after(self.asked));
        if let Some((broker, mut connection)) = open {
            self.asked = broker;
            if self.learn(&mut connection).await.is_ok() {
                self.keep(broker, connection);
                return Ok(());
            }
        }
        self.connect().await
    }

    /// Asks for the cluster: each server until one answers, or the time is over.
    async fn connect(&mut self) -> Result<(), String> {
        let end = Instant::now() + CONNECT_LIMIT;
        let mut left = self.broker.addresses.len() + self.learned.len();
        loop {
            let asked = self.ask_server().await;
            left = left.saturating_sub(1);
            if asked.is_ok() || left == 0 || Instant::now() >= end {
                return asked;
            }
            self.pass();
        }
    }

    /// Asks one server for the cluster.
    async fn ask_server(&mut self) -> Result<(), String> {
        let address = self.server().ok_or("it has no address")?;
        let opened = self.access.connect(address).await;
        let mut connection = opened.map_err(|cause| format!("{address}: {cause}"))?;
        self.learn(&mut connection).await
    }

    /// Asks for the cluster, and for an identity if there is none.
    async fn learn(&mut self, connection: &mut Connection) -> Result<(), String> {
        let (topic, end) = (&self.broker.name, Instant::now() + ACK_LIMIT);
        let answer = connection.call(METADATA, &requests::metadata(topic), end).await?;
        let metadata = requests::read_metadata(&answer, topic)?;
        if self.producer.as_ref().is_some_and(|producer| producer.cluster != metadata.cluster) {
            self.start_anew();
            self.stalls.retain(|_| false);
            self.cluster = None;
        }
        if self.producer.is_none() {
            let answer = connection.call(INIT_PRODUCER_ID, &requests::init_producer_id(), end).await?;
            let (id, epoch) = requests::read_producer_id(&answer, &self.broker.name)?;
            let cluster = metadata.cluster.clone();
            self.producer = Some(Producer { cluster, id, epoch, sequences: BTreeMap::new() });
        }
        let others = metadata.brokers.iter().map(|(_, address)| address);
        let others = others.filter(|address| !self.broker.addresses.contains(address));
        self.learned = others.take(LEARNED_MAX).cloned().collect();
        let cluster = Cluster::new(metadata, self.cluster.take());
        self.stalls.retain(|part| cluster.has(part));
        let leaderless: Vec<usize> = cluster.leaderless().collect();
        self.cluster = Some(cluster);
        // All at once, so that batches wait for them at the same time.
        for partition in leaderless {
            self.fail_without_leader(partition);
        }
        Ok(())
    }

    /// Notes that a partition has no leader, unless the next attempt is not due.
    fn fail_without_leader(&mut self, partition: usize) {
        let (part, now) = (Part::Partition(partition, None), now());
        if self.stalls.state(&[part], now) <= State::Stale {
            self.stalls.fail(part, Code::LEADER_NOT_AVAILABLE.text(&self.broker.name), now);
        }
    }

    fn keep(&mut self, broker: i32, connection: Connection) {
        if let Some(cluster) = &mut self.cluster {
            cluster.connections.insert(broker, connection);
        }
    }

    fn leader(&self, partition: usize) -> Option<i32> {
        self.cluster.as_ref().and_then(|cluster| cluster.leader(partition))
    }

    /// Returns the state of a partition and its leader.
    fn state(&self, partition: usize, now: std::time::Instant) -> State<'_> {
        let leader = self.leader(partition);
        let partition = Part::Partition(partition, leader);
        leader.map_or_else(
            || self.stalls.state(&[partition], now),
            |leader| self.stalls.state(&[partition, Part::Broker(leader)], now),
        )
    }

    /// Returns the next step. Partitions that work come first, as attempts of others can take long.
    fn step(&self) -> Step {
        let now = now();
        let (mut works, mut due, mut is_stale, mut wait) =
            (BTreeSet::new(), BTreeSet::new(), false, Duration::MAX);
        for Parcel { partition, .. } in &self.parcels {
            match self.state(*partition, now) {
                State::Works => _ = works.insert(*partition),
                State::Due => _ = due.insert(*partition),
                State::Stale => is_stale = true,
                State::Pauses(pause) => wait = wait.min(pause),
                State::GivenUp(_) => wait = Duration::ZERO,
            }
        }
        if !works.is_empty() {
            Step::Send(works)
        } else if is_stale {
            Step::Ask
        } else if !due.is_empty() {
            Step::Send(due)
        } else {
            Step::Wait(wait)
        }
    }

    /// Gives up the parcels that have waited for long enough.
    fn give_up(&mut self, work: &mut Work) {
        let now = now();
        let (mut kept, mut is_unknown) = (Vec::new(), false);
        for parcel in std::mem::take(&mut self.parcels) {
            if let State::GivenUp(cause) = self.state(parcel.partition, now) {
                work.lose(&parcel.flows, cause.to_owned());
                is_unknown |= parcel.is_unknown;
            } else {
                kept.push(parcel);
            }
        }
        self.parcels = kept;
        if is_unknown {
            self.start_anew();
        }
    }

    /// Sends the first parcel of each of these partitions, and settles those that are answered.
    async fn round(
        &mut self,
        chosen: &BTreeSet<usize>,
        batch: &Batch,
        work: &mut Work,
    ) -> Result<(), String> {
        sleep_until(self.resume).await;
        let mut exchanges = JoinSet::new();
        for (leader, Request { sent, batches }) in self.requests(chosen, batch, work) {
            let Some(cluster) = &mut self.cluster else { return Err("it is not connected".into()) };
            let mut connection = cluster.connections.remove(&leader);
            let address = cluster.addresses.get(&leader).cloned().unwrap_or_default();
            let body = requests::produce(&self.broker.name, &batches, REPLICAS_LIMIT.as_millis() as i32);
            let access = self.access.clone();
            exchanges.spawn(async move {
                let mut was_sent = false;
                let result = access.exchange(&mut connection, &address, &body, &mut was_sent).await;
                Exchange { leader, sent, connection, was_sent, result }
            });
        }
        let mut needs_producer = false;
        while let Some(exchange) = exchanges.join_next().await {
            needs_producer |= self.finish(exchange.map_err(|error| error.to_string())?, work);
        }
        if needs_producer {
            // Not before: the other requests of the round have the old identity.
            self.start_anew();
        }
        Ok(())
    }

    /// Returns the request to each leader. A partition without a leader fails.
    fn requests(
        &mut self,
        chosen: &BTreeSet<usize>,
        batch: &Batch,
        work: &mut Work,
    ) -> BTreeMap<i32, Request> {
        let mut requests = BTreeMap::<i32, Request>::new();
        let time_ms = (clock::realtime_ns() / 1_000_000) as i64;
        for &partition in chosen {
            let Some(leader) = self.leader(partition) else {
                self.fail_without_leader(partition);
                continue;
            };
            if requests.len() >= LEADERS_MAX && !requests.contains_key(&leader) {
                // They follow in the next round.
                continue;
            }
            let Some((sent, encoded)) = self.encode(partition, batch, work, time_ms) else { continue };
            let request = requests.entry(leader).or_default();
            request.sent.push(sent);
            request.batches.push((partition as i32, encoded));
        }
        requests
    }

    /// Encodes the first parcel of a partition, and marks it as sent. Its flows are lost if they
    /// cannot be encoded.
    fn encode(
        &mut self,
        partition: usize,
        batch: &Batch,
        work: &mut Work,
        time_ms: i64,
    ) -> Option<(Sent, Vec<u8>)> {
        let at = self.first(partition)?.0;
        let parcel = self.parcels.get(at)?;
        let groups = || batch.groups(&parcel.flows);
        let values: Vec<_> = match groups().map(|group| batch.message(group)).collect() {
            Ok(values) => values,
            Err(cause) => {
                work.lose(&self.parcels.remove(at).flows, cause);
                return None;
            }
        };
        let key = |group: &[usize]| group.first().filter(|_| !batch.has_groups()).map(|at| batch.key(*at));
        let keys: Vec<_> = groups().map(key).collect();
        let ids: Vec<String> = groups().map(|group| batch.id(&self.capture, group)).collect();
        let Producer { id, epoch, sequences, .. } = self.producer.as_ref()?;
        let sequence = sequences.get(&partition).copied().unwrap_or(0);
        let origin = Origin { producer: *id, epoch: *epoch, sequence };
        let records = values.iter().enumerate().map(|(at, value)| Record {
            key: keys[at].as_deref(),
            value,
            id: &ids[at],
        });
        let encoded = records::encode(records, origin, time_ms);
        let bytes = values.iter().map(Bytes::len).sum();
        Some((self.first(partition)?.1.send(values.len(), bytes), encoded))
    }

    /// Notes the outcome of a request. Returns true if the producer must start anew.
    fn finish(&mut self, exchange: Exchange, work: &mut Work) -> bool {
        let Exchange { leader, sent, connection, was_sent, result } = exchange;
        if was_sent {
            self.count_repeated(&sent, work);
        }
        let mut needs_producer = false;
        match result {
            Ok(Produced { results, throttle_ms }) => {
                let throttle = Duration::from_millis(throttle_ms.into()).min(THROTTLE_MAX);
                self.resume = self.resume.max(Instant::now() + throttle);
                self.stalls.end(Part::Broker(leader));
                if let Some(connection) = connection {
                    self.keep(leader, connection);
                }
                for sent in sent {
                    let mut results = results.iter();
                    let result = results.find(|(partition, _)| *partition as usize == sent.partition);
                    needs_producer |= self.settle(sent, result.map(|(_, code)| *code), work);
                }
            }
            Err(cause) => {
                self.stalls.fail(Part::Broker(leader), cause, now());
                for sent in sent.into_iter().filter(|_| !was_sent) {
                    if let Some((_, parcel)) = self.first(sent.partition) {
                        parcel.is_unknown = sent.was_unknown;
                    }
                }
            }
        }
        needs_producer
    }

    /// Counts flows that were sent again although the broker may have them under an earlier
    /// identity.
    fn count_repeated(&mut self, sent: &[Sent], work: &mut Work) {
        for Sent { partition, .. } in sent {
            let parcel = self.first(*partition).map(|(_, parcel)| parcel);
            if let Some(parcel) = parcel.filter(|parcel| parcel.may_repeat) {
                parcel.may_repeat = false;
                work.repeat(parcel.flows.len());
            }
        }
    }

    /// Returns the first parcel of a partition, and its position.
    fn first(&mut self, partition: usize) -> Option<(usize, &mut Parcel)> {
        self.parcels.iter_mut().enumerate().find(|(_, parcel)| parcel.partition == partition)
    }

    /// Notes the result of a parcel that was sent, if the answer has one. Returns true if the
    /// producer must start anew.
    fn settle(&mut self, sent: Sent, code: Option<Code>, work: &mut Work) -> bool {
        let Sent { partition, was_unknown, records, bytes } = sent;
        let part = Part::Partition(partition, self.leader(partition));
        let Some((at, parcel)) = self.first(partition) else { return false };
        let Some(code) = code else {
            self.stalls.fail(part, late(), now());
            return false;
        };
        parcel.is_unknown = was_unknown || code.is_unknown();
        let cause = code.text(&self.broker.name);
        if !code.is_stored() && !code.is_too_large() {
            self.stalls.fail(part, cause, now());
            return code.needs_producer();
        }
        self.stalls.end(part);
        let parcel = self.parcels.remove(at);
        if code.is_stored() {
            work.store(&parcel.flows, records, bytes);
            if let Some(producer) = &mut self.producer {
                let next = producer.sequences.entry(partition).or_default();
                // After the largest number comes 0.
                *next = next.wrapping_add(records as i32) & i32::MAX;
            }
        } else if parcel.flows.len() > 1 {
            let is_one = records == 1;
            self.parcels.splice(at..at, parcel.halve());
            // The broker would take the first half, again a record, for the whole one.
            return was_unknown && is_one;
        } else {
            let maybe = if was_unknown { ", but an earlier attempt may have stored it" } else { "" };
            work.lose(&parcel.flows, cause + maybe);
            // The broker would take the next parcel for this one, if it has the same numbers.
            return was_unknown;
        }
        false
    }

    /// Forgets the identity of this producer. Marks flows that the broker may have under it.
    fn start_anew(&mut self) {
        self.producer = None;
        for parcel in &mut self.parcels {
            parcel.may_repeat |= std::mem::take(&mut parcel.is_unknown);
        }
    }

    /// Connects if there is no cluster or no identity.
    async fn prepare(&mut self) -> Result<(), String> {
        if self.cluster.is_none() || self.producer.is_none() {
            self.ask().await?;
        }
        Ok(())
    }
}

impl Client for Kafka {
    /// Sends the flows, and settles them. Those of a broker or a partition that fails wait for it
    /// here, and are then lost alone.
    ///
    /// # Errors
    /// No broker answers with the cluster.
    async fn attempt(&mut self, batch: &Batch, work: &mut Work) -> Result<(), String> {
        self.prepare().await?;
        if self.parcels.is_empty() {
            let partitions = self.cluster.as_ref().map_or(0, |cluster| cluster.leaders.len());
            self.parcels = parcels::sort(batch, work, partitions);
        }
        loop {
            self.give_up(work);
            if self.parcels.is_empty() {
                return Ok(());
            }
            self.prepare().await?;
            match self.step() {
                Step::Send(partitions) => self.round(&partitions, batch, work).await?,
                Step::Ask => self.ask().await?,
                Step::Wait(pause) => sleep(pause).await,
            }
        }
    }

    /// Starts anew if it is unknown if the numbers of a parcel are in use.
    fn forget(&mut self) {
        if self.parcels.iter().any(|parcel| parcel.is_unknown) {
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

/// Returns the time, for the plan of attempts.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}
