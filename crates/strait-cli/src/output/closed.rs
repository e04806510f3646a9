//! Completed outputs: their totals, the lines about them, and their failures.

use std::fmt;

use serde::Serialize;
use strait_ledger::Grouped;
use strait_table::export::Exported;
use strait_table::messages::Missed;
use strait_table::sink::Summary;

use super::place::Place;
use crate::Error;

/// Completed output.
pub(crate) struct Closed {
    /// Line about the files, or one for each target.
    pub(crate) line: Option<String>,
    pub(crate) failure: Option<Error>,
    /// Totals of each target, if it is an export.
    pub(crate) exported: Vec<Option<ExportedTotals>>,
}

/// Completed tables of a target.
pub(crate) struct ClosedTarget {
    pub(super) totals: Totals,
    pub(super) failure: Option<Error>,
}

impl ClosedTarget {
    /// Adds the tables of another worker.
    pub(crate) fn add(&mut self, other: Self) {
        self.totals.add(other.totals);
        self.failure = self.failure.take().or(other.failure);
    }

    /// Waits for the end of an upload.
    pub(super) fn end(self) -> Ended {
        let exported = self.totals.exported();
        match self.totals.line() {
            Ok(line) => Ended { line, failure: self.failure, exported },
            Err(error) => Ended { line: None, failure: self.failure.or(Some(error)), exported },
        }
    }
}

/// Tables of a target after the end of their upload.
#[derive(Default)]
pub(crate) struct Ended {
    pub(super) line: Option<String>,
    pub(super) failure: Option<Error>,
    exported: Option<ExportedTotals>,
}

impl Ended {
    pub(super) fn failed(error: Error) -> Self {
        Self { failure: Some(error), ..Self::default() }
    }

    /// Adds the counts of later tables of the same target. The first failure stays.
    pub(super) fn add(&mut self, other: Self) {
        self.exported = ExportedTotals::sum(&[self.exported, other.exported]);
        self.failure = self.failure.take().or(other.failure);
    }
}

/// Totals of an export for JSON.
#[derive(Clone, Copy, Default, Serialize)]
pub(crate) struct ExportedTotals {
    pub(super) flows: u64,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) lost: u64,
    pub(super) repeated: u64,
}

impl ExportedTotals {
    /// Returns the sum of all exports, if there are any.
    pub(crate) fn sum(all: &[Option<Self>]) -> Option<Self> {
        all.iter().flatten().copied().reduce(|one, other| Self {
            flows: one.flows + other.flows,
            messages: one.messages + other.messages,
            bytes: one.bytes + other.bytes,
            lost: one.lost + other.lost,
            repeated: one.repeated + other.repeated,
        })
    }
}

/// Waits for the end of all uploads. A failure names all targets that have failed. `former` targets
/// have reported their tables.
pub(crate) fn finish(targets: Vec<ClosedTarget>, former: Vec<Ended>) -> Closed {
    let count = targets.len() + former.len();
    let mut ended = at_once(targets.into_iter(), ClosedTarget::end);
    ended.extend(former.into_iter().map(|former| Ended { line: None, ..former }));
    let exported = ended.iter().map(|ended| ended.exported).collect();
    let (mut lines, mut failures) = (Vec::new(), Vec::new());
    for Ended { line, failure, .. } in ended {
        lines.extend(line);
        failures.extend(failure);
    }
    let failure = match failures.len() {
        0 | 1 if count == 1 => failures.pop(),
        0 => None,
        failed => {
            let causes: Vec<String> = failures.iter().map(ToString::to_string).collect();
            Some(Error::Failed(format!("{failed} of {count} targets failed: {}", causes.join("; "))))
        }
    };
    let line = Some(lines.join("\n")).filter(|line| !line.is_empty());
    Closed { line, failure, exported }
}

