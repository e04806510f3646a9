//! Targets of tables: each packet goes to all of them.
//!
//! Each target has its own queue, thread, spool and counts. So none waits for another one in a
//! capture; a reader of files waits for the slowest one. A target that fails loses the rest of the
//! packets, which its own ledger has. The capture goes on while one of several targets works.

use std::time::Instant;

use strait_capture::Frame;
use strait_capture::owners::Owners;
use strait_ledger::{Capture, LaneCounts, Report, TargetReport};
use strait_table::{Packet, TableError};

use super::closed::{ClosedTarget, at_once};
use super::owners::OwnerTexts;
use super::source::Input;
use super::table_output::{Gauges, TableOutput};
use crate::Error;
use crate::sink::{CountTargets, Sink};

/// Open targets, at least one.
pub(crate) struct Targets {
    all: Vec<TableOutput>,
    /// Link type, and number of the first lane, of each input.
    inputs: Vec<(u16, u32)>,
    /// Link type of the current packets.
    link_type: u16,
    /// Number of the first lane of the current input.
    lane: u32,
    owners: Option<OwnerTexts>,
}

impl Targets {
    pub(super) fn new(all: Vec<TableOutput>, owners: Option<Owners>) -> Self {
        Self { all, inputs: Vec::new(), link_type: 0, lane: 0, owners: owners.map(OwnerTexts::new) }
    }

    /// Returns the owners of the packets, if they are reported.
    pub(super) fn owners(&self) -> Option<&Owners> {
        self.owners.as_ref().map(OwnerTexts::owners)
    }

    /// Starts the packets of a source. `lane` is the number of its first lane.
    pub(crate) fn start_source(&mut self, link_type: u32, lane: u32) {
        self.link_type = u16::try_from(link_type).unwrap_or(u16::MAX);
        self.lane = lane;
    }

    /// Sets the inputs among which [`Sink::begin_batch`] selects. The first one is selected.
    pub(super) fn set_inputs(&mut self, inputs: &[Input]) {
        let input = |input: &Input| (u16::try_from(input.link_type).unwrap_or(u16::MAX), input.first_lane);
        self.inputs = inputs.iter().map(input).collect();
        self.begin_batch(0);
    }

    /// Ends the flows of a file and adds it to the ledger of each target.
    pub(crate) fn end_file(&mut self, report: &Report) -> Result<(), Error> {
        self.each(|target| target.end_file(report))
    }

    /// Returns the ledger of each target for the files that have ended, and corrects the rows of
    /// those that have lost packets. `files` has one lane for each file.
    pub(crate) fn correct_files(&mut self, files: &[Report]) -> Vec<TargetReport> {
        let lanes: Vec<LaneCounts> = files.iter().flat_map(|file| file.lanes.clone()).collect();
        let all = Report::from_lanes(lanes, &Capture::default());
        let correct = |target: &mut TableOutput| {
            let charged = target.ledger(&all);
            for (lane, file) in charged.lanes.iter().zip(files) {
                if file.lanes.first() != Some(lane) {
                    let (path, interface) = (file.path.clone(), file.interface.clone());
                    let lost = Report::from_lanes(vec![*lane], &Capture::default());
                    target.correct_file(file, &Report { path, interface, ..lost });
                }
            }
            charged
        };
        self.all.iter_mut().map(correct).collect()
    }

    /// Completes the tables. `report` has the ledgers of the targets.
    pub(crate) fn close(self, report: &Report) -> Vec<ClosedTarget> {
        let reports = self.all.iter().enumerate().map(|(at, _)| report_of(report, at)).collect::<Vec<_>>();
        at_once(self.all.into_iter().zip(reports), |(target, report)| target.close(&report))
    }

    /// Calls `act` for each target.
    ///
    /// # Errors
    /// All targets have failed.
    fn each(&mut self, act: impl Fn(&mut TableOutput) -> Result<(), TableError>) -> Result<(), Error> {
        let mut has_failed = false;
        for at in 0..self.all.len() {
            let Some(Err(error)) = self.all.get_mut(at).map(&act) else { continue };
            has_failed = true;
            self.fail(at, error);
        }
        if has_failed { self.check() } else { Ok(()) }
    }

    /// Notes the failure of a target. It is printed while another target works; that of the last
    /// one ends the capture.
    fn fail(&mut self, at: usize, error: TableError) {
        let is_other_working =
            self.all.iter().enumerate().any(|(other, target)| other != at && target.failure().is_none());
        if let Some(target) = self.all.get_mut(at) {
            target.fail(error, is_other_working);
        }
    }

    /// Returns the first failure if all targets have failed.
    fn check(&self) -> Result<(), Error> {
        let failures: Option<Vec<&TableError>> = self.all.iter().map(TableOutput::failure).collect();
        let first = failures.and_then(|failures| failures.first().copied().cloned());
        first.map_or(Ok(()), |failure| Err(failure.into()))
    }
}

/// Returns the ledger of the target at a position.
fn report_of(report: &Report, at: usize) -> Report {
    report.targets.get(at).map_or_else(|| report.clone(), |target| report.of(target))
}

impl Sink for Targets {
    fn start(&mut self) -> Result<(), Error> {
        self.all.iter_mut().try_for_each(TableOutput::start)
    }

    fn begin_batch(&mut self, input: usize) {
        if let Some(&(link_type, lane)) = self.inputs.get(input) {
            (self.link_type, self.lane) = (link_type, lane);
        }
    }

    #[inline]
    fn take(&mut self, frame: &Frame<'_>) -> Result<(), Error> {
        let owner = match &mut self.owners {
            Some(owners) => owners.of(frame)?,
            None => None,
        };
        let packet = Packet {
            bytes: frame.bytes,
            link_type: self.link_type,
            wire_len: frame.wire_len,
            time_ns: frame.timestamp_ns,
            interface: frame.interface,
            lane: self.lane.saturating_add(frame.queue),
            direction: frame.direction.known(),
            owner: owner.as_ref(),
        };
        self.each(|target| target.push(&packet))
    }

    fn end_batch(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn idle(&mut self, now: Instant) -> Result<(), Error> {
        self.each(|target| target.idle(now))
    }

    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn complete(&mut self) -> Result<(), Error> {
        let completed = at_once(self.all.iter_mut(), TableOutput::complete);
        for (target, completed) in self.all.iter_mut().zip(completed) {
            if let Err(error) = completed {
                // The capture is over, and its end names the failed targets.
                target.fail(error, false);
            }
        }
        self.check()
    }

    fn charge(&self, report: &mut Report) {
        let targets = self.all.iter().map(|target| target.ledger(report)).collect();
        report.set_targets(targets);
    }

    fn records(&self) -> bool {
        true
    }

    fn record(&mut self, report: &Report) {
        for (at, target) in self.all.iter_mut().enumerate() {
            target.record(&report_of(report, at));
        }
    }

    fn target_metrics(&self) -> Option<CountTargets> {
        let gauges: Vec<Gauges> = self.all.iter().map(TableOutput::gauges).collect();
        Some(Box::new(move || gauges.iter().map(Gauges::metrics).collect()))
    }

    fn written_bytes(&self) -> Option<u64> {
        Some(self.all.iter().map(TableOutput::written_bytes).sum())
    }
}
