//! Connection to a NATS server. JetStream acknowledges each message.
//!
//! A message has the identifier `CAPTURE:SUBJECT:FORMAT:NUMBER`, and `:COUNT` after it if it can
//! have several flows. A stream may take several subjects, and a subject several formats, to each
//! of which a capture sends its flows. No part after `CAPTURE` can have a colon, so two messages
//! have different identifiers. JetStream ignores a message with an identifier that it has stored
//! within the duplicate window of the stream, so a message without an acknowledgment is sent again
//! without a second copy. After a failure the connection is opened anew.

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
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::batch::Batch;
use crate::client::{ACK_LIMIT, CONNECT_LIMIT, Client, Work, late};

/// Maximum number of messages without an acknowledgment: those of a batch.
const UNACKNOWLEDGED_MAX: usize = 16 << 10;
/// Bytes of the header of a message beside its identifier: version, name of the field, ends of
/// lines. They count for max_payload.
const HEADER_BYTES: usize = "NATS/1.0\r\nNats-Msg-Id: \r\n\r\n".len();
/// Error of a server that has closed the connection because of a long message, in lower case. The
/// limit of an account may be below that of the server, and the client does not know it.
const VIOLATION: &str = "maximum payload violation";
/// Maximum number of such errors in an attempt.
const REFUSALS_MAX: usize = 16;
/// Least limit of messages with several flows that follows from such an error. Shorter messages
/// are halved one by one.
const GROUP_BYTES_MIN: usize = 4 << 10;
/// Causes of the loss of a flow.
const MAX_PAYLOAD: &str = "a flow is longer than max_payload of the server";
const REFUSED: &str = "a flow is longer than the server permits to the account";
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
    /// Notification of the connection that the server has refused a message as too long.
    refused: Arc<Notify>,
    /// Limit of messages with several flows, which follows from refused ones.
    group_bytes_max: usize,
}

/// Message of a batch.
#[derive(Debug)]
struct Message {
    /// Positions of its flows in the batch, in rising order.
    flows: Vec<usize>,
    bytes: Bytes,
    id: String,
    /// True if it was sent on this connection.
    is_sent: bool,
    /// True if the server may have stored it, and its value before it was sent last.
    is_unknown: bool,
    was_unknown: bool,
    /// True if the server may have stored a message of which this is a part, and if its flows are
    /// counted as repeated.
    is_part: bool,
    is_counted: bool,
    is_stored: bool,
    /// Cause, if the server does not take messages of this length.
    too_long: Option<&'static str>,
}

impl Message {
    fn new(batch: &Batch, prefix: &str, flows: &[usize]) -> Result<Self, String> {
        let (bytes, id) = (batch.message(flows)?, batch.id(prefix, flows));
        Ok(Self {
            flows: flows.to_vec(),
            bytes,
            id,
            is_sent: false,
            is_unknown: false,
            was_unknown: false,
            is_part: false,
            is_counted: false,
            is_stored: false,
            too_long: None,
        })
    }

    /// Notes that it is sent. Returns the number of its flows that are repeated by that: the server
    /// may have them in a message with another identifier.
    fn note_sent(&mut self) -> usize {
        (self.is_sent, self.was_unknown, self.is_unknown) = (true, self.is_unknown, true);
        let is_repeated = self.is_part && !std::mem::replace(&mut self.is_counted, true);
        if is_repeated { self.flows.len() } else { 0 }
    }

    /// Returns the length that the server compares with its limit.
    fn payload_bytes(&self) -> usize {
        HEADER_BYTES + self.id.len() + self.bytes.len()
    }
}

