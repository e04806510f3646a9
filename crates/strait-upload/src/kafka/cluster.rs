//! Cluster: its brokers, and the connections with them.

use std::collections::BTreeMap;
use std::sync::Arc;

use strait_program::Error;
use strait_program::broker::Broker;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::connection::Connection;
use super::requests::{self, PRODUCE, Produced};
use super::sasl::Login;
use crate::client::{ACK_LIMIT, CONNECT_LIMIT};

/// Brokers and partitions.
pub(super) struct Cluster {
    pub(super) addresses: BTreeMap<i32, String>,
    pub(super) leaders: Vec<Option<i32>>,
    /// Open connections, by the number of the broker.
    pub(super) connections: BTreeMap<i32, Connection>,
}

/// How connections are opened.
#[derive(Clone)]
pub(super) struct Access {
    pub(super) tls: Option<TlsConnector>,
    pub(super) login: Option<Login>,
}

impl Access {
    /// Reads the credentials, and the certificates to trust.
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
