//! Batches of Arrow: a stream of Arrow IPC for several flows, with the columns of the table.
//!
//! Text is plain UTF-8 here and not a dictionary, which would be a message of its own in each
//! stream: readers then need no support for dictionaries.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{
    Int64Builder, StringBuilder, TimestampNanosecondBuilder, UInt8Builder, UInt16Builder, UInt32Builder,
};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::MetadataVersion;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use super::values::{COLUMNS, Texts, Value, values};
use crate::export::{Build, Message, Record};
use crate::schema::{FLOWS, Kind, TABLE_KEY, VERSION_KEY};

/// Maximum bytes of a stream beside the values of its rows: schema, metadata of the batch, and
/// padding.
const OVERHEAD_BYTES: usize = 8 << 10;
/// Alignment of the buffers in a stream, in bytes: the least that Arrow permits.
const ALIGNMENT: usize = 8;

/// Values of a column.
enum Values {
    Time(TimestampNanosecondBuilder),
    U8(UInt8Builder),
    U16(UInt16Builder),
    U32(UInt32Builder),
    I64(Int64Builder),
    Text(StringBuilder),
}

impl Values {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Time => Self::Time(TimestampNanosecondBuilder::new().with_timezone("UTC")),
            Kind::U8 => Self::U8(UInt8Builder::new()),
            Kind::U16 => Self::U16(UInt16Builder::new()),
            Kind::U32 => Self::U32(UInt32Builder::new()),
            Kind::I64 => Self::I64(Int64Builder::new()),
            // The table has no bytes.
            Kind::Text | Kind::Bytes(_) | Kind::Binary => Self::Text(StringBuilder::new()),
        }
    }

    fn push(&mut self, value: Value<'_>) {
        let number = value.number();
        let signed = number.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        match self {
            Self::Time(values) => values.append_option(signed),
            Self::U8(values) => values.append_option(number.map(|number| number as u8)),
            Self::U16(values) => values.append_option(number.map(|number| number as u16)),
            Self::U32(values) => values.append_option(number.map(|number| number as u32)),
            Self::I64(values) => values.append_option(signed),
            Self::Text(values) => values.append_option(value.text()),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Time(values) => Arc::new(values.finish()),
            Self::U8(values) => Arc::new(values.finish()),
            Self::U16(values) => Arc::new(values.finish()),
            Self::U32(values) => Arc::new(values.finish()),
            Self::I64(values) => Arc::new(values.finish()),
            Self::Text(values) => Arc::new(values.finish()),
        }
    }
}

/// Returns the maximum bytes that a value of a column takes beside its text: those of a number or
/// of the position of a text, and one for a bit that says if it is null.
const fn value_bytes(kind: Kind) -> usize {
    1 + match kind {
        Kind::Time | Kind::I64 => 8,
        Kind::U32 | Kind::Text | Kind::Bytes(_) | Kind::Binary => 4,
        Kind::U16 => 2,
        Kind::U8 => 1,
    }
}

/// Gathers rows to messages.
pub(super) struct Batches {
    sensor: String,
    schema: SchemaRef,
    sensors: StringBuilder,
    columns: [Values; COLUMNS],
    /// Maximum bytes of a row beside its texts.
    row_bytes: usize,
    /// Maximum bytes of the rows so far.
    bytes: usize,
    /// Message without its bytes.
    message: Message,
}

impl Batches {
    pub(super) fn new(sensor: &str) -> Self {
        let values: usize = FLOWS.columns.iter().map(|column| value_bytes(column.kind)).sum();
        Self {
            sensor: sensor.to_owned(),
            schema: Arc::new(schema()),
            sensors: StringBuilder::new(),
            columns: std::array::from_fn(|at| Values::new(FLOWS.columns[at].kind)),
            row_bytes: values + value_bytes(Kind::Text) + sensor.len(),
            bytes: 0,
            message: Message::default(),
        }
    }

    /// Returns the stream of the rows, and starts an empty one.
    fn encode(&mut self) -> Result<Vec<u8>, ArrowError> {
        let mut columns: Vec<ArrayRef> = vec![Arc::new(self.sensors.finish())];
        columns.extend(self.columns.iter_mut().map(Values::finish));
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        let options = IpcWriteOptions::try_new(ALIGNMENT, false, MetadataVersion::V5)?;
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &self.schema, options)?;
        writer.write(&batch)?;
        writer.finish()?;
        writer.into_inner()
    }
}

/// Returns the schema of a stream: the sensor, and the columns of the table.
fn schema() -> Schema {
    let plain = |kind: Kind| match kind.data_type() {
        DataType::Dictionary(_, values) => *values,
        other => other,
    };
    let fields =
        FLOWS.columns.iter().map(|column| Field::new(column.name, plain(column.kind), column.nullable));
    let sensor = Field::new("sensor", DataType::Utf8, false);
    let metadata = [(TABLE_KEY, FLOWS.name.to_owned()), (VERSION_KEY, FLOWS.version.to_string())];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value));
    Schema::new(std::iter::once(sensor).chain(fields).collect::<Vec<_>>())
        .with_metadata(HashMap::from(metadata))
}

impl Build for Batches {
    fn push(&mut self, record: &Record<'_>, bytes_max: usize) -> Option<Message> {
        let texts = Texts::of(record.row);
        let values = values(record, &texts);
        let text_bytes: usize = values.iter().filter_map(|value| value.text()).map(str::len).sum();
        let bytes = self.row_bytes + text_bytes;
        let is_full = OVERHEAD_BYTES + self.bytes + bytes > bytes_max;
        let complete = if is_full { self.finish() } else { None };
        self.sensors.append_value(&self.sensor);
        for (column, value) in self.columns.iter_mut().zip(values) {
            column.push(value);
        }
        self.bytes += bytes;
        self.message.count(record.row);
        complete
    }

    fn finish(&mut self) -> Option<Message> {
        if self.message.flows.is_empty() {
            return None;
        }
        self.bytes = 0;
        let mut message = std::mem::take(&mut self.message);
        // A message without bytes is counted as lost. The encoder has no error for these columns.
        message.bytes = self.encode().unwrap_or_default();
        Some(message)
    }
}
