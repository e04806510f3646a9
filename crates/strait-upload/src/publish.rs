//! Publishes the flows of a capture: reads batches from standard input, and answers each one on
//! standard output when the broker has acknowledged its flows or they are lost.
//!
//! A [`Client`] speaks the protocol of a broker. All of them share the attempts: after a failure
//! the connection is opened anew, with growing pauses, and flows wait for it for at most
//! [`RETRY_FOR`].

use std::io::{BufRead as _, Read as _, Stdin};
use std::time::{Duration, Instant};

use strait_os::retry::{Attempts, Step};
use strait_program::Error;
use strait_program::broker::{Answer, Broker, Format, HEAD_LEN_MAX, Head, Kind};
use strait_program::output::print_text;
use tokio::sync::mpsc::{Sender, channel};
use tokio::time::timeout_at;

use crate::batch::Batch;
use crate::client::{BACKOFF, BACKOFF_MAX, Client, RETRY_FOR, Work};
use crate::kafka::Kafka;
use crate::nats::Nats;

/// Time for all attempts of a batch, which can take many requests. The program that makes the flows
/// waits for the answer for 60 s, and then counts all of them as lost.
const BATCH_LIMIT: Duration = Duration::from_secs(45);
/// Client, with the plan of its attempts.
pub(crate) struct Publisher<C> {
    pub(crate) client: C,
    attempts: Attempts,
    batch_limit: Duration,
    /// Cause of the last failure.
    cause: String,
    /// True if the broker has answered some flows of the last batch, but not all.
    is_partial: bool,
}

impl<C: Client> Publisher<C> {
    pub(crate) fn new(client: C) -> Self {
        let attempts = Attempts::new(BACKOFF, BACKOFF_MAX);
        Self { client, attempts, batch_limit: BATCH_LIMIT, cause: String::new(), is_partial: false }
    }

    /// Publishes a batch, and waits for its acknowledgments. Returns the flows without one.
    ///
    /// If the last batch was taken in part, the broker can be reached: the first attempt then waits
    /// for no pause.
    pub(crate) async fn publish(&mut self, batch: &Batch) -> Answer {
        let mut work = Work::new(batch);
        let end = tokio::time::Instant::now() + self.batch_limit;
        while !work.open().is_empty() {
            let step = if std::mem::take(&mut self.is_partial) {
                Step::Attempt
            } else {
                self.attempts.step(Instant::now(), RETRY_FOR)
            };
            match step {
                Step::Attempt => {
                    let attempt = timeout_at(end, self.client.attempt(batch, &mut work)).await;
                    let is_over = attempt.is_err();
                    match attempt.unwrap_or_else(|_| Err(self.over())) {
                        Ok(()) => self.attempts.succeed(),
                        Err(cause) => {
                            self.cause = self.client.close(cause);
                            self.attempts.fail(Instant::now());
                        }
                    }
                    if is_over {
                        self.client.forget();
                        break;
                    }
                }
                Step::Wait(pause) => tokio::time::sleep(pause).await,
                Step::GiveUp => {
                    self.client.forget();
                    break;
                }
            }
        }
        self.is_partial = !work.open().is_empty() && work.open().len() < batch.flows();
        work.end(&self.cause)
    }

    /// Returns the cause of a batch that has taken too long.
    fn over(&self) -> String {
        format!("it has not taken a batch within {} s", self.batch_limit.as_secs())
    }
}

/// Publishes until standard input is closed. The identifiers of messages start with `capture`.
///
/// # Errors
/// The credentials cannot be read; standard input is not in the protocol.
pub(crate) fn run(broker: &Broker, capture: &str) -> Result<(), Error> {
    match broker.kind {
        Kind::Nats => publish_all(Nats::open(broker, capture)?, broker.format),
        Kind::Kafka => publish_all(Kafka::open(broker, capture)?, broker.format),
    }
}

