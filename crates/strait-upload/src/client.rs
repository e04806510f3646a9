//! Interface of the clients of brokers: a batch of flows, its progress, and the limits of an
//! attempt to publish it.

use std::time::Duration;

use bytes::Bytes;
use strait_program::broker::Answer;

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

/// Flows that are acknowledged together.
pub(crate) struct Batch {
    /// Number of the first flow.
    first: u64,
    lines: Vec<Bytes>,
}

impl Batch {
    /// Splits lines, each of which is a flow.
    pub(crate) fn new(first: u64, lines: Vec<u8>) -> Self {
        let all = Bytes::from(lines);
        let line = |line: &[u8]| all.slice_ref(line);
        let lines = all.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(line);
        Self { first, lines: lines.collect() }
    }

    /// Returns the number of flows.
    pub(crate) fn flows(&self) -> usize {
        self.lines.len()
    }

    /// Returns positions and lines of the open flows.
    pub(crate) fn open(&self, work: &Work) -> impl Iterator<Item = (usize, &Bytes)> {
        work.open.iter().filter_map(|&at| Some((at, self.lines.get(at)?)))
    }

    /// Returns the line of a flow.
    pub(crate) fn line(&self, at: usize) -> &[u8] {
        self.lines.get(at).map_or(&[], |line| line)
    }

    /// Returns the identifier of a flow: `PREFIX-NUMBER`.
    pub(crate) fn id(&self, prefix: &str, at: usize) -> String {
        format!("{prefix}-{}", self.first.wrapping_add(at as u64))
    }
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
        Self { open: (0..batch.lines.len()).collect(), answer: Answer::default() }
    }

    pub(crate) fn open(&self) -> &[usize] {
        &self.open
    }

    /// Notes acknowledged flows, in rising order.
    pub(crate) fn settle(&mut self, acknowledged: &[usize]) {
        self.open.retain(|at| acknowledged.binary_search(at).is_err());
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
    fn batch_has_a_flow_for_each_line() {
        let batch = Batch::new(7, b"one\ntwo\n".to_vec());
        let mut work = Work::new(&batch);
        let open: Vec<_> = batch.open(&work).map(|(at, line)| (batch.id("c", at), line.clone())).collect();
        assert_eq!(open, [("c-7".into(), Bytes::from("one")), ("c-8".into(), Bytes::from("two"))]);
        work.settle(&[0]);
        assert_eq!(work.open(), [1]);
        assert!(Work::new(&Batch::new(0, Vec::new())).open().is_empty());
    }
}