/// Calls `act` for all items at the same time, as each may have to wait for its receiver.
pub(super) fn at_once<T: Send, R: Send>(
    items: impl ExactSizeIterator<Item = T>,
    act: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    if items.len() == 1 {
        return items.map(act).collect();
    }
    let act = &act;
    std::thread::scope(|scope| {
        let threads: Vec<_> = items.map(|item| scope.spawn(move || act(item))).collect();
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.map(|ended| ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Totals of completed tables, for a line about them.
#[derive(Default)]
pub(crate) struct Totals {
    pub(super) place: Option<Place>,
    pub(super) summary: Summary,
}

impl Totals {
    /// Adds the totals of other tables of the same place.
    pub(super) fn add(&mut self, other: Self) {
        self.place = self.place.take().or(other.place);
        self.summary.add(&other.summary);
    }

    /// Returns the totals of an export, if this was one.
    pub(super) fn exported(&self) -> Option<ExportedTotals> {
        let Exported { flows, messages, bytes, lost, repeated, .. } = self.summary.exported;
        matches!(self.place, Some(Place::Export(_))).then_some(ExportedTotals {
            flows,
            messages,
            bytes,
            lost,
            repeated,
        })
    }

    /// Waits for the end of an upload, and returns the line, if the tables were completed.
    ///
    /// # Errors
    /// Flows were lost on their way to a collector or a broker; files are not uploaded.
    pub(super) fn line(&self) -> Result<Option<String>, Error> {
        let Some(place) = &self.place else { return Ok(None) };
        if let Place::Bucket(upload) = place {
            upload.finish()?;
        }
        let Exported { flows, lost, failure, .. } = &self.summary.exported;
        if *lost == 0 {
            return Ok(Some(self.to_string()));
        }
        let (lost, all) = (Grouped(*lost), Grouped(flows + lost));
        let cause = failure.as_deref().unwrap_or("an unknown cause");
        let repeated = Repeated(self.summary.exported.repeated);
        Err(Error::Failed(format!("export {place}: {lost} of {all} flows are lost: {cause}{repeated}")))
    }
}

/// `wrote 5,000 packets and 20 flows, 40,000 bytes, to 3 files below /srv/lake; 1 flow was evicted`
impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { packets, flows, flows_evicted, messages, missed, .. } = &self.summary;
        if matches!(self.place, Some(Place::Export(_))) {
            let Exported { flows, messages, bytes, .. } = &self.summary.exported;
            let (flows, messages, bytes) = (Grouped(*flows), Grouped(*messages), Grouped(*bytes));
            write!(f, "exported {flows} flows, {bytes} bytes, in {messages} messages")?;
        } else {
            write_rows(f, &self.summary)?;
        }
        if let Some(place) = &self.place {
            write!(f, " {place}")?;
        }
        write!(f, "{}", Repeated(self.summary.exported.repeated))?;
        match flows_evicted {
            0 => {}
            1 => f.write_str("; 1 flow was evicted: give a larger --flows-max")?,
            many => write!(f, "; {} flows were evicted: give a larger --flows-max", Grouped(*many))?,
        }
        match packets.without_hour + flows.without_hour + messages.without_hour {
            0 => {}
            rows => write!(f, "; {} rows have no date and hour, as times jump", Grouped(rows))?,
        }
        match packets.refused + flows.refused + messages.refused {
            0 => {}
            rows => write!(f, "; {} rows are lost, as the spool was full", Grouped(rows))?,
        }
        write_missed(f, missed)
    }
}

/// `; 20 flows were sent again and may be stored twice`, or nothing.
struct Repeated(u64);

impl fmt::Display for Repeated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            flows => write!(f, "; {} flows were sent again and may be stored twice", Grouped(flows)),
        }
    }
}

/// `; 3 messages are missing: gaps 2, malformed 1`
fn write_missed(f: &mut fmt::Formatter<'_>, missed: &Missed) -> fmt::Result {
    let causes: Vec<(&str, u64)> = missed.named().into_iter().filter(|(_, count)| *count > 0).collect();
    if causes.is_empty() {
        return Ok(());
    }
    let all = Grouped(causes.iter().map(|(_, count)| count).sum());
    let causes: Vec<String> =
        causes.iter().map(|(cause, count)| format!("{cause} {}", Grouped(*count))).collect();
    write!(f, "; {all} messages are missing: {}", causes.join(", "))
}

fn write_rows(
    f: &mut fmt::Formatter<'_>,
    Summary { packets, flows, messages, ledger, .. }: &Summary,
) -> fmt::Result {
    let rows = match (packets.rows, flows.rows) {
        (0, flows) if flows > 0 => format!("{} flows", Grouped(flows)),
        (packets, 0) => format!("{} packets", Grouped(packets)),
        (packets, flows) => format!("{} packets and {} flows", Grouped(packets), Grouped(flows)),
    };
    let rows =
        if messages.rows == 0 { rows } else { format!("{rows} and {} messages", Grouped(messages.rows)) };
    let bytes = Grouped(packets.bytes + flows.bytes + messages.bytes + ledger.bytes);
    let count = packets.files + flows.files + messages.files + ledger.files;
    let files = if count == 1 { "file" } else { "files" };
    write!(f, "wrote {rows}, {bytes} bytes, to {} {files}", Grouped(count))
}
