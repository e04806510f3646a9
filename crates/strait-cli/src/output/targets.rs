//! Targets of tables: each packet goes to all of them.
//!
//! Each target has its own queue, thread, spool and counts. So none waits for another one in a
//! capture; a reader of files waits for the slowest one. A target that fails loses the rest of the
//! packets, which its own ledger has. The capture goes on while one of several targets works.
//!
//! Targets can change between two batches of a running capture. A packet goes to the targets of its
//! time, so the rows of a removed target and of the one that replaces it are each packet once.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use strait_capture::Frame;
use strait_capture::owners::Owners;
use strait_ledger::{Capture, Delivered, LaneCounts, Report, TargetReport};
use strait_table::{Packet, TableError};

use super::change::Shared;
use super::closed::{ClosedTarget, Ended, at_once};
use super::former::Former;
use super::owners::OwnerTexts;
use super::source::Input;
use super::table_output::{Gauges, TableOutput};
use super::target_file::WatchedTargets;
use super::windows::{Windows, worst};
use crate::Error;
use crate::sink::{Changed, CountTargets, Sink};

/// Open targets, at least one.
pub(crate) struct Targets {
    all: Vec<TableOutput>,
    /// Removed targets.
    former: Vec<Former>,
    shared: Shared,
    /// File with the targets, until the capture watches it.
    watched: Option<WatchedTargets>,
    /// None if the targets cannot change.
    taken: Option<Taken>,
    /// Losses before the last change.
    windows: Windows,
    gauges: Arc<Mutex<Vec<Gauges>>>,
    /// Link type, and number of the first lane, of each input.
    inputs: Vec<(u16, u32)>,
    /// Link type of the current packets.
    link_type: u16,
    /// Number of the first lane of the current input.
    lane: u32,
    owners: Option<OwnerTexts>,
}

impl Targets {
    pub(super) fn new(all: Vec<TableOutput>, owners: Option<Owners>, shared: Shared) -> Self {
        let gauges = Arc::new(Mutex::new(all.iter().map(TableOutput::gauges).collect()));
        Self {
            all,
            former: Vec::new(),
            shared,
            watched: None,
            taken: None,
            windows: Windows::default(),
            gauges,
            inputs: Vec::new(),
            link_type: 0,
            lane: 0,
            owners: owners.map(OwnerTexts::new),
        }
    }

    /// Sets the file with the targets, which the capture watches.
    pub(super) fn watch(&mut self, watched: WatchedTargets) {
        self.watched = Some(watched);
        self.taken = Some(Taken::default());
    }

