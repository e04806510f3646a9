//! Publishes the flows of a capture: reads batches from standard input, and answers each one on
//! standard output when the broker has acknowledged its flows or they are lost.

use std::io::{BufRead as _, Read as _, Stdin};

use strait_program::Error;
use strait_program::broker::{Broker, HEAD_LEN_MAX, Head};
use strait_program::output::print_text;
use tokio::sync::mpsc::{Sender, channel};

use crate::nats::{Batch, Nats};

/// Publishes until standard input is closed. The identifiers of messages start with `capture`.
///
/// # Errors
/// The credentials cannot be read; standard input is not in the protocol.
pub(crate) fn run(broker: &Broker, capture: &str) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::failed(format!("start the client: {error}")))?;
    let mut nats = Nats::open(broker, capture)?;
    // The connection must be served while no batch comes, so a thread waits for the next one.
    let (sender, mut batches) = channel(1);
    let reader = std::thread::Builder::new().name("input".into());
    let reader = reader.spawn(move || read_all(&std::io::stdin(), &sender));
    reader.map_err(|error| Error::failed(format!("start a thread: {error}")))?;
    runtime.block_on(async {
        while let Some(batch) = batches.recv().await {
            let answer = nats.publish(&batch?).await;
            print_text(&answer.to_string())?;
        }
        Ok(())
    })
}

/// Reads batches until the end of the input.
fn read_all(input: &Stdin, batches: &Sender<Result<Batch, Error>>) {
    loop {
        let batch = read(input).transpose();
        let is_last = !matches!(batch, Some(Ok(_)));
        let is_unwanted = batch.is_some_and(|batch| batches.blocking_send(batch).is_err());
        if is_last || is_unwanted {
            return;
        }
    }
}

/// Reads a batch; none at the end of the input.
fn read(input: &Stdin) -> Result<Option<Batch>, Error> {
    let failed = |error: std::io::Error| Error::failed(format!("read standard input: {error}"));
    let mut input = input.lock();
    let mut head = String::new();
    if input.by_ref().take(HEAD_LEN_MAX as u64).read_line(&mut head).map_err(failed)? == 0 {
        return Ok(None);
    }
    let head: Head = head.parse().map_err(|error| Error::failed(format!("read standard input: {error}")))?;
    let mut lines = vec![0; head.bytes];
    input.read_exact(&mut lines).map_err(failed)?;
    Ok(Some(Batch::new(head.first, lines)))
}
