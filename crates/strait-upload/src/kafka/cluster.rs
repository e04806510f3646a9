//! Cluster: which broker leads each partition, and the connections with the brokers.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use strait_program::Error;
use strait_program::broker::Broker;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::connection::Connection;
use super::requests::{self, Metadata, PRODUCE, Produced};
use super::sasl::Login;
use super::stalls::Part;
use crate::client::{ACK_LIMIT, CONNECT_LIMIT};

/// Brokers and partitions, as one of the brokers knows them.
pub(super) struct Cluster {
    pub(super) addresses: BTreeMap<i32, String>,
    /// Leader of each partition of the topic: a broker with an address.
    pub(super) leaders: Vec<Option<i32>>,
    /// Open connections, by the number of the broker.
    pub(super) connections: BTreeMap<i32, Connection>,
}

impl Cluster {
    /// Keeps the connections of `before` with brokers that have the same addresses now.
    pub(super) fn new(metadata: Metadata, before: Option<Self>) -> Self {
        let addresses: BTreeMap<i32, String> = metadata.brokers.into_iter().collect();
        let connections = before.map_or_else(BTreeMap::new, |mut before| {
            before.connections.retain(|broker, _| addresses.get(broker) == before.addresses.get(broker));
            before.connections
        });
        let is_known = |leader: &i32| addresses.contains_key(leader);
        let leaders = metadata.leaders.into_iter().map(|leader| leader.filter(is_known)).collect();
        Self { addresses, leaders, connections }
    }

    pub(super) fn leader(&self, partition: usize) -> Option<i32> {
        self.leaders.get(partition).copied().flatten()
    }

    /// Returns the partitions without a leader.
    pub(super) fn leaderless(&self) -> impl Iterator<Item = usize> {
        (0..).zip(&self.leaders).filter(|(_, leader)| leader.is_none()).map(|(partition, _)| partition)
    }

    /// Returns true if the cluster has this part.
    pub(super) fn has(&self, part: Part) -> bool {
        match part {
            Part::Broker(broker) => self.addresses.contains_key(&broker),
            Part::Partition(partition, leader) => self.leader(partition) == leader,
        }
    }

    /// Takes the open connection with the broker after this one.
    pub(super) fn take_after(&mut self, broker: i32) -> Option<(i32, Connection)> {
        let mut later = self.connections.range((Excluded(broker), Unbounded));
        let next = later.next().or_else(|| self.connections.first_key_value()).map(|(broker, _)| *broker)?;
        self.connections.remove_entry(&next)
    }
}

/// How connections are opened.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) tls: Option<TlsConnector>,
    pub(super) login: Option<Login>,
}

impl Access {
    /// Reads the credentials and the certificates to trust.
    pub(super) fn new(broker: &Broker) -> Result<Self, Error> {
        let tls = if broker.requires_tls { Some(tls().map_err(Error::usage)?) } else { None };
        let login = Login::from_environment(tls.is_some()).map_err(Error::usage)?;
        Ok(Self { tls, login })
    }

    pub(super) async fn connect(&self, address: &str) -> Result<Connection, String> {
        let end = Instant::now() + CONNECT_LIMIT;
        let mut connection = Connection::open(address, self.tls.as_ref(), end).await?;
        if let Some(login) = &self.login {
            login.log_in(&mut connection, end).await?;
        }
        Ok(connection)
    }

    /// Sends a request to store batches, and reads the answer.
    pub(super) async fn exchange(
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
