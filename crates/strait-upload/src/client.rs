//! Interface of the clients of brokers: the progress of a batch of flows, and the limits of an
//! attempt to publish it.

use std::time::Duration;

use strait_program::broker::Answer;

use crate::batch::Batch;

/// Time for which flows wait while the broker does not take them.
pub(crate) const RETRY_FOR: Duration = Duration::from_secs(10);
/// First and longest pause between two attempts.
pub(crate) const BACKOFF: Duration = Duration::from_millis(250);
pub(crate) const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Limit of an attempt to connect, and of the acknowledgments of a batch.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(5);
pub(crate) const ACK_LIMIT: Duration = Duration::from_secs(5);

/// Connection to a broker, which is opened when it is needed.
pub(crate) trait Client {
    /// Sends the open flows of a batch, and settles those that the broker answers. If only a part
    /// of the broker fails, its flows are lost ([`Work::lose`]): this is no failure of the attempt.
    ///
    /// # Errors
    /// The cause, if flows are still open: the connection must be opened anew.
    ///
    /// # Cancellation
    /// The attempt ends at any wait if the time is over. [`Self::close`] and [`Self::forget`]
    /// follow.
    async fn attempt(&mut self, batch: &Batch, work: &mut Work) -> Result<(), String>;
    /// Forgets the batch, of which the open flows are lost.
    fn forget(&mut self);
    /// Closes the connection after a failure. Returns the cause, or a better one.
    fn close(&mut self, cause: String) -> String;
}

/// Progress of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Work {
    /// Positions of the flows that the broker has not answered, in rising order.
    open: Vec<usize>,
    /// The answer so far: flows that are lost.
    answer: Answer,
}

impl Work {
    pub(crate) fn new(batch: &Batch) -> Self {
        Self { open: (0..batch.flows()).collect(), answer: Answer::default() }
    }

    pub(crate) fn open(&self) -> &[usize] {
        &self.open
    }

    /// Notes acknowledged flows, in rising order, with the number of their messages and bytes.
    pub(crate) fn store(&mut self, acknowledged: &[usize], messages: usize, bytes: usize) {
        self.settle(acknowledged);
        self.answer.messages += messages as u64;
        self.answer.bytes += bytes as u64;
    }

    fn settle(&mut self, answered: &[usize]) {
        self.open.retain(|at| answered.binary_search(at).is_err());
    }

    /// Notes flows, in rising order, that are lost: the broker will not take them.
    pub(crate) fn lose(&mut self, lost: &[usize], cause: String) {
        self.settle(lost);
        self.answer.lost.extend(lost);
        self.answer.cause = cause;
    }

    /// Counts flows that are sent again although the broker may have stored them.
    pub(crate) fn repeat(&mut self, flows: usize) {
        self.answer.repeated += flows as u64;
    }

    /// Returns the answer, with the open flows as lost ones.
    pub(crate) fn end(self, cause: &str) -> Answer {
        let mut answer = self.answer;
        if !self.open.is_empty() {
            answer.lost.extend(self.open);
            cause.clone_into(&mut answer.cause);
        }
        answer
    }
}

/// Returns the cause of missing acknowledgments.
pub(crate) fn late() -> String {
    format!("it has not acknowledged all flows within {} s", ACK_LIMIT.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_has_the_open_flows_as_lost_ones_and_the_stored_messages() {
        let batch = Batch::lines(7, b"one\ntwo\nthree\n".to_vec());
        let mut work = Work::new(&batch);
        work.store(&[0, 2], 1, 8);
        assert_eq!(work.open(), [1]);
        let answer = work.end("it is down");
        assert_eq!((&*answer.lost, &*answer.cause), (&[1][..], "it is down"));
        assert_eq!((answer.messages, answer.bytes), (1, 8));
        assert!(Work::new(&Batch::lines(0, Vec::new())).open().is_empty());
    }
}
