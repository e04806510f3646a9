//! Thread that reads capture files for a partition of a scan.

use datafusion::arrow::array::RecordBatch;
use datafusion::common::DataFusionError;
use datafusion::error::Result;
use strait_capture::file::{FileReader, PacketRef};
use strait_capture::index::{Index, Unusable};
use strait_table::{Batches, Packet, TableError};
use tokio::sync::mpsc::Sender;

use super::batches::Form;
use super::condition::Condition;
use super::parts::{IndexedFile, NotRead, Packets};
use super::{Share, SharedDefects};

/// Packets after which the thread checks if the query has ended.
const STEP_PACKETS: u32 = 65_536;

/// Receiver of batches.
type BatchSender = Sender<Result<RecordBatch>>;

/// Reason to end.
enum End {
    /// The query needs no more rows.
    Satisfied,
    Failed(DataFusionError),
}

impl From<TableError> for End {
    fn from(error: TableError) -> Self {
        Self::Failed(DataFusionError::External(Box::new(error)))
    }
}

impl From<DataFusionError> for End {
    fn from(error: DataFusionError) -> Self {
        Self::Failed(error)
    }
}

/// Reads the files of a share, and sends their rows.
pub(super) fn files(scan: &Scan, share: &Share, defects: &SharedDefects, sender: &BatchSender) -> Result<()> {
    let mut rows = scan.form.rows();
    let mut read = Ok(());
    for file in share.iter() {
        read = read_file(file, scan, &mut *rows, (defects, sender));
        if read.is_err() {
            break;
        }
    }
    defects.with(|defects| defects.missed.add(&rows.missed()));
    match read {
        Err(End::Failed(error)) => Err(error),
        Ok(()) | Err(End::Satisfied) => Ok(()),
    }
}

/// Reads one file, by its index if the condition lets the scan skip parts of it. A defect of the
/// file is recorded, and its earlier packets count.
fn read_file(
    file: &str,
    scan: &Scan,
    rows: &mut dyn Batches,
    (defects, sender): (&SharedDefects, &BatchSender),
) -> Result<(), End> {
    let defect = match scan.indexed(file, defects) {
        Some(mut parts) => {
            defects.with(|defects| defects.extent.add(parts.extent()));
            let read = push_all(&mut parts, &scan.form, rows, sender)?;
            // Rows may be with the query already: the file cannot be read again.
            read.map_err(|error| match error {
                NotRead::Lying => format!("{file}: {error}: write it again by strait query --index"),
                error => error.to_string(),
            })
        }
        None => match FileReader::open(file) {
            Ok(mut reader) => {
                push_all(&mut reader, &scan.form, rows, sender)?.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        },
    };
    if let Err(error) = defect {
        defects.with(|defects| defects.add_unread(error));
    }
    loop {
        rows.end();
        if rows.is_empty() {
            return Ok(());
        }
        send(&scan.form, &rows.finish()?, sender)?;
    }
}

/// Pushes all packets. The inner error is a defect of the file or its index.
fn push_all<P: Packets>(
    packets: &mut P,
    form: &Form,
    rows: &mut dyn Batches,
    sender: &BatchSender,
) -> Result<Result<(), P::Error>, End> {
    let mut until_check = STEP_PACKETS;
    loop {
        if let Some(time_ns) = packets.skipped_ns() {
            rows.pass(time_ns);
        }
        let packet = match packets.next() {
            Ok(Some(packet)) => packet,
            Ok(None) => return Ok(Ok(())),
            Err(error) => return Ok(Err(error)),
        };
        rows.push(&row(&packet));
        if rows.is_full() {
            send(form, &rows.finish()?, sender)?;
        }
        until_check -= 1;
        if until_check == 0 {
            until_check = STEP_PACKETS;
            if sender.is_closed() {
                return Err(End::Satisfied);
            }
        }
    }
}

/// Rows and parts of files that a query needs.
#[derive(Clone, Debug)]
pub(super) struct Scan {
    pub(super) form: Form,
    pub(super) condition: Condition,
}

impl Scan {
    /// Opens a file by its index; none if the whole file is read. The reason is recorded if the
    /// index should be written again.
    fn indexed(&self, file: &str, defects: &SharedDefects) -> Option<IndexedFile> {
        if self.condition == Condition::Unknown {
            return None;
        }
        let is_fit = |index: &Index| self.form.flows_max().is_none_or(|most| keeps_flows(index, most));
        match IndexedFile::open_if(file, is_fit, |part| self.condition.may_be_in(part)) {
            Ok(parts) => Some(parts),
            Err(NotRead::Unusable(Unusable::Missing) | NotRead::Unfit) => None,
            Err(reason) => {
                defects.with(|defects| defects.add_whole(format!("{file}: {reason}")));
                None
            }
        }
    }
}

/// Flows of the table that an index may hold as one: it knows neither VLANs nor the directions of
/// ICMP.
const FLOWS_PER_IDENTIFIER: u64 = 4;

/// Returns true if the flows in the read parts of a file do not depend on the other parts but by
/// their times: no time falls back from part to part, and no flow can be evicted.
///
/// Within a part packets may be out of order. That of a skipped part has no effect: the time of the
/// table never falls back, and the packets of a later part are later than all of it.
fn keeps_flows(index: &Index, flows_max: u64) -> bool {
    let (mut latest, mut flows) = (0, 0_u64);
    for part in index.parts().filter(|part| part.packets > 0) {
        let Some(more) = part.flows_max().filter(|_| part.first_ns >= latest) else { return false };
        latest = part.last_ns;
        flows = flows.saturating_add(more);
    }
    flows.saturating_mul(FLOWS_PER_IDENTIFIER) <= flows_max
}

fn send(form: &Form, batch: &RecordBatch, sender: &BatchSender) -> Result<(), End> {
    sender.blocking_send(Ok(form.select(batch)?)).map_err(|_| End::Satisfied)
}

pub(super) fn row<'a>(packet: &PacketRef<'a>) -> Packet<'a> {
    Packet {
        bytes: packet.bytes,
        link_type: u16::try_from(packet.link_type).unwrap_or(u16::MAX),
        wire_len: packet.wire_len,
        time_ns: packet.timestamp_ns,
        interface: packet.interface,
        lane: 0,
        direction: packet.direction.known(),
        owner: None,
    }
}
