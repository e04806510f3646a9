//! Connection to a NATS server. JetStream acknowledges each message.
//!
//! A message has the identifier `CAPTURE-NUMBER`. JetStream ignores a message with an identifier
//! that it has stored within the duplicate window of the stream, so a message without an
//! acknowledgment is sent again without a second copy. After a failure the connection is opened
//! anew, with growing pauses. Messages wait for it for at most [`RETRY_FOR`].

use std::env;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::context::{Context, ContextBuilder, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::{ConnectOptions, Event};
use bytes::Bytes;
use strait_os::retry::{Attempts, Step};
use strait_program::Error;
use strait_program::broker::{Answer, Broker};
use tokio::time::{Instant, sleep, timeout_at};

/// Time for which messages wait while the server does not take them.
const RETRY_FOR: Duration = Duration::from_secs(10);
/// First and longest pause between two attempts.
const BACKOFF: Duration = Duration::from_millis(250);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Limit of an attempt to connect, and of the acknowledgments of a batch.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const ACK_LIMIT: Duration = Duration::from_secs(5);
/// Maximum number of messages without an acknowledgment: those of a batch.
const UNACKNOWLEDGED_MAX: usize = 16 << 10;

/// Flows that are acknowledged together.
pub(crate) struct Batch {
    /// Number of the first flow.
    first: u64,
    lines: Vec<Bytes>,
}

impl Batch {
    /// Splits lines, each of which becomes a message.
    pub(crate) fn new(first: u64, lines: Vec<u8>) -> Self {
        let all = Bytes::from(lines);
        let line = |line: &[u8]| all.slice_ref(line);
        let lines = all.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(line);
        Self { first, lines: lines.collect() }
    }
}

/// Connection to a server, which is opened when it is needed.
pub(crate) struct Nats {
    broker: Broker,
    capture: String,
    context: Option<Context>,
    attempts: Attempts,
    /// Cause of the last failure.
    cause: String,
    /// Last error that the server has reported by itself, such as a missing permission.
    reported: Arc<Mutex<Option<String>>>,
}

impl Nats {
    /// Checks the credentials. The server may be down.
    pub(crate) fn open(broker: &Broker, capture: &str) -> Result<Self, Error> {
        let (broker, capture, reported) = (broker.clone(), capture.to_owned(), Arc::default());
        let attempts = Attempts::new(BACKOFF, BACKOFF_MAX);
        let nats = Self { broker, capture, context: None, attempts, cause: String::new(), reported };
        nats.options().map_err(Error::usage)?;
        Ok(nats)
    }

    /// Publishes a batch, and waits for its acknowledgments. Returns the messages without one.
    pub(crate) async fn publish(&mut self, batch: &Batch) -> Answer {
        let mut left: Vec<usize> = (0..batch.lines.len()).collect();
        while !left.is_empty() {
            match self.attempts.step(std::time::Instant::now(), RETRY_FOR) {
                Step::Attempt => match self.attempt(batch, &mut left).await {
                    Ok(()) => self.attempts.succeed(),
                    Err(cause) => self.fail(cause),
                },
                Step::Wait(pause) => sleep(pause).await,
                Step::GiveUp => return Answer { lost: left, cause: self.cause.clone() },
            }
        }
        Answer::default()
    }

    /// Closes the connection after a failure, and plans the next attempt.
    fn fail(&mut self, cause: String) {
        self.context = None;
        self.cause = self.reported.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or(cause);
        self.attempts.fail(std::time::Instant::now());
    }

    /// Sends the messages in `left`, and removes those that are acknowledged.
    async fn attempt(&mut self, batch: &Batch, left: &mut Vec<usize>) -> Result<(), String> {
        if self.context.is_none() {
            self.context = Some(self.connect().await?);
        }
        let Some(context) = &self.context else { return Err("it is not connected".into()) };
        let deadline = Instant::now() + ACK_LIMIT;
        let late = || format!("it has not acknowledged all flows within {} s", ACK_LIMIT.as_secs());
        let (mut pending, mut failure) = (Vec::with_capacity(left.len()), None);
        for (&at, line) in left.iter().filter_map(|at| Some((at, batch.lines.get(*at)?))) {
            let id = format!("{}-{}", self.capture, batch.first.wrapping_add(at as u64));
            let message = PublishMessage::build().payload(line.clone()).message_id(id);
            match timeout_at(deadline, context.send_publish(self.broker.subject.clone(), message)).await {
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
        left.retain(|at| acknowledged.binary_search(at).is_err());
        failure.map_or(Ok(()), Err)
    }

    async fn connect(&self) -> Result<Context, String> {
        let options = self.options()?;
        let scheme = if self.broker.requires_tls { "tls" } else { "nats" };
        let client = options.connect(format!("{scheme}://{}", self.broker.address)).await;
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
                format!("no stream of the server takes the subject {}: create one", self.broker.subject)
            }
            _ => error.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_has_a_message_for_each_line() {
        let batch = Batch::new(7, b"one\ntwo\n".to_vec());
        assert_eq!((batch.first, batch.lines), (7, vec![Bytes::from("one"), Bytes::from("two")]));
        assert!(Batch::new(0, Vec::new()).lines.is_empty());
    }
}
