//! Thread that reads capture files for a partition of a scan.

use datafusion::arrow::array::RecordBatch;
use datafusion::common::DataFusionError;
use datafusion::error::Result;
use strait_capture::file::{FileError, FileReader, PacketRef};
use strait_table::{Batches, Packet, TableError};
use tokio::sync::mpsc::Sender;

use super::batches::Form;
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
pub(super) fn files(form: &Form, share: &Share, defects: &SharedDefects, sender: &BatchSender) -> Result<()> {
    let mut rows = form.rows(share.partitions());
    let mut read = Ok(());
    for file in share.iter() {
        read = read_file(file, form, &mut *rows, (defects, sender));
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

/// Reads one file. A defect of the file is recorded, and its earlier packets count.
fn read_file(
    file: &str,
    form: &Form,
    rows: &mut dyn Batches,
    (defects, sender): (&SharedDefects, &BatchSender),
) -> Result<(), End> {
    let mut read = || -> Result<Result<(), FileError>, End> {
        let mut reader = match FileReader::open(file) {
            Ok(reader) => reader,
            Err(error) => return Ok(Err(error)),
        };
        let mut until_check = STEP_PACKETS;
        loop {
            let packet = match reader.next() {
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
    };
    if let Err(error) = read()? {
        defects.with(|defects| defects.add_unread(error.to_string()));
    }
    loop {
        rows.end();
        if rows.is_empty() {
            return Ok(());
        }
        send(form, &rows.finish()?, sender)?;
    }
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