impl Client for Nats {
    /// Sends the open messages, and settles those that JetStream acknowledges.
    async fn attempt(&mut self, batch: &Batch, work: &mut Work) -> Result<(), String> {
        if self.messages.is_empty() {
            let open = work.open().to_vec();
            self.messages =
                batch.groups(&open).filter_map(|group| self.message(batch, group, work)).collect();
        }
        let mut refusals = 0;
        while refusals < REFUSALS_MAX {
            let context = match self.context.take() {
                Some(context) => context,
                None => self.connect().await?,
            };
            let context = self.context.insert(context).clone();
            self.split(batch, work, context.client().max_payload());
            if self.messages.is_empty() {
                return Ok(());
            }
            let refused = Arc::clone(&self.refused);
            let sent = tokio::select! {
                biased;
                () = refused.notified() => None,
                sent = self.send(&context, work) => Some(sent),
            };
            for message in self.messages.extract_if(.., |message| message.is_stored) {
                work.store(&message.flows, 1, message.bytes.len());
            }
            if let Some(sent) = sent {
                sent?;
            } else {
                refusals += 1;
                self.narrow();
                let _ = self.close(String::new());
            }
        }
        Err(REFUSED.into())
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
            refused: Arc::default(),
            group_bytes_max: usize::MAX,
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
    /// counted as repeated when a half is sent.
    fn split(&mut self, batch: &Batch, work: &mut Work, bytes_max: usize) {
        let mut waiting: Vec<Message> = std::mem::take(&mut self.messages);
        waiting.reverse();
        while let Some(message) = waiting.pop() {
            let Message { flows, too_long, .. } = &message;
            let (is_group, bytes) = (flows.len() > 1, message.payload_bytes());
            let is_long = bytes > bytes_max || is_group && bytes > self.group_bytes_max;
            let Some(cause) = too_long.or(is_long.then_some(MAX_PAYLOAD)) else {
                self.messages.push(message);
                continue;
            };
            let is_part = message.is_unknown || message.is_part;
            if !is_group {
                let maybe = if is_part { ", but an earlier attempt may have stored it" } else { "" };
                work.lose(flows, format!("{cause}{maybe}"));
                continue;
            }
            let is_counted = message.is_counted && !message.is_unknown;
            let (first, second) = flows.split_at(flows.len() / 2);
            for half in [second, first] {
                let half = self.message(batch, half, work);
                waiting.extend(half.map(|half| Message { is_part, is_counted, ..half }));
            }
        }
    }

    /// Notes that the server has refused a message. It reads them in order, so the first of the
    /// longest ones is too long, and it has stored neither that one nor a later one.
    fn narrow(&mut self) {
        let sent = self.messages.iter().enumerate().filter(|(_, message)| message.is_sent);
        let longest = sent.rev().max_by_key(|(_, message)| message.payload_bytes());
        let Some(at) = longest.map(|(at, _)| at) else { return };
        let unread = self.messages.get_mut(at..).unwrap_or_default();
        for message in unread.iter_mut().filter(|message| message.is_sent) {
            message.is_unknown = message.was_unknown;
        }
        let Some(message) = unread.first_mut() else { return };
        message.too_long = Some(REFUSED);
        if message.flows.len() > 1 {
            self.group_bytes_max = (message.payload_bytes() / 2).max(GROUP_BYTES_MIN);
        }
    }

    /// Sends the messages, and waits for their acknowledgments.
    async fn send(&mut self, context: &Context, work: &mut Work) -> Result<(), String> {
        let (deadline, mut failure) = (Instant::now() + ACK_LIMIT, None);
        let Self { broker, messages, .. } = self;
        let mut pending = Vec::with_capacity(messages.len());
        for message in messages.iter_mut() {
            message.is_sent = false;
        }
        for (at, message) in messages.iter_mut().enumerate() {
            let content = PublishMessage::build().payload(message.bytes.clone()).message_id(&message.id);
            match timeout_at(deadline, context.send_publish(broker.name.clone(), content)).await {
                Ok(Ok(acknowledgment)) => {
                    work.repeat(message.note_sent());
                    pending.push((at, acknowledgment));
                }
                Ok(Err(error)) => failure = Some(text(&error, broker)),
                Err(_) => failure = Some(late()),
            }
            if failure.is_some() {
                break;
            }
        }
        for (at, acknowledgment) in pending {
            let result = timeout_at(deadline, acknowledgment.into_future()).await;
            let Some(message) = messages.get_mut(at) else { continue };
            match result {
                Ok(Ok(_)) => message.is_stored = true,
                Ok(Err(error)) if is_too_long(&error) => {
                    message.too_long = Some(MAX_MSG_SIZE);
                    message.is_unknown = message.was_unknown;
                }
                Ok(Err(error)) => failure = Some(text(&error, broker)),
                Err(_) => failure = Some(late()),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    async fn connect(&mut self) -> Result<Context, String> {
        self.refused = Arc::default();
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
        let (reported, refused) = (Arc::clone(&self.reported), Arc::clone(&self.refused));
        // The connection is opened anew here, where its failures are known.
        let options = ConnectOptions::new()
            .name("strait")
            .connection_timeout(CONNECT_LIMIT)
            .max_reconnects(1)
            .ignore_discovered_servers()
            .require_tls(self.broker.requires_tls)
            .event_callback(move |event| {
                if let Event::ServerError(error) = event {
                    let error = error.to_string();
                    if error.to_lowercase().contains(VIOLATION) {
                        refused.notify_one();
                    }
                    *reported.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
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

#[cfg(test)]
mod tests {
    use strait_program::broker::Format;

    use super::*;
    use crate::batch::tests::stream;

    /// Returns a client with a message of 8 flows, which has not connected.
    fn client() -> (Nats, Batch, Work) {
        let broker = "nats://127.0.0.1:1/flows?format=arrow".parse().unwrap();
        let mut nats = Nats::open(&broker, "c").unwrap();
        let batch = Batch::read(0, Format::Arrow, stream(&["1:a"; 8])).unwrap();
        let mut work = Work::new(&batch);
        let message = nats.message(&batch, &[0, 1, 2, 3, 4, 5, 6, 7], &mut work);
        nats.messages.extend(message);
        (nats, batch, work)
    }

    fn ids(nats: &Nats) -> Vec<&str> {
        nats.messages.iter().map(|message| message.id.strip_prefix("c:flows:arrow:").unwrap()).collect()
    }

    #[test]
    fn refused_message_is_halved_until_its_flows_are_lost() {
        let (mut nats, batch, mut work) = client();
        nats.narrow();
        assert_eq!(nats.group_bytes_max, usize::MAX, "nothing was sent");
        for (expected, rest) in [("0:4", "4:4"), ("0:2", "2:2"), ("0:1", "1:1")] {
            assert_eq!(nats.messages.first_mut().unwrap().note_sent(), 0);
            nats.narrow();
            nats.split(&batch, &mut work, usize::MAX);
            assert_eq!(ids(&nats)[..2], [expected, rest]);
        }
        assert_eq!(nats.group_bytes_max, GROUP_BYTES_MIN);
        nats.messages[0].note_sent();
        nats.narrow();
        nats.split(&batch, &mut work, usize::MAX);
        assert_eq!(ids(&nats), ["1:1", "2:2", "4:4"]);
        let answer = work.end("");
        assert_eq!((answer.repeated, answer.cause.is_empty()), (0, true));
        assert_eq!(answer.lost, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn later_messages_of_several_flows_are_no_longer_than_half_of_a_refused_one() {
        let (mut nats, batch, mut work) = client();
        let bytes = nats.messages[0].payload_bytes();
        nats.group_bytes_max = bytes - 1;
        nats.split(&batch, &mut work, usize::MAX);
        assert_eq!(ids(&nats), ["0:4", "4:4"]);
        nats.group_bytes_max = 1;
        nats.split(&batch, &mut work, usize::MAX);
        assert_eq!(nats.messages.len(), 8, "a flow alone has no such limit");
    }

    #[test]
    fn flows_are_repeated_when_a_part_of_a_message_that_may_be_stored_is_sent() {
        let (mut nats, batch, mut work) = client();
        assert_eq!(nats.messages[0].note_sent(), 0);
        let bytes = nats.messages[0].payload_bytes();
        nats.split(&batch, &mut work, bytes - 1);
        assert_eq!(ids(&nats), ["0:4", "4:4"]);
        assert_eq!(nats.messages[0].note_sent(), 4);
        assert_eq!(nats.messages[0].note_sent(), 0, "it has the same identifier");
        // A refused message is not counted again.
        (nats.messages[0].is_unknown, nats.messages[0].too_long) = (false, Some(MAX_MSG_SIZE));
        nats.messages[1].too_long = Some(MAX_MSG_SIZE);
        nats.split(&batch, &mut work, usize::MAX);
        assert_eq!(ids(&nats), ["0:2", "2:2", "4:2", "6:2"]);
        let repeated: Vec<usize> = nats.messages.iter_mut().map(Message::note_sent).collect();
        assert_eq!(repeated, [0, 0, 2, 2]);
        nats.split(&batch, &mut work, 1);
        assert!(nats.messages.is_empty());
        let answer = work.end("");
        assert!(answer.cause.ends_with("an earlier attempt may have stored it"), "{}", answer.cause);
        assert_eq!(answer.repeated, 0, "nothing was sent here");
    }
}
