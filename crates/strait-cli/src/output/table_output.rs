//! Open tables of one target, and their place.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use strait_ledger::prometheus::{ExportMetrics, SpoolMetrics, TargetMetrics};
use strait_ledger::{Report, TargetReport};
use strait_os::clock;
use strait_program::output::print_stderr;
use strait_table::export::{Exported, Exporter};
use strait_table::flows::FlowLimits;
use strait_table::packets::InterfaceNames;
use strait_table::sink::{ExportOptions, Recovered, SinkCounts, TableSink};
use strait_table::{Options, Packet, TableError, Tally};

use super::closed::{ClosedTarget, Totals};
use super::place::Place;
use crate::Error;

/// Open tables of one target.
pub(crate) struct TableOutput {
    /// URL of the target.
    url: String,
    sink: TableSink,
    place: Place,
    /// Ledger of the capture when it got this target; none for a target of the start.
    since: Option<Box<Report>>,
    /// Packets that were lost before the last change of the targets.
    lost_before: Tally,
    /// True if a failure of the export was reported.
    is_failing: bool,
    /// Failure after which all packets are lost.
    failure: Option<TableError>,
}

impl TableOutput {
    /// Opens tables that are exported.
    pub(super) fn export(
        url: String,
        exporter: &Arc<Exporter>,
        names: InterfaceNames,
        flows: FlowLimits,
        waits: bool,
    ) -> Self {
        let options = ExportOptions { exporter: Arc::clone(exporter), flows, waits };
        let sink = TableSink::export(options, names, clock::realtime_ns());
        Self::new(url, sink, Place::Export(Arc::clone(exporter)))
    }

    /// Opens tables that are files.
    pub(super) fn files(
        url: String,
        options: Options,
        place: Place,
        names: InterfaceNames,
    ) -> Result<Self, Error> {
        let sink = TableSink::open(options, names, clock::realtime_ns())?;
        Ok(Self::new(url, sink, place))
    }

    fn new(url: String, sink: TableSink, place: Place) -> Self {
        let (since, lost_before) = (None, Tally::default());
        Self { url, sink, place, since, lost_before, is_failing: false, failure: None }
    }

    /// Returns the files of killed captures.
    pub(super) fn recovered(&self) -> &Recovered {
        self.sink.recovered()
    }

    /// Reports the start and the end of a failure of the export.
    fn report_failure(&mut self) {
        let Place::Export(exporter) = &self.place else { return };
        let (receiver, failure) = (exporter.name(), exporter.failure());
        let was_failing = std::mem::replace(&mut self.is_failing, failure.is_some());
        match failure {
            Some(error) if !was_failing => print_stderr(format_args!(
                "strait: note: the export to {receiver} fails: {error}; flows are lost until it works\n"
            )),
            None if was_failing => {
                print_stderr(format_args!("strait: note: the export to {receiver} works again\n"));
            }
            _ => {}
        }
    }

    pub(super) fn start(&mut self) -> Result<(), Error> {
        if let Place::Bucket(upload) = &self.place {
            upload.watch()?;
        }
        Ok(self.sink.start()?)
    }

    #[inline]
    pub(super) fn push(&mut self, packet: &Packet<'_>) -> Result<(), TableError> {
        self.sink.push(packet)
    }

    pub(super) fn idle(&mut self, now: Instant) -> Result<(), TableError> {
        self.report_failure();
        self.sink.flush_due(now)
    }

    /// Ends the flows of a file and adds it to the ledger.
    pub(super) fn end_file(&mut self, report: &Report) -> Result<(), TableError> {
        self.sink.ledger_of_file(report, clock::realtime_ns());
        self.sink.end_flows()
    }

    /// Corrects the ledger of a file that has ended.
    pub(super) fn correct_file(&mut self, before: &Report, now: &Report) {
        self.sink.correct_ledger(before, now, clock::realtime_ns());
    }

    pub(super) fn complete(&mut self) -> Result<(), TableError> {
        self.sink.complete()
    }