fn publish_all(client: impl Client, format: Format) -> Result<(), Error> {
    let mut publisher = Publisher::new(client);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::failed(format!("start the client: {error}")))?;
    // The connection must be served while no batch comes, so a thread waits for the next one.
    let (sender, mut batches) = channel(1);
    let reader = std::thread::Builder::new().name("input".into());
    let reader = reader.spawn(move || read_all(&std::io::stdin(), format, &sender));
    reader.map_err(|error| Error::failed(format!("start a thread: {error}")))?;
    runtime.block_on(async {
        while let Some(batch) = batches.recv().await {
            let answer = publisher.publish(&batch?).await;
            print_text(&answer.to_string())?;
        }
        Ok(())
    })
}

/// Reads batches until the end of the input.
fn read_all(input: &Stdin, format: Format, batches: &Sender<Result<Batch, Error>>) {
    loop {
        let batch = read(input, format).transpose();
        let is_last = !matches!(batch, Some(Ok(_)));
        let is_unwanted = batch.is_some_and(|batch| batches.blocking_send(batch).is_err());
        if is_last || is_unwanted {
            return;
        }
    }
}

/// Reads a batch; none at the end of the input.
fn read(input: &Stdin, format: Format) -> Result<Option<Batch>, Error> {
    let failed = |error: std::io::Error| Error::failed(format!("read standard input: {error}"));
    let mut input = input.lock();
    let mut head = String::new();
    if input.by_ref().take(HEAD_LEN_MAX as u64).read_line(&mut head).map_err(failed)? == 0 {
        return Ok(None);
    }
    let head: Head = head.parse().map_err(|error| Error::failed(format!("read standard input: {error}")))?;
    let mut flows = vec![0; head.bytes];
    input.read_exact(&mut flows).map_err(failed)?;
    let batch = Batch::read(head.first, format, flows);
    batch.map(Some).map_err(|error| Error::failed(format!("read standard input: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Client that settles the flow at the front of each batch, and counts its attempts.
    struct Half {
        is_up: bool,
        attempts: usize,
    }

    impl Client for Half {
        async fn attempt(&mut self, _: &Batch, work: &mut Work) -> Result<(), String> {
            self.attempts += 1;
            if self.is_up {
                work.store(&[0], 1, 3);
            }
            Err("the connection was closed".into())
        }

        fn forget(&mut self) {}

        fn close(&mut self, cause: String) -> String {
            cause
        }
    }

    #[test]
    fn batch_after_one_that_was_taken_in_part_waits_for_no_pause() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut publisher = Publisher::new(Half { is_up: true, attempts: 0 });
        let batch = Batch::lines(0, b"one\ntwo\n".to_vec());
        // The last batch was taken in part. Attempts have failed for long; the next is far away.
        publisher.is_partial = true;
        publisher.attempts = Attempts::new(RETRY_FOR * 100, RETRY_FOR * 100);
        publisher.attempts.fail(Instant::now().checked_sub(RETRY_FOR).unwrap());
        for (is_up, lost, attempts) in
            [(true, vec![1], 1), (true, vec![1], 2), (false, vec![0, 1], 3), (true, vec![0, 1], 3)]
        {
            publisher.client.is_up = is_up;
            let answer = runtime.block_on(publisher.publish(&batch));
            assert_eq!((answer.lost, publisher.client.attempts), (lost, attempts));
        }
    }

    /// Client that settles the flow at the front, and then waits for ever.
    #[derive(Default)]
    struct Slow {
        calls: Vec<&'static str>,
    }

    impl Client for Slow {
        async fn attempt(&mut self, _: &Batch, work: &mut Work) -> Result<(), String> {
            self.calls.push("attempt");
            work.store(&[0], 1, 3);
            std::future::pending().await
        }

        fn forget(&mut self) {
            self.calls.push("forget");
        }

        fn close(&mut self, cause: String) -> String {
            self.calls.push("close");
            cause
        }
    }

    #[test]
    fn batch_ends_after_its_limit_with_the_acknowledgments_so_far() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let batch_limit = Duration::from_millis(1);
        let mut publisher = Publisher { batch_limit, ..Publisher::new(Slow::default()) };
        let answer = runtime.block_on(publisher.publish(&Batch::lines(0, b"one\ntwo\n".to_vec())));
        assert_eq!((answer.lost, answer.cause), (vec![1], publisher.over()));
        assert_eq!(publisher.client.calls, ["attempt", "close", "forget"]);
        assert!(publisher.is_partial);
    }
}