    /// Returns the file with the targets once.
    pub(super) fn watched(&mut self) -> Option<WatchedTargets> {
        self.watched.take()
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

    /// Completes all tables. Returns those of the present and of the former targets.
    pub(super) fn close_all(mut self, report: &Report) -> (Vec<ClosedTarget>, Vec<Ended>) {
        let former = std::mem::take(&mut self.former);
        let closed = self.close(report);
        (closed, former.into_iter().map(Former::into_ended).collect())
    }

    /// Completes the tables. `report` has the ledgers of the targets.
    pub(crate) fn close(self, report: &Report) -> Vec<ClosedTarget> {
        let reports = self.all.iter().enumerate().map(|(at, _)| report_of(report, at)).collect::<Vec<_>>();
        at_once(self.all.into_iter().zip(reports), |(target, report)| target.close(&report))
    }

    /// Takes the results of former targets; with `waits`, waits for their ledgers.
    fn update_former(&mut self, waits: bool) {
        for former in &mut self.former {
            if let Some(late) = former.update(waits) {
                self.windows.complete(former.window(), &former.ledger().target, &late);
            }
        }
    }

    /// Adds the counts of former targets that have ended and have one URL.
    fn merge_former(&mut self) {
        let mut merged: Vec<Former> = Vec::with_capacity(self.former.len());
        for former in self.former.drain(..) {
            let other = merged.iter_mut().try_fold(former, |former, earlier| earlier.merge(former).ok_or(()));
            merged.extend(other);
        }
        self.former = merged;
    }

    /// Ends a window: the present targets stay, and `removed` ones get no more packets. `cut` is
    /// the ledger of the capture at this moment.
    fn end_window(&mut self, mut removed: Vec<TableOutput>, cut: &Report) {
        let stayed = self.all.iter_mut().map(TableOutput::settle);
        let lost = removed.iter_mut().map(|output| (output.url().to_owned(), output.settle()));
        let window = self.windows.end(stayed, lost);
        for output in removed {
            let ending = self.shared.end(output.url());
            self.former.push(Former::start(output, cut.clone(), window, ending));
        }
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
        if let Some(taken) = &mut self.taken {
            taken.add(packet.lane, frame);
        }
        self.each(|target| target.push(&packet))
    }

    fn end_batch(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn idle(&mut self, now: Instant) -> Result<(), Error> {
        self.update_former(false);
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
        self.update_former(true);
        self.check()
    }

    fn charge(&self, report: &mut Report) {
        let present = self.all.iter().map(|target| target.ledger(report));
        let targets = present.chain(self.former.iter().map(|former| former.ledger().clone())).collect();
        let mut lost = self.windows.lost();
        lost.add_all(&worst(self.all.iter().map(TableOutput::lost)));
        report.charge_sink(lost.total(), |lane| lost.of(lane));
        report.targets = targets;
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
        let gauges = Arc::clone(&self.gauges);
        let lock = move || {
            gauges.lock().unwrap_or_else(PoisonError::into_inner).iter().map(Gauges::metrics).collect()
        };
        Some(Box::new(lock))
    }

    fn written_bytes(&self) -> Option<u64> {
        let former = self.former.iter().map(Former::written_bytes);
        Some(self.all.iter().map(TableOutput::written_bytes).chain(former).sum())
    }

    /// The caller has the lock of the sink, so that no lane is in a batch.
    fn change_targets(&mut self, report: &Report) -> Changed {
        let Some(change) = self.shared.take_next() else { return Changed::default() };
        let cut = report.cut(|lane| self.taken.as_ref().map(|taken| taken.of(lane)).unwrap_or_default());
        self.update_former(false);
        self.merge_former();
        let (mut changed, mut before) = (Changed::default(), std::mem::take(&mut self.all));
        let mut opened = change.opened.into_iter();
        for target in &change.targets {
            let url = target.to_string();
            if let Some(at) = before.iter().position(|output| output.url() == url) {
                self.all.push(before.remove(at));
            } else if let Some(mut output) = opened.next() {
                output.begin(&cut);
                self.all.push(output);
                changed.added.push(url);
            }
        }
        changed.removed.extend(before.iter().map(|output| output.url().to_owned()));
        self.end_window(before, &cut);
        self.shared.lock().open = change.targets;
        let gauges = self.all.iter().map(TableOutput::gauges).collect();
        *self.gauges.lock().unwrap_or_else(PoisonError::into_inner) = gauges;
        changed
    }
}

/// Packets that each lane has passed on. They are counted here, as a change of the targets needs
/// them exactly, between two batches.
#[derive(Default)]
struct Taken {
    lanes: Vec<(u32, Delivered)>,
    /// Position of the lane of the last packet.
    last: usize,
}

impl Taken {
    #[inline]
    fn add(&mut self, lane: u32, frame: &Frame<'_>) {
        if self.lanes.get(self.last).is_none_or(|(last, _)| *last != lane) {
            self.select(lane);
        }
        if let Some((_, delivered)) = self.lanes.get_mut(self.last) {
            delivered.packets += 1;
            delivered.bytes += frame.bytes.len() as u64;
            delivered.wire_bytes += u64::from(frame.wire_len);
        }
    }

    /// The lanes of a capture are fewer than its queues.
    #[cold]
    fn select(&mut self, lane: u32) {
        let known = self.lanes.iter().position(|(known, _)| *known == lane);
        self.last = known.unwrap_or(self.lanes.len());
        if known.is_none() {
            self.lanes.push((lane, Delivered::default()));
        }
    }

    fn of(&self, lane: u32) -> Delivered {
        let known = self.lanes.iter().find(|(known, _)| *known == lane);
        known.map_or_else(Delivered::default, |(_, delivered)| *delivered)
    }
}
