//! Connection to a NATS server. JetStream acknowledges each message.
//!
//! A message has the identifier `CAPTURE-SUBJECT-NUMBER`: a stream may take several subjects, to
//! each of which a capture sends its flows. JetStream ignores a message with an identifier
//! that it has stored within the duplicate window of the stream, so a message without an
//! acknowledgment is sent again without a second copy. After a failure the connection is opened
//! anew.

use std::env;
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::jetstream::context::{Context, ContextBuilder, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::{ConnectOptions, Event};
use strait_program::Error;
use strait_program::broker::Broker;
use tokio::time::{Instant, timeout_at};

use crate::client::{ACK_LIMIT, Batch, CONNECT_LIMIT, Client, Work, late};

/// Maximum number of messages without an acknowledgment: those of a batch.
const UNACKNOWLEDGED_MAX: usize = 16 << 10;

/// Connection to a server, which is opened when it is needed.
pub(crate) struct Nats {
    broker: Broker,
    /// Beginning of identifiers: `CAPTURE-SUBJECT`.
    prefix: String,
    context: Option<Context>,
    /// Last error that the server has reported by itself, such as a missing permission.
    reported: Arc<Mutex<Option<String>>>,
}

impl Client for Nats {
    /// Sends the open messages, and settles those that JetStream acknowledges.
    async fn attempt(&mut self, batch: &Batch, work: &mut Work) -> Result<(), String> {
        if self.context.is_none() {
            self.context = Some(self.connect().await?);
        }
        let Some(context) = &self.context else { return Err("it is not connected".into()) };
        let deadline = Instant::now() + ACK_LIMIT;
        let (mut pending, mut failure) = (Vec::with_capacity(work.open().len()), None);
        for (at, line) in batch.open(work) {
            let id = batch.id(&self.prefix, at);
            let message = PublishMessage::build().payload(line.clone()).message_id(id);
            match timeout_at(deadline, context.send_publish(self.broker.name.clone(), message)).await {
                Ok(Ok(acknowledgment)) => pending.push((at, acknowledgment)),
                Ok(Err(error)) => failure = Some(self.text(&error)),
                Err(_) => failure = Some(late()),
            }
            if failure.is_some() {
                break;
            }
        }
        let mut acknowledged = Vec::with_capacity(pending.len());
        for (at, acknowledgment) in pending {
            match timeout_at(deadline, acknowledgment.into_future()).await {
                Ok(Ok(_)) => acknowledged.push(at),
                Ok(Err(error)) => failure = Some(self.text(&error)),
                Err(_) => failure = Some(late()),
            }
        }
        work.settle(&acknowledged);
        failure.map_or(Ok(()), Err)
    }

    fn forget(&mut self) {}

    fn close(&mut self, cause: String) -> String {
        self.context = None;
        self.reported.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or(cause)
    }
}

impl Nats {
    /// Checks the credentials. The server may be down.
    pub(crate) fn open(broker: &Broker, capture: &str) -> Result<Self, Error> {
        let prefix = format!("{capture}-{}", broker.name);
        let nats = Self { broker: broker.clone(), prefix, context: None, reported: Arc::default() };
        nats.options().map_err(Error::usage)?;
        Ok(nats)
    }

    async fn connect(&self) -> Result<Context, String> {
        let options = self.options()?;
        let scheme = if self.broker.requires_tls { "tls" } else { "nats" };
        let servers: Vec<String> =
            self.broker.addresses.iter().map(|address| format!("{scheme}://{address}")).collect();
        let client = options.connect(&servers[..]).await;
        let client = client.map_err(|error| error.to_string())?;
        Ok(ContextBuilder::new().timeout(ACK_LIMIT).max_ack_inflight(UNACKNOWLEDGED_MAX).build(client))
    }

    /// Returns the options of a connection with the credentials of the environment.
    fn options(&self) -> Result<ConnectOptions, String> {
        let reported = Arc::clone(&self.reported);
        // The connection is opened anew here, where its failures are known.
        let options = ConnectOptions::new()
            .name("strait")
            .connection_timeout(CONNECT_LIMIT)
            .max_reconnects(1)
            .ignore_discovered_servers()
            .require_tls(self.broker.requires_tls)
            .event_callback(move |event| {
                if let Event::ServerError(error) = event {
                    *reported.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
                }
                std::future::ready(())
            });
        let [file, token, user, password] =
            ["NATS_CREDS", "NATS_TOKEN", "NATS_USER", "NATS_PASSWORD"].map(|name| env::var(name).ok());
        match (file, token, user, password) {
            (None, None, None, None) => Ok(options),
            (Some(file), None, None, None) => {
                let failed = |error| format!("read the credentials in {file}, of NATS_CREDS: {error}");
                let credentials = std::fs::read_to_string(&file).map_err(failed)?;
                options.credentials(&credentials).map_err(failed)
            }
            (None, Some(token), None, None) => Ok(options.token(token)),
            (None, None, Some(user), Some(password)) => Ok(options.user_and_password(user, password)),
            _ => {
                Err("set NATS_CREDS, or NATS_TOKEN, or both NATS_USER and NATS_PASSWORD, and no others"
                    .into())
            }
        }
    }

    fn text(&self, error: &async_nats::jetstream::context::PublishError) -> String {
        match error.kind() {
            PublishErrorKind::StreamNotFound => {
                format!("no stream of the server takes the subject {}: create one", self.broker.name)
            }
            _ => error.to_string(),
        }
    }
}
