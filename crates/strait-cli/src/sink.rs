//! Consumers of captured frames.

use std::time::Instant;

use strait_capture::Frame;
use strait_ledger::Report;
use strait_ledger::prometheus::TargetMetrics;

use crate::Error;

/// Function that counts the targets of a sink.
pub(crate) type CountTargets = Box<dyn Fn() -> Vec<TargetMetrics> + Send + Sync>;

/// URLs of targets that were added to a running capture, and removed from it.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    pub(crate) added: Vec<String>,
    pub(crate) removed: Vec<String>,
}

/// Consumer of the frames of all lanes.
pub(crate) trait Sink: Send {
    /// Called once before the first frame, after the program has dropped its capabilities.
    fn start(&mut self) -> Result<(), Error> {
        Ok(())
    }
    /// Called before the first frame of a batch, with the position of the interface that the batch
    /// is of.
    fn begin_batch(&mut self, _input: usize) {}
    /// Consumes one frame. An error ends the capture, and the frame counts as lost in the sink.
    fn take(&mut self, frame: &Frame<'_>) -> Result<(), Error>;
    /// Returns true if [`Sink::take`] does nothing, so that it need not be called.
    fn only_counts(&self) -> bool {
        false
    }
    /// Called after the last frame of a batch.
    fn end_batch(&mut self) -> Result<(), Error>;
    /// Called when no frame waits, and periodically. Flushes what is due.
    fn idle(&mut self, now: Instant) -> Result<(), Error>;
    /// Writes all consumed frames to the output.
    fn flush(&mut self) -> Result<(), Error>;
    /// Called once after the last frame, and before the losses are counted.
    fn complete(&mut self) -> Result<(), Error> {
        Ok(())
    }
    /// Moves consumed frames that were lost from delivered to lost in the ledger. A sink with
    /// several targets adds the ledger of each.
    fn charge(&self, report: &mut Report);
    /// Returns true if [`Sink::record`] stores the ledger.
    fn records(&self) -> bool {
        false
    }
    /// Stores the ledger of a running capture. Called every few seconds.
    fn record(&mut self, _report: &Report) {}
    /// Changes the targets as it was prepared, between two batches. `report` is the ledger of the
    /// running capture.
    fn change_targets(&mut self, _report: &Report) -> Changed {
        Changed::default()
    }
    /// Returns a function that counts the targets of the sink without its lock, if it has targets.
    fn target_metrics(&self) -> Option<CountTargets> {
        None
    }
    /// Returns the bytes written to files so far, if the sink writes files.
    fn written_bytes(&self) -> Option<u64> {
        None
    }
}