    /// Notes a failure. The first one is printed if the caller goes on.
    pub(super) fn fail(&mut self, error: TableError, goes_on: bool) {
        if self.failure.is_none() && goes_on {
            report_failure(&self.url, &error);
        }
        self.failure.get_or_insert(error);
    }

    pub(super) fn failure(&self) -> Option<&TableError> {
        self.failure.as_ref()
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Starts the ledger of this target at a cut of that of the capture.
    pub(super) fn begin(&mut self, cut: &Report) {
        self.since = Some(Box::new(cut.clone()));
    }

    /// Returns the packets that are lost since the last call of [`TableOutput::settle`].
    pub(super) fn lost(&self) -> Tally {
        self.sink.lost_packets().since(&self.lost_before)
    }

    /// Lets the next losses count alone. Returns those since the last call.
    pub(super) fn settle(&mut self) -> Tally {
        let lost = self.sink.lost_packets();
        let since = lost.since(&self.lost_before);
        self.lost_before = lost;
        since
    }

    /// Returns the ledger of a capture for this target.
    pub(super) fn ledger(&self, report: &Report) -> TargetReport {
        let mut charged = match &self.since {
            Some(cut) => report.since(cut),
            None => report.clone(),
        };
        let lost = self.sink.lost_packets();
        charged.charge_sink(lost.total(), |lane| lost.of(lane));
        let Report { capture, lanes, parts, .. } = charged;
        TargetReport { target: self.url.clone(), capture, lanes, parts }
    }

    /// Stores the ledger of a running capture.
    pub(super) fn record(&mut self, report: &Report) {
        self.sink.ledger(report, clock::realtime_ns());
    }

    pub(super) fn written_bytes(&self) -> u64 {
        self.sink.written_bytes()
    }

    pub(super) fn counts(&self) -> SinkCounts {
        self.sink.counts()
    }

    pub(super) fn gauges(&self) -> Gauges {
        Gauges { url: self.url.clone(), counts: self.counts(), place: self.place.clone() }
    }

    /// Completes the tables. `report` is the ledger of this target.
    pub(super) fn close(self, report: &Report) -> ClosedTarget {
        let failure = self.failure.map(Error::from);
        match self.sink.close(report, clock::realtime_ns()) {
            Ok(summary) => ClosedTarget { totals: Totals { place: Some(self.place), summary }, failure },
            Err(error) => ClosedTarget { totals: Totals::default(), failure: failure.or(Some(error.into())) },
        }
    }
}

/// Counts of a target, which another thread reads.
pub(super) struct Gauges {
    url: String,
    counts: SinkCounts,
    place: Place,
}

impl Gauges {
    pub(super) fn metrics(&self) -> TargetMetrics {
        let summary = self.counts.summary();
        let files = summary.files();
        let (mut has_failed, mut export, mut spool) = (self.counts.has_failed(), None, None);
        match &self.place {
            Place::Directory(_) => {}
            Place::Export(exporter) => {
                has_failed |= exporter.failure().is_some();
                let Exported { repeated, lost, .. } = summary.exported;
                export = Some(ExportMetrics { sent: summary.exported.sent_flows(), retried: repeated, lost });
            }
            Place::Bucket(upload) => {
                let (usage, progress) = (upload.spool().usage(), upload.progress());
                spool = Some(SpoolMetrics {
                    bytes: usage.bytes,
                    bytes_max: upload.spool().bytes_max(),
                    files: usage.files,
                    oldest_seconds: usage.oldest_age(SystemTime::now()).as_secs_f64(),
                    sent_files: progress.files,
                    sent_bytes: progress.bytes,
                    retried: progress.retried,
                    lost_rows: files.refused,
                });
            }
        }
        TargetMetrics {
            target: self.url.clone(),
            lost: self.counts.lost(),
            is_failing: has_failed,
            rows: files.rows,
            files: files.files,
            bytes: files.bytes + summary.exported.sent_bytes(),
            export,
            spool,
        }
    }
}

/// Reports a target that has failed while others go on.
pub(super) fn report_failure(url: &str, error: &TableError) {
    print_stderr(format_args!(
        "strait: note: the target {url} has failed: {error}; it loses all further packets, and the other targets go on\n"
    ));
}
