//! Connection to a NATS server. JetStream acknowledges each message.
//!
//! A message has the identifier `CAPTURE:SUBJECT:FORMAT:NUMBER`, and `:COUNT` after it if it can have
//! several flows. A stream may take several subjects, and a subject several formats, to each of
//! which a capture sends its flows. No part after `CAPTURE` can have a colon, so two messages have
//! different identifiers. JetStream ignores a message with an identifier that it has stored within
//! the duplicate window of the stream, so a message without an acknowledgment is sent again without
//! a second copy. After a failure the connection is opened anew.

use std::env;
use std::error::Error as _;
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::jetstream::context::{Context, ContextBuilder, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{ConnectOptions, Event};
use bytes::Bytes;
use strait_program::Error;
use strait_program::broker::Broker;
use tokio::time::{Instant, timeout_at};

use crate::batch::Batch;
use crate::client::{ACK_LIMIT, CONNECT_LIMIT, Client, Work, late};

/// Maximum number of messages without an acknowledgment: those of a batch.
const UNACKNOWLEDGED_MAX: usize = 16 << 10;
/// Bytes of the header of a message beside its identifier: version, name of the field, ends of
/// lines. They count for max_payload.
const HEADER_BYTES: usize = "NATS/1.0\r\nNats-Msg-Id: \r\n\r\n".len();
/// Causes of the loss of a flow.
const MAX_PAYLOAD: &str = "a flow is longer than max_payload of the server";
const MAX_MSG_SIZE: &str = "a flow is longer than max_msg_size of the stream";

/// Connection to a server, which is opened when it is needed.
pub(crate) struct Nats {
    broker: Broker,
    /// Beginning of identifiers: `CAPTURE:SUBJECT`.
    prefix: String,
    context: Option<Context>,
    /// Messages of the batch that are not settled. A message that is sent again has the same flows
    /// and the same identifier.
    messages: Vec<Message>,
    /// Last error that the server has reported by itself, such as a missing permission.
    reported: Arc<Mutex<Option<String>>>,
}

/// Message of a batch.
struct Message {
    /// Positions of its flows in the batch, in rising order.
    flows: Vec<usize>,
    bytes: Bytes,
    id: String,
    /// True if the server may have stored it.
    is_unknown: bool,
    is_stored: bool,
    /// Cause, if the server does not take messages of this length.
    too_long: Option<&'static str>,
}

impl Message {
    fn new(batch: &Batch, prefix: &str, flows: &[usize]) -> Result<Self, String> {
        let (bytes, id) = (batch.message(flows)?, batch.id(prefix, flows));
        let flows = flows.to_vec();
        Ok(Self { flows, bytes, id, is_unknown: false, is_stored: false, too_long: None })
    }

    /// Returns the length that the server compares with its limit.
    fn payload_bytes(&self) -> usize {
        HEADER_BYTES + self.id.len() + self.bytes.len()
    }
}

impl Client for Nats {
    /// Sends the open messages, and settles those that JetStream acknowledges.
    async fn attempt(&mut self, batch: &Batch, work: &mut Work) -> Result<(), String> {
        if self.context.is_none() {
            self.context = Some(self.connect().await?);
        }
        let context = self.context.clone().ok_or("it is not connected")?;
        if self.messages.is_empty() {
            let open = work.open().to_vec();
            self.messages =
                batch.groups(&open).filter_map(|group| self.message(batch, group, work)).collect();
        }
        let bytes_max = context.client().max_payload();
        loop {
            self.split(batch, work, bytes_max);
            if self.messages.is_empty() {
                return Ok(());
            }
            let sent = self.send(&context).await;
            for message in self.messages.extract_if(.., |message| message.is_stored) {
                work.store(&message.flows, 1, message.bytes.len());
            }
            sent?;
        }
    }

    fn forget(&mut self) {
        self.messages.clear();
    }

    fn close(&mut self, cause: String) -> String {
        self.context = None;
        self.reported.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or(cause)
    }
}

impl Nats {
    /// Checks the credentials. The server may be down.
    pub(crate) fn open(broker: &Broker, capture: &str) -> Result<Self, Error> {
        let prefix = format!("{capture}:{}", broker.name);
        let nats = Self {
            broker: broker.clone(),
            prefix,
            context: None,
            messages: Vec::new(),
            reported: Arc::default(),
        };
        nats.options().map_err(Error::usage)?;
        Ok(nats)
    }

    /// Returns the message of a group of flows, which are lost if they cannot be encoded.
    fn message(&self, batch: &Batch, group: &[usize], work: &mut Work) -> Option<Message> {
        let message = Message::new(batch, &self.prefix, group);
        message.map_err(|cause| work.lose(group, cause)).ok()
    }

    /// Halves messages that are too long, until each is short enough. A flow that is too long by
    /// itself is lost. Halves have other identifiers: flows of a message that may be stored are
    /// counted as repeated.
    fn split(&mut self, batch: &Batch, work: &mut Work, bytes_max: usize) {
        let mut waiting: Vec<Message> = std::mem::take(&mut self.messages);
        waiting.reverse();
        while let Some(message) = waiting.pop() {
            let Message { flows, is_unknown, too_long, .. } = &message;
            let is_long = message.payload_bytes() > bytes_max;
            let Some(cause) = too_long.or(is_long.then_some(MAX_PAYLOAD)) else {
                self.messages.push(message);
                continue;
            };
            if flows.len() < 2 {
                let maybe = if *is_unknown { ", but an earlier attempt may have stored it" } else { "" };
                work.lose(flows, format!("{cause}{maybe}"));
                continue;
            }
            if *is_unknown {
                work.repeat(flows.len());
            }
            let (first, second) = flows.split_at(flows.len() / 2);
            for half in [second, first] {
                waiting.extend(self.message(batch, half, work));
            }
        }
    }

    /// Sends the messages, and waits for their acknowledgments.
    async fn send(&mut self, context: &Context) -> Result<(), String> {
        let (deadline, mut failure) = (Instant::now() + ACK_LIMIT, None);
        let Self { broker, messages, .. } = self;
        let mut pending = Vec::with_capacity(messages.len());
        for (at, message) in messages.iter_mut().enumerate() {
            let was_unknown = std::mem::replace(&mut message.is_unknown, true);
            let content = PublishMessage::build().payload(message.bytes.clone()).message_id(&message.id);
            match timeout_at(deadline, context.send_publish(broker.name.clone(), content)).await {
                Ok(Ok(acknowledgment)) => pending.push((at, was_unknown, acknowledgment)),
                Ok(Err(error)) => failure = Some(text(&error, broker)),
                Err(_) => failure = Some(late()),
            }
            if failure.is_some() {
                break;
            }
        }
        for (at, was_unknown, acknowledgment) in pending {
            let result = timeout_at(deadline, acknowledgment.into_future()).await;
            let Some(message) = messages.get_mut(at) else { continue };
            match result {
                Ok(Ok(_)) => message.is_stored = true,
                Ok(Err(error)) if is_too_long(&error) => {
                    message.too_long = Some(MAX_MSG_SIZE);
                    message.is_unknown = was_unknown;
                }
                Ok(Err(error)) => failure = Some(text(&error, broker)),
                Err(_) => failure = Some(late()),
            }
        }
        failure.map_or(Ok(()), Err)
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
}

fn text(error: &PublishError, broker: &Broker) -> String {
    match error.kind() {
        PublishErrorKind::StreamNotFound => {
            format!("no stream of the server takes the subject {}: create one", broker.name)
        }
        _ => error.to_string(),
    }
}

/// Returns true if the stream takes only shorter messages.
fn is_too_long(error: &PublishError) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
    source.is_some_and(|error| error.error_code() == ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM)
}
